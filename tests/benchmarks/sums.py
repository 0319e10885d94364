"""Do the rows add up? Per model, in one run: the sum of the rows over the bare forward measured outside the library, what `profile` costs in bare
forwards, and the same sum for hooks on leaf modules only. For a quiet machine."""
import statistics, sys
from time import perf_counter

import torch, torchvision
from torch import nn

from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer

class Tiny(nn.Module):
    "Many tiny layers."
    def __init__(self, n=400): super().__init__(); self.net = nn.Sequential(*(m for _ in range(n) for m in (nn.Linear(32, 32), nn.ReLU())))
    def forward(self, x): return self.net(x)

class Recurrent(nn.Module):
    def __init__(self): super().__init__(); self.lstm, self.head = nn.LSTM(256, 256, 2), nn.Linear(256, 1000)
    def forward(self, x): return self.head(self.lstm(x)[0])

def zoo():
    for name in ("mobilenet_v3_small", "squeezenet1_1", "regnet_y_400mf", "shufflenet_v2_x1_0", "efficientnet_b0", "resnet18", "densenet121", "resnet50", "swin_t", "convnext_tiny", "vgg16", "vit_b_16"):
        yield name, torchvision.models.get_model(name, weights=None), torch.randn(1, 3, 224, 224)
    yield "800 tiny layers", Tiny(), torch.randn(8, 32)
    yield "LSTM", Recurrent(), torch.randn(64, 8, 256)
    yield "transformer encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 4), torch.randn(4, 128, 256)

def bare(model, x, n=25):
    times = []
    with torch.no_grad():
        for _ in range(n): start = perf_counter(); model(x); times.append(perf_counter() - start)
    return statistics.median(times)

def leaf_hooks(model, x, n=20):
    "The common way: the time between a leaf's pre-hook and its hook."
    total, begun, hooks = [], {}, []
    for m in model.modules():
        if not list(m.children()):
            hooks += [m.register_forward_pre_hook(lambda m, a: begun.__setitem__(m, perf_counter())),
                      m.register_forward_hook(lambda m, a, o: step.__setitem__(m, step.get(m, 0) + perf_counter() - begun[m]))]
    with torch.no_grad():
        for _ in range(n): step = {}; model(x); total.append(step)
    for h in hooks: h.remove()
    return sum(statistics.median(t.get(m, 0) for t in total) for m in total[0])

if __name__ == "__main__":
    wanted = sys.argv[1:]
    print(f"{'model':22} {'bare':>10} {'rows ÷ bare':>12} {'leaf hooks ÷ bare':>18} {'cost ÷ 25 forwards':>19}")
    for name, model, x in zoo():
        if wanted and name not in wanted: continue
        model.eval(); bare(model, x, 10)
        before, ra = bare(model, x), RooflineAnalyzer(model, x, HardwarePeaks(5e11, 7e10))
        start = perf_counter(); ra.profile(warmup=5, steps=20); cost = perf_counter() - start
        outside = statistics.mean((before, bare(model, x)))
        print(f"{name:22} {outside * 1e3:7.2f} ms {ra.timing.sum_s / outside:12.3f} {leaf_hooks(model, x) / outside:18.3f} {cost / (25 * outside):19.2f}", flush=True)
