"""Several ranks profile one model together: DDP, FSDP2 and tensor parallel over gloo, the command line under
torchrun, and ranks that are killed, that raise, and that hang."""
import json, os, signal, subprocess, sys, textwrap, time
from pathlib import Path

import pytest
from filelock import FileLock

from conftest import folder as test_folder, heavy, heavy_only, in_line, nightly_only, root
from forked import command_line, patience_s, python, ranks

names = "ddp fsdp tensor forward"

setup = '''
import os, signal, sys, time, warnings, datetime, json, torch
import torch.distributed as dist
from torch import nn
warnings.simplefilter("ignore")
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
from fasterbench import HardwarePeaks, RooflineAnalyzer
peaks = HardwarePeaks(1e11, 2e10)
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 64))
def spread(kind, model):
    from torch.distributed.device_mesh import init_device_mesh
    if kind == "ddp": return nn.parallel.DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (world,))
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for m in (model[0], model[2]): fully_shard(m, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    return parallelize_module(model, mesh, {"2": ColwiseParallel(), "4": RowwiseParallel()})
x = torch.randn(32, 64)
def said(*ranks):
    "Wait until these ranks have left their last word."
    while not all(os.path.exists(f"said{os.environ['MASTER_PORT']}-{r}") for r in ranks): time.sleep(0.05)
def say(*words):
    print(*words, flush=True)
    open(f"said{os.environ['MASTER_PORT']}-{rank}", "w").close()
'''

def launch(code, tmp_path, n=2, limit="60", check=True):
    """Run `code` in each rank; what each wrote to stdout and stderr, and how long it took, s. Nothing runs any more
    afterwards.

    A rank that is only late on a busy machine is within the limit: it is short only where the test waits for its
    end."""
    start = time.monotonic()
    done = ranks(setup + code, n, tmp_path, FASTERBENCH_TIMEOUT=limit, FASTERBENCH_CACHE=str(tmp_path/"cache"))
    if check: assert not any(d.returncode for d in done), [d.stderr[-1500:] for d in done]
    return [(d.stdout, d.stderr) for d in done], time.monotonic() - start

# ---- models as they are

several = '''
def whole(model, opt):
    def full(t): return t.full_tensor().clone() if hasattr(t, "full_tensor") else t.detach().clone()
    hooks = [(n, len(m._forward_hooks), len(m._forward_pre_hooks), m.training) for n, m in model.named_modules()]
    grads = [None if p.grad is None else full(p.grad) for p in model.parameters()]
    state = [full(v) for s in opt.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    kinds = [(type(p), p.requires_grad) for p in model.parameters()]
    limits = [g._get_backend(torch.device("cpu")).options._timeout for g in dist.distributed_c10d._world.pg_map]
    return [full(v) for v in model.state_dict().values()], grads, state, hooks, kinds, limits
def equal(a, b):
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    return len(a) == len(b) and all(map(equal, a, b)) if isinstance(a, list) else a == b
out = {}
for kind in ("ddp", "fsdp", "tensor", "forward"):
    model = spread("ddp" if kind == "forward" else kind, net())
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2): opt.zero_grad(); model(x).square().mean().backward(); opt.step()
    before = whole(model, opt)
    step = {} if kind == "forward" else dict(backward=True, loss=lambda out: out.square().mean(), optimizer=opt)
    heavy = os.environ.get("FASTERBENCH_TESTS") in ("all", "nightly")
    steps = None if kind == "ddp" and heavy else 12
    analyzer = RooflineAnalyzer(model, x, peaks).profile(warmup=1, steps=steps, **step)
    same = all(map(equal, before, whole(model, opt)))
    opt.zero_grad(); model(x).square().mean().backward(); opt.step()             # it can be trained on
    r, all_ranks = analyzer.result, analyzer.gather()
    t = r.timing
    out[kind] = dict(same=same, steps=t.steps, ops=len(r.ops), ratio=t.ratio, unknown=r.unknown_ops,
        exposed=t.exposed_s, communication=t.communication_s, rows=[[p.name, p.type, p.phase, p.time_s] for p in r],
        sum=t.rows_s + t.overhead_s + (t.exposed_s or 0), total=sum(p.time_s for p in r),
        gathered=None if all_ranks is None else json.loads(all_ranks.to_json()),
        table=all_ranks and __import__("fasterbench.views.table").views.table.summary(all_ranks))
class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        if rank == 0: self.front = nn.Linear(64, 64)
        else: self.back = nn.Linear(64, 64)
    def forward(self, x):
        if rank == 0: y = self.front(x); dist.send(y, 1); return y
        y = torch.empty(32, 64); dist.recv(y, 0); return self.back(y)
r = RooflineAnalyzer(Stage(), x, peaks).profile(warmup=1, steps=5).gather()
out["pipeline"] = r and dict(notes=[n for n in r.notes if "different" in n], rows=[p.name for p in r])
# of one rank: nobody is asked
alone = RooflineAnalyzer(net(), x, peaks).profile(steps=2, warmup=0) if rank == 0 else None
dist.barrier()
print("OUT" + json.dumps(out))
'''

def calls_of_two(tmp_path, steps, uneven, **how):
    "How often each of two ranks calls a model that sums over both, where `uneven` makes them differ."
    outs, _ = launch(uneven + f"""
calls = []
class Sum(nn.Module):
    def __init__(self): super().__init__(); self.lin = nn.Linear(64, 64)
    def forward(self, x): calls.append(rank); y = self.lin(x); dist.all_reduce(y); return y
RooflineAnalyzer(Sum(), x, peaks).profile(warmup=1, steps={steps})
print("OUT" + json.dumps(len(calls)))
""", tmp_path, **how)
    return (json.loads(out.split("OUT")[1]) for out, _ in outs)

def test_one_rank_that_saw_a_long_run_does_not_run_alone(tmp_path):
    """A rank that has seen a run of another length times its operators in more of them; where the others do not,
    its collectives wait for ever."""
    first, second = calls_of_two(tmp_path, 8, """
import fasterbench.analysis.measure as measure
measure._has_longer_runs = lambda seconds: rank == 0
""")
    assert first == second >= 8 + 8                                 # 8 with timestamps, and operators in as many

@heavy_only("two ranks that profile")
def test_a_rank_with_fewer_quiet_runs_records_as_many(tmp_path):
    "A rank that others disturbed keeps three runs: the runs that record where it waits are as many on each rank."
    first, second = calls_of_two(tmp_path, 12, """
import fasterbench.timing.modules as timestamps
if rank: timestamps._Round.quiet_runs = lambda self, meter: dict(steps=[0, 1, 2], bare=[0, 1])
""", limit="20")
    assert first == second

@pytest.fixture(scope="module")
def two(tmp_path_factory):
    "Return the findings of both ranks; one run for all workers."
    kept = test_folder/"two ranks.json"
    with FileLock(test_folder/"two ranks.lock"):
        if not kept.exists():
            outs, _ = launch(several, tmp_path_factory.mktemp("two"))
            kept.write_text(json.dumps([json.loads(out.split("OUT")[1]) for out, _ in outs]))
    return json.loads(kept.read_text())

@pytest.mark.parametrize("kind", in_line(names.split(), "ddp"))
def test_every_rank_profiles_and_leaves_the_model_as_it_was(two, kind):
    for found in two:
        own = found[kind]
        assert own["same"] and own["unknown"] == {} and own["ops"] > 5
        # rows, waiting and overhead are all rows
        assert abs(own["sum"] / own["total"] - 1) < 1e-9
        # two ranks beside other tests: the benchmark has the figure
        assert 0.2 < own["ratio"] < 5
    assert all(found[kind]["steps"] >= 3 for found in two)           # those that nothing disturbed, on each rank

@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tensor"])
def test_waiting_is_a_row(two, kind):
    for found in two:
        own = found[kind]
        waiting = [r for r in own["rows"] if r[0] == "(communication)"]
        assert waiting and {r[2] for r in waiting} <= {"forward", "backward", "update"}
        assert (abs(sum(r[3] for r in waiting) / own["exposed"] - 1) < 1e-9
                and 0 < own["exposed"] <= own["communication"] * (1 + 1e-9))

def test_what_ddp_does_at_the_end_of_a_backward_is_its_own(two):
    """It copies 99 392 reduced gradients out of its buckets, of 64·256 + 256, 256 + 256, 256·256 + 256 and 256·64 +
    64 parameters."""
    rows = {(p["name"], p["type"]): p for p in two[0]["ddp"]["gathered"]["points"] if p["phase"] == "backward"}
    assert rows["", "DistributedDataParallel"]["bytes_moved"] == 2 * 4 * 99_392
    ops = [(o["name"], o["operator"]) for o in two[0]["ddp"]["gathered"]["ops"] if o["phase"] == "backward"]
    assert [name for name, operator in ops if operator == "aten::copy_"] == [""]

def test_results_are_gathered_on_rank_0(two):
    for kind in names.split():
        assert two[1][kind]["gathered"] is None
        rows, each = (two[0][kind]["gathered"]["points"],
                      [{tuple(r[:3]): r[3] for r in found[kind]["rows"]} for found in two])
        for p in rows:
            key = p["name"], p["type"], p["phase"]
            want = [[i, own[key]] for i, own in enumerate(each) if key in own]
            assert p["ranks"] == want and abs(p["time_s"] - sum(t for _, t in want) / len(want)) < 1e-15
        assert {(p["name"], p["type"], p["phase"]) for p in rows} == set(each[0]) | set(each[1])
    table = two[0]["ddp"]["table"]
    assert " max " in table and "gathered from 2 ranks" in table
    assert two[0]["ddp"]["gathered"]["program"]["ranks"][1][0] == 1

@heavy_only("four processes")
def test_four_ranks_with_roofs_of_their_own(tmp_path):
    "Ranks of one host measure together, and the second time they read what they kept."
    code = '''
from fasterbench.probes import peaks as module
def measure(here, dtypes, *rest):
    time.sleep(0.1 * rank)
    return HardwarePeaks(1e9 * (rank + 1), 1e9, device="cpu", environment=module.environment(here.properties()))
module._measure = measure
model = spread("ddp", net())
found = [RooflineAnalyzer(model, x).profile(steps=2, warmup=0, backward=True).peaks.peak_flops]
files = len(list(module.cache_folder().glob("peaks-*.json")))
module._remembered.clear()
found.append(RooflineAnalyzer(model, x).profile(steps=2, warmup=0, backward=True).peaks.peak_flops)
all_ranks = RooflineAnalyzer(model, x, peaks).profile(steps=2, warmup=0, backward=True).gather()
print(found, files, all_ranks and [len(p.ranks) for p in all_ranks][:3])
'''
    outs, _ = launch(code, tmp_path, n=4)
    assert ([out.strip() for out, _ in outs] == ["[1000000000.0, 1000000000.0] 1 [4, 4, 4]"]
            + ["[1000000000.0, 1000000000.0] 1 None"] * 3)

def test_a_pipeline_says_that_the_ranks_differ(two):
    found = two[0]["pipeline"]
    assert (len(found["notes"]) == 1 and "rank 0: front; rank 1: back" in found["notes"][0]
            and {"front", "back"} <= set(found["rows"]))
    assert two[1]["pipeline"] is None

# ---- one process

@heavy_only("a process of its own")
def test_one_process_imports_nothing_for_it():
    code = ("import sys, torch; before = {n for n in sys.modules if n.startswith('torch.distributed')}\n"
            "from fasterbench import RooflineAnalyzer, HardwarePeaks\n"
            "a = RooflineAnalyzer(torch.nn.Linear(4, 4), torch.ones(2, 4), HardwarePeaks(1e9, 1e9))\n"
            "print({n for n in sys.modules if n.startswith('torch.distributed')} - before)\n"
            "a.profile(steps=2, warmup=0)\n"
            "assert a.gather() is a.result and a.result.timing.exposed_s is None and a.results[0].ranks == ()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, timeout=patience_s)
    assert done.stdout.strip() == "set()" and done.returncode == 0, done.stdout + done.stderr

# ---- failures

class_of_faults = '''
class Faulty(nn.Module):
    calls = 0
    def __init__(self): super().__init__(); self.net = net()
    def forward(self, x):
        Faulty.calls += 1
        if rank == 1 and Faulty.calls == 12: fault()
        return self.net(x)
model = spread("ddp", Faulty())
before = ([p.detach().clone() for p in model.parameters()], len(model._forward_hooks),
          "forward" in vars(model.module.net))
start = time.monotonic()
try: RooflineAnalyzer(model, x, peaks).profile(backward=True); print("no error")
except Exception as e: print(type(e).__name__, "|", " ".join(str(e).split()), "|", round(time.monotonic() - start, 1))
after = [p.detach() for p in model.parameters()], len(model._forward_hooks), "forward" in vars(model.module.net)
say("same", all(map(torch.equal, before[0], after[0])) and before[1:] == after[1:])
'''

killed = "def fault(): os.kill(os.getpid(), signal.SIGKILL)\n"

@heavy_only("waits for the limit of a rank")
def test_a_rank_that_is_killed_ends_the_others(tmp_path):
    outs, seconds = launch(killed + class_of_faults, tmp_path, check=False)
    assert ("RankError" in outs[0][0] and "rank 1 ended or hangs" in outs[0][0] and "same True" in outs[0][0]
            and outs[1][0] == ""), outs
    assert seconds < 150                                # the group itself waits 300 s

@nightly_only("waits for the limit of a rank")
def test_a_rank_that_raises_is_named_on_the_others(tmp_path):
    "Also where it lives on: the others wait no longer than the limit."
    outs, seconds = launch("def fault(): raise ValueError('no more data')\n" + class_of_faults
                           + "said(0)\nos._exit(0)\n", tmp_path, limit="12", check=False)
    assert outs[1][0].startswith("ValueError | no more data") and "same True" in outs[1][0]
    assert (outs[0][0].startswith("RankError | rank 1 failed: ValueError: no more data")
            and "same True" in outs[0][0]), outs[0]
    assert seconds < 150

@nightly_only("waits for the limit of a rank")
def test_a_rank_that_hangs_ends_the_others_after_the_limit(tmp_path):
    outs, seconds = launch("def fault(): said(0); os._exit(3)\n" + class_of_faults + "os._exit(0)\n", tmp_path,
                           limit="12", check=False)
    text = outs[0][0]
    assert (text.startswith("RankError") and "rank 1 ended or hangs; a rank waits 12 s" in text
            and "same True" in text), outs[0]
    assert float(text.split("|")[2].split()[0]) < 150

def errors(code, tmp_path, n, limit="60"):
    "Return the exit of each rank, and the time until then, s. Each lives until all have left: rank 0 keeps the store."
    outs, _ = launch("def model(): return spread('ddp', net())\nstart = time.monotonic()\ntry:\n"
                     + textwrap.indent(code, "    ")
                     + "\n    error = None\nexcept Exception as e: error = f'{type(e).__name__}: {e}'\n"
                     "say(json.dumps([error, time.monotonic() - start]))\nsaid(*range(world))\nos._exit(0)\n",
                     tmp_path, n, limit=limit)
    return zip(*(json.loads(out) for out, _ in outs))

def test_ranks_that_do_not_do_the_same_are_told_at_once(tmp_path):
    "Other settings; and a rank whose model sends nothing, which gathers while the others profile together."
    (one, two), seconds = errors(
        "RooflineAnalyzer(model(), x, peaks).profile(warmup=1, steps=4 + 4 * rank, backward=True)", tmp_path, 2)
    assert (one == two == (
        "RankError: the ranks are out of step: rank 0 came to profile(warmup=1, steps=4, backward=True) of a model "
        "that communicates, rank 1 to profile(warmup=1, steps=8, backward=True) of a model that communicates"))
    assert max(seconds) < 45
    (one, two), _ = errors(
        "m = model()\nRooflineAnalyzer(net() if rank else m, x, peaks).profile(warmup=1, steps=4).gather()", tmp_path,
        2)
    assert (one == two and one.endswith(
        "rank 0 came to profile(warmup=1, steps=4, backward=False) of a model that communicates, rank 1 to gather()"))

@nightly_only("waits for the limit of a rank")
def test_a_rank_alone_is_told_what_the_others_have_to_do(tmp_path):
    (one, two), _ = errors(
        "if rank == 0: RooflineAnalyzer(model(), x, peaks).profile(warmup=1, steps=4)\nelse: model()", tmp_path, 2,
        limit="5")
    assert (two is None and one == (
        "RankError: rank 1 did not reach profile(warmup=1, steps=4, backward=False) of a model that communicates "
        "within 5 s; every rank has to"))

def test_the_rank_that_keeps_the_store_is_killed(tmp_path):
    "Without torchrun rank 0 keeps it: the others cannot be told anything, and say that."
    outs, _ = launch(killed + class_of_faults.replace("rank == 1", "rank == 0"), tmp_path, check=False)
    assert outs[1][0].startswith("RankError | the store of the job is gone") and "same True" in outs[1][0], outs

def test_ranks_with_other_dtypes_measure_the_roofs_of_all(tmp_path):
    "Two stages of a pipeline that compute in different dtypes get the same roofs, with a ceiling for each."
    code = '''
from fasterbench.probes import peaks as module
def measure(here, dtypes, *rest):
    found.append(list(map(str, dtypes)))
    return HardwarePeaks(1e9, 1e9, device="cpu", environment=module.environment(here.properties()))
module._measure = measure
found = []
class Stage(nn.Module):
    def __init__(self): super().__init__(); self.linear = nn.Linear(64, 64, dtype=[torch.float32, torch.bfloat16][rank])
    def forward(self, x): y = self.linear(x.to(self.linear.weight.dtype)).float(); dist.all_reduce(y); return y
RooflineAnalyzer(Stage(), x).profile(steps=2, warmup=0)
print(found)
'''
    outs, _ = launch(code, tmp_path)
    assert [out.strip() for out, _ in outs] == ["[['torch.float32', 'torch.bfloat16']]"] * 2

# ---- the command line

def torchrun(folder, *args):
    "The command in two ranks, as a shell starts it."
    env = os.environ | dict(OMP_NUM_THREADS="1", PYTHONPATH=str(root), FASTERBENCH_TIMEOUT="60")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m",
               "fasterbench", "roofline", *args]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

model_file = '''
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3))
    def forward(self, x):
        for layer in self.layers: x = layer(x)
        return x
def make(): return Net(), torch.randn(32, 64)
'''

@pytest.fixture
def folder(tmp_path):
    (tmp_path/"net.py").write_text(model_file)
    (tmp_path/"roofs.json").write_text(json.dumps(dict(
        schema="fasterbench.peaks", version=1, peak_flops=1e11, peak_bandwidth=2e10)))
    return tmp_path

arguments = ("net.py:make", "--backward", "--peaks", "roofs.json", "--json", "out.json", "--steps", "10", "--html",
             "out.html")

def check_output(folder, out, err, n):
    "One table, one report and one file, of `n` ranks."
    assert out.count("\nroofs: ") == 1 and err.count("wrote out.json") == 1
    saved = json.loads((folder/"out.json").read_text())
    assert (len(saved["points"][0]["ranks"]) == (n if n > 1 else 0)
            and any(p["name"] == "(communication)" for p in saved["points"]) == (n > 1))
    assert (folder/"out.html").stat().st_size > 100_000
    assert (sorted(p.name for p in folder.iterdir() if p.name != "__pycache__")
            == ["net.py", "out.html", "out.json", "roofs.json"])

@heavy_only("three processes")
def test_the_same_command_line_with_one_and_two_ranks(folder):
    alone = python(command_line("roofline", *arguments), folder)
    assert alone.returncode == 0, alone.stderr[-2000:]
    check_output(folder, alone.stdout, alone.stderr, 1)
    for parallel in ("ddp", "fsdp") if heavy else ("ddp",):
        done = ranks(command_line("roofline", *arguments, "--parallel", parallel), cwd=folder)
        assert [d.returncode for d in done] == [0, 0], done[0].stderr[-2000:]
        check_output(folder, *("".join(getattr(d, stream) for d in done) for stream in ("stdout", "stderr")), 2)

@nightly_only("starts torchrun and measures a network")
def test_the_network_beside_the_roofs(folder):
    """The same command line under torchrun: `--network` measures it; the roofs that were given stay, and the
    waiting has a least time. One process is told what to start."""
    job = torchrun(folder, *arguments, "--network")
    out, err = job.communicate(timeout=patience_s)
    assert job.returncode == 0, err[-2000:]
    check_output(folder, out, err, 2)
    from fasterbench import from_json
    result = from_json(folder/"out.json")
    roof = result.peaks.network.roof("all_reduce", 2, 1)
    (waiting,) = [p for p in result.points if p.name == "(communication)"]
    gradients = 3 * 4 * (64 * 64 + 64)
    assert result.peaks.peak_flops == 1e11 and waiting.sends == (("all_reduce over 2", gradients),)
    assert waiting.bound == "network" and waiting.network_s == pytest.approx(roof.time_of(gradients))
    for more in ({}, dict(WORLD_SIZE="2")):
        done = python(command_line("roofline", *arguments, "--network"), folder, env=os.environ | more)
        assert (done.returncode == 2 and "torchrun --nproc-per-node 2 -m fasterbench roofline MODEL --network"
                in done.stderr)

def test_a_wrong_argument_is_said_once(folder):
    done = ranks(command_line("roofline", "net.py:absent"), cwd=folder)
    assert ([bool(d.returncode) for d in done] == [True, True]
            and "".join(d.stderr for d in done).count("has no callable 'absent'") == 1)

@heavy_only("starts torchrun")
def test_a_killed_rank_ends_the_command(folder):
    "Every process has ended seconds later, and no file is half written."
    job = torchrun(folder, "net.py:make", "--backward", "--json", "out.json", "--steps", "100000", "--peaks",
                   "roofs.json")
    try:
        end, started = time.monotonic() + patience_s, []
        while len(started) < 2 and time.monotonic() < end: started = children(job.pid); time.sleep(0.2)
        time.sleep(6)                                               # in the middle of the profile
        assert len(started) == 2 and job.poll() is None
        os.kill(started[1], signal.SIGKILL)
        # `patience_s` would hide a group that waits for its limit
        job.communicate(timeout=300)
        assert job.returncode != 0 and not any(alive(r) for r in started)
        assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == ["net.py", "roofs.json"]
    finally: job.kill()

def children(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"): found += map(int, task.read_text().split())
    return [p for p in found if "fasterbench" in Path(f"/proc/{p}/cmdline").read_text()]

def alive(pid):
    try: return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError: return False
