"""How far the verdicts of `fasterbench check` can be trusted: one model against itself, and against itself with a
slower layer.

Run: python tests/benchmarks/budgets.py [--runs 200] [--rounds 20] [--part itself|slowed] [--seconds 220
--save runs.jsonl] Prints how many runs break a budget by chance (limit: 1 %), how many cannot say, and how often a
layer that was slowed by 10 % is found among the runs that say anything (limit: 95 %). A run of `--seconds` goes on
where the file of `--save` ends, so that 200 runs can be taken in pieces; figures are of all runs in the file.
"""
import argparse, json, os, tempfile
from collections import Counter
from pathlib import Path
from time import perf_counter

from fasterbench.checking.budget_figures import ratios_of_rounds
from fasterbench.checking.budgets import Budget, figures, in_looks, judge
from fasterbench.checking.versions import in_turn, side

source = '''
import torch
from torch import nn
class Slowed(nn.Module):
    "A product of `rows` rows: the number of rows is its time."
    def __init__(self, rows): super().__init__(); self.weight = nn.Parameter(torch.randn(512, 512)); self.rows = rows
    def forward(self, x): return x + (x[:1].expand(self.rows, -1).contiguous() @ self.weight).sum(0)
class Net(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(512, 512), Slowed(rows), nn.Linear(512, 512)
    def forward(self, x): return self.last(self.layer(self.first(x)))
def make(): return Net({rows}), torch.randn(256, 512)
'''

def version(rows=500):
    folder = Path(tempfile.mkdtemp())
    (folder/"net.py").write_text(source.format(rows=rows))
    return folder

def verdicts(now, before, rounds, limit):
    "Run after run, the verdict on the layer and on the whole model: is the time within `limit` of that before?"
    budget, settings = Budget("net", figures["time"], "<=", limit, f"<= {limit:.0%}"), dict(model="net.py:make")
    def found(ratios): return [judge(budget, ratios[layer]["time"]).result for layer in ("layer", "")]
    while True:
        # processes of its own for each run, as the command has
        with side(before, settings) as b, side(now, settings) as a:
            a("round"), b("round")
            taken = in_looks(lambda k: in_turn(a, b, k % 2), ratios_of_rounds, lambda f: "cannot say" not in found(f),
                             rounds)
        yield [*found(taken), taken[""]["time"].samples]

def collected(title, found, runs, until, path):
    "As many verdicts of `found` as are wanted, with those that `path` has of earlier calls."
    before = ([r["verdicts"] for r in map(json.loads, path.read_text().splitlines()) if r["part"] == title] if path
              and path.exists() else [])
    while len(before) < runs and perf_counter() < until:
        before.append(next(found))
        if path:
            with open(path, "a") as f:
                f.write(json.dumps(dict(part=title, verdicts=before[-1], load=os.getloadavg()[0])) + "\n")
    found.close()
    return before

def shown(title, found):
    for layer, results in zip(("layer", "model"), zip(*(verdicts[:2] for verdicts in found))):
        n = Counter(results)
        if not results: continue
        says = len(results) - n["cannot say"]
        print(f"{title:42} {layer:6} {len(results):4} runs: broken {n['broken']:4} "
              f"({n['broken'] / len(results):6.1%}), cannot say {n['cannot say']:4} "
              f"({n['cannot say'] / len(results):6.1%}), "
              f"broken of those that say {n['broken'] / says if says else float('nan'):6.1%}", flush=True)
    print(f"{title:42} rounds of a run: {dict(sorted(Counter(rounds for *_, rounds in found).items()))}", flush=True)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--part", choices=["itself", "slowed"], action="append")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()
    parts, until = args.part or ["itself", "slowed"], perf_counter() + args.seconds
    print(f"{args.rounds} to {4 * args.rounds} rounds a run, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} "
          "cores; the budget is 105 % of the time before")
    same = version()
    def of(title, now, runs):
        return collected(title, verdicts(now, same, args.rounds, 1.05), runs, until, args.save)
    if "itself" in parts: shown("itself", of("itself", version(), args.runs))
    if "slowed" in parts: shown("a layer slowed by 10 %", of("slowed", version(rows=550), max(args.runs // 2, 1)))
