"""Predictions of training steps against measurements that others published: the RTX 3090 training table of timm.

    python tests/benchmarks/training.py [--cache DIR] [--sample N] [--kept] [--rows FILE]

Reads ../shared/data (or $FASTERBENCH_SHARED/data). A model takes some 20 s to count the first time; counts are kept in
DIR. `--sample N` takes the models whose checksum N divides. The spread of steps was found on one half of the table's
models, drawn with the seed 20 ("fit"); what is claimed is the other half. No other constant was found here.
The table was made with timm of 2022: attention in products and a softmax, no fast norms, channels first,
`torch.optim.SGD` with momentum tensor by tensor, gradients set to zero, a wait for the device after each step (its
`benchmark.py`). It ran under PyTorch 1.12 and cuDNN 8.3, whose forwards of the same models on the same board take 1.02
(VGG-11) to 1.18 times (ResNet-50) those of PyTorch 2.4, by its own tables of inference: the expected times are of
2.4."""
import argparse, csv, gzip, json, math, pickle, random, re, sys, tempfile, warnings, zlib
from pathlib import Path
from statistics import median

import torch

from fasterbench.predicting.expected import doubt_of, interval, spread
from fasterbench.roofs.datasheet import datasheet_peaks
from fasterbench.work.count import count_work
from fasterbench.work.target import Target
from fasterbench.work.trace import Call, Touch

sys.path.insert(0, str(Path(__file__).parent))
from predict import chip, shared, timm_model, timm_times

# timed with in-place batch norm, which saves the results of activations; today's timm has another program
other_programs = re.compile("tresnet")

device, room = "NVIDIA GeForce RTX 3090", 24 * 2**30

def table(sample=1):
    "Rows of the table: name, image size, batch, seconds of a step, millions of parameters."
    with open(shared / "timm" / "benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv") as f:
        for r in csv.DictReader(f):
            if zlib.crc32(r["model"].encode()) % sample or other_programs.match(r["model"]): continue
            batch = int(r["train_batch_size"])
            yield r["model"], int(r["train_img_size"]), batch, batch / float(r["train_samples_per_sec"]), float(
                r["param_count"])

def made(name, size):
    "The model as it was timed: attention in products and a softmax, no fast norms."
    from timm.layers import set_fused_attn
    set_fused_attn(False)
    return timm_model(name, size, fast=False)

def loss(out):
    out = out[0] if isinstance(out, tuple) else out
    return torch.nn.functional.cross_entropy(out, torch.zeros(len(out), dtype=torch.long, device=out.device))

def counted(name, size, batch):
    "The operators of a step under float16 autocast, and its memory."
    model = made(name, size)
    work = count_work(model, torch.empty(batch, 3, size, size, device="meta"), backward=True, loss=loss,
                      optimizer=torch.optim.SGD(model.parameters(), 1e-4, 0.9, nesterov=True, foreach=False),
                      target=Target("cuda", "sm86", torch.float16))
    def touches(ts): return [(t.storage, t.region, t.bytes) for t in ts]
    calls = [(c.part, c.phase, c.operator, c.category, c.flops, c.contraction_flops, touches(c.reads),
              touches(c.writes),
              c.shapes, c.dtypes, c.dtype, c.transposed) for c in work.trace]
    return dict(calls=calls, peak=work.memory.peak_bytes, parts=work.memory.parts, place=work.memory.place)

def kept(cache, name, size, batch):
    path = cache / f"{name}-{size}-{batch}.pkl.gz"
    if not path.exists():
        found = counted(name, size, batch)
        with gzip.open(path, "wb", 3) as f: pickle.dump(found, f)
    with gzip.open(path) as f: found = pickle.load(f)
    found["calls"] = [Call(part, 0, phase, *c[:4], [Touch(*t) for t in c[4]], [Touch(*t) for t in c[5]], *c[6:9],
                           transposed=c[9] if len(c) > 9 else False)
                      for part, phase, *c in found["calls"]]
    return found

def half_of_fit(seed=20):
    "Names of half of the table's models, drawn with a seed."
    names = sorted(r[0] for r in table())
    return set(random.Random(seed).sample(names, len(names) // 2))

def predicted(calls, peaks, measured):
    "Limit, expected time and interval. The limit is tried from main memory; where that is broken, level by level."
    times = timm_times(calls, peaks, measured)
    limit, expected = sum(t.limit for t in times), sum(t.expected for t in times)
    doubt = doubt_of([(c, t.expected) for c, t in zip(calls, times)], peaks, chip(peaks))
    return limit, expected, interval(expected, limit, doubt), math.sqrt(doubt.deviation**2 - spread["step"].value**2)

def summary(title, rows):
    ratio = [r["expected"] / r["measured"] for r in rows]
    inside = sum(r["low"] <= r["measured"] <= r["high"] for r in rows)
    print(f"{title:12}{len(rows):4} models, {sum(r['limit'] > r['measured'] for r in rows)} limits above; expected / "
          "measured "
          f"median {median(ratio):.2f}, error {median(abs(x - 1) for x in ratio):.0%}, inside the interval "
          f"{inside / len(rows):.0%}; "
          f"counted peak above 24 GiB {sum(r['peak'] > room for r in rows)}, median "
          f"{median(r['peak'] for r in rows) / 2**30:.1f} GiB")

def spread_of_steps(rows):
    "Print what the rows of the fit are off by beyond what their families say: `spread['step']`."
    squares = [math.log(r["expected"] / r["measured"])**2 for r in rows]
    own = [r["families"]**2 for r in rows]
    if rows: print(f"spread of steps: {math.sqrt(max(sum(squares) - sum(own), 0) / len(rows)):.3f}")

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "fasterbench-training")
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--kept", action="store_true", help="leave out models whose counts are not kept yet")
    parser.add_argument("--rows", type=Path, help="write the rows here, as JSON")
    given = parser.parse_args()
    given.cache.mkdir(exist_ok=True, parents=True)
    warnings.simplefilter("ignore")
    peaks, rows = datasheet_peaks(device, "float16"), []
    print(f"{'model':36}{'batch':>6}{'measured':>10}{'limit':>10}{'expected':>10}{'interval':>18}{'peak':>10}")
    for name, size, batch, measured, millions in sorted(table(given.sample), key=lambda r: zlib.crc32(r[0].encode())):
        if given.kept and not (given.cache / f"{name}-{size}-{batch}.pkl.gz").exists(): continue
        try: found = kept(given.cache, name, size, batch)
        except Exception as error:
            print(f"    not counted: {name}: {type(error).__name__} {str(error)[:100]}", flush=True); continue
        if abs(found["parts"]["weights"] / 4e6 - millions) > 0.01 * millions:       # weights are float32
            print(f"    left out: {name} has {found['parts']['weights'] / 4e6:.2f} million parameters today, "
                  f"{millions} in the table", flush=True)
            continue
        limit, expected, (low, high), families = predicted(found["calls"], peaks, measured)
        rows.append(dict(model=name, size=size, batch=batch, measured=measured, limit=limit, expected=expected,
                         low=low, high=high,
                         families=families, peak=found["peak"], parts=found["parts"], place=found["place"]))
        print(f"{name:36}{batch:6}" + "".join(f"{t * 1e3:7.1f} ms" for t in (measured, limit, expected)) +
              f"{low * 1e3:8.0f}–{high * 1e3:.0f} ms{found['peak'] / 2**30:7.1f} GiB", flush=True)
    fit = half_of_fit()
    for title, half in (("fit", True), ("other half", False)):
        if own := [r for r in rows if (r["model"] in fit) == half]: summary(title, own)
    spread_of_steps([r for r in rows if r["model"] in fit])
    if given.rows: given.rows.write_text(json.dumps(rows))

if __name__ == "__main__": main()
