"Models of thousands of layers, deep models, and a busy machine: it ends, and it says what it saw."
import subprocess, sys

import pytest
import torch
from torch import nn

from conftest import heavy_only, nightly_only
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer

peaks = HardwarePeaks(1e12, 1e11)

def layers(n): return nn.Sequential(*(nn.Linear(4, 4) for _ in range(n)))

def deep(n):
    "A layer within `n` containers, each of which adds something of its own."
    class Container(nn.Module):
        def __init__(self, inner): super().__init__(); self.inner = inner
        def forward(self, x): return self.inner(x) + 1
    net = nn.Linear(4, 4)
    for _ in range(n): net = Container(net)
    return net

def profile(model, **kwargs):
    return RooflineAnalyzer(model, torch.ones(2, 4), peaks).profile(warmup=0, steps=1, **kwargs)

def python_calls(f):
    "How many functions are called, in Python and in C: what a quadratic cost would show in, without a clock."
    count = [0]
    def see(frame, event, arg): count[0] += event in ("call", "c_call")
    sys.setprofile(see)
    try: f()
    finally: sys.setprofile(None)
    return count[0]

@heavy_only("four times 150 layers are in the line")
@pytest.mark.parametrize("backward", [False, pytest.param(True, marks=nightly_only("the same, four times as long"))])
def test_two_thousand_layers(backward):
    ra = profile(layers(2000), backward=backward)
    rows = [r for r in ra.results if r.type == "Linear"]
    assert len(rows) == (4000 if backward else 2000) and len({(r.name, r.phase) for r in rows}) == len(rows)
    assert {r.flops for r in rows if r.phase != "backward"} == {2*2*4*4 + 8}

@heavy_only("counts 150 layers and 600")
@pytest.mark.parametrize("backward", [False, pytest.param(True, marks=nightly_only("the same, four times as long"))])
def test_four_times_the_layers_are_four_times_the_calls(backward):
    profile(layers(10), backward=backward)
    few, many = (python_calls(lambda: profile(layers(n), backward=backward)) for n in (150, 600))
    assert many < 5 * few

@pytest.mark.parametrize("backward", [False, True])
def test_fifty_containers_deep(backward):
    ra = profile(deep(50), backward=backward)
    forward = [r for r in ra.results if r.phase in ("", "forward") and r.name not in ("(loss)", "(overhead)")]
    assert (len(forward) == 51 and {r.flops for r in forward if r.type == "Container"} == {8}
            and max(r.name.count("inner") for r in forward) == 50)

spin = "print('spinning', flush=True)\nwhile True: pass"

@nightly_only("keeps every core busy")
def test_a_busy_machine():
    "Beside processes that keep every core busy a profile ends, and says what it saw."
    code = "print(flush=True)\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)]
    for process in busy: process.stdout.readline()          # the load has started
    try: ra = RooflineAnalyzer(layers(400), torch.ones(2, 4), peaks).profile(warmup=1, steps=60)
    finally:
        for process in busy: process.kill(); process.wait(); process.stdout.close()
    t, text = ra.timing, repr(ra.timing)
    assert f"{t.ratio:.3f}" in text and f"{100 * t.spread:.1f} % IQR" in text
    assert t.steps == 60 and 12 <= t.bare_steps <= 60       # a fifth, and more while they vary
    # instrumented steps that vary are enough for it
    quietest = t.statistic == "median of the quietest quarter"
    assert (quietest or t.spread <= 0.25) and (quietest or t.statistic == "interquartile mean") and t.cores >= 1
    assert ("WARNING" in text) == bool(t.warnings)
    if sys.platform == "linux": assert t.others > 0.5 and t.load_average is not None and t.steal is not None
