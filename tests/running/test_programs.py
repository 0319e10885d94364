"""Programs that know nothing of this library, with and without it: what they print and learn is the same, bit for
bit, and each has its report. They run with FASTERBENCH_TESTS=all."""
import importlib.util, json, os, signal, subprocess, sys

import pytest

from conftest import heavy_only, nightly_only, root
from fasterbench.roofline import HardwarePeaks
from forked import command_line, patience_s, python

programs = root/"tests"/"programs"
environment = (os.environ | dict(PYTHONPATH=os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
                                 OMP_NUM_THREADS="1",
                                 TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1"))

cases = dict(accumulation=["60", "2"], adversarial=["60"], reference=["16"], trainer=["24", "out"],
             lightning_loop=["40", "out"],
             accelerate_loop=["50"])
needs = dict(reference="torchvision", trainer="accelerate", lightning_loop="lightning", accelerate_loop="accelerate")
models = dict(accumulation=["Net"], adversarial=["Discriminator", "Generator", "Linear"],
              reference=["AveragedModel", "MobileNetV3"],
              trainer=["GPT2LMHeadModel"], lightning_loop=["Classifier"], accelerate_loop=["Sequential"])
losses = dict(accumulation=60, adversarial=120, reference=32, trainer=24, lightning_loop=160, accelerate_loop=50)

def plain(name, args, cwd, **env):
    "The program as `python` runs it, in a process that has torch loaded."
    code = (f"import runpy, sys; sys.argv[:] = {[str(programs/name) + '.py', *args]!r}; sys.path.insert(0, "
            f"{str(programs)!r}); "
            f"runpy.run_path(sys.argv[0], run_name='__main__')")
    return python(code, cwd, env=environment | env)

def run_args(cwd, *more):
    HardwarePeaks(1e12, 1e11).to_json(cwd/"peaks.json")
    return ["run", "--peaks", "peaks.json", "--every", "20", "--active", "2", "--json", "found.json", *more]

def under_run(name, args, cwd):
    "The same under `fasterbench run`."
    return python(command_line(*run_args(cwd, str(programs/name) + ".py", *args)), cwd, env=environment)

def as_process(command, **how):
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=patience_s, **how)

def check_result(text):
    "A result has rows with work and times, forward and backward, and at most one row that no operator explains."
    found = json.loads(text)
    assert found["schema"] == "fasterbench.result" and found["points"]
    assert any(p["flops"] for p in found["points"]) and all(p["time_s"] >= 0 for p in found["points"])
    return found

@heavy_only("three runs of a program, or four")
@pytest.mark.parametrize("name", [pytest.param(n, marks=nightly_only("another program"))
                                  if n not in ("adversarial", "accumulation") else n for n in cases])
def test_program(name, tmp_path):
    if name in needs and importlib.util.find_spec(needs[name]) is None: pytest.skip(f"{needs[name]} is not installed")
    folders = [tmp_path/n for n in ("plain", "watch", "run")]
    for f in folders: f.mkdir()
    as_it_is = plain(name, cases[name], folders[0])
    assert as_it_is.returncode == 0, as_it_is.stderr
    assert as_it_is.stdout.count("0x") >= losses[name], "a curve of losses"
    with_watch = plain(name, cases[name], folders[1], WATCH=str(folders[1]))
    assert (with_watch.returncode, with_watch.stdout) == (0, as_it_is.stdout), with_watch.stderr
    check_result((folders[1]/"0.json").read_text())
    assert len((folders[1]/"0.jsonl").read_text().splitlines()) >= 1
    with_run = under_run(name, cases[name], folders[2])
    assert (with_run.returncode, with_run.stdout) == (0, as_it_is.stdout), with_run.stderr
    reports = sorted(folders[2].glob(f"{name}*.html"))
    results = [check_result(p.read_text()) for p in folders[2].glob("found*.json")]
    assert sorted(r["model"] for r in results) == models[name], with_run.stderr
    assert len(reports) == len(results) and f"wrote {reports[0].name}" in with_run.stderr
    if name in updates: check_callback(name, as_it_is, folders[0])

# calls of the model in one update, without the evaluations
updates = dict(trainer=2, lightning_loop=1)

def check_callback(name, as_it_is, folder):
    "A program whose trainer has the callback prints and learns what it does without; samples are numbered by updates."
    with_callback = plain(name, cases[name], folder, CALLBACK=str(folder))
    assert (with_callback.returncode, with_callback.stdout) == (0, as_it_is.stdout), with_callback.stderr
    phases = {p["phase"] for p in check_result((folder/"0.json").read_text())["points"]}
    assert {"forward", "backward", "update"} <= phases
    records = [json.loads(line) for line in (folder/"0.jsonl").read_text().splitlines()]
    sent = json.loads((folder/"sent.json").read_text())
    assert (len(sent) == len(records) >= 2
            and all(0 < step <= record["step"] / updates[name] + 8 for (step, _), record in zip(sent, records)))
    assert [m["roofline/mfu"] for _, m in sent] == [r["mfu"] for r in records]

@nightly_only("three processes")
def test_error(tmp_path):
    "A program that raises: its output, traceback and exit code are its own, and there is a report."
    script = str(programs/"broken.py")
    as_it_is = as_process([sys.executable, script, "40", "0"], cwd=tmp_path)
    with_run = as_process([sys.executable, "-m", "fasterbench", *run_args(tmp_path, script, "40", "0")], cwd=tmp_path)
    assert (as_it_is.returncode == with_run.returncode == 1 and as_it_is.stdout == with_run.stdout
            and as_it_is.stdout.count("0x") == 39)
    traceback = with_run.stderr[with_run.stderr.index("Traceback"):]
    assert (traceback == as_it_is.stderr and "ValueError: no more" in traceback
            and "fasterbench" not in traceback.replace(str(root), ""))
    assert (check_result((tmp_path/"found.json").read_text())["model"] == "Sequential"
            and (tmp_path/"broken.html").exists())
    with_watch = plain("broken", ["40", "0"], tmp_path, WATCH=str(tmp_path))
    assert (with_watch.returncode == 1 and with_watch.stdout == as_it_is.stdout
            and with_watch.stderr.endswith("ValueError: no more\n"))
    check_result((tmp_path/"0.json").read_text())

def interrupted(command, cwd, **env):
    "Lines, exit code and last line of a program that gets Ctrl-C after 60 lines, while it sleeps."
    # a background process ignores Ctrl-C
    def restored(): return signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen([*command, "0", "0.05"], cwd=cwd, env=environment | env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE,
                          text=True, preexec_fn=restored) as process:
        lines = [process.stdout.readline() for _ in range(60)]
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=patience_s)[1]
    return lines, process.returncode, err.rstrip().rpartition("\n")[2]

@heavy_only("a process that imports torch")
def test_an_interrupt_of_its_own(tmp_path):
    "A script that raises `KeyboardInterrupt` after a sample: the process ends by the signal, as under `python`."
    (tmp_path/"own.py").write_text(
        "import torch\nm = torch.nn.Linear(8, 8)\nfor i in range(50): m(torch.ones(2, 8))\nraise KeyboardInterrupt\n")
    done = as_process([sys.executable, "-m", "fasterbench", *run_args(tmp_path, "own.py")], cwd=tmp_path)
    assert done.returncode == -signal.SIGINT and done.stderr.endswith("\nKeyboardInterrupt\n"), done.stderr
    check_result((tmp_path/"found.json").read_text())

@nightly_only("three processes, and Ctrl-C to each")
def test_interrupt(tmp_path):
    "Ctrl-C: the process ends as it does without, and what was found so far is there."
    script, under = str(programs/"broken.py"), [sys.executable, "-m", "fasterbench"]
    as_it_is = interrupted([sys.executable, script], tmp_path)
    lines, code, last = as_it_is
    assert last == "KeyboardInterrupt" and "0x" in lines[59]
    # 1 where code that runs at exit lets Python forget the signal: torch.optim imports such code
    assert code in (1, -signal.SIGINT)
    assert interrupted([sys.executable, script], tmp_path, WATCH=str(tmp_path)) == as_it_is
    assert interrupted([*under, *run_args(tmp_path, script)], tmp_path) == (lines, -signal.SIGINT, last)
    for name in ("0.json", "found.json"): check_result((tmp_path/name).read_text())

script = '''
import os, sys, warnings, multiprocessing
assert "torch" not in sys.modules
os.environ["OMP_NUM_THREADS"] = "1"
import torch, pickle
print(__name__, __file__, __spec__ and __spec__.name, __package__, sys.argv, sys.path[0], torch.get_num_threads())
class Mine: pass
print(pickle.loads(pickle.dumps(Mine())).__class__.__module__, sys.modules["__main__"].__file__,
      torch.__spec__.loader.__class__.__name__)
warnings.warn("as always")
def child():
    print("child", torch.nn.Linear(1, 1)(torch.ones(1)).shape, hasattr(torch.nn.Module.__call__, "__wrapped__"),
          flush=True)
if __name__ == "__main__":
    for kind in ("fork", "spawn"):
        process = multiprocessing.get_context(kind).Process(target=child)
        process.start(); process.join()
    if os.fork() == 0: sys.exit(4)
    os.wait()
    sys.exit("the end" if "-x" in sys.argv else 3)
'''

@heavy_only("two processes that import torch, and two children of each")
@pytest.mark.parametrize("words", ["pack/script.py --every 7 -x",
                                   *(pytest.param(w, marks=nightly_only("another command line"))
                                    for w in ("pack/script.py", "-m pack.script --lr 0.1", "-m pack"))])
def test_as_python(words, tmp_path):
    "Names, arguments, paths, exit codes and warnings are those of `python`; nothing is printed before the end."
    (tmp_path/"pack").mkdir()
    for name, text in {"__main__": "from pack import script\n", "__init__": "", "script": script}.items():
        (tmp_path/"pack"/f"{name}.py").write_text(text)
    env = {k: v for k, v in environment.items() if k != "OMP_NUM_THREADS"}
    a, b = (subprocess.run([sys.executable, *front, *words.split()], capture_output=True, text=True, cwd=tmp_path,
                           env=env, timeout=patience_s)
            for front in ([], ["-m", "fasterbench", "run"]))
    assert (a.returncode, a.stdout) == (b.returncode, b.stdout), b.stderr
    said = [l for l in b.stderr.splitlines(True) if not l.startswith("fasterbench: ")]
    assert "".join(said) == a.stderr and "before it called a module with parameters" in b.stderr, (a.stderr, b.stderr)

few = "too few for a sample, which begins after 4 and takes 5 steps of one call or more"
short = dict(
    traced=("s = torch.jit.trace(net, x); torch.export.export(net, (x,)); torch.fx.symbolic_trace(net); "
            "print(torch.equal(s(x), net(x)))",
            ["Linear: called 2 times, " + few]),          # one is of the check that torch.jit.trace makes
    traced_later=("train(12); s = torch.jit.trace(net, x, check_trace=False); print(torch.equal(s(x), net(x)))",
                  ["Linear: 13 calls, 1 sample"]),
    traced_within=(
        "train(6); s = torch.jit.trace(net, x, check_trace=False); train(7); print(torch.equal(s(x), s(x)))",
        ["Linear: 13 calls, 1 sample"]),
    compiled=("step = torch.compile(lambda x: net(x).sum(), backend='eager')\nfor i in range(9): "
              "step(x).backward()\nprint(True)",
              ["s.py called no module with parameters, unless inside a compiled function: calls there are not seen"]),
    once=("net(x); print(True)", ["Linear: called 1 time, " + few]),
    enough=("train(9); print(True)", ["Linear: 9 calls, 1 sample"]),
    too_few=("train(8); print(True)", [
        "Linear: called 8 times; a sample began at call 5 and did not end: it had 3 of 4 steps"]),
    exits=("train(9); print(True); sys.exit()", ["Linear: 9 calls, 1 sample"]),
    another=("train(7); net = nn.Linear(4, 4); train(12); print(True)",
             ["Linear: called 7 times; a sample began at call 5 and did not end: it had 1 of 4 steps",
              "Linear-2: called 12 times and not sampled: a sample of another model was under way"]),
    transformed=(
        "for i in range(3): torch.func.grad(lambda w: torch.func.functional_call(net, dict(weight=w), "
        "(x,)).sum())(net.weight.detach())\n"
                 "train(9); print(True)", ["Linear: 12 calls, 1 sample"]),
    closure=("o = torch.optim.Adam(net.parameters())\ndef c():\n o.zero_grad(); l = net(x).sum(); l.backward(); "
             "return l\n"
             "for i in range(12): o.step(c)\nprint(True)", ["Linear: 12 calls, 1 sample", "Adam"]))

@pytest.mark.parametrize("name", [n if n in ("traced_within", "another", "closure")
                                  else pytest.param(n, marks=heavy_only("more short programs")) for n in short])
def test_what_is_said(name, tmp_path):
    "Short programs run as they do without, and what is said of each model is true."
    text, said = short[name]
    (tmp_path/"s.py").write_text("""import sys, torch
from torch import nn
net, x = nn.Linear(4, 4), torch.randn(2, 4)
def train(n):
    o = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(n): net(x).sum().backward(); o.step(); o.zero_grad()
""" + text)
    args = run_args(tmp_path, "--no-html", "s.py")
    args[args.index("--active") + 1] = "1"
    done = python(command_line(*args), tmp_path, env=environment)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert all(line in done.stderr for line in said), done.stderr

def test_what_cannot_run(tmp_path):
    "A wrong call, a script that is none, and one that knows nothing of PyTorch."
    def run(*words): return as_process([sys.executable, "-m", "fasterbench", "run", *words], cwd=tmp_path)
    (tmp_path/"syntax.py").write_text("print(1\n")
    (tmp_path/"plain.py").write_text("print(1)\n")
    assert run("absent.py").returncode == 2 and run("--json", "-", "plain.py").returncode == 2
    a, b = as_process([sys.executable, "syntax.py"], cwd=tmp_path), run("syntax.py")
    assert a.returncode == b.returncode == 1 and b.stderr.endswith(a.stderr)
    done = run("plain.py")
    assert (done.returncode, done.stdout) == (0, "1\n") and "did not import torch" in done.stderr
