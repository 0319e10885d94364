"How long imports take: medians over fresh processes, side by side in one run. Limits: 50 ms for the package, 150 ms beyond torch for the analyzer."
import statistics, subprocess, sys

def seconds(code, runs=7):
    timed = f"from time import perf_counter as t\n{code}"
    return statistics.median(float(subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True).stdout) for _ in range(runs))

package = seconds("a = t(); import fasterbench; print(t() - a)")
torch = seconds("a = t(); import torch; print(t() - a)")
beyond = seconds("import torch; a = t(); import fasterbench.roofline; print(t() - a)")
print(f"import fasterbench               {package * 1e3:7.1f} ms  {package / 0.050:5.0%} of the limit")
print(f"import torch                     {torch * 1e3:7.1f} ms")
print(f"import fasterbench.roofline      {beyond * 1e3:7.1f} ms beyond torch, {beyond / 0.150:.0%} of the limit")
