"""What other load does to a profile, and what is said of it: the same model on the machine as it is, and beside processes that keep cores busy.

Printed per number of busy processes: the end to end time, the line that limits the trust, how many rows are marked, whether the roofs are provisional, and
the verdicts of eight comparisons of the model with itself. On a quiet machine there is no line; beside busy processes the time is never printed as firm, and
at least seven of eight comparisons name no row faster or slower. Without them a layer that is computed twice, and half the threads, are found in eight of eight.

Usage: python tests/benchmarks/load.py [MODEL ...] [--busy 0 1 4] [--pairs 8] [--peaks]
With `--peaks` also what `fasterbench peaks` prints, from an empty cache, in each condition."""
import argparse, os, subprocess, sys, tempfile
from contextlib import contextmanager

import torch, torchvision

from fasterbench import compare
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer, clear_peaks_cache, measure_peaks
from fasterbench.views.headline import headline, caveats

@contextmanager
def busy(n):
    "Within the context `n` other processes compute."
    processes = [subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE) for _ in range(n)]
    for p in processes: p.stdout.readline()
    try: yield
    finally:
        for p in processes: p.kill(); p.wait(); p.stdout.close()

def profiled(name, steps=20, model=None):
    model = model or torchvision.models.get_model(name, weights=None)
    return RooflineAnalyzer(model, torch.randn(1, 3, 224, 224), HardwarePeaks(5e11, 7e10)).profile(warmup=5, steps=steps, progress=False).result

def found(name, pairs, change):
    "In how many of so many comparisons with a model that `change` changed a row is called slower."
    def one():
        model = torchvision.models.get_model(name, weights=None)
        before = profiled(name, 10, model)
        with change(model): return any(q.change == "slower" for q in compare(before, profiled(name, 10, model)).pairs)
    return f"{sum(one() for _ in range(pairs))} of {pairs}"

class Twice(torch.nn.Conv2d):
    def forward(self, x):
        super().forward(x)
        return super().forward(x)

@contextmanager
def one_layer_twice(model):
    layer = [m for m in model.modules() if type(m) is torch.nn.Conv2d][-6]
    layer.__class__ = Twice
    try: yield
    finally: layer.__class__ = torch.nn.Conv2d

@contextmanager
def half_the_threads(model):
    n = torch.get_num_threads()
    torch.set_num_threads(max(n // 2, 1))
    try: yield
    finally: torch.set_num_threads(n)

def verdicts(name, pairs):
    "How many comparisons of the model with itself name a row faster or slower, and what the first of them says of the machine."
    found = [compare(profiled(name, 10), profiled(name, 10)) for _ in range(pairs)]
    rows = [sum(q.change in ("faster", "slower") for q in c.pairs) for c in found]
    said = next((d for c in found for d in c.differences if "called faster" in d), "nothing")
    return f"{sum(map(bool, rows))} of {pairs} with a verdict (rows: {rows}); says: {said}"

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["resnet18"])
    parser.add_argument("--busy", nargs="*", type=int, default=[0, 1, 4])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--peaks", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FASTERBENCH_CACHE"] = folder
        for name in given.models:
            for n in given.busy:
                with busy(n):
                    r = profiled(name)
                    marked = sum(p.disturbed for p in r.points)
                    print(f"--- {name}, {n} busy processes\n{headline(r)[0]}\n{caveats(r) or '(no line)'}\n{marked} of {len(r)} rows marked; others {r.timing.others}", flush=True)
                    if given.pairs: print(verdicts(name, given.pairs), flush=True)
                    if not n and given.pairs:
                        for change in (one_layer_twice, half_the_threads): print(f"{change.__name__} is found in {found(name, given.pairs, change)}", flush=True)
        for n in given.busy if given.peaks else ():
            clear_peaks_cache()
            with busy(n): print(f"--- peaks beside {n} busy processes\n{measure_peaks(progress=False).origin()}", flush=True)
