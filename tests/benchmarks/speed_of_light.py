"""Bounds against published times, none of which may be below its bound.

    python tests/benchmarks/speed_of_light.py [--half 0|1] [--per N] [--problems NAME...]
    python tests/benchmarks/speed_of_light.py --kernelbench     the table of the page `impossible_times`
    python tests/benchmarks/speed_of_light.py --neusight        kernels in float32 on nine devices
    python tests/benchmarks/speed_of_light.py --timm            models of timm under autocast on two devices

Without an option: SOL-ExecBench, against the best kernels, beside the bounds of SOLAR, and CPU seconds per workload.
Problems are divided in two by a hash of their names. Its harness writes 512 MiB to clear the caches before every call.
"direct": without fast algorithms of convolutions."""
import argparse, csv, gzip, hashlib, importlib, json, os, statistics, sys, time, warnings
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch

from fasterbench.core.dtypes import dtype_name
from fasterbench.roofs.datasheet import as_peaks, target_of
from fasterbench import speed_of_light
from fasterbench.speed_of_light.bound import Promised, light_of
from fasterbench.speed_of_light.least import least_work
from fasterbench.speed_of_light.problems import workload_problem
from fasterbench.speed_of_light.recording import recorded

shared = Path(os.environ.get("FASTERBENCH_SHARED", Path(__file__).parents[3]/"shared"))/"data/sol_execbench"
highest_mhz = 2200                      # of the clock that the figures of an MI350X are for
vector_mhz = 1441                       # that float32 ran at, where matrix units ran at 1300

def half_of(name): return int(hashlib.sha256(f"second {name}".encode()).hexdigest(), 16) % 2

def at_clock(peaks, mhz):
    "Return the roofs with compute rates at a lower clock; the memory keeps its own."
    def scaled(c):
        own = max(mhz, vector_mhz) if c.dtype in ("float32", "float64") else mhz
        return replace(c, flops=c.flops * own / highest_mhz)
    return replace(peaks, peak_flops=peaks.peak_flops * mhz / highest_mhz, ridge_point=None,
                   ceilings=tuple(map(scaled, peaks.ceilings)))

def number(text): return float(text) if text else None

def figures(work, peaks, rtol):
    "Return the bound of a least work, and its figures in ms by rules that come nearer to what a program says."
    found = light_of(work, peaks, rtol, Promised(cleared=True))
    plain = replace(work, contractions=tuple(replace(c, flops=max(c.flops, c.direct)) for c in work.contractions))
    ladder = light_of(plain, peaks, rtol, Promised(cleared=True)).ladder
    rules = dict(bound=found.compute_s, simple=found.ladder["within tolerance"], direct=ladder["within tolerance"],
                 written=ladder["as written"])
    return found, {k: 1e3 * max(found.memory_s, s) for k, s in rules.items()}

def all_taps(n):
    "Return the taps of each axis of a convolution as if none fell on the padding."
    x, w, out = n.args[0], n.args[1], n.outs[0]
    return [[size] * k for size, k in zip((x if n.args[6] else out).shape[2:], w.shape[2:])]

def counted(definition, row, peaks, limit):
    "Return the price and the figures of a workload, and the CPU seconds that its bound took."
    workload = dict(axes=json.loads(row["axes"]), inputs=json.loads(row["inputs"]), uuid=row["uuid"])
    torch.manual_seed(0)                                        # of the lengths that a problem draws
    f, sample = workload_problem(definition, workload).make()
    began = time.process_time()
    graph, rtol = recorded(f, sample, target_of(peaks), limit), number(row["max_rtol"])
    peaks = at_clock(peaks, number(row["clock_mhz"]) or highest_mhz)
    found, ms = figures(least_work(graph), peaks, rtol)
    cpu = time.process_time() - began
    with patch("fasterbench.speed_of_light.orders.taps_of", all_taps):
        ms["taps"] = figures(least_work(graph), peaks, rtol)[1]["direct"]
        with patch("fasterbench.speed_of_light.least.operand_dtype", lambda v: dtype_name(v.dtype)):
            ms["plain"] = figures(least_work(graph), peaks, rtol)[1]["written"]
    with patch("fasterbench.speed_of_light.least.operand_dtype", lambda v: dtype_name(v.dtype)):
        ms["cast"] = figures(least_work(graph), peaks, rtol)[1]["written"]
    return dict(price=found.price, cpu=cpu, **ms)

def rows(per, half, names, limit):
    "Yield a dict for each workload."
    definitions = json.load(gzip.open(shared/"problems.json.gz"))
    by_problem, peaks = {}, as_peaks("AMD Instinct MI350X")
    for r in csv.DictReader(gzip.open(shared/"workloads.csv.gz", "rt")):
        by_problem.setdefault(r["problem"], []).append(r)
    for name, listed in by_problem.items():
        if half is not None and half_of(name) != half or names and not any(n in name for n in names): continue
        for r in listed[::max(len(listed) // per, 1)][:per]:
            times = [t for t in (number(r["kernel_best_ms"]), number(r["pytorch_best_ms"])) if t]
            row = dict(name=name, axes=r["axes"], half=half_of(name), rtol=number(r["max_rtol"]),
                       solar=number(r["solar_bound_ms"]), best=min(times, default=None), error="")
            try: row |= counted(definitions[name], r, peaks, limit)
            except Exception as error: row["error"] = f"{type(error).__name__}: {error}"[:150]
            yield row

reasons = dict(
    direct="direct convolutions; Winograd's and FFT's with fewer products are in use",
    written="rates of the tensors' formats; the tolerance admits a faster one",
    cast="rates of the formats after casts; the operands are exact in a faster one",
    taps="direct convolutions, also with the padding, where a tap multiplies zeros",
    plain="several of these")
close = 1.03                            # as near as one figure has to be to another

def reason_of(r):
    "Say what SOLAR counts where its figure is above ours and would be ours by another rule; \"\": something else."
    return next((why for key, why in reasons.items() if r["solar"] <= close * r[key]), "")

def why_loose(r):
    "Say why a bound is far below the best time."
    if not r["price"]: return "no product and few bytes: sorting, index arithmetic, steps that wait for one another"
    if (r["rtol"] or 0) > 0.1: return f"a tolerance of {r['rtol']:.2g}, within which {r['price']} is enough"
    if r["direct"] > 2 * r["simple"]: return "fast algorithms of convolutions"
    if r["simple"] > 2 * r["bound"]: return f"split products: {r['price']}"
    return "little work in many steps that wait for one another"

def shares(found, key): return [r[key] / r["best"] for r in found]

def print_medians(found):
    for what, key in (("bound", "bound"), ("without splits", "simple"), ("and direct", "direct"), ("SOLAR", "solar")):
        long = [r[key] / r["best"] for r in found if r["best"] > 0.02 and (r["rtol"] or 0) <= 0.1]
        print(f"  {what:15} median of bound ÷ best {statistics.median(shares(found, key)):.3f}, above the best "
              f"{sum(s > 1 for s in shares(found, key))}, below 1 % of {len(long)} above 20 µs {sum(s < 0.01 for s in long)}")

def print_differences(timed):
    "Print where SOLAR is above our bound without splits, and why; and both medians where it is a bound."
    above = [r for r in timed if r["solar"] > close * r["simple"]]
    print(f"  SOLAR is above ours in {len(above)} rows, below in {sum(close * r['solar'] < r['simple'] for r in timed)}")
    by_reason = {}
    for r in above: by_reason.setdefault(reason_of(r), []).append(r)
    for why, of in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        print(f"    {len(of):3} rows of {len({r['name'] for r in of}):2} problems: {why or 'other amounts of work'}")
    for r in by_reason.get("", ()):
        print(f"        {r['solar'] / r['simple']:6.2f} times, {r['name']} {r['axes']}")
    none = [r for r in above if reason_of(r)]
    left = [r for r in timed if r not in none]
    if not none or not left: return
    print(f"  without the {len(none)} rows where SOLAR's figure is no bound for these reasons: ours "
          f"{statistics.median(shares(left, 'simple')):.3f}, SOLAR {statistics.median(shares(left, 'solar')):.3f}")
    true = [min(r["solar"], r["simple"]) if r in none else r["solar"] for r in timed]
    replaced = statistics.median(t / r["best"] for t, r in zip(true, timed))
    print(f"  with ours in their place: ours {statistics.median(shares(timed, 'simple')):.3f}, SOLAR {replaced:.3f}")

def summary(found, title):
    print(f"\n{title}: {len(found)} workloads of {len({r['name'] for r in found})} problems")
    failed = {r["name"]: r["error"] for r in found if r["error"]}
    print(f"  problems not counted: {len(failed)}", *(f"\n    {name}: {why}" for name, why in failed.items()))
    counted = [r for r in found if not r["error"]]
    if not counted: return
    cpu = sorted(r["cpu"] for r in counted)
    print(f"  CPU seconds: median {statistics.median(cpu):.2f}, 90th percentile {cpu[int(0.9 * (len(cpu) - 1))]:.2f}, "
          f"most {cpu[-1]:.1f}; within 0.5: {sum(c <= 0.5 for c in cpu) / len(found):.0%}")
    timed = [r for r in counted if r["best"] and r["solar"]]
    if not timed: return
    print_medians(timed)
    print_differences(timed)
    for r in timed:
        for key in ("bound", "simple"):
            if r[key] > r["best"]:
                print(f"  ABOVE ({key}): {r['name']} {r['axes']} {r[key]:.5f} ms, best {r['best']:.5f}, SOLAR "
                      f"{r['solar']:.5f}, {r['price']}")
    print("  loosest above 20 µs:")
    for r in sorted((r for r in timed if r["best"] > 0.02), key=lambda r: r["bound"] / r["best"])[:10]:
        print(f"    {r['bound'] / r['best']:.4f} of {r['best']:.3f} ms, {r['name']}: {why_loose(r)}")

def kernelbench():
    "Print the programs of one operator of level 1 that are nearest to their bound, at a tolerance of 1 %."
    from predict import kernelbench_programs
    found = []
    for program, sample, row in kernelbench_programs():
        if len(program.calls) > 1: continue
        for device, key in (("NVIDIA H100 80GB HBM3", "h100_sxm"), ("NVIDIA H100 PCIe", "h100_pcie")):
            best = min((t for k in ("", "_compile") if (t := number(row[f"{key}{k}_ms_min"]))), default=None)
            if best is None: continue
            s = speed_of_light(program, sample, on=device, rtol=1e-2, promise="cold")
            found.append((1e3 * s.time_s / best, row["problem"], device, s, best))
    print(f"{len(found)} pairs of program and device, {sum(share > 1 for share, *_ in found)} below the bound\n")
    print("| program | device | bound | best published | bound ÷ time |\n|---|---|---|---|---|")
    for share, name, device, s, best in sorted(found, key=lambda f: -f[0])[:8]:
        program = name.strip("_").replace("_", " ")
        print(f"| {program} | {device} | {1e3 * s.time_s:.3f} ms | {best:.2f} ms | {share:.2f} |")

def _neusight_kernel(kind, r):
    n = {k: int(float(r[k])) for k in ("B", "M", "N", "K", "H") if r.get(k)}
    def f32(*shape): return torch.empty(*shape, device="meta")
    if kind == "linear": return torch.nn.functional.linear, (f32(n["B"], n["M"], n["K"]), f32(n["N"], n["K"]))
    if kind == "bmm": return torch.bmm, (f32(n["B"], n["M"], n["K"]), f32(n["B"], n["K"], n["N"]))
    x = f32(n["B"], n["H"])
    if kind == "softmax": return torch.softmax, (x, -1)
    if kind == "ln": return torch.nn.functional.layer_norm, (x, (n["H"],))
    two = r["OPName"] in ("add", "div", "mul", "pow")                      # with a u behind it: a tensor and a number
    return (torch.add, (x, torch.empty_like(x))) if two else (torch.relu, (x,))

def neusight(every=40):
    "Print how many kernels in float32 of other devices are below their bound, the same call again and again."
    for kind in ("linear", "bmm", "softmax", "ln", "elem"):
        shares, unknown = [], set()
        for r in list(csv.DictReader(gzip.open(shared.parent/f"neusight/{kind}.csv.gz", "rt")))[::every]:
            f, sample = _neusight_kernel(kind, r)
            try: s = speed_of_light(f, sample, on=r["Device"].replace("_", " "), rtol=1e-3)
            except ValueError: unknown.add(r["Device"]); continue
            shares.append((1e3 * s.time_s / float(r["Latency"]), r["Device"], sample))
        above = [found for found in shares if found[0] > 1]
        of_all = [share for share, *_ in shares]
        print(f"{kind:8} {len(shares)} kernels, {len(above)} below the bound, largest share {max(of_all):.2f}, "
              f"median {statistics.median(of_all):.2f}; not in the table: {sorted(unknown)}")
        for share, device, sample in above[:5]:
            print("  ABOVE:", share, device, [tuple(t.shape) for t in sample if isinstance(t, torch.Tensor)])

def timm(every=120):
    "Print how many models of timm are below their bound: float16 under autocast, eager and compiled."
    create = importlib.import_module("timm").create_model
    for device, names in (("RTX 4090", ("rtx4090", "rtx4090-dynamo")), ("RTX 3090", ("rtx3090",))):
        times = {}
        for name in names:
            file = shared.parent/f"timm/benchmark-infer-amp-nchw-pt240-cu124-{name}.csv"
            for r in csv.DictReader(file.open()):
                of = r["model"], int(r["infer_img_size"]), int(r["infer_batch_size"])
                times.setdefault(of, []).append(of[2] / float(r["infer_samples_per_sec"]))
        found = []
        for (name, size, batch), seconds in list(times.items())[::every]:
            try:
                with torch.device("meta"): model, x = create(name).eval(), torch.empty(batch, 3, size, size)
                with torch.no_grad(): s = speed_of_light(model, x, on=device, rtol=2 ** -11)
            except Exception as error: print(f"  {name}: {type(error).__name__}: {error}"[:110]); continue
            found.append((s.time_s / min(seconds), name))
        print(f"{device}: {len(found)} models, {sum(share > 1 for share, _ in found)} below the bound, largest share "
              f"{max(found)}, median {statistics.median(share for share, _ in found):.2f}")

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--half", type=int, choices=(0, 1))
    given.add_argument("--per", type=int, default=2, help="workloads of each problem")
    given.add_argument("--limit", type=float, default=20, help="CPU seconds of one workload")
    given.add_argument("--problems", nargs="*", default=())
    given.add_argument("--verbose", action="store_true")
    given.add_argument("--kernelbench", action="store_true")
    given.add_argument("--neusight", action="store_true")
    given.add_argument("--timm", action="store_true")
    args, found = given.parse_args(), []
    for asked, run in ((args.kernelbench, kernelbench), (args.neusight, neusight), (args.timm, timm)):
        if asked: sys.exit(run())
    for r in rows(args.per, args.half, args.problems, args.limit):
        found.append(r)
        if args.verbose: print(json.dumps(r), flush=True)
    for half in (0, 1):
        if of := [r for r in found if r["half"] == half]: summary(of, f"half {half}")
    summary(found, "both")
