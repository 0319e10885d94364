"""Bounds against published times, none of which may be below its bound.

    python tests/benchmarks/speed_of_light.py [--half 0|1] [--per N] [--problems NAME...]
    python tests/benchmarks/speed_of_light.py --kernelbench     the table of the page `impossible_times`
    python tests/benchmarks/speed_of_light.py --neusight        kernels in float32 on nine devices

Without an option: SOL-ExecBench, against the best kernels, beside the bounds of SOLAR, and CPU seconds per workload.
Problems are divided in two by a hash of their names. Its harness writes 512 MiB to clear the caches before every call.
"direct": without fast algorithms of convolutions."""
import argparse, csv, gzip, hashlib, json, os, statistics, sys, time, warnings
from dataclasses import replace
from pathlib import Path

import torch

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

def bound(definition, row, peaks, limit):
    "Return the bound of a workload and the CPU seconds that it took."
    workload = dict(axes=json.loads(row["axes"]), inputs=json.loads(row["inputs"]), uuid=row["uuid"])
    problem = workload_problem(definition, workload)
    f, sample = problem.make()
    began = time.process_time()
    work = least_work(recorded(f, sample, target_of(peaks), limit))
    peaks = at_clock(peaks, number(row["clock_mhz"]) or highest_mhz)
    found = light_of(work, peaks, number(row["max_rtol"]), Promised(cleared=True))
    seconds = time.process_time() - began
    plain = replace(work, contractions=tuple(replace(c, flops=max(c.flops, c.direct)) for c in work.contractions))
    direct = light_of(plain, peaks, number(row["max_rtol"]), Promised(cleared=True))
    return found, max(found.memory_s, direct.ladder["within tolerance"]), seconds

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
                       solar=number(r["solar_bound_ms"]),
                       best=min(times, default=None), error="")
            try:
                found, direct, row["cpu"] = bound(definitions[name], r, peaks, limit)
                simple = max(found.memory_s, found.ladder["within tolerance"])
                row |= dict(bound=1e3 * found.time_s, direct=1e3 * direct, simple=1e3 * simple, price=found.price)
            except Exception as error: row["error"] = f"{type(error).__name__}: {error}"[:150]
            yield row

def summary(found, title):
    print(f"\n{title}: {len(found)} workloads of {len({r['name'] for r in found})} problems")
    failed = {r["name"] for r in found if r["error"]}
    print(f"  problems not counted: {len(failed)} {sorted(failed)}")
    counted = [r for r in found if not r["error"]]
    if not counted: return
    cpu = sorted(r["cpu"] for r in counted)
    print(f"  CPU seconds: median {statistics.median(cpu):.2f}, 90th percentile "
          f"{cpu[int(0.9 * (len(cpu) - 1))]:.2f}, most {cpu[-1]:.1f}")
    timed = [r for r in counted if r["best"] and r["solar"]]
    for what, key in (("bound", "bound"), ("without splits", "simple"), ("and direct", "direct"), ("SOLAR", "solar")):
        shares = [r[key] / r["best"] for r in timed]
        long = [r[key] / r["best"] for r in timed if r["best"] > 0.02 and (r["rtol"] or 0) <= 0.1]
        if shares:
            print(f"  {what:15} median of bound ÷ best {statistics.median(shares):.3f}, above the best "
                  f"{sum(s > 1 for s in shares)}, "
       f"below 1 % of {len(long)} above 20 µs {sum(s < 0.01 for s in long)}")
    for r in timed:
        for key in ("bound", "simple"):
            if r[key] > r["best"]:
                print(f"  ABOVE ({key}): {r['name']} {r['axes']} {r[key]:.5f} ms, best {r['best']:.5f}, SOLAR "
                      f"{r['solar']:.5f}, {r['price']}")
    return timed

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
    args, found = given.parse_args(), []
    if args.kernelbench or args.neusight: sys.exit(kernelbench() if args.kernelbench else neusight())
    for r in rows(args.per, args.half, args.problems, args.limit):
        found.append(r)
        if args.verbose: print(json.dumps(r), flush=True)
    for half in (0, 1):
        (summary([r for r in found if r["half"] == half], f"half {half}") if any(r["half"] == half for r in found)
         else None)
