"""Do the rows add up? Per model, all in one run, step by step in turn: a profiled step, a bare one measured out
here, one with hooks on leaf modules.

Arguments: names of models (none: all); `train` for training steps. For a quiet machine: the columns `A/A` and `rows
÷ steps` tell how quiet it was. The first compares the even bare steps with the odd ones. The second compares the
sum of the rows with the median of the very steps they come from; it falls below 1 where something hits other rows
in every step, as the median of each row leaves that out and the median of the steps cannot. Limits: 0.98–1.02 for
the sum from 10 ms on, 0.97–1.03 from 3 ms on; cost 1.6 from 10 ms on, 2.2 at 3 ms; rows of two profiles 5 % apart
in the median.

`cost ÷ 25 bare` is the time of the whole profile over that of 25 bare forwards of the same moments: over 25 times
their mean, as the profile's own time has its share of what disturbs too. A profile of 5 + 20 steps of a steady
model runs it 32 times (5 to warm up, the first of which counts, 20 timestamped, 4 bare, 3 to time operators), so
1.28 is what the runs alone take; where runs vary it is up to 8 bare and 6 for operators, 1.56; `÷ runs` is the cost
over these."""
import statistics, sys
from contextlib import contextmanager
from time import perf_counter
from unittest.mock import patch

import torch, torchvision
from torch import nn

from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
from fasterbench.timing.stopping import StoppingRule

warmup, steps = 5, 20
rule = StoppingRule(steps=steps)
runs = warmup + steps + rule.bare_runs(steps) + rule.operators(steps) # Of a steady model

class Tiny(nn.Module):
    "Many tiny layers."
    def __init__(self, n=400):
        super().__init__(); self.net = nn.Sequential(*(m for _ in range(n) for m in (nn.Linear(32, 32), nn.ReLU())))
    def forward(self, x): return self.net(x)

class Recurrent(nn.Module):
    def __init__(self): super().__init__(); self.lstm, self.head = nn.LSTM(256, 256, 2), nn.Linear(256, 1000)
    def forward(self, x): return self.head(self.lstm(x)[0])

vision = dict(mobilenet_v3_small=1, squeezenet1_1=1, regnet_y_400mf=1, shufflenet_v2_x1_0=1, efficientnet_b0=1,
              resnet18=1, densenet121=1, resnet50=1, swin_t=1, convnext_tiny=1, vgg16=1, vit_b_16=1, vgg16_bn=3)

def zoo():
    for name, batch in vision.items():
        yield name, torchvision.models.get_model(name, weights=None), torch.randn(batch, 3, 224, 224)
    yield "800 tiny layers", Tiny(), torch.randn(8, 32)
    yield "LSTM", Recurrent(), torch.randn(64, 8, 256)
    yield "transformer encoder", nn.TransformerEncoder(
        nn.TransformerEncoderLayer(256, 4, 512, batch_first=True), 4), torch.randn(4, 128, 256)

def forward(model, x, optimizer):
    "Seconds of a bare forward."
    with torch.no_grad():
        start = perf_counter()
        model(x)
        return perf_counter() - start

def train(model, x, optimizer):
    "Seconds of a bare training step."
    optimizer.zero_grad(set_to_none=True)
    start = perf_counter()
    model(x).sum().backward()
    optimizer.step()
    return perf_counter() - start

def leaf_hooks(model, x):
    "The common way: the sum of the times between a leaf's pre-hook and its hook."
    seconds, begun, hooks = [0.0], {}, []
    def end(m, a, o): seconds[0] += perf_counter() - begun[m]
    for m in model.modules():
        if not list(m.children()):
            hooks += [m.register_forward_pre_hook(lambda m, a: begun.__setitem__(m, perf_counter())),
                      m.register_forward_hook(end)]
    with torch.no_grad(): model(x)
    for h in hooks: h.remove()
    return seconds[0]

@contextmanager
def between(job, n):
    "Within the context `job()` runs after each of the first `n` steps of a profile; gives the seconds that took."
    spent, ticks = [0.0], [0]
    def tick(left=None):
        ticks[0] += 1
        if ticks[0] > n: return
        start = perf_counter()
        job()
        spent[0] += perf_counter() - start
    @contextmanager
    def bar(*args): yield tick
    with patch("fasterbench.analysis.measure.progress_bar", bar): yield spent

def compare(name, model, x, training):
    "One line of the table."
    optimizer, bare, hooked = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), [], []
    once, how = (train, dict(backward=True, optimizer=optimizer)) if training else (forward, {})
    def job():
        bare.append(once(model, x, optimizer))
        if not training: hooked.append(leaf_hooks(model, x))
        bare.append(once(model, x, optimizer))
    # what a process does once is not counted
    ra = RooflineAnalyzer(model, x, HardwarePeaks(5e11, 7e10)).profile(warmup=warmup, steps=2, **how)
    with between(job, warmup + steps) as spent:
        start = perf_counter()
        found = ra.profile(warmup=warmup, steps=steps, **how).result
        cost = perf_counter() - start - spent[0]
    timed, median = slice(2 * warmup, 2 * (warmup + steps)), statistics.median
    bare, hooked, again = (bare[timed], hooked[warmup:warmup + steps],
                           {(r.name, r.phase): r.time_s
                            for r in ra.profile(warmup=warmup, steps=steps, **how).results})
    mean = statistics.fmean(bare)
    low, truth, high = statistics.quantiles(bare, n=4)
    apart = median(abs(again[r.name, r.phase] - r.time_s) / max(r.time_s, 1e-9) for r in found.points)
    leaves = f"{median(hooked) / truth:18.3f}" if hooked else f"{'':18}"
    return (f"{name:20} {truth * 1e3:6.1f} ms {(high - low) / truth:6.1%} "
            f"{median(bare[::2]) / median(bare[1::2]):6.3f} {found.timing.sum_s / truth:12.3f} "
            f"{found.timing.sum_s / median(p.time_s for p in found.steps):13.3f} "
            f"{leaves} {cost / (warmup + steps) / mean:15.2f} {cost / runs / mean:7.2f} {apart:13.1%}")

if __name__ == "__main__":
    training, wanted = "train" in sys.argv, [a for a in sys.argv[1:] if a != "train"]
    print(f"{'model':20} {'bare':>9} {'IQR':>6} {'A/A':>6} {'rows ÷ bare':>12} {'rows ÷ steps':>13} "
          f"{'leaf hooks ÷ bare':>18} {'cost ÷ 25 bare':>15} {'÷ runs':>7} {'two profiles':>13}")
    for name, model, x in zoo():
        if not wanted or name in wanted: print(compare(name, model.eval(), x, training), flush=True)
