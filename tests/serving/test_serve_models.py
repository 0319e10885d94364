"""Every class of transformers with a causal head, small: what is counted without data beside a real decode step;
figures by hand.

`python tests/benchmarks/serve_models.py` prints the table."""
import json, sys, threading
from pathlib import Path

import pytest, torch
from conftest import heavy_only, in_line, nightly

transformers = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent))

from fasterbench import from_json, serve
from fasterbench.serving.serve_work import ModelWithoutData, language_model, stored_as
from small_models import causal, compared, problem, small_config

# Stacks of one kind and of two, experts by every implementation, heads that differ by layer, loops, shared weights,
# states
few = "llama", "bart", "t5", "llama4_text", "gemma4_text", "dory", "zamba", "jetmoe", "dbrx"
by_chance = {"longcat_flash", "zaya"}      # a choice may be an expert that computes nothing: data decides

def agrees(name):
    try: small_config(name)
    except Exception as error: pytest.skip(f"the defaults of its configuration, made small, are not valid: {error}")
    try: found = compared(name)
    except ValueError as error:
        assert problem(error), error
        return None
    pairs = dict(cache=found.cache, flops=found.flops, weights=found.weights)
    if name in by_chance: pairs.pop("flops")
    assert {k: a for k, (a, b) in pairs.items()} == {k: pytest.approx(b, rel=1e-3) for k, (a, b) in pairs.items()}
    assert 0 < found.needed <= found.flops[0]
    return found

@pytest.mark.parametrize("name", in_line(few, "dory", ci=("llama4_text", "jetmoe")))
def test_a_step_without_data_is_a_real_step(name): assert agrees(name)

@heavy_only("builds five models, once a week two hundred")
@pytest.mark.parametrize("name", [n for n in causal if n not in few][::1 if nightly else 40])
def test_every_class_has_figures_or_a_sentence(name): agrees(name)

# -- by hand --------------------------------------------------------------------------------------------------------

def end(config, prompt=12, new=4, batch=1, **how):
    return serve(config, prompt, new, batch, **how).point("decode", batch, "end")
def config(kind, **fields): return transformers.AutoConfig.for_model(kind, **fields)

@heavy_only("counts four models")
def test_the_stack_that_keeps_the_cache_decides():
    """Keys and values of 64 in bfloat16, of the tokens made so far and of those of the prompt, in each layer of the
    decoder alone."""
    for encoder, decoder in ((5, 2), (2, 5)):
        bart = config("bart", encoder_layers=encoder, decoder_layers=decoder, d_model=64, encoder_attention_heads=4,
                      decoder_attention_heads=4,
                      encoder_ffn_dim=128, decoder_ffn_dim=128, vocab_size=100, max_position_embeddings=512)
        assert end(bart, 100, 20).kv_bytes == decoder * 2*64 * (20 + 100) * 2
        t5 = config("t5", d_model=64, d_kv=16, d_ff=96, num_layers=encoder, num_decoder_layers=decoder, num_heads=4,
                    vocab_size=320)
        assert end(t5, 100, 20).kv_bytes == decoder * 2*64 * (20 + 100) * 2

def test_sound_and_text():
    """Whisper: keys and values of 50 positions of sound, and of the text; in 2 layers of the decoder, not in 5 of
    the encoder."""
    whisper = config("whisper", d_model=64, encoder_layers=5, decoder_layers=2, encoder_attention_heads=4,
                     decoder_attention_heads=4,
                     encoder_ffn_dim=96, decoder_ffn_dim=96, vocab_size=320, num_mel_bins=8, max_source_positions=50,
                     max_target_positions=64,
                     pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    assert end(whisper).kv_bytes == 2 * 2*64 * (50 + 12 + 4) * 2

@heavy_only("one more architecture")
def test_pictures_and_text():
    "Qwen2-VL: 3 layers of text, however many the pictures have."
    text = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
                num_key_value_heads=2, vocab_size=320,
                rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[2, 3, 3]))
    for depth in (2, 7):
        vision = dict(depth=depth, embed_dim=32, hidden_size=64, num_heads=2)
        model = config("qwen2_vl", text_config=text, vision_config=vision)
        assert end(model).kv_bytes == 3 * 2*32 * 16 * 2

H, I, E, L, V, context = 64, 48, 8, 2, 256, 16
attention = L * (2 * (H*64 + 64*H) + 2 * (H*32 + H*32) + 4*64*context)      # q and o, k and v, scores and values, FLOP
base = dict(hidden_size=H, num_hidden_layers=L, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            vocab_size=V,
            pad_token_id=0, bos_token_id=1, eos_token_id=2)

@pytest.mark.parametrize("k", in_line((1, 3), 3))
def test_experts_that_the_code_runs_and_the_model_does_not_need(k):
    "Llama 4 multiplies each token by every expert: needed are the chosen and the shared one. Of the weights too."
    model = config("llama4_text", **base, intermediate_size=I, intermediate_size_mlp=96, num_local_experts=E,
                   num_experts_per_tok=k,
                   interleave_moe_layer_step=1)
    point = end(model)
    assert point.flops == point.causal_flops == attention + L * (2*H*E + (k + 1) * 2*3*H*I) + 2*H*V
    assert point.eager_flops == attention + L * (2*H*E + (E + 1) * 2*3*H*I) + 2*H*V
    many = end(model, batch=100_000)
    assert round(many.weight_bytes - point.weight_bytes) == L * (E - k) * 3*H*I * 2 + (V - 1) * H * 2
    assert any("8 times" in n or "times the FLOPs" in n for n in serve(model, 12, 4, 1).notes)

@pytest.mark.parametrize("implementation", ("eager", "grouped_mm"))
def test_experts_by_every_implementation(implementation):
    "Mixtral by a loop over those chosen, and by a grouped product."
    model = language_model(config("mixtral", **base, intermediate_size=I, num_local_experts=E, num_experts_per_tok=2))
    model.config._experts_implementation = implementation
    work = ModelWithoutData(model).decode(12, 4)
    assert work.causal_flops == work.code_flops == attention + L * (2*H*E + 2 * 2*3*H*I) + 2*H*V
    assert {(w.shape[0], w.chosen) for w in work.weights if w.role == "experts"} == {(E, 2)}
    assert (ModelWithoutData(model).prefill(12).causal_flops == 12 * L * (2 * (2*H*64 + 2*H*32) + 2*H*E + 2 * 2*3*H*I)
            + L * 4*64 * 12*13/2 + 2*H*V)

@heavy_only("one more architecture")
def test_experts_of_a_token_by_layer():
    "Hunyuan lists them by layer: 1 and 3 of 8."
    def read(batch):
        model = config("hunyuan_v1_moe", **base, intermediate_size=I, num_experts=E, moe_topk=[1, 3])
        return end(model, batch=batch).weight_bytes
    assert round(read(100_000) - read(1)) == (7 + 5) * 3*H*I * 2 + (V - 1) * H * 2

@heavy_only("one more architecture")
def test_heads_that_differ_by_layer():
    "Gemma 4: 5 layers with heads of 256, the sixth of 512; the devices share 2 heads of keys."
    model = config("gemma4_text", hidden_size=64, num_hidden_layers=6, num_attention_heads=4, num_key_value_heads=2,
                   intermediate_size=96,
                   vocab_size=256, hidden_size_per_layer_input=0, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    assert end(model).kv_bytes == 2*2 * (5*256 + 512) * 16 * 2 == 2 * end(model, tensor_parallel=2).kv_bytes
    assert end(model, on="NVIDIA H100 80GB HBM3").parts_s["attention"] > 0

def test_layers_that_a_loop_calls_again_keep_a_cache_each_time():
    "Dory: 2 layers before, 4 that run twice, 2 behind: 12 times keys and values; its weights are read as 8 layers."
    work = ModelWithoutData(language_model(small_config("dory"))).decode(12, 4)
    assert sum(k.layers for k in work.cache.kinds) == 2 + 2 * 4 + 2

@pytest.mark.parametrize("kind, fields", (
    ("bert", dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)),
    ("openai-gpt", dict(n_embd=64, n_layer=2, n_head=4)),
    pytest.param("rwkv", dict(hidden_size=64, num_hidden_layers=2), marks=heavy_only("a recurrence")),
    ("recurrent_gemma", dict(hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=96,
                             lru_width=64, vocab_size=256))))
def test_a_model_without_a_cache_has_a_sentence(kind, fields):
    with pytest.raises(
        ValueError, match="gives no cache of keys and values back.* so what a decode step reads is not "
                          "known") as raised:
        serve(config(kind, **fields), 10, 4)
    assert "\n" not in str(raised.value)

def test_what_cannot_be_made_has_a_sentence():
    for kind, says in ((("vit", "transformers has no language model for ViTConfig"),
                        ("reformer", "ReformerConfig cannot make a model: AssertionError: If"))):
        with pytest.raises(ValueError, match=says): serve(config(kind), 10, 4)

def test_another_thread_does_not_lengthen_the_cache():
    """Four layers of the cache, however many threads the process has: 4 layers, 2 × 32 of keys and values, 12 + 4
    tokens, 2 B."""
    model = config("llama", hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
                   num_key_value_heads=2, vocab_size=320)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try: assert end(model).kv_bytes == 4 * 2*32 * (12 + 4) * 2
    finally: done.set(); other.join()

# -- results --------------------------------------------------------------------------------------------------------

large = dict(model_type="llama", hidden_size=8192, intermediate_size=28672, num_hidden_layers=80,
             num_attention_heads=64, num_key_value_heads=8, vocab_size=128256)

def test_what_does_not_fit_is_said_first():
    one = serve(large, 64, 8, (1, 8), "NVIDIA H100 80GB HBM3")
    assert one.lines[0].startswith("does not fit in memory: 141.1") and "84.94 GB" in one.lines[0]
    assert one.text()[:60] == one.lines[0][:60]
    two = serve(large, 64, 8, 1, "NVIDIA H100 80GB HBM3", tensor_parallel=2)
    assert "does not fit" not in two.text()
    several = serve(large, 64, 8, on=["NVIDIA H100 80GB HBM3", "NVIDIA L40S"])
    assert several.text().splitlines()[0] == "fits on no device"

def test_saved_results_of_serving_are_read(tmp_path):
    small = large | dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=320)
    for result in (serve(small, 64, 8, 1), serve(small, 64, 8, 1, on=["NVIDIA H100 80GB HBM3", "NVIDIA L40S"])):
        result.to_json(tmp_path/"r.json")
        assert from_json(tmp_path/"r.json") == result
    data = json.loads((tmp_path/"r.json").read_text()) | dict(options=5)
    (tmp_path/"r.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="incomplete or damaged"): from_json(tmp_path/"r.json")

@pytest.mark.parametrize("text", ("int4/7", "int4/0", "int4/", "int8/12", "int4/-8", "int4/4"))
def test_groups_that_no_format_has_are_refused(text):
    with pytest.raises(ValueError, match="a power of two from 8 on"): stored_as(text, None)
