"""Operator times beside PyTorch's own profiler, over three models: `.ops` of one profile and `torch.profiler`'s CPU time of the same operators, taken in turn
in one run. Printed are the operators that take at least 2 % of the forward, summed over the model, with what they run inside themselves. Limit: 5 %.

Beside it stands the clock around each operator under a dispatch mode, the way without the profiler: it adds what it takes to call the operator from Python,
a few microseconds. `A/A` compares the profiler's even runs with its odd ones: how quiet the machine was. For a quiet machine."""
import statistics, sys
from collections import Counter
from time import perf_counter

import torch, torchvision
from torch.profiler import ProfilerActivity, profile

from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
from fasterbench.timing.operators import OperatorTimer
from fasterbench.work.dispatch import watching

def ours(ra, x):
    ra.profile(warmup=0, steps=2)
    found = Counter()
    for o in ra.ops: found[o.operator] += o.time_s
    return found

def outermost(events, names):
    "Seconds per operator of `names`, without those that run inside another one of them."
    found, end = Counter(), -1
    for e in sorted((e for e in events if e.name in names), key=lambda e: e.time_range.start):
        if e.time_range.start >= end: found[e.name] += e.time_range.elapsed_us() * 1e-6; end = e.time_range.end
    return found

def profiled(model, x, names):
    with torch.no_grad():
        model(x)                                             # the caches hold what a forward leaves in them
        with profile(activities=[ProfilerActivity.CPU]) as p: model(x)
    return outermost(p.events(), names)

def timestamped(model, x):
    found = Counter()
    with torch.no_grad():
        model(x)
        with watching(OperatorTimer(perf_counter)) as timer: model(x)
    for name, t in timer.times: found[name] += t
    return found

def medians(counters): return {k: statistics.median(c[k] for c in counters) for k in counters[0]}

if __name__ == "__main__":
    print(f"{'model':20} {'operator':36} {'.ops':>10} {'÷ torch.profiler':>17} {'timestamps ÷':>9} {'A/A':>6}")
    for name in sys.argv[1:] or ("resnet18", "mobilenet_v3_small", "vit_b_16", "densenet121"):
        model, x = torchvision.models.get_model(name, weights=None).eval(), torch.randn(1, 3, 224, 224)
        ra = RooflineAnalyzer(model, x, HardwarePeaks(5e11, 7e10))
        names = set(ours(ra, x))
        runs = [(ours(ra, x), profiled(model, x, names), timestamped(model, x), profiled(model, x, names)) for _ in range(10)]
        mine, timestamps, theirs = medians([r[0] for r in runs]), medians([r[2] for r in runs]), medians([r[k] for r in runs for k in (1, 3)])
        even, odd = medians([r[1] for r in runs]), medians([r[3] for r in runs])
        for op in sorted((o for o in theirs if theirs[o] >= 0.02 * sum(theirs.values())), key=theirs.get, reverse=True):
            print(f"{name:20} {op:36} {mine[op] * 1e3:7.2f} ms {mine[op] / theirs[op]:17.3f} {timestamps[op] / theirs[op]:9.3f} {even[op] / odd[op]:6.3f}", flush=True)
