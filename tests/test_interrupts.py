"""An exception at every line that a profile runs, and Ctrl-C at every line: everything is left as it was.

Usually every eighth line of the wings core, engine and timing, at its last run of a profile;
`FASTERBENCH_TESTS=all` also takes every 24th of the other wings, and some forty with Ctrl-C, in training steps, and
at the first run of each line; once a week every second and every twelfth."""
import gc, os, signal, sys, threading

import pytest
import torch
from torch import nn

import fasterbench
from conftest import heavy, heavy_only, nightly, nightly_only
from fasterbench.engine.process import _present, in_turn, _process_switches, _thread_switches
from fasterbench.engine.model_state import _occupied, _freed
from fasterbench.timing.profiler import _one_at_a_time
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer

peaks, folder = HardwarePeaks(1e12, 1e11), os.path.dirname(fasterbench.__file__)

class Cache:
    def __init__(self): self.entries = []

class Net(nn.Module):
    "A model with state in a buffer, in an object, and one level deeper."
    def __init__(self):
        super().__init__()
        self.lin, self.norm, self.cache, self.deep = nn.Linear(2, 2), nn.BatchNorm1d(2), Cache(), {"a": [0]}
        self.register_buffer("seen", torch.zeros(1))
    def forward(self, x):
        self.seen += 1; self.cache.entries.append(x); self.deep["a"][0] += 1
        return self.norm(self.lin(x) + torch.rand(1))

def setting(training):
    torch.manual_seed(0)
    net = Net().train()
    return net, torch.optim.Adam(net.parameters(), lr=0.1) if training else None

def profile(net, optimizer):
    how = {} if optimizer is None else dict(backward=True, optimizer=optimizer)
    RooflineAnalyzer(net, torch.ones(3, 2), peaks).profile(warmup=0, steps=1, progress=False, **how)

def look(net, optimizer):
    "Return all that a user could notice, as plain values."
    modules = [(sorted(m.__dict__), m.training) for m in net.modules()]
    tensors = [(id(t), t.tolist(), t.requires_grad, t.grad) for t in (*net.parameters(), *net.buffers())]
    state = None if optimizer is None else str(optimizer.state_dict())
    switches = [s.now() for s in (*_thread_switches, *_process_switches)]
    process = signal.getsignal(signal.SIGINT), os.environ.get("KINETO_LOG_LEVEL"), torch._C._is_torch_function_enabled()
    locks = len(_present), len(_occupied), in_turn._is_owned(), _freed._is_owned(), _one_at_a_time._is_owned()
    return (modules, tensors, len(net.cache.entries), net.deep["a"][0], state, torch.get_rng_state().tolist(), switches,
            process, locks)

class Lines:
    "Runs a function and acts at one of the lines of the package that it runs."
    def __init__(self, at=None, act=None): self.at, self.act, self.count, self.lines = at, act, 0, []

    def __call__(self, frame, event, arg): return self.line if frame.f_code.co_filename.startswith(folder) else None

    def line(self, frame, event, arg):
        if event == "line":
            self.count += 1
            if self.at is None: self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            elif self.count == self.at: self.act()
        return self.line

    def run(self, f):
        old = sys.gettrace()
        sys.settrace(self)
        try: f()
        finally: sys.settrace(old)
        return self

inner = tuple(os.path.join(folder, wing) for wing in ("core", "engine", "timing"))

def chosen(training, first):
    "Numbers of the runs of lines to try, of the inner wings and of the others: the last of each line, and the first."
    runs = [{}, {}]
    profile(*setting(training))
    for n, line in enumerate(Lines().run(lambda: profile(*setting(training))).lines, start=1):
        runs[not line[0].startswith(inner)].setdefault(line, [n, n])[1] = n
    return [sorted({n for begin, last in lines.values() for n in ((begin, last) if first else (last,))})
            for lines in runs]

def fail(): raise KeyboardInterrupt
def press_ctrl_c(): signal.raise_signal(signal.SIGINT)

rarely = nightly_only("other lines")
more = [pytest.param("training", press_ctrl_c, False, 0, 1, marks=heavy_only("a training step")),
        *(pytest.param(*case, 0, 1, marks=rarely)
          for case in (("forward", press_ctrl_c, False), ("training", fail, False), ("forward", fail, True),
                       ("forward", press_ctrl_c, True)))]

# The first variant takes more lines than the others; it is in pieces, which several workers can take.
pieces = 3
cases = [pytest.param("forward", fail, False, piece, pieces, marks=[rarely] * (piece > 0)) for piece in range(pieces)]

@pytest.mark.parametrize("what,act,first,piece,pieces", cases + more)
def test_interrupted_at_every_line(what, act, first, piece, pieces):
    training, wrong = what == "training", []
    inner, others = chosen(training, first)
    if pieces > 1: numbers = inner[::2 if nightly else 8 if heavy else 16] + others[::2 if nightly else 24] * heavy
    else: numbers = sorted(inner + others)[::12 if nightly else (len(inner) + len(others)) // 43]
    assert len(numbers) > 40
    numbers = numbers[piece::pieces]
    for at in numbers:
        net, optimizer = setting(training)
        before, lines = look(net, optimizer), Lines(at, act)
        try: lines.run(lambda: profile(net, optimizer))
        except KeyboardInterrupt: pass
        gc.collect(0)
        if look(net, optimizer) != before: wrong.append(at)
    places = [Lines().run(lambda: profile(*setting(training))).lines[at - 1] for at in wrong[:3]]
    assert not wrong, f"{len(wrong)} of {len(numbers)} lines leave something changed: {places}"

@heavy_only("takes a while by design")
def test_ctrl_c_that_does_not_stop():
    "Somebody who holds Ctrl-C down, in the middle of training steps of a model that takes a while to put back."
    net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(24)))
    optimizer, running = torch.optim.SGD(net.parameters(), lr=0.1), threading.Event()
    before = [p.detach().clone() for p in net.parameters()]
    def handler(*args):
        if running.is_set(): raise KeyboardInterrupt
    def press():
        while running.is_set(): os.kill(os.getpid(), signal.SIGINT); running_pause.wait(0.02)
    old, running_pause = signal.signal(signal.SIGINT, handler), threading.Event()
    try:
        for delay in (0.3, 0.6, 0.9):
            running.set()
            timer = threading.Timer(delay, press); timer.start()
            analyzer = RooflineAnalyzer(net, torch.randn(2, 512), peaks)
            try:
                try: analyzer.profile(backward=True, optimizer=optimizer, steps=100000)
                except KeyboardInterrupt: running.clear()
            except KeyboardInterrupt: running.clear()          # one more, on the way
            timer.join()
            assert all(torch.equal(a, p) and p.grad is None for a, p in zip(before, net.parameters()))
            assert all(m.training and "forward" not in m.__dict__ for m in net.modules())
    finally: running.clear(); signal.signal(signal.SIGINT, old)
