"""What `watch` costs, and how its rows compare with a profile. `python tests/benchmarks/watch.py [cost|memory|rows] …`

cost    a training loop of about 10 ms per step, watched with every=200 and plain, step by step in turn in one run;
a third
        loop, plain too, shows what the machine alone makes of the comparison
memory  10 000 steps of a small model with every=200: resident size and objects of the garbage collector
rows    the rows of a sample against `RooflineAnalyzer.profile(backward=True)` of the same model, loss and optimizer
"""
import gc, random, statistics, sys, time

import torch
from torch import nn
from torch.nn import functional as F

from fasterbench import RooflineAnalyzer, measure_peaks, watch
from fasterbench.engine.modules import copiers
from fasterbench.core.units import format_si

class Loop:
    "A training loop that can be stepped."
    def __init__(self, make, batch, lr=1e-3):
        torch.manual_seed(0)
        self.model, self.batch, self.losses = make(), batch, []
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def loss(self, out): return F.cross_entropy(out, self.batch[1])

    def step(self):
        self.optimizer.zero_grad()
        loss = self.loss(self.model(self.batch[0]))
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def timed(self):
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start

def convs():
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1),
                         nn.BatchNorm2d(64), nn.ReLU(),
                         nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(128, 10))

def pictures(n, size): return torch.randn(n, 3, size, size), torch.randint(0, 10, (n,))

def attributes(model):
    "Of what is watched: on the model itself, on the modules in it, and hooks."
    own, *others = (sum(k in vars(m) for k in ("forward", *copiers)) for m in model.modules())
    return own, sum(others), sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

def cost(steps=1000, every=200):
    batch = ten_ms()
    drawn(batch)
    plain, watched, again = (Loop(convs, batch) for _ in range(3))
    loops, times, where, left = (plain, watched, again), ([], [], []), [], []
    for loop in loops:
        for _ in range(10): loop.step()
    with watch(watched.model, every=every, warmup=every) as w:
        for i in range(steps):
            before = type(w.sample.stage).__name__ if w.sample else None
            # none runs twice in a row
            for k in ((i + j) % 3 for j in range(3)): times[k].append(loops[k].timed())
            after = w.sample is not None
            stage = type(w.sample.stage).__name__ if w.sample else None
            where.append("between samples" if not after and before is None
                         else dict(CountedStep="counted", TimedStep="timed", NoneType="clocked").get(stage, "reduced"))
            if where[-1] == "between samples": left.append(attributes(watched.model))
    per_call = counter_cost()
    base = statistics.median(times[0])
    print(f"step of the plain loop {format_si(base, 's')}, {steps} steps of each, every={every}, {len(w.series)} "
          "samples")
    print(f"{'':18}{'steps':>6}{'watched':>12}{'plain':>12}{'plain again':>12}{'watched - plain':>17}{'again - plain':>15}")
    for kind in dict.fromkeys(where):
        chosen = [i for i, at in enumerate(where) if at == kind]
        a, b, c = ([t[i] for i in chosen] for t in times)
        def change(x): return statistics.median(q - p for p, q in zip(a, x)) / base
        print(f"{kind:18}{len(chosen):6}" + "".join(f"{format_si(statistics.median(t), 's'):>12}" for t in (b, a, c))
              + f"{change(b):17.2%}{change(c):15.2%}")
    total = [sum(t) for t in times]
    print(f"whole run: watched / plain {total[1] / total[0]:.4f}, plain again / plain {total[2] / total[0]:.4f}; "
          f"counter {format_si(per_call, 's')} per call, {per_call / 0.01:.4%} of 10 ms")
    own, others, hooks = (max(n) for n in zip(*left))
    print(f"between samples: attributes of the counter on the model itself {own}, on modules in it {others}, hooks "
          f"{hooks}; losses equal: {plain.losses == watched.losses}")

def drawn(batch, steps=6000):
    """One loop; before each step it is drawn whether the counter is attached.

    A step is held against the median of the 51 steps around it, since the machine changes its speed. The same steps
    divided by a second draw, which had no effect, show how far two such medians lie apart by themselves."""
    loop, draws = Loop(convs, batch), [random.Random(seed) for seed in (0, 1)]
    for _ in range(20): loop.step()
    with watch(loop.model, warmup=10**9) as w:
        times, sides = [], []
        for _ in range(steps):
            on, other = (d.random() < 0.5 for d in draws)
            if on == w.counter.over: (w.counter.__enter__ if on else w.counter.__exit__)()
            times.append(loop.timed())
            sides.append((on, other))
        if w.counter.over: w.counter.__enter__()
    around = [statistics.median(times[max(i - 25, 0):i + 26]) for i in range(steps)]
    relative = [t / a for t, a in zip(times, around)]
    def change(k):
        return statistics.median(r for r, s in zip(relative, sides)
                                 if s[k]) / statistics.median(r for r, s in zip(relative, sides) if not s[k]) - 1
    print(f"one loop, the counter drawn on or off: {change(0):+.2%}; the same steps by another draw "
          f"{change(1):+.2%}; {steps} steps of {format_si(statistics.median(times), 's')}")

def ten_ms():
    "A batch of which a step of the plain loop takes about 10 ms."
    torch.manual_seed(1)
    for n in range(8, 200, 4):
        loop = Loop(convs, batch := pictures(n, 32))
        for _ in range(10): loop.step()
        if statistics.median(loop.timed() for _ in range(20)) > 0.0098: break
    return batch

def counter_cost(n=200_000):
    "Seconds that the counter adds to a call."
    model, x = nn.Identity(), None
    def loop():
        start = time.perf_counter()
        for _ in range(n): model(x)
        return (time.perf_counter() - start) / n
    rounds = []
    for _ in range(5):
        bare = loop()
        with watch(model, warmup=10**9, peaks=measure_peaks("cpu")): rounds.append(loop() - bare)
    return statistics.median(rounds)

def resident():
    with open("/proc/self/statm") as f: return int(f.read().split()[1]) * 4096

def memory(steps=10_000, every=200):
    torch.manual_seed(1)
    loop = Loop(lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
                (torch.randn(16, 64), torch.randint(0, 10, (16,))))
    loop.losses = type("None_", (), dict(append=lambda self, x: None))()
    rows = []
    with watch(loop.model, every=every) as w:
        for i in range(1, steps + 1):
            loop.step()
            if i % 1000 == 0: gc.collect(); rows.append((i, resident(), len(gc.get_objects()), len(w.series)))
    print(f"{'step':>8}{'resident':>14}{'objects':>10}{'samples':>9}")
    for i, size, objects, samples in rows: print(f"{i:8}{format_si(size, 'B'):>14}{objects:10}{samples:9}")
    print(f"from step 1000 to {steps}: resident {(rows[-1][1] - rows[0][1]) / 1e3:+.0f} kB, objects "
          f"{rows[-1][2] - rows[0][2]:+}")

class Attention(nn.Module):
    "Four blocks of a transformer, and a head."
    def __init__(self, width=192):
        super().__init__()
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True), 4)
        self.head = nn.Linear(width, 10)
    def forward(self, x): return self.head(self.blocks(x).mean(1))

def resnet():
    import torchvision
    return torchvision.models.resnet18(num_classes=10)

def rows(rounds=8, active=4):
    peaks = measure_peaks("cpu")
    for name, make, batch in ((("resnet18 4×3×64×64", resnet, pictures(4, 64)),
                               ("transformer 4×64×192", Attention,
                                (torch.randn(4, 64, 192), torch.randint(0, 10, (4,)))),
                               ("convs 64×3×32×32", convs, pictures(64, 32)))):
        loop = Loop(make, batch, 0.0)
        for _ in range(5): loop.step()
        def profile():
            return RooflineAnalyzer(loop.model, batch[0],
                                    peaks).profile(
                backward=True, loss=loop.loss, optimizer=loop.optimizer, warmup=2, steps=active).result
        def sample():
            with watch(loop.model, active=active, every=10**6, warmup=2, peaks=peaks) as w:
                for _ in range(2 * active + 5): loop.step()
            return w.result
        found = [(profile(), sample(), profile(), sample()) for _ in range(rounds)]
        profiles, samples, again, samples_again = zip(*found)
        print(name)
        compared("sample against profile", profiles + again, samples + samples_again)
        compared("profile against profile", profiles, again)
        compared("sample against sample", samples, samples_again)

def keyed(result): return {(p.name, p.phase): p for p in result.points}

def compared(what, these, those):
    "Print how the rows of two sets of results differ; a time is the median over the set."
    work = ("flops", "bytes_moved", "contraction_flops", "eager_bytes", "calls", "bytes_by_level")
    sides = [list(map(keyed, these)), list(map(keyed, those))]
    first, other = sides[0][0], sides[1][0]
    keys = [k for k in first if k in other and (not k[0].startswith("(") or k[0] == "(optimizer)")]
    missing = [k for k in first if k not in other and not k[0].startswith("(")]
    differ = [(k, f) for a, b in zip(*sides) for k in keys for f in work if getattr(a[k], f) != getattr(b[k], f)]
    def time_of(side, k): return statistics.median(r[k].time_s for r in side)
    ratios = {k: time_of(sides[1], k) / time_of(sides[0], k) for k in keys}
    heavy = [ratios[k] for k in keys if first[k].share >= 0.01]
    def off(rs): return f"{statistics.median(rs):.3f} ± {statistics.median(abs(r - 1) for r in rs):.1%}"
    total = sum(time_of(sides[1], k) for k in keys) / sum(time_of(sides[0], k) for k in keys)
    ends = [statistics.median(r.timing.end_to_end_s for r in side) for side in (these, those)]
    sums = [statistics.median(r.timing.ratio for r in side) for side in (these, those)]
    print(f"  {what}: {len(keys)} rows, {len(missing)} missing, {len(differ)} fields of work differ; median ratio "
          f"and deviation of rows {off(ratios.values())}, of {len(heavy)} rows over 1 % {off(heavy)};"
          f" sum {total:.3f}; end to end {format_si(ends[0], 's')} and {format_si(ends[1], 's')} "
          f"({ends[1] / ends[0]:.3f}); rows ÷ end {sums[0]:.3f} and {sums[1]:.3f}")

if __name__ == "__main__":
    for part in sys.argv[1:] or ("cost", "memory", "rows"):
        print(f"== {part}")
        dict(cost=cost, memory=memory, rows=rows)[part]()
