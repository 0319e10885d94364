"""Predictions against measurements that others published.

    python tests/benchmarks/predict.py PART ... [--cache DIR] [--kept] [--every N] [--sample N] [--rows FILE]
        [--record FILE]

Parts: compiled, generated, models, products, attention, here; programs, kernel_tables, servers, fit, constants (see
leave_out.py), of which the first three take every data set, and write the rows and the record of the proof page.
Reads ../shared/data (or $FASTERBENCH_SHARED/data). Counting the timm models takes an hour the first time; counts
are kept in DIR.
The timm runs were measured with timm 1.0.9 under its fast norms: `pip install --no-deps --target DIR timm==1.0.9`,
PYTHONPATH=DIR.
Nothing is fitted here but in `fit`."""
import argparse, csv, gzip, json, os, pickle, re, sys, tempfile, time, warnings, zlib
from math import log
from pathlib import Path
from statistics import median

import torch
from torch.utils._device import _device_constructors

from fasterbench.predicting.expected import compiled_times, deviation, expected_operator_times, z80
from fasterbench.predicting.kernel_times import chip_of
from fasterbench.roofs.cache_simulation import simulate_caches
from fasterbench.roofs.datasheet import datasheet_peaks, listed_device
from fasterbench.work.count import count_work
from fasterbench.work.target import Target
from fasterbench.work.trace import Call, Touch

root = Path(__file__).resolve().parents[2]
shared = Path(os.environ.get("FASTERBENCH_SHARED", root.parent / "shared")) / "data"
only_kept = False # whether models whose counts are not kept yet are left out
sample = 1        # of timm: models whose checksum this number divides

# -- one line of the table ------------------------------------------------------------------------------------------

def estimator(calls, peaks, tf32=False):
    "Seconds by the formula of PyTorch's RuntimeEstimator: half the FLOPs at 0.75 of the peak, or the bytes."
    def moved(c): return sum(t.bytes for t in (*c.reads, *c.writes))
    def rate(c): return peaks.flops_of(c.dtype or peaks.dtype, tf32)
    return sum(max((c.contraction_flops or 0) / 2 / 0.75 / rate(c), moved(c) / peaks.peak_bandwidth) for c in calls)

def line(title, rows, sigma, worst=8):
    "Print one line of the table from rows of (name, measured, limit, expected, estimator), and what is above."
    def error(i): return median(abs(r[i] / r[1] - 1) for r in rows)
    inside = sum(abs(log(r[3] / r[1])) <= z80 * sigma for r in rows) / len(rows)
    above = sorted((r for r in rows if r[2] > r[1]), key=lambda r: -r[2] / r[1])
    print(f"{title:46}{len(rows):>7}{len(above):>7}{error(2):>9.1%}{error(3):>10.1%}{error(4):>11.1%}{inside:>10.0%}"
          f"{median(r[3] / r[1] for r in rows):>8.2f}", flush=True)
    for name, measured, limit, *_ in above[:worst]:
        print(f"    above: {name}, limit {limit / measured:.3f} of measured", flush=True)

heading = f"{'data':46}{'rows':>7}{'above':>7}{'limit':>9}{'expected':>10}{'estimator':>11}{'in 80 %':>10}{'bias':>8}"

# -- counts of timm models ------------------------------------------------------------------------------------------

class OnMeta(torch.overrides.TorchFunctionMode):
    "Weights are made on the meta device; the small tables that constructors compute with are real."
    real = {torch.linspace, torch.arange, torch.tensor, torch.as_tensor}
    def __torch_function__(self, f, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made_on_meta = f in _device_constructors() and f not in self.real and kwargs.get("device") is None
        if made_on_meta: kwargs["device"] = "meta"
        return f(*args, **kwargs)

def made_of(name, size):
    import timm
    model = timm.create_model(name, pretrained=False)
    if model.default_cfg.get("input_size", (3, 224, 224))[-1] == size: return model
    try: return timm.create_model(name, pretrained=False, img_size=size)
    except TypeError: return model

def timm_model(name, size, fast=True):
    """The model as it was timed: with fast norms, or without. Some run while they are made, and autocast knows no
    meta device: on the CPU."""
    from timm.layers import set_fast_norm
    set_fast_norm(fast)
    try:
        with OnMeta(): return made_of(name, size)
    except RuntimeError as error:
        if "autocast" not in str(error): raise
        return made_of(name, size).to("meta")

# timed after their branches were joined: other programs than those that are counted
joined = re.compile("repvgg|mobileone|mobileclip|fastvit|repvit|levit|ghostnetv3|repghost|nextvit|efficientvit_m")

def timm_count(name, size, batch):
    "The operators of one forward under float16 autocast; attention of five dimensions in float16, as in PyTorch 2.4."
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    work = count_work(timm_model(name, size), torch.empty(batch, 3, size, size, device="meta"),
        target=Target("cuda", "sm86", torch.float16))
    def touches(ts): return [(t.storage, t.region, t.bytes) for t in ts]
    return [(c.operator, c.category, c.flops, c.contraction_flops, touches(c.reads), touches(c.writes), c.shapes,
        c.dtypes, c.dtype, c.part, c.channels_last, c.transposed)
            for c in work.trace]

def timm_calls(cache, name, size, batch):
    path = cache / f"{name}-{size}-{batch}.pkl.gz"
    if not path.exists():
        calls = timm_count(name, size, batch)
        with gzip.open(path, "wb", 3) as f: pickle.dump(dict(calls=calls), f)
    with gzip.open(path) as f: calls = pickle.load(f)["calls"]
    return [Call(c[9], 0, "forward", *c[:4], [Touch(*t) for t in c[4]], [Touch(*t) for t in c[5]], *c[6:9],
                 channels_last=c[10],
                 transposed=c[11] if len(c) > 11 else False)
        for c in calls]

def chip(peaks): return chip_of(peaks, listed_device(peaks))

def from_main_memory(calls, peaks):
    "The bytes of each operator by level, all from the last."
    return [[0] * (len(peaks.memory) - 1) + [sum(t.bytes for t in (*c.reads, *c.writes))] for c in calls]

def through_caches(calls, peaks, most):
    "The bytes of each operator by level, as a walk through the caches places them."
    def touches(ts): return [(t.storage, t.bytes, t.region) for t in ts]
    served = simulate_caches([(touches(c.reads), touches(c.writes)) for c in calls],
                             [l.capacity for l in peaks.memory[:-1]], most=most)
    return [[sum(l[i] for ls in op for l in ls) for i in range(len(peaks.memory))] for op in served]

def timm_times(calls, peaks, measured, compiled=False):
    "Times of all operators. The limit is tried with all bytes from main memory; where that is broken, level by level."
    if compiled: return compiled_times(calls, peaks, chip(peaks))
    times = expected_operator_times(calls, from_main_memory(calls, peaks), peaks, chip(peaks))
    if sum(t.limit for t in times) <= measured: return times
    return expected_operator_times(calls, through_caches(calls, peaks, True), peaks, chip(peaks))

def timm_rows(cache, file, device, every, compiled=False, keep=lambda name: True):
    peaks, rows, failed = datasheet_peaks(device, "float16"), [], []
    with open(shared / "timm" / f"benchmark-infer-amp-nchw-pt240-cu124-{file}.csv") as f:
        table = list(csv.DictReader(f))[::every]
    for r in table:
        key = r["model"], int(r["infer_img_size"]), int(r["infer_batch_size"])
        if (joined.search(r["model"]) or zlib.crc32(r["model"].encode()) % sample or not keep(r["model"]) or only_kept
            and not (cache / "{}-{}-{}.pkl.gz".format(*key)).exists()):
            continue
        try: calls = timm_calls(cache, *key)
        except Exception as error:
            failed.append(f"{key[0]} {key[1]}: {type(error).__name__} {str(error)[:90]}")
            continue
        measured = key[2] / float(r["infer_samples_per_sec"])
        times = timm_times(calls, peaks, measured, compiled)
        rows.append((f"{key[0]} {key[1]}", measured, sum(t.limit for t in times), sum(t.expected for t in times),
            estimator(calls, peaks)))
    return rows, failed, deviation(peaks, compiled)

def compiled(cache, every):
    for half, title in ((0, "compiled, RTX 4090, half of the fit"), (1, "timm compiled, RTX 4090, other half")):
        rows, failed, sigma = timm_rows(cache, "rtx4090-dynamo", "NVIDIA GeForce RTX 4090", every, True,
            lambda n: zlib.crc32(n.encode()) % 2 == half)
        line(title, rows, sigma)
        for f in failed: print("    not counted:", f)

drawn = 48              # Every 48th of the table's rows, by name: 30 models

def generated(cache, every):
    """The kernels that Inductor generates for the device, beside the constant: rows drawn by their place in the
    alphabet."""
    from fasterbench.predicting.predict import predict
    name, rows, constant, failed = "NVIDIA GeForce RTX 4090", [], [], []
    peaks = datasheet_peaks(name, "float16")
    with open(shared / "timm" / "benchmark-infer-amp-nchw-pt240-cu124-rtx4090-dynamo.csv") as f:
        table = sorted(csv.DictReader(f), key=lambda r: (r["model"], int(r["infer_img_size"])))[::drawn * every]
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    for r in table:
        model, size, batch = r["model"], int(r["infer_img_size"]), int(r["infer_batch_size"])
        measured, begin = batch / float(r["infer_samples_per_sec"]), time.process_time()
        try:
            sample = torch.empty(batch, 3, size, size, device="meta")
            asked = predict(timm_model(model, size), sample, name, autocast=torch.float16, compiled=True,
                            progress=False)
            if not any(p.layers for p in asked.points): raise ValueError(asked.notes[1])
            calls = timm_calls(cache, model, size, batch)
        except Exception as error:
            failed.append(f"{model} {size}: {type(error).__name__} {str(error)[:150]}")
            print("    not asked:", failed[-1], flush=True)
            continue
        plain, p = compiled_times(calls, peaks, chip(peaks)), asked.program
        rows.append((f"{model} {size}", measured, p.roof_time_s, p.time_s, estimator(calls, peaks)))
        constant.append((*rows[-1][:2], sum(t.limit for t in plain), sum(t.expected for t in plain), rows[-1][4]))
        print(f"    {model:36}{measured * 1e3:9.2f} ms, limit {p.roof_time_s / measured:.2f}, constant's "
              f"{constant[-1][2] / measured:.2f}; "
              f"expected {p.time_s / measured:.2f}, constant's {constant[-1][3] / measured:.2f}; "
              f"{time.process_time() - begin:.0f} s", flush=True)
    for title, found in (("drawn compiled runs, by their kernels", rows), ("the same, by the constant", constant)):
        line(title, found, deviation(peaks, True))
        ratios = sorted(r[2] / r[1] for r in found)
        print(f"    limit / measured: {ratios[0]:.2f} to {ratios[-1]:.2f}, median {median(ratios):.2f}; "
              f"{len(failed)} not asked")

# -- single kernels -------------------------------------------------------------------------------------------------

def kernel(category, operator, flops, reads, writes, dtype):
    "One operator that runs again and again on the same memory."
    def touch(i, n): return Touch(i, (0, ()), int(n))
    return Call(0, 0, "forward", operator, category, flops, flops if category in ("matmul", "attention") else 0,
                [touch(i, n) for i, n in enumerate(reads)], [touch(9, writes)], (), (), dtype)

def warm(call, peaks):
    "Limit and expected time of a kernel in steady state: what fits in the caches is served by them."
    rest, served = sum(t.bytes for t in (*call.reads, *call.writes)), []
    for level in peaks.memory[:-1]: served.append(min(rest, level.capacity)); rest -= served[-1]
    return expected_operator_times([call, call], [[*served, rest]] * 2, peaks, chip(peaks))[1]

def neusight_call(op, r):
    def n(k): return float(r[k])
    if op in ("linear", "bmm"):
        b, m, k, w = n("B"), n("M"), n("K"), n("N")
        return kernel("matmul", f"aten::{op}", 2 * b * m * k * w,
            (4 * b * m * k, 4 * k * w * (b if op == "bmm" else 1)), 4 * b * m * w, "float32")
    size = 4 * n("B") * n("H")
    if op in ("softmax", "ln"): return kernel("normalisation", f"aten::{op}", size, (size,), size, "float32")
    return kernel("pointwise", f"aten::{op}", size / 4, (size, size) if op in ("add", "mul", "div") else (size,),
        size, "float32")

# -- programs of single operators ------------------------------------------------------------------------------------

class Program(torch.nn.Module):
    "The calls of one program of KernelBench, each on tensors of its own."
    def __init__(self, calls):
        super().__init__()
        self.calls = calls
    def forward(self, *given):
        left = iter(given)
        def filled(a):
            if isinstance(a, dict): return next(left)
            return [filled(x) for x in a] if isinstance(a, list) else a
        for c in self.calls:
            args, named = [filled(a) for a in c["args"]], {k: filled(v) for k, v in c["kwargs"].items()}
            name, overload = c["op"].removeprefix("aten.").rsplit(".", 1)
            if name == "einsum": out = torch.einsum(args[0], *args[1])
            elif name not in ("numpy_T", "broadcast_tensors"):
                out = getattr(getattr(torch.ops.aten, name), overload)(*args, **named)
        return out

def kernelbench_programs():
    """Yield (program, its sample on meta, its line of the table with times in ms) of KernelBench's first level,
    float32."""
    mistaken = (12, 97)                  # programs that changed after they were timed
    # Its script (generate_baseline_time.py) makes a module and times it as it is, in training mode; the operators were
    # recorded in eval mode. Only this program differs: its batch norm finds the statistics of its input.
    training = (33,)
    def tensors(a):
        if isinstance(a, dict) and "shape" in a:
            yield torch.empty(a["shape"], dtype=getattr(torch, a["dtype"]), device="meta")
        for x in a.values() if isinstance(a, dict) and "shape" not in a else a if isinstance(a, list) else ():
            yield from tensors(x)
    with open(shared / "kernelbench" / "level1.csv") as f:
        for r in csv.DictReader(f):
            number, calls = int(r["problem"].split("_")[0]), json.loads(r["calls_json"])
            if number in mistaken: continue
            if number in training: calls[0]["args"][5] = True
            yield Program(calls), tuple(t for c in calls for t in (*tensors(c["args"]), *tensors(c["kwargs"]))), r

def kernelbench():
    "Yield (number, name, operators, times in ms) of every program of KernelBench's first level, float32."
    for program, sample, r in kernelbench_programs():
        yield int(r["problem"].split("_")[0]), r["problem"], count_work(
            program, sample, target=Target("cuda", "sm90")).trace, r

# -- whole models ---------------------------------------------------------------------------------------------------

configs = dict(bert_large="bert_large", gpt2_large="gpt2_large", gpt3_27="gpt3_27", gpt3_xl="gpt3_xl",
    opt_13="opt_13", switchxl4="switchxl4")

def transformer(name):
    "The model of a configuration with eager attention, as it was measured, on the meta device."
    import transformers
    config = transformers.AutoConfig.from_pretrained(shared / "neusight" / "configs" / f"{configs[name]}.json")
    config._attn_implementation = "eager"
    config.use_cache = False
    with torch.device("meta"): return transformers.AutoModel.from_config(config, dtype=torch.float32).eval()

def counted_models():
    "Yield (device, (model, length, batch), measured s, operators) of the models that can be counted."
    counted = {}
    with open(shared / "neusight" / "models.csv") as f: table = [r for r in csv.DictReader(f) if r["mode"] == "inf"]
    for r in table:
        key = r["model"], int(r["seq"]), int(r["batch"])
        try:
            if key not in counted: counted[key] = count_work(transformer(key[0]),
                torch.zeros(key[2], key[1], dtype=torch.long), target=Target("cuda", "sm70")).trace
        except Exception as error:
            counted[key] = None
            print(f"    not counted: {key}: {type(error).__name__} {str(error)[:100]}")
        if counted[key]: yield r["device"], key, float(r["e2e_ms"]) * 1e-3, counted[key]

def model_times(calls, peaks):
    return expected_operator_times(calls, through_caches(calls, peaks, False), peaks, chip(peaks))

def models(cache, every):
    by_device = {}
    for device, key, measured, calls in counted_models():
        times = model_times(calls, datasheet_peaks(device))
        by_device.setdefault(device, []).append((" ".join(map(str, key)), measured, sum(t.limit for t in times),
            sum(t.expected for t in times), estimator(calls, datasheet_peaks(device))))
    for device, rows in by_device.items():
        line(f"models.csv float32, {device}", rows, deviation(datasheet_peaks(device)))
        published(device, rows)

def published(device, rows):
    "Beside the mean error of the predictions, those that NeuSight published for the same device."
    lines = (shared / "neusight" / "nvidia_inf.csv").read_text().splitlines()
    at = next((i for i, l in enumerate(lines) if l.strip() == device), None)
    if at is None: return
    def mean(l): return (lambda xs: sum(xs) / len(xs))([float(x) for x in l.split(",")[1:] if x])
    ours = sum(abs(r[3] / r[1] - 1) for r in rows) / len(rows)
    print("    mean error: expected", f"{ours:.1%};", "published",
        ", ".join(f"{l.split(',')[0]} {mean(l):.1f}%" for l in lines[at + 3:at + 7]), flush=True)

# -- products and attention, each device left out -----------------------------------------------------------------

def products(cache, every):
    import kernels
    kernels.all_products(shared / "aiconfigurator", every)

def attention(cache, every):
    import kernels
    kernels.all_attention(shared / "aiconfigurator", every)

# -- this machine ---------------------------------------------------------------------------------------------------

def here(cache, every):
    "Predict for the measured peaks of this machine, then measure."
    import torchvision
    from fasterbench.predicting.predict import predict
    from fasterbench.roofline import RooflineAnalyzer
    from fasterbench.probes.peaks import measure_peaks
    names = """resnet18 resnet50 resnext50_32x4d wide_resnet50_2 vgg11 vgg16_bn alexnet squeezenet1_0 densenet121
        mobilenet_v2 mobilenet_v3_large shufflenet_v2_x1_0 mnasnet1_0 efficientnet_b0 efficientnet_v2_s regnet_y_400mf
        convnext_tiny vit_b_16 swin_t googlenet""".split()
    peaks, rows = measure_peaks("cpu"), []
    for name in names[::every]:
        model, sample = torchvision.models.get_model(name, weights=None).eval(), torch.randn(1, 3, 224, 224)
        p = predict(model, sample, peaks).program
        measured = RooflineAnalyzer(model, sample, peaks).profile(progress=False).result.program.time_s
        low, high = (t * 1e3 for t in p.interval_s)
        print(f"    {name:20} limit {p.roof_time_s * 1e3:8.2f} ms  expected {p.time_s * 1e3:8.2f} ms ({low:.2f} to "
              f"{high:.2f})  "
              f"measured {measured * 1e3:8.2f} ms", flush=True)
        rows.append((name, measured, p.roof_time_s, p.time_s, p.roof_time_s))
    line("this machine, its measured peaks", rows, deviation(peaks))

parts = dict(compiled=compiled, generated=generated, models=models, products=products, attention=attention,
             here=here)
proof_parts = "programs", "kernel_tables", "servers"
of_leave_out = *proof_parts, "fit", "constants"

def keep(path, lines, how):
    "Write a record: a line of JSON for each line of a table; those of other data sets stay."
    now = {l["set"] for l in lines}
    kept = [l for l in map(json.loads, path.read_text().splitlines()) if l["set"] not in now] if path.exists() else []
    rounded = [{k: round(v, 4) if isinstance(v, float) else v for k, v in l.items()} | dict(how=how) for l in lines]
    path.write_text("".join(json.dumps(l, ensure_ascii=False) + "\n" for l in kept + rounded))

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="+", choices=[*parts, *of_leave_out])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "fasterbench-predict")
    parser.add_argument("--every", type=int, default=1, help="take every Nth row")
    parser.add_argument("--kept", action="store_true", help="leave out models whose counts are not kept yet")
    parser.add_argument("--sample", type=int, default=1, help="of timm: models whose checksum this number divides")
    parser.add_argument("--rows", type=Path, help="write the rows of the proof page here, as JSON")
    parser.add_argument("--record", type=Path, help="the record of the proof page, where data sets of now are replaced")
    given = parser.parse_args()
    global only_kept, sample
    only_kept, sample = given.kept, given.sample
    given.cache.mkdir(exist_ok=True, parents=True)
    if not shared.is_dir(): sys.exit(f"{shared} is not here; FASTERBENCH_SHARED names the folder that holds data/")
    warnings.simplefilter("ignore")
    print(heading)
    import leave_out
    rows = []
    for part in given.part:
        found = (parts.get(part) or getattr(leave_out, part))(given.cache, given.every)
        if part in proof_parts: rows += found
    if given.rows: given.rows.write_text(json.dumps(rows))
    if given.record: keep(given.record, leave_out.record, f"every={given.every} sample={given.sample}")

if __name__ == "__main__":
    sys.modules["predict"] = sys.modules[__name__]         # for `leave_out`, which reads its options
    main()
