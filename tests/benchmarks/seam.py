"""What the seam to devices costs on a CPU, this checkout against another one, in turn: `python tests/benchmarks/seam.py OTHER [ROUNDS]`

The other checkout is one from before the seam (`git worktree add /tmp/other d4416d7`). Run it while nothing else runs."""
import sys
from pathlib import Path
from statistics import median

from against import here, run

works = {
    "an empty timed call": """
from fasterbench.engine.accelerator import accelerator
cpu, nothing = accelerator(torch.device("cpu")), lambda: None
if hasattr(cpu, "timed"): timed = cpu.timed
else:
    from fasterbench.timing.stopping import timed_call
    timed = lambda call: timed_call(call, cpu)
measured(lambda: [timed(nothing) for _ in range(200_000)])""",
    "50 layers that do little, 30 steps": """
model, x = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(50))), torch.ones(2, 8)
fb.RooflineAnalyzer(model, x, peaks).profile("cpu", 1, 1, progress=False)
measured(lambda: fb.RooflineAnalyzer(model, x, peaks).profile("cpu", 5, 30, progress=False))""",
}

def main():
    other, rounds = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    for name, code in works.items():
        both = [(run(here, code)[1], run(other, code)[1]) for _ in range(rounds)]
        now, before = (median(seconds) for seconds in zip(*both))
        print(f"{name:36} CPU {now:6.3f} s, before {before:6.3f} s, ratio {now / before:.2f}")

if __name__ == "__main__": main()
