"""A training step before it runs: the same operators with data and without, model FLOPs of published models."""
import json

import pytest
import torch
from conftest import in_line, nightly_only
from torch import nn

import fasterbench
from fasterbench.work.count import count_work
from fasterbench.work.target import Target

transformers = pytest.importorskip("transformers")
torchvision = pytest.importorskip("torchvision")

def small(**more):
    return dict(vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, max_position_embeddings=128) | more
def ids(): return torch.randint(0, 97, (2, 16))
def llama(**more): return transformers.LlamaForCausalLM(transformers.LlamaConfig(**small(**more)))

cases = dict(
    llama=(llama, lambda: dict(input_ids=ids())),
    llama_without_cache=(lambda: llama(use_cache=False), lambda: dict(input_ids=ids())),
    llama_with_labels=(llama, lambda: dict(input_ids=ids(), labels=ids(),
                                           attention_mask=torch.ones(2, 16, dtype=torch.long))),
    llama_with_positions=(lambda: llama(use_cache=False),
                          lambda: dict(input_ids=ids(), position_ids=torch.arange(16).repeat(2, 1))),
    gpt2=(lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0,
                                eos_token_id=0)), lambda: dict(input_ids=ids())),
    bert=(lambda: transformers.BertModel(transformers.BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)),
          lambda: dict(input_ids=ids())),
    mixtral=(lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(**small(), num_local_experts=4)),
             lambda: dict(input_ids=ids())),
    resnet18=(lambda: torchvision.models.resnet18(), lambda: torch.randn(2, 3, 64, 64)))

def operators(work):
    "What a step consists of: phase, module, operator and FLOPs of each call."
    return [(c.phase, work.parts[c.part].path, c.operator, c.flops, c.contraction_flops) for c in work.trace]

def moved(work):
    "The bytes of each call, but of a grouped product: without data it reads the fewest experts, which is less."
    return [[sum(t.bytes for t in touches) for touches in (c.reads, c.writes)] for c in work.trace
            if "grouped_mm" not in c.operator]

def read_by_groups(work): return [sum(t.bytes for t in c.reads) for c in work.trace if "grouped_mm" in c.operator]

def on_meta(sample):
    return {k: v.to("meta") for k, v in sample.items()} if isinstance(sample, dict) else sample.to("meta")

@pytest.mark.parametrize("name", in_line(cases, "mixtral", ci=("resnet18", "llama_with_labels")))
def test_a_step_without_data_runs_the_operators_that_it_runs_with_data(name):
    make, sample = cases[name]
    with torch.device("meta"): without = make()
    model, sample = make(), sample()
    data = count_work(model, sample, backward=True, optimizer=torch.optim.AdamW(model.parameters()))
    meta = count_work(without, on_meta(sample), backward=True, optimizer=torch.optim.AdamW(without.parameters()))
    assert operators(meta) == operators(data) and moved(meta) == moved(data) and data.flops and not data.unknown_ops
    least, read = read_by_groups(meta), read_by_groups(data)
    assert (len(least) == len(read) and all(a <= b for a, b in zip(least, read))
            and any("least" in text for text in meta.assumptions) == bool(least))
    assert all(p.is_meta and p.grad is None for p in without.parameters())

def test_a_step_on_a_gpu_runs_its_kernels():
    with torch.device("meta"): model, x = llama(), dict(input_ids=torch.empty(2, 16, dtype=torch.long))
    adam = torch.optim.AdamW(model.parameters())
    step = count_work(model, x, backward=True, optimizer=adam, target=Target("cuda", "sm90", torch.bfloat16))
    ran = {c.operator for c in step.trace}
    assert {"aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward"} <= ran
    assert any(name.startswith("aten::_foreach") for name in ran) and not adam.state and not step.unknown_ops
    with torch.device("meta"): lstm, words = nn.LSTM(16, 16, 2), torch.empty(5, 3, 16)
    assert ({"aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"} <= {c.operator
                                                                  for c in count_work(lstm, words, backward=True,
                                                                      target=Target("cuda", "sm80")).trace})

def test_llama_by_the_formula_of_torchtitan():
    "6 FLOP for each weight of a product, and 12·layers·width·length for attention with every pair."
    with torch.device("meta"):
        model = llama(vocab_size=128256, hidden_size=512, intermediate_size=1024, num_hidden_layers=2,
                      num_attention_heads=8, max_position_embeddings=8192).bfloat16()
    layer = 512 * 512 + 2 * 512 * 128 + 512 * 512 + 3 * 512 * 1024
    found = fasterbench.model_flops(model, dict(input_ids=torch.empty(1, 1024, dtype=torch.long, device="meta")))
    assert found.tokens == 1024 and found.model == 1024 * (6 * (2 * layer + 512 * 128256) + 12 * 2 * 512 * 1024)

@nightly_only("counts models of eight billion parameters")
def test_the_runs_of_torchtitan():
    """33.7 and 39.0 % MFU for Llama-3.1-8B at 8192 tokens, 5762 and 6667 tokens/s on each H100; the model's step is
    counted."""
    from fasterbench.roofs.datasheet import datasheet_peaks
    from fasterbench.training.model_flops import utilizations
    with torch.device("meta"):
        model = llama(vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                      num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192).bfloat16()
    found = fasterbench.model_flops(model, dict(input_ids=torch.empty(1, 8192, dtype=torch.long, device="meta")))
    layer = 4096 * 4096 + 2 * 4096 * 1024 + 4096 * 4096 + 3 * 4096 * 14336
    assert found.tokens == 8192 and found.model == 8192 * (6 * (32 * layer + 4096 * 128256) + 12 * 32 * 4096 * 8192)
    peaks = datasheet_peaks("NVIDIA H100 80GB HBM3", "bfloat16")
    assert ([round(100 * utilizations(found, 8 * rate, peaks, "bfloat16", 8)[0].mfu, 1) for rate in (5762, 6667)]
            == [33.7, 39.0])

def said_of_a_linear(folder, capsys, *args):
    """What `mfu` prints of a layer of 64 by 32 on an H100, and its JSON. A sample's step takes 2 · 2·64·32 FLOP:
    forward, and that of the weight."""
    from fasterbench.cli.main import main
    (folder/"net.py").write_text("import torch\ndef make(): return torch.nn.Linear(64, 32), torch.randn(4, 64)\n")
    with pytest.raises(SystemExit) as ended:
        main(["mfu", f"{folder}/net.py:make", "--on", "h100-sxm", "--json", str(folder/"r.json"), *args])
    assert not ended.value.code
    return capsys.readouterr().out.replace("\n  ", " ").splitlines(), json.loads((folder/"r.json").read_text())

@pytest.mark.parametrize("rate, dtype, over", [
    ("1e10", [], []),                                                       # 8192e10 / 989.4e12 = 8.3 %
    # of 794.5e12; 82.8 % of 989.4e12
    ("1e11", [], ["MFU, unmasked pairs 103.1 % and HFU 103.1 %: above 100 % of the peak (measured, published)"]),
    ("1e11", ["--dtype", "float32"], [
        "MFU, unmasked pairs 1224.5 % and HFU 1224.5 %: above 100 % of the peak (datasheet, dense), which is "
        "impossible"])])
def test_what_no_peak_allows_is_said(tmp_path, capsys, rate, dtype, over):
    lines, values = said_of_a_linear(tmp_path, capsys, "--tokens-per-s", rate, *dtype)
    assert [c for c in values["caveats"] if "above 100 %" in c] == over and all(c in lines for c in values["caveats"])

def test_the_peak_of_another_dtype_is_said(tmp_path, capsys):
    "989.4 TFLOP/s in bfloat16, 66.9 in float32; the parameters are float32."
    for given, dtype, peak in ((([], "bfloat16", 989.4e12), (["--dtype", "float32"], "float32", 66.9e12),
                                (["--dtype", "bfloat16"], "bfloat16", 989.4e12))):
        lines, values = said_of_a_linear(tmp_path, capsys, "--tokens-per-s", "1e9", *given)
        assert (lines[0].endswith(f" · {dtype} peak") and values["dtype"] == dtype
                and values["utilization"][0]["peak"] == peak)
        assert [c.startswith("the model is float32; MFU and HFU are over the bfloat16 peak")
                for c in values["caveats"]] == [True] * (not given)

def test_a_peak_is_of_the_dtype_that_is_said(tmp_path, capsys):
    "A V100 has 125 TFLOP/s in float16, 15.7 in float32, none in bfloat16; 8192 FLOP a sample."
    lines, values = said_of_a_linear(tmp_path, capsys, "--tokens-per-s", "5e9", "--on", "Tesla V100-SXM2")
    found, = values["utilization"]
    assert (lines[0].endswith(" · float16 peak") and (values["dtype"], found["peak"]) == ("float16", 125e12)
            and found["mfu"] == pytest.approx(8192 * 5e9 / 125e12))
    assert (values["caveats"] == [
        "the model is float32; MFU and HFU are over the float16 peak, as training under autocast"])
    with pytest.raises(AssertionError):
        said_of_a_linear(tmp_path, capsys, "--tokens-per-s", "5e9", "--on", "Tesla V100-SXM2", "--dtype", "bfloat16")
    assert ("Tesla V100-SXM2 has no peak for bfloat16; it has float16, float32, float64"
            in " ".join(capsys.readouterr().err.split()))
    from fasterbench.training.model_flops import ModelFlops, utilizations
    with pytest.raises(ValueError, match="dtype='bfloat16'; there are peaks of float16, float32, float64"):
        utilizations(ModelFlops(1, 1, 1, 1), 1, fasterbench.roofs.datasheet.as_peaks("Tesla V100-SXM2"), "bfloat16")

def test_only_what_the_model_needs_cannot_exceed_a_peak():
    "Of FLOPs that this code runs, recomputed ones and masked pairs, a training may run fewer."
    from fasterbench.training.mfu_verb import _over_the_peak
    from fasterbench.training.model_flops import Utilization
    def said(needed, hfu): return _over_the_peak(Utilization("datasheet, dense", 1e15, 0.9, needed, hfu))
    assert (said(0.5, 1.0) == [] and said(1.1,
                                          1.2)[0].endswith(
                                              "120.0 %: above 100 % of the peak (datasheet, dense), which is "
                                              "impossible"))
    assert (said(0.5, 1.04) == [
        "HFU 104.0 %: above 100 % of the peak (datasheet, dense), so the run executed fewer FLOPs than this code"])

windowed = dict(
    mistral=(dict(model_type="mistral", sliding_window=24), [24, 24]),
    # the first sees all
    qwen2=(dict(model_type="qwen2", use_sliding_window=True, sliding_window=24, max_window_layers=1), [64, 24]),
    gemma3=(dict(model_type="gemma3_text", sliding_window=24, layer_types=["sliding_attention", "full_attention"]),
            [24, 64]),
    exaone4=(dict(model_type="exaone4", sliding_window=24, layer_types=["sliding_attention", "full_attention"]),
             [24, 64]),
    mistral_longer=(dict(model_type="mistral", sliding_window=4096), [64, 64]))

@pytest.mark.parametrize("name", in_line(windowed, "gemma3"))
def test_the_pairs_of_a_window(name):
    """64 tokens, 4 heads of 16: a query sees itself and what is before it, at most the window; 4 · 16 FLOP a pair,
    thrice in a step."""
    config, windows = windowed[name]
    config = dict(small(head_dim=16) | dict(hidden_size=64) | config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(config.pop("model_type"), **config))
    found = fasterbench.model_flops(model, dict(input_ids=torch.empty(1, 64, dtype=torch.long, device="meta")))
    seen = sum(sum(min(i + 1, window) for i in range(64)) for window in windows)
    assert found.model - found.model_needed == 3 * 4*16 * 4 * (2 * 64*64 - seen)

def test_a_prediction_of_a_step_has_rows_by_phase():
    with torch.device("meta"): model, x = torchvision.models.resnet18(), torch.empty(8, 3, 64, 64)
    found = fasterbench.predict(model, x, "NVIDIA H100 80GB HBM3", backward=True,
                                optimizer=torch.optim.SGD(model.parameters()))
    assert {p.phase for p in found.points} == {"forward", "backward", "update"} and found.program.phase == ""
    low, high = found.program.interval_s           # the backward of a batch norm was never measured: a range
    assert found.program.is_range and found.program.time_s is None and found.program.roof_time_s == low < high
    assert sum(p.contraction_flops for p in found.points) == found.program.contraction_flops
    with pytest.raises(ValueError, match="eager step"):
        fasterbench.predict(model, x, "NVIDIA H100 80GB HBM3", backward=True, compiled=True)

class Reads(nn.Linear):
    def forward(self, x): return super().forward(x) if x.sum() > 0 else x

@torch.library.custom_op("fasterbench_tests::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor: return x * 3
class Custom(nn.Linear):
    def forward(self, x): return tripled(super().forward(x))
@pytest.mark.parametrize("model,how,why", [
    (nn.Linear(4, 4), dict(loss=lambda y: y), "a scalar tensor"),
    (nn.Linear(4, 4), dict(optimizer=torch.optim.SGD(nn.Linear(4, 4).parameters())),
     "none of which is a parameter of the model"),
    (Reads(4, 4), {}, "reads what is in a tensor"),
    (Custom(4, 4), {}, "fasterbench_tests::tripled has no backward")])
def test_what_is_no_step_is_refused(model, how, why):
    for target in (Target("cpu"), Target("cuda", "sm90")):
        with pytest.raises(ValueError, match=why):
            count_work(model, torch.randn(2, 4), backward=True, target=target, **how)

def test_kernels_of_a_backward_read_what_they_read_twice():
    """A convolution's backward is two kernels that both read the gradient; that of a batch norm passes over input
    and gradient twice."""
    from fasterbench.predicting.constants import memory_kind
    from fasterbench.predicting.expected import _byte_passes
    with torch.device("meta"):
        net, x = (nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)),
                  torch.empty(2, 4, 8, 8, requires_grad=True))
    calls = {c.operator: c for c in count_work(net, x, backward=True, target=Target("cuda", "sm86")).trace}
    conv, image, weight = calls["aten::convolution_backward"], 4 * 2 * 4 * 8 * 8, 4 * 4 * 4
    # gradient, input, weight; gradients of both
    assert _byte_passes(conv) == 1 + image / (2 * image + weight + image + weight)
    assert ({memory_kind(c) for name, c in calls.items() if "batch_norm" in name} == {"rows"}
            and any(n.endswith("batch_norm_backward") for n in calls))
