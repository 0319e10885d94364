"""Time and memory of this checkout against another one, in turn: `python tests/benchmarks/against.py OTHER [ROUNDS]`

A profile of ResNet-18, a trace of 60 MB, a prediction, and a report of 1000 rows, each in processes of its own. `git worktree add
/tmp/other COMMIT` makes the other checkout. The trace is a real one from ../shared, again and again; without it that line is left out."""
import json, os, subprocess, sys, tempfile
from pathlib import Path
from statistics import median

here = Path(__file__).resolve().parents[2]

begin = """
import resource, sys, time, torch, fasterbench as fb
from pathlib import Path
torch.manual_seed(0)
peaks = fb.HardwarePeaks(1e11, 1e10)
def measured(work):
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    print(time.perf_counter() - wall, time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
resnet = "import torchvision\nmodel, x = torchvision.models.resnet18(weights=None).eval(), torch.randn(1, 3, 224, 224)\n"
works = {
    "profile of ResNet-18": resnet + "measured(lambda: fb.RooflineAnalyzer(model, x, peaks).profile('cpu', 5, 20, progress=False))",
    "trace of 60 MB": "fb.read_trace\nmeasured(lambda: fb.read_trace(sys.argv[1]).points)",
    "prediction of ResNet-18": resnet + "fb.predict(torch.nn.Linear(2, 2), torch.ones(2, 2), on='NVIDIA H100 80GB HBM3')\n"
                               "measured(lambda: [fb.predict(model, x, on='NVIDIA H100 80GB HBM3') for _ in range(5)])",
    "report of 1000 rows": """
result = fb.RooflineAnalyzer(torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(1000))), torch.ones(2, 8), peaks).profile('cpu', 0, 1, progress=False).result
assert len(result.points) >= 1000
import os
page = os.path.join(os.path.dirname(sys.argv[1]), "report.html")
result.to_html(page)
measured(lambda: [result.to_html(page) for _ in range(3)])""",
}

def run(checkout, code, *args):
    "Wall clock, s; CPU, s; peak memory, B."
    environment = os.environ | dict(PYTHONPATH=str(checkout), PYTHONWARNINGS="ignore")
    done = subprocess.run([sys.executable, "-c", begin + code, *args], cwd=tempfile.gettempdir(), env=environment, capture_output=True, text=True)
    if done.returncode: sys.exit(done.stderr)
    return tuple(map(float, done.stdout.split()[-3:]))

def main():
    other, rounds = Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory() as folder:
        trace = os.environ.get("FASTERBENCH_TRACE") or f"{folder}/long.json"
        if not Path(trace).exists():
            try:
                import traces
                traces.repeated("h100_qwen1.5_0.5b_prefill", trace, 60_000_000)
            except SystemExit: works.pop("trace of 60 MB")
        print(f"{'':26}{'wall':>12}{'ratio':>7}{'CPU':>12}{'ratio':>7}{'memory':>12}{'ratio':>7}")
        for name, code in works.items():
            found = {other: [], here: []}
            for i in range(rounds):
                for side in (other, here) if i % 2 == 0 else (here, other): found[side].append(run(side, code, trace))
            before, now = ([median(values) for values in zip(*found[side])] for side in (other, here))
            texts = (f"{now[0]:.3f} s", f"{now[1]:.3f} s", f"{now[2] / 1e6:.0f} MB")
            print(f"{name:26}" + "".join(f"{t:>12}{b / a:>7.2f}" for t, a, b in zip(texts, before, now)), flush=True)

if __name__ == "__main__": main()
