"""Do the roofs hold, and are they tight? Over a zoo of models at two batch sizes: rows above their roof, and the best rows under it, with one memory
roof (a matrix product and a copy, the common way) beside the envelopes and levels. Rows of at least 0.2 % of the time that the clock can resolve."""
import statistics

import torch, torchvision

from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer, measure_peaks

names = ["resnet18", "resnet50", "vgg16", "densenet121", "mobilenet_v3_small", "efficientnet_b0", "squeezenet1_1", "regnet_y_400mf", "shufflenet_v2_x1_0", "swin_t", "convnext_tiny", "vit_b_16"]

def rows(result): return [r for r in result.points if r.utilization_pct is not None and not r.uncertain]
def best(rs, bound): return max((r.utilization_pct for r in rs if r.bound == bound), default=float("nan"))

peaks = measure_peaks("cpu")
plain = measure_peaks("cpu", matmul_size=2048, cache=False)
copy = max(rate for kind, size, rate in plain.sweep if kind == "copy" and size >= 128 << 20)
naive = HardwarePeaks(plain.peak_flops, copy)
print(f"envelope {peaks.peak_flops / 1e9:.0f} GFLOP/s, levels {', '.join(f'{l.name} {l.bandwidth / 1e9:.0f} GB/s' for l in peaks.levels)}; plain matmul {naive.peak_flops / 1e9:.0f} GFLOP/s, copy {copy / 1e9:.0f} GB/s")
print(f"{'model':20} {'batch':>5} {'rows':>5} {'above 105 %':>12} {'naive: above':>13} {'best compute':>13} {'best memory':>12} {'median':>7}")
for name in names:
    for batch in (1, 8):
        model, x = torchvision.models.get_model(name, weights=None), torch.randn(batch, 3, 224, 224)
        result = RooflineAnalyzer(model, x, peaks).profile(steps=10, warmup=3).result
        again = RooflineAnalyzer(model, x, naive).profile(steps=10, warmup=3).result
        rs, ns = rows(result), rows(again)
        print(f"{name:20} {batch:5} {len(rs):5} {sum(r.utilization_pct > 105 for r in rs):12} {sum(r.utilization_pct > 105 for r in ns):13} {best(rs, 'compute'):12.1f}% {best(rs, 'memory'):11.1f}% "
              f"{statistics.median(r.utilization_pct for r in rs):6.1f}%", flush=True)
