"""Bounds of SOL-ExecBench against the best published kernels and the bounds of SOLAR, and CPU seconds per workload.

    python tests/benchmarks/speed_of_light.py [--half 0|1] [--per N] [--problems NAME...]

Problems are divided in two by a hash of their names; the feature was built with half 0."""
import argparse, csv, gzip, hashlib, json, os, statistics, sys, time, warnings
from dataclasses import replace
from pathlib import Path

import torch

from fasterbench.roofs.datasheet import as_peaks, target_of
from fasterbench.speed_of_light.bound import Promised, light_of
from fasterbench.speed_of_light.least import least_work
from fasterbench.speed_of_light.problems import workload_problem
from fasterbench.speed_of_light.recording import recorded

shared = Path(os.environ.get("FASTERBENCH_SHARED", Path(__file__).parents[3]/"shared"))/"data/sol_execbench"
highest_mhz = 2200                      # of the clock that the figures of an MI350X are for

def half_of(name): return int(hashlib.sha1(name.encode()).hexdigest(), 16) % 2

def at_clock(peaks, mhz):
    "Return the roofs with all compute rates at a lower clock; the memory keeps its own."
    scale = mhz / highest_mhz
    return replace(peaks, peak_flops=peaks.peak_flops * scale, ridge_point=None,
                   ceilings=tuple(replace(c, flops=c.flops * scale) for c in peaks.ceilings))

def number(text): return float(text) if text else None

def bound(definition, row, peaks, limit):
    "Return the bound of a workload and the CPU seconds that it took."
    workload = dict(axes=json.loads(row["axes"]), inputs=json.loads(row["inputs"]), uuid=row["uuid"])
    problem = workload_problem(definition, workload)
    f, sample = problem.make()
    began = time.process_time()
    work = least_work(recorded(f, sample, target_of(peaks), limit))
    peaks = at_clock(peaks, number(row["clock_mhz"]) or highest_mhz)
    found = light_of(work, peaks, number(row["max_rtol"]), Promised(cold=True))
    return found, time.process_time() - began

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
                found, row["cpu"] = bound(definitions[name], r, peaks, limit)
                row |= dict(bound=1e3 * found.time_s,
                            simple=1e3 * max(found.memory_s, found.ladder["within tolerance"]), price=found.price)
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
    for what, key in (("bound", "bound"), ("without splits", "simple"), ("SOLAR", "solar")):
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

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--half", type=int, choices=(0, 1))
    given.add_argument("--per", type=int, default=2, help="workloads of each problem")
    given.add_argument("--limit", type=float, default=20, help="CPU seconds of one workload")
    given.add_argument("--problems", nargs="*", default=())
    given.add_argument("--verbose", action="store_true")
    args, found = given.parse_args(), []
    for r in rows(args.per, args.half, args.problems, args.limit):
        found.append(r)
        if args.verbose: print(json.dumps(r), flush=True)
    for half in (0, 1):
        (summary([r for r in found if r["half"] == half], f"half {half}") if any(r["half"] == half for r in found)
         else None)
