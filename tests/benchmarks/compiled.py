"""What is known of compiled models on this CPU, a line for each: python tests/benchmarks/compiled.py [NAME ...]

Torchvision models, a GPT-2 and a small Llama, float32, batch 1; "resnet18 training" is a step. Each runs for itself, with:
  calls     of kernels in a run
  kernels   their time ÷ that of the instrumented run; with the rows of memory, wrapper and guards it is all of it
  rows      the sum of all rows ÷ the compiled model without timestamps: median over neighbouring runs, which are taken in turn
  same      likewise each run without timestamps ÷ the next one: what such a ratio varies by when nothing differs; ± is half of its quartiles'
            distance
  layers    of the time of kernels, what is charged to a layer
  products  FLOPs of compiled products ÷ those of the eager model by PyTorch's own counter
  unknown   rows without FLOPs
  above     rows above their roof
  MB        eager → as generated → perfect fusion

--compile only compiles, so that a later run finds the code in Inductor's cache and is all measurement."""
import argparse, statistics, sys, time, warnings
from pathlib import Path

root = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root))

vision = """resnet18 resnet50 vgg11 alexnet squeezenet1_0 densenet121 mobilenet_v2 mobilenet_v3_large shufflenet_v2_x1_0
    mnasnet1_0 efficientnet_b0 regnet_y_400mf convnext_tiny vit_b_16 swin_t googlenet""".split()
names = [*vision, "gpt2", "llama", "resnet18 training", "vit_b_16 training", "gpt2 training", "llama training"]

def model_and_sample(name):
    import torch
    torch.manual_seed(0)
    if name in vision:
        import torchvision
        more = dict(init_weights=False, aux_logits=False) if name == "googlenet" else {}
        return torchvision.models.get_model(name, weights=None, **more), torch.randn(1, 3, 224, 224)
    import transformers
    tokens = torch.randint(0, 32000, (1, 64))
    if name == "gpt2": return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)), dict(input_ids=tokens)
    config = transformers.LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
                                      num_key_value_heads=4, use_cache=False)
    return transformers.LlamaForCausalLM(config), dict(input_ids=tokens)

def first(out): return getattr(out, "logits", out)

def product_flops(model, sample, training):
    """By PyTorch's own counter, which sees the eager model; attention on a CPU by its own formula, which it has for GPUs alone.

    The fast path of `nn.MultiheadAttention` is one operator that it does not know, so it is off."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
    aten, shapes = torch.ops.aten, lambda tensors: [t.shape for t in tensors]
    known = {aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, out_val=None, **kw: sdpa_flop_count(*shapes((q, k, v))),
             aten._scaled_dot_product_flash_attention_for_cpu_backward:
                 lambda g, q, k, v, *_, out_val=None, **kw: sdpa_backward_flop_count(*shapes((g, q, k, v)))}
    for f in known.values(): f._get_raw = True                 # called with tensors
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with FlopCounterMode(display=False, custom_mapping=known) as counter, torch.set_grad_enabled(training):
            out = first(model(**sample) if isinstance(sample, dict) else model(sample))
            if training: out.sum().backward()
    finally: torch.backends.mha.set_fastpath_enabled(fast)
    model.zero_grad()
    return counter.get_total_flops()

def line(name, steps, only_compile):
    import torch
    from fasterbench.analysis.measure import measure
    from fasterbench.analysis.rows import measured_result
    from fasterbench.engine.step import Forward, TrainingStep
    from fasterbench.probes.peaks import measure_peaks
    from fasterbench.roofline import RooflineAnalyzer
    from fasterbench.timing.stopping import StoppingRule
    training = name.endswith(" training")
    model, sample = model_and_sample(name.removesuffix(" training"))
    model.train(training)
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout): m.p = 0.0
    wanted, compiled, start = product_flops(model, sample, training), torch.compile(model), time.perf_counter()
    how = dict(backward=training, loss=(lambda out: first(out).sum()) if training else None)
    if only_compile:
        RooflineAnalyzer(compiled, sample).profile(steps=1, warmup=1, progress=False, kernels=False, **how)
        return print(f"{name:20} compiled in {time.perf_counter() - start:.0f} s", flush=True)
    m = measure(TrainingStep(compiled, how["loss"]) if training else Forward(compiled), sample, torch.device("cpu"), warmup=3,
                rule=StoppingRule(steps=steps, bare_every=1), progress=False)
    result = measured_result(compiled, m, measure_peaks("cpu", progress=False))
    rows, kernels = result.points, [p for p in result.points if p.layers]
    if not kernels: return print(f"{name:20} one row: {'; '.join(result.notes)}", flush=True)
    seconds = lambda of: sum(p.time_s for p in of)
    took = {n: seconds(p for p in rows if p.name == n) for n in ("(freed memory)", "(wrapper)", "(guards)", "(gradients)")}
    least = [b / 1e6 for *_, b in result.limits] or [float("nan")] * 3
    placed = sum(p.time_s * sum(s for path, _, s, *_ in p.layers if path) for p in kernels) / seconds(kernels)
    products = sum(p.dense_flops or 0 for p in rows if p.layers and p.contraction_flops)
    own = sum(p.contraction_flops or 0 for p in kernels)
    whole, bare = list(map(sum, zip(*(s.values for s in (*m.times.own, *m.times.kernels))))), m.times.bare.values
    ratios = [whole[k] / bare[i] for i, k in m.times.pairs]
    same = [a / b for a, b in zip(bare, bare[1:])]
    low, middle, high = statistics.quantiles(same, n=4)
    print(f"{name:20}{sum(p.calls for p in kernels):>6}{seconds(kernels) / seconds(rows):>9.3f}"
          + "".join(f"{t / seconds(rows):>8.3f}" for t in took.values())
          + f"{statistics.median(ratios):>7.3f}{middle:>7.3f} ±{(high - low) / 2:<5.3f}{placed:>8.1%}{own / wanted:>10.6f}"
          f"{sum(p.flops is None for p in kernels):>8}{sum(p.above_roof for p in kernels):>6}  "
          + " → ".join(f"{b:.0f}" for b in least) + f"   {result.timing.end_to_end_s * 1e3:.1f} ms"
          + "".join(f"\n    {n}" for n in result.notes), flush=True)

heading = (f"{'model':20}{'calls':>6}{'kernels':>9}{'memory':>8}{'wrapper':>8}{'guards':>8}{'grads':>8}{'rows':>7}{'same':>14}{'layers':>8}"
           f"{'products':>10}{'unknown':>8}{'above':>6}  MB eager → generated → perfect")

def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", choices=[*names, []], default=[])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="only compile")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(heading)
    for name in given.name or names:
        try: line(name, given.steps, given.compile)
        except Exception as error: print(f"{name:20} {type(error).__name__}: {str(error)[:200]}", flush=True)

if __name__ == "__main__": main()
