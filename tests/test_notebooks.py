"Every notebook runs top to bottom in a process and a namespace of its own, as it stands."
import ast, inspect, json, os, re
from importlib import import_module

import pytest

import fasterbench, forked, style
from conftest import heavy, heavy_only, nightly, nightly_only, root
from run_notebook import code_cells, has_timed, is_timed, kind, left_out

notebooks = style.notebooks()
# Pages for readers, whose parts the other notebooks and these tests run, are for the run of everything only; those
# that take
# long run once a week.
pages = {"nbs", "tutorials", "docs"}
rare = dict(in_ci="checking/, test_check", what_the_compiler_did="compiled/", many_ranks="test_ranks, network/",
            training_step="analysis/roofline, test_training",
            will_it_fit="memory/", serving="serving/", watching="running/watch, test_watch",
            devices_not_here="predicting/",
            in_transformers="test_programs, which trains with the callback",
            why_levels="roofs/cache_simulation, probes/", comparing="comparing/, test_rows", timing="timing/",
            roofline_tutorial="analysis/, views/", five_minutes="index, cli/, views/",
            in_lightning="test_programs, which trains with the callback")

def run(path, *levels):
    levels = levels or (heavy, nightly)
    done = forked.python(f"from run_notebook import run\nrun({str(path)!r}, *{levels})", package=True)
    return done, json.loads(done.stdout.rpartition("\ncells:")[2]) if done.returncode == 0 else {}

def marks(path):
    kept = [pytest.mark.timed("cells")] * has_timed(code_cells(path), left_out(heavy, nightly))
    if path.parent.name in pages and path.stem in rare:
        return [*kept, *[pytest.mark.long] * nightly,
                nightly_only(f"a long page; its parts are tested in {rare[path.stem]}")]
    return kept + [heavy_only("pages that other notebooks test in parts")] * (path.parent.name in pages)

@pytest.mark.parametrize("path", [pytest.param(p, id=str(p.relative_to(root/"nbs")), marks=marks(p))
                                  for p in notebooks])
def test_notebook(path, record_property):
    done, counts = run(path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    for name, n in counts.items(): record_property(f"cells {name}", n)
    assert counts["executed"], "no cell was executed"
    assert sum(counts.values()) == len(code_cells(path))

def parsed(path):
    "The code of a notebook; lines for a shell or for IPython are left out."
    lines = [line for *_, source in code_cells(path) for line in source.splitlines()]
    return ast.parse("\n".join("pass" if re.match(r"[!%]", line) else line for line in lines))

def arguments_of(f):
    "The names of its arguments; nothing where it takes any, or where Python cannot say."
    try: found = inspect.signature(f).parameters.values()
    except (TypeError, ValueError): return None
    return None if any(p.kind is p.VAR_KEYWORD for p in found) else {p.name for p in found}

def wrong_uses(tree):
    """Arguments that a page gives by name to what it imports, or to a method of a class that it uses, and that are
    not there."""
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module.split(".")[0] == "fasterbench"]
    names = {a.asname or a.name: getattr(import_module(n.module), a.name) for n in imports for a in n.names}
    classes, wrong = [c for c in (*names.values(), fasterbench.RooflineAnalyzer, fasterbench.Result)
                      if isinstance(c, type)], []
    for call in (n for n in ast.walk(tree) if isinstance(n, ast.Call)):
        if isinstance(call.func, ast.Name):
            name, meant = call.func.id, [names[call.func.id]] if call.func.id in names else []
        else: name = getattr(call.func, "attr", ""); meant = [getattr(c, name) for c in classes if hasattr(c, name)]
        takes = [arguments_of(f) for f in meant if callable(f)]
        if takes and None not in takes:
            wrong += [f"{name}({k.arg}=)" for k in call.keywords if k.arg and k.arg not in set().union(*takes)]
    return wrong

@pytest.mark.parametrize("path", [pytest.param(p, id=p.stem) for p in notebooks if p.parent.name in pages])
def test_names_and_arguments_of_a_page_are_there(path): assert wrong_uses(parsed(path)) == []

def test_names_and_arguments_that_are_not_there_are_found():
    assert (wrong_uses(ast.parse("from fasterbench import RooflineAnalyzer as R\nR(m, sampel=x).profile(step=3)"))
            == ["profile(step=)", "R(sampel=)"])
    with pytest.raises(AttributeError): wrong_uses(ast.parse("from fasterbench import rooflin"))

def written(path, *cells):
    "A notebook of these cells: text in a list, code as it is."
    cells = [dict(cell_type="markdown" if isinstance(c, list) else "code", source=c, id=f"id{i}")
             for i, c in enumerate(cells)]
    path.write_text(json.dumps(dict(cells=cells)))
    return path

def test_a_failure_names_notebook_and_cell(tmp_path):
    done, _ = run(written(tmp_path/"planted.ipynb", ["text"], "x = 1", "assert x == 2, 'not two'"))
    assert (done.returncode == 1 and "planted.ipynb, cell 2 (id id2)" in done.stderr
            and "AssertionError: not two" in done.stderr and "assert 1 == 2" in done.stderr)
    done, _ = run(written(tmp_path/"syntax.ipynb", "x = 1", "x ="))
    assert done.returncode == 1 and "syntax.ipynb, cell 1 (id id1)" in done.stderr

def test_cells_are_left_out_by_their_flag(tmp_path):
    path = written(tmp_path/"flags.ipynb", "#| notest\nheavy = 1", "#| slow\nhidden = 2", "#| export\n2 + 2",
                   "#| export\n#| eval: false\nhidden = 3", "assert 'hidden' not in dir()")
    assert run(path, False)[1] == dict(executed=2, heavy=1, weekly=1, cuda=0, never=1)
    assert run(path, True)[1] == dict(executed=3, heavy=0, weekly=1, cuda=0, never=1)
    assert run(path, True, True)[0].returncode == 1                 # there it is not hidden
    assert ([kind(s) for s in ("#| cuda\nx", "#|notest\nx", "x", "#| export\nx", "# | cuda")]
            == ["cuda", "heavy", "", "", ""])

def test_a_timed_cell_is_alone(tmp_path):
    """Four notebooks at once: no cell of another one runs beside a timed cell; of other cells, each waits here
    until all four are at it."""
    def cell(i, name, work):
        return (
            f"start = time.time()\n{work}\nopen({str(tmp_path/name)!r} + '{i}', 'w').write(f'{{start}} "
            f"{{time.time()}}')")
    together = (
        f"from pathlib import Path\n(Path({str(tmp_path)!r})/f'here{{start}}').touch()\nwhile "
        f"len([*Path({str(tmp_path)!r}).glob('here*')]) < 4: time.sleep(0.01)")
    paths = [written(tmp_path/f"{i}.ipynb", "import time", cell(i, "shared", together),
                     "#| notest\n#| timed\n" + cell(i, "timed", "time.sleep(0.1)"),
                     cell(i, "again", "time.sleep(0.1)")) for i in range(4)]
    code = "import os\nfrom run_notebook import run\nrun(os.environ['NOTEBOOK'], True)"
    jobs = [os.environ | dict(NOTEBOOK=str(p), FASTERBENCH_TEST_FOLDER=str(tmp_path)) for p in paths]
    assert ([done.returncode for done in forked.processes(code, tmp_path, forked.patience_s, jobs, package=True)]
            == [0] * 4)
    spans = {f"{name}{i}": tuple(map(float, (tmp_path/f"{name}{i}").read_text().split()))
             for name in ("shared", "timed", "again") for i in range(4)}
    def beside(a, b): return spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1]
    assert not [(a, b) for a in spans for b in spans if "timed" in a and a != b and beside(a, b)]
    assert all(beside(f"shared{i}", f"shared{j}") for i in range(4) for j in range(i))
    assert ([is_timed(s) for s in ("#| timed\nx", "#| notest\n#|timed\nx", "x = 'timed'", "# timed")]
            == [True, True, False, False])

def test_notebooks_share_nothing(tmp_path):
    first, second = (written(tmp_path/"a.ipynb", "import sys, torch\nleft = sys.left = 1\ntorch.manual_seed(3)"),
                     written(tmp_path/"b.ipynb", "import sys\nassert not hasattr(sys, 'left') and 'left' not in "
                                                 "dir()"))
    assert run(first)[0].returncode == 0 and run(second)[0].returncode == 0

def test_a_crash_is_a_failure(tmp_path):
    done, counts = run(written(tmp_path/"crash.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"))
    assert done.returncode == -11 and counts == {}
