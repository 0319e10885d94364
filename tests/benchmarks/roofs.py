"""Do the roofs hold, and are they tight? Over a zoo of models at two batch sizes: rows above their roof, and the best,
worst and median rows under it, with one memory roof (a matrix product and a copy, the common way) beside the envelopes
and levels, for the same measured rows. Rows that the clock can resolve. Then the division of the time of each model:
what the roofs need, what ceilings of kinds of work explain, and what is left; and the rows that are faster than their
ceilings and fixed cost together, of which there should be none.

Usage: python tests/benchmarks/roofs.py [MODEL...]"""
import statistics, sys

import torch, torchvision

from fasterbench.roofs.division import division
from fasterbench.roofs.place import place
from fasterbench.roofs.row import Row
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer, measure_peaks

names = (sys.argv[1:] or ["resnet18", "resnet50", "vgg16", "densenet121", "mobilenet_v3_small", "efficientnet_b0",
                          "squeezenet1_1", "regnet_y_400mf", "shufflenet_v2_x1_0",
                          "swin_t", "convnext_tiny", "vit_b_16"])

def rows(points): return [r for r in points if r.utilization_pct is not None and not r.uncertain]
def best(rs, bound): return max((r.utilization_pct for r in rs if r.bound == bound), default=float("nan"))

peaks = measure_peaks("cpu")
plain = measure_peaks("cpu", matmul_size=2048, cache=False)
copy = max(rate for kind, size, rate in plain.sweep if kind == "copy" and size >= 128 << 20)
naive = HardwarePeaks(plain.peak_flops, copy)
print(f"envelope {peaks.peak_flops / 1e9:.0f} GFLOP/s, levels "
      f"{', '.join(f'{l.name} {l.bandwidth / 1e9:.0f} GB/s' for l in peaks.levels)}; plain matmul "
      f"{naive.peak_flops / 1e9:.0f} GFLOP/s, copy {copy / 1e9:.0f} GB/s")
print(f"{'model':20} {'batch':>5} {'rows':>5} {'above 105 %':>12} {'marked':>7} {'naive: above':>13} "
      f"{'best compute':>13} {'best memory':>12} {'median':>7} {'sum ÷ end':>10}")
everything, divisions = [], []
for name in names:
    for batch in (1, 8):
        model, x = torchvision.models.get_model(name, weights=None), torch.randn(batch, 3, 224, 224)
        result = RooflineAnalyzer(model, x, peaks).profile(steps=10, warmup=3, progress=False).result
        rs = rows(result.points)
        ns = rows([place(Row(r.name, r.type, r.flops, r.bytes_moved, r.time_s), naive) for r in rs])
        everything += [(r, f"{name} × {batch}") for r in rs]
        divisions.append((f"{name} × {batch}",
                          division(result.points, result.timing.end_to_end_s, result.timing.overhead_s)))
        print(f"{name:20} {batch:5} {len(rs):5} {sum(r.utilization_pct > 105 for r in rs):12} "
              f"{sum(r.above_roof for r in rs):7} {sum(r.utilization_pct > 105 for r in ns) / len(ns):12.0%} "
              f"{best(rs, 'compute'):12.1f}% "
              f"{best(rs, 'memory'):11.1f}% {statistics.median(r.utilization_pct for r in rs):6.1f}% "
              f"{result.timing.ratio:10.3f}", flush=True)
again = measure_peaks("cpu", cache=False)
print("roofs measured again at the end:", f"{again.peak_flops / 1e9:.0f} GFLOP/s,",
      ", ".join(f"{l.name} {l.bandwidth / 1e9:.0f} GB/s" for l in again.levels))
def under(r):
    "Utilization under the higher of both measurements."
    then = place(Row(r.name, r.type, r.flops, r.bytes_moved, r.time_s,
                     bytes_by_level=[b for _, b in r.bytes_by_level]),
                 again)
    return min(r.utilization_pct, then.utilization_pct)
print(f"rows above 105 % of the higher of both: {sum(under(r) > 105 for r, _ in everything)}")
ranked = sorted(everything, key=lambda r: -r[0].utilization_pct)
def show(r, where):
    return print(
        f"  {r.utilization_pct:6.1f} %  {r.bound:7} {r.memory_level:4} {where:24} {r.name:40} {r.type:20} "
        f"{r.time_s * 1e6:7.0f} us, {r.share:.1%} of the time")
for bound in ("compute", "memory"):
    print(f"the five best {bound}-bound rows")
    for r, where in [x for x in ranked if x[0].bound == bound][:5]: show(r, where)
print("the median row and the worst")
for r, where in (ranked[len(ranked) // 2], ranked[-1]): show(r, where)
print(f"{sum(r.utilization_pct > 105 for r, _ in ranked)} of {len(ranked)} rows above 105 % of their roof")

def percent(s, d): return f"{s / d.end_to_end_s:6.1%}"
print(f"{'of the time':24} {'roofs need':>10} {'explained':>9} {'left':>6} {'outside':>7} {'differs':>7}")
for where, d in divisions:
    explained = sum(s for _, s in d.explained)
    parts = (d.needed_s, explained, d.above_s - explained, d.outside_s + d.unknown_s, d.difference_s)
    needs = ", ".join(f"{k} {percent(s, d).strip()}" for k, s in (*d.needed, *d.explained[:4]))
    print(f"{where:24} {percent(parts[0], d):>10} {percent(parts[1], d):>9} {percent(parts[2], d)} "
          f"{percent(parts[3], d):>7} {percent(parts[4], d):>7}  {needs}")
def least(r): return r.least_time_s + sum(s for _, s in r.explained)
quick = [(r, where) for r, where in everything if least(r) > 1.05 * r.time_s]
print(f"{len(quick)} of {len(everything)} rows faster than 105 % of their ceilings and fixed cost")
for r, where in sorted(quick, key=lambda x: -least(x[0]) / x[0].time_s)[:10]:
    print(f"  {least(r) / r.time_s:6.1%}  {where:24} {r.name:40} {r.type:20} {r.time_s * 1e6:7.0f} us, "
          f"{', '.join(k for k, _ in r.explained)}")
