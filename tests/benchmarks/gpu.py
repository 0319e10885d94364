"""Everything that only a GPU can show, in one run of at most nine minutes: python tests/benchmarks/gpu.py --out FOLDER

Nine parts, in this order. Each runs in a process of its own, and writes FOLDER/PART.json after every finding, so that a run that
is cut short still leaves what it had:
  peaks    the roofs per dtype, TF32 both ways, levels, beside the datasheet and published maxima; L2 by contiguous tensors
  models   rows, idle and unlaunched kernels of models, beside steps timed by events that no instrument takes part in
  above    rows above their roofs, and the rows closest to them
  traces   the profiler's records of the same runs as traces, and read_trace of them beside profile
  ncu      Nsight Compute over five kernels: counted bytes and FLOPs beside the counted work
  compiled kernels of compiled models beside event-timed steps: default, CUDA graphs, training; a trace of the same
  graphs   models in CUDA graphs of their own: a trace of the capture beside one of the replays, which are timed by events
  expected limit and expected time of predict beside the measured kernels, eager and replayed
  faults   an error at calls all through a profile: flags, memory and model afterwards
The last lines are the table of limits. Without a GPU the same parts run on the CPU, small: a rehearsal.
It needs torch and torchvision only.
"""
import argparse, json, statistics, subprocess, sys, threading, time
from contextlib import contextmanager, nullcontext
from pathlib import Path

root = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root))
shares = dict(peaks=80, models=130, above=5, traces=40, ncu=80, compiled=80, graphs=40, expected=40, faults=30) # seconds per part, 525 in all

class Record:
    "The findings of one part, written anew after each of them."
    def __init__(self, folder, part, seconds):
        self.path, self.end, self.data = folder/f"{part}.json", time.perf_counter() + seconds, dict(part=part, complete=False)
    def put(self, key, value):
        self.data[key] = value
        self.path.write_text(json.dumps(self.data, indent=1, default=str))
    @property
    def over(self): return time.perf_counter() > self.end

def here():
    "The device, and what it is."
    import torch
    from fasterbench.probes.machine import environment
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    return device, environment(device)

# ---- models

def transformer(layers, width, heads, vocabulary=32000, window=2048):
    "A language model of today's form, small enough to write here: its forward takes tokens and, for decoding, a filled cache."
    import torch
    from torch import nn
    from torch.nn import functional as F
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.out = nn.RMSNorm(width), nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.norm2, self.up, self.gate, self.down = (nn.RMSNorm(width), *(nn.Linear(a, b, bias=False) for a, b in
                                                         ((width, 3 * width), (width, 3 * width), (3 * width, width))))
        def forward(self, x, cache=None):
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            if cache is not None:
                cache[0][:, :, -1:], cache[1][:, :, -1:] = k, v
                k, v = cache
            y = F.scaled_dot_product_attention(q, k, v, is_causal=cache is None)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(F.silu(self.gate(h := self.norm2(x))) * self.up(h))
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.blocks = nn.Embedding(vocabulary, width), nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        def forward(self, tokens, caches=None):
            x = self.embed(tokens)
            for i, b in enumerate(self.blocks): x = b(x, None if caches is None else caches[i])
            return self.head(self.norm(x[:, -1:]))
    return Model()

def cases(gpu):
    "(name, make model, make sample(batch, dtype), can be trained), the quick ones first."
    import torch, torchvision
    from torch import nn
    image = lambda size: lambda batch, dtype: torch.randn(batch, 3, size, size, dtype=dtype)
    layers, width, heads, length = (12, 1024, 16, 1024) if gpu else (2, 64, 4, 32)
    tokens = lambda batch, dtype: torch.randint(32000 if gpu else 100, (batch, length))
    def decode(batch, dtype):
        caches = [[torch.randn(batch, heads, length, width // heads, dtype=dtype) for _ in "kv"] for _ in range(layers)]
        return tokens(batch, dtype)[:, :1], caches
    language = lambda: transformer(layers, width, heads, 32000 if gpu else 100)
    yield "200 small layers", lambda: nn.Sequential(*(m for _ in range(100) for m in (nn.Linear(64, 64), nn.ReLU()))), lambda b, d: torch.randn(b, 64, dtype=d), True
    yield "resnet50" if gpu else "resnet18", torchvision.models.resnet50 if gpu else torchvision.models.resnet18, image(224 if gpu else 64), True
    if gpu: yield "vit_b_16", torchvision.models.vit_b_16, image(224), True
    yield "language model, prefill", language, tokens, True
    yield "language model, decode", language, decode, False

def runs(gpu):
    "Every case with its batch, dtype and whether it is a training step."
    import torch
    for batch, dtype in ((1, torch.bfloat16), (64, torch.bfloat16), (1, torch.float32), (64, torch.float32)) if gpu else ((1, torch.float32), (2, torch.bfloat16)):
        for name, make, sample, trains in cases(gpu):
            for training in (False, True)[:1 + trains]: yield name, make, sample, batch, dtype, training

def event_timed(step, device, n):
    "Median seconds of a bare step: between two events on a GPU, by the clock on a CPU."
    import torch
    times = []
    for _ in range(n):
        if device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(); start.record(); step(); end.record(); torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
        else:
            start = time.perf_counter(); step(); times.append(time.perf_counter() - start)
    return statistics.median(times)

def bare_step(model, args, training):
    "Do by hand all that `profile` repeats."
    import torch
    def forward():
        with torch.no_grad(): model(*args)
    def step():
        model.zero_grad(set_to_none=True)
        model(*args).sum().backward()
    return step if training else forward

# ---- parts

published = {"NVIDIA H100 80GB HBM3": dict(bfloat16=(795e12, 956e12)), "NVIDIA H200": dict(bfloat16=(821e12, 968e12))}  # mean of long runs, best of sweeps

def peaks(record, device, folder):
    import torch
    from fasterbench.probes.peaks import measure_peaks
    gpu = device.type == "cuda"
    dtypes = [torch.bfloat16, torch.float32, torch.float16, torch.float64] + [getattr(torch, "float8_e4m3fn")] * gpu if gpu else [torch.float32, torch.bfloat16]
    for dtype, tf32 in [(d, False) for d in dtypes] + [(torch.float32, True)] * gpu:
        if record.over: return
        start = time.perf_counter()
        try: found = measure_peaks(device, dtype=dtype, allow_tf32=tf32, cache=False)
        except (RuntimeError, ValueError, TypeError) as error: record.put(f"{dtype} tf32={tf32}", dict(error=str(error))); continue
        found.to_json(folder/f"peaks-{str(dtype).removeprefix('torch.')}{'-tf32' * tf32}.json")
        record.put(f"{dtype} tf32={tf32}", dict(seconds=time.perf_counter() - start, flops=found.peak_flops, levels={l.name: (l.capacity, l.bandwidth, l.spread) for l in found.memory},
                   ceilings={f"{c.dtype} {c.unit}".strip(): (c.flops, c.spread, c.probe) for c in found.ceilings}, skipped=found.skipped))
    record.put("l2", l2_sweep(device))

def l2_sweep(device):
    "B/s of `add_` over contiguous tensors that together fill so many MB, eager and, on a GPU, in a captured graph."
    import torch
    gpu, out = device.type == "cuda", {}
    for megabytes in (4, 8, 16, 24, 32, 40, 48, 64, 96, 256) if gpu else (1, 8):
        xs = [torch.ones(2**18, device=device) for _ in range(megabytes)]          # 1 MB each
        def walk():
            for x in xs: x.add_(1.0)
        walk()
        ways = dict(eager=walk)
        if gpu:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph): walk()
            ways["graph"] = graph.replay
        for how, call in ways.items():
            call()
            out[f"{megabytes} MB {how}"] = 2 * megabytes * 2**20 / event_timed(call, device, 20)
    return out

def models(record, device, folder):
    import torch
    from fasterbench.roofline import RooflineAnalyzer
    gpu = device.type == "cuda"
    for name, make, sample, batch, dtype, training in runs(gpu):
        if record.over: return
        key = f"{name}, batch {batch}, {str(dtype).removeprefix('torch.')}, {'training' if training else 'forward'}"
        try: record.put(key, one_model(make, sample(batch, dtype), dtype, training, device, folder/f"{key.replace(' ', '_').replace(',', '')}.result.json"))
        except torch.OutOfMemoryError as error: record.put(key, dict(error=str(error).splitlines()[0]))

def one_model(make, sample, dtype, training, device, path):
    "A profile, and bare steps timed before and after it."
    import torch
    from fasterbench.roofline import RooflineAnalyzer
    torch.manual_seed(0)
    model = make().to(device, dtype).train(training)
    args = torch.utils._pytree.tree_map(lambda t: t.to(device), sample if isinstance(sample, tuple) else (sample,))
    step = bare_step(model, args, training)
    for _ in range(5): step()
    before = event_timed(step, device, 20)
    ra = RooflineAnalyzer(model, sample).profile(device, backward=training, loss=(lambda out: out.sum()) if training else None)
    after = event_timed(step, device, 20)
    ra.to_json(path)
    rows = sum(r.time_s for r in ra.results)
    special = {r.name: r.time_s for r in ra.results if r.name.startswith("(")}
    return dict(events_s=(before, after), rows_s=rows, end_to_end_s=ra.timing.end_to_end_s, ratio=rows / statistics.mean((before, after)), special_rows=special,
                clock=ra.timing.clock, n_rows=len(ra.results), above=[(r.name, r.utilization_pct) for r in ra.results if (r.utilization_pct or 0) > 105],
                best={b: max((r.utilization_pct or 0 for r in ra.results if r.bound == b), default=None) for b in ("compute", "memory")})

def above(record, device, folder):
    found = json.loads((folder/"models.json").read_text())
    profiles = {k: v for k, v in found.items() if isinstance(v, dict) and "n_rows" in v}
    record.put("rows", sum(v["n_rows"] for v in profiles.values()))
    record.put("above 105 %", {k: v["above"] for k, v in profiles.items() if v["above"]})
    for bound in ("compute", "memory"): record.put(f"best {bound} row, %", max((v["best"][bound] or 0 for v in profiles.values()), default=None))

def traces(record, device, folder):
    "The profiler's own record of a run as a trace; what read_trace makes of it beside what profile says."
    import torch
    from fasterbench import read_trace
    from fasterbench.roofline import RooflineAnalyzer
    for name, make, sample, batch, dtype, training in runs(device.type == "cuda"):
        if record.over: return
        if training: continue
        model, x = make().to(device, dtype).eval(), sample(batch, dtype)
        args = torch.utils._pytree.tree_map(lambda t: t.to(device), x if isinstance(x, tuple) else (x,))
        step, key = bare_step(model, args, False), f"{name}, batch {batch}, {str(dtype).removeprefix('torch.')}"
        for _ in range(3): step()
        path, n = folder/f"{key.replace(' ', '_').replace(',', '')}.trace.json.gz", 5
        with torch.profiler.profile(record_shapes=True, with_stack=True) as prof:
            for _ in range(n): step(); prof.step()
            if device.type == "cuda": torch.cuda.synchronize()
        prof.export_chrome_trace(str(path))
        try: read = read_trace(path)
        except ValueError as error: record.put(key, dict(error=str(error))); continue
        ra = RooflineAnalyzer(model, x).profile(device)
        busy = sum(r.time_s for r in ra.results if r.name != "(idle)")
        record.put(key, dict(trace_s=sum(r.time_s for r in read.points if not r.name.startswith("(idle")) / n, profile_s=busy, trace_flops=sum(r.flops or 0 for r in read.ops) / n,
                   profile_flops=sum(r.flops or 0 for r in ra.results)))

kernel_script = """
import torch
torch.backends.cuda.matmul.allow_tf32 = False
x, w = torch.randn(4096, 4096, device="cuda"), torch.randn(4096, 4096, device="cuda")
h, g = x.bfloat16(), w.bfloat16()
image, conv = torch.randn(32, 64, 56, 56, device="cuda"), torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
norm = torch.nn.LayerNorm(4096).cuda()
with torch.no_grad():
    for name, f in dict(matmul_float32=lambda: x @ w, matmul_bfloat16=lambda: h @ g, convolution=lambda: conv(image), add=lambda: x + w, layer_norm=lambda: norm(x)).items():
        f(); torch.cuda.synchronize()
        torch.cuda.nvtx.range_push(name); f(); torch.cuda.synchronize(); torch.cuda.nvtx.range_pop()
"""

def counted_work():
    "FLOPs and compulsory bytes of the five kernels, by count_work on meta tensors."
    import torch
    from fasterbench import count_work
    class Two(torch.nn.Module):
        def __init__(self, f): super().__init__(); self.f = f
        def forward(self, x, w): return self.f(x, w)
    m = lambda *s, dtype=torch.float32: torch.empty(*s, device="meta", dtype=dtype)
    x, w = m(4096, 4096), m(4096, 4096)
    conv, norm = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False, device="meta"), torch.nn.LayerNorm(4096, device="meta")
    works = dict(matmul_float32=count_work(Two(torch.matmul), (x, w)), matmul_bfloat16=count_work(Two(torch.matmul), (x.bfloat16(), w.bfloat16())),
                 convolution=count_work(conv, m(32, 64, 56, 56)), add=count_work(Two(torch.add), (x, w)), layer_norm=count_work(norm, x))
    return {k: dict(flops=v.flops, bytes=v.bytes) for k, v in works.items()}

def ncu(record, device, folder):
    record.put("counted", counted_work())
    script, report = folder/"kernels.py", folder/"kernels.csv"
    script.write_text(kernel_script)
    if device.type != "cuda": return rehearsed_ncu(record)
    found = subprocess.run(["ncu", "--set", "roofline", "--nvtx", "--clock-control", "none", "--target-processes", "all", "-f", "-o", folder/"kernels", sys.executable, script],
                           capture_output=True, text=True, timeout=shares["ncu"] * 0.7)
    record.put("ncu", (found.stdout + found.stderr)[-2000:])
    with open(report, "w") as out:
        subprocess.run(["ncu", "--import", folder/"kernels.ncu-rep", "--csv", "--page", "raw", "--print-units", "base"], stdout=out, timeout=60, check=True, env=dict(LC_ALL="C", PATH="/usr/local/cuda/bin:/usr/bin:/bin"))
    from fasterbench import read_ncu
    record.put("rows", {p.name: dict(flops=p.flops, bytes=p.bytes_moved, levels=p.bytes_by_level, time_s=p.time_s) for p in read_ncu(report, by="nvtx")})

def rehearsed_ncu(record):
    "Without a GPU: a report of somebody else's, where it lies beside the project, goes the same way."
    from fasterbench import read_ncu
    report = root.parent/"shared/data/ncu/gemm_tiled.csv"
    record.put("rows", {p.name: dict(flops=p.flops, bytes=p.bytes_moved, time_s=p.time_s) for p in read_ncu(report)} if report.exists() else f"no report: {report} is not there")

def compiled(record, device, folder):
    """Compiled models: rows of kernels beside the bare step, products beside the eager count, and their trace.

    The eager count is of PyTorch's own counter, which leaves out attention on a CPU."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from fasterbench.roofline import RooflineAnalyzer
    gpu = device.type == "cuda"
    layers, width, heads = (4, 1024, 16) if gpu else (1, 64, 4)
    tokens = torch.randint(100, (8, 256) if gpu else (2, 16), device=device)
    for mode, training in (("default", False), ("default", True), ("reduce-overhead", False)):
        if record.over: return
        key, model = f"{mode}, {'training' if training else 'forward'}", transformer(layers, width, heads, 1000).to(device).train(training)
        with FlopCounterMode(display=False) as counter, torch.set_grad_enabled(training):
            out = model(tokens)
            if training: out.sum().backward()
        torch._dynamo.reset()
        made = torch.compile(model, mode=mode)
        step = bare_step(made, (tokens,), training)
        try:
            for _ in range(5): step()
            before = event_timed(step, device, 20)
            ra = RooflineAnalyzer(made, tokens).profile(device, backward=training, progress=False)
            after = event_timed(step, device, 20)
        except Exception as error: record.put(key, dict(error=f"{type(error).__name__}: {error}")); continue
        ra.to_json(folder/f"compiled_{key.replace(', ', '_')}.result.json")
        rows = ra.results
        record.put(key, dict(events_s=(before, after), ratio=sum(r.time_s for r in rows) / statistics.mean((before, after)), notes=ra.result.notes,
                   kernels=sum(bool(r.layers) for r in rows), fused=sum(r.type.startswith("fused ") for r in rows), limits=ra.result.limits,
                   share=sum(r.time_s for r in rows if r.layers) / sum(r.time_s for r in rows), products=sum(r.dense_flops or 0 for r in rows if r.contraction_flops) / counter.get_total_flops(),
                   unknown=sum(bool(r.layers) and r.flops is None for r in rows), above=sum(r.above_roof for r in rows)))
        if gpu and not training: record.put(f"{key}, trace", traced(step, made, device, folder/f"compiled_{mode}.trace.json.gz"))

def traced(step, model, device, path, n=5):
    "The profiler's own record of compiled steps, as `read_trace` sees it."
    import torch
    from fasterbench import read_trace
    with torch.profiler.profile(record_shapes=True, with_stack=True) as prof:
        for _ in range(n): step(); prof.step()
        torch.cuda.synchronize()
    prof.export_chrome_trace(str(path))
    try: read = read_trace(path)
    except ValueError as error: return dict(error=str(error))
    return dict(time_s=sum(r.time_s for r in read.points if not r.name.startswith("(idle")) / n, rows=[(r.name, r.type, r.calls, r.flops) for r in read.points[:40]], notes=read.notes)

def graphs(record, device, folder):
    """Models captured as graphs: what the trace of the replays says alone, with the trace of the capture, and beside an eager trace.

    Without a GPU this runs on the simulated device of the tests, whose graphs are captured and replayed through the same seam."""
    import torch
    from fasterbench import count_work, read_trace
    from fasterbench.engine.accelerator import accelerator
    gpu = device.type == "cuda"
    device, written = (device, kineto) if gpu else simulated()
    layers, width, heads, length = (12, 1024, 16, 512) if gpu else (1, 32, 2, 8)
    tokens = torch.randint(100, (1, length))
    for name, make, x in (("language model", lambda: transformer(layers, width, heads, 1000), tokens), ("small layers", small_layers, torch.randn(8, 64))):
        if record.over: return
        model, kept = make().to(device).eval(), []
        x = x.to(device)
        def call(): kept[:] = [model(x)]
        paths = {k: folder/f"graph_{name.replace(' ', '_')}_{k}.json" for k in ("capture", "replay", "eager")}
        with torch.no_grad():
            call()
            with written(paths["eager"], model, device): call(); call()
            with written(paths["capture"], model, device): replay = accelerator(device).captured(call, 1)
            replay()
            with written(paths["replay"], None, device): replay(); replay()
            bare = event_timed(replay, device, 20) if gpu else None
        known = count_work(model, x).flops
        for how, given in dict(alone={}, captures=dict(captures=[paths["capture"]]), like=dict(like=paths["eager"])).items():
            try: read = read_trace(paths["replay"], **given)
            except ValueError as error: record.put(f"{name}, {how}", dict(error=str(error))); continue
            part = lambda words: sum(a.parts.get(words, 0) for a in read.breakdowns)
            busy = sum(p.time_s for p in read.points if p.name != "(idle)")
            flops = [p.flops for p in read.ops if p.name != "(idle)"]
            record.put(f"{name}, {how}", dict(events_s=bare, kernels_s=busy / 2, exact=part("with FLOPs and bytes") / busy, least=part("with bytes, at least") / busy, recognised=part("recognised by their neighbours") / busy,
                       flops=sum(f or 0 for f in flops) / 2, counted=known, notes=read.notes[:6]))

def small_layers():
    from torch import nn
    return nn.Sequential(*(m for _ in range(20) for m in (nn.Linear(64, 64), nn.ReLU())))

@contextmanager
def kineto(path, model, device):
    "Record what runs within the context, with names of the modules of `model`."
    import torch
    from fasterbench.interop.ncu import ranges
    with torch.profiler.profile(record_shapes=True) as prof, ranges(model) if model is not None else nullcontext():
        yield
        torch.cuda.synchronize()
    prof.export_chrome_trace(str(path))

def simulated():
    "The simulated device, and what records it."
    sys.path.insert(0, str(root/"tests"))
    import simulated as sim
    @contextmanager
    def written(path, model, device):
        with sim.recorded() as events, sim.annotated(model) if model is not None else nullcontext():
            begin = sim.books.now
            yield
            sim.books.wait()
        sim.write_trace([*events, sim.Event("user_annotation", "ProfilerStep#1", begin, sim.books.now, threading.get_ident())], path)
    return sim.install(), written

def expected(record, device, folder):
    """Limit and expected time of `predict` on this device, beside kernels that were measured: of eager steps, and of replayed ones.

    On a CPU the roofs are measured ones; nothing is replayed."""
    import torch
    from fasterbench import predict
    from fasterbench.engine.accelerator import accelerator
    from fasterbench.roofline import RooflineAnalyzer, measure_peaks
    gpu = device.type == "cuda"
    on = torch.cuda.get_device_name(device) if gpu else measure_peaks(device, progress=False)
    for name, make, sample, batch, dtype, training in runs(gpu):
        if record.over: return
        if training or not gpu and dtype != torch.float32: continue
        key, x, model = f"{name}, batch {batch}, {str(dtype).removeprefix('torch.')}", sample(batch, dtype), make().to(device, dtype).eval()
        found = {captured: predict(model, x, on, captured=captured) for captured in (False, True)[:1 + gpu]}
        told = {f"{'replayed' if k else 'eager'} predicted": dict(limit_s=r.program.roof_time_s, time_s=r.program.time_s, interval_s=r.program.interval_s) for k, r in found.items()}
        ra = RooflineAnalyzer(model, x).profile(device, progress=False)
        told["eager"] = sum(r.time_s for r in ra.results if not gpu or r.name != "(idle)")
        if gpu:
            args = torch.utils._pytree.tree_map(lambda t: t.to(device), x if isinstance(x, tuple) else (x,))
            kept = []
            def call(): kept[:] = [model(*args)]
            with torch.no_grad():
                try: told["replayed"] = event_timed(accelerator(device).captured(call, 1), device, 20)
                except RuntimeError as error: told["error"] = str(error).splitlines()[0]
        record.put(key, told)

def faults(record, device, folder):
    "An error at calls all through a profile. Each time: flags, memory on the device, parameters."
    import gc, torch
    from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 4))
    model, x, roofs = net.to(device).eval(), torch.randn(2, 3, 8, 8), HardwarePeaks(1e13, 1e12, device=str(device))
    calls = [0, None]
    class Burnt(Exception): pass
    def see(frame, event, arg):
        calls[0] += event == "call"
        if calls[0] == calls[1]: sys.setprofile(None); raise Burnt
    def attempt(at):
        calls[:] = 0, at
        sys.setprofile(see)
        try: RooflineAnalyzer(model, x, roofs).profile(device, warmup=1, steps=1, backward=True)
        except Burnt: pass
        finally: sys.setprofile(None)
        gc.collect()
    def state():
        flags = (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision(), torch.is_grad_enabled(), gc.isenabled())
        held = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        return flags, held, [p.detach().sum().item() for p in model.parameters()], {m for m in model.modules() if "forward" in m.__dict__}
    attempt(None); total = calls[0]; before = state()
    wrong, tried = [], 0
    for at in range(1, total, max(total // (200 if device.type == "cuda" else 20), 1)):
        if record.over: break
        attempt(at); tried += 1
        if state() != before: wrong.append(at)
        record.put("tried", tried); record.put("calls", total); record.put("left something changed", wrong)

parts = dict(peaks=peaks, models=models, above=above, traces=traces, ncu=ncu, compiled=compiled, graphs=graphs, expected=expected, faults=faults)

# ---- the table

def limits(folder):
    "Each limit with what was found."
    load = lambda part: json.loads((folder/f"{part}.json").read_text()) if (folder/f"{part}.json").exists() else {}
    found, made = load("models"), load("above")
    ratios = [v["ratio"] for v in found.values() if isinstance(v, dict) and "ratio" in v]
    if ratios: yield "sum of rows ÷ event-timed step", "0.98 to 1.02", f"{min(ratios):.3f} to {max(ratios):.3f}, median {statistics.median(ratios):.3f}, {len(ratios)} runs"
    if "rows" in made: yield "rows above 105 % of their roof", "0", f"{sum(map(len, made['above 105 %'].values()))} of {made['rows']}"
    device, first = load("peaks").get("device_name"), load("peaks").get("torch.bfloat16 tf32=False", {})
    for mean, best in [published[device]["bfloat16"]] if device in published and "flops" in first else []:
        yield "bfloat16 peak ÷ published mean and best", "0.95 or more", f"{first['flops'] / mean:.3f}, {first['flops'] / best:.3f}"
    n = load("ncu")
    for name, row in n.get("rows", {}).items() if isinstance(n.get("rows"), dict) else ():
        ours = n["counted"].get(name)
        if ours: yield f"DRAM bytes of {name} ÷ counted", "within 15 %", f"{row['bytes'] / ours['bytes']:.3f}" + (f", FLOPs {row['flops'] / ours['flops']:.3f}" if row["flops"] and ours["flops"] else "")
    for key, v in load("traces").items():
        if isinstance(v, dict) and v.get("profile_s"): yield f"read_trace ÷ profile: {key}", "within 2 %", f"time {v['trace_s'] / v['profile_s']:.3f}, FLOPs {v['trace_flops'] / v['profile_flops'] if v['profile_flops'] else float('nan'):.3f}"
    for key, v in load("compiled").items():
        if isinstance(v, dict) and "share" in v:
            yield f"compiled, {key}: rows ÷ step", "0.98 to 1.02", f"{v['ratio']:.3f}, kernels {v['share']:.3f}, {v['fused']} fused kernels"
            yield f"compiled, {key}: products ÷ eager", "1 on a GPU", f"{v['products']:.6f}, {v['unknown']} unknown, {v['above']} above"
        elif isinstance(v, dict) and "error" in v: yield f"compiled, {key}", "runs", v["error"][:200]
    for key, v in load("graphs").items():
        if isinstance(v, dict) and "exact" in v:
            timed = f", time {v['kernels_s'] / v['events_s']:.3f} of the replay's" if v["events_s"] else ""
            yield f"graph of {key}", "known 1, FLOPs 1", f"exact {v['exact']:.3f}, at least {v['least']:.3f}, recognised {v['recognised']:.3f}, FLOPs {v['flops'] / v['counted']:.3f}{timed}"
        elif isinstance(v, dict) and "error" in v: yield f"graph of {key}", "runs", v["error"][:200]
    for key, v in load("expected").items():
        for how in ("eager", "replayed") if isinstance(v, dict) else ():
            if not v.get(how) or f"{how} predicted" not in v: continue
            p, took = v[f"{how} predicted"], v[how]
            low, high = p["interval_s"]
            yield f"expected, {key}, {how}", "limit below 1", (f"limit ÷ measured {p['limit_s'] / took:.3f}, expected ÷ measured {p['time_s'] / took:.3f}, "
                                                               f"{'inside' if low <= took <= high else 'outside'}")
    f = load("faults")
    if f: yield "faults after which something was changed", "0", f"{len(f.get('left something changed', []))} of {f.get('tried')}"

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=list(parts), choices=list(parts))
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.child:
        part, = args.parts
        record = Record(args.out, part, shares[part] * 0.85)
        device, environment = here()
        for k, v in environment.items(): record.put(k, v)
        parts[part](record, device, args.out)
        return record.put("complete", not record.over)
    for part in args.parts:
        start = time.perf_counter()
        try: done = subprocess.run([sys.executable, __file__, "--out", args.out, "--parts", part, "--child"], timeout=shares[part] + 20, capture_output=True, text=True)
        except subprocess.TimeoutExpired: print(f"{part}: stopped after {shares[part] + 20} s", flush=True); continue
        print(f"{part}: {time.perf_counter() - start:.0f} s" + (f"\n{done.stderr[-1500:]}" if done.returncode else ""), flush=True)
    for row in limits(args.out): print("{:60}  {:14}  {}".format(*row))

if __name__ == "__main__": main()
