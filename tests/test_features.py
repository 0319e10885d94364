"Each feature is taken out of a copy of the package by deleting its folder; everything else imports, counts, profiles and prints."
import ast, json, shutil

import pytest

import forked
import wings
from conftest import heavy_only, nightly_only, root

package = root/"fasterbench"
public = wings.homes(package)
verbs = dict(compiled=[], predicting=["predict"], serving=["serve"], comparing=["compare"], counting=["count"], checking=["check"], running=["run"], ncu=["ncu"], traces=["trace"], memory=[], training=["mfu"], network=[], profiling=[])

used = """
import contextlib, importlib, io, json, warnings
import fasterbench, torch
from torch import nn
warnings.simplefilter("ignore")
modules, gone = %r
assert fasterbench.__file__.startswith(%r), fasterbench.__file__
for module in modules: importlib.import_module(f"fasterbench.{module}")
for name in fasterbench.__all__: getattr(fasterbench, name)
said = {}
for name in gone:
    assert name not in fasterbench.__all__ and name not in dir(fasterbench)
    try: getattr(fasterbench, name)
    except AttributeError as error: said[name] = str(error)
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
print(json.dumps(dict(flops=flops, text=text, page=len(page), both=both, expected=expected, help=out.getvalue(), said=said)))
"""

def taken_out(folder, feature):
    "A copy of the package without a feature."
    shutil.copytree(package, folder/"fasterbench", ignore=shutil.ignore_patterns("*.pyc.*"))      # compiled modules too, but for those that are being written
    if feature: shutil.rmtree(folder/"fasterbench"/feature)
    return folder

def without(feature): return {feature, *(f for f, needed in wings.stands_on.items() if needed == feature)}

def kept(modules, feature): return sorted(m for m in modules if wings.wing(m) not in without(feature))

def run_in(folder, code):
    "A process that has torch, and finds the package in `folder` alone."
    return forked.python(f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}", cwd=folder)

rest = nightly_only("the graph of imports, which test_house reads, says the same in less time")

@pytest.mark.parametrize("feature", ["", *(pytest.param(f, marks=heavy_only("another feature") if f in ("compiled", "traces") else rest) for f in wings.features)])
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
    listed = [line.split()[0] for line in found["help"].partition("Commands:")[2].partition("\n\n")[0].splitlines() if line.strip()]
    left = [v for f, them in verbs.items() if f not in without(feature) for v in them]
    assert sorted(listed) == sorted(["roofline", "peaks", "report", *left])
    assert found["said"] == {name: f"module 'fasterbench' has no attribute {name!r}: the folder fasterbench/{feature} is not there" for name in gone}

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
result = RooflineAnalyzer(torch.compile(model, backend="eager"), x, peaks=HardwarePeaks(1e12, 1e11)).profile(steps=2).result
assert f"compiled code is one row: {said}" in result.notes, result.notes
assert any(said in n for n in predict(model, x, "NVIDIA H100 80GB HBM3", compiled=True).notes)
(open("one.json", "w")).write('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 1, "tid": 1, "ts": 0, "dur": 5}]}')
for call in (partial(predict, model, x, "NVIDIA H100 80GB HBM3", compiled=True, kernels="kernels.json"),
             partial(read_trace, "one.json", on="NVIDIA H100 80GB HBM3", kernels="kernels.json")):
    try: call()
    except ValueError as error: assert said in str(error), error
    else: raise AssertionError
print("ok")
""")
    assert done.returncode == 0 and done.stdout.endswith("ok\n"), done.stdout + done.stderr

def test_the_list_of_features_is_that_of_the_package():
    from fasterbench.core.features import features, verb_modules
    assert sorted(features) == sorted(wings.features) == sorted(verbs) and not (package/"interop").exists()
    assert sorted(m.split(".")[1] for m in verb_modules()) == sorted(f for f, them in verbs.items() if them)

def test_the_core_names_no_feature():
    "Also not as text that is imported later: the list of public names and that of features are the only doors."
    doors = {"core.features", "__init__"}
    texts = {m: [n.value for n in ast.walk(ast.parse(p.read_text(encoding="utf-8"))) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
             for m, p in wings.modules(package).items() if wings.wing(m) in wings.order and m not in doors}
    assert {(m, t) for m, them in texts.items() for t in them for f in wings.features if f"fasterbench.{f}." in t} == set()
