"""A large report of Nsight Compute: time and peak memory of read_ncu on synthetic files of 200 MB in the details and the raw layout, each in a
process of its own. Limits: 60 s and 1 GB."""
import json, subprocess, sys, tempfile
from pathlib import Path

size = int(sys.argv[1]) * 10**6 if sys.argv[1:] else 200 * 10**6
S, T = "sass_thread_inst_executed_op_", "sm__ops_path_tensor_src_"
metrics = {"gpu__time_duration.sum": "ns", "dram__bytes_read.sum": "byte", "dram__bytes_write.sum": "byte", "lts__t_bytes.sum": "byte",
           "l1tex__t_bytes.sum": "byte", "dram__bytes.sum.peak_sustained": "byte/cycle", "dram__cycles_elapsed.avg.per_second": "hz",
           "sm__cycles_elapsed.avg.per_second": "hz", f"sm__{S}ffma_pred_on.sum.peak_sustained": "inst/cycle",
           **{f"smsp__{S}{op}_pred_on.sum": "inst" for op in ("fadd", "fmul", "ffma")},
           T + "bf16_dst_fp32_sparsity_off.sum": "", **{f"unit__metric_{i}.avg.pct_of_peak_sustained_elapsed": "%" for i in range(60)}}
ids = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device", "CC"]
line = lambda cells: ",".join(f'"{c}"' for c in cells) + "\n"
kernel = lambda i: f"void kernel_{i % 50}<float, {i % 7}>(const float *, float *, int)"
who = lambda i: [i, 4711, "python3", "127.0.0.1", kernel(i), 1, 7, "(256, 1, 1)", f"({i % 1000 + 1}, 1, 1)", 0, "8.0"]
value = lambda i, k: f"{(i * 7919 + k * 104729) % 10**8 + 1000:,}" if k < 13 else f"{(i + k) % 100}.{k:02d}"

def details(f):
    f.write(line(ids + ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]))
    i = 0
    while f.tell() < size:
        f.write("".join(line([*who(i), "Command line profiler metrics", name, unit, value(i, k)]) for k, (name, unit) in enumerate(metrics.items())))
        i += 1
    return i

def raw(f):
    f.write(line(ids + list(metrics)) + line([""] * len(ids) + list(metrics.values())))
    i = 0
    while f.tell() < size:
        f.write(line(who(i) + [value(i, k) for k in range(len(metrics))]))
        i += 1
    return i

child = """
import json, resource, sys, warnings
from time import perf_counter
warnings.simplefilter("ignore")
from fasterbench.ncu.ncu import read_ncu
start = perf_counter()
rows = len(read_ncu(sys.argv[1], by=sys.argv[2]))
print(json.dumps(dict(rows=rows, seconds=perf_counter() - start, memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)))
"""

with tempfile.TemporaryDirectory() as folder:
    for make in (details, raw):
        path = Path(folder)/"report.csv"
        with open(path, "w") as f: launches = make(f)
        for by in ("launch", "kernel"):
            found = json.loads(subprocess.run([sys.executable, "-c", child, str(path), by], capture_output=True, text=True, check=True).stdout)
            print(f"{make.__name__:8} {path.stat().st_size / 1e6:5.0f} MB, {launches:6} launches, by {by:6}: {found['rows']:6} rows, "
                  f"{found['seconds']:5.1f} s ({found['seconds'] / 60:4.0%} of the limit), "
                  f"{found['memory'] / 1e6:5.0f} MB at most ({found['memory'] / 1e9:4.0%} of the limit)", flush=True)
