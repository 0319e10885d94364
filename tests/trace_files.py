"Traces written by hand in the form of torch.profiler, and where those of real GPUs are."
import gzip, json, os
from pathlib import Path

import pytest

from conftest import root
from fasterbench import read_trace
from fasterbench.roofs.hardware import HardwarePeaks

shared = Path(os.environ.get("FASTERBENCH_SHARED", root.parent/"shared"))
if not (shared/"data/traces").is_dir(): shared = root.parent.parent/"shared"      # a checkout one folder deeper
real = shared/"data/traces"
needs_real = pytest.mark.skipif(not real.is_dir(), reason=f"the traces of real GPUs are not at {real}")
roofs = HardwarePeaks(1e12, 1e11, device="cuda")

# One step by hand, in µs: a product from 20 to 24, an activation from 25 to 27, within a step from 0 to 40.

def event(cat, name, ts, dur, tid=1, **args):
    return dict(ph="X", cat=cat, name=name, pid=1, tid=tid, ts=ts, dur=dur, args=args)

def operator(name, ts, dur, dims, types, **more):
    return event("cpu_op", name, ts, dur, **{"Input Dims": dims, "Input type": types}, **more)

def launch(ts, correlation, name="cudaLaunchKernel"): return event("cuda_runtime", name, ts, 1, correlation=correlation)
def kernel(name, ts, dur, correlation, cat="kernel"):
    return event(cat, name, ts, dur, 7, correlation=correlation, device=0)

def step():
    return [event("user_annotation", "ProfilerStep#1", 0, 40), event("python_function", "nn.Module: Net_0", 1, 20),
            event("python_function", "nn.Module: Linear_0", 2, 6),
            operator("aten::mm", 3, 4, [[64, 32], [32, 16]], ["float", "float"]),
            launch(4, 11), operator("aten::relu", 10, 4, [[64, 16]], ["float"]), launch(11, 12),
            kernel("sgemm", 20, 4, 11),
            kernel("relu_kernel", 25, 2, 12)]

def written(folder, events, name="trace.json", **head):
    path = Path(folder)/name
    text = json.dumps(dict(head, traceEvents=events)).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path

def read(folder, events, name="trace.json", by=None, **head):
    "The rows of a trace by hand, under roofs of 1 TFLOP/s and 100 GB/s."
    return read_trace(written(folder, events, name, **head), by=by, peaks=roofs)

def by_name(result): return {p.name: p for p in result.points}
