"What a profile must not change, beside what the notebooks show: other threads, distributed wrappers, compiled code."
import gc, json, threading

import pytest
import torch
from torch import nn

from forked import python
from conftest import heavy_only
from fasterbench.engine.modules import copiers
from fasterbench.engine.model_state import Snapshot
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
from fasterbench.work.count import count_work

peaks = HardwarePeaks(1e12, 1e11)

def profile(model, sample, **how):
    return RooflineAnalyzer(model, sample, peaks).profile(warmup=1, steps=2, progress=False, **how)

def in_threads(n, job):
    errors = []
    def run(i):
        try: job(i)
        except Exception as e: errors.append(e)
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(n)]
    for t in threads: t.start()
    for t in threads: t.join(120)
    assert not any(t.is_alive() for t in threads), "threads wait for ever"
    assert not errors, errors[0]

class Backend:
    "A compiler that counts what it compiles and how often that runs."
    def __init__(self): self.compiled = self.runs = 0
    def __call__(self, graph, inputs):
        self.compiled += 1
        def run(*args): self.runs += 1; return graph.forward(*args)
        return run

def mlp(): return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))

@pytest.mark.parametrize("what", ["count", "profile"])
def test_four_threads_leave_the_process_as_it_was(what):
    backend = Backend()
    double = torch.compile(lambda x: 2 * x, backend=backend)
    double(torch.ones(3))
    job = ((lambda i: count_work(mlp(), torch.randn(4, 16))) if what == "count"
           else lambda i: profile(mlp(), torch.randn(4, 16)))
    for _ in range(3): in_threads(4, job)
    runs = backend.runs
    double(torch.ones(3))
    assert backend.runs == runs + 1 and backend.compiled == 1 and gc.isenabled()

def test_one_model_in_four_threads():
    model, kept = mlp().train(), []
    model[1].eval()
    in_threads(4, lambda i: kept.append(profile(model, torch.randn(4, 16))))
    assert len(kept) == 4 and [m.training for m in model.modules()] == [True, True, False, True]
    assert not any({"forward", *copiers} & set(m.__dict__) for m in model.modules())

class CompiledForward(nn.Module):
    backend = Backend()
    def __init__(self): super().__init__(); self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
    @torch.compile(backend=lambda graph, inputs: CompiledForward.backend(graph, inputs))
    def forward(self, x): return self.b(torch.relu(self.a(x)))

@pytest.mark.parametrize("where", ["root", "child"])
def test_a_compiled_forward_runs_as_it_was_compiled(where):
    torch._dynamo.reset()
    inner = CompiledForward().eval()
    model, x, backend = (inner if where == "root" else nn.Sequential(inner, nn.ReLU()).eval(), torch.randn(4, 16),
                         CompiledForward.backend)
    with torch.no_grad(): [model(x) for _ in range(3)]
    backend.compiled = backend.runs = 0
    ra = RooflineAnalyzer(model, x, peaks).profile(warmup=1, steps=12, progress=False)
    # the first, the timestamped ones, a bare one before each third
    assert backend.compiled == 0 and backend.runs >= 1 + 12 + 4
    row, = (r for r in ra.results if r.type == "CompiledForward")
    assert row.contraction_flops == 2 * 2 * 4 * 16 * 16 and not {"0.a", "0.b", "a", "b"} & {r.name for r in ra.results}

def test_every_copy_of_a_layer_runs_its_own_code():
    "Test-time training: a copy of a layer is changed and used."
    import copy
    seen = []
    class Copies(nn.Module):
        def __init__(self, how): super().__init__(); self.lin, self.how = nn.Linear(4, 4), how
        def forward(self, x):
            fast = self.how(self.lin)
            fast._parameters = {k: nn.Parameter(torch.zeros_like(p)) for k, p in self.lin._parameters.items()}
            seen.append(fast(x).abs().sum().item())
            return self.lin(x)
    for how in (copy.deepcopy, copy.copy, lambda m: m._replicate_for_data_parallel()):
        profile(Copies(how), torch.ones(2, 4)); count_work(Copies(how), torch.ones(2, 4))
    assert len(seen) > 10 and set(seen) == {0.0}

class Other(nn.Linear): pass

class Swapping(nn.Module):
    def __init__(self): super().__init__(); self.lin = nn.Linear(4, 4)
    def forward(self, x): self.lin.__class__ = Other; return self.lin(x)

class Cycle(nn.Module):
    "A module whose part holds it."
    def __init__(self): super().__init__(); self.lin = nn.Linear(4, 4); self.lin.up = self
    def forward(self, x): return self.lin(x)

def test_a_class_that_a_forward_swaps_comes_back():
    for what in (profile, count_work):
        model = Swapping()
        what(model, torch.randn(2, 4))
        assert type(model.lin) is nn.Linear

@pytest.mark.parametrize("what", [count_work, profile])
def test_a_backward_that_waits_goes_on_afterwards(what):
    "What was written is put back, and the numbers by which autograd tells that something was."
    model, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).eval(), torch.randn(6, 4)
    want, waiting = torch.autograd.grad(model(x).sum(), model.parameters()), model(x).sum()
    what(model, x, backward=True, optimizer=torch.optim.AdamW(model.parameters()))
    assert all(map(torch.equal, torch.autograd.grad(waiting, model.parameters()), want))
    waiting = model(x).sum()
    with torch.no_grad(): model[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="inplace operation"): waiting.backward()

def test_functions_are_not_looked_into():
    """Neither the closure of a hook nor its globals: 10 000 lists in it cost nothing, and a module that it names is
    not the model's."""
    other, many, model = nn.BatchNorm1d(4), [[] for _ in range(10_000)], mlp()
    bare = Snapshot([model])
    def hook(*args, many=many): other(torch.ones(3, 4))
    model[0].register_forward_hook(hook)
    hooked = Snapshot([model])
    assert len(hooked.seen) <= len(bare.seen) + 1 and not {id(many), id(other)} & hooked.seen.keys()
    profile(model, torch.randn(4, 16))
    assert other.num_batches_tracked > 0

def test_modules_in_a_cycle_are_measured():
    "`train()` and `eval()` of PyTorch never end on them; a forward does."
    model, x = Cycle(), torch.randn(2, 4)
    work = count_work(model, x)
    assert (work.flops, work.contraction_flops) == (2 * 2 * 4 * 4 + 2 * 4, 2 * 2 * 4 * 4)
    assert ({r.name for r in profile(model, x).results} >= {"lin"}
            and count_work(model, x, backward=True).flops > work.flops)
    assert model.training and model.lin.training

distributed = """
import json, torch, torch.distributed as dist, warnings; warnings.simplefilter("ignore")
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from fasterbench.work.count import count_work
from fasterbench.work.target import Target
from fasterbench.roofline import RooflineAnalyzer, HardwarePeaks
store = dist.FileStore("store", 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
class Root(nn.Module):
    def __init__(s): super().__init__(); s.b = blocks(); s.w = nn.Parameter(torch.ones(4))
    def forward(s, x): return s.b(x * s.w)
def blocks(): torch.manual_seed(0); return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
def fsdp():
    m = Root(); [fully_shard(l) for l in m.b if isinstance(l, nn.Linear)]; fully_shard(m); return m
def local(t): return t.to_local() if hasattr(t, "to_local") else t
def steps(m, opt):
    for i in range(2):
        opt.zero_grad(); m(x * (i + 1)).square().sum().backward(); opt.step()
    return [local(p).tolist() for p in m.parameters()], [local(p.grad).tolist() for p in m.parameters()]
def without_data(m):
    try: count_work(m, x, backward=True, target=Target("cpu"))
    except ValueError as e: assert m.static_graph and "tensors without data" in str(e), e
def measure(m, what):
    analyzer = RooflineAnalyzer(m, x, HardwarePeaks(1e12, 1e11))
    opt = torch.optim.SGD(m.parameters(), lr=.1)
    dict(nothing=lambda: None, count=lambda: count_work(m, x), count_step=lambda: count_work(m, x, backward=True),
         count_without_data=lambda: without_data(m),
         profile=lambda: analyzer.profile(warmup=1, steps=2, progress=False),
         profile_step=lambda: analyzer.profile(warmup=1, steps=2, progress=False, backward=True, optimizer=opt))[what]()
x, found = torch.linspace(-1, 1, 12).view(3, 4), {}
makers = dict(fsdp=fsdp, ddp=lambda: DDP(blocks()), static=lambda: DDP(blocks(), static_graph=True),
              views=lambda: DDP(blocks(), gradient_as_bucket_view=True))
for name, make in makers.items():
    for before in ("new", "trained", "evaluated"):
        for what in ("nothing", "count", "count_without_data", "profile", "count_step", "profile_step"):
            m = make(); opt = torch.optim.SGD(m.parameters(), lr=.1)
            if before == "trained": steps(m, opt)
            if before == "evaluated":
                with torch.no_grad(): m(x)                 # the root of FSDP2 stays whole
            grads = [None if p.grad is None else local(p.grad).tolist() for p in m.parameters()]
            measure(m, what)
            same = grads == [None if p.grad is None else local(p.grad).tolist() for p in m.parameters()]
            try: after = steps(m, opt)
            except Exception as e: after = repr(e)
            found[f"{name} {what} {before}"] = same, after
json.dump(found, open("found.json", "w"))
dist.destroy_process_group()
"""

@heavy_only("a process with a group of ranks")
def test_distributed_wrappers_on_one_rank_train_on_bit_for_bit(tmp_path):
    "FSDP2 whose root has a parameter, DDP, DDP with a static graph, DDP whose gradients are views of its buckets."
    done = python(distributed, tmp_path, package=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path/"found.json").read_text())
    assert len(found) == 4 * 3 * 6
    for key, (same, after) in found.items():
        wrapper, what, before = key.split()
        assert same, f"gradients changed: {key}"
        assert after == found[f"{wrapper} nothing {before}"][1], f"{key}: {after}"
