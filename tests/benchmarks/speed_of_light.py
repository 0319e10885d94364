"""Bounds against published times, none of which may be below its bound.

    python tests/benchmarks/speed_of_light.py [--half 0|1] [--per N] [--unseen] [--problems NAME...]
    python tests/benchmarks/speed_of_light.py --kernelbench     the table of the page `impossible_times`
    python tests/benchmarks/speed_of_light.py --neusight        kernels in float32 on nine devices
    python tests/benchmarks/speed_of_light.py --timm            models of timm under autocast on two devices

Without an option: SOL-ExecBench, against the best kernels, beside the bounds of SOLAR, and CPU seconds per workload.
Its harness writes 512 MiB to clear the caches before every call. Problems are divided in two by a hash of their names.
The rules were made with the first and the middle workload of each problem in view; `--unseen` takes one of the others,
by a hash of its id. "direct": without fast algorithms of convolutions."""
import argparse, csv, gzip, hashlib, importlib, json, os, statistics, sys, time, warnings
from dataclasses import replace
from functools import cache
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

def hashed(word, name): return int(hashlib.sha256(f"{word} {name}".encode()).hexdigest(), 16)

def half_of(name): return hashed("third", name) % 2

def chosen(listed, per, unseen):
    "Return some workloads of a problem: at even distances, or one of those that no rule was made with."
    even = listed[::max(len(listed) // per, 1)][:per]
    if not unseen: return even
    return sorted((r for r in listed if r not in even), key=lambda r: hashed("third", r["uuid"]))[:1]

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
    said = replace(work, contractions=tuple(replace(c, flops=c.written) for c in work.contractions))
    ladder, algebra = (light_of(w, peaks, rtol, Promised(cleared=True)).ladder for w in (plain, said))
    rules = dict(bound=found.compute_s, simple=found.ladder["within tolerance"], direct=ladder["within tolerance"],
                 written=ladder["as written"], algebra=algebra["as written"])
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
    if (number(row["solar_bound_ms"]) or 0.0) <= close * ms["simple"]: return dict(price=found.price, cpu=cpu, **ms)
    with patch("fasterbench.speed_of_light.orders.taps_of", all_taps):
        ms["taps"] = figures(least_work(graph), peaks, rtol)[1]["direct"]
        with patch("fasterbench.speed_of_light.least.operand_dtype", lambda v: dtype_name(v.dtype)):
            last = figures(least_work(graph), peaks, rtol)[1]
            ms |= dict(plain=last["written"], program=last["algebra"])
    with patch("fasterbench.speed_of_light.least.operand_dtype", lambda v: dtype_name(v.dtype)):
        ms["cast"] = figures(least_work(graph), peaks, rtol)[1]["written"]
    return dict(price=found.price, cpu=cpu, **ms)

def workloads(per, half, names, unseen):
    "Yield the name of a problem and a line of the table, for each workload."
    by_problem = {}
    for r in csv.DictReader(gzip.open(shared/"workloads.csv.gz", "rt")):
        by_problem.setdefault(r["problem"], []).append(r)
    for name, listed in by_problem.items():
        if half is not None and half_of(name) != half or names and not any(n in name for n in names): continue
        for r in chosen(listed, per, unseen): yield name, r

@cache
def definitions(): return json.load(gzip.open(shared/"problems.json.gz"))

def row_of(name, r, limit):
    "Return the figures of a workload, or why there are none."
    times = [t for t in (number(r["kernel_best_ms"]), number(r["pytorch_best_ms"])) if t]
    row = dict(name=name, uuid=r["uuid"], axes=r["axes"], rtol=number(r["max_rtol"]), best=min(times, default=None),
               solar=number(r["solar_bound_ms"]), error="")
    try: return row | counted(definitions()[name], r, as_peaks("AMD Instinct MI350X"), limit)
    except Exception as error: return row | dict(error=f"{type(error).__name__}: {error}"[:150])

reasons = dict(
    direct="direct convolutions; Winograd's and FFT's with fewer products are in use",
    written="rates of the tensors' formats; the tolerance admits a faster one",
    cast="rates of the formats after casts; the operands are exact in a faster one",
    taps="direct convolutions, also with the padding, where a tap multiplies zeros",
    plain="several of these",
    algebra="every product that the program says; convolutions without anything between are one",
    program="several of these")
close = 1.03                            # as near as one figure has to be to another

unsure = "routing that the data do not have, where the fewest experts count; ids that Python reads, which cost nothing"
cycle_ms = 1e-3 / 1300                  # at the clock of most rows
too_much = dict(                        # By reading program and figure: what SOLAR counts in other problems
    L1__011="results in float32; they are returned in bfloat16",
    L1__014="all of an input; half of it is read",
    L1__021="all pairs of attention; sequences that lie one behind the other see their own",
    L1__023="a table of 1 225 rows; the rows that the grids name are read",
    L1__057="a table of 157 184 rows; the rows of the tokens are read",
    L1__092="all pairs of attention; a mask leaves half of them out",
    L2__011="a whole mask; a gather reads one of 128 elements",
    L2__044="an input that is not read",
    L2__060="all pairs of attention; a mask leaves half of them out",
    L2__075="products of projected keys; the few queries may be projected back to them")

def reason_of(r):
    "Say why SOLAR's figure, where it is above ours, is no bound; \"\": it may be one."
    if 0 < r["solar"] - r["simple"] <= cycle_ms: return "whole cycles; a bound is not rounded up"
    known = (why for key, why in reasons.items() if r["solar"] <= close * r[key])
    return too_much.get(r["name"][:7]) or next(known, "")

def why_loose(r):
    "Say why a bound is far below the best time."
    if not r["price"]: return "no product and few bytes: sorting, index arithmetic, steps that wait for one another"
    if (r["rtol"] or 0) > 0.1: return f"a tolerance of {r['rtol']:.2g}, within which {r['price']} is enough"
    if r["direct"] > 2 * r["simple"]: return "fast algorithms of convolutions"
    if r["simple"] > 2 * r["bound"]: return f"split products: {r['price']}"
    return "little work in many steps that wait for one another"

def is_bound(r): return r["solar"] <= close * r["simple"] or not reason_of(r)

def median(found, key): return statistics.median(r[key] / r["best"] for r in found)

def print_medians(timed):
    "Print the medians of figure ÷ best time over all rows, where SOLAR's figure is a bound too, and in both halves."
    print(f"\n  median of figure ÷ best time {'rows':>13} problems  ours  direct  SOLAR")
    parts = {"all": timed, "both are bounds": list(filter(is_bound, timed))}
    parts |= {f"half {half}{', both are bounds' * bounds}": [r for r in timed if half_of(r["name"]) == half and
              (is_bound(r) or not bounds)] for half in (0, 1) for bounds in (False, True)}
    for what, of in parts.items():
        ours, direct, solar = (median(of, key) for key in ("simple", "direct", "solar")) if of else [float("nan")] * 3
        print(f"  {what:36} {len(of):5} {len({r['name'] for r in of}):8}  {ours:.3f}   {direct:.3f}  {solar:.3f}")
    least = [r | dict(least=r["solar"] if is_bound(r) else r["simple"]) for r in timed]
    print(f"  all, with ours where SOLAR's is no bound: SOLAR {median(least, 'least'):.3f}")
    print(f"  with split products: ours {median(timed, 'bound'):.3f}")
    long = [r for r in timed if r["best"] > 0.02 and (r["rtol"] or 0) <= 0.1]
    print(f"  below 1 % of the best time, of {len(long)} above 20 µs with rtol up to 0.1: "
          + ", ".join(f"{k} {sum(r[k] < 0.01 * r['best'] for r in long)}" for k in ("simple", "solar")))

def print_differences(timed):
    "Print where SOLAR is above our bound without splits, and why."
    above = [r for r in timed if r["solar"] > close * r["simple"]]
    below = sum(close * r["solar"] < r["simple"] for r in timed)
    print(f"  SOLAR is more than 3 % above ours in {len(above)} rows, below in {below}; why:")
    by_reason = {}
    for r in above: by_reason.setdefault(reason_of(r), []).append(r)
    for why, of in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        print(f"    {len(of):3} rows of {len({r['name'] for r in of}):2} problems: {why or unsure}")
    for r in by_reason.get("", ()):
        print(f"        {r['solar'] / r['simple']:6.2f} times, {r['name']} {r['axes']}")

def summary(found):
    counted = [r for r in found if not r["error"]]
    names, whole = ({r["name"] for r in of} for of in (found, counted))
    print(f"\n{len(counted)} of {len(found)} workloads and {len(whole)} of {len(names)} problems counted")
    for r in found:
        if r["error"]: print(f"    {r['name']} {r['axes']}: {r['error']}")
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
    given.add_argument("--limit", type=float, default=60, help="CPU seconds of one workload")
    given.add_argument("--problems", nargs="*", default=())
    given.add_argument("--unseen", action="store_true", help="one workload of each problem that no rule was made with")
    given.add_argument("--rows", help="add the rows to this file of JSON lines, and go on from those in it")
    given.add_argument("--kernelbench", action="store_true")
    given.add_argument("--neusight", action="store_true")
    given.add_argument("--timm", action="store_true")
    args, found = given.parse_args(), []
    for asked, run in ((args.kernelbench, kernelbench), (args.neusight, neusight), (args.timm, timm)):
        if asked: sys.exit(run())
    kept = Path(args.rows or os.devnull)
    before = {r["uuid"]: r for r in map(json.loads, kept.read_text().splitlines())} if kept.is_file() else {}
    for name, r in workloads(args.per, args.half, args.problems, args.unseen):
        found.append(before.get(r["uuid"]) or row_of(name, r, args.limit))
        if r["uuid"] in before: continue
        with kept.open("a") as f: print(json.dumps(found[-1]), file=f)
    summary(found)
