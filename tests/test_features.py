"""Each feature is taken out of a copy of the package by deleting its folder; everything else imports, counts,
profiles and prints."""
import ast, json, shutil

import pytest

import forked
import wings
from conftest import heavy_only, nightly_only, root

package = root/"fasterbench"
public = wings.homes(package)
features = wings.features(package)

def verbs_of(feature):
    "The verbs of a feature, by the names of its files."
    return [p.stem.removesuffix("_verb") for p in (package/feature).glob("*_verb.py")]

used = """
import contextlib, importlib, io, json, warnings
import fasterbench, torch
from torch import nn
warnings.simplefilter("ignore")
modules, gone = %r
assert fasterbench.__file__.startswith(%r), fasterbench.__file__
for module in modules: importlib.import_module(f"fasterbench.{module}")
for name in fasterbench.__all__: getattr(fasterbench, name)
for name in gone:
    assert name not in fasterbench.__all__ and name not in dir(fasterbench)
    try: getattr(fasterbench, name)
    except AttributeError as error: assert f"has no attribute {name!r}" in str(error), error
    else: raise AssertionError(name)
from fasterbench import HardwarePeaks, RooflineAnalyzer, count_work
model, x = nn.Sequential(nn.Linear(32, 32), nn.ReLU()), torch.randn(4, 32)
flops = count_work(model, x).flops
result = RooflineAnalyzer(model, x, peaks=HardwarePeaks(1e12, 1e11)).profile(steps=3).result
text, page = result.text(), result.render("page")
both = "" if "compare" in gone else fasterbench.compare(result, result).text()
expected = 1.0 if "predict" in gone else fasterbench.predict(model, x, "NVIDIA H100 80GB HBM3").program.time_s
from fasterbench.cli.main import main
with contextlib.redirect_stdout(io.StringIO()) as out:
    try: main(["--help"])
    except SystemExit as end: assert not end.code
print(json.dumps(dict(flops=flops, text=text, page=len(page), both=both, expected=expected, help=out.getvalue())))
"""

def taken_out(folder, feature):
    "A copy of the package without a feature."
    # compiled modules too, but for those that are being written
    shutil.copytree(package, folder/"fasterbench", ignore=shutil.ignore_patterns("*.pyc.*"))
    if feature: shutil.rmtree(folder/"fasterbench"/feature)
    return folder

def without(feature): return {feature, *(f for f, said in features.items() if feature in said["needs"])}

def kept(modules, feature): return sorted(m for m in modules if wings.wing(m) not in without(feature))

def run_in(folder, code):
    "A process that has torch, and finds the package in `folder` alone."
    return forked.python(f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}", cwd=folder)

rest = nightly_only("the graph of imports, which test_house reads, says the same in less time")

@pytest.mark.parametrize("feature", ["", *(pytest.param(f, marks=heavy_only("another feature")
                                                        if f in ("compiled", "traces") else rest)
                                           for f in sorted(features))])
def test_everything_else_works_without(tmp_path, feature):
    modules = kept(wings.modules(package), feature)
    gone = [name for name, home in public.items() if feature and wings.wing(home) in without(feature)]
    done = run_in(taken_out(tmp_path, feature), used % ((modules, gone), str(tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["flops"] == 4 * (32 * (2 * 32) + 32) + 4 * 32          # products, biases, comparisons
    assert all(t in found["text"] for t in ("Linear", "ReLU"))
    assert "compare" in gone or all(t in found["both"] for t in ("Linear", "ReLU", "after"))
    assert found["page"] > 1e5 and found["expected"] > 0
    listed = [line.split()[0] for line in found["help"].partition("Commands:")[2].partition("\n\n")[0].splitlines()
              if line.strip()]
    left = [v for f in features if f not in without(feature) for v in verbs_of(f)]
    assert sorted(listed) == sorted(["roofline", "peaks", "report", *left])

@heavy_only("another feature")
def test_without_compiled_a_compiled_model_is_one_row(tmp_path):
    "Profile, prediction and trace say why, and go on or refuse in one sentence."
    done = run_in(taken_out(tmp_path, "compiled"), """
import torch, warnings
from functools import partial
from torch import nn
warnings.simplefilter("ignore")
from fasterbench import HardwarePeaks, RooflineAnalyzer, predict, read_trace
model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.randn(4, 8)
said = "the folder fasterbench/compiled is not there"
compiled = torch.compile(model, backend="eager")
result = RooflineAnalyzer(compiled, x, peaks=HardwarePeaks(1e12, 1e11)).profile(steps=2).result
assert f"compiled code is one row: {said}" in result.notes, result.notes
assert any(said in n for n in predict(model, x, "NVIDIA H100 80GB HBM3", compiled=True).notes)
open("one.json", "w").write('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 1, "tid": 1, '
                            '"ts": 0, "dur": 5}]}')
for call in (partial(predict, model, x, "NVIDIA H100 80GB HBM3", compiled=True, kernels="kernels.json"),
             partial(read_trace, "one.json", on="NVIDIA H100 80GB HBM3", kernels="kernels.json")):
    try: call()
    except ValueError as error: assert said in str(error), error
    else: raise AssertionError
print("ok")
""")
    assert done.returncode == 0 and done.stdout.endswith("ok\n"), done.stdout + done.stderr

def test_a_feature_that_lacks_what_it_needs_says_so(tmp_path):
    done = run_in(taken_out(tmp_path, "predicting"),
                  "from fasterbench.core.features import absent; print(absent('serving'))")
    assert done.stdout == "the folder fasterbench/predicting is not there\n", done.stderr

def test_features_are_what_their_folders_say():
    from fasterbench.core.features import own_features
    assert (sorted(own_features()) == sorted(features) and len(features) >= 13
            and not features.keys() & set(wings.order))

plug_in = {
    "fasterbench_hello/__init__.py": '"A plug-in."\nneeds, public = (), dict(greeting=["greeting"])\n',
    "fasterbench_hello/greeting.py": 'def greeting(name): return f"hello, {name}"\n',
    "fasterbench_hello/hello_verb.py": """
from fasterbench.cli.app import app
from .greeting import greeting
@app.command()
def hello(name:str):
    "Say hello."
    print(greeting(name))
""",
    "fasterbench_broken/__init__.py": "import a_library_that_is_not_installed",
    "hello-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: hello\nVersion: 1\n",
    "hello-1.dist-info/entry_points.txt": "[fasterbench]\nhello = fasterbench_hello\nbroken = fasterbench_broken\n"}

def test_a_plug_in_adds_a_verb_and_a_name(tmp_path):
    "Another distribution, of which the package knows nothing; one that cannot be imported is named."
    for name, text in plug_in.items():
        (tmp_path/name).parent.mkdir(exist_ok=True)
        (tmp_path/name).write_text(text)
    done = run_in(tmp_path, f"""
sys.path.insert(1, {str(root)!r})
import fasterbench
from fasterbench.cli.main import main
assert "greeting" not in fasterbench.__all__ and fasterbench.greeting("you") == "hello, you"
for args in (["hello", "world"], ["--help"]):
    try: main(args)
    except SystemExit as end: assert not end.code
""")
    assert (done.returncode == 0 and done.stdout.startswith("hello, world\n")
            and "Say hello." in done.stdout), done.stderr
    assert "broken of fasterbench_broken is no feature: ModuleNotFoundError" in done.stderr

def test_a_new_verb_needs_no_list(tmp_path):
    "A file in a feature's folder is enough; one that cannot be imported is named, and the other verbs work."
    there = taken_out(tmp_path, None)/"fasterbench/counting"
    (there/"hello_verb.py").write_text('from ..cli.app import app\n@app.command()\ndef hello():\n    "Say hello."\n')
    (there/"broken_verb.py").write_text("import a_library_that_is_not_installed")
    done = run_in(tmp_path, "from fasterbench.cli.main import main\nmain(['--help'])")
    assert done.returncode == 0 and "Say hello." in done.stdout and "roofline" in done.stdout, done.stderr
    assert "fasterbench.counting.broken_verb is no verb: ModuleNotFoundError" in done.stderr

def test_the_core_names_no_feature():
    "Also not as text that is imported later."
    core = {m: wings.tree(p) for m, p in wings.modules(package).items() if wings.wing(m) in wings.order}
    texts = {(m, n.value) for m, t in core.items() for n in ast.walk(t) if isinstance(n, ast.Constant)
             and isinstance(n.value, str)}
    assert {(m, t) for m, t in texts if any(f"fasterbench.{f}." in t for f in features)} == set()
