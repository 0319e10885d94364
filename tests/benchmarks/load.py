"""What other load does to a profile, and what is said of it: a model alone on the machine, and beside busy processes.

Per model and number of busy processes: the time end to end, the line that limits the trust, how many rows are marked,
and a table of comparisons. A comparison of the model with itself has a verdict if it calls a row faster or slower; one
with a model that runs a layer twice finds it if that row is called slower. Profiles are taken in turn: before, after,
with a layer twice, before, and so on; each is of a model of its own. Beside busy processes no time is printed as firm,
and at least seven of eight comparisons of the model with itself have no verdict. On a quiet machine there is no line,
and the layer is found besides.

Usage: python tests/benchmarks/load.py [MODEL[:LAYER] ...] [--busy 0 1 4] [--pairs 8] [--peaks] [--save FOLDER]
       python tests/benchmarks/load.py --read FOLDER
With `--peaks` also what `fasterbench peaks` prints, from an empty cache, in each condition. With `--save` the profiles
are kept as JSON files, and `--read` compares kept ones: a rule for verdicts is tried on the same profiles again."""
import argparse, os, subprocess, sys, tempfile, warnings
from contextlib import contextmanager
from pathlib import Path

import torch, torchvision

from fasterbench import compare
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer, clear_peaks_cache, measure_peaks
from fasterbench.views.headline import caveats, headline
from fasterbench.views.result import from_json

layers = dict(resnet18="layer2.0.conv1", mobilenet_v3_large="features.10.block.0.0",
              vit_b_16="encoder.layers.encoder_layer_5.mlp.0")

@contextmanager
def busy(n):
    "Within the context `n` other processes compute."
    command = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(n)]
    for p in processes: p.stdout.readline()
    try: yield
    finally:
        for p in processes: p.kill(); p.wait(); p.stdout.close()

def twice(layer):
    "Make `layer` run twice per call."
    kind = type(layer)
    class Twice(kind):
        def forward(self, x):
            super().forward(x)
            return super().forward(x)
    layer.__class__ = Twice

def profiled(name, layer=None, steps=10):
    "A profile of a new model; one of its layers may run twice."
    model = torchvision.models.get_model(name, weights=None).eval()
    if layer: twice(model.get_submodule(layer))
    ra = RooflineAnalyzer(model, torch.randn(1, 3, 224, 224), HardwarePeaks(5e11, 7e10))
    return ra.profile(warmup=5, steps=steps, progress=False).result

def verdicts(before, after):
    "The rows that a comparison calls faster or slower."
    return {q.name: q.change for q in compare(before, after).pairs if q.change in ("faster", "slower")}

def table(title, pairs, layer):
    "One line of the table, for (before, after, with a layer twice) profiles."
    itself = [verdicts(a, b) for a, b, _ in pairs]
    found = [verdicts(a, t).get(layer) == "slower" for a, _, t in pairs if t]
    others = [len(verdicts(a, t).keys() - {layer}) for a, _, t in pairs if t]
    times = sorted(r.timing.end_to_end_s * 1e3 for a, b, _ in pairs for r in (a, b))
    with_verdict, n = sum(map(bool, itself)), len(pairs)
    twice = f"{sum(found):3} of {n}, other rows {sum(map(bool, others))} of {n}" if found else "–"
    print(f"{title:28} {times[0]:7.1f} – {times[-1]:.1f} ms   with itself {with_verdict} of {n}   twice {twice}")
    if with_verdict: print("    ", [v for v in itself if v])
    sys.stdout.flush()

def measured(name, n, pairs, layer, folder):
    "Profiles of a model beside `n` busy processes, with what is said of the first."
    with busy(n):
        profiled(name)                                             # what a process does once is no part of the trial
        first = profiled(name, steps=20)
        marked = sum(p.disturbed for p in first.points)
        print(f"--- {name}, {n} busy processes\n{headline(first)[0]}\n{caveats(first) or '(no line)'}\n"
              f"{marked} of {len(first)} rows marked; others {first.timing.others:.2f}", flush=True)
        found = [(profiled(name), profiled(name), None if n else profiled(name, layer)) for _ in range(pairs)]
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        for i, results in enumerate(found):
            for kind, r in zip("abt", results):
                if r: r.to_json(folder/f"{name} {layer} {n} {i:02} {kind}.json")
    return found

def kept(folder):
    "The profiles in `folder`, by model, layer, and number of busy processes."
    found = {}
    for path in sorted(folder.glob("* a.json")):
        name, layer, n, i, _ = path.stem.split()
        sides = [path.with_name(f"{name} {layer} {n} {i} {kind}.json") for kind in "abt"]
        found.setdefault((name, layer, int(n)), []).append([from_json(p) if p.exists() else None for p in sides])
    return found

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["resnet18"])
    parser.add_argument("--busy", nargs="*", type=int, default=[0, 1, 4])
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--peaks", action="store_true")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--read", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for (name, layer, n), found in (kept(given.read) if given.read else {}).items():
        table(f"{name}, {n} busy", found, layer)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FASTERBENCH_CACHE"] = folder
        for model in given.models * (not given.read):
            name, _, layer = model.partition(":")
            for n in given.busy:
                found = measured(name, n, given.pairs, layer or layers[name], given.save)
                if found: table(f"{name}, {n} busy", found, layer or layers[name])
        for n in given.busy if given.peaks else ():
            clear_peaks_cache()
            with busy(n): print(f"--- peaks beside {n} busy processes\n{measure_peaks(progress=False).origin()}")
