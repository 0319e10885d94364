"""Expected times of single kernels, each device left out of its own fit: products and attention of AIConfigurator.

    python tests/benchmarks/predict.py products attention [--every N]

For each device the constants are fitted on the others. The tables print the median error of the limit, of the limit
over a constant share (found on the other devices), of the formula of PyTorch's RuntimeEstimator, and of the expected
time. Bias, intervals, and what each constant buys: `leave_out.py`."""
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fasterbench.predicting import expected as model
from fasterbench.predicting.constants import bandwidths_of, compute_rate
from fasterbench.predicting.kernel_times import (AttentionKernel, Chip, attention_kernel, attention_time, chip_of,
                                                 product_time)
from fasterbench.roofs.datasheet import datasheet_peaks, listed_device

devices = dict(a100="NVIDIA A100-SXM4-80GB", h100="NVIDIA H100 80GB HBM3", l40s="NVIDIA L40S", b200="NVIDIA B200")
# bytes of an element of both operands, and the dtype that multiplies
formats = dict(bfloat16=(2, 2, "bfloat16"), fp8=(1, 1, "float8_e4m3fn"), sq=(1, 1, "int8"), int8_wo=(2, 1, "bfloat16"),
               int4_wo=(2, 0.5, "bfloat16"), nvfp4=(0.5625, 0.5625, "float4_e2m1fn_x2"))

@dataclass(frozen=True)
class Rows:
    "Measured calls of one kind, as arrays: one entry for each call."
    device: np.ndarray
    engine: np.ndarray
    measured: np.ndarray   # s
    moved: np.ndarray      # B
    flops: np.ndarray
    dtype: np.ndarray      # Of the arithmetic
    version: np.ndarray    # Of the engine
    shape: dict            # What the formula of the kind takes

    def where(self, mask):
        return Rows(*(getattr(self, k)[mask] for k in ("device", "engine", "measured", "moved", "flops", "dtype",
                                                     "version")),
                    {k: v[mask] for k, v in self.shape.items()})

    @cached_property
    def _kinds(self):
        "Peaks, dtype and engine of each kind of row, and the kind of every row."
        names = [np.asarray(x, str) for x in (self.device, self.dtype, self.engine)]
        kinds, of_row = np.unique(np.stack(names), axis=1, return_inverse=True)
        return [(datasheet_peaks(devices[d], "bfloat16"), t, e) for d, t, e in kinds.T], of_row

    def by_kind(self, value):
        "An array with `value(peaks, dtype, engine)` for each row."
        kinds, of_row = self._kinds
        return np.array([value(*k) for k in kinds], float)[of_row]

    @cached_property
    def chip(self): return Chip(*self.by_kind(lambda p, t, e: chip_of(p, listed_device(p))).T)
    @cached_property
    def bandwidth(self): return self.by_kind(lambda p, t, e: p.peak_bandwidth)
    @cached_property
    def peak(self): return self.by_kind(lambda p, t, e: p.flops_of(t))

# -- the files ------------------------------------------------------------------------------------------------------

def tables(folder, kind, every):
    "The files of one kind as one frame, the same number of rows of each."
    import pandas as pd
    for path in sorted(folder.glob(f"*_{kind}_*.parquet")):
        device, engine = path.stem.split("_")[0], path.stem.split("_")[-1]
        frame = pd.read_parquet(path)
        step = every * max(len(frame) // 3000, 1)
        yield frame.iloc[::step].assign(gpu=device, fw=engine)

def column(frame, name, default):
    return (frame[name] if name in frame else default + 0 * frame.latency).fillna(default).to_numpy(float)

def products(folder, every=1, wanted=("bfloat16",)):
    import pandas as pd
    d = pd.concat([t[t.gemm_dtype.isin(wanted)] for t in tables(folder, "gemm", every)], ignore_index=True)
    m, n, k = (d[x].to_numpy(float) for x in "mnk")
    a, b = (d.gemm_dtype.map({f: v[i] for f, v in formats.items()}).to_numpy(float) for i in (0, 1))
    return Rows(d.gpu.to_numpy(), d.fw.to_numpy(), d.latency.to_numpy() * 1e-3, m * k * a + k * n * b + m * n * 2,
                2 * m * n * k, d.gemm_dtype.map({f: v[2] for f, v in formats.items()}).to_numpy(), d.version.to_numpy(),
                dict(m=m, n=n, k=k, a=a, b=b, format=d.gemm_dtype.to_numpy()))

def attention(folder, every=1, kind="decode"):
    import pandas as pd
    d = pd.concat(list(tables(folder, f"{kind}_attention", every)), ignore_index=True)
    d = d[~((d.gpu == "a100") & (d.fw == "trtllm"))] if kind == "decode" else d # reads its cache at 1.66 × the DRAM
    batch, heads, size = (column(d, c, v) for c, v in (("batch_size", 1), ("num_heads", 1), ("head_dim", 128)))
    kv, window = column(d, "num_key_value_heads", 0), column(d, "window_size", 0)
    kv = np.where(kv > 0, kv, heads)
    length = column(d, "isl", 1) + (column(d, "step", 0) if kind == "decode" else 0)
    seen = np.where((window > 0) & (window < length), window, length)
    item = np.where(d.kv_cache_dtype == "fp8", 1.0, 2.0)
    # Models with keys of 192 have values of 128. With 192, calls of SGLang would read at up to 1.06 of the DRAM of an
    # H100, with 128 at 0.88 as all other calls do at most 0.95; so its rows have 128. The table does not say it.
    values = np.where((size == 192) & (d.fw == "sglang"), 128.0, size)
    if kind == "decode":
        queries, pairs = np.ones(len(d)), seen
        moved = batch * kv * seen * (size + values) * item + 4 * batch * heads * size
    else:                  # keys and values come in 16 bits, and are written to the cache
        queries, pairs = length, seen * (seen + 1) / 2 + (length - seen) * seen
        moved = batch * length * size * (4 * heads + 2 * kv * (2 + item))
    return Rows(d.gpu.to_numpy(), d.fw.to_numpy(), d.latency.to_numpy() * 1e-3, moved,
                4 * batch * heads * size * pairs,
                np.where(d.attn_dtype == "fp8", "float8_e4m3fn", "bfloat16"), d.version.to_numpy(),
                dict(batch=batch, heads=heads, kv_heads=kv, queries=queries, keys=length))

# -- times ----------------------------------------------------------------------------------------------------------

def limit(rows, least=None):
    "The level roofs, with all bytes in the caches that can be."
    def of(peaks, *_): return [v for l in peaks.memory for v in (l.capacity or 0, l.bandwidth)]
    levels, kept, times = rows.by_kind(of), 0, [rows.flops / rows.peak]
    for i in range(0, levels.shape[1], 2):
        times.append(np.maximum((rows.moved if least is None else least) - kept, 0) / levels[:, i + 1])
        kept = kept + levels[:, i]
    return np.max(times, axis=0)

def repeated(rows, kind):
    "The rows in a run that finds in the caches what they can hold: with the bytes that take DRAM as long."
    name = "attention_bytes" if kind in attention_names else "operands"
    capacity, l2, main = rows.by_kind(lambda p, *_: (p.memory[0].capacity, *bandwidths_of(p, name))).T
    served = np.minimum(rows.moved, capacity)
    return replace(rows, moved=np.maximum(rows.moved - served, served / l2 * main))

def estimator(rows): return np.maximum(rows.flops / 2 / 0.75 / rows.peak, rows.moved / rows.bandwidth)

def rates(rows, constants, of):
    share = constants[of].value / shipped[of].value
    return share * rows.by_kind(lambda p, t, e: compute_rate(p, t, of=of))

def time_of_products(rows, constants):
    s, chip = rows.shape, rows.chip
    memory = rows.moved / (constants["operands"].value * rows.bandwidth)
    took = product_time(s["m"], s["n"], s["k"], np.ones(len(s["m"])), (s["a"], s["b"]), memory,
                        rates(rows, constants, "tensor"), chip, constants)
    return took + constants["start"].value / chip.clock

# An engine quantizes the activations of a product by kernels of its own, which read 16 bits and write fewer: cycles to
# start and end (products in fp8 on H100, L40S and B200, without the product itself), and the share of the bandwidth
scaling_cycles = dict(vllm=8000, trtllm=20000)
scaling = model.Constant(0.5, "", "of the bandwidth, for a kernel that quantizes activations",
                         "products in fp8, int8 and nvfp4")
shipped = model.constants | dict(scaling=scaling)        # and what is fitted beside them

def scaling_time(m, k, size, bandwidth, clock, engine, share):
    "The time to quantize m × k activations to `size` B each; of an engine that is not known between the two."
    cycles = scaling_cycles.get(engine, np.sqrt(np.prod([*scaling_cycles.values()])))
    return cycles / clock + m * k * (2 + size) / (share * bandwidth)

def time_of_quantized(rows, constants):
    s, chip, took = rows.shape, rows.chip, time_of_products(rows, constants)
    engines = np.where(s["format"] == "sq", "", rows.engine)          # on which the cycles were not found
    for engine in set(engines):
        at = engines == engine
        took[at] += scaling_time(s["m"], s["k"], s["a"], rows.bandwidth, chip.clock, engine,
                                 constants["scaling"].value)[at]
    return took

def time_of_attention(rows, constants):
    def kernel_on(peaks, dtype, engine):
        return attention_kernel(engine, peaks.environment["architecture"], constants)
    kernel = AttentionKernel(*rows.by_kind(kernel_on).T)
    memory = rows.moved / (constants["attention_bytes"].value * rows.bandwidth)
    return attention_time(**rows.shape, flops=rows.flops, memory_s=memory,
                          rate=rates(rows, constants, "attention_tensor"),
                          chip=rows.chip, kernel=kernel, constants=constants)

# -- the fit --------------------------------------------------------------------------------------------------------

def loss(rows, took):
    "The mean of the errors in ln, none more than 1, every device with the same weight."
    error = np.minimum(abs(np.log(took / rows.measured)), 1.0)
    return np.mean([error[rows.device == d].mean() for d in set(rows.device)])

def fitted(rows, formula, names, constants):
    "The constants of these names that lose least, found one after another in steps that shrink."
    best = loss(rows, formula(rows, constants))
    for step in (0.3, 0.12, 0.05, 0.02):
        moved = True
        while moved:
            moved = False
            for name in names:
                for factor in (np.exp(step), np.exp(-step)):
                    c = constants[name]
                    tried = constants | {name: c._replace(value=c.value * factor)}
                    found = loss(rows, formula(rows, tried))
                    if found < best - 1e-5: best, constants, moved = found, tried, True
    return constants

def left_out(rows, formula, names, constants):
    "Each device's times by constants that were fitted on the others."
    took = np.zeros(len(rows.measured))
    for device in sorted(set(rows.device)):
        own = rows.device == device
        took[own] = formula(rows.where(own), fitted(rows.where(~own), formula, names, constants))
    return took

def share_left_out(rows, least):
    took = np.zeros(len(least))
    for device in set(rows.device):
        own = rows.device == device
        took[own] = least[own] / np.median(least[~own] / rows.measured[~own])
    return took

# -- the tables -----------------------------------------------------------------------------------------------------

def error(rows, took): return np.median(abs(took / rows.measured - 1))

def over_devices(rows, took):
    "The mean of the median errors of the devices."
    return np.mean([error(rows.where(rows.device == d), took[rows.device == d]) for d in set(rows.device)])

def table(title, rows, formula, names):
    "Print the errors on each device, left out of the fit, and their mean."
    least = limit(rows)
    times = least, share_left_out(rows, least), estimator(rows), left_out(rows, formula, names, shipped)
    print(f"\n{title:28}{'rows':>7}{'limit':>9}{'share':>9}{'estim.':>9}{'left out':>9}", flush=True)
    for d in sorted(set(rows.device)):
        at = rows.device == d
        print(f"{d:28}{at.sum():>7}", *(f"{error(rows.where(at), t[at]):>8.1%}" for t in times))
    print(f"{'mean of the devices':35}", *(f"{over_devices(rows, t):>8.1%}" for t in times), flush=True)

product_names = ["start", "operands", "feed", "split"]
def all_products(folder, every):
    table("products in bfloat16", products(folder, every), time_of_products, product_names)
    table("quantized products", products(folder, every, ("fp8", "nvfp4", "sq")), time_of_quantized,
          ["eight_bits", "scaling"])

attention_names = dict(decode=["attention_join", "attention_bytes", "attention_step"],
                       prefill=["attention_start", "attention_bytes", "attention_block", "attention_tensor",
                                "attention_sglang", "attention_trtllm"])
def all_attention(folder, every):
    for kind, names in attention_names.items():
        table(f"{kind} attention", attention(folder, every, kind), time_of_attention, names)
