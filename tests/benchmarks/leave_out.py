"""Expected times where something was left out: a device, a family, a data set; and what each constant buys.

    python tests/benchmarks/predict.py programs kernel_tables servers constants [--cache DIR] [--kept]
        [--every N] [--sample N] [--rows FILE] [--record FILE]

The constants are the same for all devices, families and data sets. Where something is left out, they are fitted
again on the rest: those of AIConfigurator as `kernels.py` fits them, and those of programs, models and single
kernels together, by least absolute errors in logarithms, from how each constant moves each row, held near what they
are by as much as a factor of 1.35. Those of servers were chosen and not fitted: there a factor moves, the median of
measured over expected of the rest. Intervals move with it. `--every` thins all but timm, which `--sample` draws.
Families are those of kernels, of the architecture of a model (the first word of its name), of the engine, or of a
server's model and engine. `above`: rows faster than their limit, by the fastest trial that is published. `needs`: the
deviation that holds 80 % of the rows.
`first`: inside the interval of a first run alone, whose lower end no repeated run moves. Where a generation is left
out, its interval is as wide as the library makes it on an architecture that nothing was fitted on; `narrow`: without
that. `--record` keeps the lines of these tables, without the rows, for the page of proof."""
import csv, gzip, math, operator, pickle, re, tempfile, zlib
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
from fastcore.basics import groupby

import kernels as singles
import predict as proof
from predict import chip
from fasterbench.predicting import expected as model
from fasterbench.roofs.datasheet import datasheet_peaks, listed_device

class Row(NamedTuple):
    "One measurement beside what is expected, s."
    set: str
    device: str
    family: str
    name: str
    measured: float
    fastest: float  # Of its trials
    limit: float
    expected: float
    low: float      # Of the 80 % interval
    high: float

# -- data sets: each makes a function that finds its rows by the constants as they are at that time -----------------

def row_of(of_set, device, family, name, measured, fastest, parts, limit, peaks):
    "The row of a program, or of one operator: of `parts`, operators with their times in a first and a repeated run."
    total, cached = (sum(p[i] for p in parts) for i in (1, 2))
    doubt = model.doubt_of([p[:2] for p in parts], peaks, chip(peaks), row=len(parts) == 1)
    ends = model.interval(total, limit, doubt, cached)
    return Row(of_set, device, family, name, measured, fastest, limit, total, *ends)

class Distinct(NamedTuple):
    "Operators of a program that differ, so that each is timed once."
    calls: list
    often: list    # How often each runs
    passed: list   # What each level of memory serves of it in a first run, B, and in a repeated one

    def parts(self, peaks):
        "Each with its expected time, at the traffic that it has in its program."
        moved = proof.from_main_memory(self.calls, peaks)
        with patch.object(model, "traffic_of_runs", lambda *_: self.passed):
            times = model.expected_operator_times(self.calls, moved, peaks, chip(peaks))
        return [(c, t.expected * n, t.cached * n) for c, n, t in zip(self.calls, self.often, times)]

def distinct(calls, peaks):
    found = {}
    for c, *passed in zip(calls, *model.traffic_of_runs(calls, [l.capacity for l in peaks.memory[:-1]])):
        sizes = tuple(tuple(t.bytes for t in ts) for ts in (c.reads, c.writes))
        at = c.operator, c.shapes, c.dtypes, c.channels_last, c.transposed, sizes, *map(round, sum(passed, []))
        found.setdefault(at, [c, 0, *passed])[1] += 1
    calls, often, *passed = zip(*found.values())
    return Distinct(calls, often, passed)

def timm(cache, every):
    found = []
    for file, device in (("rtx3090", "NVIDIA GeForce RTX 3090"), ("rtx4090", "NVIDIA GeForce RTX 4090")):
        peaks = datasheet_peaks(device, "float16")
        with open(proof.shared / "timm" / f"benchmark-infer-amp-nchw-pt240-cu124-{file}.csv") as f:
            table = list(csv.DictReader(f))
        for r in table:
            key = r["model"], int(r["infer_img_size"]), int(r["infer_batch_size"])
            there = (cache / "{}-{}-{}.pkl.gz".format(*key)).exists()
            drawn = zlib.crc32(key[0].encode()) % proof.sample == 0
            if not drawn or proof.joined.search(key[0]) or proof.only_kept and not there: continue
            calls, measured = proof.timm_calls(cache, *key), key[2] / float(r["infer_samples_per_sec"])
            limit = sum(t.limit for t in proof.timm_times(calls, peaks, measured, False))
            found.append((device, peaks, key, distinct(calls, peaks), measured, limit))
    def rows():
        for device, peaks, key, own, measured, limit in found:
            name, family = f"{key[0]} {key[1]}", re.match("[a-z]+", key[0])[0]
            yield row_of("timm", device, family, name, measured, measured, own.parts(peaks), limit, peaks)
    return rows

def kernelbench(cache, every):
    programs = list(proof.kernelbench())[::every]
    def rows():
        for number, name, calls, r in programs:
            for key, device in (("sxm", "NVIDIA H100 80GB HBM3"), ("pcie", "NVIDIA H100 PCIe")):
                peaks = datasheet_peaks(device, "float32")
                times = model.expected_operator_times(calls, proof.from_main_memory(calls, peaks), peaks, chip(peaks),
                                                      frozenset(["convolution", "recurrent"]))
                parts = [(c, *t[1:]) for c, t in zip(calls, times)]
                family = model.family_of(max(parts, key=lambda p: p[1])[0])
                mean, least = (float(r[f"h100_{key}_ms_{k}"]) * 1e-3 for k in ("mean", "min"))
                yield row_of("KernelBench", device, family, name, mean, least, parts, sum(t.limit for t in times),
                             peaks)
    return rows

def neusight(cache, every):
    found = []
    for file in ("linear", "bmm", "softmax", "ln", "elem"):
        with gzip.open(proof.shared / "neusight" / f"{file}.csv.gz", "rt") as f:
            table = list(csv.DictReader(f))[::8 * every]
        found += [(r, proof.neusight_call(r["OPName"], r)) for r in table]
    def rows():
        for r, call in found:
            peaks, took = datasheet_peaks(r["Device"]), float(r["Latency"]) * 1e-3
            t = proof.warm(call, peaks)
            yield row_of("NeuSight", r["Device"], model.family_of(call), r["OPName"], took, took,
                         [(call, *t[1:])], t.limit, peaks)
    return rows

def whole_models(cache, every):
    path = cache / "models.csv.pkl"
    if proof.only_kept and not path.exists(): return list
    if not path.exists(): path.write_bytes(pickle.dumps(list(proof.counted_models())))
    found = []
    for device, key, measured, calls in pickle.loads(path.read_bytes())[::every]:
        peaks = datasheet_peaks(device)
        limit = sum(t.limit for t in proof.model_times(calls, peaks))
        found.append((device, peaks, key, distinct(calls, peaks), measured, limit))
    def rows():
        for device, peaks, key, own, measured, limit in found:
            yield row_of("models.csv", device, key[0], " ".join(map(str, key)), measured, measured, own.parts(peaks),
                         limit, peaks)
    return rows

def training(cache, every):
    "Steps whose counts `training.py` has kept."
    import training as steps
    folder, peaks, found = ((Path(tempfile.gettempdir()) / "fasterbench-training",
                             datasheet_peaks(steps.device, "float16"), []))
    for name, size, batch, measured, millions in list(steps.table())[::every]:
        if not (folder / f"{name}-{size}-{batch}.pkl.gz").exists(): continue
        counted = steps.kept(folder, name, size, batch)
        if abs(counted["parts"]["weights"] / 4e6 - millions) > 0.01 * millions: continue
        limit = steps.predicted(counted["calls"], peaks, measured)[0]
        found.append((name, distinct(counted["calls"], peaks), measured, limit))
    def rows():
        for name, own, measured, limit in found:
            yield row_of("training", steps.device, re.match("[a-z]+", name)[0], name, measured, measured,
                         own.parts(peaks), limit, peaks)
    return rows

def tables(cache, every):
    folder = proof.shared / "aiconfigurator"
    kinds = [("products", "matmul", singles.products(folder, 4 * every), singles.time_of_products),
             ("quantized", "quantized", singles.products(folder, 4 * every, ("fp8", "nvfp4", "sq")),
              singles.time_of_quantized),
             *((kind, "attention", singles.attention(folder, 4 * every, kind), singles.time_of_attention)
               for kind in ("decode", "prefill"))]
    def rows():
        for kind, family, found, formula in kinds:
            constants = singles.shipped | model.constants
            took, again = (formula(r, constants) for r in (found, singles.repeated(found, kind)))
            wide = math.exp(model.z80 * model.spread[family].value)
            columns = found.device, found.engine, found.version
            low = np.maximum(np.minimum(took / wide, again), least := singles.limit(found))
            times = found.measured, found.measured, least, took, low, took * wide
            for device, engine, version, *row in zip(*columns, *(t.tolist() for t in times)):
                yield Row(kind, singles.devices[device], engine, version, *row)
    return rows

def server_rows(cache, every):
    import serve as language
    from fasterbench.serving.serve_times import server_spread
    runs, wide = language.server_runs(3 * every)[0], math.exp(model.z80 * server_spread["decode"].value)
    def rows():
        for r in runs:
            time = sum(r["parts"].values())
            yield Row("servers", r["device"], f"{r['model']}, {r['engine']}",
                      f"{r['precision']} {r['batch']} {r['version']}", r["measured"],
                      r["measured"], r["limit"], time, max(time / wide, r["limit"]), time * wide)
    return rows

# -- the fit --------------------------------------------------------------------------------------------------------

# Values with which a constant does nothing: work takes no time, or the whole of the roof. What has none takes 0.75 or
# 1.33 times
nothing = dict(tensor=1, vector=1, amd_matrix=1, sustained=1, operands=1, feed=1e9, start=1e-9, round=1e-9,
               split=1e15, eight_bits=1, four_bits=1,
    attention_start=1e-9, attention_join=1e-9, attention_bytes=1, attention_step=1e-9, attention_block=1e-9,
               attention_tensor=1,
    attention_sglang=1, attention_trtllm=1, pointwise=1, pointwise_before=1, transposed=0.88, boost=1, convolved=1,
               attention_pytorch=1, norm_row=1e-9,
    resize=1e-12, depthwise_last=1e-9, depthwise_large=1e-9, rows=1, reduction=1, scan=1, norm_block=1e9,
               statistics_block=1e9,
    relayout=1e9, unaligned=1, depthwise=1e-9, depthwise_tap=1e-9, pooled=1e-9, pooled_tap=1e-9, cache=1, launch=1e-9)

# Those that AIConfigurator decides, and `kernels.py` fits
of_tables = {"operands", "feed", "start", "round", "split", "eight_bits", "four_bits", "attention_start",
             "attention_join", "attention_bytes",
             "attention_step", "attention_block", "attention_tensor", "attention_sglang", "attention_trtllm",
             "sustained"}
fitted_here = [n for n in nothing if n not in of_tables]

def with_constant(name, value, make):
    "The rows that `make` returns while a constant has another value."
    own = model.constants[name]
    model.constants[name] = own._replace(value=value)
    try: return make()
    finally: model.constants[name] = own

def slopes(rows, make):
    "How the logarithm of each row's expected time follows that of each constant."
    def moved(name):
        return [math.log(r.expected) for r in with_constant(name, model.constants[name].value * 1.05, make)]
    base = np.array([math.log(r.expected) for r in rows])
    return np.array([np.array(moved(n)) - base for n in fitted_here]).T / math.log(1.05)

def refitted(rows, slope, held=0.3):
    "By how much, in logarithms, each constant moves to fit `rows` best: least absolute errors, every data set alike."
    y, sets = -np.array([share(r) for r in rows]), [r.set for r in rows]
    weight, moves = np.array([1 / sets.count(s) for s in sets]), np.zeros(slope.shape[1])
    for _ in range(20):
        w = weight / np.maximum(abs(y - slope @ moves), 0.02)
        moves = np.linalg.solve((slope.T * w) @ slope + np.eye(len(moves)) / held**2 / 10, (slope.T * w) @ y)
    return moves

def is_of_fit(row):
    "Whether a row is of the half that constants are found on: half of timm's models on one board; all of other sets."
    return row.set != "timm" or row.device.endswith("3090") and zlib.crc32(row.name.split(" ")[0].encode()) % 2 == 0

def fit(cache, every):
    "The constants that the rows of the fit ask for, beside those that stand."
    makes = [make(cache, every) for make in (timm, kernelbench, neusight)]
    def own_rows(): return [r for rows in makes for r in rows()]
    rows = own_rows()
    slope, chosen = slopes(rows, own_rows), [i for i, r in enumerate(rows) if is_of_fit(r) and is_measured(r)]
    moves = refitted([rows[i] for i in chosen], slope[chosen])
    for name, move in zip(fitted_here, moves):
        print(f"{name:20}{model.constants[name].value:>10.3g}{model.constants[name].value * math.exp(move):>10.3g}")
    now = [r._replace(expected=r.expected * math.exp(m), low=r.low * math.exp(m), high=r.high * math.exp(m))
           for r, m in zip(rows, slope @ moves)]
    print(heading)
    for name in ("timm", "KernelBench", "NeuSight"):
        for half, title in ((True, "the half of the fit"), (False, "the rest")):
            at = [i for i, r in enumerate(rows) if r.set == name and is_of_fit(r) == half]
            line([rows[i] for i in at], name, title, "as it is")
            line([now[i] for i in at], name, title, "refitted")

# -- what is left out -----------------------------------------------------------------------------------------------

def is_measured(row): return row.high / row.expected < 2.5             # else it is a range from the limit

def version(row): return (row.family.split(", ")[1], row.name.split(" ")[-1]) if row.set == "servers" else None
def of_server(which): return lambda r: r.family.split(", ")[which] if r.set == "servers" else None
# Of servers: what is left out
of_servers = {"a device": (lambda r: r.device, lambda r: r.set), "a model": (of_server(0), lambda r: r.set),
              "an engine": (of_server(1), lambda r: r.set),
              "an engine's version": (version, lambda r: r.set), "model and engine": (None, lambda r: r.set)}

def share(row): return math.log(row.expected / row.measured)

def apart(row, other, key):
    "Whether `other` stays where the key of `row` is left out; without a key, a model and an engine are."
    if key: return key(other) != key(row)
    return not set(row.family.split(", ")) & set(other.family.split(", "))

def scaled(rows, key, common):
    "The rows, with the factor of those that have another key and the same of what is common."
    groups, factors = {}, {}
    for r in rows: groups.setdefault(common(r), []).append(r)
    for r in rows:
        at = common(r), key(r) if key else r.family
        if at not in factors: factors[at] = [share(o) for o in groups[at[0]] if apart(r, o, key) and is_measured(o)]
        if len(factors[at]) < 3: continue
        f = math.exp(-median(factors[at]))
        yield r._replace(expected=r.expected * f, low=max(r.low * f, r.limit), high=max(r.high * f, r.limit))

record = []                                             # The lines that were printed

def figures(rows):
    """Rows, those above their limit, median errors of limit and expected, bias, the deviation that 80 % need, share
    inside, the same of a first run, and both median widths."""
    logs, first = [share(r) for r in rows], [max(r.expected**2 / r.high, r.limit) for r in rows]
    return dict(rows=len(rows), above=sum(r.limit > r.fastest for r in rows),
                limit=median(1 - r.limit / r.measured for r in rows), error=median(abs(math.exp(x) - 1) for x in logs),
                bias=math.exp(median(logs)), needs=float(np.quantile(np.abs(logs), 0.8)) / model.z80,
                inside=sum(r.low <= r.measured <= r.high for r in rows) / len(rows),
                first=sum(l <= r.measured <= r.high for l, r in zip(first, rows)) / len(rows),
                width=median(r.high / r.low for r in rows),
                width_first=median(r.high / l for l, r in zip(first, rows)))

heading = (f"{'':46}{'rows':>6}{'above':>6}{'limit':>7}{'error':>7}{'bias':>6}{'needs':>7}{'inside':>8}{'first':>7}"
           f"{'p90÷p10':>9}{'first':>7}")
def line(rows, of_set, what="as shipped", group=""):
    "Print and record one line, where there are rows."
    if not rows: return
    found = figures(rows)
    record.append(dict(set=of_set, what=what, group=group) | found)
    columns = "{:>6}{:>6}{:>7.1%}{:>7.1%}{:>6.2f}{:>7.2f}{:>8.0%}{:>7.0%}{:>9.2f}{:>7.2f}".format(*found.values())
    print(f"{f'{of_set}, {what} {group}'[:46]:46}{columns}", flush=True)

def moved(row, by):
    "A row whose expected time is another, by a difference in logarithms."
    f = math.exp(by)
    return row._replace(expected=row.expected * f, low=max(row.low * f, row.limit), high=max(row.high * f, row.limit))

def widened(row):
    "A row with the interval of an architecture that nothing was fitted on."
    own = math.log(row.high / row.expected) / model.z80
    f = math.exp(model.z80 * (math.hypot(own, model.spread["generation"].value) - own))
    return row._replace(low=max(min(row.low, row.expected**2 / row.high / f), row.limit), high=row.high * f)

def fitted_again(rows, slope, key, stays=operator.ne):
    "The rows, each by the constants of a fit on the rows whose key `stays` beside its own: those of another key."
    measured = [i for i, r in enumerate(rows) if is_measured(r)]
    for left_out in sorted({key(r) for r in rows}):
        rest = [i for i in measured if stays(key(rows[i]), left_out)]
        if not rest: continue
        moves = refitted([rows[i] for i in rest], slope[rest])
        yield from (moved(r, slope[i] @ moves) for i, r in enumerate(rows) if key(r) == left_out)

def tables_again(every):
    "Rows of the tables by constants that were fitted without their device, and without their engine."
    folder = proof.shared / "aiconfigurator"
    formulas = dict(products=(singles.products(folder, 4 * every), singles.time_of_products,
                              ["start", "operands", "feed", "split"]),
                    quantized=(singles.products(folder, 4 * every, ("fp8", "nvfp4", "sq")), singles.time_of_quantized,
                               ["eight_bits", "scaling"]),
                    **{kind: (singles.attention(folder, 4 * every, kind), singles.time_of_attention,
                              singles.attention_names[kind])
                       for kind in ("decode", "prefill")})
    again, start = {}, singles.shipped | model.constants
    for kind, (rows, formula, names) in formulas.items():
        thin, as_shipped = np.arange(len(rows.measured)) % 4 == 0, formula(rows, start)
        order = np.array([generation(singles.devices[d]) for d in rows.device])
        for what, labels, stays in (("a device", rows.device, np.not_equal), ("a family", rows.engine, np.not_equal),
                                    ("a version", rows.version, np.not_equal),
                                    ("newer generations", order, np.less)):
            took = np.full(len(as_shipped), np.nan)
            for label in sorted(set(labels)):
                own, rest = labels == label, thin & stays(labels, label)
                if rest.any():
                    took[own] = formula(rows.where(own), singles.fitted(rows.where(rest), formula, names, start))
            again[kind, what] = np.log(took / as_shipped)
    return again

of_fit = (timm, kernelbench, neusight, whole_models)          # data sets that share constants

def generation(device):
    "A number that grows with the generation of a device: 60 to 100 of NVIDIA's, 0x908 and 0x90a of AMD's."
    name = listed_device(datasheet_peaks(device)).architecture
    return int(name.removeprefix("sm")) if name.startswith("sm") else int(name.removeprefix("gfx"), 16)

def is_older(one, other): return (one >= 0x900) == (other >= 0x900) and one < other

keys = {"a device": (lambda r: r.device, operator.ne), "a family": (lambda r: (r.set, r.family), operator.ne),
        "a data set": (lambda r: r.set, operator.ne), "a generation": (lambda r: generation(r.device), operator.ne),
        "newer generations": (lambda r: generation(r.device), is_older)}

def left_out(found, again):
    "Print every data set as shipped, with each thing left out, and by family and device; return the rows."
    print(heading)
    for of_set, rows in groupby(found, "set").items():
        line(rows, of_set)
        for what in sorted(w for s, w in again if s == of_set):
            own = [r for r in again[of_set, what] if is_measured(r)]
            if "generation" in what:
                line(own, of_set, f"{what}, narrow")
                own = [*map(widened, own)]
                for device, rest in groupby(own, "device").items(): line(rest, of_set, what, device)
            line(own, of_set, what)
        for by in ("device", "family", lambda r: f"{r.device}, {r.family}"):
            for group, own in groupby(rows, by).items(): line(own, of_set, group=group)
    return found

def programs(cache, every):
    makes, again = [make(cache, every) for make in of_fit], {}
    def shared_rows(): return [r for rows in makes for r in rows()]
    shared = shared_rows()
    slope = slopes(shared, shared_rows)
    for what, (key, stays) in keys.items():
        for r in fitted_again(shared, slope, key, stays): again.setdefault((r.set, what), []).append(r)
    return left_out(shared, again)

def kernel_tables(cache, every):
    found, again = list(tables(cache, every)()), {}
    by_kind = groupby(found, "set")
    for (kind, what), moves in tables_again(every).items():
        again[kind, what] = [moved(r, by) for r, by in zip(by_kind[kind], moves) if not math.isnan(by)]
        if what == "a device": again[kind, "a generation"] = again[kind, what]     # each has a generation of its own
    return left_out(found, again)

def servers(cache, every):
    rows = list(server_rows(cache, every)())
    return left_out(rows, {("servers", what): list(scaled(rows, *how)) for what, how in of_servers.items()})

# -- what each constant buys ----------------------------------------------------------------------------------------

def constants(cache, every):
    "The error of the rows that a constant changes by a percent, without it and with it."
    makes = [make(cache, n * every) for make, n in (
        (timm, 1), (training, 1), (kernelbench, 1), (neusight, 2), (tables, 8))]
    def all_rows(): return [r for rows in makes for r in rows()]
    full = all_rows()
    print(f"{'constant':20}{'value':>8}{'rows':>7}{'with':>8}{'without':>9}{'inside':>8}{'without':>9}  data sets")
    for name, value in nothing.items():
        own, rows = model.constants[name], with_constant(name, value, all_rows)
        changed = [(a, b) for a, b in zip(full, rows) if abs(b.expected / a.expected - 1) > 0.01 and is_measured(a)]
        if not changed: print(f"{name:20}{own.value:>8.3g}      0"); continue
        errors = [median(abs(math.exp(share(pair[i])) - 1) for pair in changed) for i in (0, 1)]
        by_set = {}
        for a, b in changed: by_set.setdefault(a.set, []).append((a, b))
        each = ", ".join(
            f"{n} {median(abs(math.exp(share(a)) - 1) for a, _ in p):.0%} → "
            f"{median(abs(math.exp(share(b)) - 1) for _, b in p):.0%} ({len(p)})"
                         for n, p in by_set.items())
        inside = [sum(r.low <= r.measured <= r.high for r in own_rows) / len(changed) for own_rows in zip(*changed)]
        print(f"{name:20}{own.value:>8.3g}{len(changed):>7}{errors[0]:>8.1%}{errors[1]:>9.1%}"
              f"{inside[0]:>8.0%}{inside[1]:>9.0%}  {each}", flush=True)
