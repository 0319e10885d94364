"""The house is in order: notebooks are the source, what they make is what is here, and wings import only what
stands before them."""
import ast, filecmp, json, os, re, shutil, subprocess, sys

import pytest

import forked
import ncu_files
import style
import wings
from conftest import heavy_only, nightly_only, root

package = root/"fasterbench"
modules = sorted(wings.modules(package))
notebooks = [p for p in (root/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts]

def python(*args, cwd=root, **kwargs):
    return subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, **kwargs)

def files(folder, *kinds):
    return {str(p.relative_to(folder)) for kind in kinds for p in folder.rglob(kind) if "__pycache__" not in p.parts}

# ---- notebooks and what they make

@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    "The project as it stands, somewhere else, exported and cleaned anew."
    there = tmp_path_factory.mktemp("house")/"project"
    shutil.copytree(root, there, ignore=style.beside)
    for verb in ("export", "clean"):
        done = python("-c", f"import nbdev.cli, sys; sys.argv = ['nbdev-{verb}']; nbdev.cli.nbdev_{verb}()", cwd=there)
        assert done.returncode == 0, done.stderr
    return there

@heavy_only("exports and cleans all notebooks")
def test_export_changes_nothing(copied):
    here, there = (files(d/"fasterbench", "*.py") for d in (root, copied))
    assert here == there
    _, different, errors = filecmp.cmpfiles(package, copied/"fasterbench", sorted(here), shallow=False)
    assert not different and not errors

@heavy_only("exports and cleans all notebooks")
def test_clean_changes_nothing(copied):
    names = [str(p.relative_to(root)) for p in notebooks]
    _, different, errors = filecmp.cmpfiles(root, copied, names, shallow=False)
    assert not different and not errors

def test_every_module_has_a_notebook():
    sources = "".join("".join(c["source"]) + "\n" for p in notebooks
                      for c in json.loads(p.read_text(encoding="utf-8"))["cells"])
    exported = re.findall(r"^#\|\s*default_exp\s+([\w.]+)", sources, re.M)
    assert sorted(e.removesuffix(".__init__") for e in exported) == sorted([*modules, "__init__"])

def test_notebooks_stand_in_the_wing_of_their_module():
    for path in notebooks:
        source = "".join("".join(c["source"]) + "\n" for c in json.loads(path.read_text(encoding="utf-8"))["cells"])
        for module in re.findall(r"^#\|\s*default_exp\s+([\w.]+)", source, re.M):
            place = "core" if module == "__init__" else wings.wing(module)
            name = ("package" if module == "__init__" else "feature"
                    if module.removesuffix(".__init__") in wings.features(package)
                    else module.removesuffix(".__init__").split(".")[-1])
            assert path.parent.name == place and path.stem == name, (path, module)

def documentation_links(text): return re.findall(r"https?://\S*fasterbench\S*\.html\S*", text)

def test_every_wing_has_pages_on_the_site():
    "Wings in the contents of the internals and in the reference are the folders of the package."
    wings = {p.parent.name for p in (root/"fasterbench").glob("*/__init__.py")}
    described = {p.stem for p in (root/"nbs/reference").glob("*.md")} - {"public"}
    listed = re.findall(r"^@wing (\w+)$", (root/"nbs/docs/internals.md").read_text(encoding="utf-8"), re.M)
    # listed by what their folders say
    features = {p.parent.name for p in (root/"nbs").glob("*/feature.ipynb")}
    # the command line is described by its help
    assert sorted(listed) == sorted(wings - features) and described == wings - {"cli"}

def test_links_between_notebooks_lead_somewhere():
    found, dead = 0, []
    for path in [*(root/"nbs").rglob("*.ipynb"), *(root/"nbs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = "\n".join("".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown")
        targets = re.findall(r"\]\(([^():#\s]+\.(?:ipynb|md))[#)]", text)
        found += len(targets)
        dead += [f"{path.relative_to(root)}: {t}" for t in targets if not (path.parent/t).exists()]
    assert dead == [] and found > 100

def test_docstrings_of_modules_lead_nowhere_else():
    """nbdev writes a link into each docstring where the project has a hosted documentation; the pages it names do
    not exist."""
    docs = {m: ast.get_docstring(wings.tree(p)) or "" for m, p in wings.modules(package).items()}
    assert {m: documentation_links(d) for m, d in docs.items() if documentation_links(d)} == {}
    assert (documentation_links("Docs: https://fasterbench.github.io/fasterbench/core/units.html.md")
            and [m for m, d in docs.items() if not d] == [])

def names_in_several(parsed):
    "Functions and classes of modules that stand in another module too, with the modules."
    found = {}
    for module, tree in parsed.items():
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("__"):
                found.setdefault(node.name, set()).add(module)
    return {name: sorted(where) for name, where in found.items() if len(where) > 1}

def test_a_name_stands_in_one_module():
    "A search for a function or a class finds one; two different things are called what each is."
    assert names_in_several({m: wings.tree(p) for m, p in wings.modules(package).items()}) == {}
    twice = dict(a="def f(): ...\nclass C:\n    def g(self): ...",
                 b="def g(): ...\ndef f(): ...\ndef __getattr__(n): ...", c="def __getattr__(n): ...")
    assert names_in_several({name: ast.parse(source) for name, source in twice.items()}) == {"f": ["a", "b"]}

def test_an_operator_has_one_rule():
    """Of two rules the one that is imported later would hold, without a word; who changed the other would see no
    effect."""
    code = """
import fasterbench.work.rules as r
class Once(dict):
    def __setitem__(self, name, rule):
        if name in self: print(name, self[name].flops.__module__, rule.flops.__module__)
        super().__setitem__(name, rule)
r.rules = Once()
import fasterbench.work.flops, fasterbench.traces.engine_ops, fasterbench.traces.other_ops
r.rule("aten::mm")(len)
print(len(r.rules) > 500)"""
    done = forked.python(code, root)
    assert (done.stdout.split("\n") == ["aten::mm fasterbench.work.contractions builtins", "True",
                                        ""]), done.stdout + done.stderr[-2000:]

# ---- outputs

def outputs(path):
    "What the cells of a notebook print and show as text, as it is committed."
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for o in cell.get("outputs", ()):
            for text in (o.get("text"), o.get("data", {}).get("text/plain")):
                if text: yield "".join(text)

def doubts(text):
    "The lines that say that times or roofs are in doubt."
    return re.findall(r"^(?:.*NOT STEADY|(?:.*[:,] )?busy: (?!other processes used the CPU during)).*", text, re.M)

# Pages with such lines on purpose, and why.
doubtful = {"headline.ipynb": "shows what the lines say", "why_levels.ipynb": "the roof of L3 spreads by 22 %",
            "many_ranks.ipynb": "two ranks and the threads of gloo share two cores",
            "comparing.ipynb": "is about differences that are no larger than those of two runs"}

def test_no_page_shows_times_of_a_busy_machine():
    "A page is committed with outputs of a machine that did nothing else, so that no line says NOT STEADY or `busy:`."
    assert doubts(
        "relu  1 ms busy\nbusy: other processes used the CPU during this row.\nafter: busy: load 3\n1 ms ±12 %, NOT "
        "STEADY\n1 ms ±3 %") == [
"after: busy: load 3", "1 ms ±12 %, NOT STEADY"]
    found = {p.name: lines for p in notebooks if (lines := [d for text in outputs(p) for d in doubts(text)])}
    assert {name: lines for name, lines in found.items() if name not in doubtful} == {}
    assert set(doubtful) == set(found)                      # a reason goes with its page

def test_checks_of_a_page_are_cells_of_their_own():
    "The site folds cells that assert and show nothing; what a reader sees tells, and asserts nothing."
    for p in (p for p in notebooks if p.parent.name in ("tutorials", "docs")):
        for cell in json.loads(p.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            assert not (cell.get("outputs") and re.search(r"^assert ", source, re.M)
                        and not source.startswith("#| hide")), (p.name, cell["id"])

@heavy_only("reads every figure")
def test_every_figure_has_its_picture():
    "GitHub runs no script; a PNG of each plotly figure is in the same output."
    done = python(".ci/pictures.py", "--check")
    assert done.returncode == 0, done.stdout

# ---- wings

def test_no_import_back_up_and_no_circle():
    graph = wings.imports(package)
    features = wings.features(package)
    assert wings.backwards(graph, features) == [] and wings.circles(graph) == []
    assert sorted(graph) == modules and {wings.wing(m) for m in modules} == {*wings.order, *features}
    # the reader finds what is there
    assert "work.count" in graph["compute"] and "roofs.hardware" in graph["roofs.place"]

planted = {  # what is put into a package of three modules → (imports back up, circles)
    "nothing": ({}, [], []),
    "from a later wing": ({"core/units.py": "from ..views.table import row"}, [("core.units", "views.table")], []),
    "within a function": ({"core/units.py": "def f():\n    if 1:\n        from ..views import table"},
                          [("core.units", "views.table")], []),
    "by the full name": ({"core/units.py": "import pkg.views.table as t"}, [("core.units", "views.table")], []),
    "a public name": ({"core/units.py": "def f():\n    from pkg import compare"}, [("core.units", "views.table")], []),
    "a public name, relative": ({"core/units.py": "from .. import compare"}, [("core.units", "views.table")], []),
    "of a module at the top": ({"core/units.py": "from ..roofline import x"}, [("core.units", "roofline")], []),
    "a circle of two": ({"core/files.py": "from . import units", "core/units.py": "from .files import x"}, [],
                        [{"core.files", "core.units"}]),
    "a circle of three": ({"core/files.py": "from . import units", "core/units.py": "import pkg.core.third",
                           "core/third.py": "from pkg.core.files import x"}, [],
                          [{"core.files", "core.third", "core.units"}]),
    "a feature into the core": ({"views/table.py": "from ..traces.reader import x", "traces/reader.py": "",
                                 "traces/__init__.py": "needs, public = (), {}"}, [("views.table", "traces.reader")],
                                []),
    "a feature into another, within a function": ({
        "ncu/reports.py": "def f(): from ..traces import reader", "traces/reader.py": "from ..views import table",
        "traces/__init__.py": "needs, public = (), {}", "ncu/__init__.py": "needs, public = (), {}"},
                                                  [("ncu.reports", "traces.reader")], []),
    "a wing without a place": ({"attic/box.py": "from ..core import units"}, [("attic.box", "core.units")], []),
}

def test_planted_imports_are_found(tmp_path):
    for name, (more, back, circle) in planted.items():
        there = tmp_path/re.sub(r"\W", "_", name)/"pkg"
        plain = {"__init__.py": '_core = {"views.table": ["compare"]}', "core/units.py": "", "core/files.py": "",
                 "views/table.py": "from ..core.files import x", "roofline.py": "from .views import table"}
        for path, source in (plain | more).items():
            (there/path).parent.mkdir(parents=True, exist_ok=True)
            (there/path).write_text(source)
        graph = wings.imports(there)
        assert ((wings.backwards(graph, wings.features(there)), list(map(set, wings.circles(graph))))
                == (back, circle)), name

@nightly_only("a process for each module; the graph of imports is tested without")
def test_every_module_imports_in_a_process_of_its_own():
    "In a process that has torch and nothing of the package; all that fail are named."
    failed = {m: done.stderr for m in modules
              if (done := forked.python(
                  f"import sys; assert 'fasterbench' not in sys.modules\nimport fasterbench.{m}")).returncode}
    assert failed == {}, "".join(failed.values())

def test_public_names_stay_what_they_are():
    "Also after every module of the package has been imported: no module hides a function of its name."
    done = forked.python("""
import importlib, types, fasterbench
for name in %r: importlib.import_module(f"fasterbench.{name}")
for name in fasterbench.__all__:
    value = getattr(fasterbench, name)
    assert not isinstance(value, types.ModuleType), name
    if name in fasterbench._homes:
        assert value is getattr(importlib.import_module(fasterbench._homes[name]), name), name
from fasterbench import compare, read_ncu, rule
assert all(map(callable, (compare, read_ncu, rule))) and compare is fasterbench.compare
print(len(fasterbench.__all__))
""" % modules, root)
    assert done.returncode == 0 and int(done.stdout) > 15, done.stderr

def test_what_is_imported_by_path_stays():
    "The modules and names that programs outside import."
    done = forked.python(
        "from fasterbench.roofline import RooflineAnalyzer, HardwarePeaks, RooflinePoint, measure_peaks, "
        "roofline_analysis\n"
                         "import fasterbench.profiling, fasterbench.compute")
    assert done.returncode == 0, done.stderr

# ---- form

def test_lines_are_short():
    "120 columns, also in the code of notebooks."
    assert style.long_lines() == []

def test_methods_stand_in_their_classes(): assert style.assigned_methods() == []

# ---- what the package needs

def test_roofline_imports_without_plotly_pandas_and_nbdev():
    block = "import sys\nfor m in ('plotly', 'pandas', 'nbdev', 'IPython', 'typer', 'rich'): sys.modules[m] = None\n"
    done = forked.python(block + "import fasterbench.roofline as r, torch\n"
                  "ra = r.RooflineAnalyzer(torch.nn.Linear(4, 4), torch.ones(2, 4), r.HardwarePeaks(1e12, "
                  "1e11)).profile(steps=2)\nra.summary()\n"
                  "for view in (ra.plot, ra.to_frame):\n    try: view()\n    except ImportError as e: print(e)")
    assert done.returncode == 0, done.stderr
    assert ("the chart needs plotly: pip install plotly" in done.stdout
            and "to_frame needs pandas: pip install pandas" in done.stdout)

def test_reports_of_nsight_compute_need_no_torch(tmp_path):
    path, block = (ncu_files.saxpy(tmp_path),
                   "import sys\nfor m in ('torch', 'plotly', 'pandas', 'nbdev', 'IPython', 'typer', 'rich', "
                   "'numpy'): sys.modules[m] = None\n")
    done = python("-W", "ignore", "-c", block + f"from fasterbench import read_ncu\nread_ncu({str(path)!r}).summary()")
    assert done.returncode == 0 and "kernels.exe" in done.stdout and "80.0" in done.stdout, done.stderr

def test_readme_is_what_the_index_makes():
    done = python(".ci/readme.py", "--check")
    assert done.returncode == 0, done.stderr

@heavy_only("builds the package twice")
def test_wheel_from_the_source_distribution(tmp_path):
    "What the package needs besides modules is in both distributions."
    there = tmp_path/"src"
    shutil.copytree(root, there, ignore=lambda folder, names: style.beside(folder, names) | ({"nbs"} & {*names}))
    done = python("-c", f"import setuptools.build_meta as b; print(b.build_sdist({str(tmp_path)!r}))", cwd=there)
    assert done.returncode == 0, done.stderr
    sdist = next(tmp_path.glob("*.tar.gz"))
    (shutil.unpack_archive(sdist, tmp_path/"unpacked", filter="data") if sys.version_info >= (3, 12)
     else shutil.unpack_archive(sdist, tmp_path/"unpacked"))
    inside = next((tmp_path/"unpacked").iterdir())
    done = python("-c", f"import setuptools.build_meta as b; print(b.build_wheel({str(tmp_path)!r}))", cwd=inside)
    assert done.returncode == 0, done.stderr
    import zipfile
    wheel = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    names = wheel.namelist()
    assert {f"fasterbench/{name}" for name in files(package, "*.py", "assets/*") - {"_modidx.py"}} <= set(names)
    assert not [n for n in names if not n.startswith("fasterbench") or "_modidx" in n]
    assert {n.rpartition("/")[2] for n in names if "/licenses/" in n} == {"LICENSE", "NOTICE"}
    assert not list(inside.glob("tests")) and (inside/"SECURITY.md").exists() and (inside/"CITATION.cff").exists()
    metadata = wheel.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert "Requires-Dist: torch" in metadata and "Provides-Extra: dev" in metadata
    assert ((pictures := re.findall(r"\]\(([^)]*\.png)\)", metadata))
            and all(p.startswith("https://") for p in pictures))
