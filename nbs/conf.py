"Sphinx: the notebooks as a site. Outputs are those in the notebooks; plotly.js and MathJax are files of the site, nothing is fetched from a network."
import json, re, sys
from pathlib import Path

import plotly
from plotly.io import to_html

here = Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here.parent)]
sys.dont_write_bytecode = True      # a build leaves nothing beside the notebooks
import site_objects

project = "fasterbench"
copyright = "2026, fasterbench developers"
extensions = ["myst_nb", "sphinx-mathjax-offline"]
html_theme = "furo"
html_static_path = ["site.css", str(Path(plotly.__file__).parent/"package_data/plotly.min.js")]
html_css_files = ["site.css"]
nb_execution_mode = "off"
nb_code_prompt_show, nb_code_prompt_hide = "Checks of this page", "Checks of this page"
myst_enable_extensions = ["dollarmath"]
smartquotes = False
exclude_patterns = ["**.ipynb_checkpoints"]
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 90

# Which tutorials stand under another heading, and which come first. Any other notebook in `tutorials` follows.
how_to = ["gpu", "your_operator", "comparing", "in_ci", "trace_from_elsewhere", "many_ranks", "in_transformers", "in_lightning", "nsight_compute"]
concepts = ["why_levels"]
first = ["roofline_tutorial", "reading_the_chart", "training_step", "layer_profiler"]

def tutorials():
    "The tutorials in their order; a new notebook needs no entry."
    rest = sorted(p.stem for p in (here/"tutorials").glob("*.ipynb"))
    return [t for t in first if t in rest] + [t for t in rest if t not in first + how_to + concepts]

def entries(name):
    "The lines of a list of contents that stand as `@name` in a page."
    if name == "tutorials": return [f"tutorials/{t}" for t in tutorials()]
    if name == "how-to":
        measured = ["docs/measured_on_gpu"] * (here/"docs/measured_on_gpu.md").is_file()     # made by tests/benchmarks/gpu.py
        return ["docs/does_it_fit", "docs/record_a_trace", *(f"tutorials/{t}" for t in how_to if (here/f"tutorials/{t}.ipynb").is_file()), *measured]
    if name == "reference": return ["reference/public", *(f"reference/{w}" for w in (*site_objects.wings, *site_objects.features))]
    wing = name.removeprefix("wing ")
    return [f"../{wing}/{p.stem}" for p in sorted((here/wing).glob("*.ipynb"))]

def section_of(feature, doc):
    "The part of the internals that lists the notebooks of a feature."
    return f"## {feature.capitalize()}: {doc[0].lower()}{doc[1:].rstrip('.')}\n\n```{{toctree}}\n:maxdepth: 1\n\n@wing {feature}\n```\n"

def filled(text):
    "A page with its lists of contents and its reference."
    text = re.sub(r"^@features$", lambda m: "\n".join(section_of(*f) for f in site_objects.features.items()), text, flags=re.M)
    text = re.sub(r"^@objects (\w+)$", lambda m: site_objects.wing_page(m[1]), text, flags=re.M)
    text = re.sub(r"^@public$", lambda m: site_objects.public_page(), text, flags=re.M)
    return re.sub(r"^@([\w -]+)$", lambda m: "\n".join(entries(m[1])), text, flags=re.M)

figure = "application/vnd.plotly.v1+json"
internal = {*site_objects.wings, *site_objects.features, "cli"}

def reads(source, whole):
    "A code cell as a reader sees it: without directives, and on the pages of notebooks (`whole`) without its first imports."
    lines = [l for l in source.splitlines() if not re.match(r"#\|", l)]
    while whole and lines and (not lines[0].strip() or re.match(r"(import|from) \w", lines[0])):
        opened = lines.pop(0)
        while opened.count("(") > opened.count(")") and lines: opened += lines.pop(0)
    return "\n".join(lines).strip("\n")

def checks(cell):
    "Does a cell check what the page says, and show nothing?"
    return not cell["outputs"] and re.search(r"^assert ", "".join(cell["source"]), re.M)

def shown(cells, whole):
    "The cells of a page: hidden ones are gone, and so are those of which nothing is left to read."
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown": cell["source"] = filled(source)
        if cell["cell_type"] == "code":
            if re.match(r"#\|\s*(hide|default_exp)", source): continue
            cell["source"] = reads(source, whole)
            if not cell["source"] and not cell["outputs"]: continue
            if not cell["source"]: cell["metadata"]["tags"] = ["remove-input"]
            elif not whole and checks(cell): cell["metadata"]["tags"] = ["hide-input"]
        yield cell

def drawn(cells, script):
    "Figures as HTML that plotly.js draws; the first one loads it. Returns nothing: the outputs are replaced."
    count = 0
    for output in (o for c in cells for o in c.get("outputs", ()) if figure in o.get("data", {})):
        html = to_html(output["data"][figure], full_html=False, include_plotlyjs=False if count else script, div_id=f"figure-{count}",
                       config=dict(displaylogo=False, responsive=True), validate=False)
        tall = output["data"][figure].get("layout", {}).get("height") or 450       # a responsive figure takes the height of what it stands in
        output["data"], count = {"text/html": f'<div class="figure" style="height: {tall}px">{html}</div>'}, count + 1

def live(app, docname, source):
    "A page as the site has it."
    if not str(app.env.doc2path(docname)).endswith(".ipynb"):
        source[0] = filled(source[0])
        return
    nb = json.loads(source[0])
    nb["cells"] = list(shown(nb["cells"], docname.split("/")[0] in internal))
    drawn(nb["cells"], "../" * docname.count("/") + "_static/plotly.min.js")
    source[0] = json.dumps(nb)

def tidy(app):
    "What the notebooks' extension writes goes beside the doctrees, and not beside the site."
    if hasattr(app.env, "mystnb_config"): app.env.mystnb_config = app.env.mystnb_config.copy(output_folder=str(Path(app.doctreedir)/"notebooks"))

def setup(app):
    app.connect("source-read", live)
    app.connect("builder-inited", tidy, priority=900)
