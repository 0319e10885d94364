"""What reading traces shows, on the traces of real GPUs beside this checkout.

`python tests/benchmarks/traces.py [PART …]`; parts: engines, counters, neighbours, speed. Without a
name: all but the last, which takes minutes."""
import csv, gzip, json, os, re, sys, time
from pathlib import Path

root = Path(__file__).resolve().parents[2]
shared = next((p for p in (Path(os.environ.get("FASTERBENCH_SHARED", "")), root.parent/"shared",
                           root.parent.parent/"shared") if (p/"data/traces").is_dir()), None)
if shared is None:
    sys.exit("the traces of real GPUs are neither in ../shared/data/traces nor in $FASTERBENCH_SHARED/data/traces")
real, expected = shared/"data/traces", shared/"data/traces/expected"
assumed = {"v100_resnet50_2021_schema": "Tesla V100-SXM2"}      # a name that no datasheet has

def rows(lines):
    "Print a table."
    widths = [max(len(str(l[i])) for l in lines) for i in range(len(lines[0]))]
    for l in lines:
        print("  ".join(f"{c:<{w}}" if i == 0 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(l, widths))).rstrip())

def names(): return sorted(p.name.removesuffix(".json.gz") for p in real.glob("*.json.gz")) + ["v100_dlrm_8ranks"]
def path_of(name): return real/f"{name}{'.tar.gz' if 'dlrm' in name else '.json.gz'}"

small_gptoss = dict(num_hidden_layers=24, hidden_size=2880, intermediate_size=2880, num_local_experts=32,
                    num_experts_per_tok=4,
                    sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 12,
                    quantization_config=dict(quant_method="mxfp4"))
given = {"mi300x_hipgraph_decode": dict(captures=["mi300x_hipgraph_decode_capture"]),
         # what a user has beside a trace
         "vllm_gptoss_decode": dict(captures=["vllm_gptoss_decode_capture"], config=small_gptoss),
         "b200_gptoss_vllm_tp8_rank0": dict(config=shared/"data/configs/gpt-oss-120b")}
# the trace has no name
assumed |= {"vllm_gptoss_decode": "AMD Instinct MI300X", "vllm_gptoss_decode_capture": "AMD Instinct MI300X"}

def engines():
    """Every trace with what a user has beside it, and what a peer has of it.

    The share of linked device time with figures and at least bytes, what neighbours recovered, rows above roofs."""
    from fasterbench import read_trace
    lines, left = [["trace", "exact", "at least", "together", "peer", "outside", "recovered", "above 105 %", "best %",
                    "s"]], []
    for name in names():
        how = {k: ([path_of(c) for c in v] if k == "captures" else v) for k, v in given.get(name, {}).items()}
        begin = time.perf_counter()
        try: r = read_trace(path_of(name), on=assumed.get(name), **how)
        except ValueError: continue
        seconds = time.perf_counter() - begin
        def part(k): return sum(a.parts.get(k, 0) for a in r.breakdowns)
        linked = sum(a.linked_s for a in r.breakdowns)
        def share(s, of): return f"{s / of:.2%}" if of else "-"
        exact, least, out, back = map(part, ("with FLOPs and bytes", "with bytes, at least",
                                             "launched outside the window", "matched by position in the step"))
        used = [p for p in r.ops if p.utilization_pct is not None]
        peer = peer_share(name)
        if name == "mi300x_hipgraph_decode":
            rows_ = table(name, "unified_perf_summary_merged")
            peer = sum(float(x["Kernel Time (µs)_sum"]) for x in rows_
                       if x["GFLOPS"]) / sum(float(x["Kernel Time (µs)_sum"]) for x in rows_)
        lines.append([name, share(exact, linked), share(least, linked), share(exact + least, linked),
                      "-" if peer is None else f"{peer:.2%}",
                      share(out + back, sum(a.span_s - a.parts.get("idle", 0) for a in r.breakdowns)),
                      share(back, out + back), sum(p.utilization_pct > 105 for p in used),
                      f"{max((p.utilization_pct for p in used), default=0):.0f}", f"{seconds:.2f}"])
        left += [f"  {name}: {n[:220]}" for n in r.notes if "roofs:" not in n]
        left += [f"  {name}: ABOVE {p.name[:70]} {p.phase} {p.utilization_pct:.0f} %, {p.bound} {p.memory_level}"
                 for p in used if p.utilization_pct > 105]
    rows(lines)
    print("said of them:", *left, sep="\n")

def neighbours():
    """Kernels matched by position in the step, held out: one half of each stream is learnt from, the other asked.

    Right is the same operator with the same FLOPs and bytes."""
    from fasterbench.traces.trace_file import read_file
    from fasterbench.traces.trace_join import _labels, _streams, parts, places
    from fasterbench.traces.trace_join import Neighbours
    lines = [["trace", "kernels", "recognised", "of their time", "right", "right, of time"]]
    for name in names():
        if "dlrm" in name: continue                    # several files
        try: trace = read_file(path_of(name))
        except ValueError: continue
        found = places(trace)           # what neighbours told is not what they are asked for
        labels, _ = _labels(trace, [p._replace(operator=-1, figures=None) if p.part == parts["neighbours"] else p
                                    for p in found])
        held, back, right = ([0, 0.0] for _ in range(3))
        for own in _streams(trace):
            kernels, half = [trace.activities[i].name for i in own], len(own) // 2
            for asked in (range(half), range(half, len(own))):
                index = Neighbours()
                index.learn(kernels, [None if k in asked else labels[i] for k, i in enumerate(own)])
                for k in asked:
                    label, a = labels[own[k]], trace.activities[own[k]]
                    if label is None or label[1] is None: continue
                    found = index.recognise(kernels, k)
                    for sums, counts in ((held, True), (back, found and found[1]), (right, found == label)):
                        if counts: sums[0] += 1; sums[1] += a.end - a.start
        if held[0]:
            lines.append([name, held[0], *(f"{back[j] / held[j]:.1%}" for j in (0, 1)),
                          *(f"{right[j] / back[j]:.2%}" if back[j] else "-" for j in (0, 1))])
    rows(lines)

def table(name, file):
    "The rows of a report of the peer."
    path = expected/name/f"{file}.csv"
    csv.field_size_limit(10**8)
    return list(csv.DictReader(open(path, encoding="utf-8"))) if path.exists() else []

def peer_share(name):
    """The share of kernel time that the peer has FLOPs for; of its rows those of operators that launch kernels
    directly."""
    found = table(name, "unified_perf_summary")
    total = sum(float(r["Kernel Time (µs)_sum"] or 0) for r in found)
    return sum(float(r["Kernel Time (µs)_sum"] or 0) for r in found if r["GFLOPS"]) / total if total else None

def counters():
    """FADD, FMUL and 2·FFMA that the GPU executed, beside the count from shapes: AlexNet, 128 images, the second
    of two forwards."""
    import torch, torchvision
    from fasterbench import count_work
    data = json.loads(gzip.open(real/"a100_alexnet_cupti_counters.json.gz").read())
    def executed(e):
        return sum(v * (2 if "ffma" in k else 1) for k, v in e["args"].items() if re.search(r"op_(fadd|fmul|ffma)", k))
    ranges = [e for e in data["traceEvents"] if e.get("cat") == "cuda_profiler_range"]
    second = ranges[next(i for i, e in enumerate(ranges) if "implicit_convolve_sgemm" in e["name"]):]
    kinds = {"conv 1": "implicit_convolve_sgemm", "conv 2": "fft2d|gcgemm", "conv 3 to 5": "xmma_new::gemm",
             "linear 1 to 3": "sgemm_32x32"}
    with torch.device("meta"): model, x = torchvision.models.AlexNet().eval(), torch.empty(128, 3, 224, 224)
    work = count_work(model, x).by_module()
    convs, linears = ([w.contraction_flops for w in work.values() if w.type == t] for t in ("Conv2d", "Linear"))
    counted = {"conv 1": convs[0], "conv 2": convs[1], "conv 3 to 5": sum(convs[2:]), "linear 1 to 3": sum(linears)}
    why = {"conv 1": "padding of tiles", "conv 2": "by FFT: a product per frequency instead of one per tap",
           "linear 1 to 3": "padding of tiles, sums over slices",
           "conv 3 to 5": "tensor cores (TF32), which these counters do not count"}
    lines = [["layers", "kernels", "counted", "executed", "executed ÷ counted", "difference"]]
    for layer, pattern in kinds.items():
        own = [executed(e) for e in second if re.search(pattern, e["name"])]
        lines.append([layer, len(own), f"{counted[layer]:.4g}", f"{sum(own):.4g}", f"{sum(own) / counted[layer]:.3f}",
                      why[layer]])
    one_by_one = [executed(e) for e in second if "sgemm_32x32" in e["name"]]
    for i, (n, e) in enumerate(zip(linears, one_by_one), 1):
        lines.append([f"  linear {i}", 1, f"{n:.4g}", f"{e:.4g}", f"{e / n:.3f}", ""])
    rows(lines)

def repeated(name, target, size):
    "A trace of `size` bytes: the events of a real one again and again, later each time, with ids of their own."
    data = json.loads(gzip.open(path_of(name)).read())
    events = [e for e in data["traceEvents"] if e.get("ph") != "M"]
    span = max(e.get("ts", 0) + e.get("dur", 0) for e in events) - min(e["ts"] for e in events) + 1000
    ids = 1 + max(e["args"].get(k, 0) for e in events if isinstance(e.get("args"), dict)
                  for k in ("correlation", "External id") if isinstance(e["args"].get(k), int))
    head = {k: v for k, v in data.items() if k != "traceEvents"}
    with open(target, "w") as f:
        f.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        n = 0
        while f.tell() < size:
            for e in events:
                e["ts"] += span * (n > 0)
                for k in ("correlation", "External id", "Sequence number"):
                    if isinstance(e.get("args"), dict) and isinstance(e["args"].get(k), int):
                        e["args"][k] += ids * (n > 0)
            f.write((",\n" if n else "") + json.dumps(events, indent=1)[1:-1])
            n += 1
        f.write("]}\n")
    return n

def speed(sizes=(1e8, 1e9)):
    """The whole reader, each in a process of its own: the first read of a small trace, then rate and peak memory
    of a large one."""
    import subprocess
    first = """import sys, time
import fasterbench.traces.trace_read as t
begin = time.process_time()
t.read_trace(sys.argv[1])
took = time.process_time() - begin
print(f"{sys.argv[1].rpartition('/')[2]}: read for the first time in {took:.2f} s of CPU time")"""
    subprocess.run([sys.executable, "-c", first, str(path_of("h100_vit_base_infer"))], check=True)
    code = """import resource, sys, time
import fasterbench.traces.trace_read as t
def used(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1e3
t.read_trace(sys.argv[2])
base, begin, cpu = used(), time.perf_counter(), time.process_time()
with t.gc_paused():
    f = t.read_file(sys.argv[1])
    read = time.perf_counter() - begin, time.process_time() - cpu
with t.gc_paused(), t.uncompiled(): r = t._trace_result([t.reduced(f)], 'module', None)
whole, a = (time.perf_counter() - begin, time.process_time() - cpu), r.breakdowns[0]
def rate(seconds): return f"{f.size / 1e6 / seconds:.0f} MB/s"
print(f"{f.size / 1e6:.0f} MB, {len(f.operators)} operators, {len(f.activities)} activities")
for what, took in (("decoded", read), ("whole", whole)):
    print(f"{what} at {rate(took[0])}, {rate(took[1])} of CPU time")
print(f"peak {used() / 1e9:.2f} GB, {(used() - base) / f.size:.2f} times the file above the libraries")
print(f"sum ÷ span {sum(a.parts.values()) / a.span_s:.6f}")"""
    for size in sizes:
        target = Path(os.environ.get("TMPDIR", "/tmp"))/"trace_of_some_size.json"
        n = repeated("mi300x_resnet_ddp8_train_rank0", target, size)
        print(f"{n} times mi300x_resnet_ddp8_train_rank0, {target.stat().st_size / 1e6:.0f} MB")
        try: subprocess.run([sys.executable, "-c", code, str(target), str(path_of("h100_vit_base_infer"))], check=True)
        finally: target.unlink()

if __name__ == "__main__":
    for part in sys.argv[1:] or ("engines", "counters", "neighbours"):
        print(f"\n## {globals()[part].__doc__}")
        globals()[part]()
