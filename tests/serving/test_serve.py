"Language models that are served: counts by hand and of real objects, published tables, the command."
import json, subprocess, sys
from dataclasses import replace
from inspect import signature

import pytest, torch
from conftest import heavy_only, in_line, nightly, nightly_only, root, shared_file
from forked import command_line, python

transformers = pytest.importorskip("transformers")
sys.path[:0] = [str(root/"tests/benchmarks"), str(root/"tests/serving")]
cache_names = "cache", "past_key_values", "cache_params"    # the first from transformers 5.24 on

import serve as benchmark
from small_models import kept
from fasterbench import HardwarePeaks, from_json
from fasterbench.serving.serve import serve
from fasterbench.serving.serve_work import experts_read, stored_as
from fasterbench.serving.alike import one_of_each
from fasterbench.serving.serve_work import ModelWithoutData, language_model
from fasterbench.roofs.datasheet import as_peaks
from fasterbench.roofs.hardware import MemoryLevel
from fasterbench.serving.serve_view import ServeOption, ServeSeries, serve_from_dict

# Each model: width 64, 4 layers, 4 heads of 16, 320 tokens; the prompt has 64, and the eighth token behind it is
# decoded.
H, I, L, V, prompt, new = 64, 96, 4, 320, 64, 8
C = prompt + new
small = dict(hidden_size=H, intermediate_size=I, num_hidden_layers=L, num_attention_heads=4, vocab_size=V,
             max_position_embeddings=512)
two = dict(num_key_value_heads=2, head_dim=16)
attn = H*H + 2*H*32 + H*H            # query, keys and values of two heads, output
products = 2*(L*(attn + 3*H*I) + V*H) # of a Llama, for one token
full, window = 4*C*H, 4*24*H         # products of attention: a query of H with every key, and as much with the values

# name: configuration, parameters, bytes of the cache, FLOPs of one token. Every number is worked out by hand.
hand = dict(
    llama=(dict(model_type="llama", **small, num_key_value_heads=2), L*(attn + 3*H*I + 2*H) + 2*V*H + H, 2*L*32*C*2,
           products + L*full),
    qwen_experts=(dict(model_type="qwen3_moe", **small, **two, num_experts=8, num_experts_per_tok=2,
                       moe_intermediate_size=32),
           L*(attn + 8*H + 8*3*H*32 + 2*H + 2*16) + 2*V*H + H, 2*L*32*C*2,
           2*(L*(attn + 8*H + 2*3*H*32) + V*H) + L*full),
    mistral_window=(dict(model_type="mistral", **small, **two, sliding_window=24), L*(attn + 3*H*I + 2*H) + 2*V*H + H,
                    2*L*32*24*2,
           products + L*window),
    gemma3=(dict(model_type="gemma3_text", **small | dict(num_hidden_layers=12), **two,
                 sliding_window=24),         # every sixth layer sees all
           12*(attn + 3*H*I + 4*H + 2*16) + V*H + H, 2*32*2*(2*C + 10*24),
           2*(12*(attn + 3*H*I) + V*H) + 2*full + 10*window),
    deepseek_latent=(dict(model_type="deepseek_v3", **small, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16,
                          qk_rope_head_dim=8,
           qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1,
           moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1),
           L*(H*24 + 24 + 24*4*24 + H*24 + 16 + 16*4*32 + H*H + 2*H) + 3*H*I + 3*(8*H + 9*3*H*32) + 2*V*H + H, L*24*C*2,
           2*(L*(H*24 + 24*4*24 + H*24 + 16*4*32 + H*H) + 3*H*I + 3*(8*H + 3*3*H*32) + V*H) + L*2*4*C*(16 + 8 + 16)),
    gpt2=(dict(model_type="gpt2", n_embd=H, n_layer=L, n_head=4, vocab_size=V, n_positions=512, bos_token_id=1,
               eos_token_id=2),
           L*(H*3*H + 3*H + H*H + H + 2*H*4*H + 5*H + 4*H) + V*H + 512*H + 2*H, 2*L*H*C*2,
           2*(L*(3*H*H + H*H + 8*H*H) + V*H) + L*full),
    phi=(dict(model_type="phi", **small), L*(4*(H*H + H) + 2*H*I + I + H + 2*H) + V*H + 2*H + V*H + V, 2*L*H*C*2,
           2*(L*(4*H*H + 2*H*I) + V*H) + L*full),
    falcon=(dict(model_type="falcon", hidden_size=H, num_hidden_layers=L, num_attention_heads=4, vocab_size=V,
                 multi_query=True,
           new_decoder_architecture=False, alibi=False), L*(H*(H + 2*16) + H*H + 8*H*H + 2*H) + V*H + 2*H, 2*L*16*C*2,
           2*(L*(H*(H + 2*16) + H*H + 8*H*H) + V*H) + L*full),
    mixtral=(dict(model_type="mixtral", **small, num_key_value_heads=2, num_local_experts=8, num_experts_per_tok=2),
           L*(attn + 8*H + 8*3*H*I + 2*H) + 2*V*H + H, 2*L*32*C*2, 2*(L*(attn + 8*H + 2*3*H*I) + V*H) + L*full),
    t5=(dict(model_type="t5", d_model=H, d_kv=16, d_ff=I, num_layers=3, num_decoder_layers=L, num_heads=4,
             vocab_size=V),
           V*H + 3*(4*H*H + 2*H*I + 2*H) + L*(8*H*H + 2*H*I + 3*H) + 2*(32*4 + H), L*2*H*(new + prompt)*2,
           2*(L*(6*H*H + 2*H*I) + V*H) + L*4*H*(new + prompt)),
    mamba=(dict(model_type="mamba", hidden_size=H, state_size=8, num_hidden_layers=L, vocab_size=V),
           L*(H*256 + 128*4 + 128 + 128*(4 + 16) + 4*128 + 128 + 128*8 + 128 + 128*H + H) + V*H + H, None, None))

def parameters(model): return sum(p.numel() for p in model.parameters())

@pytest.mark.parametrize("name", in_line(hand, "llama", "mixtral", "mamba", why="another architecture"))
def test_by_hand(name):
    "Parameters, cache and FLOPs of one token of eleven architectures."
    config, size, cache, flops = hand[name]
    model = language_model(config)
    assert next(model.parameters()).is_meta and parameters(model) == size
    work = ModelWithoutData(model).decode(prompt, new)
    if cache is not None: assert (work.cache.pairs, work.causal_flops) == (cache, flops)

@pytest.mark.parametrize("name", in_line(["llama", "mistral_window", "gpt2", "phi"], "mistral_window", "phi"))
def test_static_cache(name):
    "A preallocated cache of the context has the bytes that are counted."
    model = language_model(hand[name][0])
    heads, dim = getattr(model.config, "num_key_value_heads", None) or 4, 16
    cache = transformers.StaticCache(config=model.config, max_cache_len=C)
    cache.early_initialization(1, heads, dim, torch.bfloat16, torch.device("cpu"))
    assert ModelWithoutData(model).decode(prompt, new).cache.pairs == kept(cache)

@pytest.mark.parametrize("name", in_line(hand, "llama", ci=("mixtral", "gemma3", "t5"), why="another architecture"))
def test_grows_with_the_batch(name):
    "Three sequences have three times the FLOPs and the cache of one."
    model = language_model(hand[name][0])
    one, three = ModelWithoutData(model).decode(prompt, new), ModelWithoutData(model, 3).decode(prompt, new)
    assert three.flops == pytest.approx(3 * one.flops, rel=2e-3)
    assert (three.cache.pairs, three.cache.states) == (3 * one.cache.pairs, 3 * one.cache.states)

@pytest.mark.parametrize("name, prompt", [("llama", 64), ("llama", 16), ("llama", 24), ("mistral_window", 64),
                                          ("gpt2", 64)])
def test_prefill_by_hand(name, prompt):
    """A prompt, also one as long as a head is wide: products of all tokens, logits of the last, attention in full
    and below the diagonal, within the window."""
    work = ModelWithoutData(language_model(hand[name][0])).prefill(prompt)
    each = {"gpt2": 3*H*H + H*H + 8*H*H}.get(name, attn + 3*H*I)
    pairs = prompt * (prompt + 1) // 2 if name != "mistral_window" else 24 * 25 // 2 + (prompt - 24) * 24
    fixed = 2 * (L * prompt * each + V * H)
    assert (work.flops, work.causal_flops) == (fixed + L*4*H*prompt**2, fixed + L*4*H*pairs)

latent = dict(model_type="deepseek_v3", num_hidden_layers=2, first_k_dense_replace=2)
wide = latent | dict(hidden_size=7168, intermediate_size=18432, num_attention_heads=128, num_key_value_heads=128,
                     kv_lora_rank=512, q_lora_rank=1536,
                     qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, vocab_size=129280,
                     max_position_embeddings=65536)
narrow = latent | dict(hidden_size=1024, intermediate_size=2048, num_attention_heads=16, num_key_value_heads=16,
                       kv_lora_rank=128, q_lora_rank=256,
                       qk_rope_head_dim=32, qk_nope_head_dim=64, v_head_dim=64, vocab_size=32000)

@pytest.mark.parametrize("context", in_line([32, 128, 192, 512, 576, 32768], 128, 576))
def test_latent_attention_of_one_token_by_hand(context):
    """Two dense layers with the attention of DeepSeek V3: a query meets 512 + 64 elements of a compressed key, its
    weights 512 of a value. Few tokens are expanded, and multiplied in heads of 192 and 128; the context may be as
    long as any of the sizes."""
    fixed = 7168*1536 + 1536*128*192 + 7168*576 + 128*128*7168 + 3*7168*18432
    absorbed = 2 * 512*128*256 + 2*128*context * (512 + 64 + 512)
    expanded = 2 * context * 512*128*256 + 2*128*context * (192 + 128)
    flops = 2 * (2 * fixed + min(absorbed, expanded)) + 2*7168*129280
    assert ModelWithoutData(language_model(wide)).decode(context - 1, 1).causal_flops == flops
    if context == 32768: assert flops == 22_440_837_120

@pytest.mark.parametrize("tokens", in_line([16, 32, 64, 65, 96, 128], 64, 65))
def test_latent_attention_of_a_prompt_by_hand(tokens):
    """Keys of 96 and values of 64 in 16 heads: of all pairs, and of those below the diagonal, also where the prompt
    is as short as a head is wide."""
    work = ModelWithoutData(language_model(narrow)).prefill(tokens)
    fixed = 2 * (2*tokens * (1024*256 + 256*16*96 + 1024*160 + 128*16*128 + 16*64*1024 + 3*1024*2048)) + 2*1024*32000
    pairs = tokens * (tokens + 1) // 2
    assert (work.flops, work.causal_flops) == (fixed + 2 * 2*16*160 * tokens**2, fixed + 2 * 2*16*160 * pairs)

def test_model_is_left_alone():
    "Layers that stand in for others are gone afterwards, also after an error."
    model = language_model(hand["llama"][0])
    layers = list(model.model.layers)
    with pytest.raises(RuntimeError), one_of_each(model) as counts:
        assert counts == {"model.layers.0": L} and model.model.layers[3] is not layers[3]
        raise RuntimeError
    assert list(model.model.layers) == layers and not layers[0]._forward_hooks

# -- weights and bytes ----------------------------------------------------------------------------------------------

def test_weights_read():
    "The embedding table is read by rows, a tied one whole as the matrix of the logits; experts as expected."
    def point(name, b=1): return serve(hand[name][0], prompt, new, b, "H100").point("decode", b, "end")
    assert point("llama").weight_bytes == 2 * (hand["llama"][1] - V*H + H)
    assert point("llama", 4).weight_bytes == 2 * (hand["llama"][1] - V*H + 4*H)
    assert point("gpt2").weight_bytes == 2 * (hand["gpt2"][1] - 512*H
                                              + H)                       # one row of the positions
    dense = hand["mixtral"][1] - V*H - L*8*3*H*I
    for b in (1, 3):
        assert point("mixtral", b).weight_bytes == pytest.approx(2 * (dense + b*H + L*3*H*I*experts_read(8, 2, b)))

def test_the_limit_reads_the_experts_of_one_token():
    """Nothing says that tokens choose differently: 2 experts in each layer, however many tokens; the rest is read as
    expected."""
    result = serve(hand["mixtral"][0], prompt, new, (1, 64), "NVIDIA H100 80GB HBM3")
    for b in (1, 64):
        p = result.point("decode", b)
        assert p.weight_bytes - p.least_weight_bytes == pytest.approx(2 * L * 3 * H * I * (experts_read(8, 2, b) - 2))
        assert p.bytes == p.least_weight_bytes + p.kv_bytes + p.other_bytes
    assert any("the limit that all choose the same" in c for c in result.caveats)

@pytest.mark.parametrize("context", in_line([2, 22, 23, 24, 25, 72], 23, 24))
def test_window_by_hand(context):
    "A token reads as many keys as it sees: all up to the window of 24, and no more."
    config, seen = hand["mistral_window"][0], min(context, 24)
    work = ModelWithoutData(language_model(config)).decode(context - 1, 1)
    assert (work.cache.pairs, work.causal_flops) == (2*L*32*seen*2, products + 4*seen*H*L)
    assert set(work.heads.values()) == {4}         # also where PyTorch has the heads of a group as queries of one
    assert ModelWithoutData(language_model(config)).prefill(context).cache.pairs == 2*L*32*seen*2

def test_quantization_in_the_configuration():
    """Groups of 32 with a scale in 16 bits and a zero in 4, in each layer by its own name; other formats:
    nbs/work/quantized_checkpoints.ipynb."""
    stored = dict(quant_method="gptq", bits=4, group_size=32)
    model = serve(hand["llama"][0] | dict(quantization_config=stored), prompt, new, 1, "H100")
    matrices, others = L * (attn + 3*H*I), 2 * (2*V*H + (2*L + 1) * H)
    assert model.held_bytes == matrices * (4 / 8 + 2.5 / 32) + others
    for layer in (0, L - 1):
        stays = dict(stored, dynamic={rf"-:model\.layers\.{layer}\.mlp.*": {}})
        held = serve(hand["llama"][0] | dict(quantization_config=stays), prompt, new, 1, "H100").held_bytes
        assert held == (matrices - 3*H*I) * (4 / 8 + 2.5 / 32) + 2 * 3*H*I + others
    with pytest.raises(ValueError, match="int4/128"): stored_as("int5", language_model(hand["llama"][0]))
    with pytest.raises(ValueError, match="'mystery' is not known.*weights='int4/128'"):
        serve(hand["llama"][0] | dict(quantization_config=dict(quant_method="mystery")), prompt, new, 1, "H100")

def test_a_cache_of_other_elements_is_written_so():
    """A prompt and a token write keys and values in the bytes of the cache; ids take 8 B for each token, logits 2 B
    for each of the last."""
    def at(phase, **how): return serve(hand["llama"][0], prompt, new, 8, "H100", **how).point(phase, 8,
        *["end"] * (phase == "decode")).other_bytes
    for size in (1, 2, 0.5):
        assert at("prefill", cache_bytes=size) == 8 * (8*prompt + 2*V + 2*L*32*prompt * size)
        assert at("decode", cache_bytes=size) == 8 * (8 + 2*V + 2*L*32 * size)
    assert at("prefill") == at("prefill", cache_bytes=2) and at("decode") == at("decode", cache_bytes=2)
    assert at("prefill", cache_bytes=1, tensor_parallel=4) == 8 * ((8*prompt + 2*V) / 4
                                                                   + 2*L*32*prompt / 2)   # two heads on four devices

def test_tensor_parallel():
    "Matrices are divided; heads of the cache as far as there are any; what is sent follows the ring."
    config = hand["llama"][0]
    one, four = (serve(config, prompt, new, 2, "H100", tensor_parallel=n).point("decode", 2, "end") for n in (1, 4))
    norms, row = 2 * (2*L + 1) * H, 2 * 2 * H
    assert four.weight_bytes == (one.weight_bytes - norms - row) / 4 + norms + row
    assert four.kv_bytes == one.kv_bytes / 2                                # two heads of keys on four devices
    assert four.collective_bytes == 2 * L * (2 * 3 / 4) * (2 * H * 2)
    slow = serve(config, prompt, new, 2, "H100", tensor_parallel=4, network=1e6).point("decode", 2)
    assert slow.bound == "network" and slow.limit_s == slow.collective_bytes / 1e6

@pytest.mark.parametrize("devices, fullest", [(1, 8), (3, 3), (7, 2),
                                              *(pytest.param(*n, marks=heavy_only("other numbers of devices"))
                                                for n in ((2, 4), (5, 2), (6, 2), (8, 1), (12, 1)))])
def test_heads_of_the_cache_stay_whole(devices, fullest):
    """Eight heads of 16: the device that holds most of them decides how much is read, how much fits, and how long
    attention takes."""
    config = hand["llama"][0] | dict(hidden_size=256, num_attention_heads=16, num_key_value_heads=8)
    def at(n): return serve(config, prompt, new, 4, "NVIDIA H100 80GB HBM3", tensor_parallel=n)
    point = at(devices).point("decode", 4, "end")
    assert point.kv_bytes == 4 * 2*L*C*2 * 16 * fullest
    if 16 % devices: assert point.expected_s is None                        # no server was measured so

@pytest.mark.parametrize("heads, kv_heads, devices, says", [
    (16, 8, 3, "16 attention heads and 8 KV heads"), (16, 8, 16, ""), (16, 8, 8, ""),
    (16, 8, 32, "16 attention heads"), (12, 6, 4, "6 KV heads"), (12, 1, 4, "")])
def test_heads_that_cannot_be_divided_are_said(heads, kv_heads, devices, says):
    """Heads of queries divide over the devices; of keys too, or each lies on as many: vLLM starts with no other
    degree. The limit stays."""
    config = hand["llama"][0] | dict(hidden_size=16 * heads, head_dim=16, num_attention_heads=heads,
                                     num_key_value_heads=kv_heads)
    found = serve(config, prompt, new, 4, "NVIDIA H100 80GB HBM3", tensor_parallel=devices)
    said = [c for c in found.caveats if "cannot be divided" in c]
    assert said == ([f"{says} cannot be divided evenly over {devices} devices"] if says else [])
    assert all(p.limit_s > 0 and (p.expected_s is None) == bool(says) for p in found.points)
    if says:
        assert (said[0] in " ".join(found.text().split()) and said[0] in found.render()
                and found.to_dict()["caveats"] == found.caveats)
    assert ("No expected time: uneven splits of heads were never measured." in found.caveats[-1]) == bool(says)

@pytest.mark.parametrize("name", in_line(["mistral_window", "deepseek_latent", "gpt2"], "mistral_window"))
def test_the_heads_that_are_said_are_those_of_the_configuration(name):
    "Windows, a compressed cache, other names: four heads divide over two devices, over three not."
    def said(n): return [c for c in serve(hand[name][0], 16, 8, 1, "H100", tensor_parallel=n).caveats
                         if "cannot be divided" in c]
    assert said(2) == [] and said(3)[0].startswith("4 attention heads"), name

# What the makers' files of weights hold. DeepSeek's has 58 · 256 numbers more, which the library keeps as buffers.
alike = dict(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, vocab_size=32000)
sizes = {6_738_415_616: dict(alike, model_type="llama", intermediate_size=11008),
         7_241_732_096: dict(alike, model_type="mistral", intermediate_size=14336, num_key_value_heads=8,
                             sliding_window=4096),
         46_702_792_704: dict(alike, model_type="mixtral", intermediate_size=14336, num_key_value_heads=8,
                              num_local_experts=8, num_experts_per_tok=2),
         124_439_808: dict(model_type="gpt2"),
         60_506_624: dict(model_type="t5", d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8,
                          vocab_size=32128),
         2_779_683_840: dict(model_type="phi", hidden_size=2560, intermediate_size=10240, num_hidden_layers=32,
                             num_attention_heads=32, vocab_size=51200),
         129_135_360: dict(model_type="mamba", hidden_size=768, num_hidden_layers=24, vocab_size=50280),
         30_532_122_624: dict(model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, num_hidden_layers=48,
                              num_attention_heads=32,
                              num_key_value_heads=4, head_dim=128, vocab_size=151936, num_experts=128,
                              num_experts_per_tok=8, moe_intermediate_size=768),
         999_885_952: dict(model_type="gemma3_text", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
                           num_attention_heads=4,
                           num_key_value_heads=1, head_dim=256, vocab_size=262144),
         671_026_419_200 - 58 * 256: dict(model_type="deepseek_v3")}

@pytest.mark.parametrize("size", in_line(sizes, 7_241_732_096, 124_439_808, ci=(60_506_624, 30_532_122_624),
                                         why="another published model"), ids=lambda n: f"{n / 1e9:.1f}G")
def test_published_sizes(size):
    "Parameters of published models, and a limit for each in seconds."
    result = serve(sizes[size], 256, 16, (1, 8), "NVIDIA H200")
    assert result.parameters == size
    assert all(p.limit_s > 0 and p.weight_bytes <= result.held_bytes for p in result.points)

def test_the_number_of_devices_is_noted_of_one_degree_alone():
    "A series has rows of one device and of two: its notes cannot say of how many the rates are."
    from view_kinds import llama
    def said(degrees): return [n for n in serve(llama, on="NVIDIA H100 80GB HBM3", tensor_parallel=degrees).notes
                               if "tokens/s for all" in n]
    assert said(2) == ["figures are per device, tokens/s for all 2 devices"] and said([1, 2]) == []

@heavy_only("a large model; sizes of published models are in the line")
def test_published_70b():
    """Llama 3.1 70B by the numbers of its configuration: 70 553 706 496 parameters, in seconds and without memory for
    them."""
    config = dict(model_type="llama", hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
                  num_attention_heads=64,
                  num_key_value_heads=8, vocab_size=128256, max_position_embeddings=131072,
                  rope_parameters=dict(rope_theta=5e5, rope_type="default"))
    result = serve(config, 2048, 256, (1, 64), "NVIDIA H100 80GB HBM3", tensor_parallel=4)
    assert result.parameters == 70_553_706_496
    point = result.point("decode", 64, "end")
    assert point.kv_bytes == 2 * 80 * 8 * 128 * 2304 * 2 * 64 / 4
    assert point.causal_flops == 64 / 4 * (2 * (70_553_706_496 - 128256 * 8192 - 161 * 8192) + 80 * 4 * 2304 * 8192)

@nightly_only("time and memory of what test_published_70b counts")
def test_70b_time_and_memory(tmp_path):
    "The command on a 70B configuration: under 2 GB, and under 10 s of CPU time behind its imports."
    config = transformers.LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
                                      num_attention_heads=64, num_key_value_heads=8,
                                      vocab_size=128256, architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path)
    code = ("import resource, time, transformers, fasterbench.serving.serve as s; t = time.process_time(); "
            f"s.serve({str(tmp_path)!r}); print(time.process_time() - t, "
           "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)")
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    seconds, gb = map(float, out.stdout.split())
    assert seconds < 10 and gb < 2, out.stdout

# -- published tables -----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("file", benchmark.devices)
def test_decode_attention(file):
    "No row of the measurements is above the level roofs."
    pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    shared_file("aiconfigurator", f"{file}_decode_attention_vllm.parquet")
    rows, peaks = benchmark.attention_rows(file)
    assert len(rows) > 10_000 and not [r for r in rows if r[3] > r[2]]
    faster = [b for b, _, t, _ in rows if b / peaks.peak_bandwidth > t]
    assert all(b < 1.3 * peaks.memory[0].capacity for b in faster) and bool(faster) == (file == "l40s")

@heavy_only("counts five forwards, once a week fifteen")
def test_gpt_fast():
    """Published rates of a program without a server: GB/s of weights within 2 %, rates below the limit, and the median
    error of the expected time; the limit is off by 45 %."""
    rows = [benchmark.gptfast_row(*r) for r in benchmark.gpt_fast[:: 1 if nightly else 3]]
    assert [r for r in rows if abs(r["held"] / r["published"] - 1) > 0.02 or r["rate"] >= r["limit"]] == []
    assert all(r["expected"] < r["limit"] for r in rows)
    assert sorted(abs(r["rate"] / r["expected"] - 1) for r in rows)[len(rows) // 2] < 0.1

@nightly_only("counts 38 pairs of forwards")
def test_servers():
    """Published runs of servers: none above the limit, the expected time per token near, most of them inside the
    interval."""
    from math import log
    from fasterbench.predicting.expected import z80
    from fasterbench.serving.serve_times import server_spread
    shared_file("aiconfigurator", "servers.csv")
    runs, left = benchmark.server_runs(5)
    assert len(runs) > 250 and sum(left.values()) < 0.06 * (len(runs) + sum(left.values()))
    assert not [r for r in runs if r["limit"] > r["measured"] or r["prefill_limit"] > r["ttft"]]
    off = sorted(abs(sum(r["parts"].values()) / r["measured"] - 1) for r in runs)
    inside = [abs(log(sum(r["parts"].values()) / r["measured"])) <= z80 * server_spread["decode"].value for r in runs]
    rates = sorted(abs(r["requests"] / benchmark.answered(r) - 1) for r in runs)
    assert rates[len(rates) // 2] < 0.14
    # wide enough for a model and an engine left out
    assert off[len(off) // 2] < 0.14 and 0.75 < sum(inside) / len(inside) < 0.95

def test_expected_time_by_hand():
    "A token of a server: the forward, the prompts of the other requests, and the server itself."
    r = serve(hand["llama"][0], prompt, new, (1, 8), "NVIDIA H100 80GB HBM3")
    one, eight, first = r.point("decode", 1), r.point("decode", 8), r.point("prefill", 1)
    assert (one.expected_s == pytest.approx(sum(one.parts_s.values()))
            and one.interval_s[0] < one.expected_s < one.interval_s[1])
    assert eight.parts_s["prefills"] == pytest.approx(8 * first.expected_s / new) and eight.parts_s["server"] == 0.5e-3
    # four layers with four products each (queries, keys and values are one, and so are gate and up) and the logits
    cycles = (4 * 4 + 1) * (4400 + 1000)
    assert one.parts_s["products"] == pytest.approx(cycles / 1.98e9, rel=0.2)
    assert one.parts_s["attention"] > 4 * 21000 / 1.98e9 and one.parts_s["reduce"] == 0
    bare = serve(hand["llama"][0], prompt, new, 1, "NVIDIA H100 80GB HBM3", engine="bare").point("decode", 1)
    assert set(bare.parts_s) == {"products", "attention", "others", "reduce"} and bare.limit_s == one.limit_s
    two = serve(hand["llama"][0], prompt, new, 1, "NVIDIA H100 80GB HBM3", tensor_parallel=2).point("decode", 1)
    assert two.parts_s["reduce"] == pytest.approx(8 * (8e-6 + 2 * H / (0.75 * 450e9)))

def test_math_and_formats():
    """Quantized matrices multiply in their own dtype where the device has it; others by request, with an error that
    says which."""
    def peak(**how): return serve(hand["llama"][0], prompt, new, 1, how.pop("on", "NVIDIA B200"), **how).peak_flops
    assert peak() == 2.25e15 and peak(weights="fp8") == 4.5e15 and peak(weights="nvfp4") == 9e15
    assert peak(weights="nvfp4", on="NVIDIA H100 80GB HBM3") == 989.4e12 and peak(weights="int8") == 2.25e15
    assert peak(weights="int4/128", math="fp8") == 4.5e15
    # AMD's tables: 2614.9 TFLOP/s for the fp8 of MI300X, which is e4m3fnuz; 1307.4 in bfloat16
    mi300x = dict(on="AMD Instinct MI300X")
    assert peak(**mi300x) == 1307.4e12 and peak(weights="fp8", **mi300x) == peak(math="fp8", **mi300x) == 2614.9e12
    with pytest.raises(ValueError, match="float8_e5m2.*no peak"): peak(math="float8_e5m2", **mi300x)
    with pytest.raises(ValueError, match="fp4.*no peak"): peak(math="fp4", on="NVIDIA H100 80GB HBM3")
    with pytest.raises(ValueError, match="trtllm"): peak(engine="ollama")

def test_devices_and_degrees():
    "The largest batch within a time per token: it is within, one more is not; the price by hand."
    big = hand["llama"][0] | dict(hidden_size=2048, intermediate_size=5504, num_attention_heads=16,
                                  num_hidden_layers=24)
    found = serve(big, 1024, 256, on=["NVIDIA H100 80GB HBM3", "NVIDIA L40S"], tensor_parallel=(1, 2), tpot=0.01,
                  price=[3.6, 1.8])
    assert [(o.device, o.devices) for o in found.options] == [(d, n) for d in ("NVIDIA H100 80GB HBM3", "NVIDIA L40S")
                                                              for n in (1, 2)]
    o = found.options[0]
    def at(b): return serve(big, 1024, 256, b, o.device).point("decode", b).expected_s
    assert at(o.batch) <= 0.01 < at(o.batch + 1) and o.batch < o.most_batch
    # all its time is paid by its prompts and its tokens: 1024 and 256 of a request
    assert (1024 * o.input_price + 256 * o.output_price == pytest.approx(1e3 * o.requests_price)
            == pytest.approx(3.6 / 3600 / (o.batch / o.expected_s) * 256 * 1e6))
    assert [p.price for p in found.options] == [3.6, 3.6, 1.8, 1.8] and [p.checked for p in found.options] == [True,
        True, False, False]
    assert (sum(o.parts_s.values()) == pytest.approx(o.expected_s)
            and f"per output token {o.expected_s * 1e3:.2f} ms = " in found.told[-1])
    two = found.options[1]
    assert two.expected_per_device == pytest.approx(two.batch / two.expected_s / 2)
    assert "time per token at most 10.00 ms" in " ".join(found.text().split()) and len(found.csv().splitlines()) == 5
    assert any("bandwidth between devices unknown" in n for n in found.notes)
    one, two = serve(big, 1024, 256, tpot=0.01), serve(big, 1024, 256, 4,
                                                       tensor_parallel=[2])  # one row each, by what was asked
    assert one.options[0].batch == o.batch and [(o.devices, o.batch) for o in two.options] == [(2, 4)]
    for how, word in ((dict(price=[1, 2]), "one price is needed"),
                      (dict(batch=4, tpot=0.01), "which searches for the batch"), (dict(on=[]), "at least one"),
                      (dict(on=["H100", "L40S"], batch=4, measured={4: 100.0}), "one device")):
        with pytest.raises(ValueError, match=word): serve(big, 1024, 256, **how)

def test_a_batch_that_does_not_fit_is_not_the_best():
    """Memory for 6 and 20 sequences: at batch 8 the first device is shown, said not to fit, and not named as the
    fastest; at 4 it is."""
    option = ServeOption("NVIDIA H200", 1, 6, 8, 1e-3, 2e-3, (1.5e-3, 3e-3), 8e3, 4e3, bound="memory")
    slower = replace(option, device="NVIDIA L40S", most_batch=20, limit_s=4e-3, limit_per_device=2e3, expected_s=8e-3,
                     interval_s=(6e-3, 12e-3), expected_per_device=1e3)
    eight = ServeSeries("net", (option, slower), 64, 8, batch=8)
    assert eight.told == ["most tokens/s per device: L40S, batch 8, 1.00k expected (666.67 to 1.33k)",
                          "L40S: memory-bound limit of decode alone 2.00k tokens/s per device"]
    assert ("64 prompt tokens, 8 new tokens; batch 8" in eight.lines and "batch 8 does not fit: H200" in eight.lines
            and "largest" not in eight.text())
    assert list(eight.plot().data[0].y) == ["H200, batch 8: does not fit", "L40S, batch 8"]
    none = replace(eight, options=(option,))
    assert none.text().startswith(*none.told)
    four = replace(eight, options=tuple(replace(o, batch=4) for o in eight.options), batch=4)
    assert four.told[0].startswith("most tokens/s per device: H200") and "does not fit" not in str(
        four.lines)
    assert (replace(four, batch=None).lines[2].endswith("; the largest batch that fits")
            and serve_from_dict(eight.to_dict()) == eight)

def test_what_is_of_some_devices_names_them():
    """fp8 is multiplied in fp8 on an H100, and in the dtype of the model on an A100, which has no peak of it; what is
    of both names none."""
    def notes(*on): return serve(hand["llama"][0], 64, 16, 1, on=list(on), weights="fp8").notes
    h100, a100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
    assert [n.rpartition(" multiplied in ")[2] for n in notes(h100, a100)
            if "multiplied in" in n] == [f"float8_e4m3fn ({h100})", f"bfloat16 ({a100})"]
    assert [n.rpartition(" multiplied in ")[2] for n in notes(h100, h100) if "multiplied in" in n] == ["float8_e4m3fn"]

def test_the_engine_that_is_meant_is_said():
    def said(**engine): return serve(hand["llama"][0], 64, 16, 1, on="NVIDIA H100 80GB HBM3", **engine).notes[0]
    assert "a server (vllm, trtllm or sglang) with" in said() and "a server (vllm) with" in said(engine="vllm")
    bare = said(engine="bare")
    assert ("a server (" not in bare and "1403" in said() and "1403" not in bare
            and "15 published decode rates of gpt-fast" in bare)

nan, infinite = float("nan"), float("inf")
_rate, _whole = "a positive, finite number is needed", "a whole number of at least 1 is needed"

@pytest.mark.parametrize("wrong, error, says", [
    *((dict(network=v), ValueError, f"network={v!r}: {_rate}, or NetworkPeaks")
      for v in (-5, 0, nan, infinite, "fast", True)),
    *((dict(cache_bytes=v), ValueError, f"cache_bytes={v!r}: {_rate}") for v in (-1, 0, nan, infinite, "fp8")),
    *((dict(measured={8: v}), ValueError, f"measured={{8: …}}: its rate={v!r}: {_rate}")
      for v in (-5, 0, nan, "fast", None)),
    (dict(measured={("prefill", 8): -5}), ValueError, "measured={('prefill', 8): …}: its rate=-5"),
    *((dict(measured={k: 5.0}), ValueError,
       f"measured={{{k!r}: …}}: the batches are 1, 8, 64, and the phases prefill, decode")
      for k in (7, "8", ("prefil", 8), ("prefill", 7), ("decode", 8, "end"))),
    (dict(measured={1: 5.0}, batch=8), ValueError, "the batches are 8,"),
    (dict(measured=5), TypeError, "measured is a int; a dict of"),
    (dict(measured={1: 5.0}, tensor_parallel=[1, 2]), ValueError, "one device and degree"),
    *((dict(batch=v), ValueError, f"batch={v!r}: {_whole}") for v in ([], 1.5, "8", 0, True)),
    (dict(batch=[8, 1.5]), ValueError, f"batch=1.5: {_whole}"),
    *((dict(tensor_parallel=v), ValueError, f"tensor_parallel={v!r}: {_whole}") for v in (0, 2.5, "2", True)),
    (dict(tensor_parallel=[]), ValueError, "at least one of each"),
    (dict(prompt=1.5), ValueError, f"prompt=1.5: {_whole}"),
    *((dict(reserve=v), ValueError, f"reserve={v!r}: a f") for v in ("a", nan, -0.1, 1)),
    (dict(split_head="no"), TypeError, "split_head is a str; True or False")])
def test_what_cannot_be_is_said_at_once(wrong, error, says, monkeypatch):
    "What was given and what is valid, before a model is made."
    monkeypatch.setattr("fasterbench.serving.serve.language_model", lambda config: pytest.fail("a model was made"))
    with pytest.raises(error) as raised: serve(hand["llama"][0], **wrong)
    assert says in str(raised.value)

@heavy_only("counts again")
def test_whole_numbers_of_other_libraries_are_taken():
    import numpy as np
    one, other = (serve(hand["llama"][0], n(64), n(8), [n(1), n(8)], tensor_parallel=n(2)).points
                  for n in (int, np.int64))
    assert one == other

def test_the_first_note_is_a_sentence():
    "Of a datasheet and of measured roofs, with an expected time and without."
    def first(on): return serve(hand["llama"][0], 64, 16, 1, on).notes[0]
    h100 = as_peaks("NVIDIA H100 80GB HBM3")
    measured = replace(h100, environment={k: v for k, v in h100.environment.items() if k != "source"})
    assert first(h100).startswith("Nothing here was measured. limit: the minimum time at the datasheet roofs. "
                                  "expected: the time on a server")
    assert first(measured).startswith("Nothing here was measured. limit: the minimum time at the measured roofs. "
                                      "expected: the time on a server")
    assert first(HardwarePeaks(1e12, 1e11)) == ("limit: the minimum time at the measured roofs. "
                                                 "No expected time: the roofs are not those of a GPU in the table.")
    none = HardwarePeaks(1e12, 1e11, environment=dict(source="datasheet"))
    assert first(none).startswith("limit: the minimum time at the datasheet roofs. No expected time: ")

def test_a_rate_above_the_limit_is_said():
    """By the row of its batch; one at the limit and one of a prefill below it are not. What was given is not called
    unmeasured."""
    def of(measured): return serve(hand["llama"][0], 64, 16, (1, 8), "NVIDIA H100 80GB HBM3", measured=measured)
    plain = of(None)
    most = plain.point("decode", 8).tokens_per_s
    assert [c for m in (None, {8: most, ("prefill", 1): 1.0}) for c in of(m).caveats if "exceed" in c] == []
    found = of({8: 2 * most, ("prefill", 1): 1e12})
    said = [c for c in found.caveats if "exceed" in c]
    assert said[0].startswith("prefill at batch 1: the measured 1.00T tokens/s exceed the limit of ")
    assert len(said) == 2 and said[1].startswith("decode at batch 8: the measured ") and found.point("decode",
        8).mbu > 1
    assert all(c in " ".join(found.text().split()) and c in found.render()
               for c in said) and found.to_dict()["caveats"] == found.caveats
    assert plain.notes[0].startswith("Nothing here was measured. limit: ")
    assert (found.notes[0].startswith("Limit and expected are not measured; the measured rates were given. limit: ")
            and "Nothing" not in found.notes[0])

def test_columns_say_what_is_read():
    found = serve(hand["llama"][0], 64, 16, (1, 8), on="NVIDIA H100 80GB HBM3", measured={1: 9.0})
    assert [f["title"] for f in found._page()["kinds"][0]["columns"]].count("weights read") == 1
    lines = found._table().text(80).splitlines()
    assert max(map(len, lines)) <= 80 and "weights" in " ".join(lines)

# -- the result -----------------------------------------------------------------------------------------------------

def test_rates():
    "MFU and MBU by their definitions."
    result = serve(hand["llama"][0], prompt, new, (1, 2), "H100", measured={2: 5000.0, ("prefill", 1): 1e5})
    point, p = result.point("decode", 2), result.peaks
    assert point.mbu == pytest.approx((point.weight_bytes + point.kv_bytes) / 2 * 5000 / p.peak_bandwidth)
    assert point.mfu == pytest.approx(point.flops / 2 * 5000 / result.peak_flops)
    assert result.point("decode", 1).mbu is None
    first = result.point("prefill", 1)
    assert first.causal_mfu < first.mfu == pytest.approx(first.flops / prompt * 1e5 / result.peak_flops)

def test_saved(tmp_path):
    result = serve(hand["mixtral"][0], prompt, new, (1, 8), "NVIDIA L40S", measured={1: 100.0})
    result.to_json(tmp_path/"r.json")
    again = from_json(tmp_path/"r.json")
    assert again.to_dict() == result.to_dict() and again.text() == result.text()
    assert "tokens are routed to experts" in " ".join(result.text().split())
    with pytest.raises(ValueError, match="fasterbench.serve"): serve_from_dict({})

def test_bound_changes():
    "The batch from which decode is bound by compute: one less is not."
    config = hand["llama"][0] | dict(hidden_size=2048, intermediate_size=5504, num_attention_heads=16,
                                     num_key_value_heads=1)
    result = serve(config, prompt, new, 1, "NVIDIA H100 80GB HBM3")
    batch = result.crossings["end of decode"]
    below, there = (serve(config, prompt, new, b, "NVIDIA H100 80GB HBM3").point("decode", b, "end").bound
                    for b in (batch - 1, batch))
    assert (below, there) == ("memory", "compute")

def test_the_link_of_a_node_is_said_to_be_assumed_beyond_it():
    def sent(n, **how): return next(n for n in serve(hand["llama"][0], 64, 8, 1, tensor_parallel=n, **how).notes
                                    if n.startswith("collectives: "))
    assert sent(8).endswith("450.00 GB/s per direction (NVIDIA H100 80GB HBM3)") and sent(16,
        network=1e10).endswith("(NVIDIA H100 80GB HBM3)")
    assert sent(16).endswith(", assumed to reach more than the 8 devices of a node")

def test_a_clock_that_no_datasheet_prints_is_said():
    "NVIDIA prints 165.2 TFLOP/s at 2520 MHz for an RTX 4090, whose driver allows 3105 MHz: 203.5."
    result = serve(hand["llama"][0], 64, 8, 1, "NVIDIA GeForce RTX 4090")
    assert result.peak_flops == pytest.approx(165.2e12 * 3105 / 2520, rel=1e-3)
    assert next(l for l in result.lines if l.startswith("roofs: ")).endswith(" (at the highest clock, 3105 MHz)")
    series = serve(hand["llama"][0], 64, 8, 1, ["NVIDIA GeForce RTX 4090", "NVIDIA L40S"])
    assert ["3105 MHz" in roofs for roofs in series.roofs] == [True, False]

def test_why_a_device_of_the_table_has_no_expected_time():
    "The datasheet of an H20 has no float32, so no clock follows from it."
    result = serve(hand["llama"][0], 64, 8, 1, "NVIDIA H20")
    assert result.notes[0].endswith("No expected time: the clock of NVIDIA H20, which it needs, is unknown.")

def test_what_bounds_is_said_of_the_network_too():
    """Two devices of 1 TB/s send half a hidden state twice, for each of two sums a layer, through 50 GB/s; a byte
    sent takes as long as 20 read. All matrices are halved, norms and the row of the embedding are not; a device
    keeps one of the two heads of keys and values."""
    result = serve(hand["llama"][0], prompt, new, 1, HardwarePeaks(1e15, 1e12), tensor_parallel=2, network=5e10)
    weights, sent = products//2 + 2*(2*L*H + H), 20 * 2*L * 2*H
    at = {}
    for name, context in (("mid-decode", prompt + new // 2), ("end of decode", C)):
        # row, cache that is read and written, ids and logits
        each = 2*H + 2*L*16*context*2 + 2*L*16*2 + (8 + 2*V)//2
        at[name] = weights // (sent - each) + 1
    assert at == {"mid-decode": 62, "end of decode": 108}
    assert result.bounds_from == {"prefill": ((1, "network"),)} | {name: ((1, "memory"), (batch, "network")) for name,
                                                                   batch in at.items()}
    assert set(result.crossings.values()) == {None} and from_json(result.to_json()).bounds_from == result.bounds_from
    said = next(line for line in result.lines if line.startswith("limits: "))
    assert (said == "limits: prefill network-bound at every batch size; "
            + "; ".join(f"{k} network-bound from batch size {b} on" for k, b in at.items()))

@pytest.mark.parametrize("levels", ((), (MemoryLevel("L2", 2**20, 400e9), MemoryLevel("L3", 2**25, 200e9),
                                         MemoryLevel("DRAM", None, 40e9))))
def test_no_marker_stands_above_the_roofs(levels):
    """A model that fits in a cache stands above the roof of main memory, and under that of the cache, which is drawn
    too."""
    lines = serve(hand["gpt2"][0], prompt, new, (1, 8), HardwarePeaks(5e11, 40e9, levels=levels)).plot().data
    roofs, markers = ([t for t in lines if t.xaxis == "x2" and t.name.startswith("roof") == of_roof]
                      for of_roof in (True, False))
    highest = max(t.y[0] / t.x[0]
                  for t in roofs)                            # B/s: below the ridge a roof is a rate per intensity
    assert all(y <= 1.001 * min(5e11, highest * x) for t in markers for x, y in zip(t.x, t.y))
    assert [t.name.split()[-3] for t in roofs] == ([l.name for l in levels] or ["DRAM"])

@heavy_only("a process; the verb runs in its notebook")
def test_command(tmp_path):
    transformers.LlamaConfig(**small, num_key_value_heads=2,
                             architectures=["LlamaForCausalLM"]).save_pretrained(tmp_path)
    def run(*args): return python(command_line("serve", *args), root)
    out = run(f"transformers:{tmp_path}", "--on", "H100", "--prompt", "64", "--new", "8", "--batch", "1,8", "--json",
              str(tmp_path/"r.json"),
              "--html", str(tmp_path/"r.html"), "--measured", "8:1000")
    assert out.returncode == 0 and "mid-decode" in out.stdout and "MBU" in out.stdout, out.stderr
    assert (json.loads((tmp_path/"r.json").read_text())["schema"] == "fasterbench.serve"
            and (tmp_path/"r.html").stat().st_size > 10**5)
    wrong = run(f"transformers:{tmp_path/'none'}", "--on", "H100")
    assert wrong.returncode and "config" in wrong.stderr and "Traceback" not in wrong.stderr

@pytest.mark.parametrize("kind", ("dynamic", "static"))
def test_profile_of_a_step(kind):
    "One decode step with a filled cache is profiled; its rate stands below the limit, and the cache is as it was."
    from fasterbench import RooflineAnalyzer
    fields = dict(hand["llama"][0])
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.ones(2, prompt, dtype=torch.long)
    cache = (transformers.StaticCache(config=model.config, max_cache_len=C) if kind == "static"
             else transformers.DynamicCache(config=model.config))
    given = {next(n for n in cache_names if n in signature(type(model).forward).parameters): cache}
    with torch.no_grad(): model(input_ids=ids, use_cache=True, **given)
    before = [layer.keys.clone() for layer in cache.layers]
    roofs = HardwarePeaks(1e15, 1e14)
    found = RooflineAnalyzer(model, dict(input_ids=ids[:, :1], use_cache=True, **given), roofs).profile(steps=3,
        progress=False)
    assert int(cache.get_seq_length()) == prompt and all(torch.equal(a, l.keys) for a, l in zip(before, cache.layers))
    point = serve(model, prompt, new, 2, roofs, measured={2: found}).point("decode", 2)
    assert (point.measured_per_s == 2 / found.result.program.time_s and 0 < point.mbu < 1
            and point.measured_per_s < point.tokens_per_s)
    attended = C if kind == "static" else prompt + 1
    assert found.result.program.contraction_flops == pytest.approx(2 * (2 * (L * (attn + 3*H*I) + V*H)
        + L*4*attended*H), rel=1e-3)

@heavy_only("one more architecture")
def test_no_time_is_expected_of_layers_that_were_never_measured():
    "A model of recurrent states: the limit is given alone, and a sentence says why."
    config = dict(model_type="mamba", hidden_size=64, num_hidden_layers=2, vocab_size=256, state_size=8,
                  intermediate_size=128)
    result = serve(config, 16, 8, 1, "NVIDIA H100 80GB HBM3")
    assert all(p.expected_s is None and p.limit_s > 0 for p in result.points)
    text = " ".join(result.text().split())
    assert "No expected time: layers with a recurrent state were never measured" in text and "80 %" not in text
