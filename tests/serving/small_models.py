"""Small models of every class with a causal head that transformers has, and what serving says of them beside a real
step.

A configuration is made of the defaults of its class: sizes are cut by the kind of their name, all else stays. The
few that are not valid so name what they need in `special`."""
import re
from typing import NamedTuple

import torch, transformers
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as causal

from fasterbench.serving.serve_work import ModelWithoutData, language_model
from fasterbench.work.count import count_work

layers, prompt, new = 8, 12, 4

sizes = [  # names of a size, and the small one
    (r"(vocab_size|\w+vocab_size|backbone_hidden_size)", None),
    (r"(\w*num_key_value_heads|num_kv_heads|kv_n_heads)", 2),
    (r"(\w*num_attention_heads|n_heads?|num_heads|attention_heads|\w+_attention_heads|linear_num_\w*heads"
     r"|linear_num_heads|index_n_heads|num_query_groups)", 4),
    (r"(hidden_size|d_model|n_embd|emb_dim|embedding_dim|embedding_size|word_embed_proj_dim|lru_width"
     r"|attention_hidden_size|\w+_embedding_size|pronunciation_embed_dim|shape_embed_dim|hidden_size_per_layer_input"
     r"|output_dim)", 64),
    (r"qk_rope_head_dim", 8), (r"qk_head_dim", 24),
    (r"(\w*head_dim|d_head|kv_channels|dim_head|\w+_head_size|rotary_dim)", 16),
    (r"(num_hidden_layers|n_layers?|num_layers|\w+_layers|num_blocks|depth)", layers),
    (r"(\w*intermediate_size\w*|\w*ffn_dim|\w*ffn_hidden_size|d_inner|dim_ff|dff|feed_forward_size|d_ff|block_ff_dim)",
     96),
    (r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts)", 8),
    (r"(num_experts_per_tok(en)?|moe_topk|moe_top_k|moe_k|n_group|num_expert_group|o_groups)", 2), (r"topk_group", 1),
    (r"(zero_expert_num|index_topk)", 4), (
        r"(vocab_size_per_layer_input|ngram_vocab_size_base|num_embeddings|codebook_size)", 256),
    (r"(q_lora_rank|o_lora_rank)", 24), (r"kv_lora_rank", 16),
]

default_rope = dict(rope_type="default", rope_theta=10000.0)
heads = dict(head_dim=16, num_key_value_heads=2)
linear, hybrid = "linear_attention", "hybrid"
special = dict(
    bamba=dict(attn_layer_indices=[1, 5]), blt=dict(encoder_hash_byte_group_vocab=64),
    cohere_compass_text=dict(rope_parameters=dict(full_attention=None, sliding_attention=default_rope)),
    dbrx=dict(attn_config=dict(kv_n_heads=2, rope_theta=10000.0, clip_qkv=8),
              ffn_config=dict(ffn_hidden_size=96, moe_num_experts=8, moe_top_k=2)),
    deepseek_v2=dict(num_experts_per_tok=2), dory=dict(n_input_layers=2, n_recurrent_layers=4, n_output_layers=2),
    dots1=dict(num_local_experts=8, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2),
    gemma3n_text=dict(num_hidden_layers=10, num_kv_shared_layers=5, activation_sparsity_pattern=None,
                      intermediate_size=96),
    gpt_neo=dict(attention_types=[[["global", "local"], 4]]),
    granitemoehybrid=dict(layer_types=["mamba", "attention"] * 4, num_experts_per_tok=2),
    hunyuan_v1_dense=heads, hunyuan_v1_moe=heads | dict(moe_topk=2, num_experts=8), ministral=heads, nemotron=heads,
    lfm2_moe=dict(layer_types=["conv", "conv", "full_attention", "conv"] * 2), mamba2=dict(num_heads=8),
    reformer=dict(axial_pos_embds_dim=[16, 48]), xmod=dict(default_language="en_XX"),
    zamba=dict(attention_hidden_size=128, attention_head_dim=32, num_key_value_heads=4),
    zamba2=dict(layers_block_type=[linear, linear, hybrid, linear] * 2, attention_hidden_size=128,
                attention_head_dim=32, num_key_value_heads=4))
special["dots3_note_text"] = dict(per_layer_config={}, head_dim=24)
special["dots3_note"] = dict(text_config=special["dots3_note_text"])
special["gemma4_assistant"] = dict(text_config=dict(hidden_size_per_layer_input=0))
special["gemma3n"] = dict(text_config=special["gemma3n_text"])

def small_fields(config):
    "Return the sizes of a configuration that are cut, with their small values."
    found = {}
    given = config.to_dict() if isinstance(config, PretrainedConfig) else config
    for name, value in given.items():
        sub = vars(config).get(name)
        if isinstance(sub, PretrainedConfig):
            found[name] = small_fields(sub) | dict(model_type=sub.model_type); continue
        if isinstance(value, bool) or not isinstance(value, int): continue
        if name.endswith(("token_id", "token_index", "_index")) and value >= 256: found[name] = 3; continue
        if name == "num_key_value_heads" and given.get("kv_lora_rank"): found[name] = 4; continue
        if name == "head_dim" and given.get("qk_rope_head_dim"): found[name] = 8; continue
        for pattern, size in sizes:
            if re.fullmatch(pattern, name):
                if size is None: size = 256
                if value > size: found[name] = size
                break
    return found

def small_config(name):
    "Return a small configuration of a model type."
    kind = CONFIG_MAPPING[name]
    base = kind()
    fields = small_fields(base)
    if getattr(base, "is_decoder", True) is False: fields["is_decoder"] = True        # else it has no causal mask
    for k, v in special.get(name, {}).items():
        fields[k] = fields.get(k, {}) | v if isinstance(v, dict) and isinstance(fields.get(k), dict) else v
    return kind(**fields)

def kept(cache):
    "Bytes of a real cache object: all tensors in its layers that are keys, values or states."
    sides = ([getattr(cache, n) for n in ("self_attention_cache", "cross_attention_cache") if hasattr(cache, n)]
             or [cache])
    names = "keys", "values", "indexer_keys", "conv_states", "recurrent_states"
    held = [getattr(l, n, None) for side in sides for l in side.layers for n in names]
    tensors = [t for h in held if h is not None for t in (h.values() if isinstance(h, dict) else [h])]
    return sum(t.numel() * t.itemsize for t in tensors if t is not None)

class Compared(NamedTuple):
    "A decode step: as it is counted without data, and a real one."
    cache: tuple      # Bytes: counted, real
    flops: tuple      # Of contractions, as the code runs them
    weights: tuple    # Bytes of weights read, those of experts and tables aside
    needed: float     # FLOPs that the model needs
    experts: set      # (experts, chosen)

def real_step(config):
    """Run a model with weights over the prompt and a token behind it. Gives the model, its cache, and the work of
    the step."""
    torch.manual_seed(0)
    without_data = language_model(config)             # of pictures and text, it takes the configuration of the text
    kind, config = type(without_data), without_data.config
    model, ids = (kind._from_config(config, dtype=torch.bfloat16).eval(),
                  torch.ones(1, prompt + new - 1, dtype=torch.long))
    with torch.no_grad():
        if hasattr(config, "num_mel_bins"):
            sound = torch.zeros(1, config.num_mel_bins, 2 * config.max_source_positions, dtype=torch.bfloat16)
            out = model(input_features=sound, decoder_input_ids=ids, use_cache=True)
        elif config.is_encoder_decoder:
            out = model(input_ids=ids[:, :prompt], decoder_input_ids=ids[:, :new - 1], use_cache=True)
        else: out = model(input_ids=ids, use_cache=True)
        name = next(n for n in ("cache", "past_key_values", "cache_params") if n in out.keys() and out[n] is not None)
        fields = {name: out[name], "use_cache": True}
        encoded = BaseModelOutput(last_hidden_state=out.get("encoder_last_hidden_state"))
        if config.is_encoder_decoder: fields |= dict(encoder_outputs=encoded, decoder_input_ids=ids[:, :1])
        else: fields |= dict(input_ids=ids[:, :1])
        counted = count_work(model, fields)
        model(**fields)
    return model, out[name], counted

def weights_read(model, counted):
    "Names of the parameters that a counted run read: blocks of memory are numbered in the order of the parameters."
    names = {}
    for n, p in model.named_parameters(): names.setdefault(p.untyped_storage().data_ptr(), n)
    touched = {t.storage for c in counted.trace for t in c.reads}
    return [n for i, n in enumerate(names.values()) if i in touched]

def same_in_all_layers(name): return re.sub(r"\d+", "*", name)

def compared(name):
    "Return what is counted of a step of the class `name` beside a real one."
    config = small_config(name)
    work = ModelWithoutData(language_model(config)).decode(prompt, new)
    model, cache, counted = real_step(config)
    aside = {same_in_all_layers(w.name) for w in work.weights if w.role in ("experts", "rows")}
    sizes = {n: p.numel() * p.itemsize for n, p in model.named_parameters() if same_in_all_layers(n) not in aside}
    read = set(weights_read(model, counted)) & set(sizes)
    mine = sum(w.size * w.itemsize for w in work.weights
               if same_in_all_layers(w.name) in {same_in_all_layers(n) for n in sizes})
    made = sum(c.dense_flops or 0 for c in counted.trace)
    return Compared((work.cache.objects, kept(cache)), (work.code_flops, made), (mine, sum(sizes[n] for n in read)),
                    work.causal_flops, {(w.shape[0], w.chosen) for w in work.weights if w.role == "experts"})

def problem(error):
    "Whether an error is one sentence that says what was tried: of `serve`, not of the code below it."
    return isinstance(error, ValueError) and (" cannot " in str(error) or " gives no cache " in str(error) or
                                              " has no language model for " in str(error) or
                                              " reads what is in a tensor " in str(error)) and "\n" not in str(error)
