"""Do kernels and idle time add up to the time of the model, on a GPU? End to end is measured outside the library by CUDA events, in turn with profiles.
Limit: 2 %. Which part no kernel covers shows which models are bound by their launches."""
import statistics, sys

import torch, torchvision
from torch import nn

from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer

def models():
    yield "resnet50", torchvision.models.resnet50(weights=None), (3, 224, 224)
    yield "vit_b_16", torchvision.models.vit_b_16(weights=None), (3, 224, 224)
    yield "200 small layers", nn.Sequential(*(m for _ in range(100) for m in (nn.Linear(64, 64), nn.ReLU()))), (64,)

def end_to_end(model, x, n=20):
    "Median seconds of a forward between two events."
    times = []
    with torch.no_grad():
        for _ in range(n):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(); start.record(); model(x); end.record(); torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times)

if __name__ == "__main__":
    if not torch.cuda.is_available(): sys.exit("this machine has no GPU")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n{'model':18} {'batch':>5} {'events':>10} {'rows ÷ events':>14} {'idle':>6} {'clock'}")
    for name, model, shape in models():
        for batch in (1, 64):
            model, x = model.eval().cuda(), torch.randn(batch, *shape, device="cuda")
            end_to_end(model, x, 10)
            ra, ratios, truths = RooflineAnalyzer(model, x, HardwarePeaks(1e14, 1e12)), [], []
            for _ in range(5):
                truths.append(end_to_end(model, x))
                ra.profile("cuda", warmup=5, steps=20)
                ratios.append(ra.timing.sum_s / truths[-1])
            idle = next((r.share for r in ra.results if r.name == "(idle)"), float("nan"))
            print(f"{name:18} {batch:5} {statistics.median(truths) * 1e3:7.3f} ms {statistics.median(ratios):14.3f} {idle:6.1%} {ra.timing.clock}", flush=True)
