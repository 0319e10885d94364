"""Pages of every kind from small real results, and pictures of them at three sizes, light and dark.

    python tests/benchmarks/screenshots.py FOLDER [--only trace serve] [--sizes 1440x900-light 390x844]
    python tests/benchmarks/screenshots.py nbs/images --pages report.html --picture report.png

What is measured is kept in FOLDER/results, so that the pages are made again without measuring; `tests/test_views.py`
presses and measures what is on pages. The second line makes a picture of one page at 1440×740, light, as
`.ci/readme.py --run` does for the README. Needs selenium and Chrome or Chromium; pages of traces and kernels need
the public files that CONTRIBUTING names."""
import argparse, base64, os, pickle, shutil, subprocess, sys, time
from itertools import product
from pathlib import Path

root = Path(__file__).parents[2]
shared = Path(os.environ.get("FASTERBENCH_SHARED", root.parent/"shared"))/"data"
sizes = ((1440, 900), (1024, 768), (390, 844))
h100 = "NVIDIA H100 80GB HBM3"

# Results that take time

def command(*arguments, ranks=0):
    "Run `fasterbench` with these arguments, on several ranks where that is asked for."
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    threads = dict(OMP_NUM_THREADS="1") if ranks else {}
    subprocess.run([sys.executable, *launcher, "-m", "fasterbench", *map(str, arguments)], check=True, cwd=root,
                   env=os.environ | threads)

def roofline(path, *options, ranks=0):
    command("roofline", "torchvision:resnet18", "--no-html", "--no-progress", "--json", path, *options, ranks=ranks)

def watched(path):
    "Log the steps of a training run."
    import torch, torchvision, fasterbench
    model, x = torchvision.models.resnet18(), torch.randn(2, 3, 224, 224)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with fasterbench.watch(model, every=6, log=path):
        for _ in range(60):
            model(x).sum().backward()
            optimizer.step(); optimizer.zero_grad()

budgets = """[resnet18]
model = "torchvision:resnet18"
parameters = "<= 11.7 M"
flops = "<= 3.6 GFLOP"
utilization = ">= 20 %"
time = "<= 200 ms"
[resnet18.layers."layer4.*.conv2"]
utilization = ">= 5 %"
"""

def checked(path):
    "Keep the verdicts on budgets; the page is made of them."
    from fasterbench.checking import check_verb as check
    path.with_suffix(".toml").write_text(budgets)
    settings, limits = check.read_budgets(check._plain_document(check._document(path.with_suffix(".toml"))))
    [(model, how)] = settings.items()
    view = check._judged([check._OfModel(how, limits, None)], None, 10, False, str, str)
    path.write_bytes(pickle.dumps((view.verdicts, view.machines)))

measured = {
    "resnet18.json": roofline, "batch2.json": lambda p: roofline(p, "--batch", 2),
    "batch4.json": lambda p: roofline(p, "--batch", 4),
    "batch8.json": lambda p: roofline(p, "--batch", 8),
    "training.json": lambda p: roofline(p, "--backward", "--optimizer", "SGD"),
    "compiled.json": lambda p: roofline(p, "--compile"), "ranks.json": lambda p: roofline(p, "--backward", ranks=2),
    "peaks.json": lambda p: command("peaks", "--no-progress", "--json", p), "watch.jsonl": watched,
    "check.pickle": checked}

# Pages

def predicted(batch=1, on=h100):
    import torch, torchvision
    from fasterbench import predict
    with torch.device("meta"): return predict(torchvision.models.resnet18(), torch.randn(batch, 3, 224, 224), on)

def trace(name):
    from fasterbench import read_trace
    return read_trace(shared/"traces"/f"{name}.json.gz").with_roofs()

def served(**options):
    from fasterbench import serve
    return serve(shared/"configs/llama3.1-8b", **options)

def verdicts(path):
    from fasterbench.checking.verdict_view import Verdicts
    return Verdicts(*pickle.loads(path.read_bytes()))

def views(kept):
    """How each page is made: of its name, a function that returns what is shown. `kept` gives the path of a
    measured result."""
    from fasterbench import HardwarePeaks, compare, from_json, read_ncu
    from fasterbench.roofs.datasheet import datasheet_peaks
    from fasterbench.running.metrics import read_series
    from fasterbench.views.peaks_page import PeaksView
    def result(name): return from_json(kept(f"{name}.json"))
    return dict(
        roofline=lambda: result("resnet18"), training=lambda: result("training"), compiled=lambda: result("compiled"),
        ranks=lambda: result("ranks"), trace=lambda: trace("h100_vit_base_infer"),
        sd35=lambda: trace("mi300x_sd35_compiled"),
        ddp=lambda: trace("mi300x_resnet_ddp8_train_rank0"), qwen=lambda: trace("h100_qwen1.5_0.5b_prefill"),
        two=lambda: compare(result("resnet18"), result("compiled")),
        four=lambda: compare(*map(result, ("resnet18", "batch2", "batch4", "batch8"))),
        predict=predicted, predictions=lambda: compare(*(predicted(batch=b) for b in (1, 8, 32))),
        devices=lambda: compare(*(predicted(on=on) for on in (h100, "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X"))),
        serve=served, servers=lambda: served(on=[h100, "NVIDIA A100-SXM4-80GB"], tensor_parallel=[1, 2, 4]),
        peaks=lambda: PeaksView(HardwarePeaks.from_json(kept("peaks.json"))),
        check=lambda: verdicts(kept("check.pickle")), watch=lambda: read_series(kept("watch.jsonl"), "ResNet"),
        ncu=lambda: read_ncu(shared/"ncu/gemm_tiled.csv", peaks=datasheet_peaks("NVIDIA A100-SXM4-40GB")))

def made(folder, only):
    "Make the pages, measuring what is not there yet."
    (folder/"results").mkdir(parents=True, exist_ok=True)
    def kept(name):
        path = folder/"results"/name
        if not path.exists(): measured[name](path)
        return path
    for name, shown in views(kept).items():
        if only and name not in only: continue
        path = folder/f"{name}.html"
        shown().to_html(path)
        yield path

# Pictures

def chrome():
    from selenium import webdriver
    options, driver = webdriver.ChromeOptions(), shutil.which("chromedriver")
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", dict(browser="ALL"))
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver) if driver else None)

def view(browser, width, height):
    "A viewport of this size, with charts and labels of a page in place."
    size = dict(width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    placed = "!document.body?.dataset.ready || document.body.dataset.size === `${innerWidth}x${innerHeight}`"
    end = time.monotonic() + 5
    while not browser.execute_script(f"return innerWidth === {width} && ({placed})") and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.1)

def opened(browser, page, width, height, scheme):
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                            dict(features=[dict(name="prefers-color-scheme", value=scheme)]))
    browser.get("about:blank")
    view(browser, width, height)
    browser.get_log("browser")
    browser.get(page.resolve().as_uri())
    while not browser.execute_script("return document.body.dataset.size"): time.sleep(0.05)
    view(browser, width, height)

def picture(browser, page, path, width=1440, height=740, scheme="light"):
    "The first screen of a page."
    opened(browser, page, width, height, scheme)
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", dict(format="png"))["data"]))
    print(path, path.stat().st_size, "bytes", flush=True)

def pictures(browser, page, folder, only):
    for (width, height), scheme in product(sizes, ("light", "dark")):
        name = f"{page.stem}-{width}x{height}-{scheme}"
        if not only or any(o in name for o in only): picture(browser, page, folder/f"{name}.png", width, height, scheme)

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="Names of pages")
    parser.add_argument("--pages", type=Path, nargs="+", help="Pages that are there, instead of those of every kind")
    parser.add_argument("--sizes", nargs="*", help="Parts of names of pictures: 390x844, light, 1440x900-dark")
    parser.add_argument("--picture", help="One picture of this name, of the first page")
    parser.add_argument("--no-pictures", action="store_true", help="Make the pages alone")
    given = parser.parse_args()
    pages = given.pages or list(made(given.folder, given.only))
    if given.no_pictures: sys.exit()
    browser = chrome()
    try:
        if given.picture: picture(browser, pages[0], given.folder/given.picture)
        else:
            for page in pages: pictures(browser, page, given.folder, given.sizes)
    finally: browser.quit()
