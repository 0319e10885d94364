"What counting costs: its time in bare forwards, and its peak memory against that of a bare forward, each in a process of its own. Limit: 5 forwards or 1 s."
import json, subprocess, sys

models = ["resnet18", "resnet50", "mobilenet_v3_small", "densenet121", "efficientnet_b0", "vgg16", "vit_b_16", "swin_t", "convnext_tiny", "regnet_y_400mf"]

child = """
import json, resource, statistics, sys, torch, torchvision
from time import perf_counter
from fasterbench.work.count import count_work
model, x = torchvision.models.get_model(sys.argv[1], weights=None).eval(), torch.randn(1, 3, 224, 224)
def forward():
    with torch.no_grad(): model(x)
def timed(f, n):
    f(); f(); times = []
    for _ in range(n): start = perf_counter(); f(); times.append(perf_counter() - start)
    return statistics.median(times)
job = forward if sys.argv[2] == "bare" else lambda: count_work(model, x)
seconds = timed(job, 7)
print(json.dumps(dict(seconds=seconds, memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))
"""

def run(model, what): return json.loads(subprocess.run([sys.executable, "-W", "ignore", "-c", child, model, what], capture_output=True, text=True, check=True).stdout)

print(f"{'model':20} {'forward':>10} {'count':>10} {'forwards':>9} {'memory, count ÷ bare':>22}")
for model in models:
    bare, count = run(model, "bare"), run(model, "count")
    print(f"{model:20} {bare['seconds'] * 1e3:7.1f} ms {count['seconds'] * 1e3:7.1f} ms {count['seconds'] / bare['seconds']:9.1f} {count['memory'] / bare['memory']:22.3f}", flush=True)
