"Warnings of the package: kinds that can be filtered, at the line of the user."
import ast, importlib, inspect, json, re, warnings

import pytest

import fasterbench, forked
from conftest import root
from wings import tree

# line 4 profiles under roofs that are far too low, and then a model with an operator that has no rule
script = """import fasterbench, torch, warnings
def profile(model, roofs):
    from contextlib import nullcontext
    with nullcontext(): return fasterbench.RooflineAnalyzer(model, torch.ones(4, 4), roofs).profile("cpu", 0, 2)
low = fasterbench.HardwarePeaks(1e3, 1e3)
high = fasterbench.HardwarePeaks(1e15, 1e15)
@torch.library.custom_op("my::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor: return x + 1
class Unknown(torch.nn.Module):
    def forward(self, x): return torch.ops.my.op(x)
profile(torch.nn.Linear(4, 4), low)
profile(Unknown(), high)
"""

def run(tmp_path, text):
    (tmp_path/"own.py").write_text(text)
    return forked.python("import runpy\nrunpy.run_path('own.py', run_name='__main__')", cwd=tmp_path, package=True)

def test_a_warning_shows_the_line_of_the_user(tmp_path):
    "The line that calls `profile`, in the file of the user, through a context manager and a function of their own."
    said = run(tmp_path, script).stderr
    assert re.findall(r"own\.py:(\d+): (\w+): (\S+ \S+)", said) == [("4", "ProvisionalWarning", "1 of"), ("4", "UnknownWarning", "no FLOP")], said
    assert "/fasterbench/" not in said, said

def test_filters_know_the_kinds(tmp_path):
    silent = script.replace("def profile", "warnings.simplefilter('ignore', fasterbench.UnknownWarning)\ndef profile", 1)
    assert re.findall(r": (\w+Warning):", run(tmp_path, silent).stderr) == ["ProvisionalWarning"]
    done = run(tmp_path, silent.replace("'ignore', fasterbench.UnknownWarning", "'error', fasterbench.FasterbenchWarning"))
    assert done.returncode == 1 and "ProvisionalWarning: 1 of 1 rows are faster than their roof" in done.stderr.splitlines()[-1]

def test_every_warning_of_the_package_has_a_kind():
    "Nothing but the one helper warns: each call of `warn` names a kind of FasterbenchWarning."
    kinds = {n for n in fasterbench.__all__ if n.endswith("Warning")}
    assert all(issubclass(getattr(fasterbench, n), fasterbench.FasterbenchWarning) for n in kinds) and len(kinds) == 6
    calls = []
    for path in (root/"fasterbench").rglob("*.py"):
        for n in ast.walk(tree(path)):
            if isinstance(n, ast.ImportFrom) and n.module == "warnings" and not n.level: assert "warn" not in {a.name for a in n.names}, path
            if isinstance(n, ast.Call) and ast.unparse(n.func) == "warnings.warn": raise AssertionError(f"{path}:{n.lineno}")
            if isinstance(n, ast.Call) and ast.unparse(n.func) == "warn": calls.append((path.name, n.lineno, ast.unparse(n.args[1])))
    assert len(calls) >= 10 and {kind for *_, kind in calls} <= kinds | {"kind"}, calls

# ---- old names

# What was public in version 0.1.0 as it was first tagged: "Class" → attributes, "name()" and "Class.method" → parameters.
surface = json.loads((root/"tests/data/public_names.json").read_text())
# Made by functions of the package alone, not by users: their fields may be others
made = {"Result()", "TraceResult()", "Comparison()"}

def found(name):
    "The public thing that `name` is now; what its old name warns of is said by the test of warnings."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fasterbench.FasterbenchDeprecationWarning)
        thing, *path = fasterbench, *name.removesuffix("()").split(".")
        if path[0] in ("profiling", "compute"): thing = importlib.import_module(f"fasterbench.{path.pop(0)}")
        for part in path: thing = getattr(thing, part)
        return thing

def attributes(cls): return {*dir(cls), *getattr(cls, "__dataclass_fields__", ()), *inspect.get_annotations(cls)}

def parameters(thing):
    "Names of the parameters, old ones included."
    return {*inspect.signature(thing).parameters, *getattr(thing, "old_names", ())}

@pytest.mark.parametrize("name", sorted(surface.keys() - made))
def test_public_names_of_the_last_version_are_there(name):
    thing = found(name)
    there = attributes(thing) if inspect.isclass(thing) and not name.endswith("()") else parameters(thing)
    assert set(surface[name]) <= there

def test_what_users_make_by_position_stays_in_order():
    for name in ("HardwarePeaks()", "RooflinePoint()", "MemoryLevel()", "Ceiling()", "NetworkRoof()", "NetworkPeaks()"):
        now = list(inspect.signature(found(name)).parameters)
        assert now[:len(surface[name])] == surface[name], name

def test_old_names_warn_and_are_in_the_list_of_changes(tmp_path):
    "Each old name gives what the new one gives, once with a warning that names it."
    from fasterbench.traces.trace_read import read_trace
    from fasterbench.comparing.compare import Series
    result = fasterbench.Result([], fasterbench.HardwarePeaks(1e12, 1e11))
    series = Series([result], ["a"], [], [])
    changes = " ".join((root/"CHANGELOG.md").read_text().split())
    for old, same in (("Account", lambda: fasterbench.Account is fasterbench.Breakdown),
                      ("accounts", lambda: result.accounts is result.breakdowns), ("doubts", lambda: series.doubts == series.caveats)):
        with pytest.warns(fasterbench.FasterbenchDeprecationWarning, match=old): assert same()
        assert f"`{old}`" in changes or f".{old}`" in changes, old
    with pytest.warns(fasterbench.FasterbenchDeprecationWarning, match=r"read_trace\(device=…\) is now read_trace\(on=…\)"), pytest.raises(FileNotFoundError):
        read_trace(tmp_path/"none.json", device="NVIDIA H100 80GB HBM3")
    assert "`read_trace(device=…)`" in changes
