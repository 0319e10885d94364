"The report in a browser: headless Chrome or Chromium, from a file, with the network off."
import io, json, shutil, time, warnings
from dataclasses import replace

import pandas as pd
import pytest

from conftest import root
from fasterbench import HardwarePeaks, Result, compare, from_json
from fasterbench.roofs.hardware import Ceiling, MemoryLevel
from fasterbench.points.model import place
from fasterbench.views.peaks_page import render_peaks
from fasterbench.views.table import to_frame
from fasterbench.core.units import format_si

resnet50 = root/"tests/data/resnet50.json"      # measured with `fasterbench roofline torchvision:resnet50` on two cores of an AMD EPYC
evil = "</script><script>alert(1)</script>"
kernel = "void at::native::vectorized_elementwise_kernel<4, " + "at::native::CUDAFunctor_add<float>, " * 7 + "std::array<char*, 3>>"

def no_browser(why):
    warnings.warn(f"THE REPORT IS NOT TESTED: {why}")
    pytest.skip(f"THE REPORT IS NOT TESTED: {why}")

@pytest.fixture(scope="module")
def chrome(tmp_path_factory):
    "A browser without a network. Selenium takes the one that is installed, or fetches one; without either there is nothing to test with."
    try: from selenium import webdriver
    except ImportError: no_browser("selenium is not installed; the dev extra has it")
    options = webdriver.ChromeOptions()
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking", "host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", dict(browser="ALL", performance="ALL"))
    options.binary_location = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
    driver = shutil.which("chromedriver")
    try: browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver) if driver else None)
    except Exception as error: no_browser(f"no Chrome or Chromium with its driver was found or could be fetched: {str(error).splitlines()[0]}")
    browser.downloads = tmp_path_factory.mktemp("downloads")
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", dict(behavior="allow", downloadPath=str(browser.downloads)))
    yield browser
    browser.quit()

def until(found, seconds=30):
    "What `found()` gives, once it gives something."
    end = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > end: raise AssertionError("waited in vain")
        time.sleep(0.05)
    return value

def ready(browser, kind): until(lambda: browser.execute_script("return document.body.dataset.ready") == kind)

def opened(browser, path, width=1280, dark=False, kind="modules"):
    "The page, drawn; what the console said and what was requested meanwhile."
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", dict(width=width, height=1600, deviceScaleFactor=1, mobile=False))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dict(features=[dict(name="prefers-color-scheme", value="dark" if dark else "light")]))
    for log in ("browser", "performance"): browser.get_log(log)
    browser.get(path.as_uri())
    ready(browser, kind)
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    return browser.get_log("browser"), [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

def on_charts(browser): return browser.execute_script("return charts.map(c => [...new Set(c.data.flatMap(t => t.customdata ?? []))].sort((a, b) => a - b))")
def in_table(browser): return browser.execute_script("return table.getData('active').map(r => r.index)")
def put(browser, id, value):
    "Set a filter as a user does: its value, and the event that says so."
    browser.execute_script("const e = document.getElementById(arguments[0]); e[e.type === 'checkbox' ? 'checked' : 'value'] = arguments[1];"
                           "e.dispatchEvent(new Event('input', {bubbles: true}))", id, value)

@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report")/"resnet50.html"
    from_json(resnet50).to_html(path)
    return path

def test_opens_from_a_file_without_a_network(chrome, report):
    console, requests = opened(chrome, report)
    assert console == [] and report.stat().st_size <= 6e6
    assert requests and all(url.startswith(("file:", "data:", "blob:")) for url in requests)

def filtered(frame, **wanted):
    "The rows of `frame` that a filter lets through."
    for column, value in wanted.items(): frame = frame[frame[column] == value]
    return frame

@pytest.mark.parametrize("kind, points", [("modules", "modules"), ("ops", "ops")])
def test_every_filter_changes_chart_and_table_to_the_same_rows(chrome, report, kind, points):
    opened(chrome, report)
    chrome.find_element("css selector", f"input[value={kind}]").click()
    ready(chrome, kind)
    frame = to_frame(from_json(resnet50), points)
    tried = 0
    for column in ("category", "bound", "memory_level", "dtype"):
        for value in frame[column][frame[column] != ""].unique():
            put(chrome, column, value)
            rows = filtered(frame, **{column: value}).index.tolist()
            assert rows and in_table(chrome) == rows and on_charts(chrome) == [rows, rows], (column, value)
            assert chrome.find_element("id", "shown").text.startswith(f"{len(rows)} of {len(frame)} rows")
            tried += 1
        put(chrome, column, "")
    put(chrome, "text", "Layer4")
    rows = frame[frame.name.str.contains("layer4")].index.tolist()
    assert in_table(chrome) == rows and on_charts(chrome) == [rows, rows] and tried >= 9
    put(chrome, "text", "add_" if points == "ops" else "no such layer")
    rows = frame[frame.operator.str.contains("add_")].index.tolist() if points == "ops" else []
    assert in_table(chrome) == rows and on_charts(chrome) == [rows, rows]

def training_step():
    "A model, the layer in it and its loss, by hand."
    peaks = HardwarePeaks(1e12, 1e11)
    row = lambda name, phase, time_s: place(name, name or "Net", 2e8, 1e7, time_s, peaks, share=0.2, phase=phase, category="matmul")
    slots = [("fc", "backward"), ("fc", "forward"), ("", "forward"), ("(loss)", "forward"), ("(optimizer)", "update")]
    return Result([row(*slot, 1e-3 / k) for k, slot in enumerate(slots, 1)], peaks, model="Net")

def test_phases_of_a_training_step(chrome, tmp_path):
    training_step().to_html(tmp_path/"step.html")
    compare(replace(training_step(), points=training_step().points[:4]), training_step()).to_html(tmp_path/"pair.html")
    for name, kind, rows in (("step", "modules", dict(backward=[0], forward=[1, 2, 3], update=[4])), ("pair", "pairs", dict(backward=[0], forward=[1, 2, 3], update=[4]))):
        assert opened(chrome, tmp_path/f"{name}.html", kind=kind)[0] == []
        for phase, left in rows.items():
            put(chrome, "phase", phase)
            assert in_table(chrome) == left and all(c == left for c in on_charts(chrome))

def names_shown(browser): return [e.get_property("textContent") for e in browser.find_elements("css selector", ".tabulator-cell[tabulator-field=name]")]

def test_the_root_of_a_model_has_a_name_to_read_and_to_find(chrome, tmp_path):
    training_step().to_html(tmp_path/"step.html")
    opened(chrome, tmp_path/"step.html")
    assert names_shown(chrome)[1:4] == ["fc", "(model)", "(loss)"]
    put(chrome, "text", "(Mod")
    assert in_table(chrome) == [2] and chrome.execute_script("return table.getData('active')[0].name") == ""

def test_a_side_that_is_missing_is_blank_and_what_is_unknown_is_not(chrome, tmp_path):
    peaks = HardwarePeaks(1e12, 1e11)
    old, new = (Result([place(name, "X", None, 1e6, 1e-3, peaks, share=1.0)], peaks, model="Net") for name in ("old", "new"))
    compare(old, new).to_html(tmp_path/"pair.html")
    opened(chrome, tmp_path/"pair.html", kind="pairs")
    cell = lambda field: [e.get_property("textContent").strip() for e in chrome.find_elements("css selector", f".tabulator-cell[tabulator-field={field}]")]
    assert cell("time_before_s") == ["1.00 ms", ""] and cell("flops_before") == ["?", ""] and cell("bytes_after") == ["", "1.00 MB"]
    assert not chrome.find_element("id", "phase").is_displayed()

def click_the_legend(browser):
    browser.execute_script("for (const e of ['mousedown', 'mouseup']) document.querySelector('.legendtoggle').dispatchEvent(new MouseEvent(e))")

def visible(browser): return browser.execute_script("return charts[0].data.filter(t => t.showlegend !== false && t.visible !== 'legendonly').map(t => t.name)")

@pytest.fixture
def peaks_page(tmp_path):
    peaks = HardwarePeaks(2e11, 7e10, levels=(MemoryLevel("L2", 2 << 20, 9e11), MemoryLevel("DRAM", None, 7e10)), ceilings=(Ceiling("float32", 2e11),),
                          sweep=(("copy", 1 << 20, 5e11), ("read", 1 << 20, 3e11), ("copy", 1 << 28, 5e10)), trials=(("float32", "matmul 512×512×512", 2.7e8, 2e11),))
    (tmp_path/"peaks.html").write_text(render_peaks(peaks), encoding="utf-8")
    return tmp_path/"peaks.html"

def test_peaks_page(chrome, peaks_page):
    "Its filter and its legend act; what it has no column for is not offered; the buttons of the chart have no ground of their own."
    console, requests = opened(chrome, peaks_page, kind="memory")
    assert console == [] and all(url.startswith(("file:", "data:", "blob:")) for url in requests)
    assert not chrome.find_element("id", "moves").is_displayed() and chrome.find_element("id", "kind").is_displayed()
    put(chrome, "kind", "copy")
    assert in_table(chrome) == [0, 2] and on_charts(chrome) == [[0, 2]]
    put(chrome, "kind", "")
    assert visible(chrome) == ["copy", "read"]
    click_the_legend(chrome)
    until(lambda: visible(chrome) == ["copy"])
    ground = chrome.execute_script("return getComputedStyle(document.querySelector('.modebar-group')).backgroundColor")
    assert ground.replace(" ", "").endswith(",0)"), ground
    chrome.find_element("css selector", "input[value=arithmetic]").click()
    ready(chrome, "arithmetic")
    assert chrome.get_log("browser") == [] and in_table(chrome) == [0]

def test_legend_of_a_comparison(chrome, tmp_path):
    saved = from_json(resnet50)
    compare(saved, saved).to_html(tmp_path/"pair.html")
    opened(chrome, tmp_path/"pair.html", kind="pairs")
    before = visible(chrome)
    click_the_legend(chrome)
    until(lambda: 0 < len(visible(chrome)) < len(before))

def test_rows_that_only_move_data_can_be_left_out(chrome, tmp_path):
    peaks = HardwarePeaks(1e12, 1e11)
    rows = [place("conv", "Conv2d", 2e8, 1e7, 1e-3, peaks, share=0.5, category="convolution"),
            place("copy", "Copy", 0, 1e7, 1e-3, peaks, share=0.5, category="data movement")]
    Result(rows, peaks, model="Net").to_html(tmp_path/"r.html")
    opened(chrome, tmp_path/"r.html")
    assert on_charts(chrome) == [[0, 1], [0, 1]]
    put(chrome, "moves", False)
    assert in_table(chrome) == [0] and on_charts(chrome) == [[0], [0]]

def test_columns_sort_by_mouse_and_by_keyboard(chrome, report):
    opened(chrome, report)
    frame = to_frame(from_json(resnet50))
    header = chrome.find_element("css selector", ".tabulator-col[tabulator-field=bytes_moved]")
    header.click()
    values = chrome.execute_script("return table.getData('active').map(r => r.bytes_moved)")
    assert values == sorted(frame.bytes_moved, reverse=True)
    header.send_keys("\n")
    assert chrome.execute_script("return table.getData('active').map(r => r.bytes_moved)") == sorted(frame.bytes_moved)

def test_csv_of_filtered_rows_is_the_filtered_frame(chrome, report):
    opened(chrome, report)
    put(chrome, "category", "convolution"); put(chrome, "text", "layer3")
    chrome.find_element("id", "csv").click()
    path = until(lambda: next(chrome.downloads.glob("*.csv"), None))
    read = pd.read_csv(io.StringIO(path.read_text(encoding="utf-8-sig")), keep_default_na=False, na_values=[""])
    path.unlink()
    frame = to_frame(from_json(resnet50))
    frame = frame[(frame.category == "convolution") & frame.name.str.contains("layer3")].reset_index(drop=True)
    read.columns = [c.partition(" [")[0] for c in read.columns]
    text = [c for c in frame if isinstance(frame[c].dtype, pd.StringDtype)]
    assert set(read.columns) == set(frame.columns) and len(read) == len(frame) > 10
    read[text] = read[text].astype(object).fillna("")          # an empty text and a missing one look the same in CSV
    pd.testing.assert_frame_equal(read[list(frame.columns)], frame, check_dtype=False, rtol=0, atol=0)

def test_numbers_look_as_everywhere_else(chrome, report):
    opened(chrome, report)
    values = [0, 1, 999, 999.994, 999.996, 1000, 1234.5, 9.637888e6, 2.31211008e8, 1.2e-9, 4.56e-5, 0.0151, 5.5e11, 1.119e12, 3e-17, 7e20]
    assert chrome.execute_script("return arguments[0].map(x => show(x, 'B/s'))", values) == [format_si(v, "B/s") for v in values]
    others = chrome.execute_script("return [show(null, 's'), show(0.5, 'share'), show(12.34, '%'), show(1.5, 'GFLOP/s')]")
    assert others == ["?", "50.0 %", "12.3 %", "1.50 GFLOP/s"]

def test_program_and_steps(chrome, report):
    opened(chrome, report)
    chrome.find_element("css selector", "input[value=program]").click()
    ready(chrome, "program")
    saved = from_json(resnet50)
    names = chrome.execute_script("return table.getData('active').map(r => r.name)")
    assert names[:3] == ["whole model, without instruments", "average of the timed steps", "step 1"] and len(names) == len(saved.steps) + 2
    assert on_charts(chrome) == [list(range(len(names)))]

def test_legend_isolates_and_a_click_finds_the_row(chrome, report):
    opened(chrome, report)
    click_the_legend(chrome)
    until(lambda: chrome.execute_script("return document.getElementById('bound').value") == "memory")
    assert set(chrome.execute_script("return table.getData('active').map(r => r.bound)")) == {"memory"}
    index = in_table(chrome)[-1]
    chrome.execute_script("charts[0].emit('plotly_click', {points: [{customdata: arguments[0]}]})", index)
    assert chrome.execute_script("return table.getSelectedData().map(r => r.index)") == [index]

def test_hostile_names_are_text(chrome, tmp_path):
    peaks = HardwarePeaks(1e12, 1e11)
    names = [evil, kernel, "ünïcode 層 🙂", "<img src=x onerror=alert(2)>", "a\nb\x1b[31m", "=1+1", '"quoted", too', "", "{{ 7 * 7 }}", "__proto__"]
    rows = [place(n, n, 2e8, 1e7, 1e-3, peaks, share=0.1, category="convolution", operator=n) for n in names]
    Result(rows, peaks, ops=rows, model=evil, environment=dict(device_name=evil), unknown_ops={evil: 1}).to_html(tmp_path/"evil.html", title=evil)
    console, _ = opened(chrome, tmp_path/"evil.html")
    assert console == [] and chrome.find_element("tag name", "h1").text == evil and chrome.title == evil
    assert chrome.execute_script("return table.getData('active').map(r => r.name)") == names
    cells = [e.get_property("textContent") for e in chrome.find_elements("css selector", ".tabulator-cell[tabulator-field=name]")]
    assert cells[:4] == names[:4] and chrome.execute_script("return document.images.length") == 0
    chrome.execute_script("Plotly.Fx.hover(charts[0], [{curveNumber: charts[0].data.findIndex(t => t.customdata), pointNumber: 0}])")
    assert "alert(1)" in until(lambda: chrome.find_elements("css selector", ".hovertext"))[0].get_property("textContent")
    put(chrome, "text", "onerror")
    assert in_table(chrome) == [3]
    compare(Result(rows, peaks), Result(rows[1:], peaks)).to_html(tmp_path/"pair.html")
    assert opened(chrome, tmp_path/"pair.html", kind="pairs")[0] == []

def test_a_thousand_rows_of_each_kind_fit(chrome, tmp_path):
    saved = from_json(resnet50)
    many = replace(saved, points=[replace(saved.points[i % 142], name=f"encoder.layers.{i}.attention.output") for i in range(1200)],
                   ops=[replace(saved.ops[i % 195], name=f"encoder.layers.{i}") for i in range(1200)])
    many.to_html(tmp_path/"many.html")
    opened(chrome, tmp_path/"many.html")
    assert (tmp_path/"many.html").stat().st_size <= 6e6 and len(in_table(chrome)) == 1000
    assert "200 faster ones that are not in this file" in chrome.find_element("id", "shown").text

def luminance(color):
    channels = [float(c) / 255 for c in color[color.index("(") + 1:-1].split(",")[:3]]
    return sum(w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055)**2.4) for w, c in zip((0.2126, 0.7152, 0.0722), channels))

@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_on_light_and_dark_pages(chrome, report, dark):
    "A contrast of at least 4.5 (WCAG 2.2, 1.4.3) in table cells, labels and facts."
    opened(chrome, report, dark=dark)
    page = chrome.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (luminance(page) < 0.1) == dark
    for selector in (".tabulator-cell", ".tabulator-row-even .tabulator-cell", ".tabulator-col-title", "label", "#shown", "select", "button", "dt"):
        color, ground = chrome.execute_script("const s = getComputedStyle(document.querySelector(arguments[0])); return [s.color, s.backgroundColor]", selector)
        high, low = sorted((luminance(color), luminance(page if ground.replace(" ", "").endswith(",0)") else ground)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (selector, color, ground)

@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_sticks_out_of_the_page(chrome, report, width):
    opened(chrome, report, width=width)
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
    assert all(w <= width for w in chrome.execute_script("return charts.map(c => c.getBoundingClientRect().right)"))

def test_keyboard_and_alt_text(chrome, report):
    opened(chrome, report)
    reached = []
    for _ in range(60):
        chrome.switch_to.active_element.send_keys("\t")
        reached.append(chrome.execute_script("const e = document.activeElement; return e.id || e.value || e.getAttribute('tabulator-field') || e.className"))
    controls = ["modules", "category", "bound", "memory_level", "dtype", "text", "moves", "csv"]
    assert [r for r in reached if r in controls][:8] == controls
    assert "name" in reached and "time_s" in reached, reached
    labels = chrome.execute_script("return [...document.querySelectorAll('figure')].map(e => e.ariaLabel)")
    assert labels[0].startswith("Roofline chart of ResNet on AMD EPYC (cpu): 142 modules") and labels[1].startswith("Time by category: convolution")

def test_comparison(chrome, tmp_path):
    saved = from_json(resnet50)
    faster = [replace(p, time_s=p.time_s / 2, achieved_gflops=p.achieved_gflops * 2) for p in saved.points[10:]]
    after = replace(saved, points=[*faster, replace(saved.points[0], name="new")])
    compare(saved, after).to_html(tmp_path/"pair.html")
    console, requests = opened(chrome, tmp_path/"pair.html", kind="pairs")
    assert console == [] and all(url.startswith(("file:", "data:", "blob:")) for url in requests)
    for side, count in (("only after", 1), ("only before", 10), ("both", 132)):
        put(chrome, "side", side)
        assert len(in_table(chrome)) == count and on_charts(chrome) == [in_table(chrome)]
