"""Networks: published NCCL sweeps against the model α + S/β, and gloo on this machine against a loop written by hand.

Run: python tests/benchmarks/network.py [--ranks 2 4]
The published sweeps are read from ../shared/data/aiconfigurator, where that folder is there.
"""
import argparse, json, random, statistics, subprocess, sys
from pathlib import Path
from time import perf_counter

data = Path(__file__).resolve().parents[3]/"shared/data/aiconfigurator"

def published():
    "Median and 90th percentile of the error of the fitted model, per device and element type."
    import pandas as pd
    from fasterbench.network.network_fit import fit_network
    print(f"{'sweep':32}{'points':>8}{'median error':>14}{'p90':>8}  bus bandwidth over 8, GB/s")
    for path in sorted(data.glob("*_nccl.parquet")):
        rows = pd.read_parquet(path)
        for dtype, size in (("half", 2), ("int8", 1)):
            own = rows[rows.nccl_dtype == dtype]
            samples = [(r.op_name.replace("alltoall", "all_to_all"), int(r.num_gpus), int(r.message_size) * size,
                        r.latency * 1e-3) for r in own.itertuples()]
            peaks = fit_network(samples)
            errors = sorted(abs(peaks.time_of(c, n, ranks) / s - 1) for c, ranks, n, s in samples)
            links = ", ".join(f"{r.collective} {r.bus_bandwidth / 1e9:.1f}" for r in peaks.roofs if r.ranks == 8)
            print(f"{path.stem + ' ' + dtype:32}{len(samples):8}{statistics.median(errors):14.1%}"
                  f"{errors[int(0.9 * len(errors))]:8.1%}  {links}")

def hand_made(collective, n):
    "One call of the collective, and its buffers, as a script would write it."
    import torch, torch.distributed as dist
    x = torch.zeros(n // 4)
    part, out = torch.zeros(n // 4 // dist.get_world_size()), torch.empty_like(x)
    return dict(all_reduce=lambda: dist.all_reduce(x), all_gather=lambda: dist.all_gather_into_tensor(x, part),
                broadcast=lambda: dist.broadcast(x, 0), all_to_all=lambda: dist.all_to_all_single(out, x))[collective]

def hand_timed(call):
    import torch.distributed as dist
    dist.barrier()
    start = perf_counter()
    call()
    return perf_counter() - start

def per_call(times):
    "The shortest over the ranks, call by call."
    import torch.distributed as dist
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, times)
    return list(map(min, zip(*every)))

def gloo(repeats=200):
    """On each rank, call by call in turn: the timer of `measure_network` with its own call, and twice the loop by
    hand.

    Each figure is the median over the calls of the shortest over the ranks. The loop by hand against itself says how
    far two medians lie apart on this machine without any difference."""
    import torch, torch.distributed as dist
    from fasterbench.network.network_probes import _calls, _seconds
    dist.init_process_group("gloo")
    cpu, rows, ranks = torch.device("cpu"), [], dist.get_world_size()
    for collective in ("all_reduce", "all_gather", "all_to_all", "broadcast"):
        for n in (2**16, 2**20, 2**23):
            x = torch.zeros(n // 4)
            own, hand, again = (_calls[collective](x, x.clone().chunk(ranks), dist.group.WORLD),
                                hand_made(collective, n), hand_made(collective, n))
            takes = [lambda: _seconds(own, cpu, dist.group.WORLD), lambda: hand_timed(hand), lambda: hand_timed(again)]
            times, order = [[], [], []], random.Random(0)
            for k in range(repeats):
                for i in order.sample(range(3), 3): times[i].append(takes[i]())
            rows.append([collective, n, *(statistics.median(per_call(t[3:])) for t in times)])
    if dist.get_rank() == 0: print(json.dumps(rows))
    dist.destroy_process_group()

def launched(ranks):
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone",
                           __file__, "--child"], capture_output=True, text=True)
    if done.returncode: sys.exit(done.stderr[-2000:])
    print(f"\ngloo, {ranks} processes\n{'collective':14}{'bytes':>10}{'measured, µs':>14}{'by hand, µs':>13}"
          f"{'ratio':>8}{'by hand, twice':>16}")
    for collective, n, seconds, hand, again in json.loads(done.stdout.splitlines()[-1]):
        print(f"{collective:14}{n:10}{1e6 * seconds:14.0f}{1e6 * hand:13.0f}{seconds / hand:8.3f}{again / hand:16.3f}")

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
