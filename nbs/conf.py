"Sphinx: the notebooks as a site. Outputs are those in the notebooks; plotly.js and MathJax are files of the site, nothing is fetched from a network."
import json
from pathlib import Path

import plotly
from plotly.io import to_html

project = "fasterbench"
copyright = "2026, fasterbench developers"
extensions = ["myst_nb", "sphinx-mathjax-offline"]
html_theme = "furo"
html_static_path = ["site.css", str(Path(plotly.__file__).parent/"package_data/plotly.min.js")]
html_css_files = ["site.css"]
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["**.ipynb_checkpoints"]

figure = "application/vnd.plotly.v1+json"

def live(app, docname, source):
    "Figures of a notebook as HTML that plotly.js draws; the first one loads it."
    if not str(app.env.doc2path(docname)).endswith(".ipynb"): return
    nb, drawn = json.loads(source[0]), 0
    for output in (o for c in nb["cells"] for o in c.get("outputs", ()) if figure in o.get("data", {})):
        script = "../" * docname.count("/") + "_static/plotly.min.js"
        html = to_html(output["data"][figure], full_html=False, include_plotlyjs=False if drawn else script, div_id=f"figure-{drawn}",
                       config=dict(displaylogo=False, responsive=True), validate=False)
        output["data"], drawn = {"text/html": html}, drawn + 1
    source[0] = json.dumps(nb)

def setup(app): app.connect("source-read", live)
