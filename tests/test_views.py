"What every kind of view says, in the terminal, in a notebook, on its page and in its JSON."
import csv, html, io, json, math, os, random, re, shutil, sys
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

import forked
import ncu_files
import trace_files
from conftest import heavy_only, in_line, nightly_only, root
from fasterbench import Result, from_json
from fasterbench.comparing.series import _column_titles, series_of
from fasterbench.core.units import format_si, percent_text
from fasterbench.views.columns import brief
from fasterbench.views.headline import alone_text, time_text
from test_report import go_to, opened, view as turned
from view_kinds import (busy, llama, makers, measured_peaks, paper, predicted, profiled, row, rows, steady,
                        view_of)

def plain(text): return " ".join(html.unescape(re.sub(r"</?[a-zA-Z!][^>]*>", " ", text)).split())
@cache
def rendered(kind): return view_of(kind).render()
def on_page(kind): return plain(rendered(kind).partition('<script type="application/json"')[0])

@pytest.mark.parametrize("kind", in_line(makers, "trace", "watch", "ranks"))
def test_text_notebook_page_and_json_carry_the_same_caveats(kind):
    view = view_of(kind)
    said = [" ".join(line.split()) for line in view.caveats]
    shown = dict(text=" ".join(view.text().split()), page=on_page(kind))
    if kind not in ("peaks", "network"): shown["notebook"] = plain(view._repr_html_())
    for where, text in shown.items(): assert [line for line in said if line not in text] == [], (kind, where)
    if kind not in ("peaks", "network", "watch"): assert json.loads(view.to_json())["caveats"] == view.caveats

def test_caveats_are_said():
    "By hand: what each kind of view has to say of itself."
    wanted = dict(three_batches="not measured", profile="used 1.6 of 2 cores", training="used 1.6 of 2 cores",
                  compiled="kernels of Inductor", pair="used 1.6 of 2 cores",
                  series="no FLOP rule for aten::odd", watch="up to 1.6 of 2 cores in 3 of 5 samples",
                  batches="not measured", devices="at the datasheet roofs",
                  predict="not measured", serve="Nothing here was measured", serve_several="Nothing here was measured",
                  check="only for this machine", peaks="±20 %",
                  kernels="FLOPs are unknown for 1 of 1 rows", no_roofs="the file has no peak metrics",
                  trace="GPU idle 85.0 %")
    for kind, words in wanted.items(): assert words in " ".join(view_of(kind).caveats), kind

def test_files_have_whole_names():
    "A name of 29 characters is cut in the printed table alone; so are no two that then look alike."
    found = series_of([predicted(n, on) for on in ("NVIDIA H100 80GB HBM3", "NVIDIA L40S") for n in (1, 2)])
    names = [f"batch {n} {on}" for on in ("NVIDIA H100 80GB HBM3", "NVIDIA L40S") for n in (1, 2)]
    assert found.csv().splitlines()[0] == ",".join(["name", "phase", "operator", "type", *(f"{n} [s]" for n in names)])
    assert [r["name"] for r in found.to_dict()["results"]] == found.labels == names and "…" not in found.to_json()
    assert _column_titles(names) == ["…tch 1 NVIDIA H100 80GB HBM3", "…tch 2 NVIDIA H100 80GB HBM3", *names[2:]]
    alike = ["first of two " + "x" * 27, "second of two " + "x" * 27]
    assert _column_titles(alike) == alike

def test_a_sweep_of_predictions_says_limit_and_interval():
    for kind in ("batches", "devices", "three_batches"):
        view, page = view_of(kind), on_page(kind)
        for r in view.results:
            assert "limit" in time_text(r) and time_text(r) in page, kind
            assert time_text(r) in " ".join(view.text().split()), kind
        assert "(predicted)" in page

@pytest.mark.parametrize("kind", makers)
def test_no_absolute_path_in_what_is_sent_on(kind):
    view = view_of(kind)
    page = rendered(kind)
    pictured = [] if kind in ("no_roofs", "disagreeing") else [view.plot().to_json()]
    for text in (view.text(), page.partition('<script type="text/plain"')[0], view.to_json(), view.csv(), *pictured):
        assert "/home/somebody" not in text, kind

def test_what_a_probe_said_names_no_folder():
    "An error that stands in saved peaks, and in a result under them."
    from fasterbench.views.peaks_page import PeaksView
    why = "RuntimeError: /home/somebody/kernels.so: cannot open"
    failed = replace(measured_peaks(), skipped={"read 1 MB": why},
                     environment=dict(device_name="a CPU", file="/home/somebody/p.json"))
    shown = PeaksView(failed)
    texts = dict(page=shown.render(), rows=shown.to_json(), peaks=failed.to_json(),
                 result=profiled(peaks=failed).to_json())
    assert [(k, "kernels.so: cannot open" in t, "/home/somebody" in t) for k,
            t in texts.items()] == [(k, True, False) for k in texts]

def written_by(verb, folder):
    "The arguments of a verb, every file of it by its absolute path."
    here = dict(peaks=paper_file(folder), net=f"{folder/'net.py'}:make", saved=f"{folder/'saved.json'}")
    def at(name): return str(folder/name)
    def files(*kinds): return [word for kind in kinds for word in (f"--{kind}", at(f"out.{kind}"))]
    quick = ["--warmup", "1", "--steps", "3", "--no-progress"]
    return dict(
        count=[here["net"], *files("json", "csv")], roofline=[here["net"], "--peaks", here["peaks"], *quick,
                                                              *files("html", "json", "csv")],
        report=[here["saved"], *files("html", "csv")], compare=[here["saved"], here["saved"], *files("html", "csv")],
        predict=[here["net"], "--on", here["peaks"], *files("html", "json", "csv")],
        trace=[at("trace.json"), "--on", here["peaks"], *files("html", "json", "csv"), "--perfetto",
               at("out-trace.json")],
        ncu=[at("gemm_tiled.csv"), "--peaks", here["peaks"], *files("html", "json"), "--csv", at("out.csv")],
        serve=[f"transformers:{folder}", "--on", "NVIDIA L40S", *files("html", "json", "csv")],
        mfu=[here["net"], "--on", "NVIDIA L40S", "--tokens-per-s", "100", *files("json")],
        check=[at("budgets.toml"), *files("html", "json", "junit")],
        run=["--peaks", here["peaks"], "--every", "4", *files("html", "json"), at("train.py"), "--data",
             at("data.bin")],
        compiled=["roofline", here["net"], "--compile", "--peaks", here["peaks"], *quick,
                  *files("html", "json", "kernels")],
        peaks=files("html", "json"))[verb]

def paper_file(folder):
    if not (folder/"paper.json").exists():
        replace(paper, environment=dict(source="measured")).to_json(folder/"paper.json")
    return str(folder/"paper.json")

def written_folder(folder):
    "A folder with what the verbs read."
    (folder/"net.py").write_text("from torch import nn, randn\n"
                                 "def make(): return nn.Sequential(nn.Linear(64, 64), nn.ReLU()), randn(8, 64)\n")
    (folder/"config.json").write_text(json.dumps(llama))
    (folder/"budgets.toml").write_text(f'[net]\nmodel = "{folder}/net.py:make"\nflops = "<= 1 GFLOP"\n')
    shutil.copy(root/"tests/data/resnet50.json", folder/"saved.json")
    (folder/"train.py").write_text(training)
    trace_files.written(folder, trace_files.step())
    ncu_files.gemm_tiled(folder)
    return folder

training = """import sys, torch, fasterbench
folder, watches = sys.argv[2].rpartition("/")[0], sys.argv[1] == "--watch"
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def steps():
    for _ in range(12):
        net(torch.randn(16, 64)).sum().backward()
        optimizer.step(), optimizer.zero_grad()
if not watches: steps()
else:
    peaks = fasterbench.HardwarePeaks.from_json(sys.argv[2])
    with fasterbench.watch(net, every=4, log=f"{folder}/out.jsonl", peaks=peaks) as watch: steps()
    watch.series.to_html(f"{folder}/out-series.html")
    watch.result.to_html(f"{folder}/out.html")
    watch.result.to_json(f"{folder}/out.json")
"""

def folders_in(texts, folder):
    "Which of the texts, by name, have an absolute path: of `folder`, of the packages, of a home."
    folders = str(folder), str(Path.home()) + os.sep, sys.prefix + os.sep, str(root)
    return [(name, path) for name, text in texts.items() for path in folders if path in text]

def written_texts(folder): return {p.name: p.read_text().partition('<script type="text/plain"')[0]
                                   for p in folder.glob("out*")}

kept = ("--html", "--json", "--csv", "--perfetto", "--junit", "--kernels")

verbs = ("count", "roofline", "report", "compare", "predict", "trace", "ncu", "serve", "mfu", "check", "run",
         "compiled", "peaks")

@pytest.mark.parametrize("verb", in_line(verbs, "roofline", "trace", ci=("compare", "run"),
                                         why="a process for each verb"))
def test_what_a_verb_writes_names_no_folder(verb, tmp_path):
    "Standard output and every file: neither the folder that it worked in, nor that of the packages, nor a home."
    arguments = written_by(verb, written_folder(tmp_path))
    words = arguments if verb == "compiled" else [verb, *arguments]
    done = forked.python(forked.command_line(*words), package=True, cwd=tmp_path, env=dict(os.environ, COLUMNS="2000"))
    assert done.returncode == 0, done.stderr
    texts = written_texts(tmp_path)
    assert len(texts) == sum(a in kept for a in arguments), list(texts)
    assert folders_in(texts | dict(stdout=done.stdout), tmp_path) == []

def test_what_a_watched_program_leaves_names_no_folder(tmp_path):
    "Its log, the page of its series, and the result of its last sample."
    written_folder(tmp_path)
    done = forked.python(f"import runpy, sys; sys.argv = ['train.py', '--watch', {paper_file(tmp_path)!r}]; "
                         f"runpy.run_path({str(tmp_path/'train.py')!r})", package=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    texts = written_texts(tmp_path)
    assert sorted(texts) == ["out-series.html", "out.html", "out.json", "out.jsonl"] and folders_in(texts,
        tmp_path) == []

@heavy_only("draws a picture in Chrome")
def test_a_picture_names_no_folder(tmp_path):
    "The chunks of text of a PNG, the whole text of an SVG."
    pytest.importorskip("kaleido")
    from PIL import Image
    view = view_of("profile")
    for name in ("out.png", "out.svg"): view.to_image(tmp_path/name)
    with Image.open(tmp_path/"out.png") as image: chunks = {k: str(v) for k, v in image.info.items()}
    texts = chunks | dict(svg=(tmp_path/"out.svg").read_text(),
                          bytes=(tmp_path/"out.png").read_bytes().decode("latin-1"))
    assert folders_in(texts, tmp_path) == [] and "/home/somebody" not in str(texts)

# On the screen

unreachable = """
    const found = [], named = e => (e.id || e.textContent || e.value || e.tagName).trim().slice(0, 40)
    const covered = e => {
      e.scrollIntoView({block: "center", inline: "center"})
      const r = [...e.getClientRects()].find(r => r.width && r.height)
      if (!r) return false
      const top = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2)
      return !(top && (e.contains(top) || top.contains(e) && top.tagName === "LABEL"))
          && `${named(e)} under ${top ? named(top) : "nothing"}`
    }
    const controls = root => [...root.querySelectorAll("button, input, select, summary, a[href], th")]
        .filter(e => !e.closest("[hidden], .modebar"))
    for (const e of controls(document)) {
      const closed = e.closest("details:not([open])")
      if (closed && e.parentElement !== closed) continue
      if (covered(e)) found.push(covered(e))
    }
    for (const menu of document.querySelectorAll("details")) {
      if (menu.closest("[hidden]")) continue
      const was = menu.open, all = (menu.open = true, controls(menu))
      const some = all.length > 12 ? [...all.slice(0, 6), ...all.slice(-3)] : all
      found.push(...some.map(covered).filter(Boolean).map(f => `${named(menu.querySelector("summary"))}: ${f}`))
      menu.open = was
    }
    window.scrollTo(0, 0)
    return found"""

cut_off = """
    const found = [], frame = document.getElementById("scroller").getBoundingClientRect()
    for (const th of document.querySelectorAll("#table th")) {
      const box = th.getBoundingClientRect()
      const outside = box.right > frame.right + 1 || box.left < frame.left - 1
      if (outside) found.push(`column ${th.textContent} of ${tab.name}`)
      const range = document.createRange()
      range.selectNodeContents(th.querySelector(".dt-column-title"))
      const over = [...range.getClientRects()].some(r => r.left < box.left - 1 || r.right > box.right + 1)
      if (over) found.push(`title ${th.textContent}`)
    }
    for (const chart of document.querySelectorAll(".chart")) {
      const box = chart.getBoundingClientRect()
      for (let e = chart.parentElement; e !== document.body; e = e.parentElement) {
        const clips = ["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowY)
        if (clips && e.scrollHeight > e.clientHeight + 1)
          found.push(`chart in a box of ${e.clientHeight} px for ${e.scrollHeight}`)
      }
      const texts = ".xtick text, .ytick text, [class$='title'] text, .xtitle, .ytitle, .x2title, .y2title"
      for (const t of chart.querySelectorAll(texts)) {
        const b = t.getBoundingClientRect()
        const inside = b.left >= box.left - 1 && b.right <= box.right + 1
            && b.top >= box.top - 1 && b.bottom <= box.bottom + 1
        if (b.width && !inside) found.push(`axis ${t.textContent}`)
      }
      const ticks = [...chart.querySelectorAll("[class$=tick] text")]
          .map(t => [t.textContent, t.getBoundingClientRect()]).filter(([, b]) => b.width)
      const apart = (a, b) => a.right - 2 < b.left || b.right - 2 < a.left
          || a.bottom - 5 < b.top || b.bottom - 5 < a.top
      ticks.forEach(([one, a], i) => {
        for (const [other, b] of ticks.slice(i + 1)) if (!apart(a, b)) found.push(`tick ${one} on ${other}`)
      })
    }
    const cards = [...document.querySelectorAll(".facts section")].filter(e => e.offsetHeight > 900)
        .map(e => `card ${e.querySelector("h2").textContent} of ${e.offsetHeight} px`)
    const wide = document.documentElement.scrollWidth
    if (wide > innerWidth) found.push(`page of ${wide} px`)
    return [...found, ...cards]"""

empty_axes = """
    put = (id, value) => {
      const e = document.getElementById(id)
      e.value = value
      e.dispatchEvent(new Event("input", {bubbles: true}))
    }
    put("text", "no such row")
    const drawn = charts.flatMap(c => Object.keys(c._fullLayout).filter(k => /^[xy]axis/.test(k)).map(k => [c, k]))
      .filter(([c, k]) => c._fullLayout[k].visible && !c._fullLayout[k].title.text && c._fullLayout[k].autorange)
      .map(([c, k]) => k)
    put("text", "")
    return drawn"""

alike = """
    const what = ["name", "type", "operator", "phase", "category", "dtype", "model", "layer", "figure", "budget",
        "kind", "batch"]
    const all = r => what.map(f => r[f]).join("|")
    const cells = tr => [...tr.querySelectorAll(what.map(f => `td.field-${f}`).join(", "))]
        .map(td => td.textContent).join("|")
    const rows = lines().map(tr => [rowAt(Number(tr.dataset.index)), cells(tr)])
    return rows.flatMap(([a, seen], i) => rows.slice(i + 1)
        .filter(([b, other]) => seen === other && all(a) !== all(b)).map(() => seen))"""

unnamed = """
    const found = [], key = [...document.querySelectorAll("#key span")].map(e => e.textContent.trim())
    for (const [i, s] of [...document.querySelectorAll(".segment")].entries()) {
      const named = s.classList.contains("silent") ? key.some(t => t.startsWith(data.division[i].label))
          : s.innerText.includes(data.division[i].label)
      if (!named) found.push(`segment ${data.division[i].label}`)
    }
    for (const e of document.querySelectorAll("#chart .x2y2 .point, #chart .x2y2-clip .point")) {
      if (charts[0]._fullLayout.yaxis2?.type !== "category") continue
      const b = e.getBoundingClientRect()
      const ticks = [...document.querySelectorAll("#chart .x2tick text")].map(t => t.getBoundingClientRect())
      const meet = t => t.left < b.right && b.left < t.right && t.top + 3 < b.bottom && b.top < t.bottom
      if (ticks.some(meet)) found.push("a marker of the strip under its axis")
    }
    for (const t of charts[0].data.filter(t => t.marker?.symbol === "line-ns-open")) {
      const entry = [...document.querySelectorAll("#legend button")].find(e => e.textContent.includes(t.name))
      if (!entry?.textContent.includes("┃")) found.push(`legend ${t.name}`)
    }
    return found"""

def first_tab(view): return view._page()["kinds"][0]["name"]

sizes = (1440, 900), (1024, 768), (390, 844)

@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    "Kind of view → its page, made when it is first asked for."
    folder = tmp_path_factory.mktemp("views")
    @cache
    def made(kind):
        (folder/f"{kind}.html").write_text(rendered(kind), encoding="utf-8")
        return folder/f"{kind}.html"
    return made

more = heavy_only("seconds in a browser")
opened_in_ci = "serve_several", "watch", "check" # pages that differ most; once a week all

@pytest.mark.parametrize("kind", in_line(makers, ci=opened_in_ci, why="seconds in a browser"))
def test_controls_are_reached_and_nothing_is_cut_off(chrome, page_of, kind):
    "In three sizes, on every tab: no control lies under another, no column, title or axis is cut."
    found = []
    for size in sizes:
        opened(chrome, page_of(kind), *size, tab=first_tab(view_of(kind)), state="")
        for tab in chrome.execute_script("return data.kinds.map(k => k.name)"):
            if tab != chrome.execute_script("return tab.name"): go_to(chrome, tab)
            scripts = (unreachable, cut_off, alike, unnamed, *[empty_axes][:size == sizes[0]])
            found += [(size[0], tab, what) for script in scripts for what in chrome.execute_script(script)]
    assert found == []

planted = dict(
    covered=(".left { z-index: 0 !important } .right { position: relative; z-index: 50 } "
             "#roofs .list { left: 0; width: 900px }", unreachable, "under"),
    column=("#scroller { width: 250px } #table { width: 900px !important }", cut_off, "column"),
    title=(".dt-column-title { margin-left: -60px }", cut_off, "title"),
    axis=(".xtick text { transform: translateY(400px) }", cut_off, "axis"),
    tick=(".ytick text { transform: translateX(60px) }", cut_off, "tick"),
    box=("#charts { height: 60px; overflow: hidden }", cut_off, "chart in a box"),
    card=(".facts section { min-height: 1000px; max-height: none !important }", cut_off, "card"))

@pytest.mark.parametrize("defect", [pytest.param(d, marks=more if d == "covered" else nightly_only("another defect"))
                                    for d in planted])
def test_planted_defects_are_found(chrome, page_of, defect):
    "What the test above looks for, put into a page that is well."
    style, script, word = planted[defect]
    kind = "devices" if defect == "tick" else "predict"
    opened(chrome, page_of(kind), tab=first_tab(view_of(kind)), state="")
    assert chrome.execute_script(script) == []
    chrome.execute_script(
        "document.head.append(Object.assign(document.createElement('style'), {textContent: arguments[0]}))", style)
    assert [f for f in chrome.execute_script(script) if word in f] != []

not_in_view = """
    const seen = e => {
      const b = e.getBoundingClientRect()
      return b.width > 0 && b.top >= 0 && b.bottom <= innerHeight && b.right <= innerWidth
    }
    const told = selector => [...document.querySelectorAll(selector)]
        .filter(seen).map(e => e.textContent.replaceAll("\u00a0", " "))
    return arguments[0].filter(([selector, word]) => !told(selector).some(t => t.includes(word)))"""

def column(*words): return [("#table th", w) for w in words]
def title(*words): return [("h1", w) for w in words]
def line(*words): return [(".lead, .note", w) for w in words]
def bar(*words): return [(".segment, #key span", w) for w in words]

class Not(str):
    "Why a question is not asked of a kind of view."

five = "where is the time", "what limits it", "how far from the limit", "how sure", "what changed"
one, several = Not("it is of one run"), Not("it is a range of sizes, a row for each")
limits, counted = Not("it shows the limits themselves"), Not("a budget is one figure, whatever makes it up")
rows_of = column("name", "time", "share"), column("bound"), column("utilization", "gap")

# Of each kind, where a reader sees whose figures they are and whose roofs, and the answers to the five questions.
questions = dict(
    profile=(line("a CPU", "roofs: float32 1 TFLOP/s"), rows_of[0] + line("rows and total disagree by 1.00 ms"),
             *rows_of[1:], line("used 1.6 of 2 cores"), one),
    training=(line("a CPU", "roofs: "), column("phase", "time", "share"), *rows_of[1:], line("used 1.6 of 2 cores"),
              one),
    compiled=(line("a CPU", "roofs: "), *rows_of, line("used 1.6 of 2 cores"), one),
    ranks=(line("a CPU", "roofs: "), column("phase", "time", "max over ranks"), column("bound"), column("utilization"),
           line("shares are relative to the sum of the rows"), one),
    memory=(line("forward + backward", "roofs: "), *rows_of, line("peak memory"), one),
    trace=(line("cuda", "roofs: "), rows_of[0] + bar("idle"), *rows_of[1:], line("GPU idle 85.0 %"), one),
    kernels=(line("GPU of compute capability 12.0", "roofs: "), column("name", "time", "share"), column("bound"),
             line("2.5 with unknown FLOPs"), line("FLOPs are unknown"), one),
    no_roofs=(line("GPU of compute capability 12.0", "roofs: none: the file has no peak metrics"),
              column("name", "time", "share"), line("no peak metrics"), line("no peak metrics"),
              line("FLOPs are unknown"), one),
    disagreeing=(line("a CPU", "roofs: "), line("rows and total disagree by 3.00 ms"), *rows_of[1:],
                 line("used 1.6 of 2 cores"), one),
    predict=(title("NVIDIA H100 80GB HBM3") + line("roofs: "), column("expected", "share"), column("bound"),
             line("limit 131.51 ns"),
             column("p10", "p90") + line("(15.62 µs to 26.75 µs)", "Predicted for"), one),
    host=(title("NVIDIA H100 80GB HBM3") + line("roofs: "), column("expected"), column("bound"), line("limit"),
          column("p90") + line("Predicted for"), one),
    pair=(line("device: a CPU", "roofs: float32 1 TFLOP/s"), column("time before", "time after")
          + line("lost below the roof"), line("compute 0.60"),
          column("utilization after"), column("change") + line("NOT STEADY: other processes"), column("time ratio")),
    series=(line("device: a CPU", "roofs: float32 1 TFLOP/s"),
            column("batch 1", "batch 4") + line("lost below the roof"), line("compute 0.60"),
            line("at the roof"), line("NOT STEADY: other processes"), column("last/first")),
    batches=(line("device: NVIDIA H100", "roofs: "), column("batch 8"), line("at the roof (memory"), line("limit"),
             line("Predicted for"), column("last/first")),
    three_batches=(line("device: NVIDIA H100", "roofs: "), column("batch 32"), line("at the roof (memory"),
                   line("limit"),
                   line("batch 32 expected", " to ", "Predicted for"), column("last/first")),
    devices=(column("L40S")
             + line("roofs: NVIDIA H100 80GB HBM3 float32 66.9 TFLOP/s, DRAM 3.35 TB/s; NVIDIA L40S"),
             column("name", "L40S"),
             line("at the roof (memory"), line("limit"), line("Predicted for"),
             column("ratio to first") + line("NVIDIA L40S ×0.98 (×0.65 to ×1.50)")),
    serve=(title("NVIDIA H100 80GB HBM3") + line("roofs: bfloat16 989 TFLOP/s, L2 16.7 TB/s, DRAM 3.35 TB/s"),
           column("phase", "expected"), column("bound"),
           column("limit"), column("p90") + line("Nothing here was measured"), several),
    serve_several=(line("roofs: NVIDIA H100 80GB HBM3 bfloat16 989 TFLOP/s", "NVIDIA L40S bfloat16 362 TFLOP/s"),
                   column("time per token"), column("bound"),
                   [("#legend > *", "limit")] + column("tokens/s per device, expected"), line("(550.04k to 1.13M)"),
                   line("2 × H100 80GB HBM3 ×0.64 (0.38 to 1.06)") + column("ratio to first")),
    check=(line("device: a CPU, 2 threads", "roofs: float32 200 GFLOP/s"), counted, counted,
           column("budget", "value", "limit used"), column("interval", "verdict"),
           Not("each figure is held against its limit, which a baseline may be")),
    watch=(line("device: a CPU", "roofs: float32"), column("time") + line("a step takes"), column("compute", "memory"),
           column("MFU"),
           line("±", "up to 1.6 of 2 cores in 3 of 5 samples") + column("busy cores"),
           Not("a row is a moment of one run; the chart shows the change")),
    peaks=(title("a CPU") + line("device: a CPU", "roofs: float32"), limits, limits, column("best rate"),
           line("NOT STEADY: float32 ±20 %"), one),
    sol=(line("NVIDIA H100"), column("bound"), column("bound by"), column("bound share"),
         line("1 of 2 times are impossible: softmax", "Bounds hold for these inputs", "1 of 3 problems could not"),
         Not("a time is held against its bound")),
    network=(title("a CPU") + line("device: a CPU", "roofs: float32"), limits, limits, column("best rate"),
             line("NOT STEADY: float32 ±20 %"), one))

def test_every_kind_answers_or_says_why_not():
    "Who measured it, and the five questions; one that does not apply says because of what."
    assert list(questions) != [] and set(questions) == set(makers)
    for kind, (whose, *answers) in questions.items():
        assert whose and len(answers) == len(five), kind
        assert all(a if isinstance(a, Not) else all(len(where) == 2 for where in a) and a for a in answers), kind

in_the_test_line = "serve",

@pytest.mark.parametrize("kind", in_line(questions, *in_the_test_line, ci=opened_in_ci, why="another kind of page"))
def test_one_screen_answers(chrome, page_of, kind):
    "Without scrolling, at 1440×900; and no two rows look alike that are not."
    opened(chrome, page_of(kind), tab=first_tab(view_of(kind)), state="")
    asked = dict(zip(("whose figures", *five), questions[kind]))
    missing = {q: chrome.execute_script(not_in_view, a) for q, a in asked.items() if not isinstance(a, Not)}
    assert {q: m for q, m in missing.items() if m} == {}
    assert [chrome.execute_script(script) for script in (alike, unnamed)] == [[], []]

press = """
    const [draws, done] = arguments, found = [], trail = []
    window.addEventListener("error", e => found.push(`${trail.slice(-3).join(", ")}: ${e.message}`))
    window.addEventListener("unhandledrejection", e => found.push(`${trail.slice(-3).join(", ")}: ${e.reason}`))
    const places = {tab: "#tabs input", legend: "#legend button", head: "#table th",
                    row: "#table tbody tr[data-index]", menu: "summary", box: "input[type=checkbox]",
                    select: "select", other: "button:not(#legend *)", text: "input[type=search]"}
    const seen = e => e.getClientRects().length > 0 || e.closest("label")?.getClientRects().length > 0
    const act = (kind, e, x) => {
      trail.push(`${kind} ${(e.textContent || e.value || e.id).trim().slice(0, 30)}`)
      if (kind === "select") e.selectedIndex = Math.floor(x * e.options.length)
      if (kind === "text") e.value = x < 0.5 ? "[" : ""
      if (kind === "select" || kind === "text") return e.dispatchEvent(new Event("input", {bubbles: true}))
      e.click()
      if (kind === "row") e.dispatchEvent(new KeyboardEvent("keydown",
          {key: x < 0.5 ? "ArrowDown" : "Enter", bubbles: true}))
    }
    const mark = x => {
      const at = charts.flatMap(c => c.data.flatMap(t => (t.customdata ?? []).map(i => [c, i])))
      const [c, i] = at[Math.floor(x * at.length)] ?? []
      trail.push(`marker ${i}`)
      if (c) c.emit("plotly_click", {points: [{customdata: i}]})
    }
    const all = kind => [...document.querySelectorAll(places[kind])].filter(seen)
    const kinds = [...Object.keys(places), "marker"]
    const run = async () => {
      for (const kind of Object.keys(places)) {
        const most = Math.min(all(kind).length, kind === "row" ? 3 : 15)
        for (let i = 0; i < most; i++) { act(kind, all(kind)[i], 0.9); await null }
      }
      for (const [one, other, x] of draws) {
        const kind = kinds[Math.floor(one * kinds.length)], them = places[kind] ? all(kind) : []
        if (kind === "marker") mark(other)
        else if (them.length) act(kind, them[Math.floor(other * them.length)], x)
        await new Promise(next => setTimeout(next))
      }
      done([found, trail.length])
    }
    run().catch(e => done([[...found, `${trail.slice(-3).join(", ")}: ${e.message}`], trail.length]))"""

@pytest.mark.parametrize("kind", in_line(makers, ci=opened_in_ci, why="seconds in a browser"))
def test_whatever_is_pressed_the_console_is_silent(chrome, page_of, kind):
    "Most controls once, on a desk and on a phone, then twenty that are drawn; then the screen is turned."
    draw = random.Random(kind)
    chrome.set_script_timeout(120)
    for size in sizes[::2]:
        opened(chrome, page_of(kind), *size, tab=first_tab(view_of(kind)), state="")
        found, pressed = chrome.execute_async_script(press, [[draw.random() for _ in range(3)] for _ in range(20)])
        turned(chrome, *size[::-1])
        assert found == [] and chrome.get_log("browser") == [] and pressed >= 20, size
        assert not chrome.find_element("id", "trouble").is_displayed()
        assert not chrome.find_elements("css selector", "[data-title^=Share]")       # a button of plotly 4

@more
def test_a_press_that_fails_is_found(chrome, page_of):
    opened(chrome, page_of("serve"), tab=first_tab(view_of("serve")), state="")
    chrome.execute_script("document.querySelector('#table th').onclick = () => { throw Error('planted') }")
    found, _ = chrome.execute_async_script(press, [])
    assert found != [] and "planted" in str(chrome.get_log("browser"))

def test_what_changed_between_devices_has_an_interval():
    """By hand: 20.13 ÷ 20.44 µs, times and over exp √(ln²(26.75 ÷ 20.44) + ln²(27.74 ÷ 20.13)) = 1.52; of rates of
    servers alike."""
    line = "time over that of NVIDIA H100 80GB HBM3: NVIDIA L40S ×0.98 (×0.65 to ×1.50)"
    for text in (" ".join(view_of("devices").text().split()), on_page("devices")): assert line in text
    first, second = (r for r in view_of("devices").results)
    tab = view_of("devices")._tab()
    [whole] = [dict(zip((c["field"] for c in tab["columns"]), r)) for r in tab["rows"] if "whole model" in r]
    assert whole["ratio_2"] == second.program.time_s / first.program.time_s == pytest.approx(20.13 / 20.44, abs=1e-3)
    rows = view_of("serve_several").to_frame()
    a, b = (rows.iloc[i] for i in (0, 2))
    off = math.exp(math.hypot(math.log(a.high_s / a.expected_s), math.log(b.high_s / b.expected_s)))
    ratio = b.expected_per_device / a.expected_per_device
    assert (b.ratio == pytest.approx(ratio) and b.ratio_interval == f"{ratio / off:.2f} to {ratio * off:.2f}"
            and rows.iloc[0].ratio_interval == "")

def in_csv(view):
    rows = csv.DictReader(io.StringIO(view.csv()))
    return [{k.partition(" [")[0]: v for k, v in r.items()} for r in rows]

def first_lines(view):
    from fasterbench.views.headline import headline
    return (headline(view) if isinstance(view, Result) else view.lines)[:3]

def time_of(rows): return [float(r["time_s"]) for r in rows]

def divided_rows(view):
    "The time in rows at the roof, lost below it, and idle, from the CSV."
    rows = in_csv(view)
    idle, busy = ([r for r in rows if (r["name"] == "(idle)") == apart] for apart in (True, False))
    roof = sum(float(r["roof_time_s"]) for r in busy)
    return roof, sum(time_of(busy)) - roof, sum(time_of(idle))

def trained(): return predicted(backward=True)

@pytest.mark.parametrize("view", [steady, trained, partial(view_of, "serve"), partial(view_of, "trace")])
def test_the_first_lines_of_an_answer_are_the_same_in_every_form(view):
    "Printed, on the page, and told again from JSON."
    view = view()
    lines, text = first_lines(view), " ".join(view.text().split())
    page = plain(view.render().partition('<script type="application/json"')[0])
    assert [(l in text, l in page) for l in lines] == [(True, True)] * 3
    assert first_lines(from_json(view.to_json())) == lines

def test_figures_of_an_answer_are_in_the_csv():
    """Of a profile and a trace, the division; of a training step and a server, each figure of the first lines.

    By hand: three rows need 2e8 FLOP at 1e12 FLOP/s each, and take 9 ms; 34 of 40 µs no kernel runs."""
    roof, lost, _ = divided_rows(steady())
    assert (roof, lost) == pytest.approx((0.6e-3, 8.4e-3))
    assert "= 0.60 at the roof (compute 0.60) + 8.4 lost" in first_lines(steady())[1]
    roof, lost, idle = divided_rows(view_of("trace"))
    told = f"= {1e6 * roof:.2f} at the roof (memory 0.23) + {1e6 * lost:.1f} lost"
    assert idle == pytest.approx(34e-6) and told in first_lines(view_of("trace"))[1]
    step, rows = trained(), in_csv(trained())
    told = {k: {float(r[k]) for r in rows} for k in ("step_time_s", "per_s", "mfu", "peak_bytes")}
    [time_s], [rate], [mfu], [peak] = told.values()
    # 11 operators take at least 10 µs each to launch
    assert rate == pytest.approx(8 / 110e-6) and time_s < 110e-6
    assert first_lines(step)[0].startswith(
        f"a step of 8 samples (loss: sum of the output): expected {format_si(time_s, 's')}, at most {brief(rate)} "
        f"samples/s{alone_text(step)} · MFU (float32) ≤ {percent_text(mfu)} · memory {format_si(peak, 'B')}")
    of, = (r for r in in_csv(view_of("serve")) if (r["name"], r["batch"]) == ("mid-decode", "64"))
    said = " ".join(first_lines(view_of("serve")))
    for text in (f"{format_si(float(of['expected_per_s']))} tokens/s expected", format_si(float(of["first_s"]), "s"),
                 f"per output token {format_si(float(of['expected_s']), 's')}",
                 f"{brief(float(of['requests_per_s']))} requests/s"): assert text in said

def test_a_comparison_says_its_first_line_in_every_form():
    "9.1 ms and 7.1 ms: ×0.78; of the wholes no spread is known."
    view, kept = view_of("pair"), json.loads(view_of("pair").to_json())
    line = "not told apart (spread unknown): time ×0.78, 9.10 ms before, 7.10 ms after"
    assert kept["whole"] == dict(change="spread unknown", time_ratio=7.1 / 9.1, time_ratio_interval=None)
    assert [r["time_s"] for r in kept["results"]] == [9.1e-3, 7.1e-3]
    assert line in view.text().split("\n")[0] and line in on_page("pair")

def test_the_page_of_several_results_says_their_times_where_rows_and_total_disagree():
    found = series_of([replace(view_of("disagreeing"), call=dict(batch=b)) for b in (1, 2, 4)])
    each = [f"batch {b} 10.00 ms ±8 %, NOT STEADY" for b in (1, 2, 4)]
    assert found._page()["lines"][0] == f"time: {'; '.join(each)}"

def test_the_answer_for_a_training_step_is_the_same_in_every_form():
    "Time, rate, MFU, memory and largest batch: in the terminal, on the page, in CSV and in JSON."
    from fasterbench.predicting.predict_verb import Predictions
    found = [predicted(on=on, backward=True) for on in ("NVIDIA H100 80GB HBM3", "NVIDIA L40S")]
    for r in found: r.environment["step"]["largest_batch"] = 64
    seen = Predictions(series_of(found))
    text, page = " ".join(seen.text().split()), plain(seen.render().partition('<script type="application/json"')[0])
    rows, kept = csv.DictReader(io.StringIO(seen.csv())), json.loads(seen.to_json())["results"]
    for r, row, of in zip(found, rows, kept, strict=True):
        step, p = r.environment["step"], r.program
        rate = step["work"] / max(p.time_s, 10e-6 * r.environment["operators"])          # launching takes no less
        assert float(row["time_s [s]"]) == of["time_s"] == p.time_s
        assert float(row["per_s [samples/s]"]) == of["samples_per_s"] == rate
        assert float(row["mfu"]) == of["mfu"] == step["mfu"] and row["batch"] == "8" and of["batch"] == 8
        assert int(row["peak_bytes [B]"]) == of["peak_bytes"] == r.memory.peak_bytes
        assert int(row["largest_batch"]) == of["largest_batch"] == 64
        assert f"expected {format_si(p.time_s, 's')}, at most {brief(rate)} samples/s{alone_text(r)} · MFU" in page
        assert f"{_predicted_name(r)} 8 {brief(p.roof_time_s, 's')} {brief(p.time_s, 's')} {brief(rate)}" in text
    for said in (text, page): assert "largest batch: 64 samples (10 % of the memory kept free" in said

def _predicted_name(result): return result.environment["device_name"]

@pytest.mark.parametrize("kind", ["serve", "serve_several"])
def test_what_a_server_reaches_is_the_same_in_text_and_page(kind):
    text, page = " ".join(view_of(kind).text().split()), on_page(kind)
    assert [l for l in view_of(kind).lines if not (" ".join(l.split()) in text and l in page)] == []

def test_roofs_of_a_server_have_names_on_the_chart():
    "The H100's datasheet: 989 TFLOP/s of bfloat16, 3.35 TB/s; two levels, since its limit is above main memory's roof."
    chart = view_of("serve").plot()
    names = [a.text for a in chart.layout.annotations if a.yref == "y2"]
    assert {"bfloat16 989 TFLOP/s", "DRAM 3.35 TB/s"} <= set(names) and len(names) == 1 + sum(t.mode == "lines"
        and t.yaxis == "y2" for t in chart.data)

def test_a_number_stays_with_its_unit():
    "No line of a page or a terminal can break between the two; what else breaks is as it was, commands too."
    from fasterbench.views.page import unbroken
    from fasterbench.views.view import wrap_lines
    said = "14.56 ms ±3 %, L2 912 GB/s, ± 1 µs, 2 × 3 steps, batch 8 before, 1.3 PFLOP/s, 7.2 FLOP/B"
    spaced = "14.56_ms ±3_%, L2 912_GB/s, ±_1_µs, 2 × 3 steps, batch 8 before, 1.3_PFLOP/s, 7.2_FLOP/B"
    assert unbroken(said).replace("\u00a0", "_") == spaced
    assert wrap_lines(["the whole step: 14.56 ms ±3 %"], 22) == ["the whole step:", "  14.56 ms ±3 %"]
    assert unbroken("3 s:\ntimeout 3 s").replace("\u00a0", "_") == "3_s:\ntimeout 3 s"
    for kind in ("profile", "devices", "serve"):
        told = re.findall(r'<(?:p class="(?:lead|note)[^>]*|dd)>([^<]*)', rendered(kind))
        assert told and [t for t in told if re.search(r"\d (?:%|[mµn]s|[GTM]B/s)(?!\w)", t)] == [], kind

def test_the_arrow_of_a_pair_is_above_its_markers():
    from fasterbench import compare
    figure = compare(profiled(timing=None), profiled(timing=None, points=rows(times=(1e-3, 3e-3, 2e-3)))).plot()
    arrows = [t for t in figure.data if t.marker.symbol == "arrow"]
    assert arrows and all(t.zorder == 1 for t in arrows) and all(t.zorder is None for t in figure.data
                                                                 if t.marker.symbol != "arrow")

@heavy_only("seconds in a browser")
def test_no_bar_where_rows_and_total_disagree(chrome, page_of):
    opened(chrome, page_of("disagreeing"), state="")
    assert not chrome.find_element("id", "division").is_displayed()

def test_what_puts_both_sides_in_doubt_is_said_once():
    "Two profiles beside processes that used as many cores, then two beside others."
    from fasterbench import compare
    [said] = [c for c in compare(profiled(), profiled()).caveats if "busy:" in c]
    assert said.startswith("busy: other processes used 1.6 of 2 cores")
    other = [c for c in compare(profiled(), profiled(timing=replace(busy, others=1.2))).caveats if "busy:" in c]
    assert [c.partition(" of ")[0] for c in other] == ["before: busy: other processes used 1.6",
                                                       "after: busy: other processes used 1.2"]

def test_a_row_faster_than_its_roof_is_named_once():
    "Its 2e8 FLOP need 0.2 ms at 1e12 FLOP/s, and took 0.1 ms; the profile warned of it."
    from fasterbench.views.table import above_text
    fast = profiled(points=[row("fast", 1e-4)])
    said = [c for c in replace(fast, notes=[above_text(fast)]).caveats if "faster than" in c]
    assert said == ["1 of 1 rows are faster than their roof by more than the spread, so a count, a time or a roof is "
                    "wrong: fast (200 %)"]
