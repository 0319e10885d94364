"""Devices: one place names their types; and on a simulated one, whose clock is known, every time is what it has to
be."""
import functools, gc, inspect, io, os, random, re, sys, tempfile, threading, tokenize, types, warnings
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest

import forked
from conftest import heavy_only

root = Path(__file__).resolve().parent.parent
package = root/"fasterbench"
# a CUDA graph is a term of the field
device_types = re.compile(r"(?<![A-Za-z])(cuda(?!_graph\b)|xpu|mps)(?![A-Za-z])")

# What may name them beside the seam: the reports of NVIDIA's own tool, which are read without PyTorch; and help texts.
others = {"ncu/ncu.py": 2, "ncu/ncu_verb.py": 1, "cli/app.py": 2, "cli/roofline_verb.py": 1,
          "predicting/predict_verb.py": 2, "checking/check_verb.py": 1}

def names_of_types(source):
    "Lines whose code names a type of device: a name or a text, comments and docstrings aside."
    found, before = [], tokenize.NEWLINE
    for t in tokenize.generate_tokens(io.StringIO(source).readline):
        text = t.type in (tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None))
        docstring = t.type == tokenize.STRING and before in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        if (t.type == tokenize.NAME or text and not docstring) and device_types.search(t.string):
            found.append(t.start[0])
        if t.type not in (tokenize.COMMENT, tokenize.NL): before = t.type
    return found

@pytest.mark.parametrize("line, n", [('if device.type == "cuda": torch.cuda.synchronize()', 2),
                                     ('"Runs on cuda."', 0), ("x = 1 # on cuda", 0),
                                     ('def f():\n    "Of cuda."\n    return "mps"', 1), ('g(f"xpu:{i}")', 1),
                                     ("barracuda = CUDA", 0)])
def test_names_of_types_are_found(line, n): assert len(names_of_types(line + "\n")) == n

@heavy_only("reads the code")
def test_devices_are_named_in_one_place():
    named = {p.relative_to(package).as_posix(): names_of_types(p.read_text(encoding="utf-8"))
             for p in package.rglob("*.py") if p.name != "_modidx.py"}
    assert len(named.pop("engine/accelerator.py")) > 20                           # the search finds what is there
    assert {path: len(lines) for path, lines in named.items() if lines} == others

# ---- a device whose right answers are known; each test has a process of its own, as PyTorch keeps such a device for
# good

def apart(test):
    "Run `test` in a process of its own, in which the simulated device is there, with the `tools` for it."
    @functools.wraps(test)
    def forked_test(*args, **kwargs):
        code = (
            f"import sys; sys.path[:0] = [{str(root)!r}, {str(root/'tests')!r}]\nimport torch; "
            f"torch.set_num_threads(1)\nimport test_accelerator as t; t.inside({test.__name__!r}, {args!r}, "
            f"{kwargs!r})")
        done = forked.python(code, package=True)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    _, *given = inspect.signature(test).parameters.values()
    forked_test.test, forked_test.__signature__ = test, inspect.Signature(given)
    return forked_test

def inside(name, args, kwargs):
    import simulated
    simulated.install()
    globals()[name].test(tools(), *args, **kwargs)

def tools():
    "What the tests use; imported where the device is."
    import torch
    from torch import nn
    import simulated
    from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
    from fasterbench.roofs.hardware import MemoryLevel
    return types.SimpleNamespace(torch=torch, nn=nn, sim=simulated, books=simulated.books, Table=simulated.Table,
                                 Analyzer=RooflineAnalyzer,
                                 roofs=HardwarePeaks(1e18, 1e18, device="sim:0"), MemoryLevel=MemoryLevel)

def net(t): return t.nn.Sequential(t.nn.Linear(8, 16), t.nn.ReLU(), t.nn.Linear(16, 4)).to("sim")
def sample(t): return t.torch.randn(2, 8).to("sim")
kernels = dict(addmm=100_000, relu=30_000)     # ns

def profiled(t, model, x, table, steps=3, **how):
    t.books.reset(table)
    return t.Analyzer(model, x, t.roofs).profile("sim", warmup=1, steps=steps, progress=False, **how)

def microseconds(ra): return {(p.name, p.phase) if p.phase else p.name: round(p.time_s * 1e6, 6) for p in ra.results}

def check_sum(ra, step):
    "The rows add up to the step, to the nanosecond; recorded steps and those without an instrument take the same."
    assert round(sum(p.time_s for p in ra.results) * 1e9) == round(ra.program.time_s * 1e9) == round(step * 1e3)
    assert ({round(p.time_s * 1e9) for p in ra.steps} == {round(step * 1e3)}
            and ra.timing.clock == "kernel times (simulated)")

def usual(t, **how): return profiled(t, net(t), sample(t), t.Table(kernels=kernels, **how))

@apart
def test_a_device_that_pytorch_takes_for_a_real_one(t):
    from fasterbench.engine.accelerator import available_devices, as_device
    assert available_devices() == ["cpu", "sim:0"] and str(as_device("sim")) == "sim:0"
    x = t.torch.arange(6.0).reshape(2, 3).to("sim")
    assert (type(x) is t.torch.Tensor and str(x.device) == "sim:0"
            and (x.t() @ x).cpu().tolist() == [[9, 12, 15], [12, 17, 22], [15, 22, 29]])
    # a view writes into what it is a view of
    x[0].neg_()
    assert x.cpu().tolist() == [[-0.0, -1, -2], [3, 4, 5]]
    model = net(t)
    model(sample(t)).sum().backward()
    assert all(p.grad.device == p.device for p in model.parameters())
    before = t.books.allocated
    more = t.torch.empty(1000, device="sim")
    assert t.books.allocated == before + 4000
    del more
    assert t.books.allocated == before

@apart
def test_kernel_bound(t):
    "Three kernels of 100, 30 and 100 µs behind a launch of 5: the device waits for the first launch alone."
    ra = usual(t)
    assert microseconds(ra) == {"0": 100, "1": 30, "2": 100, "(idle)": 5}
    check_sum(ra, 235)
    assert ({(o.name, o.operator): round(o.time_s * 1e6, 6) for o in ra.ops}
            == {("0", "aten::addmm"): 100, ("1", "aten::relu"): 30, ("2", "aten::addmm"): 100})

@apart
def test_the_allocators_peak_is_beside_the_counted_one(t):
    """The allocator gives out what is asked for, or blocks of 512 B: at the peak weights (128, 16, 64 and 4
    numbers), sample and results."""
    exact = profiled(t, net(t), sample(t), t.Table()).result.memory
    assert (exact.allocated_bytes == exact.peak_bytes
            and "×1.00 of the counted: 0 B libraries, rounding" in exact.allocator_line)
    step = profiled(t, net(t), sample(t), t.Table(), backward=True).result.memory
    assert step.allocated_bytes == step.peak_bytes > exact.peak_bytes
    blocks = profiled(t, net(t), sample(t), t.Table(block=512)).result.memory
    # after the ReLU: its input and its result of 2 · 16 numbers; what was there before is as it was counted
    assert (exact.peak_bytes == 4 * (128 + 16 + 64 + 4 + 16 + 32 + 32)
            and exact.start_bytes == 4 * (128 + 16 + 64 + 4 + 16))
    assert blocks.allocated_bytes == exact.start_bytes + 2 * 512

@apart
def test_launch_bound(t):
    "Launches of 50 µs and kernels of 10, 5 and 10: 3 · 50 and the last kernel, of which 25 are work."
    ra = profiled(t, net(t), sample(t), t.Table(launch=50_000, kernels=dict(addmm=10_000, relu=5_000)))
    assert microseconds(ra) == {"0": 10, "1": 5, "2": 10, "(idle)": 135}
    check_sum(ra, 160)

@pytest.mark.parametrize("launch, rows",
                         [(50_000, {"0": 10, "1": 5, "2": 10, "(idle)": 135}),
                          (1_000, {"0": 10, "1": 5, "2": 10, "(idle)": 1})])
@apart
def test_calls_that_take_longer_under_the_profiler_are_no_idle_time(t, launch, rows):
    """As before, while each recorded call takes 20 µs more: 3 · 70 + 10 in the record, 3 · 50 + 10 without it; and
    where kernels hide the launches."""
    ra = profiled(t, net(t), sample(t), t.Table(launch=launch, recorded=20_000,
                                                kernels=dict(addmm=10_000, relu=5_000)))
    assert microseconds(ra) == rows
    check_sum(ra, sum(rows.values()))

@apart
def test_gaps_between_kernels_are_idle(t):
    ra = usual(t, gap=2_000)
    assert microseconds(ra)["(idle)"] == 5 + 2 * 2
    check_sum(ra, 239)

@apart
def test_training(t):
    """Backward of a product: the gradient of the weight, that of the input but for the first layer, and the sum of the
    bias, 10 µs each; of the loss a sum and the expansion of its gradient; one update of all parameters."""
    model = net(t)
    ra = profiled(t, model, sample(t), t.Table(kernels=kernels), backward=True,
                  optimizer=t.torch.optim.SGD(model.parameters(), lr=0.1))
    assert (microseconds(ra) == {("0", "forward"): 100, ("1", "forward"): 30, ("2", "forward"): 100,
                                 ("(loss)", "forward"): 10, ("(loss)", "backward"): 10,
         ("2", "backward"): 30, ("1", "backward"): 10, ("0", "backward"): 20, ("(optimizer)", "update"): 10,
                                 "(idle)": 5})
    check_sum(ra, 325)
    assert sum(o.time_s for o in ra.ops) == pytest.approx(320e-6) and all(p.grad is None for p in model.parameters())

@heavy_only("a model of the size that people use")
@apart
def test_resnet18(t):
    """Of each of 20 convolutions and batch norms, 17 activations, 8 sums of blocks, one pooling, one mean and one
    product."""
    torchvision = pytest.importorskip("torchvision")
    took = dict(convolution=200, native_batch_norm=20, relu_=7, add_=9, max_pool2d_with_indices=11, mean=12, addmm=13)
    model, x = torchvision.models.resnet18().to("sim"), t.torch.randn(2, 3, 32, 32).to("sim")
    ra = profiled(t, model, x, t.Table(kernels={k: 1000 * n for k, n in took.items()}))
    rows = microseconds(ra)
    of = {"Conv2d": 200, "BatchNorm2d": 20, "MaxPool2d": 11, "AdaptiveAvgPool2d": 12, "Linear": 13, "BasicBlock": 9}
    # a block calls its activation twice
    twice = {n for n, m in model.named_modules() if type(m).__name__ == "ReLU" and n != "relu"}
    expected = {n: 14 if n in twice else 7 if n == "relu" else of[type(m).__name__] for n, m in model.named_modules()
                if type(m).__name__ in (*of, "ReLU")}
    assert rows == expected | {"(idle)": 5}
    check_sum(ra, 20 * 220 + 17 * 7 + 8 * 9 + 11 + 12 + 13 + 5)

@heavy_only("a model of the size that people use")
@apart
def test_resnet18_training(t):
    """Every convolution 200 µs, and 400 µs backward; the gradients that meet before a block are added, by the first
    of what follows."""
    torchvision = pytest.importorskip("torchvision")
    model, x = torchvision.models.resnet18().to("sim"), t.torch.randn(2, 3, 32, 32).to("sim")
    ra = profiled(t, model, x, t.Table(kernels=dict(convolution=200_000, convolution_backward=400_000)), steps=2,
                  backward=True, optimizer=t.torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    rows = microseconds(ra)
    convolutions = [n for n, m in model.named_modules() if isinstance(m, t.nn.Conv2d)]
    assert len(convolutions) == 20 and all(rows[n, "forward"] == 200 for n in convolutions)
    assert all(rows[n, "backward"] in (400, 410) for n in convolutions)
    assert (rows["(idle)"] == 5 and ra.ops
            and sum(o.time_s for o in ra.ops) == pytest.approx(sum(p.time_s for p in ra.results) - 5e-6))
    assert round(sum(p.time_s for p in ra.results) * 1e9) == round(ra.program.time_s * 1e9)

@apart
def test_transformer(t):
    """A layer of attention that trains: 3 + 1 + 2 products with a bias at 100 µs, 2 batched ones, softmax, the
    norms."""
    model = t.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True).to("sim")
    x = t.torch.randn(2, 5, 16).to("sim")
    ra = profiled(t, model, x, t.Table(kernels=dict(addmm=100_000)), backward=True,
                  optimizer=t.torch.optim.SGD(model.parameters(), lr=0.1))
    rows = microseconds(ra)
    # the first call allocates before it launches
    assert rows["(idle)"] == 1 + 5
    assert ra.ops and sum(o.time_s for o in ra.ops) == pytest.approx(sum(p.time_s for p in ra.results) - 6e-6)
    assert (rows["linear1", "forward"] == rows["linear2", "forward"] == 100
            and rows["norm1", "forward"] == rows["norm2", "forward"] == 10)
    assert rows["norm1", "backward"] == rows["norm2", "backward"] == 10
    assert round(sum(p.time_s for p in ra.results) * 1e9) == round(ra.program.time_s * 1e9)
    with t.sim.recorded() as events:
        model.train()
        model(x)
    work = [e for e in events if e.kind == "kernel"]
    assert (sum(v for k, v in rows.items() if "forward" in k and k[0] != "(loss)")
            == sum(e.end - e.start for e in work) / 1e3)

def branches(t):
    class Branches(t.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.act = t.nn.Linear(8, 8), t.nn.Linear(8, 8), t.nn.ReLU()
        def forward(self, x):
            with t.sim.stream(1): y = self.b(x)
            z = self.a(x)
            t.sim.join(1)
            return self.act(z + y)
    return Branches().to("sim")

@apart
def test_two_streams(t):
    """b from 5 to 105 µs and a from 10 to 110: 95 both, of which each has half; then a sum of 10 and an activation
    of 30."""
    ra = profiled(t, branches(t), sample(t), t.Table(kernels=kernels))
    assert microseconds(ra) == {"a": 47.5 + 5, "b": 5 + 47.5, "act": 30, "": 10, "(idle)": 5}
    check_sum(ra, 150)

@apart
def test_a_kernel_that_no_layer_launched(t):
    class Stray(t.nn.Module):
        def __init__(self): super().__init__(); self.a = t.nn.Linear(8, 8)
        def forward(self, x):
            y = self.a(x)
            t.books.run("aten::stray", 40_000, "kernel", 10**9 + next(t.books.numbers))
            return y
    ra = profiled(t, Stray().to("sim"), sample(t), t.Table(kernels=kernels))
    assert microseconds(ra) == {"a": 100, "(no module)": 40, "(idle)": 5}
    check_sum(ra, 145)

@apart
def test_copies_beside_compute(t):
    "A copy from 5 to 65 µs and a product from 10 to 110."
    class Copies(t.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.there, self.here = t.nn.Linear(8, 8), t.torch.ones(3), t.torch.ones(3).to("sim")
        def forward(self, x):
            with t.sim.stream(2): self.here.copy_(self.there, non_blocking=True)
            y = self.a(x)
            t.sim.join(2)
            return y
    ra = profiled(t, Copies().to("sim"), sample(t), t.Table(kernels=kernels, copy=60_000))
    assert microseconds(ra) == {"": 5 + 55 / 2, "a": 55 / 2 + 45, "(idle)": 5}
    check_sum(ra, 110)

@apart
def test_one_wait_at_each_border_of_a_step(t):
    """Begin and end of 3 runs without an instrument, 4 recorded ones and one for the allocator's peak, however many
    layers there are, in both phases; and one before each recorded run, for what it is given."""
    deep = t.nn.Sequential(*(t.nn.Linear(8, 8) for _ in range(12))).to("sim")
    for model, how in ((net(t), {}), (deep, {}), (deep, dict(backward=True))):
        profiled(t, model, sample(t), t.Table(kernels=kernels), **how)
        assert t.books.synchronised == 2 * (3 + 4 + 1) + 4, (len(model), how)

# ---- records that are not as they should be

@contextmanager
def changed(t, change):
    "Within the context the record of the device is what `change` makes of it."
    plain = t.sim.Simulated.recording
    @contextmanager
    def recording(self, session):
        with plain(self, session) as events: yield events
        events[:] = change(events)
    t.sim.Simulated.recording = recording
    try: yield
    finally: t.sim.Simulated.recording = plain

whole = {"0": 100, "1": 30, "2": 100, "(idle)": 5}

@apart
def test_records_in_any_order_are_joined(t):
    for change in (lambda events: events[::-1], lambda events: random.Random(1).sample(events, len(events)),
                   # the kernels link to their operators
                   lambda events: [e for e in events if e.kind != "privateuse1_runtime"],
                   lambda events: [e for i, e in enumerate(events) if e.kind != "privateuse1_runtime" or i % 2]):
        with changed(t, change): ra = usual(t)
        assert microseconds(ra) == whole and not ra.result.notes

@apart
def test_kernels_that_are_not_in_the_record_are_said(t):
    with changed(t, lambda events: [e for e in events if e.called != "sim::relu"]):
        ra = usual(t)
    assert microseconds(ra) == {"0": 100, "2": 100, "1": 0, "(idle)": 35}
    assert ra.result.notes == ["the profiler recorded no kernel for 3 of 9 launches (1): their time is in (idle)"]
    assert ra.result.notes[0] in " ".join(ra.result.text().split())

@pytest.mark.parametrize("gone", ["kernel", "fasterbench::timestamp", "activity"])
@apart
def test_without_a_whole_record_events_tell_the_times(t, gone):
    "The first layer's time begins when its timestamp is put into the queue, before its launch."
    def drop(events):
        return [e for i, e in enumerate(events) if gone not in (e.kind, e.called) or gone != "kernel" and i % 5]
    if gone == "activity": t.sim.Simulated.activity = None
    with changed(t, drop), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ra = usual(t)
    assert microseconds(ra) == {"0": 105, "1": 30, "2": 100} and ra.timing.clock == "sim events"
    assert ([str(w.message) for w in caught]
            == ["no operator times: the record of the kernels is incomplete; the times of the modules are from sim "
                "events"])

@apart
def test_a_profiler_that_cannot_begin_is_done_without(t):
    "As PyTorch's fails on an Intel GPU whose driver is too old for it: in a profile, and in a program."
    from fasterbench import watch
    from fasterbench.engine import accelerator as seam
    @contextmanager
    def failing():
        raise RuntimeError("Fail to enable Kineto Profiler on XPU due to error code: 2")
        yield
    t.sim.Simulated.recording = lambda self, session: seam.Host.recording(self, failing())
    model, x = net(t), sample(t)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ra = profiled(t, model, x, t.Table(kernels=kernels))
    assert microseconds(ra) == {"0": 105, "1": 30, "2": 100} and ra.timing.clock == "sim events" and len(caught) == 1
    t.books.reset(t.Table(kernels=kernels))
    with t.torch.no_grad(), watch(model, every=10, active=3, warmup=2,
                                  peaks=t.roofs) as w, warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        for _ in range(20): model(x)
    assert w.failures and all("Fail to enable Kineto" in f for f in w.failures) and "forward" not in vars(model)

@apart
def test_work_of_another_thread_is_no_modules(t):
    class Threaded(t.nn.Module):
        def __init__(self): super().__init__(); self.a, self.b = t.nn.Linear(8, 8), t.nn.Linear(8, 8)
        def forward(self, x):
            other = threading.Thread(target=lambda: t.torch.relu(x))
            other.start()
            y = self.a(x)
            other.join()
            return self.b(y)
    with t.torch.no_grad(): ra = profiled(t, Threaded().to("sim"), sample(t), t.Table(kernels=kernels))
    assert microseconds(ra) == {"a": 100, "b": 100, "(no module)": 30, "(idle)": 5}

# ---- faults

def state(t, model):
    switches = (t.torch.is_grad_enabled(), gc.isenabled(), t.torch.get_num_threads(),
                t.torch.get_rng_state().tolist(), t.torch.backends.cudnn.benchmark)
    return ([p.detach().cpu().tolist() for p in model.parameters()], model.training,
            [p.grad for p in model.parameters()], [sorted(vars(m)) for m in model.modules()], switches)

@apart
def test_out_of_memory_in_the_middle(t):
    """In the copy of the sample, in the first layer, in the second; and in a training step, when the optimizer
    takes its memory."""
    model, x = net(t), sample(t)
    gc.collect()
    held = t.books.allocated
    profiled(t, model, x, t.Table(), backward=True)
    trained = t.books.most - held
    for left, how in ((32, {}), (100, {}), (300, {}),
                      (trained, dict(backward=True, optimizer=t.torch.optim.AdamW(model.parameters())))):
        gc.collect()
        before, held = state(t, model), t.books.allocated
        table = t.Table(kernels=kernels, capacity=held + left)
        with pytest.raises(t.torch.OutOfMemoryError, match="sim out of memory"): profiled(t, model, x, table, **how)
        t.books.reset(t.Table())
        gc.collect()
        assert state(t, model) == before and t.books.allocated == held, left
    assert microseconds(profiled(t, model, x, t.Table(kernels=kernels))) == whole

@pytest.mark.parametrize("backward", [False, True])
@apart
def test_an_error_that_surfaces_one_call_later(t, backward):
    model, x = net(t), sample(t)
    for at in (1, 4, 13, 31):
        gc.collect()
        before, held = state(t, model), t.books.allocated
        t.books.reset(t.Table(kernels=kernels))
        t.books.fails = {t.books.launched + at: RuntimeError("an illegal memory access")}
        with pytest.raises(RuntimeError, match="an illegal memory access"):
            t.Analyzer(model, x, t.roofs).profile("sim", warmup=1, steps=6, progress=False, backward=backward)
        t.books.reset(t.Table())
        gc.collect()
        assert state(t, model) == before and t.books.allocated == held, at

@apart
def test_a_watch_hands_an_error_of_the_queue_to_the_program(t):
    from fasterbench import watch
    model, x = net(t), sample(t)
    for at in range(19, 91, 5):
        t.books.reset(t.Table(kernels=kernels))
        t.books.fails = {at: RuntimeError("an illegal memory access")}
        with pytest.raises(RuntimeError, match="an illegal memory access"), t.torch.no_grad(), watch(
            model, every=10, active=3, warmup=2, peaks=t.roofs) as w:
            for _ in range(40): model(x)
        assert not w.failures and "forward" not in vars(model) and "forward" not in vars(model[0]), at

# ---- what else is on it

@apart
def test_a_watched_training(t):
    "A program that does not wait: its queue is never empty, and the waits around a recorded step are none of its own."
    from fasterbench import watch
    model, x = net(t), sample(t)
    optimizer = t.torch.optim.SGD(model.parameters(), lr=0.1)
    t.books.reset(t.Table(kernels=kernels))
    with watch(model, every=10, active=3, warmup=2, peaks=t.roofs) as w:
        for _ in range(20):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    rows = {(p.name, p.phase): round(p.time_s * 1e6, 6) for p in w.result.points}
    assert (rows == {("0", "forward"): 100, ("1", "forward"): 30, ("2", "forward"): 100, ("2", "backward"): 30,
                     ("1", "backward"): 10, ("0", "backward"): 20,
                     ("(optimizer)", "update"): 10, ("(outside the model)", ""): 20})
    assert len(w.series) == 2 and not w.failures and w.result.timing.clock == "kernel times (simulated)"

@heavy_only("measures the roofs of a simulated device")
@apart
def test_peaks_are_those_of_the_table(t):
    from fasterbench import measure_peaks
    torch, cache = t.torch, 8 << 20
    cost = t.sim.rates({torch.float32: 1e12, torch.bfloat16: 4e12}, [(cache, 4e10), (None, 1e10)])
    t.books.reset(t.Table(cost=cost, computes=False, caches=(("L2", cache),), lacks=(torch.float64,),
                          capacity=1 << 40))
    peaks = measure_peaks("sim", dtypes=(torch.bfloat16, torch.float64), steps=2, warmup=0, cache=False,
                          progress=False)
    assert ({c.dtype: c.flops for c in peaks.ceilings if not c.unit}
            == {"float32": pytest.approx(1e12, rel=0.02), "bfloat16": pytest.approx(4e12, rel=0.02)})
    assert ([(l.name, l.capacity, l.bandwidth) for l in peaks.memory]
            == [("L2", cache, pytest.approx(4e10, rel=0.02)), ("DRAM", None, pytest.approx(1e10, rel=0.02))])
    assert (peaks.skipped["float64"] == "this device has no arithmetic of it"
            and peaks.environment["device_name"] == "Simulated")
    with pytest.raises(ValueError, match="float64 cannot be measured on sim:0: this device has no arithmetic of it"):
        measure_peaks("sim", dtype=torch.float64, cache=False)

@apart
def test_a_graph_keeps_the_memory_that_it_works_on(t):
    "A replay writes where the captured call did: nobody else may get that memory."
    from fasterbench.engine.accelerator import accelerator
    from fasterbench.probes.probes import graph_probe
    t.books.reset(t.Table())
    before = t.books.allocated
    replay = graph_probe("copy", 1 << 20, accelerator(t.torch.device("sim", 0)), 1 << 21).build()
    gc.collect()
    assert t.books.allocated - before == 1 << 20                                  # two tensors of half a working set
    del replay
    gc.collect()
    assert t.books.allocated == before

@apart
def test_copies_of_the_sample_are_in_no_row(t):
    """A model that writes to its sample gets a copy in every run: 100 µs each, still under way when the run could
    begin. The sum of 40 µs waits for its launch."""
    class Adds(t.nn.Module):
        def forward(self, x, kept): return kept.add_(x)
    given = sample(t), t.torch.zeros(2, 8).to("sim")
    ra = profiled(t, Adds(), given, t.Table(kernels=dict(add_=40_000, copy_=100_000)))
    assert microseconds(ra) == {"": 40, "(idle)": 5}
    check_sum(ra, 45)

def graphed(t):
    "A model whose second module was captured: a copy of what it is given into the graph, and its launch."
    class Graphed(t.nn.Module):
        def __init__(self): super().__init__(); self.inner = t.nn.Sequential(t.nn.Linear(16, 16), t.nn.ReLU())
        def capture(self, x):
            self.given = x
            def call(): self.out = self.inner(self.given)
            self.replay = t.sim.Simulated(x.device).captured(call, 1)
        def forward(self, x):
            self.given.copy_(x)
            self.replay()
            return self.out
    model = t.nn.Sequential(t.nn.Linear(8, 16), Graphed(), t.nn.Linear(16, 4)).to("sim")
    with t.torch.no_grad(): model[1].capture(t.torch.zeros(2, 16).to("sim"))
    return model

@apart
def test_a_captured_graph_has_a_time_and_no_known_work(t):
    "A copy of 10 µs, and a graph of 100 and 30; four calls of 5 µs, of which the first is waited for."
    t.books.reset(t.Table(kernels=kernels))
    ra = profiled(t, graphed(t), sample(t), t.Table(kernels=kernels))
    assert microseconds(ra) == {"0": 100, "1": 140, "2": 100, "(idle)": 5}
    check_sum(ra, 345)
    row = next(p for p in ra.results if p.name == "1")
    assert row.flops is row.bytes_moved is ra.program.flops is None and row.bound == "undefined"
    assert ra.result.notes == ["CUDA graphs ran (1): their kernels are timed, but their FLOPs and bytes are unknown"]

def traced(t, path, run):
    "Write the trace of a step."
    with t.sim.recorded() as events:
        begin = t.books.now
        run()
        t.books.wait()
    step = t.sim.Event("user_annotation", "ProfilerStep#1", begin, t.books.now, threading.get_ident())
    t.sim.write_trace([*events, step], path)

@apart
def test_replays_in_a_trace_have_the_operators_of_their_capture(t):
    """Two replays of a graph of three kernels, joined by order and name to the operators and modules of the
    capture's trace."""
    from fasterbench import read_trace
    model, x, here = net(t).eval(), sample(t), t.sim.Simulated(t.torch.device("sim", 0))
    t.books.reset(t.Table(kernels=kernels))
    with tempfile.TemporaryDirectory() as folder, t.torch.no_grad():
        with t.sim.recorded() as captured, t.sim.annotated(model): replay = here.captured(lambda: model(x), 1)
        t.sim.write_trace(captured, f"{folder}/capture.json")
        traced(t, f"{folder}/trace.json", lambda: (replay(), replay()))
        found = read_trace(f"{folder}/trace.json", peaks=t.roofs, captures=[f"{folder}/capture.json"])
        alone = read_trace(f"{folder}/trace.json", peaks=t.roofs)
    rows = {p.name.removeprefix("(model)."): p for p in found.points}
    assert {name: round(p.time_s * 1e6, 6) for name, p in rows.items()} == {"0": 200, "1": 60, "2": 200, "(idle)": 5}
    # products and bias, activation
    assert rows["0"].flops == 2 * (2 * 2 * 8 * 16 + 2 * 16) and rows["1"].flops == 2 * 2 * 16
    assert any("6 of 6 kernels of 2 graph launches aligned, 6 by name" in n for n in found.notes)
    assert not {p.name for p in alone.points} & {"0", "(model).0"}

@heavy_only("compiles for a simulated device")
@pytest.mark.parametrize("training", [pytest.param(False, marks=heavy_only("training has the same rows, and more")),
                                      True])
@apart
def test_compiled_kernels_have_rows_of_their_own(t, training):
    """Two products of 100 µs and two fused activations of 7, each at its call in the code that Inductor wrote.
    Training: a sum of the loss and one gradient of it at 10; in the backward three products at 50, three fused
    kernels, and a copy of the gradient."""
    t.sim.install_compiler()
    model = t.nn.Sequential(t.nn.Linear(8, 16), t.nn.ReLU(), t.nn.Linear(16, 4), t.nn.ReLU()).to("sim")
    table = t.Table(kernels=dict(addmm=100_000, mm=50_000, fused=7_000))
    ra = profiled(t, t.torch.compile(model), sample(t), table, backward=training)
    rows = sorted((p.phase, p.name, re.sub(r"^fused .*", "fused", p.type), round(p.time_s * 1e6, 6))
                  for p in ra.results if p.time_s)
    phase = "forward" if training else ""
    forward = [(phase, "0", "addmm", 100), (phase, "1", "fused", 7), (phase, "2", "addmm", 100),
               (phase, "3", "fused", 7)]
    # an allocation, and a launch
    idle, of_loss = ("", "(idle)", "GPU idle", 6), [(p, "(loss)", "total_output", 10) for p in ("backward", "forward")]
    backward = ([(n, "mm", 50) for n in "022"] + [(n, "fused", 7) for n in ("0", "1 + 2 + 3", "3")]
                + [("(gradients)", "sums and copies by autograd", 10)])
    assert rows == sorted(forward + [idle] + (of_loss + [("backward", *row) for row in backward]) * training)
    assert not ra.result.notes
    check_sum(ra, 220 + (2 * 10 + 3 * 50 + 3 * 7 + 10) * training)

@apart
def test_a_watch_leaves_a_capture_alone(t):
    "A program that captures a graph of its model now and then: the calls that only go into the graph are not seen."
    from fasterbench import watch
    model, x, here = net(t), sample(t), t.sim.Simulated(t.torch.device("sim", 0))
    t.books.reset(t.Table(kernels=kernels))
    with t.torch.no_grad(), watch(model, every=10, active=3, warmup=2, peaks=t.roofs) as w:
        for _ in range(40):
            model(x)
            replay = here.captured(lambda: model(x), 1)
            replay()
    assert not w.failures and w.series and "forward" not in vars(model)
    assert ({p.name: round(p.time_s * 1e6, 6) for p in w.result.points if p.name in "012"}
            == {"0": 100, "1": 30, "2": 100})

@apart
def test_a_trace_of_the_run_says_the_same(t):
    from fasterbench import read_trace
    model, x = net(t).eval(), sample(t)
    rows = microseconds(profiled(t, model, x, t.Table(kernels=kernels)))
    t.books.reset(t.Table(kernels=kernels))
    with tempfile.TemporaryDirectory() as folder, t.torch.no_grad():
        with t.sim.annotated(model): traced(t, f"{folder}/trace.json", lambda: model(x))
        found = read_trace(f"{folder}/trace.json", peaks=t.roofs)
    assert {p.name.removeprefix("(model)."): round(p.time_s * 1e6, 6) for p in found.points} == rows

@apart
def test_memory_of_layers_is_counted_on_every_device(t):
    "What each layer makes, of 2 × 16, 2 × 16 and 2 × 4 elements of 4 B; the model itself makes nothing."
    from fasterbench.profiling import LayerProfiler
    t.books.reset(t.Table())
    rows = LayerProfiler(net(t), sample(t)).profile(("memory",), device="sim")
    assert {r["name"]: r["memory"] for r in rows} == {"0": 2*16*4, "1": 2*16*4, "2": 2*4*4, "": 0}

@heavy_only("a process of its own that profiles")
@apart
def test_the_command_line(t):
    from fasterbench.cli.main import main
    def run(*args):
        sys.argv = ["fasterbench", *args]
        with pytest.raises(SystemExit) as ended, redirect_stdout(io.StringIO()) as out: sys.exit(main())
        return ended.value.code or 0, out.getvalue()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        Path("net.py").write_text(
            "import torch\nfrom torch import nn\ndef make(): return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), "
            "nn.Linear(16, 4)), torch.ones(2, 8)\n")
        t.roofs.to_json("roofs.json")
        t.books.reset(t.Table(kernels=kernels))
        code, text = run("roofline", "net.py:make", "--device", "sim", "--peaks", "roofs.json", "--no-html", "--json",
                         "found.json")
        code, text = run("report", "found.json")
        assert code == 0 and re.search(r"\(idle\) +GPU idle +5.00 µs", text) and "235.00 µs" in text, text
        code, text = run("predict", "net.py:make", "--on", "NVIDIA H100 80GB HBM3", "--like", "found.json")
        assert code == 0 and "H100" in text, text
        t.books.reset(t.Table(cost=t.sim.rates({t.torch.float32: 1e12}, [(8 << 20, 4e10), (None, 1e10)]),
                              computes=False, caches=(("L2", 8 << 20),), capacity=1 << 40))
        Path("large.py").write_text(
            "import torch\ndef make(): return torch.nn.Linear(1024, 1024), torch.ones(1024, 1024)\n")
        # 2.147 ms of work, and 5 µs until its launch: 99.77 %
        for least, kept in (("99.7 %", 0), ("99.9 %", 1)):
            Path("budgets.toml").write_text(
                f'[net]\nmodel = "large.py:make"\ndevice = "sim"\nutilization = ">= {least}"\n')
            code, text = run("check", "budgets.toml", "--rounds", "10")
            assert code == kept, text
