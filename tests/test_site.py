"The site: built once from the notebooks as they are committed, and looked at in headless Chrome or Chromium with the network off."
import importlib.util, json, re, subprocess, sys, warnings
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag

import pytest

from conftest import heavy, root
from test_report import chrome, until

pytestmark = pytest.mark.skipif(not heavy, reason="builds the site and opens every page: FASTERBENCH_TESTS=all")
tutorials = sorted(p.stem for p in (root/"nbs/tutorials").glob("*.ipynb"))
pages = [f"tutorials/{t}.html" for t in tutorials] + ["docs/conventions.html", "docs/other_tools.html", "index.html", "analysis/roofline.html", "views/plot.html"]

@pytest.fixture(scope="module")
def site(tmp_path_factory):
    "The folder with the site."
    missing = [m for m in ("sphinx", "myst_nb", "furo") if not importlib.util.find_spec(m)]
    if missing:
        warnings.warn(why := f"THE SITE IS NOT TESTED: {', '.join(missing)} not installed; the docs extra has it")
        pytest.skip(why)
    there = tmp_path_factory.mktemp("site")
    done = subprocess.run([sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(there/"trees"), "nbs", str(there/"site")], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return there/"site"

def figures(page):
    "How many figures the notebook of a page holds."
    nb = json.loads((root/"nbs"/page).with_suffix(".ipynb").read_text(encoding="utf-8"))
    return sum("application/vnd.plotly.v1+json" in o.get("data", {}) for c in nb["cells"] for o in c.get("outputs", []))

drawn = "return [...document.querySelectorAll('.plotly-graph-div')].map(d => d.querySelectorAll('svg.main-svg').length > 0 && d.getBoundingClientRect().height > 100)"

def opened(browser, path):
    "Open a page and let it settle; what the console said, what was requested."
    for log in ("browser", "performance"): browser.get_log(log)
    browser.get(path.as_uri())
    until(lambda: browser.execute_script("return document.readyState") == "complete")
    until(lambda: all(browser.execute_script(drawn)))
    until(lambda: browser.execute_script("return !document.querySelector('.math') || document.querySelectorAll('mjx-container').length > 0"))
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

def test_tutorials_have_figures(): assert sum(figures(f"tutorials/{t}.html") > 0 for t in tutorials) >= len(tutorials) / 2

class Links(HTMLParser):
    "Where a page leads, and its anchors."
    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

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
            if not there.exists() or anchor and there in read and unquote(anchor) not in read[there].anchors: lost.append((page.name, tag, link))
    assert lost == [] and len(read) > 40

def test_every_notebook_has_a_page(site):
    notebooks = [p.relative_to(root/"nbs") for p in (root/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]
    assert [str(n) for n in notebooks if not (site/n.with_suffix(".html")).is_file()] == []
