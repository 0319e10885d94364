"""What other load does to the times: the same profile on the machine as it is, and beside a process that keeps one core busy. Printed is `.timing` of each:
the spread grows and is reported, and where the rows no longer sum to the uninstrumented time a warning says so."""
import subprocess, sys
from contextlib import contextmanager, nullcontext

import torch, torchvision

from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer

@contextmanager
def busy():
    "Within the context another process computes on one core."
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try: yield
    finally: process.kill(); process.wait()

if __name__ == "__main__":
    for name in sys.argv[1:] or ("resnet18", "mobilenet_v3_small", "swin_t"):
        for what, load in (("as it is", nullcontext), ("beside a busy process", busy)):
            ra = RooflineAnalyzer(torchvision.models.get_model(name, weights=None), torch.randn(1, 3, 224, 224), HardwarePeaks(5e11, 7e10))
            with load(): ra.profile(warmup=5, steps=20)
            spreads = sorted(r.time_iqr_s / r.time_s for r in ra.results if r.time_s)
            print(f"--- {name}, {what}; spread of the rows: {spreads[len(spreads) // 2]:.1%} in the median\n{ra.timing}", flush=True)
