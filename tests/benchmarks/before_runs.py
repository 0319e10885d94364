"""Which work just before a run changes its time? Per model and per thing that is done before every run: rows ÷ bare, all in turn on one machine.

Arguments: names of models (none: eight of them), `runs=40`. For a quiet machine. Each line is one thing that precedes both kinds of runs, the
bare ones and those with timestamps; `in a profile` is what a profile does. Where the sum of the rows differs from the bare time in one line and not
in the next, what precedes the runs is the cause; where it differs in all of them alike, the timestamps are. `A/A` compares the even bare runs with
the odd ones, and says how quiet it was; `bare` and `timestamped` are interquartile means."""
import statistics, sys
from time import sleep

import torch

from fasterbench.analysis.measure import fresh_calls
from fasterbench.engine.step import Forward
from fasterbench.timing.machine_load import Reference
from fasterbench.engine.accelerator import accelerator
from fasterbench.timing.certainty import Samples
from fasterbench.timing.timestamps import CpuTimestamps, self_times, timestamp_cost
from sums import zoo

eight = "mobilenet_v3_small", "squeezenet1_1", "resnet18", "densenet121", "resnet50", "swin_t", "vgg16", "transformer encoder"
cpu = torch.device("cpu")

def inner(values):
    "The interquartile mean, as a profile has it."
    samples = Samples(tuple(values))
    return samples.of(samples.middle).mean

def things(fresh, bookkeeping, reference):
    "What may precede a run, by name."
    def forward(): fresh()()
    def references(): reference()
    def pause(): sleep(0.02)
    return {"nothing": lambda: None, "one forward": forward, "bookkeeping": bookkeeping, "reference product and copy": references,
            "a pause of 20 ms": pause, "bookkeeping, reference, forward": lambda: (bookkeeping(), references(), forward())}

def lines(name, model, x, runs):
    "Yield the lines of one model."
    with torch.no_grad():
        run = Forward(model)
        timestamps, slots = CpuTimestamps(), len(run.parts)
        fresh, cost, watched = fresh_calls(run, (x,), {}), timestamp_cost(CpuTimestamps), run.watched(timestamps)
        last = []
        def bookkeeping():
            if last: self_times(last[0], slots + 1, cost, 0)
        before = things(fresh, bookkeeping, Reference())
        bare, rows, whole = ({k: [] for k in before} for _ in range(3))
        for i in range(runs + 3):
            for k, act in before.items():
                for kind in ("bare", "timestamped") if i % 2 else ("timestamped", "bare"):
                    act()
                    call = fresh()
                    if kind == "bare": bare[k].append(accelerator(cpu).timed(call)); continue
                    with watched: seconds = accelerator(cpu).timed(call)
                    last[:] = [timestamps.read()]
                    times = self_times(last[0], slots + 1, cost, 0)
                    rows[k].append(times[:slots])
                    whole[k].append(seconds - times[slots])
        for k in before:
            b, r, w = bare[k][3:], rows[k][3:], whole[k][3:]                   # after three of each
            total = sum(map(inner, zip(*r)))
            yield (f"{name:20} {k:32} {inner(b) * 1e3:9.2f} {inner(w) * 1e3:9.2f} {total / inner(b):12.3f} {inner(w) / inner(b):14.3f} "
                   f"{statistics.median(b[::2]) / statistics.median(b[1::2]):6.3f}")

if __name__ == "__main__":
    wanted = [a for a in sys.argv[1:] if not a.startswith("runs=")] or eight
    runs = next((int(a[5:]) for a in sys.argv[1:] if a.startswith("runs=")), 40)
    print(f"{'model':20} {'before each run':32} {'bare, ms':>9} {'timestamped':>9} {'rows ÷ bare':>12} {'timestamped ÷ bare':>14} {'A/A':>6}")
    for name, model, x in zoo():
        if name in wanted: print(*lines(name, model.eval(), x, runs), sep="\n", flush=True)
