"A model is watched while a program runs it: the program does what it does without, and nothing stays behind."
import copy, itertools, json, pickle, random, threading, time, types, warnings
from contextlib import nullcontext
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import optimizer as hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import fasterbench
import fasterbench.running.watch as watching
from conftest import heavy_only, in_line, nightly, nightly_only
from modules import Calls
from fasterbench import HardwarePeaks, watch
from fasterbench.engine.modules import copiers
from fasterbench.running.program import ProgramStep
from fasterbench.running.steps import program_cost
from fasterbench.running.watch import Watch
from fasterbench.running.metrics import read_series

peaks = HardwarePeaks(1e11, 1e10)
engine = torch.autograd._engine_run_backward
F = nn.functional

@pytest.fixture(autouse=True)
def one_cost(monkeypatch):
    "The cost of a timestamp is measured once for all tests here, and not for each of hundreds of watches."
    monkeypatch.setattr(watching, "program_cost", lambda model: cost_of(ProgramStep(model).device))
    monkeypatch.setattr(watching, "far", float("inf"))       # no sample hangs on how steady the machine is

@cache
def cost_of(device): return program_cost(nn.Linear(1, 1, device=device))

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))

def attributes(model):
    return [(id(m), tuple(vars(m)), tuple(m._forward_hooks), tuple(m._forward_pre_hooks)) for m in model.modules()]

def nothing_attached(model, before):
    "Return whether all that a sample attaches is off again; the counter may be there."
    now = [(i, tuple(k for k in names if n or k not in ("forward", *copiers)), *rest)
           for n, (i, names, *rest) in enumerate(attributes(model))]
    return (now == before and torch.autograd._engine_run_backward is engine and not hooks._global_optimizer_pre_hooks
            and not hooks._global_optimizer_post_hooks and not _get_current_dispatch_mode_stack())

class Program:
    "A training program: accumulation, evaluation, changing shapes, and a chance to go wrong."
    def __init__(self, model=None, optimizer=torch.optim.AdamW, accumulate=1, evaluate=0, shape=lambda i: 6, **how):
        self.model = model or net()
        self.optimizer, self.accumulate, self.evaluate, self.shape = (
            (optimizer(self.model.parameters(), **how), accumulate, evaluate, shape))
        self.losses, self.before = [], attributes(self.model)

    def batch(self, i): return torch.randn(self.shape(i), 8), torch.randint(4, (self.shape(i),))

    def run(self, steps, between=lambda i: None):
        for i in range(steps):
            x, y = self.batch(i)
            loss = F.cross_entropy(self.model(x), y) / self.accumulate
            loss.backward()
            self.losses.append(loss.item())
            if (i + 1) % self.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            if self.evaluate and (i + 1) % self.evaluate == 0: self.test(i)
            between(i)
        return self

    def test(self, i):
        self.model.eval()
        with torch.no_grad(): self.losses.append(self.model(self.batch(i)[0]).sum().item())
        self.model.train()

def remarks(w):
    "The notes, without that on the calls that rows and time are of."
    return [n for n in w.result.notes if not n.startswith("time: median of")]

def rows(result): return {(p.name, p.phase): p for p in getattr(result, "result", result).points}

def seeded(seed=1): torch.manual_seed(seed); random.seed(seed); np.random.seed(seed)

def watched_as_without(made=Program):
    "A watched program, which has the losses of one that is not."
    plain, program = made(), made()
    seeded(); plain.run(30)
    seeded()
    with watch(program.model, every=100, peaks=peaks) as w: program.run(30)
    assert plain.losses == program.losses
    return program, w

ways = {"plain": dict(), "accumulation": dict(accumulate=4), "evaluation": dict(evaluate=3),
        "both": dict(accumulate=3, evaluate=5), "shapes": dict(shape=lambda i: 3 + i % 5),
        "sgd": dict(optimizer=torch.optim.SGD, lr=0.1, momentum=0.9),
        "foreach": dict(optimizer=torch.optim.AdamW, foreach=True)}

@pytest.mark.parametrize("name", in_line(ways, "both", "shapes", "foreach", why="a part of what the line does"))
def test_a_program_does_what_it_does_without(name, monkeypatch):
    "Losses, parameters, buffers, the optimizer's state and the random generators are the same, bit for bit."
    monkeypatch.setattr(watching, "program_cost", program_cost)              # what a watch runs when it begins, too
    def run(watched):
        program = Program(**ways[name])
        seeded()
        with watch(program.model, every=30, active=2, peaks=peaks) if watched else nullcontext() as w: program.run(90)
        return program, [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()], w
    (plain, generators, _), (seen, seen_generators, w) = run(False), run(True)
    assert plain.losses == seen.losses and generators == seen_generators
    assert all(torch.equal(a, b) for a, b in zip(plain.model.state_dict().values(), seen.model.state_dict().values()))
    states = [list(p.optimizer.state_dict()["state"].values()) for p in (plain, seen)]
    assert all(torch.equal(torch.as_tensor(a[k]), torch.as_tensor(b[k])) for a, b in zip(*states) for k in a
               if a[k] is not None)
    assert len(w.series) >= 2 and not w.failures and nothing_attached(seen.model, seen.before)
    assert attributes(seen.model) == seen.before

def test_between_samples_there_is_only_a_counter():
    program, states = Program(), []
    def look(i):
        states.append((nothing_attached(program.model, program.before), w.sample is None,
                       "forward" in vars(program.model)))
    with watch(program.model, every=30, peaks=peaks) as w: program.run(70, look)
    assert all(off == idle for off, idle, _ in states) and all(counted for *_, counted in states)
    assert sum(idle for _, idle, _ in states) > 40 and sum(not idle for _, idle, _ in states) > 10
    assert program.model.forward.__func__ is nn.Sequential.forward

def test_work_is_that_of_a_profile():
    program, batch = Program(), (torch.randn(6, 8), torch.randint(4, (6,)))
    program.batch = lambda i: batch
    with watch(program.model, peaks=peaks) as w: program.run(20)
    profile = fasterbench.RooflineAnalyzer(program.model, batch[0], peaks).profile(
        backward=True, loss=lambda out: F.cross_entropy(out, batch[1]) / 1, optimizer=program.optimizer, warmup=1,
        steps=2)
    ours, theirs = rows(w.result), rows(profile)
    for key, p in theirs.items():
        if key[0] in ("(overhead)", "(loss)"): continue
        for field in ("flops", "bytes_moved", "contraction_flops", "eager_bytes", "calls", "type", "dtype",
                      "category", "bytes_by_level", "bound"):
            assert getattr(ours[key], field) == getattr(p, field), (key, field)
    assert ours["(loss)", "backward"].flops == theirs["(loss)", "backward"].flops
    assert ours["(outside the model)", ""].flops is None and "undefined" in dict(w.result.program.shares)

def test_a_step_holds_what_is_accumulated():
    program = Program(accumulate=4)
    with watch(program.model, every=100, active=2, peaks=peaks) as w: program.run(60)
    by = rows(w.result)
    assert by["0", "forward"].calls == 4 and by["4", "forward"].calls == 4
    assert by["0", "forward"].contraction_flops == 4 * 2 * 6 * 8 * 16
    one = Program()
    with watch(one.model, every=100, active=2, peaks=peaks) as w1: one.run(60)
    assert rows(w1.result)["(optimizer)", "update"].flops == by["(optimizer)", "update"].flops
    assert len(w.result.steps) == 2

def watched_with(backward):
    "Watch 30 updates, each after the same calls and backwards of the model."
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=100, peaks=peaks) as w:
        for _ in range(30): backward(model); optimizer.step(); optimizer.zero_grad()
    return w

def test_a_model_that_is_called_twice_per_update():
    w = watched_with(lambda m: (m(torch.randn(6, 8)) - m(torch.randn(6, 8))).square().sum().backward())
    by = rows(w.result)
    assert (by["0", "forward"].calls == 2 and by["0", "backward"].contraction_flops == 2 * 2 * 6 * 8 * 16
            and not remarks(w))

def test_calls_without_gradients():
    model, x = net().eval(), torch.randn(6, 8)
    with watch(model, every=20, peaks=peaks) as w, torch.no_grad():
        for _ in range(50): model(x)
    profile = fasterbench.RooflineAnalyzer(model, x, peaks).profile(warmup=1, steps=2)
    def work(r): return {p.name: (p.flops, p.bytes_moved, p.calls, p.phase) for p in r if not p.name.startswith("(")}
    assert work(w.result) == work(profile.result) and len(w.series) == 2

def test_a_loop_that_forgets_no_grad_and_one_that_steps_by_hand():
    model = net()
    with watch(model, every=100, peaks=peaks) as w:
        for _ in range(30): model(torch.randn(6, 8))
    assert {p.phase for p in w.result} == {""}
    def by_hand(steps):
        for _ in range(steps):
            model(torch.randn(6, 8)).sum().backward()
            with torch.no_grad():
                for p in model.parameters(): p -= 0.1 * p.grad; p.grad = None
    with watch(model, every=1000, peaks=peaks) as w: by_hand(100)
    assert {p.phase for p in w.result} == {"", "forward", "backward"} and rows(w.result)["0", "backward"].calls == 1

def test_evaluation_in_between_is_passed_over_or_sampled():
    program = Program(evaluate=7)
    with watch(program.model, every=40, active=2, peaks=peaks) as w: program.run(60)
    assert all({"forward_share", "update_share"} <= r.keys() for r in w.series) and not remarks(w)
    program = Program()
    with watch(program.model, every=200, active=2, peaks=peaks) as w:
        program.run(8)                                  # a sample begins in training …
        for i in range(100): program.test(i)            # … a long evaluation comes …
        assert w.sample is None and not w.series
        program.run(20)                                 # … and training goes on
    assert all({"forward_share", "update_share"} <= r.keys() for r in w.series) and len(w.series) == 1

def test_shapes_are_followed():
    program = Program(shape=lambda i: 6 if i < 40 else 12)
    found = []
    with watch(program.model, every=40, peaks=peaks, on_sample=lambda step, m: found.append(w.result)) as w:
        program.run(80)
    assert [r.sample[0]["shape"] for r in found] == [[6, 8], [12, 8]]
    assert [rows(r)["0", "forward"].contraction_flops for r in found] == [2 * n * 8 * 16 for n in (6, 12)]
    each = Program(shape=lambda i: 3 + i)                # no two calls alike
    with watch(each.model, every=100, peaks=peaks) as w: each.run(60)
    assert any("shapes differ" in n for n in w.result.notes)
    (rows_given, _), = [t["shape"] for t in w.result.sample]
    assert rows(w.result)["0", "forward"].contraction_flops == 2 * rows_given * 8 * 16

class SleepByRows(nn.Module):
    "A layer that takes 1 ms for each row of its input."
    def __init__(self): super().__init__(); self.layer, self.naps = nn.Linear(4, 4, bias=False), Naps()
    def forward(self, x): self.naps.take(len(x), 1e-3 * len(x)); return self.layer(x)

@pytest.mark.timed
@pytest.mark.parametrize("period", in_line([(2, 12), (12, 2), (2, 40, 9), (40, 40, 9, 2)], (2, 40, 9)), ids=str)
@pytest.mark.parametrize("active", [pytest.param(1, marks=heavy_only("another number")),
                                    pytest.param(2, marks=nightly_only("another number")), 3])
def test_shapes_work_and_time_are_of_one_call(period, active):
    "Whatever lengths come in turn, the headline's shape, the FLOPs and the time end to end are those of one call."
    model = SleepByRows()
    with watch(model, every=1000, active=active, warmup=0, peaks=peaks) as w, torch.no_grad():
        for n in period * 20: model(torch.randn(n, 4))
    result, (given,) = w.result, w.result.sample
    n, flops = given["shape"][0], sum(p.flops or 0 for p in result.points)
    assert flops == n * 2 * 4 * 4 and f"{n}×4 float32" in result.text()
    # lengths are 7 ms and more apart
    assert min(model.naps[n]) <= result.timing.end_to_end_s < max(model.naps[n]) + 0.004, (n, result.timing)
    assert not any("shapes differ" in note for note in result.notes)

def test_a_step_of_several_calls_says_so():
    w = watched_with(lambda m: [m(torch.randn(n, 8)).sum().backward() for n in (6, 9, 6)])
    assert "3 calls of 6×8 float32 + 9×8 float32" in w.result.text()
    assert [(t["name"], t["shape"]) for t in w.result.sample] == [("0", [6, 8]), ("call 2: 0", [9, 8])]
    assert rows(w.result)["0", "forward"].contraction_flops == (6 + 9 + 6) * 2 * 8 * 16

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
    def forward(self, x): return self.c(torch.cond(x.sum() > 0, self.a, self.b, (x,)))

@heavy_only("torch.cond asks the compiler")
def test_gradients_go_through_functions_of_operators():
    "Whose FLOPs are then unknown: 2 * 4 * 8 * 8 are the product of the layer behind them."
    if not hasattr(torch._higher_order_ops.utils, "_hop_compile_and_call"): pytest.skip("PyTorch 2.11")
    torch.manual_seed(0)
    alone, model = (made := Branches()), copy.deepcopy(made)
    x = torch.ones(4, 8)
    def train(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(12): net(x).sum().backward(); optimizer.step()
    with watch(model, every=20, warmup=2, peaks=peaks) as w: train(model)
    train(alone)
    for p, q in zip(model.parameters(), alone.parameters()): assert torch.equal(p.grad, q.grad)
    found = rows(w)
    assert found["", "forward"].flops is None and found["c", "forward"].contraction_flops == 2 * 4 * 8 * 8

def test_settings_are_those_of_the_counted_call():
    model = net().eval()
    with watch(model, every=100, peaks=peaks) as w, torch.no_grad():
        for _ in range(15):
            with torch.autocast("cpu", torch.bfloat16): model(torch.randn(6, 8))
    assert w.result.settings["autocast"]

class Naps(dict):
    "Seconds that were really slept, by name: a busy machine wakes a process late."
    def take(self, name, seconds):
        start = time.perf_counter()
        time.sleep(seconds)
        self.setdefault(name, []).append(time.perf_counter() - start)

    def check(self, rows, more_s=0.05):
        "The time of each row is that of its naps, and little more: what one row has too much, another lacks."
        for key, naps in self.items():
            assert min(naps) <= rows[key].time_s < max(naps) + more_s, (key, rows[key].time_s, naps)

class Sleep(nn.Module):
    def __init__(self, naps, name, t):
        super().__init__()
        self.nap, self.weight = partial(naps.take, (name, "forward"), t), nn.Parameter(torch.ones(()))
    def forward(self, x): self.nap(); return x * self.weight

@pytest.mark.timed
def test_times_land_where_they_were_spent():
    naps = Naps()
    model = nn.Sequential(Sleep(naps, "0", 0.004), Sleep(naps, "1", 0.008))
    class Slow(torch.optim.SGD):
        def step(self, closure=None): naps.take(("(optimizer)", "update"), 0.003); return super().step(closure)
    optimizer = Slow(model.parameters(), lr=0.1)
    with watch(model, every=100, warmup=8, peaks=peaks) as w:
        for _ in range(24):
            loss = model(torch.ones(4)).sum()
            naps.take(("(outside the model)", ""), 0.006)        # data, logging
            loss.backward(); optimizer.step()
    naps.check(rows(w.result))
    assert 0.5 < w.result.timing.ratio < 2

@pytest.mark.timed
def test_the_first_calls_are_not_the_program(monkeypatch):
    "The first 15 calls take 30 ms, all others 2: the time is that of the others, and a second sample is of them."
    monkeypatch.setattr(watching, "far", 0.25)
    class Warming(nn.Module):
        def __init__(self): super().__init__(); self.layer, self.calls = nn.Linear(4, 4), 0
        def forward(self, x): self.calls += 1; time.sleep(0.03 if self.calls <= 15 else 0.002); return self.layer(x)
    model = Warming()
    with watch(model, every=1000, peaks=peaks) as w, torch.no_grad():
        for _ in range(80): model(torch.ones(4))
    assert len(w.series) >= 2 and w.series[0]["step_time_s"] >= 0.03 > w.result.timing.end_to_end_s >= 0.002
    assert w.result.notes[0].startswith("time: median of ") and w.result.program.time_s == w.result.timing.end_to_end_s
    assert fasterbench.from_json(w.result.to_json()) == w.result

# ---- parts of a model

# contractions of one layer, by hand
def linear(batch, inner, outer, gradients): return gradients * 2 * batch * inner * outer

class Between(nn.Module):
    "Three layers and two nodes that take their time, of which only `middle` is watched in the tests."
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(64, 256), nn.Linear(256, 32), nn.Linear(32, 8)
    def forward(self, x): return self.last(Slowly.apply(self.middle(Slowly.apply(self.first(x).relu()))))

class Slowly(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 1
    @staticmethod
    def backward(ctx, grad): time.sleep(0.01); return grad * 1

def watched_part(model, part, inputs=64, steps=20, loss=lambda out: out.square().mean(), **how):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    with watch(part, every=100, peaks=peaks, **how) as w:
        for _ in range(steps):
            loss(model(torch.randn(16, inputs))).backward()
            optimizer.step(); optimizer.zero_grad()
    return w

@pytest.mark.timed
def test_work_of_layers_before_and_after_a_part_is_not_its_own():
    model = Between()
    w = watched_part(model, model.middle)
    by, out = rows(w.result), 16 * 32
    assert set(by) == {("", "forward"), ("", "backward"), ("(optimizer)", "update"), ("(outside the model)", "")}
    assert (by["", "forward"].contraction_flops == linear(16, 256, 32, 1)
            and by["", "backward"].contraction_flops == linear(16, 256, 32, 2))
    # it reads the gradient of its result, its weights, and its input; it writes gradients of the input, the weights
    # and the bias
    assert by["", "backward"].bytes_moved == 4 * (out + 256*32 + 16*256 + 16*256 + 256*32 + 32)
    assert by["", "backward"].time_s < 0.005 and by["(outside the model)", ""].time_s > 0.02          # both naps
    assert (w.series[-1]["mfu"] == pytest.approx(linear(16, 256, 32, 3) / peaks.peak_flops
                                                 / w.series[-1]["step_time_s"]))

@pytest.mark.parametrize("part, gradients", [("first", 1), ("middle", 2), ("last", 2)])
def test_a_part_has_the_gradients_that_are_asked_for(part, gradients):
    model = Between()
    layer = model.get_submodule(part)
    by = rows(watched_part(model, layer).result)
    assert by["", "backward"].contraction_flops == linear(16, layer.in_features, layer.out_features, gradients)

def test_a_part_among_frozen_layers():
    """No other layer gets a gradient: the input of the part is not asked for one, and what comes after it is no
    loss all the same."""
    model = Between()
    for p in (*model.first.parameters(), *model.last.parameters()): p.requires_grad_(False)
    by = rows(watched_part(model, model.middle).result)
    assert by["", "backward"].contraction_flops == linear(16, 256, 32, 1) and ("(loss)", "backward") not in by

def test_a_loss_with_a_penalty_is_a_loss():
    "Its nodes come to parameters, but to those of the model."
    model = nn.Sequential(nn.Linear(64, 8))
    penalized = watched_part(model, model, loss=lambda out: out.square().mean() + model[0].weight.square().sum())
    by = rows(penalized.result)
    assert by["(loss)", "backward"].flops > 64 * 8 and by["0", "backward"].contraction_flops == linear(16, 64, 8, 1)

class Tied(nn.Module):
    "The last layer has the weights of the first."
    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 64)), nn.Linear(64, 32, bias=False)
        self.last.weight = self.body[0].weight
    def forward(self, x): return self.last(self.body(x))

def test_a_layer_with_the_weights_of_a_part_is_not_its_own():
    model = Tied()
    by = rows(watched_part(model, model.body).result)
    assert (by["0", "backward"].contraction_flops == linear(16, 64, 32, 1)
            and by["1", "backward"].contraction_flops == linear(16, 32, 64, 2))
    assert (("(loss)", "backward") not in by
            and sum(p.contraction_flops or 0 for p in by.values() if p.phase == "backward") == linear(16, 64, 32, 3))

def test_a_module_that_only_calls_the_model_makes_no_part_of_it():
    inner = nn.Sequential(nn.Linear(64, 8))
    class Wrapped(nn.Module):
        def __init__(self): super().__init__(); self.inner = inner
        def forward(self, x): return self.inner(x)
    assert ("(loss)", "backward") in rows(watched_part(Wrapped(), inner).result)

class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
    def forward(self, x):
        y = self.layer(x)
        return y if torch.isfinite(y).all() else y.clamp(-1, 1)

def test_what_the_count_of_a_compiled_model_assumes_is_a_note():
    model = torch.compile(Guarded(), backend="eager")
    with watch(model, every=6, active=2, peaks=HardwarePeaks(1e15, 1e15)) as seen:
        for _ in range(30): model(torch.ones(4, 16))
    assert "assumed: no number is infinite or NaN" in seen.result.notes

def test_a_compiled_part():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    model[2].compile(backend="eager")
    by = rows(watched_part(model, model[2]).result)
    assert by["", "backward"].contraction_flops == linear(16, 256, 8, 2) and ("(loss)", "backward") not in by

def test_the_discriminator_alone():
    """By hand: with the real and the generated batch two gradients of the weights, with that of the generator's
    step both gradients."""
    generator, discriminator = nn.Linear(8, 16), nn.Linear(16, 32)
    updates = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (generator, discriminator)]
    with watch(discriminator, every=100, optimizer=updates[1], peaks=peaks) as w:
        for _ in range(30):
            for other in (torch.randn(4, 16), generator(torch.randn(4, 8)).detach()):
                discriminator(other).square().mean().backward()
            updates[1].step(); updates[1].zero_grad()
            discriminator(generator(torch.randn(4, 8))).square().mean().backward()
            updates[0].step(); updates[0].zero_grad()
    assert rows(w.result)["", "backward"].contraction_flops == linear(4, 16, 32, 1 + 1 + 2)

def test_a_callback_watches_a_part():
    pytest.importorskip("transformers")
    seen = fasterbench.trainer_callback("middle", every=100, peaks=peaks)
    model = Between()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen.on_train_begin(None, None, None, model=model)
    for _ in range(20): model(torch.randn(16, 64)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()
    seen.on_train_end(None, None, None)
    assert rows(seen.watch.result)["", "backward"].contraction_flops == linear(16, 256, 32, 2)

# ---- what goes wrong

class Trouble(Exception): pass

class Faulty(nn.Module):
    "Raises in the chosen call, in its forward or its backward."
    def __init__(self):
        super().__init__()
        self.inner, self.calls, self.at, self.where, self.error = nn.Linear(8, 4), 0, None, "", Trouble
    def forward(self, x):
        self.calls += 1
        out = self.inner(x)
        if self.calls == self.at and self.where == "forward": raise self.error("here")
        if self.calls == self.at and self.where == "backward": out.register_hook(self.fails)
        return out
    def fails(self, grad): raise self.error("here")

class FaultyStep(torch.optim.SGD):
    at = error = None
    def step(self, closure=None):
        if self.param_groups[0]["params"] and self.at == 0: raise self.error("here")
        if self.at is not None: self.at -= 1
        return super().step(closure)

@pytest.mark.parametrize("where, error",
                         [*(pytest.param(where, error,
                                         marks=[heavy_only("another error there")]
                                         * (where != "backward" or error is not KeyboardInterrupt))
                            for where, error in itertools.product(
                                ("forward", "backward", "update"), (Trouble, KeyboardInterrupt))),
                          ("loss", TypeError)])
def test_an_error_goes_through_and_everything_is_off(where, error):
    for at in range(4, 18, 1 if nightly else 3):       # in the calls before, in and after a sample
        program = Program(Faulty(), FaultyStep, lr=0.1)
        program.model.at, program.model.where, program.model.error = at, where, error
        if where == "update": program.optimizer.at, program.optimizer.error = at - 1, error
        if where == "loss": program.batch = lambda i, b=program.batch: b(i) if i != at - 1 else (b(i)[0], "no tensor")
        program.before = attributes(program.model)
        with pytest.raises(error):
            with watch(program.model, every=30, active=2, peaks=peaks) as w: program.run(30)
        assert nothing_attached(program.model, program.before) and attributes(program.model) == program.before, at
        assert w.sample is None and len(program.losses) == at - (where != "update")
        with watch(program.model, peaks=peaks): pass     # it can be watched again

def test_a_program_that_catches_its_errors_goes_on():
    "A step that raises and is skipped, in the middle of a sample."
    for where in ("forward", "backward", "update"):
        program = Program(Faulty(), FaultyStep, lr=0.1)
        program.model.at, program.model.where = 8, where
        if where == "update": program.optimizer.at, program.optimizer.error = 7, Trouble
        with watch(program.model, every=15, active=2, peaks=peaks) as w:
            done = 0
            while done < 45:
                try: done += 1; program.run(1)
                except Trouble: pass
            assert nothing_attached(program.model, program.before) or w.sample is not None
        assert (len(w.series) >= 2 and attributes(program.model) == program.before
                and not _get_current_dispatch_mode_stack())

def test_an_error_of_the_sampling_is_a_warning(monkeypatch):
    import fasterbench.running.steps as stages, fasterbench.running.watch as module
    def broken(*args, **kwargs): raise ValueError("cannot count")
    for owner, name in (((module, "measured_result"), (stages, "border"), (stages, "_after"), (stages, "graph_nodes"),
                         (stages, "self_times"))):
        plain, program = Program(), Program()
        seeded(); plain.run(30)
        seeded()
        with monkeypatch.context() as patched, warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            patched.setattr(owner, name, broken)
            with watch(program.model, every=100, active=2, peaks=peaks) as w: program.run(30)
        assert program.losses == plain.losses and attributes(program.model) == program.before, name
        assert ["cannot count" in str(h.message) for h in heard] == [True] and len(w.failures) == 1, name
        with pytest.raises(
            RuntimeError, match="no sample is complete yet: the model was called 30 times.*cannot count"):
            w.result

def test_a_sample_that_cannot_begin_holds_up_nobody(monkeypatch):
    import fasterbench.running.watch as module
    def broken(*args): raise ValueError("no words")
    a, b = Program(), Program()
    with watch(a.model, every=50, peaks=peaks) as wa, watch(b.model, every=50, peaks=peaks) as wb:
        with monkeypatch.context() as patched, pytest.warns(
            UserWarning, match="given up at call 5: ValueError: no words"):
            patched.setattr(module, "ProgramSample", broken)
            a.run(10)
        b.run(30)
        a.run(80)
    assert len(wb.series) == 1 and wa.calls == 90 and [r["step"] for r in wa.series] == [55]

def test_on_sample_raises():
    program = Program()
    def logger(step, metrics): raise Trouble(step)
    with pytest.warns(UserWarning, match="Sequential: a sample cannot be handed on at call 5: Trouble: 5"):
        with watch(program.model, every=20, peaks=peaks, on_sample=logger) as w: program.run(50)
    assert len(program.losses) == 50 and len(w.series) == 2 and len(w.failures) == 2
    assert w.result.model == "Sequential" and attributes(program.model) == program.before

def test_the_log_cannot_be_written(tmp_path):
    program, log, given = Program(), tmp_path/"folder"/"a.jsonl", []
    log.parent.mkdir()
    with pytest.warns(UserWarning, match="cannot be handed on at call 5: FileNotFoundError"):
        with watch(program.model, every=90, peaks=peaks, log=log, on_sample=lambda *g: given.append(g)) as w:
            log.unlink(); log.parent.rmdir()
            program.run(30)
    assert len(program.losses) == 30 and len(w.series) == len(given) == 1

# ---- models and programs of other kinds

def test_calls_from_other_threads_pass():
    program, stop, others = Program(), threading.Event(), []
    def serve():
        while not stop.is_set():
            with torch.no_grad(): others.append(program.model(torch.randn(6, 8)).shape)
    thread = threading.Thread(target=serve)
    with watch(program.model, every=50, active=2, peaks=peaks, warmup=0) as w:
        program.run(3)
        thread.start()
        try: program.run(60)
        finally: stop.set(); thread.join()
    assert (others and set(others) == {torch.Size([6, 4])} and not w.failures
            and attributes(program.model) == program.before)
    assert len(w.series) >= 1

class Recursive(nn.Module):
    def __init__(self): super().__init__(); self.inner = nn.Linear(8, 8)
    def forward(self, x, depth=2): return self.inner(self(x, depth - 1) if depth else x)

def test_a_model_that_calls_itself():
    model, x = Recursive(), torch.randn(6, 8)
    with watch(model, every=40, peaks=peaks, warmup=6) as w, torch.no_grad():
        for _ in range(30): model(x)
    profile = fasterbench.RooflineAnalyzer(model, x, peaks).profile(warmup=1, steps=2)
    assert not w.failures and rows(w.result)["inner", ""].calls == 3
    assert rows(w.result)["inner", ""].flops == rows(profile)["inner", ""].flops

class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__(); self.first, self.inner, self.reentrant = nn.Linear(8, 8), net(), reentrant
    def forward(self, x): return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)

@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant):
    def made():
        torch.manual_seed(0)
        return Program(Checkpointed(reentrant))
    program, w = watched_as_without(made)
    x, y = program.batch(0)
    profile = fasterbench.RooflineAnalyzer(program.model, x,
                                           peaks).profile(
        backward=True, loss=lambda o: F.cross_entropy(o, y), warmup=1, steps=2)
    ours, theirs = rows(w.result), rows(profile)
    def flops(found): return {k: p.flops for k, p in found.items() if not k[0].startswith("(")}
    assert flops(ours) == flops(theirs)

@heavy_only("compiles")
@pytest.mark.parametrize("way", ["wrapped", "in place", "a part"])
def test_compiled_models_run_as_compiled(way):
    "Counted without being run; the code that was compiled is compiled once, and what it computes is the same."
    def run(watched):
        torch._dynamo.reset(); torch._dynamo.utils.counters.clear()
        program = Program(optimizer=torch.optim.SGD, lr=0.1)
        model = program.model
        if way == "wrapped": program.model = torch.compile(model, backend="aot_eager")
        else: (model if way == "in place" else model[0]).compile(backend="aot_eager")
        seeded()
        with watch(program.model, every=20, active=2, peaks=peaks) if watched else nullcontext() as w: program.run(40)
        return program, w, torch._dynamo.utils.counters["stats"]["unique_graphs"]
    (plain, _, graphs), (program, w, watched_graphs) = run(False), run(True)
    assert plain.losses == program.losses and graphs == watched_graphs and len(w.series) == 2 and not w.failures
    eager = Program(optimizer=torch.optim.SGD, lr=0.1)
    with watch(eager.model, every=100, peaks=peaks) as counted: eager.run(20)
    def flops(result, phase): return sum(p.contraction_flops for p in result if p.phase == phase)
    assert all(flops(w.result, phase) == flops(counted.result, phase) > 0 for phase in ("forward", "backward"))
    assert rows(w.result)["(optimizer)", "update"].flops == rows(counted.result)["(optimizer)", "update"].flops

def test_the_stage_for_kernels_sees_steps(monkeypatch):
    "Without a GPU there are marks and no kernels: all of a step is idle."
    import fasterbench.running.sampling as sampling, fasterbench.running.steps as stages
    monkeypatch.setattr(sampling, "timer", lambda run: stages.KernelStep)
    program, w = watched_as_without()
    by = rows(w.result)
    assert not w.failures and attributes(program.model) == program.before
    assert by["(idle)", ""].time_s > 0 and by["0", "forward"].time_s == 0 and len(w.result.steps) == 3
    assert not torch.autograd._profiler_enabled()

def test_a_raw_model_whose_compiled_version_is_called():
    "Nothing is traced into the compiled code, and its calls are not seen."
    torch._dynamo.reset(); torch._dynamo.utils.counters.clear()
    program = Program()
    model, program.model = program.model, torch.compile(program.model, backend="aot_eager")
    with watch(model, peaks=peaks) as w: program.run(20)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1 and w.calls == 0

def critic_and_generator(steps, every, updates):
    """`updates` of a critic, on what a generator makes without gradients, per update of the generator; the samples
    of both."""
    torch.manual_seed(0)
    g, d = nn.Sequential(nn.Linear(4, 8)), nn.Sequential(nn.Linear(8, 1))
    og, od = (torch.optim.SGD(m.parameters(), lr=0.01) for m in (g, d))
    with watch(d, every, peaks=peaks) as wd, watch(g, every, peaks=peaks) as wg:
        for _ in range(steps):
            for _ in range(updates):
                with torch.no_grad(): fake = g(torch.randn(6, 4))
                od.zero_grad(); (d(fake) - d(torch.randn(6, 8))).mean().backward(); od.step()
            og.zero_grad(); (-d(g(torch.randn(6, 4))).mean()).backward(); og.step()
    assert not wg.failures + wd.failures
    return wg, wd

def test_two_models_take_turns():
    "A generator and a discriminator: the backward of one goes through both, each update belongs to one."
    wg, wd = critic_and_generator(60, every=180, updates=1)
    assert len(wg.series) == 1 and len(wd.series) == 1
    assert rows(wg.result)["0", "forward"].calls == 1 and rows(wd.result)["0", "forward"].calls in (1, 2, 3)
    assert rows(wg.result)["(optimizer)", "update"].calls == 1

def test_calls_without_gradients_beside_the_backward_of_another_model():
    """A step of the generator is its call with gradients; the backward of the critic after one without belongs to
    no step of it."""
    wg, wd = critic_and_generator(40, every=250, updates=3)
    assert len(wg.series) == 1 and len(wd.series) == 2
    assert rows(wg.result)["0", "forward"].calls == 1 and rows(wg.result)["(optimizer)", "update"].calls == 1

def test_copies_and_pickles_are_those_of_the_model():
    program, made = Program(), []
    def copies(i): made.extend([copy.deepcopy(program.model), pickle.loads(pickle.dumps(program.model))])
    with watch(program.model, every=100, peaks=peaks): program.run(16, copies)
    assert all(attributes(m)[0][1] == program.before[0][1] and "forward" not in vars(m)
               and m(torch.randn(6, 8)).shape == (6, 4) for m in made)

def test_the_watched_forward_looks_like_the_forward():
    import inspect
    model = net()
    before = inspect.signature(model.forward), model.forward.__name__, model.forward.__doc__
    with watch(model, peaks=peaks):
        assert (inspect.signature(model.forward), model.forward.__name__, model.forward.__doc__) == before
        assert model.forward.__wrapped__.__func__ is nn.Sequential.forward and model.forward.__self__ is model

# ---- calls that are no steps of the program

tracers = dict(jit=lambda m, x: torch.jit.trace(m, x, check_trace=False), checked=lambda m, x: torch.jit.trace(m, x),
               export=lambda m, x: torch.export.export(m, (x,)), fx=lambda m, x: torch.fx.symbolic_trace(m),
               make_fx=lambda m, x: torch.fx.experimental.proxy_tensor.make_fx(m)(x),
               script=lambda m, x: torch.jit.script(m))

@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", in_line(tracers, "export", why="another tracer"))
def test_a_tracer_sees_the_model_as_it_is(name):
    """Before a sample, at each of its calls, and after it; what is traced has nothing of the sampling in it, and
    the sample nothing of the tracer."""
    for at in range(0, 20, 1 if nightly else 3):
        program, x, traced = Program(), torch.randn(6, 8), []
        program.model[1] = nn.Identity()                 # running statistics are no matter here
        program.model[3] = nn.Identity()
        program.before = attributes(program.model)
        def between(i):
            if i != at: return
            program.model.eval()
            with warnings.catch_warnings():
                warnings.simplefilter("error", torch.jit.TracerWarning)
                made, plain = tracers[name](program.model, x), copy.deepcopy(program.model)
            traced.append(torch.equal((made.module() if name == "export" else made)(x), plain(x)))
            program.model.train()
        with watch(program.model, every=100, peaks=peaks) as w: program.run(24, between)
        assert traced == [True] and w.calls == 24 + (name == "checked")   # the check calls the model itself
        assert (len(w.series) == 1 and not w.failures
                and {p.phase for p in w.result} == {"", "forward", "backward", "update"}), at
        for m in program.model.modules(): vars(m).pop("__overloads__", None)     # torch.jit.script leaves it
        assert attributes(program.model) == program.before

evaluations = dict(no_grad=(torch.no_grad, True), inference_mode=(torch.inference_mode, True),
                   eval_only=(nullcontext, True), no_grad_only=(torch.no_grad, False))

@pytest.mark.parametrize("name", [n if n == "no_grad"
                                  else pytest.param(n, marks=heavy_only("another kind of evaluation"))
                                  for n in evaluations])
@pytest.mark.parametrize("times", [1, pytest.param(7, marks=nightly_only("the same, seven times"))])
def test_evaluation_begins_no_sample_of_training(name, times):
    "Wherever it comes, before the first sample, as its first call, or within it."
    context, mode = evaluations[name]
    for at in range(0, 16, 1 if nightly else 5):
        program = Program()
        def between(i):
            if i != at: return
            program.model.train(not mode)
            with context():
                for _ in range(times): program.model(torch.randn(6, 8))
            program.model.train()
        with watch(program.model, every=25, peaks=peaks) as w: program.run(60, between)
        assert (len(w.series) >= 2 and all({"forward_share", "update_share"} <= r.keys()
                                           for r in w.series)), (at, w.series)
        assert not remarks(w) and rows(w.result)["0", "forward"].calls == 1

def test_evaluation_before_training_and_after_one_call_with_gradients():
    program = Program()
    with watch(program.model, every=300, peaks=peaks) as w:
        for i in range(9): program.test(i)               # a sample of evaluation begins …
        program.run(30)                                  # … and training comes
    assert len(w.series) == 1 and {p.phase for p in w.result} == {"", "forward", "backward", "update"}
    model = net()
    with watch(model, every=300, peaks=peaks) as w:
        model(torch.randn(6, 8))                         # of a program that only evaluates
        with torch.no_grad():
            for _ in range(100): model(torch.randn(6, 8))
    assert {p.phase for p in w.result} == {""}
    trained = Program()
    with watch(trained.model, every=300, peaks=peaks) as w:
        trained.run(2)
        for i in range(40): trained.test(i)
        with pytest.raises(
            RuntimeError, match="called 42 times and not sampled: it trains, and evaluates from call 6 on"):
            w.result

@pytest.mark.parametrize("optimizer", in_line([torch.optim.Adam, torch.optim.SGD, torch.optim.LBFGS], torch.optim.SGD))
def test_an_update_with_a_closure(optimizer):
    "The update is the optimizer's own work and time; what the closure runs is forward and backward."
    def run(watched):
        model = net().eval()
        steps, x, losses = (optimizer(model.parameters(), lr=0.01),
                            torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), [])
        def closure():
            steps.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss
        with watch(model, every=1000, peaks=peaks) if watched else nullcontext() as w:
            for _ in range(16): steps.step(closure)
        return losses, w
    (plain, _), (losses, w) = run(False), run(True)
    assert plain == losses and not w.failures
    by = rows(w.result)
    update, forward, backward = by["(optimizer)", "update"], by["0", "forward"], by["0", "backward"]
    assert update.flops > 0 and update.time_s > 0 and update.type == optimizer.__name__
    assert (forward.calls == (1 if optimizer is not torch.optim.LBFGS else forward.calls)
            and forward.contraction_flops == forward.calls * 2 * 6 * 8 * 16)
    assert backward.contraction_flops == forward.contraction_flops
    if optimizer is torch.optim.LBFGS: return
    usual = Program(net().eval(), optimizer, lr=0.01)
    with watch(usual.model, every=1000, peaks=peaks) as w: usual.run(20)
    usual = rows(w.result)["(optimizer)", "update"]
    assert (update.flops, update.bytes_moved, update.calls) == (usual.flops, usual.bytes_moved, usual.calls)

@pytest.mark.timed
def test_a_closure_is_timed_where_it_belongs():
    naps = Naps()
    model = nn.Sequential(Sleep(naps, "0", 0.004))
    class Slow(torch.optim.SGD):
        def step(self, closure):
            with torch.enable_grad(): closure()
            naps.take(("(optimizer)", "update"), 0.008); return super().step()
    optimizer = Slow(model.parameters(), lr=0.1)
    with watch(model, every=100, peaks=peaks) as w:
        for _ in range(20): optimizer.step(lambda: model(torch.ones(4)).sum().backward())
    naps.check(rows(w.result))

# ---- how many calls a sample needs

class Ended(Exception): pass

@pytest.mark.parametrize("end", [None, SystemExit, KeyboardInterrupt, Ended])
@pytest.mark.parametrize("active, warmup", [pytest.param(1, 0, marks=heavy_only("other numbers")), (3, 5)])
def test_a_sample_needs_as_many_calls_as_it_says(active, warmup, end):
    def run(calls):
        program = Program()
        with pytest.raises(end) if end else nullcontext():
            with watch(program.model, active=active, warmup=warmup, peaks=peaks) as w:
                program.run(calls)
                if end: raise end()
        return w
    said = f"begins after {warmup} and takes {active + 4} steps of one call or more"
    if warmup:
        with pytest.raises(RuntimeError, match=f"the model was called 1 time, too few for a sample, which {said}"):
            run(1).result
    needed = warmup + active + 4
    with pytest.raises(RuntimeError, match="a sample began at call"): run(needed - 1).result
    assert len(run(needed + (end in (KeyboardInterrupt, Ended))).series) == 1
    assert len(run(needed + 1).series) == 1

def test_calls_that_are_needed_without_an_optimizer():
    def run(calls):
        model = net()
        with watch(model, peaks=peaks) as w:
            for _ in range(calls): model(torch.randn(6, 8)).sum().backward()
        return w
    with pytest.raises(
        RuntimeError, match="a sample began at call 6 and did not end: .* without one it takes 30 calls"):
        run(20).result
    assert (len(run(35).series) == 1 and "no update of an optimizer was seen: a step ends with its backward"
            in run(35).result.notes)
    assert not run(34).series

@pytest.mark.parametrize("keep", [False, True], ids=["dropped", "assigned"])
def test_calls_with_gradients_and_without_a_backward(keep):
    "Once the graph of a call is gone no backward comes through it: its step was the call. Of 8 calls 3 come before."
    def run(calls):
        model = net()
        with watch(model, every=3, active=1, peaks=peaks) as w:
            for _ in range(calls):
                if keep: out = model(torch.randn(6, 8))
                else: model(torch.randn(6, 8))
        return w
    needed = 3 + 1 + keep + 4                       # before, until the first graph is gone, active + 3
    assert len(run(needed).series) == 1
    with pytest.raises(RuntimeError, match="a sample began at call 4"): run(needed - 1).result

def test_several_calls_before_one_backward():
    "The graphs of calls are alive until the backward has come: they are one step; one that is dropped is corrected."
    for dropped in (False, True):
        model = net()
        with watch(model, every=100, active=1, warmup=0, peaks=peaks) as w:
            for _ in range(40):
                if dropped: model(torch.randn(6, 8))
                sum(model(torch.randn(6, 8)).sum() for _ in range(3)).backward()
        assert rows(w.result)["0", "forward"].calls == 3 + dropped

@heavy_only("hundreds of calls")
def test_updates_that_come_late():
    "Of many accumulated calls; where they are more than one waits for, the optimizer can be given."
    for accumulate, given in ((16, False), (30, False), (60, True)):
        program = Program(accumulate=accumulate)
        with watch(program.model, every=10000, active=1, peaks=peaks,
                   optimizer=program.optimizer if given else None) as w:
            program.run(6 * accumulate)
        assert rows(w.result)["0", "forward"].calls == accumulate and ("(optimizer)", "update") in rows(w.result)

# ---- one sample at a time

def test_a_model_that_is_no_longer_called_holds_up_nobody():
    a, b = Program(), Program()
    with watch(a.model, every=100, peaks=peaks) as wa, watch(b.model, every=100, peaks=peaks) as wb:
        a.run(8)
        assert wa.sample is not None
        b.run(10)
        with pytest.raises(
            RuntimeError, match="called 10 times and not sampled: a sample of another model was under way"):
            wb.result
        b.run(30)
        assert wa.sample is None and nothing_attached(a.model, a.before) and len(wb.series) == 1
        with pytest.raises(
            RuntimeError, match="called 8 times; a sample began at call 6 and did not end: it had 1 of 6 steps"):
            wa.result
        a.run(20)                                        # and its own comes when it is called again
    assert len(wa.series) == len(wb.series) == 1 and attributes(a.model) == a.before and not wa.failures + wb.failures

def test_the_sample_of_a_thread_that_is_gone_holds_up_nobody():
    a, b = Program(), Program()
    with watch(a.model, every=100, peaks=peaks) as wa, watch(b.model, every=100, peaks=peaks) as wb:
        thread = threading.Thread(target=a.run, args=(8,))
        thread.start(); thread.join()
        assert wa.sample is not None
        b.run(16)
        assert not wa.series and len(wb.series) == 1
        a.run(20)                                        # and its own comes when it is called again
    assert len(wa.series) == 1 and attributes(a.model) == a.before

@heavy_only("models in four threads")
def test_threads_that_train_their_own_models():
    """Samples are dropped while their thread is at work elsewhere, or not; none is left, and each model learns what
    it learns."""
    def run(watched):
        programs = [Program(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))) for _ in range(3)]
        for i, p in enumerate(programs):
            torch.manual_seed(i)
            for q in p.model.parameters(): nn.init.normal_(q)
            made = [(torch.randn(6, 8), torch.randint(4, (6,))) for _ in range(8)]
            p.batch = lambda i, made=made: made[i % 8]
        with (watch(programs[0].model, every=20, peaks=peaks) if watched else nullcontext() as a,
              watch(programs[1].model, every=20, peaks=peaks) if watched else nullcontext() as b,
              watch(programs[2].model, every=20, peaks=peaks) if watched else nullcontext() as c):
            threads = [threading.Thread(target=p.run, args=(400,)) for p in programs]
            for t in threads: t.start()
            for t in threads: t.join()
        return programs, (a, b, c)
    (plain, _), (seen, watches) = run(False), run(True)
    assert [p.losses for p in plain] == [p.losses for p in seen] and sum(len(w.series) for w in watches) >= 2
    assert all(attributes(p.model) == p.before for p in seen) and nothing_attached(seen[0].model, seen[0].before)

# ---- arguments and outputs

def test_what_is_refused(tmp_path):
    model = net()
    with watch(model, peaks=peaks):
        with pytest.raises(RuntimeError, match="Sequential is being watched already: leave that watch first"):
            watch(model, peaks=peaks).__enter__()
        assert "forward" in vars(model)
    for error, how in (((ValueError, dict(every=0)), (ValueError, dict(active=0)), (ValueError, dict(warmup=-1)),
                        (TypeError, dict(peaks=3)), (TypeError, dict(on_sample=3)))):
        with pytest.raises(error): watch(model, **how)
    with pytest.raises(TypeError, match="torch.nn.Module is needed"): watch(lambda x: x)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        watch(model, peaks=peaks, log=tmp_path/"no"/"a.jsonl").__enter__()
    with watch(model, peaks=peaks) as w:
        with pytest.raises(RuntimeError, match="no sample is complete yet: the model was called 0 times"): w.result
    assert attributes(model) == attributes(net()) or "forward" not in vars(model)

def test_the_log_grows_line_by_line(tmp_path):
    program, lines = Program(), []
    log = tmp_path/"roofline.jsonl"
    log.write_text('{"step": 1}\n')                      # of an earlier run: lines are appended
    with watch(program.model, every=20, active=1, peaks=peaks, log=log) as w:
        program.run(100, lambda i: lines.append(log.read_text().count("\n")))
    assert len(w.series) == 5 and sorted(set(lines)) == [1, 2, 3, 4, 5, 6]
    records = [json.loads(line) for line in log.read_text().splitlines()][1:]
    # of the first sample
    assert records[0].pop("device") and records[0].pop("roofs") == "float32 100 GFLOP/s, DRAM 10 GB/s"
    assert records == list(w.series) == list(read_series(log))[1:]

def test_metrics_are_plain_numbers():
    program, given = Program(), []
    with watch(program.model, every=40, peaks=peaks, on_sample=lambda *a: given.append(a)) as w: program.run(40)
    (step, metrics), = given
    assert step == 5 and all(type(v) is float and k.startswith("roofline/") for k, v in metrics.items())
    shares = [metrics[f"roofline/{k}_share"]
              for k in ("compute", "memory", "launch", "unknown", "overhead", "outside")]
    assert (abs(sum(shares) - 1) < 1e-9 and metrics["roofline/outside_share"]
            == pytest.approx(rows(w.result)["(outside the model)", ""].share))
    assert w.result.call["step"] == 5 and w.result.call["every"] == 40
    w.result.summary(); w.result.to_json(); w.result.plot(); assert len(w.result.to_frame()) == len(w.result)

# ---- a forward that is replaced, and the end of a watch

def by_function(model):
    "As accelerate does for mixed precision."
    function = model.forward.__func__
    model.forward = types.MethodType(lambda self, *args, **kwargs: function(self, *args, **kwargs), model)

def by_method(model):
    forward = model.forward
    model.forward = lambda *args, **kwargs: forward(*args, **kwargs)

@pytest.mark.parametrize("replace", [by_function, by_method])
@pytest.mark.parametrize("when", [0, 8, 30])
def test_a_forward_around_the_watched_one(replace, when):
    "Calls are counted all the same, also where it comes in the middle of a sample; after the watch there is none."
    program = Program()
    with watch(program.model, every=40, active=2, peaks=peaks) as w:
        program.run(when)
        replace(program.model)
        program.run(60 - when)
    calls, samples = w.calls, len(w.series)
    assert calls == 60 and samples == 2 and not w.failures
    program.run(50)
    assert w.calls == calls and len(w.series) == samples and w.sample is None
    assert nothing_attached(program.model, program.before)

def test_copies_with_the_function_of_a_watched_forward_are_not_watched():
    program = Program()
    with watch(program.model, peaks=peaks) as w:
        by_function(program.model)
        copy.deepcopy(program.model)(torch.randn(6, 8))
    assert w.calls == 0

def test_a_sample_does_not_begin_in_another_thread_while_the_watch_ends(monkeypatch):
    program, begins, over = Program(), threading.Event(), threading.Event()
    def may_begin(w, original=Watch._may_begin):
        taken = original(w)
        if threading.current_thread() is thread: begins.set(); over.wait(20)
        return taken
    monkeypatch.setattr(Watch, "_may_begin", may_begin)
    thread = threading.Thread(target=lambda: program.model(torch.randn(6, 8)))
    with watch(program.model, warmup=0, peaks=peaks) as w:
        thread.start()
        begins.wait(20)
    over.set(); thread.join()
    assert w.sample is None and Watch.holder is None and attributes(program.model) == program.before
    assert nothing_attached(program.model, program.before)

def test_a_watch_that_is_entered_again_goes_on_counting():
    program = Program()
    w = watch(program.model, every=30, active=2, peaks=peaks)
    for _ in range(2):
        with w: program.run(40)
    assert w.calls == 80 and list(w.series.steps) == [5, 45]

@pytest.mark.parametrize("when", [0, 8])
def test_a_forward_that_takes_the_place_of_the_watched_one(when):
    "Calls are not seen from then on: what is said where there is no sample is why."
    program = Program()
    with watch(program.model, peaks=peaks) as w:
        program.run(when)
        program.model.forward = types.MethodType(nn.Sequential.forward, program.model)
        program.run(20)
    said = rf"called {when} times \(its forward was replaced: calls of the old one are not seen\)"
    with pytest.raises(RuntimeError, match=said): w.result
    with watch(net(), peaks=peaks) as w: pass
    assert "replaced" not in w.missing()

@heavy_only("compiles")
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_calls_that_are_not_seen_are_spoken_of(fullgraph):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = net()
    with watch(model, peaks=peaks) as w: torch.compile(model, backend="eager", fullgraph=fullgraph)(torch.randn(6, 8))
    assert w.missing() == "called 0 times; calls inside a compiled function are not seen"

@heavy_only("compiles")
def test_a_part_that_is_compiled_as_one_graph_is_counted():
    "A product of 6 rows by 16 outputs of 8."
    layer = nn.Linear(8, 16)
    whole = torch.compile(lambda x: layer(x), backend="eager", fullgraph=True)
    model = Calls(lambda m, x: m.whole(x), layer=layer, whole=whole)
    with watch(model, every=20, warmup=2, peaks=peaks) as w, torch.no_grad():
        for _ in range(12): model(torch.ones(6, 8))
    assert w.result.program.contraction_flops == 2 * 6 * 16 * 8
