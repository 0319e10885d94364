"""The site: built once from the notebooks as they are committed, and looked at in headless Chrome or Chromium with
the network off."""
import importlib.util, json, re, shutil, subprocess, sys, warnings
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag

import pytest

from conftest import nightly_only, once, root
from test_report import until, view

pytestmark = nightly_only("builds the site, as docs.yml does, and opens every page")
tutorials = sorted(p.stem for p in (root/"nbs/tutorials").glob("*.ipynb"))
pages = ([f"tutorials/{t}.html" for t in tutorials]
         + ["index.html", "analysis/roofline.html", "views/plot.html", "reference/roofs.html",
            "reference/public.html"])
pages += [f"docs/{p.stem}.html" for p in sorted((root/"nbs/docs").iterdir())]

@pytest.fixture(scope="module")
def site(tmp_path_factory):
    "The folder with the site. Where the build fails, every worker says so."
    missing = [m for m in ("sphinx", "myst_nb", "furo") if not importlib.util.find_spec(m)]
    if missing:
        warnings.warn(why := f"THE SITE IS NOT TESTED: {', '.join(missing)} not installed; the docs extra has it")
        pytest.skip(why)
    def built(there):
        # a copy: other tests write into the project meanwhile
        source = tmp_path_factory.mktemp("source")/"project"
        shutil.copytree(root, source, ignore=shutil.ignore_patterns(
            ".*", "build", "dist", "*.egg-info", "__pycache__"))
        before = {*source.rglob("*")}
        done = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-b", "html", "nbs", str(there/"html")],
                              cwd=source, capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        assert {*source.rglob("*")} == before and [p.name for p in there.iterdir()] == ["html"], (
            "the build leaves something behind")
    return once("site", built)/"html"

def figures(page):
    "How many figures the notebook of a page holds; a page of text holds none."
    if not (root/"nbs"/page).with_suffix(".ipynb").is_file(): return 0
    nb = json.loads((root/"nbs"/page).with_suffix(".ipynb").read_text(encoding="utf-8"))
    return sum("application/vnd.plotly.v1+json" in o.get("data", {}) for c in nb["cells"]
               for o in c.get("outputs", []))

drawn = (
    "return [...document.querySelectorAll('.plotly-graph-div')].map(d => d.querySelectorAll('svg.main-svg').length > "
    "0 && d.getBoundingClientRect().height > 100)")

def opened(browser, path):
    "Open a page in a wide window and let it settle; what the console said, what was requested."
    browser.get("about:blank")
    view(browser, 1280, 1600)
    for log in ("browser", "performance"): browser.get_log(log)
    browser.get(path.as_uri())
    until(lambda: browser.execute_script("return document.readyState") == "complete")
    until(lambda: all(browser.execute_script(drawn)))
    until(lambda: browser.execute_script(
        "return !document.querySelector('.math') || document.querySelectorAll('mjx-container').length > 0"))
    events = [json.loads(e["message"])["message"] for e in browser.get_log("performance")]
    requests = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    return [e for e in browser.get_log("browser") if e["level"] == "SEVERE"], requests

@pytest.mark.parametrize("page", pages)
def test_page_in_a_browser(chrome, site, page):
    "Every figure is drawn, the console is silent, nothing is asked of a network."
    errors, requests = opened(chrome, site/page)
    assert errors == []
    assert requests and all(url.startswith(("file:", "data:", "blob:")) for url in requests)
    assert chrome.execute_script(drawn) == [True] * figures(page)
    for width, height in (800, 1000), (390, 844), (844, 390), (1280, 1600):
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                               dict(width=width, height=height, deviceScaleFactor=1, mobile=False))
        until(lambda: chrome.execute_script("return innerWidth") == width)
        until(lambda: chrome.execute_script(drawn) == [True] * figures(page))
    assert [e for e in chrome.get_log("browser") if e["level"] == "SEVERE"] == []

def headings(chrome):
    return chrome.execute_script(
        "return [...document.querySelectorAll('.sidebar-tree .caption')].map(e => e.textContent.trim())")

@pytest.mark.long
def test_order_of_the_site(chrome, site):
    opened(chrome, site/"index.html")
    assert headings(chrome) == ["Start here", "Tutorials", "How-to", "Concepts", "Reference", "Internals"]
    entries = chrome.execute_script(
        "return [...document.querySelectorAll('.sidebar-tree li.toctree-l1 > a')].map(a => a.getAttribute('href'))")
    for t in tutorials: assert f"tutorials/{t}.html" in entries
    assert len(entries) == len(set(entries)) and entries[1:3] == ["docs/install.html", "docs/five_minutes.html"]

def test_reference_has_signatures_and_parameters(chrome, site):
    "Types, defaults and meaning of each parameter stand in a table; only public names have an entry."
    opened(chrome, site/"reference/public.html")
    names = chrome.execute_script("return [...document.querySelectorAll('table a.reference')].map(a => a.textContent)")
    assert ({"RooflineAnalyzer", "measure_peaks", "compare", "Result", "read_ncu",
             "HardwarePeaks"} <= {name.split("(")[0] for name in names})
    opened(chrome, site/"reference/ncu.html")
    head = chrome.execute_script("return document.getElementById('fasterbench.ncu.ncu.read_ncu').textContent")
    assert "read_ncu" in head and "by" in head and "'launch'" in head and "Result" in head
    rows = chrome.execute_script("const dl = document.getElementById('fasterbench.ncu.ncu.read_ncu').parentElement;"
                                 "return [...dl.querySelectorAll('table tr')].map(r => [...r.children].map(c => "
                                 "c.textContent.trim()))")
    assert rows[0] == ["parameter", "type", "default", "meaning"] and rows[1][0] == "path" and "CSV" in rows[1][3]
    assert [r[:3] for r in rows if r[0] == "by"] == [["by", "str", "'launch'"]]
    assert chrome.execute_script(
        "return [...document.querySelectorAll('dt.sig')].filter(d => "
        "d.id.split('.').pop().startsWith('_')).length") == 0

def test_objects_are_found(chrome, site):
    "By the search of the site and in its index."
    chrome.get((site/"search.html").as_uri() + "?q=measure_peaks")
    until(lambda: any("reference/probes.html" in (h or "")
                      for h in chrome.execute_script(
                          "return [...document.querySelectorAll('#search-results a')].map(a => "
                          "a.getAttribute('href'))")))
    index = (site/"genindex.html").read_text(encoding="utf-8")
    assert all(name in index for name in ("measure_peaks", "RooflineAnalyzer", "MemoryLevel", "read_ncu"))

def test_the_index_of_public_names_is_in_the_order_of_use(site):
    page = " ".join(re.sub(r"<[^>]+>", "", (site/"reference/public.html").read_text(encoding="utf-8")).split())
    at = [page.rindex(h) for h in ("RooflineAnalyzer(model, sample, peaks)", "read_ncu(path, *", "predict(model",
                                   "NotKeptWarning")]
    assert at == sorted(at)

def test_checks_are_folded(site):
    "A cell that asserts and shows nothing is behind a line; the others are read."
    page = (site/"tutorials/watching.html").read_text(encoding="utf-8")
    folded = re.findall(r"<details class=\"[^\"]*hide[^\"]*\">.*?</details>", page, re.S)
    assert len(folded) == 4 and all("Checks of this page" in f and "assert" in f for f in folded)
    assert "assert" not in re.sub("|".join(map(re.escape, folded)), "", page).partition("<article")[2]

def test_pages_of_notebooks_show_no_directives(site):
    for page in ("work/rules.html", "core/units.html", "views/table.html"):
        text = Links((site/page).read_text(encoding="utf-8")).text
        assert "#| export" not in text and "default_exp" not in text and len(text) > 2000

def test_tutorials_have_figures():
    assert sum(figures(f"tutorials/{t}.html") > 0 for t in tutorials) >= len(tutorials) / 2

class Links(HTMLParser):
    "Where a page leads, and its anchors."
    def __init__(self, text):
        super().__init__()
        self.links, self.anchors, self.text = [], set(), ""
        self.feed(text)

    def handle_data(self, data): self.text += data

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[k] for k in ("id", "name") if found.get(k)}
        self.links += [(tag, found[k]) for k in ("href", "src") if found.get(k)]

def test_links_lead_somewhere(site):
    "Every link inside the site has its page and its anchor, and every file that a page loads is one of the site."
    read = {p: Links(p.read_text(encoding="utf-8")) for p in site.rglob("*.html") if "_static" not in p.parts}
    lost = []
    for page, found in read.items():
        for tag, link in found.links:
            if re.match(r"(https?:)?//|mailto:|data:", link):
                if tag != "a": lost.append((page.name, tag, link))
                continue
            target, anchor = urldefrag(link.split("?")[0] if "#" not in link else re.sub(r"\?[^#]*", "", link))
            there = (page.parent/unquote(target)).resolve() if target else page
            if not there.exists() or anchor and there in read and unquote(anchor) not in read[there].anchors:
                lost.append((page.name, tag, link))
    assert lost == [] and len(read) > 40

def test_every_notebook_has_a_page(site):
    notebooks = [p.relative_to(root/"nbs") for kind in ("*.ipynb", "*.md") for p in (root/"nbs").rglob(kind)
                 if ".ipynb_checkpoints" not in p.parts]
    assert [str(n) for n in notebooks if not (site/n.with_suffix(".html")).is_file()] == []
