"""Every view and file at twice the size: CPU seconds, and their ratio, which stays below 2.3.

    python tests/benchmarks/twice.py                # all; some minutes
    python tests/benchmarks/twice.py events ranks   # these sizes"""
import sys, tempfile, warnings
from dataclasses import replace
from pathlib import Path
from time import process_time

import torch

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]
import trace_files, view_kinds
from fasterbench import HardwarePeaks, compare, count_work, from_json, predict, read_trace
from fasterbench.comparing.compare import series_of
from fasterbench.serving.serve import serve

limit, few = 2.3, 0.05       # the ratio, and CPU seconds below which nothing is judged
forms = dict(text=str, csv=lambda view: view.csv(), json=lambda view: view.to_json(), page=lambda view: view.render(),
             chart=lambda view: view.plot())

def rows(n):
    found = view_kinds.profiled(points=[view_kinds.row(f"layers.{i}.linear", 9e-3 / n, share=1 / n) for i in range(n)])
    return forms | dict(read=lambda result: from_json(result.to_json())), lambda: found

def comparison(n): return forms, lambda: compare(rows(n)[1](), rows(n)[1]())

def modules(n):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(n)))
    return dict(text=str), lambda: count_work(model, torch.ones(2, 4), backward=True)

def launches(n, first=0):
    of = trace_files
    for i in range(first, first + n):
        yield from (of.operator("aten::relu", 10 * i, 4, [[64, 16]], ["float"]), of.launch(10 * i + 1, i),
                    of.kernel(f"relu_{i % 40}", 10 * i + 2, 5, i))

def allocations(n):
    for i in range(n):
        args = {"Bytes": 512 * (1 if i % 3 else -2), "Total Allocated": 10**6 + 512 * (i % 97), "Device Type": 1,
                "Device Id": 0, "Addr": i}
        yield dict(ph="i", s="t", cat="cpu_instant_event", name="[memory]", ts=10 * i, pid=1, tid=1, args=args)

def trace_of(folder, events, name="trace.json", **head):
    return trace_files.written(folder, list(events), name,
                               deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3", computeMajor=9)], **head)

def events(n):
    path = trace_of(Path(tempfile.mkdtemp()), launches(n))
    return forms | dict(perfetto=lambda result: result.to_perfetto()), lambda: read_trace(path)

def memory_events(n):
    path = trace_of(Path(tempfile.mkdtemp()), [*launches(10), *allocations(n)])
    return forms, lambda: read_trace(path)

def ranks(n):
    folder = Path(tempfile.mkdtemp())
    paths = [trace_of(folder, launches(200), f"rank{i}.json", distributedInfo=dict(rank=i, world_size=n))
             for i in range(n)]
    return forms, lambda: read_trace(paths)

def batches(n):
    results = [replace(rows(20)[1](), sample=[dict(name="0", shape=[i + 1, 16], dtype="float32")]) for i in range(n)]
    return forms, lambda: series_of(results)

def devices(n):
    with torch.device("meta"):
        model, x = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8))), torch.randn(8, 64)
    made = [HardwarePeaks(1e12 * (i + 1), 1e11, device="cuda", environment=dict(device_name=f"Device {i}"))
            for i in range(n)]
    return forms, lambda: series_of([predict(model, x, on) for on in made], [f"Device {i}" for i in range(n)])

def served(n):
    return (dict(text=str, json=lambda view: view.to_json(), page=lambda view: view.render()),
            lambda: serve(view_kinds.llama, "NVIDIA H100 80GB HBM3", batch=list(range(1, n + 1))))

sizes = dict(rows=(rows, 500), comparison=(comparison, 400), modules=(modules, 200), events=(events, 2000),
             memory_events=(memory_events, 4000),
             ranks=(ranks, 8), batches=(batches, 16), devices=(devices, 8), served=(served, 16))

def spent(do, *args):
    "The CPU seconds of a call, the least of three, and what it returns."
    took = []
    for _ in range(3):
        start = process_time()
        found = do(*args)
        took.append(process_time() - start)
    return min(took), found

def seconds(make, n):
    "CPU seconds of making a view of size `n`, and of each of its forms."
    ways, made = make(n)
    took, view = spent(made)
    return dict(made=took) | {name: spent(way, view)[0] for name, way in ways.items()}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("| size | form | n | CPU s | twice, CPU s | ratio |\n|---|---|---|---|---|---|")
    worst = 0
    for name in sys.argv[1:] or sizes:
        make, n = sizes[name]
        seconds(make, n // 4)                                   # what a first call imports
        once, twice = seconds(make, n), seconds(make, 2 * n)
        for form in once:
            ratio = twice[form] / once[form] if twice[form] > few else 0
            worst = max(worst, ratio)
            print(f"| {name} | {form} | {n} | {once[form]:.3f} | {twice[form]:.3f} | "
                  f"{f'{ratio:.2f}' if ratio else 'short'} |", flush=True)
    print(f"{worst:.2f} at most; the limit is {limit}")
    sys.exit(worst > limit)
