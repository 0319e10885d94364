"""A view of every kind, small, for tests that hold for all of them."""
import tempfile, warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

import ncu_files
import trace_files
from fasterbench import HardwarePeaks, Result, compare, predict, read_ncu, read_trace
from fasterbench.checking.budgets import Found, judge, read_budgets
from fasterbench.checking.verdict_view import Verdicts
from fasterbench.network.network_fit import fit_network
from fasterbench.roofs.hardware import Ceiling, MemoryLevel
from fasterbench.roofs.place import place
from fasterbench.roofs.row import Row
from fasterbench.running.metrics import MetricSeries
from fasterbench.serving.serve import serve
from fasterbench.speed_of_light.sol_verb import Bounds, judged
from fasterbench.comparing.compare import series_of
from fasterbench.views.peaks_page import PeaksView
from fasterbench.views.result import Breakdown, Idle, Timing

root = Path(__file__).resolve().parent
paper = HardwarePeaks(1e12, 1e11)
busy = Timing(10e-3, 1e-3, 9e-3, 0.0, 10, 10, "cpu timestamps (perf_counter)", 0.0, cores=2, others=1.6,
              load_average=3.0)

def row(name, time_s, type="Linear", flops=2e8, nbytes=1e7, peaks=paper, **more):
    more = dict(category="matmul", share=time_s / 10e-3) | more
    return place(Row(name, type, flops, nbytes, time_s), peaks, **more)

def rows(phases=("",), times=(4e-3, 3e-3, 2e-3)):
    each = [(i, t / len(phases), phase) for i, t in enumerate(times) for phase in phases]
    return [row(f"layers.{i}.linear", t, phase=phase, share=t / sum(times)) for i, t, phase in each]

def profiled(**more):
    "On a machine that other processes used, with an operator that has no rule."
    known = dict(model="Net", timing=busy, program=row("", 10e-3, "Net", 6e8, 3e7), unknown_ops={"aten::odd": 2},
                 notes=["the roofs of /home/somebody/peaks.json were measured with 4 threads, the rows with 2"],
                 environment=dict(device_name="a CPU"),
                 sample=[dict(name="0", shape=[8, 16], dtype="float32")])
    return Result(**dict(points=rows(), peaks=paper) | known | more)

def steady(total=9.1e-3, rows_s=9e-3, **more):
    "Rows and total differ by no more than 3 %, so that the headline is split."
    return profiled(timing=replace(busy, end_to_end_s=total, rows_s=rows_s), program=row("", total, "Net", 6e8, 3e7),
                    **more)

def predicted(batch=8, on="NVIDIA H100 80GB HBM3", **more):
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    return predict(model, torch.randn(batch, 512, device="meta"), on, **more)

def several_ranks():
    "Two ranks that waited for one another, and for the CPU."
    idle = [Idle("layers.1", "waiting for the CPU", 1e-3), Idle("layers.2", "queued behind other work", 3e-3)]
    parts = [Breakdown(i, 10e-3, dict(compute=8e-3, idle=2e-3), f"/home/somebody/rank{i}.json") for i in (0, 1)]
    points = [replace(p, ranks=((0, p.time_s), (1, p.time_s * 1.1))) for p in rows(("forward", "backward"))]
    return profiled(points=points, idle=idle, breakdowns=parts, timing=None)

def measured_peaks():
    return HardwarePeaks(2e11, 7e10, levels=(MemoryLevel("L2", 2 << 20, 9e11), MemoryLevel("DRAM", None, 7e10)),
                         ceilings=(Ceiling("float32", 2e11, spread=0.4, probe="matmul 512×512×512"),),
                         sweep=(("copy", 1 << 20, 5e11), ("copy", 1 << 28, 5e10)),
                         environment=dict(device_name="a CPU"),
                         trials=(("float32", "matmul 512×512×512", 2.7e8, 2e11),))

def verdicts():
    tables = {"net": dict(model="torchvision:resnet18", flops="<= 10 GFLOP", time="<= 50 ms")}
    return Verdicts([judge(b, Found(v, (0.9 * v, 1.1 * v), samples=20))
                     for b, v in zip(read_budgets(tables)[1], (9e9, 49e-3))],
                    ["device: a CPU, 2 threads", "roofs: float32 200 GFLOP/s, DRAM 70 GB/s"])

def samples():
    shares = dict(compute_share=0.6, memory_share=0.3, overhead_share=0.1)
    of = dict(device="a CPU, 2 threads", roofs="float32 200 GFLOP/s, DRAM 70 GB/s")
    return MetricSeries([dict(step=i, step_time_s=1e-3 * i, mfu=0.3, others=1.6 * (i % 2), cores=2, **shares, **of)
                         for i in range(1, 6)], "Net")

llama = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=256, intermediate_size=512,
             num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, vocab_size=512, torch_dtype="bfloat16")

def compiled():
    return profiled(points=[replace(p, layers=((f"layers.{i}", "Linear", 1.0, 1e7),)) for i, p in enumerate(rows())],
                    notes=["kernels of Inductor"])

def memory():
    "A training step whose memory was counted."
    from fasterbench.roofline import RooflineAnalyzer
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU())
    return RooflineAnalyzer(model, torch.randn(4, 32),
                            paper).profile(backward=True, warmup=1, steps=2, progress=False).result

def in_folder(make):
    "What is read from a file that is gone then."
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(Path(folder))

def kernels(**more):
    "Two launches that Nsight Compute saw, without counters of FLOPs."
    return in_folder(lambda folder: read_ncu(ncu_files.gemm_tiled(folder), **more))

def trace():
    return in_folder(lambda folder: read_trace(trace_files.written(folder, trace_files.step()),
                                               peaks=trace_files.roofs))

def with_network():
    "Roofs with those of a network of eight devices."
    times = dict(all_reduce=(18e-6, 22e-6, 47e-6, 420e-6), all_gather=(17e-6, 19e-6, 36e-6, 350e-6))
    samples = [(name, 8, n, t) for name, seconds in times.items()
               for n, t in zip((2**10, 2**20, 2**23, 2**27), seconds)]
    return PeaksView(replace(measured_peaks(), network=fit_network(samples, dict(backend="nccl", hosts=1))))

def disagreeing():
    "Rows that sum to more than the whole, by half of it."
    return profiled(timing=replace(busy, end_to_end_s=6e-3, overhead_s=0.0))

def bounds():
    "Of a time below its bound, one above it, and a problem that could not be counted."
    def counted(problem, time_s, **more):
        return dict(problem=problem, time_s=time_s, binds="memory", compute_s=time_s / 2, memory_s=time_s,
                    within_s=time_s / 2, direct_s=time_s) | more
    timed = [judged(counted("softmax", 1e-3), 0.8e-3), judged(counted("matmul", 2e-3, price="tf32"), 3e-3)]
    return Bounds([*timed, dict(problem="lstm", verdict="not counted: it needs cupy, which is not installed")],
                  "NVIDIA H100 80GB HBM3")

makers = dict(
    profile=profiled, training=lambda: profiled(points=rows(("forward", "backward"))), compiled=compiled,
    ranks=several_ranks,
    predict=predicted, host=lambda: predicted(launch_s=3e-3),
    batches=lambda: series_of([predicted(b) for b in (1, 8)]),
    three_batches=lambda: series_of([predicted(b) for b in (1, 8, 32)]),
    devices=lambda: series_of([predicted(on=on) for on in ("NVIDIA H100 80GB HBM3", "NVIDIA L40S")]),
    serve=lambda: serve(llama), serve_several=lambda: serve(
        llama, on=["NVIDIA H100 80GB HBM3", "NVIDIA L40S"], tensor_parallel=[1, 2], price=2.5),
    pair=lambda: compare(steady(), steady(7.1e-3, 7e-3, points=rows(times=(2e-3, 3e-3, 2e-3)), notes=["another"])),
    series=lambda: compare(*(steady(call=dict(batch=b)) for b in (1, 2, 4))), check=verdicts, watch=samples,
    peaks=lambda: PeaksView(measured_peaks()), memory=memory, trace=trace, kernels=lambda: kernels(peaks=paper),
    no_roofs=kernels, disagreeing=disagreeing,
    network=with_network, sol=bounds)

@cache
def view_of(kind): return makers[kind]()
