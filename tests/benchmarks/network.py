"""Networks: published NCCL sweeps against the model α + S/β, and gloo on this machine against a loop written by hand.

Run: python tests/benchmarks/network.py [--ranks 2 4]
The published sweeps are read from ../shared/data/aiconfigurator, where that folder is there.
"""
import argparse, json, statistics, subprocess, sys, tempfile
from pathlib import Path
from time import perf_counter

data = Path(__file__).resolve().parents[3]/"shared/data/aiconfigurator"

def published():
    "Median and 90th percentile of the error of the fitted model, per device and element type."
    import pandas as pd
    from fasterbench.roofs.network import fit_network
    print(f"{'sweep':32}{'points':>8}{'median error':>14}{'p90':>8}  bus bandwidth over 8, GB/s")
    for path in sorted(data.glob("*_nccl.parquet")):
        rows = pd.read_parquet(path)
        for dtype, size in (("half", 2), ("int8", 1)):
            own = rows[rows.nccl_dtype == dtype]
            samples = [(r.op_name.replace("alltoall", "all_to_all"), int(r.num_gpus), int(r.message_size) * size, r.latency * 1e-3) for r in own.itertuples()]
            peaks = fit_network(samples)
            errors = sorted(abs(peaks.time_of(c, n, ranks) / s - 1) for c, ranks, n, s in samples)
            links = ", ".join(f"{r.collective} {r.bus_bandwidth / 1e9:.1f}" for r in peaks.roofs if r.ranks == 8)
            print(f"{path.stem + ' ' + dtype:32}{len(samples):8}{statistics.median(errors):14.1%}{errors[int(0.9 * len(errors))]:8.1%}  {links}")

def by_hand(collective, n, repeats):
    "Seconds of one call in a loop of its own, the median over the calls of the shortest over the ranks."
    import torch, torch.distributed as dist
    x, times = torch.zeros(n // 4), []
    parts = list(torch.zeros(n // 4).chunk(dist.get_world_size()))
    out = torch.empty_like(x)
    for _ in range(repeats + 1):
        dist.barrier()
        start = perf_counter()
        if collective == "all_reduce": dist.all_reduce(x)
        elif collective == "all_gather": dist.all_gather_into_tensor(x, parts[0])
        elif collective == "broadcast": dist.broadcast(x, 0)
        else: dist.all_to_all_single(out, x)
        times.append(perf_counter() - start)
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, times)
    return statistics.median(min(call) for call in list(zip(*every))[1:])

def gloo(rounds=24, repeats=10):
    """On each rank: what `measure_network` takes its samples with, and the loop by hand, in turn, since a machine drifts.

    The ratio is the median over the rounds, each of them two measurements one after the other."""
    import torch, torch.distributed as dist
    from fasterbench.roofs.network_probes import _sample
    dist.init_process_group("gloo")
    cpu, rows = torch.device("cpu"), []
    for collective in ("all_reduce", "all_gather", "all_to_all", "broadcast"):
        for n in (2**16, 2**20, 2**23):
            pairs = []
            for k in range(rounds):
                first = lambda: _sample(collective, n, cpu, dist.group.WORLD, repeats)
                second = lambda: by_hand(collective, n, repeats)
                pairs.append((first(), second()) if k % 2 else (second(), first())[::-1])
            ratios = sorted(a / b for a, b in pairs)
            rows.append([collective, n, *map(statistics.median, zip(*pairs)), statistics.median(ratios), ratios[rounds // 4], ratios[3 * rounds // 4]])
    if dist.get_rank() == 0: print(json.dumps(rows))
    dist.destroy_process_group()

def launched(ranks):
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone", __file__, "--child"], capture_output=True, text=True)
    if done.returncode: sys.exit(done.stderr[-2000:])
    print(f"\ngloo, {ranks} processes\n{'collective':14}{'bytes':>10}{'measured, µs':>14}{'by hand, µs':>13}{'ratio':>8}  quartiles of the ratio")
    for collective, n, seconds, hand, ratio, low, high in json.loads(done.stdout.splitlines()[-1]):
        print(f"{collective:14}{n:10}{1e6 * seconds:14.0f}{1e6 * hand:13.0f}{ratio:8.3f}  {low:.2f} to {high:.2f}")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child: gloo()
    else:
        if data.is_dir(): published()
        else: print(f"no published sweeps: {data} is not there")
        for ranks in args.ranks: launched(ranks)
