"""What `serve` says of language models against what others published.

    python tests/benchmarks/serve.py [servers] [gptfast] [attention] [--every N]

servers: published runs of servers beside limit and expected time per token, and what each term is worth.
gptfast: the table of gpt-fast's README (tokens/s and GB/s of weights, batch 1) from configurations alone.
attention: decode attention of ../shared/data/aiconfigurator (or $FASTERBENCH_SHARED/data) under the level roofs."""
import argparse, os
from pathlib import Path

import torch

from fasterbench.serving.serve import least_memory_time, serve
from fasterbench.roofs.datasheet import datasheet_peaks

root = Path(__file__).resolve().parents[2]
shared = Path(os.environ.get("FASTERBENCH_SHARED", root.parent / "shared")) / "data"

# -- servers --------------------------------------------------------------------------------------------------------

configs = {"meta-llama/Llama-3.1-70B": "llama3.1-70b", "openai/gpt-oss-120b": "gpt-oss-120b",
           "Qwen/Qwen3-32B": "qwen3-32b",
           "meta-llama/Llama-3.1-8B-Instruct": "llama3.1-8b"}
systems = dict(h100_sxm="NVIDIA H100 80GB HBM3", h200_sxm="NVIDIA H200", b200_sxm="NVIDIA B200", gb200="NVIDIA GB200")

def server_runs(every=1, lengths=()):
    """Published runs, all or those with `lengths` of prompt and answer: dicts of what ran, its measured time per
    token, its limit, and the parts of the expected time.

    Left out, and counted by their reason: more than 8 devices for a layer, a model and cache that do not fit, and
    requests that wait: where a first token takes longer than half of the prompts of all requests, they do not all
    run at once."""
    import csv
    from functools import cache
    from fasterbench.serving import serve as module
    counted = cache(lambda model, prompt, new: module._counted(shared / "configs" / model, prompt, new))
    with open(shared / "aiconfigurator" / "servers.csv") as f:
        table = [r for r in csv.DictReader(f) if not lengths or (r["isl"], r["osl"]) in lengths][::every]
    found, left = [], dict(devices=0, room=0, waiting=0)
    for r in table:
        model, devices, batch = configs[r["model_path"]], int(r["tp_size"]), int(r["batch_size"])
        if devices > 8: left["devices"] += 1; continue
        own = "gpt-oss" in model                                      # stored in mxfp4 by its configuration
        weights = None if own else {"fp8": "fp8", "fp4": "nvfp4", "": None}[r["precision"]]
        cache_bytes = 1.0 if own or weights else None
        lies, work = (weights, cache_bytes, devices, True), counted(model, int(r["isl"]), int(r["osl"]))
        server = module._server(work, systems[r["system"]], lies, None, None, r["backend"], 0.0)
        p, all_prompts = server.point(("decode", "middle"), batch), server.point(("prefill", ""), batch)
        ttft, tpot = (float(r[f"silicon_{k}_ms"]) * 1e-3 for k in ("ttft", "tpot"))
        if module._most_batch(server) < batch: left["room"] += 1; continue
        if ttft > 0.5 * all_prompts.expected_s + 1: left["waiting"] += 1; continue
        found.append(dict(model=model, device=r["system"].split("_")[0], engine=r["backend"],
                          version=r["backend_version"] or "unnamed", precision=r["precision"] or "bf16",
                          devices=devices, batch=batch, prompt=int(r["isl"]), new=int(r["osl"]), measured=tpot,
                          ttft=ttft,
                          requests=p.requests_per_s, limit=p.limit_s,
                          prefill_limit=server.point(("prefill", ""), 1).limit_s, parts=p.parts_s))
    return found, left

def answered(run):
    "Requests per second of a published run, by its measured times."
    return run["batch"] / (run["ttft"] + (run["new"] - 1) * run["measured"])

def servers(given):
    from math import exp, log
    from statistics import median
    from fasterbench.predicting.expected import z80
    from fasterbench.serving.serve_times import server, server_spread
    runs, left = server_runs(given.every)
    def total(r, without=()): return sum(s for k, s in r["parts"].items() if k not in without)
    def error(f, rows=runs): return median(abs(f(r) / r["measured"] - 1) for r in rows)
    sigma = server_spread["decode"].value
    # a constant share of the limit, found on the others
    def share(rows, out):
        s = median(r["limit"] / r["measured"] for r in out)
        return error(lambda r: r["limit"] / s, rows)
    def line(name, rows):
        others = [r for r in runs if r["model"] not in {x["model"] for x in rows}] or runs
        inside = sum(abs(log(total(r) / r["measured"])) <= z80 * sigma for r in rows) / len(rows)
        above, bias = sum(r["limit"] > r["measured"] for r in rows), median(total(r) / r["measured"] for r in rows)
        print(f"{name:36}{len(rows):>6}{above:>7}{error(lambda r: r['limit'], rows):>8.1%}{share(rows, others):>8.1%}"
              f"{error(total, rows):>10.1%}{bias:>7.2f}{inside:>8.0%}", flush=True)
    print(f"left out: {left}")
    print(f"{'time per output token':36}{'runs':>6}{'above':>7}{'limit':>8}{'share':>8}"
          f"{'expected':>10}{'bias':>7}{'inside':>8}")
    for keys in (("model", "device", "engine", "precision"), ("model",), ("devices",), ()):
        groups = {}
        for r in runs: groups.setdefault(" ".join(str(r[k]) for k in keys) or "all", []).append(r)
        for name, rows in sorted(groups.items()): line(f"{name}{' devices' if keys == ('devices',) else ''}", rows)
    needed = sorted(abs(log(total(r) / r["measured"])) for r in runs)[int(0.8 * len(runs))] / z80
    print(f"an interval that holds 80 % needs a deviation of {needed:.2f}; the model says {sigma:.2f}")
    off = [log(r["requests"] / answered(r)) for r in runs]
    print(f"requests per second: median error {median(abs(exp(x) - 1) for x in off):.1%}, "
          f"{sum(abs(x) <= z80 * sigma for x in off) / len(off):.0%} inside the interval of the time per token")
    print(f"prefill: {sum(r['prefill_limit'] > r['ttft'] for r in runs)} first tokens came before the limit of their "
          "prompt")
    print("the ladder:", end="")
    names = ["products", "attention", "others", "reduce", "prefills", "server"]
    for i in range(len(names)):
        print(f" {'+ ' * (i > 0)}{names[i]} {error(lambda r: total(r, names[i + 1:])):.1%}", end="")
    print("\nwithout:", ", ".join(f"{n} {error(lambda r: total(r, (n,))):.1%}" for n in names))

# -- gpt-fast -------------------------------------------------------------------------------------------------------

llama2 = dict(model_type="llama", vocab_size=32000, max_position_embeddings=4096)
llama_7b = llama2 | dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32)
llama_70b = (llama2 | dict(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
                           num_key_value_heads=8))
a100, mi250x = "NVIDIA A100-SXM4-80GB", "AMD Instinct MI250X"

# model, how it is stored, devices, device, tokens/s, GB/s of weights on each device
gpt_fast = [("7B", None, 1, a100, 104.9, 1397.31), ("7B", "int8", 1, a100, 155.58, 1069.20),
            ("7B", "int4", 1, a100, 196.80, 862.69),
            ("7B", None, 2, a100, 168.84, 1181.99), ("7B", None, 4, a100, 254.02, 955.83),
            ("7B", None, 8, a100, 328.43, 704.10),
            ("70B", "int8", 1, a100, 19.13, 1322.58), ("70B", "int4", 1, a100, 25.25, 1097.66),
            ("70B", None, 2, a100, 21.32, 1481.87),
            ("70B", None, 4, a100, 38.01, 1340.76), ("70B", None, 8, a100, 62.50, 1135.29),
            ("70B", "int8", 8, a100, 80.44, 752.04),
            ("70B", "int4", 8, a100, 90.77, 548.10), ("7B", None, 1, mi250x, 76.33, 1028.70),
            ("7B", "int8", 1, mi250x, 101.86, 700.06)]

def whole(stored):
    "The configuration of a model whose linear layers are all stored so, that of the logits too."
    groups = dict(group_size=32) if stored == "int4" else {}
    return dict(quant_method="torchao", quant_type=f"{stored}_weight_only", modules_to_not_convert=[],
                quant_type_kwargs=groups)

def gptfast_row(size, stored, devices, device, rate, published):
    """One row: published and own GB/s of weights held and of weights read, limit in tokens/s, MBU of the published
    rate."""
    config = dict({"7B": llama_7b, "70B": llama_70b}[size])
    if stored: config["quantization_config"] = whole(stored)
    result = serve(config, 5, 200, 1, device, tensor_parallel=devices, split_head=False, measured={1: rate},
                   engine="bare", reserve=0.0)
    point = result.point("decode", 1)
    return dict(model=f"{size} {stored or 'bf16'}", devices=devices, rate=rate, published=published,
                held=result.held_bytes * rate / 1e9,
                read=point.weight_bytes * rate / 1e9, limit=point.tokens_per_s, mbu=point.mbu, device=device,
                expected=point.expected_per_s)

def gptfast(given):
    print(f"{'':15}{'tokens/s':>10}{'published':>11}{'held':>10}{'':>8}{'read':>10}{'':>8}{'limit':>8}"
          f"{'expected':>10}{'MBU':>7}   GB/s of weights; limit in tokens/s")
    worst, off_by = 0.0, []
    for row in map(lambda r: gptfast_row(*r), gpt_fast):
        off = {k: row[k] / row["published"] - 1 for k in ("held", "read")}
        worst = max(worst, abs(off["held"]))
        print(f"{row['model']:12}{row['devices']:>3}{row['rate']:>10.2f}{row['published']:>11.2f}"
              f"{row['held']:>10.2f}{off['held']:>+8.2%}{row['read']:>10.2f}{off['read']:>+8.2%}"
              f"{row['limit']:>8.1f}{row['expected']:>10.1f}{row['mbu']:>7.1%}", flush=True)
        off_by.append(abs(row['rate'] / row['expected'] - 1))
    print(f"{len(gpt_fast)} rows, weights held: at most {worst:.2%} off; "
          f"expected time: median error {sorted(off_by)[len(off_by) // 2]:.1%}")

# -- decode attention -----------------------------------------------------------------------------------------------

devices = {"h100": "NVIDIA H100 80GB HBM3", "l40s": "NVIDIA L40S"}

def attention_rows(file, every=1):
    "(bytes, FLOPs, measured s, limit s) of each row."
    import pandas as pd
    peaks, rows = datasheet_peaks(devices[file], "bfloat16"), []
    for r in pd.read_parquet(shared / "aiconfigurator"
                             / f"{file}_decode_attention_vllm.parquet").iloc[::every].itertuples():
        context = r.isl + r.step
        if getattr(r, "window_size", 0): context = min(context, r.window_size)
        cache = 2 * r.batch_size * context * r.num_key_value_heads * r.head_dim * (
            1 if "fp8" in r.kv_cache_dtype else 2)
        nbytes = cache + 2 * 2 * r.batch_size * r.num_heads * r.head_dim                  # queries in, results out
        flops = 4 * r.batch_size * context * r.num_heads * r.head_dim
        limit = max(least_memory_time(nbytes, peaks), flops / peaks.flops_of("bfloat16"))
        rows.append((nbytes, flops, r.latency * 1e-3, limit))
    return rows, peaks

def attention(given):
    for file, device in devices.items():
        rows, peaks = attention_rows(file, given.every)
        above, closest = sum(limit > t for *_, t, limit in rows), max(limit / t for *_, t, limit in rows)
        faster = [(b / peaks.peak_bandwidth / t, b) for b, _, t, _ in rows if b / peaks.peak_bandwidth > t]
        print(f"{device}: {above} of {len(rows)} rows above the level roofs; the closest is at {closest:.1%} of them")
        if faster:
            print(f"    {len(faster)} rows are faster than main memory, up to {max(faster)[0]:.2f}×, with at most "
                  f"{max(b for _, b in faster) / 1e6:.0f} MB; the L2 holds {peaks.memory[0].capacity / 1e6:.0f} MB")

parts = dict(servers=servers, gptfast=gptfast, attention=attention)

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="*", choices=[*parts, []], default=[])
    parser.add_argument("--every", type=int, default=1, help="take every Nth row")
    given = parser.parse_args()
    for part in given.part or parts:
        if part in ("attention", "servers") and not shared.is_dir():
            print(f"{shared} is not here; FASTERBENCH_SHARED names the folder that holds data/"); continue
        print(f"\n{part}")
        parts[part](given)

if __name__ == "__main__": main()
