"The pages in a browser: headless Chrome or Chromium, from a file, with the network off."
import io, json, math, os, time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from conftest import heavy, heavy_only, in_line, nightly, nightly_only, once, root
from fasterbench import HardwarePeaks, Result, compare, from_json
from fasterbench.core.units import format_si
from fasterbench.roofs.place import place
from fasterbench.roofs.row import Row
from fasterbench.roofs.hardware import Ceiling, MemoryLevel
from fasterbench.views.peaks_page import PeaksView
from view_kinds import paper, row

traces = Path(os.environ.get("FASTERBENCH_SHARED", root.parent/"shared"))/"data/traces"
# measured with `fasterbench roofline torchvision:resnet50` on two cores of an AMD EPYC
resnet50 = root/"tests/data/resnet50.json"
evil = "</script><script>alert(1)</script>"
kernel = ("void at::native::vectorized_elementwise_kernel<4, " + "at::native::CUDAFunctor_add<float>, " * 7
          + "std::array<char*, 3>>")

def until(found, what=""):
    "Wait until `found()` gives something, and return it."
    end = time.monotonic() + 120
    while not (value := found()):
        if time.monotonic() > end: raise AssertionError(f"waited in vain: {what}")
        time.sleep(0.05)
    return value

more, phones = heavy_only("seconds in a browser"), nightly_only("a phone")

def ready(browser, tab): until(lambda: browser.execute_script("return document.body.dataset.ready") == tab)

def view(browser, width, height):
    "A window of this size, in CSS px, with charts and labels in place for it."
    size = dict(width=width, height=height, deviceScaleFactor=1, mobile=False)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    until(lambda: browser.execute_script(
        "return innerWidth === arguments[0] && (!document.body.dataset.ready || document.body.dataset.size === "
        "[...arguments].join('x'))", width, height))

def opened(browser, path, width=1440, height=900, dark=False, tab="modules", state="fold=0"):
    "The page, drawn; what the console said and what was requested meanwhile."
    scheme = dict(name="prefers-color-scheme", value="dark" if dark else "light")
    browser.get("about:blank")
    view(browser, width, height)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dict(features=[scheme]))
    for log in ("browser", "performance"): browser.get_log(log)
    browser.get(path.as_uri() + ("#" + state if state else ""))
    ready(browser, tab)
    until(lambda: browser.execute_script(
        "return innerWidth === arguments[0] && document.body.dataset.size === [...arguments].join('x')", width,
        height))
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    return (browser.get_log("browser"), [e["params"]["request"]["url"] for e in events
                                         if e["method"] == "Network.requestWillBeSent"])

def inside(requests):
    return requests and all(url.startswith(("file:", "data:", "blob:", "about:")) for url in requests)

def on_charts(browser):
    "The rows that have a marker or a bar, chart by chart."
    script = "return charts.map(c => [...new Set(c.data.flatMap(t => t.customdata ?? []))].sort((a, b) => a - b))"
    return browser.execute_script(script)
def lines(browser):
    return browser.execute_script(
        "return [...document.querySelectorAll('#table tbody tr[data-index]')].map(e => Number(e.dataset.index))")
def in_table(browser): return sorted(lines(browser))
def column(browser, field):
    "The texts of a column of the table."
    script = (
        "return [...document.querySelectorAll(`#table td.field-${arguments[0]}`)].map(e => "
        "(e.querySelector('[title]')?.title || e.textContent)")
    return browser.execute_script(script + " + (e.querySelector('.count')?.textContent ?? ''))", field)

def put(browser, id, value):
    "Set a filter as a user does: its value, and the event that says so."
    if browser.execute_script("return data.filters.some(f => f.field === arguments[0])", id): id = f"filter-{id}"
    browser.execute_script(
        "const e = document.getElementById(arguments[0]); e[e.type === 'checkbox' ? 'checked' : 'value'] = "
        "arguments[1];"
                           "e.dispatchEvent(new Event('input', {bubbles: true}))", id, value)

def go_to(browser, tab):
    browser.execute_script("document.querySelector(arguments[0]).click()", f"#tabs [value={tab}]")
    ready(browser, tab)

def line(browser, index): return browser.find_element("css selector", f"#table tr[data-index='{index}']")
def press(browser, index): browser.execute_script("arguments[0].click()", line(browser, index))
def box(browser, selector):
    "Left, top, right and bottom of what a selector finds first, px."
    return browser.execute_script(
        "const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.left, b.top, b.right, "
        "b.bottom]", selector)
def press_marker(browser, index):
    browser.execute_script("charts[0].emit('plotly_click', {points: [{customdata: arguments[0]}]})", index)

def ringed(browser):
    "The rows whose markers are ringed: those at the places of the rings."
    return browser.execute_script("""
        const c = charts[0], rings = c.data.filter(t => t.name === 'chosen')
            .flatMap(t => t.x.map((x, i) => `${t.xaxis} ${x} ${t.y[i]}`))
        const ringed = t => (t.customdata ?? []).filter((_, i) => rings.includes(`${t.xaxis} ${t.x[i]} ${t.y[i]}`))
        return [...new Set(c.data.flatMap(ringed))]""")
def chosen(browser):
    return browser.execute_script(
        "return [...document.querySelectorAll('#table tr.chosen')].map(e => Number(e.dataset.index))")

def both_on_screen(browser, index):
    "Return whether the line of a row and its ring can be seen."
    return browser.execute_script("""
        const seen = b => b.top >= -1 && b.bottom <= innerHeight + 1 && b.height > 0
        const line = document.querySelector(`#table tr[data-index="${arguments[0]}"]`).getBoundingClientRect()
        const frame = document.getElementById('scroller').getBoundingClientRect()
        const head = document.querySelector('#table thead').getBoundingClientRect()
        const rings = charts[0].data.flatMap((t, k) => t.name === 'chosen' ? [k] : [])
        const drawn = k => charts[0].querySelectorAll(`.scatterlayer .trace${charts[0]._fullData[k].uid} path`)
        const paths = rings.flatMap(k => [...drawn(k)])
        return [seen(line) && line.bottom <= frame.bottom + 1 && line.top >= head.bottom - 1,
            paths.length > 0 && paths.every(p => seen(p.getBoundingClientRect()))]""", index)

@pytest.fixture(scope="module")
def report(pages): return pages["report"][0]

@more
def test_the_charts_are_drawn_at_their_size(chrome, report):
    "The filters wrap or not: the chart is drawn in the box that stays."
    for width in (1200, 1280, 1366, 1440, 1600) if nightly else (1280, 1440):
        opened(chrome, report, width)
        heights = chrome.execute_script("""
            const top = Math.round(document.querySelector(".both").getBoundingClientRect().top + scrollY)
            return [`${top}px`, document.documentElement.style.getPropertyValue("--top"),
                    charts[0]._fullLayout.height, document.getElementById("chart").clientHeight]""")
        assert heights[0] == heights[1] and abs(heights[2] - heights[3]) <= 1, (width, heights)

@more
def test_titles_of_columns_take_two_lines(chrome, report):
    "All columns shown, of every kind of rows; and each filter says what it filters."
    opened(chrome, report)
    chrome.execute_script("state.columns[tab.name] = tab.columns.map(c => c.field); columnsChanged()")
    lines = chrome.execute_script("""
        const lines = e => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight)
        const titles = [...document.querySelectorAll("#table th .dt-column-title")]
        return titles.map(e => [e.textContent, Math.round(lines(e))])""")
    assert lines and [line for line in lines if line[1] > 2] == []
    cut = chrome.execute_script("""return [...document.querySelectorAll("#fields select")].filter(e => {
        const whole = e.cloneNode(false), word = document.createElement("option")
        word.textContent = e.options[0].textContent
        whole.append(word); whole.style.maxWidth = "none"; whole.hidden = false
        e.parentElement.append(whole)
        const fits = whole.offsetWidth <= parseFloat(getComputedStyle(e).maxWidth)
        whole.remove()
        return !fits}).map(e => e.id)""")
    assert cut == [], cut

@more
def test_a_comparison_of_three_shows_the_ratio(chrome, tmp_path):
    one = from_json(resnet50)
    path = tmp_path/"three.html"
    compare(*(replace(one, call=dict(one.call, batch=b)) for b in (1, 2, 4))).to_html(path)
    opened(chrome, path, tab="series")
    places = chrome.execute_script("""
        const frame = document.getElementById("scroller").getBoundingClientRect()
        return [...document.querySelectorAll("#table th")]
            .map(e => [e.textContent, e.getBoundingClientRect().right <= frame.right])""")
    assert len(places) == 6 and all(seen for _, seen in places) and places[2][0] == "last/first", places

row = partial(row, share=0.2)

def training_step():
    "A model, the layer in it and its loss, by hand."
    slots = [("fc", "backward"), ("fc", "forward"), ("", "forward"), ("(loss)", "forward"), ("(optimizer)", "update")]
    return Result([row(name, 1e-3 / k, name or "Net", phase=phase) for k, (name, phase) in enumerate(slots, 1)],
                  paper, model="Net")

def repeated_blocks():
    "Four equal blocks of two layers, and a head."
    blocks = [row(f"layers.{i}.{name}", t * (1 + i / 100), flops=f)
              for name, t, f in (("up", 4e-3, 2e8), ("down", 2e-3, 3e8)) for i in range(4)]
    return Result([*blocks, row("head", 1e-3, flops=5e7)], paper, model="Net")

def with_levels():
    "Kernels whose bytes were counted level by level, as Nsight Compute gives them."
    levels = (MemoryLevel("L1", 128 << 10, 1e13), MemoryLevel("L2", 40 << 20, 4e12), MemoryLevel("DRAM", None, 1e12))
    peaks = HardwarePeaks(2e13, 1e12, device="cuda", levels=levels, environment=dict(device_name="a GPU"))
    def kernel(name, time, flops, *served):
        return place(Row(name, name.partition("<")[0], flops, sum(served), time, bytes_by_level=served,
                         category=name[:4]),
                     peaks, share=time / 1e-3, source="counters")
    rows = [kernel("gemm<float>", 5e-4, 6e9, 3e8, 1e8, 4e7), kernel("softmax<float>", 2e-4, 2e8, 2e7, 3e7, 1e8),
            kernel("copy<float>", 2e-4, 0, 0, 0, 1.6e8), kernel("relu<float>", 1e-4, 1e7, 0, 2e7, 6e7)]
    return Result(rows, peaks, model="kernels.exe", environment=dict(device_name="a GPU", tool="Nsight Compute"))

def two_results():
    "One row is faster, one slower, one as it was, one new."
    timed = partial(row, time_iqr_s=1e-5)
    before = [timed("a", 4e-3), timed("b", 3e-3, flops=1e8),
              timed("c", 2e-3, "ReLU", 1e6, 1e7, category="activation"), timed("old", 1e-3, flops=5e8)]
    after = [timed("a", 2e-3), timed("b", 6e-3, flops=1e8), timed("c", 2e-3, "ReLU", 1e6, 1e7, category="activation"),
             timed("new", 1e-3, flops=4e8)]
    return Result(before, paper, model="Net"), Result(after, paper, model="Net")

def measured_peaks():
    return HardwarePeaks(2e11, 7e10, levels=(MemoryLevel("L2", 2 << 20, 9e11), MemoryLevel("DRAM", None, 7e10)),
                         ceilings=(Ceiling("float32", 2e11),),
                         sweep=(("copy", 1 << 20, 5e11), ("read", 1 << 20, 3e11), ("copy", 1 << 28, 5e10)),
                         trials=(("float32", "matmul 512×512×512", 2.7e8, 2e11),))

def all_pages(folder):
    from_json(resnet50).to_html(folder/"report.html")
    for name, result in dict(step=training_step(), blocks=repeated_blocks(), levels=with_levels()).items():
        result.to_html(folder/f"{name}.html")
    compare(*two_results()).to_html(folder/"pair.html")
    compare(*two_results(), two_results()[0]).to_html(folder/"series.html")
    (folder/"peaks.html").write_text(PeaksView(measured_peaks()).render(), encoding="utf-8")

@pytest.fixture(scope="module")
def pages():
    "Every kind of page, with its first tab."
    folder, first = once("pages", all_pages), dict(pair="pairs", peaks="memory", series="series")
    return {name: (folder/f"{name}.html", first.get(name, "modules")) for name in kinds_of_pages}

kinds_of_pages = ("report", "step", "blocks", "levels", "pair", "series", "peaks")
def here_on(page):
    "What takes seconds on each page is tried on this one, and once a week on all."
    rarely = nightly_only("the same on another kind of page")
    return pytest.mark.parametrize("name", [n if n == page else pytest.param(n, marks=rarely) for n in kinds_of_pages])

# Every kind of page

@pytest.mark.parametrize("name", in_line(kinds_of_pages, "report", ci=("pair", "peaks"), why="another kind of page"))
def test_opens_from_a_file_without_a_network_and_without_errors(chrome, pages, name):
    path, tab = pages[name]
    console, requests = opened(chrome, path, tab=tab, state="")
    assert console == [] and inside(requests) and path.stat().st_size <= 6e6
    assert (lines(chrome) and chrome.find_element(
        "id", "shown").text.startswith(f"{chrome.execute_script('return rows.length')} of"))

@more
@here_on("step")
def test_every_filter_acts_on_charts_table_and_sum(chrome, pages, name):
    "Whatever value is chosen: table and charts have the same rows, and these have the value."
    path, tab = pages[name]
    opened(chrome, path, tab=tab)
    tried = 0
    for field in chrome.execute_script("return data.filters.map(f => f.field)"):
        for value in chrome.execute_script(
            "return [...document.getElementById('filter-' + arguments[0]).options].map(o => o.value).filter(v => v)",
            field):
            put(chrome, field, value)
            wanted = chrome.execute_script(
                "return rows.filter(r => arguments[1].startsWith('not ') ? r[arguments[0]] !== arguments[1].slice(4) "
                ": r[arguments[0]] === arguments[1])"
                                           ".map(r => r.index)", field, value)
            assert (wanted and in_table(chrome) == wanted
                    and all(set(c) <= set(wanted) for c in on_charts(chrome))), (field, value)
            assert chrome.find_element("id", "shown").text.startswith(f"{len(wanted)} of ")
            tried += 1
        put(chrome, field, "")
    put(chrome, "text", "no such row")
    assert (lines(chrome) == [] and all(c == [] for c in on_charts(chrome)) and tried >= 1
            and chrome.get_log("browser") == [])

@heavy_only("seconds in a browser")
@here_on("step")
def test_charts_keep_their_size_when_the_window_or_the_phone_turns(chrome, pages, name):
    path, tab = pages[name]
    opened(chrome, path, tab=tab)
    # the smaller of the place of a chart and the drawing in it
    def sizes(): return chrome.execute_script("""
        return charts.map(c => [c, c.querySelector('.main-svg')].map(e => e.getBoundingClientRect()))
            .map(boxes => [Math.min(...boxes.map(b => b.width)), Math.min(...boxes.map(b => b.height))])""")
    before = sizes()
    view(chrome, 1300, 900)
    # labels are in place for it
    assert chrome.execute_script("return document.body.dataset.size") == "1300x900"
    assert all(abs(h - old) < 40 for (_, h), (_, old) in zip(sizes(), before)) and sizes()[0][0] < before[0][0]
    for width, height in ((390, 844), (844, 390), (1024, 768)):
        view(chrome, width, height)
        assert all(h >= 70 and 200 <= w <= width for w, h in sizes()), (width, height, sizes())
        frame = chrome.execute_script(
            "return ['#chart', '#chart .main-svg'].map(s => document.querySelector(s).getBoundingClientRect().height)")
        # the drawing fills its frame, and no more
        assert abs(frame[0] - frame[1]) <= 2, (width, height, frame)
        assert chrome.execute_script("return document.documentElement.scrollWidth") <= width
    view(chrome, 1440, 900)
    assert all(abs(a - b) <= 2 for old, new in zip(before, sizes()) for a, b in zip(old, new))
    assert chrome.get_log("browser") == []

@more
@here_on("report")
def test_a_row_shows_its_marker_and_a_marker_its_row(chrome, pages, name):
    "Both on screen, and lit until the next; on a wide and a small screen, and a phone both ways."
    path, tab = pages[name]
    opened(chrome, path, tab=tab)
    marked = [i for i in lines(chrome) if i in on_charts(chrome)[0]]
    for size in ((1440, 900), (390, 844), *[(1024, 768), (844, 390)] * nightly):
        view(chrome, *size)
        chrome.execute_script("scrollTo(0, 0)")
        for index, by in ((marked[-1], press), (marked[0], press_marker), (marked[len(marked) // 2], press),
                          (marked[-1], press_marker)):
            by(chrome, index)
            assert chosen(chrome) == [index] and index in ringed(chrome), (size, index, by)
            until(lambda: both_on_screen(chrome, index) == [True, True], (size, index, by.__name__))
    put(chrome, "text", "")
    assert chosen(chrome) == [marked[-1]] and chrome.get_log("browser") == []

# The report

@nightly_only("seconds in a browser")
@pytest.mark.parametrize("tab", ["modules", "ops"])
def test_every_filter_shows_the_rows_of_the_frame(chrome, report, tab):
    opened(chrome, report, state=f"fold=0&tab={tab}", tab=tab)
    frame = from_json(resnet50).to_frame(tab)
    tried = 0
    for field in ("category", "type", "bound", "memory_level", "dtype"):
        values = [v for v in frame[field].unique() if v]
        for value in values if len(values) > 1 else ():
            put(chrome, field, value)
            wanted = frame[frame[field] == value].index.tolist()
            assert in_table(chrome) == wanted and on_charts(chrome) == [wanted, wanted], (field, value)
            tried += 1
        put(chrome, field, "")
    for text, regex, wanted in ((("Layer4", False, frame.name.str.contains("layer4")),
                                 (r"^layer[12]\.0", True, frame.name.str.match(r"layer[12]\.0")),
                                 ("batchnorm", False, frame.type.str.contains("BatchNorm")
                                  | frame.operator.str.contains("batch_?norm")))):
        put(chrome, "regex", regex); put(chrome, "text", text)
        wanted = frame[wanted].index.tolist()
        assert wanted and in_table(chrome) == wanted and on_charts(chrome) == [wanted, wanted] and tried >= 9, text
    put(chrome, "regex", True); put(chrome, "text", "(")
    assert len(lines(chrome)) == len(frame) and "invalid regular expression" in chrome.find_element("id", "shown").text

@more
def test_first_screen_answers(chrome, report):
    "At 1440×900: the lines, the whole chart, and a table with name, time, share, bound and utilization, side by side."
    opened(chrome, report, state="")
    for selector in (".lead", "#division", "#chart", "#scroller"):
        left, top, right, bottom = box(chrome, selector)
        assert 0 <= left < right <= 1440 and 0 <= top < bottom <= 900, selector
    assert (box(chrome, "#chart")[2] <= box(chrome, "#scroller")[0]
            and abs(box(chrome, "#legend")[1] - box(chrome, ".right")[1]) < 5)
    for field in ("name", "type", "time_s", "share", "bound", "utilization_pct", "potential_s"):
        left, top, right, bottom = box(chrome, f"th.field-{field}")
        assert right <= box(chrome, "#scroller")[2] + 1 and bottom <= 900, field
    opened(chrome, report, 1024, 768, state="")
    assert box(chrome, "#chart")[3] <= box(chrome, "#scroller")[1]                            # below each other

@heavy_only("seconds in a browser")
def test_the_division_sums_to_the_whole(chrome, report):
    opened(chrome, report)
    parts = chrome.execute_script("return data.division.map(d => [d.label, d.seconds])")
    saved = from_json(resnet50)
    # parts below zero have no place on a bar
    assert sum(s for _, s in parts) == pytest.approx(saved.timing.end_to_end_s, rel=0.03)
    assert {"compute", "memory", "lost below the roof"} <= {label for label, _ in parts}
    lengths = "return [...document.querySelectorAll('.segment')].map(e => e.getBoundingClientRect().width)"
    whole, total = (chrome.execute_script("return document.getElementById('division').clientWidth"),
                    sum(s for _, s in parts))
    assert chrome.execute_script(lengths) == pytest.approx([whole * s / total for _, s in parts], abs=0.5)

@more
def test_the_bar_has_the_terms_of_the_equation(chrome, report):
    "In its order, a small one too; on a dark page only compute and memory are bright."
    opened(chrome, report, dark=True)
    lead = [e.text for e in chrome.find_elements("css selector", ".lead")]
    labels = chrome.execute_script("return data.division.map(d => d.label)")
    places = [lead[1].index(label) for label in labels]
    assert lead[1].startswith("35.20 ms = ") and places == sorted(places) and lead[2].startswith("roofs: ")
    painted = chrome.execute_script(
        "return [...document.querySelectorAll('.segment')].map(e => [e.className, "
        "getComputedStyle(e).backgroundColor])")
    assert (all(luminance(color) < 0.12 for name, color in painted if "above" in name or "outside" in name)
            and len(painted) == len(labels))

@more
def test_phases_of_a_training_step(chrome, pages):
    for name, wanted in (("step", dict(backward=[0], forward=[1, 2, 3], update=[4])),):
        opened(chrome, pages[name][0])
        for phase, left in wanted.items():
            put(chrome, "phase", phase)
            assert in_table(chrome) == left and all(c == left for c in on_charts(chrome))
    assert "phase" in [e.text for e in chrome.find_elements("css selector", "#table .dt-column-title")]

@more
def test_the_root_of_a_model_has_a_name_to_read_and_to_find(chrome, pages):
    opened(chrome, pages["step"][0])
    assert column(chrome, "name") == ["fc", "fc", "(model)", "(loss)", "(optimizer)"]
    put(chrome, "text", "(Mod")
    assert in_table(chrome) == [2] and chrome.execute_script("return rows[2].name") == ""

@more
def test_repeated_blocks_fold_into_a_tree(chrome, pages):
    "A folded row has one marker; opened, its rows stand below it, each with its own."
    opened(chrome, pages["blocks"][0], state="fold=1")
    assert (column(chrome, "name") == ["layers.*.up ×4", "layers.*.down ×4", "head"]
            and on_charts(chrome)[0] == [8, 9, 10])
    assert column(chrome, "time_s")[0] == format_si(4e-3 * 4.06, "s")          # 4 + 4.04 + 4.08 + 4.12 ms
    chrome.execute_script("document.querySelector('tr.group .fold').click()")
    assert column(chrome, "name")[:5] == ["layers.*.up ×4", "layers.3.up", "layers.2.up", "layers.1.up", "layers.0.up"]
    assert on_charts(chrome) == [[0, 1, 2, 3, 8, 10], list(range(9))]
    chrome.find_element("css selector", "th.field-time_s").click()              # ascending: the tree holds together
    wanted = ["head", "layers.*.down ×4", "layers.*.up ×4", *(f"layers.{i}.up" for i in range(4))]
    until(lambda: column(chrome, "name") == wanted)
    put(chrome, "text", "layers.1")                                             # in part: the rows alone
    assert sorted(column(chrome, "name")) == ["layers.1.down", "layers.1.up"] and on_charts(chrome) == [[1, 5], [1, 5]]
    put(chrome, "text", ""); put(chrome, "fold", False)
    assert in_table(chrome) == list(range(9)) and on_charts(chrome)[0] == list(range(9))

@more
def test_a_marker_of_a_folded_row_is_found(chrome, pages):
    "A bar belongs to a row; if that is in a closed group, the group opens."
    opened(chrome, pages["blocks"][0], state="fold=1")
    chrome.execute_script("charts[1].emit('plotly_click', {points: [{customdata: 5}]})")
    assert chosen(chrome) == [5] and ringed(chrome) == [5] and in_table(chrome) == [4, 5, 6, 7, 8, 9, 10]

@more
def test_long_tables_fold_by_themselves(chrome, tmp_path):
    rows = [row(f"layers.{i}.{k}", 1e-3, flops=1e8 * (1 + k)) for i in range(40) for k in range(2)]
    Result(rows, paper, model="Net").to_html(tmp_path/"long.html")
    opened(chrome, tmp_path/"long.html", state="")
    assert column(chrome, "name") == ["layers.*.0 ×40", "layers.*.1 ×40"]
    chrome.find_element("id", "fold").click()
    assert len(lines(chrome)) == 80 and "fold=0" in chrome.current_url

@more
def test_details_of_a_row(chrome, report):
    "All figures, its operators, its bytes per level."
    opened(chrome, report)
    saved = from_json(resnet50)
    press(chrome, 3)
    text, p = chrome.find_element("id", "details").get_property("textContent"), saved.points[3]
    own = [o for o in saved.ops if o.name == p.name]
    assert p.name in text and format_si(p.time_s, "s") in text and format_si(p.flops, "FLOP") in text and own
    assert all(o.operator.removeprefix("aten::") in text and format_si(o.time_s, "s") in text for o in own)
    assert p.bytes_by_level and all(level in text and format_si(b, "B") in text for level, b in p.bytes_by_level)
    chrome.find_element("css selector", "#details .close").click()
    assert not chrome.find_element("id", "details").is_displayed() and chosen(chrome) == [] and ringed(chrome) == []

@more
def test_keyboard_alone(chrome, pages):
    "From the first tab to a chosen row, a folded one opened, a column sorted."
    from selenium.webdriver.common.keys import Keys
    opened(chrome, pages["blocks"][0], state="fold=1")
    def press_key(key): return chrome.switch_to.active_element.send_keys(key)
    def focus():
        return chrome.execute_script(
            "const e = document.activeElement; return e.id || e.closest('th')?.className.split(' ')[0] || "
            "e.closest('tr')?.dataset.index || e.value || e.tagName")
    reached = []
    for _ in range(40):
        press_key(Keys.TAB)
        reached.append(focus())
        if reached[-1] == "9": break
    assert ({"text", "regex", "fold", "csv", "field-name", "field-time_s"} <= set(reached)
            and reached[-1] == "9"), reached
    press_key(Keys.ARROW_DOWN); assert chosen(chrome) == [10] and ringed(chrome) == [10] and focus() == "10"
    press_key(Keys.ARROW_UP); assert chosen(chrome) == [9] and chrome.find_element("id", "details").is_displayed()
    press_key(Keys.ARROW_RIGHT); assert in_table(chrome) == [0, 1, 2, 3, 8, 9, 10] and focus() == "9"
    press_key(Keys.ARROW_DOWN); assert chosen(chrome) == ringed(chrome) == [3]
    press_key(Keys.END); assert chosen(chrome) == [8]
    press_key(Keys.HOME); press_key(Keys.ARROW_LEFT); assert in_table(chrome) == [8, 9, 10]
    press_key(Keys.ESCAPE); assert chosen(chrome) == [] and not chrome.find_element("id", "details").is_displayed()
    chrome.execute_script("document.querySelector('th.field-time_s [tabindex]').focus()")
    press_key(Keys.ENTER); until(lambda: column(chrome, "name")[0] == "head")
    chrome.execute_script("document.querySelector('.menu summary').focus()")
    press_key(Keys.ENTER); assert chrome.find_element("id", "columns").is_displayed()
    press_key(Keys.ESCAPE); assert not chrome.find_element("id", "columns").is_displayed()

@more
def test_columns_sort_by_mouse(chrome, report):
    opened(chrome, report, state="fold=0&columns-modules=name+time_s+bytes_moved+memory_level")
    frame = from_json(resnet50).to_frame()
    for order in (True, False):
        chrome.find_element("css selector", "th.field-bytes_moved").click()
        until(lambda: [frame.bytes_moved[i] for i in lines(chrome)] == sorted(frame.bytes_moved, reverse=order))
        assert "sort=bytes_moved+" in chrome.current_url

@more
def test_what_is_unknown_comes_last(chrome, tmp_path):
    Result([row("a", 3e-3, flops=None), row("b", 2e-3), row("c", 1e-3)], paper, model="Net").to_html(tmp_path/"r.html")
    opened(chrome, tmp_path/"r.html")
    header = chrome.find_element("css selector", "th.field-utilization_pct")
    for wanted in (["c", "b", "a"], ["b", "c", "a"]):
        header.click()
        until(lambda: column(chrome, "name") == wanted)
        assert column(chrome, "utilization_pct")[2] == "?"

def titles(browser):
    return browser.execute_script(
        "return [...document.querySelectorAll('#table .dt-column-title')].map(e => e.textContent)")

@more
def test_column_menu(chrome, report):
    "Any column can be shown; the choice stands in the URL; XProf's columns and all are one click each."
    opened(chrome, report)
    first = ["name", "type", "time", "share", "bound", "low util.", "utilization", "gap"]
    assert titles(chrome) == first
    chrome.find_element("css selector", ".menu summary").click()
    chrome.find_element("css selector", "#columns input[value=calls]").click()
    assert sorted(titles(chrome)) == sorted([*first, "calls"]) and "calls" in chrome.current_url
    def preset(text):
        return chrome.execute_script(
            "[...document.querySelectorAll('.presets button')].find(b => "
            "b.textContent.startsWith(arguments[0])).click()", text)
    preset("XProf")
    assert {"rank", "category", "calls", "total time", "cumulative share", "attainable rate"} <= set(titles(chrome))
    preset("all"); assert len(titles(chrome)) == len(from_json(resnet50).to_frame().columns)
    preset("default"); assert titles(chrome) == first and "columns" not in chrome.current_url

@more
def test_the_url_brings_everything_back(chrome, report):
    opened(chrome, report, state="")
    go_to(chrome, "ops")
    put(chrome, "category", "convolution")
    put(chrome, "regex", True); put(chrome, "text", "layer[34]"); put(chrome, "fold", False)
    chrome.execute_script("document.querySelector('#columns input[value=calls]').click()")
    press(chrome, lines(chrome)[2])
    def seen():
        return (lines(chrome), on_charts(chrome), titles(chrome), chosen(chrome),
                chrome.find_element("id", "shown").text)
    before, url = seen(), chrome.current_url
    chrome.get("about:blank")
    chrome.get(url)
    ready(chrome, "ops")
    assert seen() == before and chosen(chrome) and len(before[0]) > 5
    chrome.execute_script("location.hash = ''")                                # a link to the start
    ready(chrome, "modules")
    assert titles(chrome)[:3] == ["name", "type", "time"] and chosen(chrome) == []

@heavy_only("seconds in a browser")
def test_csv_of_filtered_rows_is_the_filtered_frame(chrome, report):
    opened(chrome, report)
    put(chrome, "category", "convolution"); put(chrome, "text", "layer3")
    path = chrome.downloads/chrome.execute_script("return `${data.file}-${tab.name}.csv`")
    path.unlink(missing_ok=True)                # other pages of this browser were pressed too
    chrome.find_element("id", "csv").click()
    until(path.exists)
    read = pd.read_csv(io.StringIO(path.read_text(encoding="utf-8-sig")), keep_default_na=False, na_values=[""],
                       float_precision="round_trip")
    path.unlink()
    frame = from_json(resnet50).to_frame()
    frame = frame[(frame.category == "convolution") & frame.name.str.contains("layer3")].reset_index(drop=True)
    read.columns = [c.partition(" [")[0] for c in read.columns]
    text = [c for c in frame if pd.api.types.is_string_dtype(frame[c])]
    assert set(read.columns) == set(frame.columns) and len(read) == len(frame) > 10
    frame = frame.apply(lambda c: pd.to_numeric(c) if c.isna().all() else c)      # unknown in all rows
    read[text] = read[text].astype(object).fillna("")          # an empty text and a missing one look the same in CSV
    pd.testing.assert_frame_equal(read[list(frame.columns)], frame, check_dtype=False, rtol=0, atol=0)

def test_numbers_look_as_everywhere_else(chrome, report):
    opened(chrome, report)
    values = [0, 1, 999, 999.994, 999.996, 1000, 1234.5, 9.637888e6, 2.31211008e8, 1.2e-9, 4.56e-5, 0.0151, 5.5e11,
              1.119e12, 3e-17, 7e20]
    for unit in ("B/s", ""):
        assert (chrome.execute_script("return arguments[0].map(x => si(x, arguments[1]))", values, unit)
                == [format_si(v, unit) for v in values])
    others = chrome.execute_script(
        "return [write(null, 'si', 's'), write(0.5, 'share'), write(12.34, 'percent'), write(1.5, 'fixed', "
        "'GFLOP/s'), write(Infinity, 'fixed')]")
    assert others == ["?", "50.0 %", "12.3 %", "1.50 GFLOP/s", "∞"]

@more
def test_program_and_steps(chrome, report):
    opened(chrome, report)
    go_to(chrome, "program")
    saved = from_json(resnet50)
    names = column(chrome, "name")
    assert (names[:3] == ["whole model, uninstrumented", "average of the timed steps", "step 1"]
            and len(names) == len(saved.steps) + 2)
    roofline, categories, steps = on_charts(chrome)
    assert roofline == list(range(len(names))) and categories == [] and steps == roofline[2:]
    press(chrome, 5)
    assert chosen(chrome) == [5] and 5 in ringed(chrome)

def click_the_legend(browser, name):
    script = "[...document.querySelectorAll('#legend button')].find(e => e.textContent.includes(arguments[0])).click()"
    browser.execute_script(script, name)

@more
def test_the_legend_filters(chrome, report):
    opened(chrome, report)
    click_the_legend(chrome, "memory")
    until(lambda: chrome.find_element("id", "filter-bound").get_property("value") == "memory")
    frame = from_json(resnet50).to_frame()
    assert in_table(chrome) == frame[frame.bound == "memory"].index.tolist()
    click_the_legend(chrome, "memory")
    until(lambda: len(lines(chrome)) == len(frame))

@more
def test_the_legend_hides_a_roof(chrome, report):
    "It stays hidden when filters change."
    opened(chrome, report)
    def hidden():
        return chrome.execute_script("return charts[0].data.filter(t => t.visible === 'legendonly').map(t => t.name)")
    click_the_legend(chrome, "DRAM")
    until(lambda: [n.split()[0] for n in hidden()] == ["DRAM"])
    put(chrome, "category", "pooling")
    assert [n.split()[0] for n in hidden()] == ["DRAM"]
    click_the_legend(chrome, "DRAM")
    until(lambda: hidden() == [])

@more
def test_names_of_the_slowest_rows_stand_on_the_chart(chrome, report):
    opened(chrome, report)
    # the next ones are close to each other: some are "+1 more"
    slowest = from_json(resnet50).points[0].name
    script = "return charts[0].layout.annotations.map(a => a.text.split(' +')[0])"           # "layer4.0.conv2 +2 more"
    named = chrome.execute_script(script)
    assert slowest in named and sum(name.startswith(("layer3", "layer4")) for name in named) >= 2
    put(chrome, "category", "pooling")
    assert "maxpool" in chrome.execute_script(script)

@more
def test_hostile_names_are_text(chrome, tmp_path):
    names = [evil, kernel, "ünïcode 層 🙂", "<img src=x onerror=alert(2)>", "a\nb\x1b[31m", "=1+1", '"quoted", too', "",
             "{{ 7 * 7 }}", "__proto__"]
    rows = [place(Row(n, n, 2e8 + i, 1e7, 1e-3, category="convolution", operator=n), paper, share=0.1)
            for i, n in enumerate(names)]
    Result(rows, paper, ops=rows, model=evil, environment=dict(device_name=evil),
           unknown_ops={evil: 1}).to_html(tmp_path/"evil.html", title=evil)
    console, _ = opened(chrome, tmp_path/"evil.html")
    assert console == [] and chrome.find_element("tag name", "h1").text == evil and chrome.title == evil
    assert chrome.execute_script("return rows.map(r => r.name)") == names
    shown = [e.get_property("title") for e in chrome.find_elements("css selector", "#table td.field-name span[title]")]
    assert shown == [n or "(model)" for n in names] and chrome.execute_script("return document.images.length") == 0
    chrome.execute_script(
        "Plotly.Fx.hover(charts[0], [{curveNumber: charts[0].data.findIndex(t => t.customdata), pointNumber: 0}])")
    until(lambda: chrome.find_elements("css selector", ".hovertext"))
    for index in (0, 3):
        press(chrome, index)
        assert names[index] in chrome.find_element("id", "details").get_property("textContent")
    put(chrome, "text", "onerror")
    assert in_table(chrome) == [3] and chrome.get_log("browser") == []
    compare(Result(rows, paper), Result(rows[1:], paper)).to_html(tmp_path/"pair.html")
    assert opened(chrome, tmp_path/"pair.html", tab="pairs")[0] == []

@more
def test_short_names_stay_apart(chrome, report):
    "A path keeps the numbers of its parts, and a signature the name of its function."
    opened(chrome, report)
    def short(names, width):
        return chrome.execute_script("return [...toldApart(arguments[0], arguments[1]).values()]", names, width)
    paths = [f"model.layers.{i}.{part}_layernorm" for i in range(12) for part in ("input", "post_attention")]
    for width in (20, 28):
        found = short(paths, width)
        assert len(set(found)) == len(paths) and max(map(len, found)) <= width, found
    parts = [f"ViTModel_0.ViTLayer_*.{part}_*.Linear_*"
             for part in ("ViTSdpaSelfAttention", "ViTIntermediate", "ViTSelfOutput")]
    # whole words
    assert short(parts, 26) == ["…SelfAttention.Linear_*", "…ViTIntermediate.Linear_*", "…ViTSelfOutput.Linear_*"]
    assert short(parts, 20) == ["…Attention.Linear_*", "…Inter…iate.Linear_*", "…SelfOutput.Linear_*"]
    assert short([parts[0] + " (with bytes, at least)"], 40) == ["…Linear_* (with bytes, at least)"]
    # what would look alike is longer than it was to be, or shown from where it differs
    outputs = ["ViTLayer_*.ViTOutput_*.Linear_*", "ViTLayer_*.ViTSelfOutput_*.Linear_*", "other"]
    assert short(outputs, 20) == ["…ViTOutput.Linear_*", "…SelfOutput.Linear_*", "other"]
    shapes = ["mm 32768×2048 2048×8192", "mm 32768×2048 2048×2048", "mm 32768×8192 8192×2048"]
    for width in (6, 10, 16): assert len(set(short(shapes, width))) == 3, width
    signature = "void at::native::(anonymous namespace)::CatArray<at::Thing, 4>(float*, at::Meta<int>)"
    assert short([signature, "layers.0.up", "a::f(int)"], 20) == ["CatArray<Thing, 4>", "layers.0.up", "a::f(int)"]
    [cut] = short([kernel], 28)
    assert cut.startswith("vectorized_elemen") and len(cut) == 28
    tiles = [f"Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{n}x64_MI16x16x1_SN_LDSB1_AFC1_WG16_16_1"
             for n in ("320x224", "256x224", "256x128")]
    assert [n.partition("MT")[2][:10] for n in short(tiles, 40)] == ["320x224x64", "256x224x64", "256x128x64"]
    ends = "const e = bothEnds(arguments[0]); return [e.dataset.brief, e.title, e.textContent]"
    long = "triton_poi_fused_native_group_norm_silu_12"            # a text of another column: its end tells it apart
    assert chrome.execute_script(ends, long) == ["trit…ilu_12", long, long]

@more
@pytest.mark.parametrize("width", (pytest.param(390, marks=phones), 1440))
def test_rows_that_are_not_on_the_chart_have_names_of_their_own(chrome, tmp_path, width):
    "Each kind of such rows has a label, no label covers another, and no marker covers a label."
    rows = [row("fft", 3e-3, flops=None, share=0.3), row("none", 3e-3, flops=0, nbytes=0, share=0.3),
            row("copy", 3e-3, flops=0, share=0.3), row("fc", 1e-3)]
    Result(rows, paper, model="Net").to_html(tmp_path/"off.html")
    opened(chrome, tmp_path/"off.html", width, 844)
    boxes = chrome.execute_script("""return [...charts[0].querySelectorAll(".y2tick text")].map(e => {
        const b = e.getBoundingClientRect()
        return [e.textContent, b.top, b.bottom, b.right]}).sort((a, b) => a[1] - b[1])""")
    assert {text for text, *_ in boxes} == {"FLOPs ?" if width == 390 else "FLOPs unknown", "no work", "no FLOPs"}
    assert all(above[2] <= below[1] + 4 for above, below in zip(boxes, boxes[1:])), boxes
    left = chrome.execute_script(
        "return Math.min(...[...charts[0].querySelectorAll('.x2y2 path.point')].map(e => "
        "e.getBoundingClientRect().left))")
    assert left >= max(right for *_, right in boxes) - 2

@phones
def test_a_command_in_a_note_is_one_line(chrome, tmp_path):
    command = "ncu --metrics " + ",".join(["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"] * 9)
    Result([row("a", 1e-3)], paper, model="Net",
           notes=[f"the missing metrics:\n{command}", "another"]).to_html(tmp_path/"note.html")
    opened(chrome, tmp_path/"note.html", 390, 844)
    [code] = chrome.find_elements("css selector", ".note code")
    assert code.text == command and code.size["height"] < 40
    assert chrome.execute_script("return document.documentElement.scrollWidth") <= 390

@nightly_only("seconds in a browser")
def test_a_thousand_rows_of_each_kind_fit(chrome, tmp_path):
    saved = from_json(resnet50)
    many = replace(saved, points=[replace(saved.points[i % 142], name=f"encoder.layers.{i}.attention.output")
                                  for i in range(1200)],
                   ops=[replace(saved.ops[i % 195], name=f"encoder.layers.{i}") for i in range(1200)])
    many.to_html(tmp_path/"many.html")
    opened(chrome, tmp_path/"many.html")
    assert (tmp_path/"many.html").stat().st_size <= 6e6 and len(lines(chrome)) == 1000
    assert "200 faster rows are not in this file" in chrome.find_element("id", "shown").text

# Comparisons and peaks

@heavy_only("seconds in a browser")
def test_a_comparison(chrome, pages):
    "A row shows both of its markers; faster and slower have their colours; what is missing is blank."
    opened(chrome, pages["pair"][0], tab="pairs")
    for side, count in (("only after", 1), ("only before", 1), ("both", 3)):
        put(chrome, "side", side)
        assert len(lines(chrome)) == count and set(on_charts(chrome)[0]) == set(in_table(chrome))
    put(chrome, "side", "")
    a = next(i for i in lines(chrome) if chrome.execute_script("return rows[arguments[0]].name", i) == "a")
    press(chrome, a)
    spots = chrome.execute_script("return charts[0].data.filter(t => t.name === 'chosen').flatMap(t => t.y)")
    assert sorted(spots) == pytest.approx([2e8 / 4e-3, 2e8 / 2e-3])
    def tone(name):
        return chrome.execute_script(
            "const tr = [...document.querySelectorAll('#table tbody tr')].find(t => "
            "t.textContent.startsWith(arguments[0]));"
                                     "return tr.querySelector('.field-time_ratio span').className", name)
    assert (tone("a"), tone("b"), tone("c")) == ("faster", "slower", "")
    rows = {k: chrome.execute_script("return rows.find(r => r.name === arguments[0])", k) for k in ("old", "new")}
    assert (rows["old"]["time_after_s"] == "" and rows["new"]["time_before_s"] == ""
            and rows["old"]["time_before_s"] == 1e-3)

@more
def test_what_changes_most_has_a_name_and_an_arrow(chrome, pages):
    "By hand 3, 2, 1 and 1 ms; the row within its spread has neither, and no marker before."
    opened(chrome, pages["pair"][0], tab="pairs")
    names = chrome.execute_script(
        "return charts[0].layout.annotations.filter(a => a.name === 'slowest').map(a => a.text)")
    assert names[:2] == ["b ×2.00", "a ×0.50"] and set(names) <= {"b ×2.00", "a ×0.50", "old", "new"}
    arrows = chrome.execute_script(
        "return charts[0].data.filter(t => t.marker?.symbol === 'arrow').map(t => [t.name, new "
        "Set(t.customdata).size])")
    assert arrows == [["faster", 1], ["slower", 1]]
    c = chrome.execute_script("return rows.find(r => r.name === 'c').index")
    assert chrome.execute_script(
        "return charts[0].data.filter(t => t.customdata?.includes(arguments[0])).map(t => t.name)",
        c) == ["no clear change"]
    legend = [e.get_property("textContent").strip() for e in chrome.find_elements("css selector", "#legend button")]
    assert {"→ faster", "→ slower"} <= set(legend) and any("no clear change" in e for e in legend)

@more
def test_categories_of_a_comparison(chrome, pages):
    "A bar for each side of a category, of its rows: by hand 8 and 9 ms of products, 2 and 2 of activations."
    opened(chrome, pages["pair"][0], tab="pairs")
    def bars(): return chrome.execute_script("""
        const sums = {}
        for (const t of charts[1].data) t.y.forEach((y, i) => sums[y] = (sums[y] ?? 0) + t.x[i])
        return sums""")
    assert (bars() == pytest.approx({"matmul, before": 8e-3, "matmul, after": 9e-3, "activation, before": 2e-3,
                                     "activation, after": 2e-3}))
    put(chrome, "side", "only after")
    assert bars() == pytest.approx({"matmul, after": 1e-3})
    lead = [e.text for e in chrome.find_elements("css selector", ".lead")]
    assert lead[1].startswith("before: 10.00 ms = ") and lead[2].startswith("after: 11.00 ms = ")

@more
def test_the_legend_of_a_comparison_hides(chrome, pages):
    opened(chrome, pages["pair"][0], tab="pairs")
    def visible():
        return chrome.execute_script(
            "return charts[0].data.filter(t => t.showlegend !== false && t.visible !== 'legendonly').map(t => t.name)")
    name, before = "compute-bound, before", len(visible())
    assert name in visible()
    click_the_legend(chrome, name)
    until(lambda: name not in visible() and len(visible()) < before)
    click_the_legend(chrome, name)
    until(lambda: len(visible()) == before)

@more
def test_peaks(chrome, pages):
    "The filter acts; what the page has no column for is not offered; another tab has its own rows."
    opened(chrome, pages["peaks"][0], tab="memory")
    assert not chrome.find_elements("id", "filter-bound") and chrome.find_element("id", "filter-kind").is_displayed()
    put(chrome, "kind", "copy")
    assert in_table(chrome) == [0, 2] and on_charts(chrome) == [[0, 2]]
    go_to(chrome, "arithmetic")
    assert (chrome.get_log("browser") == [] and in_table(chrome) == [0]
            and not chrome.find_element("id", "filter-kind").is_displayed())

@more
def test_the_levels_of_a_kernel(chrome, pages):
    "A kernel has a marker per memory level; its row rings them all, and the details say the bytes of each."
    opened(chrome, pages["levels"][0])
    press(chrome, 0)
    rings = chrome.execute_script("return charts[0].data.filter(t => t.name === 'chosen').flatMap(t => t.x)")
    # all bytes pass L1, 140 MB L2, 40 MB DRAM
    assert sorted(rings) == pytest.approx([6e9 / 4.4e8, 6e9 / 1.4e8, 6e9 / 4e7])
    text = chrome.find_element("id", "details").get_property("textContent")
    assert all(s in text for s in ("L1300.00 MB", "L2100.00 MB", "DRAM40.00 MB"))

# To be read by everyone

def luminance(color):
    channels = [float(c) / 255 for c in color[color.index("(") + 1:-1].split(",")[:3]]
    return sum(w * (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055)**2.4)
               for w, c in zip((0.2126, 0.7152, 0.0722), channels))

def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)

painted = """
  const clear = c => /, 0\\)$|^transparent$/.test(c)
  const ground = e => {
    while (e && clear(getComputedStyle(e).backgroundColor)) e = e.parentElement
    return getComputedStyle(e ?? document.body).backgroundColor
  }
  return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).slice(0, 60)
    .map(e => [e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color,
               ground(e.closest('svg')?.parentElement ?? e)])"""

@more
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["report", pytest.param("pair", marks=nightly_only("another kind of page"))])
def test_text_stands_out_on_light_and_dark_pages(chrome, pages, name, dark):
    "A contrast of at least 4.5 (WCAG 2.2, 1.4.3) of every text, that of the charts and of the chosen row included."
    path, tab = pages[name]
    opened(chrome, path, dark=dark, tab=tab)
    press(chrome, lines(chrome)[1])
    page = chrome.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (luminance(page) < 0.1) == dark
    measured = {}
    for selector in ("h1", ".lead", ".segment:not(.silent)", "#tabs span", "label", "select", "button", "#shown",
                     "#table th", "#table td", "tr.chosen td", ".faster", ".slower",
                     "#details dt", "#details dd", "#details th", ".facts dt", ".facts dd", "#chart .xtick text",
                     "#chart .xtitle", "#chart .annotation-text", "#chart .textpoint text", "#legend button"):
        for color, ground in chrome.execute_script(painted, selector):
            measured[selector] = min(measured.get(selector, 21), contrast(color, ground))
    assert not {s: round(c, 2) for s, c in measured.items() if c < 4.5} and len(measured) > 14
    rings = chrome.execute_script(
        "return charts[0].data.filter(t => t.name === 'chosen').map(t => t.marker.line.color)")
    def rgb(h): return "rgb(" + ", ".join(str(int(h[i:i + 2], 16)) for i in (1, 3, 5)) + ")"
    assert rings and all(contrast(rgb(c), page) >= 3 for c in rings)             # 1.4.11: graphical objects
    assert chrome.get_log("browser") == []

@more
def test_charts_follow_a_change_from_light_to_dark(chrome, report):
    opened(chrome, report)
    def ink(): return chrome.execute_script("return charts[0].layout.font.color")
    light = ink()
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia",
                           dict(features=[dict(name="prefers-color-scheme", value="dark")]))
    until(lambda: ink() != light)

def test_charts_in_words(chrome, report):
    opened(chrome, report)
    words = chrome.execute_script("return [...document.querySelectorAll('figure')].map(e => e.ariaLabel)")
    assert (words[0].startswith("Roofline chart of ResNet on AMD EPYC (cpu): 142 modules")
            and words[1].startswith("Time by category: convolution"))

def real_results():
    """A profile, traces of five models where these are at hand, compiled ones and many ranks among them, and a
    prediction."""
    import torch
    from fasterbench import predict, read_trace
    yield "resnet50", from_json(resnet50)
    others = (["h100_qwen1.5_0.5b_prefill", "mi300x_resnet_ddp8_train_rank0"] * heavy
              + ["h100_vit_base_infer", "mi300x_torch_compile"] * nightly)
    for name in ("mi300x_sd35_compiled", *others):
        if (traces/f"{name}.json.gz").is_file(): yield name, read_trace(traces/f"{name}.json.gz")
    with torch.device("meta"):
        model, x = torch.nn.TransformerDecoderLayer(1024, 16, batch_first=True), torch.randn(8, 512, 1024)
    yield "decoder", predict(model, (x, x), "NVIDIA H100 80GB HBM3")

def real_pages(folder):
    for name, result in real_results(): result.to_html(folder/f"{name}.html")

@pytest.fixture(scope="module")
def real(): return sorted(once("real", real_pages).glob("*.html"))

# The boxes of roofs' labels and of names, of the markers and of the star; letters are lower than their boxes.
boxes_of = """
    const box = (kind, e, by) => {
      const b = e.getBoundingClientRect()
      return [kind, e.textContent, b.left, b.top + by, b.right, b.bottom - by]
    }
    const texts = [...document.querySelectorAll('#chart .annotation-text-g, #chart .textpoint text')]
        .filter(e => e.textContent)
    const points = charts[0].data.flatMap((t, k) => t.marker && t.hoverinfo !== 'skip'
        && !t.yaxis?.startsWith('y2') && t.visible !== 'legendonly'
        ? [...charts[0].querySelectorAll(`.scatterlayer .trace${charts[0]._fullData[k].uid} path.point`)]
            .map(e => box(t.name, e, 1)) : [])
    return [texts.map(e => box('text', e, 3)), points]"""

# Roofs and arrows piece by piece, and the leaders of labels, px.
lines_of = """
    const {xaxis, yaxis} = charts[0]._fullLayout, frame = charts[0].getBoundingClientRect()
    const px = (x, y) => { const [a, b] = centre({x, y}, xaxis, yaxis); return [frame.left + a, frame.top + b] }
    const drawn = charts[0].data.filter(t => t.mode?.includes('lines')
        && (t.xaxis ?? 'x') === 'x' && t.visible !== 'legendonly')
    const lines = drawn.flatMap(t => t.x.slice(1)
        .map((_, i) => [t.name, ...px(t.x[i], t.y[i]), ...px(t.x[i + 1], t.y[i + 1])]))
    const leaders = charts[0].layout.annotations.filter(a => a.showarrow).map(a => {
        const [x, y] = px(10 ** a.x, 10 ** a.y), far = Math.hypot(a.ax, a.ay), f = a.standoff / far
        return [a.text, x + f * a.ax, y + f * a.ay, x + a.ax, y + a.ay, far - a.standoff, a.standoff]
    })
    return [lines.filter(l => l.slice(1).every(Number.isFinite)), leaders]"""

def passes(line, box):
    "Tell if a line runs through a box: each half pixel of it is looked at."
    (x0, y0, x1, y1), (left, top, right, bottom) = line, box
    n = max(int(2 * math.hypot(x1 - x0, y1 - y0)), 1)
    steps = [k / n for k in range(n + 1)]
    return any(left < x0 + (x1 - x0) * f < right and top < y0 + (y1 - y0) * f < bottom for f in steps)

def labels_lie_on_nothing(chrome, page, width, names):
    """No label of a roof and no name lies on another, on a marker, the star or a line; leaders are short and pass
    through none of these."""
    def on(a, b): return a[2] < b[4] and b[2] < a[4] and a[3] < b[5] and b[3] < a[5]
    texts, points = chrome.execute_script(boxes_of)
    assert [(a[1], b[1]) for i, a in enumerate(texts) for b in texts[:i] if on(a, b)] == [], page
    assert [(a[1], b[0]) for a in texts for b in points if on(a, b)] == [], page
    named = chrome.execute_script(
        "return charts[0].layout.annotations.filter(a => a.name === 'slowest').map(a => a.text)")
    roofs = chrome.execute_script(
        "return tab.figures[0].data.filter(t => t.textfont && t.visible !== 'legendonly').map(t => t.name)")
    lines, leaders = chrome.execute_script(lines_of)
    assert [(a[1], l[0]) for a in texts for l in lines if passes(l[1:], a[2:])] == [], page
    assert all(length <= 101 for *_, length, _ in leaders), (page, leaders)
    for text, x, y, *end, _, r in leaders:
        own = ["", "", x - 2 * r - 2, y - 2 * r - 2, x + 2 * r + 2, y + 2 * r + 2]
        met = [b[1] for b in texts if b[1] != text] + [b[0] for b in points if not on(b, own)]
        boxes = [b[2:] for b in texts if b[1] != text] + [b[2:] for b in points if not on(b, own)]
        assert [m for m, b in zip(met, boxes) if passes((x, y, *end), b)] == [], (page, text)
    labelled = chrome.execute_script(
        "return charts[0].layout.annotations.filter(a => a.name === 'roof').map(a => a.text)")
    # of its three ceilings two are 12 px apart: one has no room for a label
    crowded = page == "mi300x_sd35_compiled"
    assert len(named) >= min(names, len(points)) - crowded, (page, named)
    assert not crowded or width < 700 or "SD3Transformer2DModel_0" in named                 # half of the time
    assert width < 700 or all(text.endswith("/s") for text in labelled), (page, labelled)      # each with its value
    assert len(roofs) >= len(labelled) >= max(len(roofs) - crowded, 2) or width < 700, (page, roofs, labelled)
    # counters alone
    assert not any(
        "through" in name for name in chrome.execute_script("return charts[0].data.map(t => t.name ?? '')")), page
    assert chrome.execute_script("return document.documentElement.scrollWidth <= innerWidth"), page

def the_chart_is_half_of_the_page(chrome, page, width):
    """Half of the width and 420 px of height at least, without the strip; on a phone it begins within the upper two
    thirds of the first screen."""
    plot = chrome.execute_script(
        "const {xaxis, yaxis} = charts[0]._fullLayout; return [xaxis._length, yaxis._offset + yaxis._length]")
    left, top, right, bottom = box(chrome, "#chart")
    assert box(chrome, "#legend")[3] - box(chrome, "#legend")[1] < 40, page               # one line
    if width < 700:
        titles = chrome.execute_script(
            "return [...document.querySelectorAll('#chart .xtitle, #chart .ytitle')].map(e => e.textContent)")
        assert top < 844 * 2 / 3 and plot[0] >= 265, (page, plot)
        assert {"arithmetic intensity (FLOP/B)", "performance (FLOP/s)"} <= set(titles), page
    else:
        assert right - left >= 0.5 * (width - 40) and bottom - top >= 420, page
        # its axis and title are below
        assert plot[1] >= 420 - 52, page

def columns_fit_or_have_a_bar(chrome, page):
    """Names are as long as the other columns let them be; the bar of a table that is too wide is on screen, and its
    titles stay there."""
    wide, frame, bar, bottom = chrome.execute_script("""
        const e = document.getElementById("scroller")
        return [document.getElementById("table").offsetWidth, e.clientWidth,
            e.offsetHeight - e.clientHeight, e.getBoundingClientRect().bottom]""")
    assert wide <= frame + 1 or bar > 8 and bottom <= 900, page
    seen = chrome.execute_script("""
        const frame = document.getElementById("scroller").getBoundingClientRect()
        return [...document.querySelectorAll("#table th")]
            .filter(e => e.getBoundingClientRect().right <= frame.right + 1).map(e => e.textContent)""")
    # a prediction has an expected time, and no shares where the whole is only a range
    assert ({"name", "bound", "utilization"} <= set(seen)
            and ("expected" in seen or {"time", "share"} <= set(seen))), (page, seen)
    top = box(chrome, "#table th")[1]
    chrome.execute_script("document.getElementById('scroller').scrollTop = 1e6")
    assert box(chrome, "#table th")[1] == top, page

@nightly_only("pictures of large results")
@pytest.mark.parametrize("width, height, names", [(1440, 900, 3), (1024, 768, 3), (390, 844, 1)])
def test_real_results_are_drawn_well(chrome, real, width, height, names):
    "Each page is opened once in a size."
    for path in real:
        opened(chrome, path, width, height, state="")
        labels_lie_on_nothing(chrome, path.stem, width, names)
        if width != 1024: the_chart_is_half_of_the_page(chrome, path.stem, width)
        if width == 1440: columns_fit_or_have_a_bar(chrome, path.stem)

@more
def test_names_take_the_room_that_there_is(chrome, tmp_path):
    "Two columns leave room for a whole name; all of them do not, and it keeps what differs."
    rows = [row(f"encoder.layers.{i}.attention.output.dense", 1e-3 / (i + 1)) for i in (0, 1)]
    Result(rows, paper, model="Net").to_html(tmp_path/"names.html")
    opened(chrome, tmp_path/"names.html", state="columns-modules=name+time_s")
    def texts():
        return chrome.execute_script(
            "return [...document.querySelectorAll('#table td.field-name [title]')].map(e => e.textContent)")
    assert texts() == [r.name for r in rows]
    chrome.execute_script("state.columns[tab.name] = tab.columns.map(c => c.field); columnsChanged()")
    assert (max(map(len, texts())) < len(rows[0].name) and texts()[0] != texts()[1]
            and all(t.endswith("dense") for t in texts()))

@more
def test_a_text_finds_rows_without_names(chrome, tmp_path):
    "Budgets have a model, a layer and a figure; samples of a program have numbers alone, and no text to look for."
    from fasterbench.views.columns import Field
    from fasterbench.running.metrics import MetricSeries
    from fasterbench.views.page import page
    from fasterbench.views.plot import canvas, dress
    from fasterbench.views.view import Sheet
    fields = {f.name: f for f in (Field("model", "", "model"), Field("of_limit", "", "of the limit", "share"))}
    rows = [dict(model=m, of_limit=x) for m, x in (("net", 0.5), ("head", 1.2))]
    tab = Sheet(fields, rows).tab("rows", "rows", dress(canvas(), "", "nothing", 300))
    (tmp_path/"budgets.html").write_text(page("Budgets", kinds=[tab]), encoding="utf-8")
    opened(chrome, tmp_path/"budgets.html", tab="rows")
    put(chrome, "text", "hea")
    assert in_table(chrome) == [1]
    MetricSeries([dict(step=1, step_time_s=1e-3, mfu=0.5)], "Net").to_html(tmp_path/"samples.html")
    opened(chrome, tmp_path/"samples.html", tab="series")
    assert (not chrome.find_element("id", "text").is_displayed()
            and not chrome.find_element("id", "regex").is_displayed())

@phones
def test_a_phone_shows_one_note_and_the_others_on_demand(chrome, tmp_path):
    Result([row("a", 1e-3)], paper, model="Net", notes=["one", "two", "three"]).to_html(tmp_path/"notes.html")
    def shown(): return [e.text for e in chrome.find_elements("css selector", ".note") if e.is_displayed()]
    opened(chrome, tmp_path/"notes.html")
    first = shown()
    opened(chrome, tmp_path/"notes.html", 390, 844)
    assert first[-3:] == ["one", "two", "three"] and shown() == first[:1]
    chrome.find_element("css selector", "#notes summary").click()
    assert shown() == first

@more
@pytest.mark.parametrize("name", ["pair", "series"])
def test_what_the_legend_has_no_room_for_is_in_a_menu(chrome, pages, name):
    "One line on a phone, too, and every entry can still be pressed."
    path, tab = pages[name]
    for width in (1440, 390):
        opened(chrome, path, width, 844, tab=tab)
        high, entries = chrome.execute_script(
            "const e = document.getElementById('legend'); return [e.offsetHeight, "
            "e.querySelectorAll('button').length]")
        wanted = chrome.execute_script(
            "return new Set(charts[0].data.filter(t => t.name && t.name !== 'chosen' && (t.showlegend !== false || "
            "t.legendgroup?.startsWith('roof')))"
                                       ".map(t => t.legendgroup ?? t.name)).size")
        assert high < 40 and entries == wanted, (width, high, entries, wanted)

@more
def test_columns_that_fit_have_no_bar(chrome, report):
    "Neither a pixel too wide, nor an arrow of the last title beyond the frame."
    for size in ((1440, 900), (1024, 768)):
        opened(chrome, report, *size, state="")
        wide = chrome.execute_script(
            "const e = document.getElementById('scroller'); return [e.scrollWidth - e.clientWidth, e.offsetHeight - "
            "e.clientHeight]")
        assert wide[0] == 0 and wide[1] <= 2, (size, wide)

@phones
def test_filters_are_there_when_a_phone_turns(chrome, report):
    opened(chrome, report, 390, 844)
    view(chrome, 844, 390)
    assert not chrome.find_element("id", "text").is_displayed()
    chrome.find_element("css selector", "#filters summary").click()
    put(chrome, "text", "no such row")
    assert chrome.find_element("id", "text").is_displayed() and in_table(chrome) == []

@phones
def test_names_of_rows_are_above_them_on_a_phone(chrome, tmp_path):
    "The chart keeps the width, and a name lies on no marker; in dark, too, it is the ink of the page."
    from fasterbench.checking.budgets import Budget, Found, figures, judge
    from fasterbench.checking.verdict_view import Verdicts
    budgets = [Budget("net", figures["parameters"], "<=", 1e6, "<= 1 M", layer)
               for layer in ("", "layer4.*.conv2", "a.longer.name.of.a.layer")]
    Verdicts([judge(b, Found(n)) for b, n in zip(budgets, (1e6, 2e5, 3e6))]).to_html(tmp_path/"rows.html")
    opened(chrome, tmp_path/"rows.html", 390, 844, dark=True, tab="rows")
    names, marks, ink = chrome.execute_script("""
        const box = e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] }
        const texts = [...document.querySelectorAll("#chart .ytick text")]
        return [texts.map(box), [...document.querySelectorAll("#chart .point")].map(box),
                texts.map(e => getComputedStyle(e).fill)]""")
    assert len(names) == len(marks) == 3 and len(set(ink)) == 1 and "232, 238, 242" in ink[0]
    assert not [1 for a in names for b in marks if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]
    assert chrome.execute_script("return charts[0]._fullLayout.xaxis._length") > 300

@more
def test_the_strip_is_there_where_something_is_on_it(chrome, tmp_path):
    "Idle time is a term of the equation and no marker; copies that a filter leaves out take the strip with them."
    rows = [row("fc", 2e-3, share=0.4), row("copy", 1e-3, flops=0, share=0.2, category="copy"),
            row("(idle)", 2e-3, flops=0, nbytes=0, share=0.4, category="idle")]
    Result(rows, paper, model="Net").to_html(tmp_path/"strip.html")
    opened(chrome, tmp_path/"strip.html")
    def strip():
        return chrome.execute_script(
            "return [charts[0]._fullLayout.yaxis2?.visible ?? false, charts[0]._fullLayout.yaxis.domain[0] === 0]")
    assert on_charts(chrome)[0] == [0, 1] and strip() == [True, False]
    put(chrome, "category", "matmul")
    assert strip() == [False, True]
    Result([rows[0], rows[2]], paper, model="Net").to_html(tmp_path/"alone.html")
    opened(chrome, tmp_path/"alone.html")
    assert (not chrome.find_elements("css selector", "#chart .x2y2")
            and "2.0 idle" in chrome.find_elements("css selector", ".lead")[1].text)

@more
def test_the_category_chart_keeps_its_scale(chrome, report):
    opened(chrome, report)
    def ranges():
        return chrome.execute_script("return [charts[1]._fullLayout.xaxis.range, charts[1]._fullLayout.yaxis.range]")
    def told():
        return chrome.execute_script(
            "return [...document.querySelectorAll('#chart .annotation-text')].map(e => e.textContent)")
    whole = ranges()
    assert told() and "no row matches the filters" not in told()
    put(chrome, "category", "pooling")
    assert ranges() == whole and "no row matches the filters" not in told()
    put(chrome, "text", "no such row")
    assert ranges() == whole and "no row matches the filters" in chrome.find_element("id", "shown").text

@more
def test_phases_have_symbols_of_their_own(chrome, pages):
    "A marker says its phase by its symbol and its name; the legend filters by it."
    opened(chrome, pages["step"][0])
    symbols = chrome.execute_script(
        "return charts[0].data.filter(t => t.customdata && t.marker).map(t => [t.legendgroup, t.marker.symbol])")
    assert len({tuple(s) for s in symbols}) == len(symbols) and any(s.endswith("-open-dot") for _, s in symbols)
    assert "fc bwd" in chrome.execute_script("return charts[0].layout.annotations.map(a => a.text)")
    click_the_legend(chrome, "backward")
    until(lambda: in_table(chrome) == [0])

@phones
def test_a_phone_shows_time_and_share_beside_the_name(chrome, report):
    opened(chrome, report, 390, 844)
    def right(field):
        return chrome.execute_script("return document.querySelector(arguments[0]).getBoundingClientRect().right",
                                     f"th.field-{field}")
    assert right("name") < right("time_s") < right("share") <= 390 and "type" not in titles(chrome)

@more
def test_caveats_of_roofs_are_on_the_page_of_the_peaks(chrome, tmp_path):
    "The roof of L2 is that of L3: its spread is said once."
    level = MemoryLevel("L3", 32 << 20, 9e11, spread=0.34)
    found = replace(measured_peaks(), levels=(replace(level, name="L2", capacity=2 << 20, measured=8e11), level,
                                              MemoryLevel("DRAM", None, 7e10, spread=0.02)))
    (tmp_path/"peaks.html").write_text(PeaksView(found).render(), encoding="utf-8")
    opened(chrome, tmp_path/"peaks.html", tab="memory")
    texts = chrome.execute_script(
        "return [...document.querySelectorAll('.lead, .note:not([hidden])')].map(e => "
        "e.textContent.replaceAll('\\u00a0', ' '))")
    # half of 34 %; 200 GFLOP/s over 70 GB/s
    assert texts == ["device: cpu", "roofs: float32 200 GFLOP/s, L2 900, L3 900, DRAM 70 GB/s",
                     "ridge point 2.86 FLOP/B (float32, DRAM)", "NOT STEADY: L3 ±17 %"]

link = '<a href="https://example.org">x</a>'

def _named(name, **more):
    from dataclasses import replace
    from fasterbench.roofs.place import place
    from fasterbench.roofs.row import Row
    from fasterbench.views.result import Result
    roofs = HardwarePeaks(1e12, 1e11, environment=dict(device_name=link))
    rows = [replace(place(Row(f"{name}.{i}", "Linear", 10**9, 10**6, 2e-3), roofs), category=link, **more)
            for i in range(2)]
    return Result(rows, roofs, model=name, environment=dict(device_name=link))

def test_a_link_in_a_category_or_device_is_text_on_every_axis():
    "plotly draws <a> in tick labels, names and titles as a link that can be clicked."
    from fasterbench.serving.serve_view import options_chart
    from types import SimpleNamespace
    option = SimpleNamespace(name=link, batch=1, fits=True, limit_per_device=1.0, expected_per_device=1.0,
                             expected_s=1.0, low_s=0.5, high_s=2.0)
    figures = [_named(link).plot(), compare(_named(link), _named("b")).plot(),
               compare(_named(link), _named("b"), _named("c")).plot(),
               options_chart(SimpleNamespace(options=[option], lines=[]), "t")]
    pages = [_named(link), compare(_named(link), _named("b")), compare(_named(link), _named("b"), _named("c"))]
    figures += [fig for r in pages for tab in r._page()["kinds"] for fig in tab["figures"]]
    def strings(value):
        # of which none is drawn
        if isinstance(value, dict):
            return [s for k, v in value.items() if k not in ("alt", "legendgroup") for s in strings(v)]
        if isinstance(value, (list, tuple)): return [s for v in value for s in strings(v)]
        return [value] if isinstance(value, str) else []
    found = [s for fig in figures for s in strings(fig if isinstance(fig, dict) else json.loads(fig.to_json()))]
    assert any("&lt;a " in s for s in found) and not [s for s in found if "<a " in s]

def test_all_rows_of_a_report():
    assert _named("net").render(top=None).count("net.1") and len(_named("net").render(top=None)) > 1000

def test_many_results_fit_the_terminal():
    "Twenty results of one model: every column of the table in 80 columns, each once."
    import re
    many = compare(*(_named(f"net{i}") for i in range(20)))
    lines = many._table().text(80).splitlines()
    assert max(map(len, lines)) <= 80
    assert {int(n) for line in lines for n in re.findall(r"\bnet(\d+)\b", line)} >= set(range(20))

def test_rows_match_where_class_and_path_do_or_the_work():
    """Path 0 is a LayerNorm2d and a Permute (other work: alone on either side), path 1 a Linear and a QuantLinear
    (one work)."""
    from dataclasses import replace
    a, b = _named("net"), _named("net")
    a = replace(a, points=[replace(a.points[0], type="LayerNorm2d"), a.points[1]])
    b = replace(b, points=[replace(b.points[0], type="Permute", flops=0), replace(b.points[1], type="QuantLinear")])
    kinds = {(l.kind, sum(p is not None for p in l.points)) for l in compare(a, b).pairs}
    assert kinds == {("LayerNorm2d", 1), ("Permute", 1), ("Linear → QuantLinear", 2)}
