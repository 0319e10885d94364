"""How long the report of a thousand rows of each kind takes to open in a headless browser, and how large it is.
Limits: 2 s, 6 MB. Needs selenium and Chrome or Chromium."""
import statistics, tempfile, time
from dataclasses import replace
from pathlib import Path

from fasterbench import from_json
from screenshots import chrome

saved = from_json(Path(__file__).parent.parent/"data/resnet50.json")
name = "encoder.layers.{}.attention.output.dense"
many = replace(saved, points=[replace(saved.points[i % len(saved.points)], name=name.format(i)) for i in range(1000)],
               ops=[replace(saved.ops[i % len(saved.ops)], name=name.format(i)) for i in range(1000)])
browser = chrome()
with tempfile.TemporaryDirectory() as folder:
    for title, result in (("ResNet-50", saved), ("1000 modules and 1000 operators", many)):
        path, times = Path(folder)/"report.html", []
        result.to_html(path)
        for _ in range(7):
            browser.get("about:blank")
            browser.get(path.as_uri() + "#fold=0")     # every row has a line
            while not browser.execute_script("return document.body.dataset.ready"): time.sleep(0.005)
            times.append(browser.execute_script("return performance.now()") / 1e3)
        print(f"{title:32} {path.stat().st_size / 1e6:5.2f} MB, opens in {statistics.median(times):.2f} s "
              f"({min(times):.2f} to {max(times):.2f})", flush=True)
browser.quit()
