"""Several ranks profile one training step: rows, waiting and overhead against a loop written by hand; the same command with one
and with two ranks; and how long a job lives after one of its ranks was killed.

Run: python tests/benchmarks/ranks.py [--parts steps command killed]
"""
import argparse, json, os, signal, statistics, subprocess, sys, tempfile
from pathlib import Path
from time import monotonic, perf_counter, sleep

root = Path(__file__).resolve().parents[2]
env = os.environ | dict(PYTHONPATH=str(root), OMP_NUM_THREADS="1")
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

def transformer():
    import torch
    layer = lambda: torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    return torch.nn.Sequential(*(layer() for _ in range(4))), torch.randn(4, 64, 256)

def made(kind):
    "Model and sample of a rank."
    import torch, torch.distributed as dist
    torch.manual_seed(0)
    if kind == "ddp resnet18":
        import torchvision
        return torch.nn.parallel.DistributedDataParallel(torchvision.models.resnet18()), torch.randn(1, 3, 224, 224)
    model, x = transformer()
    if kind == "ddp transformer": return torch.nn.parallel.DistributedDataParallel(model), x
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model: fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh), x

def by_hand(model, x, optimizer, n):
    "Seconds of n steps of a loop as anybody would write it."
    times = []
    for _ in range(n):
        for p in model.parameters(): p.grad = None
        start = perf_counter()
        model(x).sum().backward()
        optimizer.step()
        times.append(perf_counter() - start)
    return times

def middle(values):
    "The mean between the quartiles."
    cut = len(values) // 4
    return statistics.mean(sorted(values)[cut:len(values) - cut])

def steps(kind, rounds):
    "On each rank: the loop by hand before and after each profile."
    import torch, torch.distributed as dist, warnings
    from fasterbench import HardwarePeaks, RooflineAnalyzer
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo")
    model, x = made(kind)
    optimizer, lines = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9), []
    model.train()
    by_hand(model, x, optimizer, 5)
    for _ in range(rounds):
        before = by_hand(model, x, optimizer, 10)
        analyzer = RooflineAnalyzer(model, x, HardwarePeaks(1e11, 2e10)).profile(backward=True, optimizer=optimizer, warmup=2, steps=40)
        model.train()
        after = by_hand(model, x, optimizer, 10)
        hand, t = before + after, analyzer.result.timing
        lines.append(dict(hand=middle(hand), itself=middle(after) / middle(before), bare=t.end_to_end_s, rows=t.rows_s, waiting=t.exposed_s,
                          overhead=t.overhead_s, flight=t.communication_s, steps=t.steps))
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, lines)
    if dist.get_rank() == 0: print("OUT" + json.dumps(every))
    dist.destroy_process_group()

def table(kind, rounds, ranks=2):
    done = subprocess.run([*torchrun, f"--nproc-per-node={ranks}", __file__, "--child", kind, "--rounds", str(rounds)], capture_output=True, text=True, env=env)
    if done.returncode: sys.exit(done.stderr[-3000:])
    for rank, lines in enumerate(json.loads(done.stdout.split("OUT")[1])):
        v = {k: statistics.median(line[k] for line in lines) for k in lines[0]}
        total = [line["rows"] + line["waiting"] + line["overhead"] for line in lines]
        inside = statistics.median(t / line["bare"] for t, line in zip(total, lines))
        outside = statistics.median(t / line["hand"] for t, line in zip(total, lines))
        each, itself = (", ".join(f"{v:.3f}" for v in values) for values in
                        ([t / line["bare"] for t, line in zip(total, lines)], [line["itself"] for line in lines]))
        ms = "".join(f"{1e3 * v[k]:10.1f}" for k in ("hand", "bare", "rows", "waiting", "overhead", "flight"))
        print(f"{kind:18}{rank:5}{ms}{inside:10.3f}{outside:10.3f}   {each}; the loop after it ÷ the loop before it {itself}", flush=True)

def command(ranks, folder, *more):
    head = [sys.executable] if ranks == 1 else [*torchrun, f"--nproc-per-node={ranks}"]
    return [*head, "-m", "fasterbench", "roofline", "torchvision:resnet18", "--backward", "--batch", "4", "--no-html", "--json", str(folder/"r.json"), *more]

def same_command(folder):
    print(f"\n{'ranks':>5}{'seconds':>10}{'step, ms':>10}{'rows':>6}{'waiting, ms':>13}{'sum ÷ step':>12}")
    for ranks in (1, 2):
        start = monotonic()
        done = subprocess.run(command(ranks, folder), capture_output=True, text=True, env=env | dict(FASTERBENCH_CACHE=str(folder/"cache")))
        if done.returncode: sys.exit(done.stderr[-3000:])
        r = json.loads((folder/"r.json").read_text())
        t = r["timing"]
        total = t["rows_s"] + t["overhead_s"] + (t["exposed_s"] or 0)
        print(f"{ranks:5}{monotonic() - start:10.1f}{1e3 * t['end_to_end_s']:10.1f}{len(r['points']):6}{1e3 * (t['exposed_s'] or 0):13.1f}{total / t['end_to_end_s']:12.3f}", flush=True)

def killed(folder):
    "Seconds from the SIGKILL of one rank until every process of the job has ended."
    print("\nrank 1 killed in the middle of a profile, 2 ranks under torchrun")
    for _ in range(2):
        job = subprocess.Popen(command(2, folder, "--steps", "100000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env | dict(FASTERBENCH_CACHE=str(folder/"cache")))
        ranks = []
        while len(ranks) < 2:
            sleep(0.2)
            ranks = [int(p) for f in Path(f"/proc/{job.pid}/task").glob("*/children") for p in f.read_text().split()]
        sleep(15)
        os.kill(ranks[1], signal.SIGKILL)
        start = monotonic()
        text = job.communicate()[1]
        took, left = monotonic() - start, [r for r in ranks if Path(f"/proc/{r}").exists()]
        said = [line for line in text.splitlines() if line.startswith("fasterbench: rank")]
        print(f"every process ended after {took:.1f} s; left: {left or 'none'}; {said[0] if said else 'rank 0 was ended by torchrun'}", flush=True)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["steps", "command", "killed"], choices=["steps", "command", "killed"])
    parser.add_argument("--kinds", nargs="+", default=["ddp resnet18", "ddp transformer", "fsdp transformer"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child: steps(args.child, args.rounds)
    else:
        if "steps" in args.parts:
            print(f"{'training step':18}{'rank':>5}" + "".join(f"{h:>10}" for h in ("hand, ms", "bare", "rows", "waiting", "overhead", "on its way", "sum÷bare", "sum÷hand")) + "   sum÷bare of each profile")
            for kind in args.kinds: table(kind, args.rounds)
        with tempfile.TemporaryDirectory() as folder:
            if "command" in args.parts: same_command(Path(folder))
            if "killed" in args.parts: killed(Path(folder))
