"""Are the measured roofs the machine's, and are they the same when measured again? Every round measures with this library and with `likwid-bench` (hand-written
assembly; Debian package `likwid`), one after the other, and with what a plain matrix product and a plain copy give. Printed: each ceiling over the rounds, its ratio to
likwid's best in the same round, and in how many rounds it lies within the spread that it reports of the median of all rounds.

Usage: python tests/benchmarks/peaks.py [ROUNDS]"""
import re, shutil, statistics, subprocess, sys
from time import perf_counter

import torch

from fasterbench.roofline import measure_peaks
from fasterbench.engine.accelerator import accelerator
from fasterbench.probes.levels import working_sets
from fasterbench.core.units import format_si

threads = torch.get_num_threads()
with open("/proc/cpuinfo") as f: flags = f.read()
unit = "avx512" if "avx512f" in flags else "avx"
fma = f"{unit}_fma" if " fma " in flags else unit

def likwid(kernel, size, touched):
    "Rate of one kernel over `size` bytes in FLOP/s or B/s; None where there is no likwid."
    if not shutil.which("likwid-bench"): return None
    passes = max(1, int(touched / size))
    out = subprocess.run(["likwid-bench", "-t", kernel, "-w", f"N:{size // 1000}kB:{threads}", "-i", str(passes)], capture_output=True, text=True).stdout
    found = re.search(r"MFlops/s:\s+([\d.]+)" if "peakflops" in kernel else r"MByte/s:\s+([\d.]+)", out)
    return float(found[1]) * 1e6 if found else None

def likwid_best():
    "likwid's best per ceiling."
    best = {"float32": likwid(f"peakflops_sp_{fma}", 32_000, 1e10), "float64": likwid(f"peakflops_{fma}", 32_000, 1e10)}
    kernels = [f"load_{unit}", f"copy_{unit}", f"update_{unit}", f"daxpy_{fma}"]
    for name, capacity, sizes in working_sets(accelerator(torch.device("cpu")).caches(), None):
        rates = [likwid(k, s, 2e10 if capacity else 2e9) for s in sizes[:2] for k in (kernels if capacity else [*kernels, f"copy_mem_{unit}", f"stream_mem_{unit}"])]
        best[name] = max(filter(None, rates), default=None)
    return best

def plain():
    "Return the rates of one matrix product and one copy."
    p = measure_peaks("cpu", matmul_size=2048, cache=False, progress=False)
    return p.peak_flops, max(rate for kind, _, rate in p.sweep if kind == "copy" and _ >= 128 << 20)

def values(p):
    return {c.dtype: (c.flops, c.spread) for c in p.ceilings} | {l.name: (l.bandwidth, l.spread) for l in p.levels}

rounds, ours, theirs, seconds = int((sys.argv[1:] or [3])[0]), [], [], []
for _ in range(rounds):
    theirs.append(likwid_best())
    start = perf_counter()
    ours.append(values(measure_peaks("cpu", dtypes=(torch.float64,), cache=False, progress=False)))
    seconds.append(perf_counter() - start)
matmul, copy = plain()
print(f"{rounds} rounds, {statistics.median(seconds):.1f} s each for float32 and float64; plain matmul {format_si(matmul, 'FLOP/s')}, plain copy {format_si(copy, 'B/s')}")
print(f"{'ceiling':8} {'median':>15} {'range':>16} {'÷ likwid, median':>17} {'range':>13} {'reported spread':>16} {'covered':>8}")
for name in ours[0]:
    xs, spreads = zip(*(o[name] for o in ours))
    mid, unit_ = statistics.median(xs), "FLOP/s" if name.startswith("float") else "B/s"
    ratios = [x / t[name] for x, t in zip(xs, theirs) if t[name]]
    covered = sum(abs(x - mid) <= s * mid for x, s in zip(xs, spreads))
    ratio = f"{statistics.median(ratios):17.2f} {min(ratios):6.2f}–{max(ratios):.2f}" if ratios else f"{'no likwid':>31}"
    print(f"{name:8} {format_si(mid, unit_):>15} {min(xs) / mid:7.2f}–{max(xs) / mid:.2f} {ratio:>31} {statistics.median(spreads):15.1%} {covered:4} of {rounds}")
