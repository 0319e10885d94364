"""What counting meets in the wild: timm and transformers models, PyTorch's own operator samples, optimizers.

    python tests/benchmarks/count_sweep.py FILE [timm] [transformers] [operators] [optimizers]

Results go to FILE, one JSON line each; what is in FILE already is not run again. At the end, or with no part named, the figures of FILE
are printed: how many ran, operators without a rule by name, and where another counter disagrees. Models are counted on the meta
device, so that their size does not matter; contractions are compared with `torch.utils.flop_counter`. Operators are compared with the
ones that PyTorch's profiler shows, with and without inference mode."""
import inspect, json, logging, os, sys, warnings
from collections import Counter
from pathlib import Path
from time import perf_counter

os.environ.setdefault("OMP_NUM_THREADS", "1")
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fasterbench.work.count import count_work


warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

class Call(nn.Module):
    def __init__(self, f): super().__init__(); self.f = f
    def forward(self, *args, **kwargs): return self.f(*args, **kwargs)

class DoesNotRun(Exception): "The model itself refuses the sample."

def both(model, args, kwargs):
    "Our count, and the contractions that PyTorch's counter finds (`None` where it fails)."
    try: work = count_work(model.eval(), kwargs if kwargs and not args else args)
    except Exception:
        try:
            with torch.no_grad(): model(*args, **kwargs)
        except Exception as e: raise DoesNotRun(f"{type(e).__name__}: {str(e)[:200]}") from e
        raise
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as theirs: model(*args, **kwargs)
        return work, theirs.get_total_flops()
    except Exception: return work, None

def summary(work, theirs):
    "`grouped`: what products of experts take; PyTorch's counter has no formula for them."
    grouped = sum(c.contraction_flops or 0 for c in work.trace if "grouped_mm" in c.operator)
    return dict(flops=work.flops_lower_bound, contraction=work.contraction_flops_lower_bound, theirs=theirs, bytes=work.bytes,
                unknown=work.unknown_ops, operators=len(work.trace), grouped=grouped)

def timm_models():
    import timm
    for module in timm.list_modules():
        for name in sorted(timm.list_models(module=module), key=lambda n: ("giant" in n or "huge" in n or "xx" in n, len(n), n))[:2]:
            def run(name=name):
                with torch.device("meta"): model = timm.create_model(name)
                size = model.default_cfg.get("input_size", (3, 224, 224))
                work, theirs = both(model, (torch.empty(1, *size, device="meta"),), {})
                return summary(work, theirs)
            yield name, run

def small(config):
    "`config` with two layers, where it can be told so."
    for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_decoder_layers", "depth"):
        if isinstance(getattr(config, name, None), int):
            try: setattr(config, name, 2)
            except Exception: pass
    if getattr(config, "layer_types", None): config.layer_types = config.layer_types[:2]
    return config

def inputs(model, config):
    "Tensors for the arguments of `model.forward` that its kind of input needs."
    names, sizes = inspect.signature(model.forward).parameters, lambda key, default: getattr(config, key, None) or default
    made = {}
    if "input_ids" in names: made["input_ids"] = torch.zeros(1, 16, dtype=torch.int64, device="meta")
    if "decoder_input_ids" in names: made["decoder_input_ids"] = torch.zeros(1, 16, dtype=torch.int64, device="meta")
    if made: return made
    side = sizes("image_size", 224)
    side = side if isinstance(side, (list, tuple)) else (side, side)
    if "pixel_values" in names: return dict(pixel_values=torch.empty(1, sizes("num_channels", 3), *side, device="meta"))
    if "input_values" in names: return dict(input_values=torch.empty(1, 16000, device="meta"))
    if "input_features" in names: return dict(input_features=torch.empty(1, sizes("num_mel_bins", 80), 3000, device="meta"))
    raise ValueError(f"no sample for {', '.join(names)}")

def transformers_models():
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
    for name in MODEL_MAPPING_NAMES:
        def run(name=name):
            config = small(CONFIG_MAPPING[name]())
            with torch.device("meta"): model = AutoModel.from_config(config)
            work, theirs = both(model, (), inputs(model, config))
            return summary(work, theirs)
        yield name, run

def shown(f, mode):
    "Names of the operators that the profiler shows while `f()` runs."
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU]) as p, mode(): f()
    return {e.name() for e in p.profiler.kineto_results.events()}

def operators():
    from torch.testing._internal.common_methods_invocations import op_db
    for info in op_db:
        name = f"{info.name}{'.' + info.variant_test_name if info.variant_test_name else ''}"
        if torch.float32 not in info.dtypes: continue
        def run(info=info):
            found = Counter()
            for k, sample in zip(range(4), info.sample_inputs("cpu", torch.float32, requires_grad=False)):
                module, args = Call(info.op), (sample.input, *sample.args)
                for mode in (torch.no_grad, torch.inference_mode):
                    with mode(): work = count_work(Inside(module, mode), (args, sample.kwargs))
                    missing = {c.operator for c in work.trace} - shown(lambda: module(*args, **sample.kwargs), mode)
                    found.update({f"unknown {n}": 1 for n in work.unknown_ops} | {f"not shown ({mode.__name__}) {n}": 1 for n in missing})
                _, theirs = both(module, args, sample.kwargs) if not sample.kwargs else (None, None)
                if theirs is not None and theirs != work.contraction_flops_lower_bound and not work.unknown_ops:
                    found[f"contraction {work.contraction_flops} against {theirs}"] += 1
            return dict(samples=k + 1, unknown={n[8:]: c for n, c in found.items() if n.startswith("unknown")},
                        found={n: c for n, c in found.items() if not n.startswith("unknown")})
        yield name, run

class Inside(nn.Module):
    "Runs in a mode of autograd, as a decorated forward does."
    def __init__(self, module, mode): super().__init__(); self.module, self.mode = module, mode
    def forward(self, args, kwargs):
        with self.mode(): return self.module(*args, **kwargs)

def optimizers():
    for name, cls in sorted(vars(torch.optim).items()):
        if not inspect.isclass(cls) or not issubclass(cls, torch.optim.Optimizer) or cls is torch.optim.Optimizer: continue
        for how in ({}, dict(foreach=True), dict(foreach=False), dict(fused=True), dict(weight_decay=0.1), dict(maximize=True),
                    dict(amsgrad=True), dict(momentum=0.9), dict(momentum=0.9, nesterov=True), dict(centered=True), dict(capturable=True)):
            if any(k not in inspect.signature(cls).parameters for k in how): continue
            def run(cls=cls, how=how):
                layer = nn.Embedding(20, 32, sparse=True) if cls.__name__ == "SparseAdam" else nn.Linear(32, 64)
                sample = torch.arange(4) if cls.__name__ == "SparseAdam" else torch.randn(2, 32)
                params = [p for p in layer.parameters() if cls.__name__ != "Muon" or p.dim() == 2]
                work = count_work(layer, sample, backward=True, optimizer=cls(params, **how)).of_phase("update")
                return summary(work, None)
            yield f"{name}({', '.join(f'{k}={v}' for k, v in how.items())})", run

parts = dict(timm=timm_models, transformers=transformers_models, operators=operators, optimizers=optimizers)

def sweep(part, path):
    done = {r["name"] for r in read(path) if r["part"] == part}
    with open(path, "a") as file:
        for name, run in parts[part]():
            if name in done: continue
            start = perf_counter()
            try: record = run()
            except Exception as e: record = dict(error=f"{type(e).__name__}: {str(e)[:200]}")
            file.write(json.dumps(dict(part=part, name=name, seconds=round(perf_counter() - start, 2), **record)) + "\n")
            file.flush()

def read(path): return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []

def figures(path):
    for part in parts:
        rows = [r for r in read(path) if r["part"] == part]
        if not rows: continue
        ran, unknown, apart = [r for r in rows if "error" not in r], Counter(), Counter()
        for r in ran: unknown.update(r.get("unknown", {}).keys()); apart.update(r.get("found", {}).keys())
        differ = [(r["name"], r["contraction"] / r["theirs"]) for r in ran if r.get("theirs") and r["contraction"] - r.get("grouped", 0) != r["theirs"]]
        refused = sum(r.get("error", "").startswith("DoesNotRun") for r in rows)
        print(f"{part}: {len(ran)} of {len(rows)} ran, {sum(r['seconds'] for r in rows):.0f} s; "
              f"{sum(bool(r.get('unknown')) for r in ran)} with unknown operators: {dict(unknown.most_common())}")
        if any(r.get("theirs") for r in ran):
            print(f"  contractions as flop_counter: {sum(bool(r.get('theirs')) for r in ran) - len(differ)}; others: {differ}")
        if any(r.get("grouped") for r in ran): print(f"  with grouped products of experts beside: {sum(bool(r.get('grouped')) for r in ran)}")
        for what, n in apart.most_common(): print(f"  {what}: {n}")
        print(f"  of {len(rows) - len(ran)} that did not run, {refused} do not run by themselves with this sample")
        for what, n in Counter(r["error"][:110] for r in rows if "error" in r).most_common(): print(f"  did not run: {what} ({n})")

if __name__ == "__main__":
    path, *chosen = sys.argv[1:]
    for part in chosen: sweep(part, path)
    figures(path)
