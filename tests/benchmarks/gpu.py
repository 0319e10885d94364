"""Everything that only a GPU can show: python tests/benchmarks/gpu.py --out FOLDER [--parts PART...]

Eleven parts, the most important first. Each runs in a process of its own, and writes FOLDER/PART.json after every
finding, so that a run that is cut short still leaves what it had. An error is in the record of its part, with its
place, and the others go on.
  peaks       the roofs per dtype, TF32 both ways, levels, beside the datasheet and published maxima; L2 by
  contiguous tensors
  models      rows, idle and unlaunched kernels of models, beside steps timed by events that no instrument takes
  part in
  training    steps with AdamW under autocast: the same; counted memory beside the allocator's peak; MFU and HFU
  traces      the profiler's records of the same runs as traces, and read_trace of them beside profile
  ncu         Nsight Compute over five kernels: counted bytes and FLOPs beside the counted work
  attention   attention in float32 beside its limit, which is a third of the TF32 peak
  kernelbench programs of single operators beside limit, expected time, and the times that others published for an H100
  compiled    kernels of compiled models beside event-timed steps: default, CUDA graphs, training; a trace of the same
  graphs      models in CUDA graphs of their own: a trace of the capture beside one of the replays, which are timed
  by events
  expected    limit and expected time of predict beside the measured kernels, eager and replayed
  faults      an error at calls all through a profile: flags, memory and model afterwards
The first five take at most nine minutes, and so do the others: `--parts first`, `--parts rest`. The last lines are
the table of limits, from the records in FOLDER, also in FOLDER/table.json; `--parts none` prints it alone.
`--parts none --page` makes the page of the site from the records of a GPU: nbs/docs/measured_on_gpu.md, and all
figures of it in tests/data/measured_on_gpu.json. Both are committed, and the site has the page from then on.
Without a GPU the same parts run on the CPU, small: a rehearsal; on a slow machine with `--patience 4`, four times
the seconds. `--simulated` takes the simulated device of the tests instead, for the parts that it can run: what is
done on a GPU alone is done there, and the right answers are known.
It needs torch 2.11, torchvision, and what the library imports to measure: fastcore, platformdirs, msgspec. Where no
package index is to be reached, three wheels that were brought along do: `pip install --no-index --no-deps --target
DIR *.whl`, PYTHONPATH=DIR. KernelBench's programs and times are read in ../shared/data/kernelbench (40 kB), or
where FASTERBENCH_SHARED says; roofs are kept in FOLDER/roofs, or where FASTERBENCH_CACHE says.
"""
import argparse, json, math, os, statistics, subprocess, sys, threading, time, traceback
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

root = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root))
# seconds per part
shares = dict(peaks=115, models=150, training=100, traces=85, ncu=85,
              attention=60, kernelbench=100, compiled=145, graphs=50, expected=100, faults=50)
simulate = False     # whether the parts run on the simulated device

class Record:
    "The findings of one part, written anew after each of them."
    def __init__(self, folder, part, seconds=math.inf):
        self.path, self.end, self.data = ((folder/f"{part}.json", time.perf_counter() + seconds,
                                           dict(part=part, complete=False)))
    def put(self, key, value):
        self.data[key] = value
        self.path.write_text(json.dumps(self.data, indent=1, default=str))
    def attempt(self, key, find, *args):
        "Put what `find` returns, or the error that it raises; nothing once the time is over."
        if self.over: return self.put("left out", [*self.data.get("left out", []), key])
        try: found = find(*args)
        except Exception as error: found = told(error)
        self.put(key, found)
        if "torch" in sys.modules: emptied()
    @property
    def over(self): return time.perf_counter() > self.end

def told(error):
    "What an error says, and the last places that it went through."
    places = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_tb(error.__traceback__)[-4:]]
    return dict(error=f"{type(error).__name__}: {error}"[:1000], where=places)

def emptied():
    "Free what the last case held."
    import gc, torch
    gc.collect()
    if torch.cuda.is_initialized():
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

def here():
    "The device, and what it is."
    import torch
    from fasterbench.engine.accelerator import accelerator
    from fasterbench.probes.machine import environment
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if simulate:
        device = simulated().install()
        simulated().books.reset(simulated_rates())
    return device, environment(accelerator(device))

def on_device(device):
    "What the library knows of a device."
    from fasterbench.engine.accelerator import accelerator
    return accelerator(device)

@cache
def simulated():
    "The module of the simulated device."
    sys.path.insert(0, str(root/"tests"))
    import simulated
    return simulated

def simulated_rates():
    "What operators take on the simulated device: products 10 or 20 TFLOP/s, bytes 200 GB/s."
    import torch
    cost = simulated().rates({torch.float32: 1e13, torch.bfloat16: 2e13}, [(None, 2e11)])
    return simulated().Table(cost=cost, capacity=1 << 36)

# ---- models

def transformer(layers, width, heads, vocabulary=32000, every=False):
    """A language model of today's form: takes tokens and, for decoding, a filled cache; returns logits of the last
    token, or of every one."""
    from torch import nn
    from torch.nn import functional as F
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.qkv, self.out = ((nn.RMSNorm(width), nn.Linear(width, 3 * width, bias=False),
                                              nn.Linear(width, width, bias=False)))
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
            return self.head(self.norm(x if every else x[:, -1:]))
    return Model()

def small_layers(n):
    from torch import nn
    return nn.Sequential(*(m for _ in range(n) for m in (nn.Linear(64, 64), nn.ReLU())))

def inputs(gpu):
    "(name, make model, make sample(batch, dtype), can be trained), the quick ones first."
    import torch, torchvision
    def image(size): return lambda batch, dtype: torch.randn(batch, 3, size, size, dtype=dtype)
    layers, width, heads, length = (12, 1024, 16, 512) if gpu else (2, 64, 4, 32)
    def tokens(batch, dtype): return torch.randint(32000 if gpu else 100, (batch, length))
    def decode(batch, dtype):
        caches = [[torch.randn(batch, heads, length, width // heads, dtype=dtype) for _ in "kv"]
                  for _ in range(layers)]
        return tokens(batch, dtype)[:, :1], caches
    def language(): return transformer(layers, width, heads, 32000 if gpu else 100)
    yield "200 small layers", lambda: small_layers(100), lambda b, d: torch.randn(b, 64, dtype=d), True
    vision = torchvision.models.resnet50 if gpu else torchvision.models.resnet18
    yield vision.__name__, vision, image(224 if gpu else 64), True
    if gpu: yield "vit_b_16", torchvision.models.vit_b_16, image(224), True
    yield "language model, prefill", language, tokens, True
    yield "language model, decode", language, decode, False

def runs(gpu):
    "Every case with its batch, dtype and whether it is a training step."
    import torch
    bfloat16, float32 = torch.bfloat16, torch.float32
    settings = [(1, bfloat16), (32, bfloat16), (32, float32)] if gpu else [(1, float32), (2, bfloat16)]
    for batch, dtype in settings:
        for name, make, sample, trains in inputs(gpu):
            for training in (False, True)[:1 + trains]: yield name, make, sample, batch, dtype, training

class Step:
    "A forward or a training step, as one writes it by hand."
    def __init__(self, model, args, training=False, loss=None, optimizer=None, autocast=None):
        self.model, self.args, self.training, self.loss, self.optimizer = (
            (model, args, training, loss or (lambda out: out.sum()), optimizer))
        self.autocast = autocast or nullcontext
    def reset(self): self.model.zero_grad(set_to_none=True)
    def __call__(self):
        import torch
        with torch.set_grad_enabled(self.training):
            with self.autocast():
                out = self.model(*self.args)
                value = self.loss(out) if self.training else None
            if self.training: value.backward()
            if self.optimizer: self.optimizer.step()
        return out

def event(device):
    "An event in the queue of a device."
    import torch
    if device.type != "cuda": return on_device(device).event()
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made

def between(start, end, device):
    "Seconds between two events that have passed."
    return start.elapsed_time(end) * 1e-3 if device.type == "cuda" else on_device(device).seconds([start, end])[1]

def event_timed(call, device, n, reset=lambda: None, seconds=1.0):
    """Median seconds of a call: between two events on a GPU, by the clock on a CPU. Of `n` calls, fewer where they
    take longer than `seconds`."""
    times, here, begin = [], on_device(device), time.perf_counter()
    while len(times) < n and (len(times) < 5 or time.perf_counter() - begin < seconds):
        reset()
        if here.has_queue:
            here.synchronize()
            start = event(device); call(); end = event(device)
            here.synchronize()
            times.append(between(start, end, device))
        else:
            start = time.perf_counter(); call(); times.append(time.perf_counter() - start)
    return statistics.median(times)

def clock_timed(call, device, n, reset=lambda: None):
    "Median seconds of a call by the clock of the CPU, from an idle device to an idle device."
    def once(): reset(); return on_device(device).timed(call)
    return statistics.median(once() for _ in range(n))

def profiled(step, sample, device, path):
    "A profile of a step, and what it says beside bare steps that are timed before and after it."
    from fasterbench.roofline import RooflineAnalyzer
    for _ in range(3): step.reset(); step()
    before = event_timed(step, device, 20, step.reset)
    loss = step.loss if step.training else None
    with step.autocast():
        ra = RooflineAnalyzer(step.model, sample).profile(
            device, backward=step.training, loss=loss, optimizer=step.optimizer, progress=False)
    after, by_clock = event_timed(step, device, 20, step.reset), clock_timed(step, device, 5, step.reset)
    step.reset()
    ra.to_json(path)
    rows, used = sum(r.time_s for r in ra.results), [(r.bound, r.name, r.utilization_pct or 0) for r in ra.results]
    return ra, dict(events_s=(before, after), clock_s=by_clock, rows_s=rows, end_to_end_s=ra.timing.end_to_end_s,
                    ratio=rows / statistics.mean((before, after)),
                    clock=ra.timing.clock, n_rows=len(ra.results), notes=ra.result.notes,
                    special_rows={r.name: r.time_s for r in ra.results if r.name.startswith("(")},
                    above=[(name, u) for _, name, u in used if u > 105],
                    best={b: max((u for bound, _, u in used if bound == b), default=None)
                          for b in ("compute", "memory")})

def made_on(device, *makers):
    "What `makers` make, on the device: weights and samples of a GPU are drawn there."
    with device if device.type == "cuda" else nullcontext(): made = [make() for make in makers]
    return [m.to(device) if hasattr(m, "to") else m for m in made]

def placed(sample, device):
    "The arguments of a call, on the device."
    import torch
    return torch.utils._pytree.tree_map(lambda t: t.to(device), sample if isinstance(sample, tuple) else (sample,))

def file_of(key): return key.replace(" ", "_").replace(",", "")
def named(name, batch, dtype, training=None):
    phase = "" if training is None else ", training" if training else ", forward"
    return f"{name}, batch {batch}, {str(dtype).removeprefix('torch.')}{phase}"

# ---- parts

published = {"NVIDIA H100 80GB HBM3": dict(bfloat16=(795e12, 956e12)),              # mean of long runs, best of sweeps
             "NVIDIA H200": dict(bfloat16=(821e12, 968e12))}

def peaks(record, device, folder):
    import torch
    from fasterbench.probes.peaks import measure_peaks
    gpu = device.type == "cuda"
    dtypes = ([torch.bfloat16, torch.float32, torch.float16, torch.float64, torch.float8_e4m3fn] if gpu
              else [torch.float32, torch.bfloat16])
    def measured(dtype, tf32):
        start, found = (time.perf_counter(),
                        measure_peaks(device, dtype=dtype, allow_tf32=tf32, cache=False, progress=False))
        found.to_json(folder/f"peaks-{str(dtype).removeprefix('torch.')}{'-tf32' * tf32}.json")
        return dict(seconds=time.perf_counter() - start, flops=found.peak_flops, skipped=found.skipped,
                    levels={l.name: (l.capacity, l.bandwidth, l.spread) for l in found.memory},
                    ceilings={f"{c.dtype} {c.unit}".strip(): (c.flops, c.spread, c.probe) for c in found.ceilings})
    for dtype, tf32 in [(d, False) for d in dtypes] + [(torch.float32, True)] * gpu:
        record.attempt(f"{dtype} tf32={tf32}", measured, dtype, tf32)
    record.attempt("l2", l2_sweep, device)

def l2_sweep(device):
    "B/s of `add_` over contiguous tensors that together fill so many MB, eager and, on a GPU, in a captured graph."
    import torch
    here, out = on_device(device), {}
    for megabytes in (4, 8, 16, 24, 32, 40, 48, 64, 96, 256) if device.type == "cuda" else (1, 8):
        xs = [torch.ones(2**18, device=device) for _ in range(megabytes)]          # 1 MB each
        def walk():
            for x in xs: x.add_(1.0)
        walk()
        for how, call in dict(eager=walk, graph=here.captured(walk, 1)).items() if here.graphs else [("eager", walk)]:
            call()
            out[f"{megabytes} MB {how}"] = 2 * megabytes * 2**20 / event_timed(call, device, 20)
    return out

def models(record, device, folder):
    for name, make, sample, batch, dtype, training in runs(device.type == "cuda"):
        key = named(name, batch, dtype, training)
        record.attempt(key, one_model, make, sample, batch, dtype, training, device,
                       folder/f"{file_of(key)}.result.json")

def one_model(make, sample, batch, dtype, training, device, path):
    import torch
    torch.manual_seed(0)
    model, x = made_on(device, lambda: make().to(dtype).train(training), lambda: sample(batch, dtype))
    return profiled(Step(model, placed(x, device), training), x, device, path)[1]

def steps(gpu):
    """Training steps: (name, make model, sample, optimizer, model FLOPs per token by PaLM's formula where it holds).

    PaLM: six FLOPs per token and weight of a product, and twelve per token, layer and pair of positions of an
    attention as wide as the model."""
    import torch, torchvision
    from torch.optim import AdamW
    layers, width, heads, words, length, batch = (12, 1024, 16, 32000, 1024, 8) if gpu else (2, 64, 4, 100, 32, 2)
    palm = 6 * (13 * layers * width**2 + width * words) + 12 * layers * width * length
    tokens = torch.randint(words, (batch, length))
    def language(): return transformer(layers, width, heads, words, every=True)
    def fused(p): return AdamW(p, fused=True)
    yield "language model, AdamW", language, tokens, AdamW, palm
    yield "language model, fused AdamW", language, tokens, fused, palm
    vision, size, batch = (torchvision.models.resnet50, 224, 64) if gpu else (torchvision.models.resnet18, 64, 2)
    yield f"{vision.__name__}, AdamW", vision, torch.randn(batch, 3, size, size), AdamW, None

def training(record, device, folder):
    "Steps with AdamW under autocast to bfloat16: rows, memory, MFU and HFU."
    for name, make, sample, optimizer, palm in steps(device.type == "cuda"):
        record.attempt(name, one_training, make, sample, optimizer, palm, device,
                       folder/f"{file_of(name)}.result.json")

def first_class(out):
    "Cross entropy against the first class."
    import torch
    out = out.flatten(0, -2)
    return torch.nn.functional.cross_entropy(out, torch.zeros(len(out), dtype=torch.long, device=out.device))

def one_training(make, sample, optimizer, palm, device, path):
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from fasterbench import model_flops
    from fasterbench.roofs.datasheet import datasheet_peaks
    from fasterbench.training.model_flops import utilizations
    torch.manual_seed(0)
    held = taken(device)
    model = make().to(device).train()
    step = Step(model, placed(sample, device), True, first_class, optimizer(model.parameters()),
                lambda: torch.autocast(device.type, torch.bfloat16))
    ra, found = profiled(step, sample, device, path)
    memory = ra.result.memory
    found["memory"] = dict(counted=memory.peak_bytes, parts=memory.parts, place=memory.place,
                           **peak_of(step, device, held))
    flops, rate = (model_flops(make().to("meta"), sample.to("meta"), loss=first_class),
                   1 / statistics.mean(found["events_s"]))
    step.reset()
    with FlopCounterMode(display=False) as counter: step()
    roofs = datasheet_peaks(torch.cuda.get_device_name(device), "bfloat16") if device.type == "cuda" else ra.peaks
    found["flops"] = dict(model=flops.model, needed=flops.model_needed, hardware=flops.hardware, tokens=flops.tokens,
                          counter=counter.get_total_flops(), palm=palm and palm * flops.tokens)
    found["utilizations"] = [vars(u) for u in utilizations(flops, rate * flops.tokens, roofs, "bfloat16")]
    return found

def taken(device):
    "Bytes that are asked of the allocator now."
    return memory_of(device).get("requested_bytes.all.current", 0)

def memory_of(device):
    "What the allocator of a GPU says; {} of a CPU."
    import torch
    return {} if device.type == "cpu" else torch.get_device_module(device).memory_stats(device)

def peak_of(step, device, held):
    """The peak of a step: of the tensors, by weak references to their storages, and what the allocator of a GPU
    says, with `held` before.

    The libraries' part of the latter: the workspaces of cuBLAS, which stay; rounding is told by the allocator
    itself. What other libraries take while a kernel runs has no name in any record: it is what is left."""
    import torch
    sys.path.insert(0, str(root/"tests"))
    from memory_cases import Live, given_to
    told = {}
    if device.type != "cpu":
        here = on_device(device)
        step.reset(); here.synchronize(); here.module.reset_peak_memory_stats(device)
        out = step(); here.synchronize()
        found = memory_of(device)
        if device.type == "cuda": torch._C._cuda_clearCublasWorkspaces()
        told = dict(allocated=here.module.max_memory_allocated(device), requested=found["requested_bytes.all.peak"],
                    held=held,
                    cublas=found["requested_bytes.all.current"] - taken(device))
        del out
    step.reset()
    live = Live()
    live.add(given_to(step.model, step.args, step.optimizer))
    with live: step()
    return dict(live=live.peak, **told)

def traces(record, device, folder):
    "The profiler's own record of a run as a trace; what read_trace makes of it beside what profile says."
    for name, make, sample, batch, dtype, training in runs(device.type == "cuda"):
        key = named(name, batch, dtype)
        if not training:
            record.attempt(key, one_trace, make, sample, batch, dtype, device,
                           folder/f"{file_of(key)}.trace.json{'.gz' * (not simulate)}")

def one_trace(make, sample, batch, dtype, device, path, n=5):
    from fasterbench.roofline import RooflineAnalyzer
    model, x = made_on(device, lambda: make().to(dtype).eval(), lambda: sample(batch, dtype))
    step = Step(model, placed(x, device))
    for _ in range(3): step()
    read = traced(step, device, path, n)
    ra = RooflineAnalyzer(model, x).profile(device, progress=False)
    return dict(trace_s=busy_s(read.points) / n, profile_s=busy_s(ra.results),
                trace_flops=sum(r.flops or 0 for r in read.ops) / n,
                profile_flops=sum(r.flops or 0 for r in ra.results))

def busy_s(rows): return sum(r.time_s for r in rows if not r.name.startswith("(idle"))

def traced(step, device, path, n=5):
    "The profiler's own record of steps, as `read_trace` sees it."
    import torch
    from fasterbench import read_trace
    if simulate:
        with written(path, step.model, device):
            for _ in range(n): step()
        return read_trace(path)
    with torch.profiler.profile(record_shapes=True, with_stack=True) as prof:
        for _ in range(n): step(); prof.step()
        if device.type == "cuda": torch.cuda.synchronize()
    prof.export_chrome_trace(str(path))
    return read_trace(path)

def five_kernels(device):
    """Name, module and arguments of five kernels. Each moves far more than the 50 MB of an L2 that a GPU may keep
    at a kernel's end, and its weights fit there: the bytes at DRAM are those that a count of each tensor once has."""
    import torch
    class Two(torch.nn.Module):
        def __init__(self, f): super().__init__(); self.f = f
        def forward(self, x, w): return self.f(x, w)
    bfloat16, last = torch.bfloat16, torch.channels_last
    with torch.device(device):
        yield "matmul_float32", Two(torch.matmul), (torch.randn(2**16, 4096), torch.randn(4096, 512))
        yield "matmul_bfloat16", Two(torch.matmul), (
            torch.randn(2**17, 4096).to(bfloat16), torch.randn(4096, 512).to(bfloat16))
        conv = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).to(bfloat16, memory_format=last)
        yield "convolution", conv, (torch.randn(1024, 64, 56, 56).to(bfloat16, memory_format=last),)
        yield "add", Two(torch.add), (torch.randn(2**14, 2**13), torch.randn(2**14, 2**13))
        yield "layer_norm", torch.nn.LayerNorm(4096), (torch.randn(2**16, 4096),)

def run_kernels():
    "Run the five kernels on a GPU, the second time for Nsight Compute."
    import torch
    torch.backends.cuda.matmul.allow_tf32 = False
    with torch.no_grad():
        for name, module, args in five_kernels("cuda"):
            module(*args); torch.cuda.synchronize(); torch.cuda.profiler.start()
            torch.cuda.nvtx.range_push(name); module(*args); torch.cuda.synchronize(); torch.cuda.nvtx.range_pop()
            torch.cuda.profiler.stop()

def counted_work():
    "FLOPs and compulsory bytes of the five kernels, by count_work on meta tensors."
    from fasterbench import count_work
    counts = {name: count_work(module, args) for name, module, args in five_kernels("meta")}
    return {name: dict(flops=c.flops, bytes=c.bytes) for name, c in counts.items()}

def ncu(record, device, folder):
    record.put("counted", counted_work())
    if device.type == "cuda": record.attempt("rows", counters, record, folder)
    else: record.put("rows", dict(error="Nsight Compute is not there"))

def counters(record, folder):
    "What the counters of a GPU say of the five kernels."
    from fasterbench import read_ncu
    script, report = folder/"kernels.py", folder/"kernels.csv"
    script.write_text(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport gpu; gpu.run_kernels()")
    count = ["ncu", "--set", "roofline", "--nvtx", "--profile-from-start", "off", "--clock-control", "none",
             "--target-processes", "all",
             "-f", "-o", folder/"kernels"]
    found = subprocess.run([*count, sys.executable, script], capture_output=True, text=True,
                           timeout=shares["ncu"] * 0.7)
    record.put("ncu", (found.stdout + found.stderr)[-2000:])
    write = ["ncu", "--import", folder/"kernels.ncu-rep", "--csv", "--page", "raw", "--print-units", "base"]
    with open(report, "w") as out:
        subprocess.run(write, stdout=out, timeout=60, check=True, env=os.environ | dict(LC_ALL="C"))
    return {p.name: dict(flops=p.flops, bytes=p.bytes_moved, levels=p.bytes_by_level, time_s=p.time_s)
            for p in read_ncu(report, by="nvtx")}

def shared(): return Path(os.environ.get("FASTERBENCH_SHARED", root.parent/"shared"))

def attention(record, device, folder):
    """Attention in float32: its time beside the limit, which is a third of the TF32 peak, since three products in
    TF32 make one in float32.

    Beside it the rate over the measured roofs, with and without TF32, and the names of the kernels that ran."""
    import torch
    from fasterbench.roofline import measure_peaks
    gpu = device.type == "cuda"
    roofs = measure_peaks(device, dtype=torch.float32, allow_tf32=True, progress=False)
    record.put("roofs", {f"{c.dtype} {c.unit}".strip(): c.flops for c in roofs.ceilings})
    for size in (64, 128) if gpu else (16,):
        for causal in (False, True):
            for training in (False, True):
                key = f"head size {size}{', causal' * causal}, {'training' if training else 'forward'}"
                record.attempt(key, one_attention, size, causal, training, device, roofs,
                               folder/f"attention_{file_of(key)}.result.json")

def one_attention(size, causal, training, device, roofs, path):
    import torch
    from torch.nn.functional import scaled_dot_product_attention
    from fasterbench import predict
    class Attention(torch.nn.Module):
        def __init__(self): super().__init__(); self.k, self.v = (torch.nn.Parameter(torch.randn(shape)) for _ in "kv")
        def forward(self, q): return scaled_dot_product_attention(q, self.k, self.v, is_causal=causal)
    gpu = device.type == "cuda"
    shape = (4, 16, 4096, size) if gpu else (1, 2, 128, size)
    model, q = made_on(device, Attention, lambda: torch.randn(shape))
    ra, found = profiled(Step(model, placed(q, device), training), q, device, path)
    limit = predict(model, q, torch.cuda.get_device_name(device) if gpu else roofs, backward=training).program
    took, products = statistics.mean(found["events_s"]), sum(r.contraction_flops or 0 for r in ra.results)
    rates = {c.unit: products / took / c.flops for c in roofs.ceilings if c.dtype == "float32"
             and c.unit != "pointwise"}
    names = kernels_of(Step(model, placed(q, device), training))
    return (found | told_by(limit, took) | dict(of_roofs=rates,
                                                third_of_tf32=3 * rates["TF32"] if "TF32" in rates else None,
                                                kernels=names))

def told_by(p, took):
    "A prediction beside a time."
    return dict(measured_s=took, limit_s=p.roof_time_s, expected_s=p.time_s, interval_s=p.interval_s)

def kernels_of(step):
    "Names of the kernels of a step on a GPU."
    import torch
    with torch.profiler.profile() as prof: step()
    return [e.key for e in prof.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA
            and not e.is_user_annotation]

def kernelbench(record, device, folder):
    """Programs of single operators beside their limits, their expected times and the times that others published
    for an H100; on a CPU the small ones."""
    import torch
    from fasterbench.roofline import measure_peaks
    sys.path.insert(0, str(Path(__file__).parent))
    from predict import kernelbench_programs
    gpu = device.type == "cuda"
    place = shared()/"data/kernelbench"
    if not place.is_dir():
        raise FileNotFoundError(
            f"{place} is not there; FASTERBENCH_SHARED names the folder that holds data/kernelbench")
    on = torch.cuda.get_device_name(device) if gpu else measure_peaks(device, progress=False)
    for program, sample, row in kernelbench_programs():
        if gpu or small(program, sample): record.attempt(row["problem"], one_program, program, sample, row, on, device)

def small(program, sample):
    from fasterbench import count_work
    if sum(t.nbytes for t in sample) > 6e8: return False
    work = count_work(program, sample)
    return not work.contraction_flops and work.bytes < 2e9

def one_program(program, sample, row, on, device):
    import torch
    from fasterbench import predict
    def filled(t):
        made = torch.empty(t.shape, dtype=t.dtype, device=device)
        return made.normal_() if made.is_floating_point() else made.zero_()
    step = Step(program, [filled(t) for t in sample])
    for _ in range(3): step()
    took = event_timed(step, device, 10 if device.type == "cuda" else 3)
    theirs = {k: float(row[f"h100_{k}_ms_mean"]) * 1e-3 for k in ("sxm", "pcie")}
    return told_by(predict(program, sample, on).program, took) | dict(published_s=theirs)

def compiled(record, device, folder):
    """Compiled models: rows of kernels beside the bare step, products beside the eager count, and their trace.

    The eager count is of PyTorch's own counter, which leaves out attention on a CPU: it is not compared there."""
    gpu = device.type == "cuda"
    for mode, training in (("default", False), ("default", True), ("reduce-overhead", False)):
        key = f"{mode}, {'training' if training else 'forward'}"
        record.attempt(key, one_compiled, mode, training, device, folder/f"compiled_{file_of(key)}.result.json")
        if gpu and not training:
            record.attempt(f"{key}, trace", compiled_trace, mode, device, folder/f"compiled_{mode}.trace.json.gz")

def compiled_model(mode, training, device):
    import torch
    gpu = device.type == "cuda"
    layers, width, heads = (4, 1024, 16) if gpu else (1, 64, 4)
    model = transformer(layers, width, heads, 1000).to(device).train(training)
    tokens = torch.randint(100, (8, 256) if gpu else (2, 16), device=device)
    torch._dynamo.reset()
    return model, tokens, torch.compile(model, mode=mode)

def one_compiled(mode, training, device, path):
    from torch.utils.flop_counter import FlopCounterMode
    model, tokens, made = compiled_model(mode, training, device)
    with FlopCounterMode(display=False) as counter: Step(model, (tokens,), training)()
    ra, found = profiled(Step(made, (tokens,), training), tokens, device, path)
    kernels, products = ([r for r in ra.results if r.layers],
                         sum(r.dense_flops or 0 for r in ra.results if r.contraction_flops))
    return found | dict(kernels=len(kernels), fused=sum(r.type.startswith("fused ") for r in kernels),
                        unknown=sum(r.flops is None for r in kernels),
                        share=sum(r.time_s for r in kernels) / found["rows_s"],
                        products=products / counter.get_total_flops(),
                        limits=ra.result.limits)

def compiled_trace(mode, device, path, n=5):
    "The profiler's own record of compiled steps, as `read_trace` sees it."
    _, tokens, made = compiled_model(mode, False, device)
    step = Step(made, (tokens,))
    for _ in range(5): step()
    read = traced(step, device, path, n)
    return dict(time_s=busy_s(read.points) / n, rows=[(r.name, r.type, r.calls, r.flops) for r in read.points[:40]],
                notes=read.notes)

def graphs(record, device, folder):
    """Models captured as graphs: what the trace of the replays says alone, with the trace of the capture, and
    beside an eager trace.

    Without a GPU this runs on the simulated device of the tests, whose graphs are captured and replayed through the
    same seam."""
    import torch
    gpu = device.type == "cuda"
    if device.type == "cpu": device = simulated().install()
    layers, width, heads, batch, length, rows = (12, 1024, 16, 8, 512, 2**20) if gpu else (1, 32, 2, 1, 8, 8)
    tokens = torch.randint(100, (batch, length))
    def language(): return transformer(layers, width, heads, 1000)
    for name, make, x in ((("language model", language, tokens),
                           ("small layers", lambda: small_layers(20), torch.randn(rows, 64)))):
        record.attempt(name, one_graph, make, x, device, kineto if gpu else written, folder, f"graph_{file_of(name)}")

def one_graph(make, x, device, recorded, folder, name):
    import torch
    from fasterbench import count_work, read_trace
    model, kept = make().to(device).eval(), []
    x = x.to(device)
    def call(): kept[:] = [model(x)]
    paths = {k: folder/f"{name}_{k}.json" for k in ("capture", "replay", "eager")}
    with torch.no_grad():
        call()
        with recorded(paths["eager"], model, device): call(); call()
        with recorded(paths["capture"], model, device): replay = on_device(device).captured(call, 1)
        replay()
        with recorded(paths["replay"], None, device): replay(); replay()
        bare = event_timed(replay, device, 20)
    known, told = count_work(model, x).flops, {}
    for how, given in dict(alone={}, captures=dict(captures=[paths["capture"]]),
                           like=dict(like=paths["eager"])).items():
        read = read_trace(paths["replay"], **given)
        def part(words): return sum(a.parts.get(words, 0) for a in read.breakdowns)
        busy = sum(p.time_s for p in read.points if p.name != "(idle)")
        flops = [p.flops for p in read.ops if p.name != "(idle)"]
        words = dict(exact="with FLOPs and bytes", least="with bytes, at least",
                     recognised="matched by position in the step")
        told[how] = dict(events_s=bare, kernels_s=busy / 2, flops=sum(f or 0 for f in flops) / 2, counted=known,
                         notes=read.notes[:6],
                         **{k: part(text) / busy for k, text in words.items()})
    return told

@contextmanager
def kineto(path, model, device):
    "Record what runs within the context, with names of the modules of `model`."
    import torch
    from fasterbench.ncu.ncu import ranges
    with torch.profiler.profile(record_shapes=True) as prof, ranges(model) if model is not None else nullcontext():
        yield
        torch.cuda.synchronize()
    prof.export_chrome_trace(str(path))

@contextmanager
def written(path, model, device):
    "The same on the simulated device."
    sim = simulated()
    with sim.recorded() as events, sim.annotated(model) if model is not None else nullcontext():
        begin = sim.books.now
        yield
        sim.books.wait()
    sim.write_trace([*events, sim.Event("user_annotation", "ProfilerStep#1", begin, sim.books.now,
                                        threading.get_ident())], path)

def expected(record, device, folder):
    """Limit and expected time of `predict` on this device, beside kernels that were measured: of eager steps, and
    of replayed ones.

    On a CPU the roofs are measured ones; nothing is replayed."""
    import torch
    from fasterbench.roofline import measure_peaks
    gpu = device.type == "cuda"
    on = torch.cuda.get_device_name(device) if gpu else measure_peaks(device, progress=False)
    for name, make, sample, batch, dtype, training in runs(gpu):
        if training or not gpu and dtype != torch.float32: continue
        for how, find in (dict(eager=eager_kernels, replayed=replayed).items() if on_device(device).graphs
                          else [("eager", eager_kernels)]):
            record.attempt(f"{named(name, batch, dtype)}, {how}", one_expected, make, sample, batch, dtype, on,
                           device, find)

def one_expected(make, sample, batch, dtype, on, device, find):
    from fasterbench import predict
    model, x = made_on(device, lambda: make().to(dtype).eval(), lambda: sample(batch, dtype))
    return told_by(predict(model, x, on, cuda_graph=find is replayed).program, find(model, x, device))

def eager_kernels(model, x, device):
    from fasterbench.roofline import RooflineAnalyzer
    return sum(r.time_s for r in RooflineAnalyzer(model, x).profile(device, progress=False).results
               if device.type == "cpu" or r.name != "(idle)")

def replayed(model, x, device):
    import torch
    args, kept = placed(x, device), []
    def call(): kept[:] = [model(*args)]
    with torch.no_grad(): return event_timed(on_device(device).captured(call, 1), device, 20)

def faults(record, device, folder):
    "An error at calls all through a profile. Each time: flags, memory on the device, parameters."
    import gc, torch
    from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(),
                              torch.nn.Linear(8 * 36, 4))
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
        flags = (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision(),
                 torch.is_grad_enabled(), gc.isenabled())
        held = torch.get_device_module(device).memory_allocated() if device.type != "cpu" else 0
        sums = [p.detach().cpu().sum().item() for p in model.parameters()]
        return flags, held, sums, {m for m in model.modules() if "forward" in m.__dict__}
    attempt(None); total = calls[0]; before = state()
    wrong, tried = [], 0
    for at in range(1, total, max(total // (200 if device.type == "cuda" else 20), 1)):
        if record.over: break
        attempt(at); tried += 1
        if state() != before: wrong.append(at)
        record.put("tried", tried); record.put("calls", total); record.put("left something changed", wrong)

parts = dict(peaks=peaks, models=models, training=training, traces=traces, ncu=ncu,
             attention=attention, kernelbench=kernelbench, compiled=compiled, graphs=graphs, expected=expected,
             faults=faults)
# they ask for more than the simulated device has
unsimulated = "ncu", "attention", "kernelbench", "compiled", "expected"
groups = dict(first=list(parts)[:5], rest=list(parts)[5:], none=[])

# ---- the table

class Limit:
    "A figure of many runs, by name, and the range in which it has to lie; without a range it is told alone."
    def __init__(self, what, values, low=-math.inf, high=math.inf):
        self.what, self.low, self.high, self.values = what, low, high, values
        self.outside = {k: v for k, v in values.items() if not low <= v <= high}
    @property
    def range(self):
        if math.isinf(self.low): return "" if math.isinf(self.high) else f"at most {self.high:g}"
        if math.isinf(self.high): return f"at least {self.low:g}"
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
    @property
    def verdict(self):
        if not self.values: return "not measured"
        if not self.range: return ""
        return f"does not hold: {len(self.outside)} outside" if self.outside else "holds"
    @property
    def found(self):
        v = list(self.values.values())
        return f"{min(v):.3f} to {max(v):.3f}, median {statistics.median(v):.3f} of {len(v)}" if v else ""
    def lines(self):
        "The limit in a line, and in another one the values that are farthest outside."
        yield f"{self.what:60} {self.range:14} {self.found:44} {self.verdict}".rstrip()
        far = sorted(self.outside.items(), key=lambda kv: -abs(math.log(max(kv[1], 1e-9))))
        if far: yield "      " + "; ".join(f"{k} {v:.3f}" for k, v in far[:3])

def findings(folder, part):
    "What the record of a part holds; nothing where there is none."
    path = folder/f"{part}.json"
    return json.loads(path.read_text()) if path.exists() else {}

def cases(folder, *names):
    "The cases of parts that did not fail, as `part: case`."
    found = {f"{part}: {k}": v for part in names for k, v in findings(folder, part).items()}
    return {k: v for k, v in found.items() if isinstance(v, dict) and "error" not in v}

def figures(found, name, under=None):
    "One figure of each case that has it, or its quotient with another one."
    return {k: v[name] / (v[under] if under else 1) for k, v in found.items() if v.get(name) is not None
            and (not under or v.get(under))}

def limits(folder):
    "Each limit with what the records say."
    profiles, compiled, made = ((cases(folder, "models", "training", "attention"), cases(folder, "compiled"),
                                 cases(folder, "traces")))
    yield Limit("sum of rows ÷ event-timed step", figures(profiles, "ratio"), 0.98, 1.02)
    yield Limit("the same, compiled", figures(compiled, "ratio"), 0.98, 1.02)
    yield Limit("rows above 105 % of their roof",
                {k: len(v["above"]) for k, v in (profiles | compiled).items() if "above" in v}, 0, 0)
    yield from peak_limits(findings(folder, "peaks"))
    yield from counter_limits(findings(folder, "ncu"))
    yield Limit("read_trace ÷ profile, time", figures(made, "trace_s", "profile_s"), 0.98, 1.02)
    yield Limit("read_trace ÷ profile, FLOPs", figures(made, "trace_flops", "profile_flops"), 0.98, 1.02)
    yield from graph_limits(cases(folder, "graphs"))
    yield from training_limits(cases(folder, "training"))
    on_gpu = findings(folder, "compiled").get("device") == "cuda"
    yield Limit("products of compiled kernels ÷ eager, on a GPU", figures(compiled, "products") if on_gpu else {},
                0.999, 1.001)
    yield from predicted_limits(cases(folder, "attention", "kernelbench", "expected"),
                                findings(folder, "kernelbench").get("device_name"))
    changed = findings(folder, "faults").get("left something changed")
    yield Limit("faults after which something was changed", {} if changed is None else dict(faults=len(changed)), 0, 0)

def graph_limits(found):
    "Replayed graphs beside the replay, and beside the counted model where the capture or an eager trace is known."
    graphs = {f"{k}, {how}": v for k, each in found.items() for how, v in each.items()}
    yield Limit("kernels of a replayed graph ÷ event-timed replay", figures(graphs, "kernels_s", "events_s"), 0.98,
                1.02)
    helped = {k: v for k, v in graphs.items() if not k.endswith("alone")}
    yield Limit("FLOPs of a replayed graph ÷ counted", figures(helped, "flops", "counted"), 0.98, 1.02)

def training_limits(found):
    """Counted peaks beside the allocator's, without the libraries' part, and beside storages that are alive; FLOPs
    and what follows from them."""
    memory, flops = ({k: v[name] for k, v in found.items() if name in v} for name in ("memory", "flops"))
    taken = {k: v | dict(tensors=v["requested"] - v["held"] - v["cublas"]) for k, v in memory.items()
             if "requested" in v}
    yield Limit("counted memory ÷ allocator's, without cuBLAS and rounding", figures(taken, "counted", "tensors"),
                0.97, 1.03)
    yield Limit("counted memory ÷ storages alive", figures(memory, "counted", "live"), 0.97, 1.03)
    yield Limit("workspaces of cuBLAS ÷ allocator's peak", figures(taken, "cublas", "allocated"))
    yield Limit("rounding: allocated ÷ requested", figures(taken, "allocated", "requested"))
    yield Limit("model FLOPs ÷ PaLM's formula", figures(flops, "model", "palm"), 0.999, 1.001)
    peaks = {f"{k}, {u['of']}": u for k, v in found.items() for u in v.get("utilizations", ())}
    yield Limit("MFU", figures(peaks, "mfu"), 0, 1)
    yield Limit("HFU", figures(peaks, "hfu"), 0, 1)

def predicted_limits(found, device):
    "Limits and expected times beside measured ones."
    yield Limit("limit ÷ measured", figures(found, "limit_s", "measured_s"), 0, 1)
    yield Limit("rate of float32 attention ÷ a third of measured TF32", figures(found, "third_of_tf32"), 0, 1.05)
    yield Limit("expected ÷ measured", figures(found, "expected_s", "measured_s"))
    inside = {k: v["interval_s"][0] <= v["measured_s"] <= v["interval_s"][1] for k, v in found.items()
              if v.get("interval_s")}
    yield Limit("measured in the interval of the expected time (1: yes)", {k: float(v) for k, v in inside.items()})
    theirs = {k: v["measured_s"] / v["published_s"]["sxm"] for k, v in found.items() if "published_s" in v}
    yield Limit("measured ÷ published, on an H100 SXM", theirs if device == "NVIDIA H100 80GB HBM3" else {})

def peak_limits(found):
    "Roofs beside published maxima, and beside the datasheet."
    device, made = found.get("device_name"), [v for v in found.values() if isinstance(v, dict) and "ceilings" in v]
    rates = {name: rate for v in made for name, (rate, *_) in v["ceilings"].items()}
    rates |= {name: rate for v in made for name, (_, rate, _) in v["levels"].items()}
    mean, best = published[device]["bfloat16"] if device in published else (None, None)
    known = {k: v for k, v in rates.items() if k == "bfloat16" and mean}
    yield Limit("peak ÷ published mean of long runs", {k: v / mean for k, v in known.items()}, low=0.95)
    yield Limit("peak ÷ published best of sweeps", {k: v / best for k, v in known.items()}, high=1.05)
    promised = datasheet_of(device) if device else {}
    yield Limit("peak ÷ datasheet", {k: v / promised[k].value for k, v in rates.items() if k in promised}, high=1.05)

def datasheet_of(device):
    from fasterbench.roofs.datasheet import datasheet
    return datasheet(device) or {}

def counter_limits(found):
    "Counted work beside what counters say."
    ours = found.get("counted", {})
    rows = {k: dict(counted=ours[k], **v) for k, v in found.get("rows", {}).items() if k in ours}
    yield Limit("counted bytes ÷ ncu's at DRAM",
                {k: v["counted"]["bytes"] / v["bytes"] for k, v in rows.items() if v["bytes"]}, 0.85, 1.15)
    yield Limit("counted FLOPs ÷ ncu's", {k: v["counted"]["flops"] / v["flops"] for k, v in rows.items()
                                          if v["flops"]})

def failures(folder):
    "What failed or was left out, by part and case."
    for part in parts:
        for name, v in findings(folder, part).items():
            if name == "left out": yield f"{part}: out of time before {', '.join(v)}"
            if not isinstance(v, dict) or "error" not in v: continue
            place = f" ({v['where'][-1]})" if v.get("where") else ""
            yield f"{part}{f': {name}' * (name != 'failed')}: {v['error'].splitlines()[0][:160]}{place}"

def print_table(folder):
    "Print the limits and what failed; write them as JSON."
    table, failed = list(limits(folder)), list(failures(folder))
    for limit in table: print(*limit.lines(), sep="\n")
    print(*(f"failed: {line}" for line in failed), sep="\n")
    (folder/"table.json").write_text(json.dumps(dict(limits=list(map(as_record, table)), failed=failed), indent=1))

def as_record(limit):
    "A limit as it is saved."
    return dict(what=limit.what, range=limit.range, found=limit.found, verdict=limit.verdict, values=limit.values,
                outside=limit.outside)

# ---- the page

committed, page = root/"tests/data/measured_on_gpu.json", root/"nbs/docs/measured_on_gpu.md"
about = "device_name", "driver", "cuda", "torch", "python", "system", "date"

def records(folder):
    "The records of all parts, the limits and what failed, as one record."
    made = {part: findings(folder, part) for part in parts if findings(folder, part)}
    kinds = sorted({d.get("device", "nothing") for d in made.values()})
    if kinds != ["cuda"]:
        raise SystemExit(f"{folder} has records of {', '.join(kinds) or 'nothing'}: the page is of a GPU")
    first = next(iter(made.values()))
    return dict(environment={k: first[k] for k in about if k in first}, limits=list(map(as_record, limits(folder))),
                failed=list(failures(folder)), parts=made)

def page_text(data):
    "The page of one record."
    env = data["environment"]
    yield f"""# Measured on a GPU

`python tests/benchmarks/gpu.py` ran on one {env['device_name']}, on {env['date'][:10]}: PyTorch {env['torch']}, \
driver {env.get('driver')}.
Each line is one figure over many runs: the range in which it lies if the library is right, and what was found.
All figures are in `tests/data/measured_on_gpu.json`.

| figure | range | found | verdict |
|---|---|---|---|"""
    for l in data["limits"]: yield f"| {l['what']} | {l['range']} | {l['found']} | {l['verdict']} |"
    outside = [(l["what"], k, v) for l in data["limits"] for k, v in l["outside"].items()]
    if outside: yield "\n## Outside the range\n\n| figure | run | value |\n|---|---|---|"
    for what, run, value in outside: yield f"| {what} | {run} | {value:.3f} |"
    if data["failed"]: yield "\n## Not measured\n"
    for line in data["failed"]: yield f"- {line}"

def write_page(folder, record=committed, at=page):
    "Write the records of a folder as one file, and the page made from it."
    data = records(folder)
    record.write_text(json.dumps(data, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    at.write_text("\n".join(page_text(data)) + "\n", encoding="utf-8")
    print(f"wrote {record} and {at}; nbs/tutorials/gpu.ipynb and nbs/docs/devices.md say what has run on a GPU")

# ---- running

def run_part(part, folder, seconds):
    "Run one part in this process; an error that ends it is in its record."
    record = Record(folder, part, seconds)
    try:
        device, environment = here()
        for k, v in dict(environment, device=device.type).items(): record.put(k, v)
        if simulate: simulated().books.table.computes = part in ("graphs", "faults")       # roofs would take minutes
        parts[part](record, device, folder)
    except BaseException as error: record.put("failed", told(error)); raise
    record.put("complete", "left out" not in record.data)

def started(part, folder, patience):
    "Run one part in a process of its own; where it was stopped or died, its record says so."
    seconds, start = shares[part] * patience, time.perf_counter()
    (folder/f"{part}.json").unlink(missing_ok=True)
    call = [sys.executable, sys.argv[0], "--out", folder, "--parts", part, "--child", str(seconds * 0.75),
            *["--simulated"] * simulate]
    kept = dict(FASTERBENCH_CACHE=os.environ.get("FASTERBENCH_CACHE") or str(folder.resolve()/"roofs"))
    try: done = subprocess.run(call, timeout=seconds, capture_output=True, text=True, env=os.environ | kept)
    except subprocess.TimeoutExpired: why = f"stopped after {seconds:.0f} s"
    else: why = f"ended with {done.returncode}: {done.stderr[-1500:]}" if done.returncode else ""
    path = folder/f"{part}.json"
    data = json.loads(path.read_text()) if path.exists() else dict(part=part, complete=False)
    if why and "failed" not in data: path.write_text(json.dumps(data := data | dict(failed=dict(error=why)), indent=1))
    print(f"{part}: {time.perf_counter() - start:.0f} s{', failed' * ('failed' in data)}", flush=True)

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="+", default=list(parts), choices=[*parts, *groups])
    parser.add_argument("--patience", type=float, default=1.0, help="multiplies the seconds of each part")
    parser.add_argument("--simulated", action="store_true", help="on the simulated device of the tests")
    parser.add_argument("--page", action="store_true", help="make the page of the site from the records")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    global simulate
    args = parser.parse_args()
    simulate = args.simulated
    args.out.mkdir(parents=True, exist_ok=True)
    if args.child: return run_part(args.parts[0], args.out, args.child)
    left = unsimulated if simulate else ()
    for name in args.parts:
        for part in groups.get(name, [name]) if name not in left else (): started(part, args.out, args.patience)
    print_table(args.out)
    if args.page: write_page(args.out)

if __name__ == "__main__": main()
