"Warnings of the package: kinds that can be filtered, at the line of the user."
import ast, re

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
    assert (re.findall(r"own\.py:(\d+): (\w+): (\S+ \S+)", said)
            == [("4", "ProvisionalWarning", "1 of"), ("4", "UnknownWarning", "no FLOP")]), said
    assert "/fasterbench/" not in said, said

def test_filters_know_the_kinds(tmp_path):
    silent = script.replace("def profile", "warnings.simplefilter('ignore', fasterbench.UnknownWarning)\ndef profile",
                            1)
    assert re.findall(r": (\w+Warning):", run(tmp_path, silent).stderr) == ["ProvisionalWarning"]
    done = run(tmp_path, silent.replace("'ignore', fasterbench.UnknownWarning",
                                        "'error', fasterbench.FasterbenchWarning"))
    assert (done.returncode == 1 and "ProvisionalWarning: 1 of 1 rows are faster than their roof"
            in done.stderr.splitlines()[-1])

def test_every_warning_of_the_package_has_a_kind():
    "Nothing but the one helper warns: each call of `warn` names a kind of FasterbenchWarning."
    kinds = {n for n in fasterbench.__all__ if n.endswith("Warning")}
    assert all(issubclass(getattr(fasterbench, n), fasterbench.FasterbenchWarning) for n in kinds) and len(kinds) == 5
    calls = []
    for path in (root/"fasterbench").rglob("*.py"):
        for n in ast.walk(tree(path)):
            if isinstance(n, ast.ImportFrom) and n.module == "warnings" and not n.level:
                assert "warn" not in {a.name for a in n.names}, path
            if isinstance(n, ast.Call) and ast.unparse(n.func) == "warnings.warn":
                raise AssertionError(f"{path}:{n.lineno}")
            if isinstance(n, ast.Call) and ast.unparse(n.func) == "warn":
                calls.append((path.name, n.lineno, ast.unparse(n.args[1])))
    assert len(calls) >= 10 and {kind for *_, kind in calls} <= kinds | {"kind"}, calls
