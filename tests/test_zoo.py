"Counts over whole families of models: published totals, and no operator without a rule."
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from conftest import heavy, heavy_only, in_line, nightly
from fasterbench.work.count import count_work

pytestmark = heavy_only("needs torchvision, transformers and two minutes")
torchvision = pytest.importorskip("torchvision") if heavy else None

@contextmanager
def parameters_on_meta():
    "Modules made within hold no parameter data, however large they are; buffers and code run as usual."
    plain = nn.Module.register_parameter
    def register(self, name, p):
        plain(self, name, None if p is None else nn.Parameter(p.to("meta"), requires_grad=p.requires_grad))
    nn.Module.register_parameter = register
    try: yield
    finally: nn.Module.register_parameter = plain

def quiet_model(name, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torchvision.models.get_model(name, weights=None, **kwargs)

# Families that differ most, for `.ci/run`; the nightly run takes all models.
families_of_pictures = "convnext_tiny efficientnet_b0 mobilenet_v3_small resnet18 swin_t vit_b_16".split()
kinds_of_networks = [("detection", "ssdlite320_mobilenet_v3_large"), ("segmentation", "lraspp_mobilenet_v3_large"),
                     ("video", "s3d"), ("optical_flow", "raft_small"), ("quantization", "quantized_mobilenet_v2")]

def classifiers():
    if not heavy: return []
    return torchvision.models.list_models(module=torchvision.models) if nightly else families_of_pictures

@pytest.mark.parametrize("name", classifiers())
def test_published_totals(name):
    """Contractions agree with the multiply-accumulates that torchvision publishes for every set of weights, to half
    a percent or to their last digit."""
    sizes = {w.transforms().crop_size[0]: w for w in torchvision.models.get_model_weights(name)}
    for size, weights in sizes.items():
        with parameters_on_meta():
            model = quiet_model(name, **({"image_size": size} if name.startswith("vit") else {})).to("meta")
        work = count_work(model, torch.empty(1, 3, size, size, device="meta"))
        published = weights.meta["_ops"]
        assert work.unknown_ops == {}
        assert abs(work.contraction_flops / 2e9 - published) <= max(0.005 * published, 0.0005), (
            f"{weights}: {work.contraction_flops / 2e9} against {published}")

def others():
    if not heavy: return []
    if not nightly: return kinds_of_networks
    models = torchvision.models
    return [(m.__name__.rpartition(".")[2], n)
            for m in (models.detection, models.segmentation, models.video, models.optical_flow, models.quantization)
            for n in models.list_models(module=m)]

def network_of(kind, name):
    "A network of torchvision that is no classifier, and its sample."
    torch.manual_seed(0)
    extra = (dict(quantize=True) if kind == "quantization" else dict(weights_backbone=None)
             if kind in ("detection", "segmentation") else {})
    # left out, pictures are made 800 wide
    if "rcnn" in name or name.startswith(("fcos", "retinanet")): extra |= dict(min_size=128)
    side = 224 if name.startswith(("mvit", "s3d")) else 112
    sample = dict(detection=([torch.rand(3, 128, 128)],), segmentation=torch.rand(1, 3, 64, 64),
                  video=torch.rand(1, 3, 16, side, side),
                  optical_flow=(torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)),
                  quantization=torch.rand(1, 3, 299 if "inception" in name else 224,
                                          299 if "inception" in name else 224))[kind]
    return quiet_model(name, **extra), sample

@pytest.mark.parametrize("kind, name", others())
def test_every_operator_has_a_rule(kind, name):
    work = count_work(*network_of(kind, name))
    assert work.unknown_ops == {} and work.contraction_flops > 0

tiny = dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
seq2seq = dict(vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
               decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48)
vision = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32,
              patch_size=8)
ids, pixels = dict(input_ids=(2, 16)), dict(pixel_values=(2, 3, 32, 32))
both = ids | dict(decoder_input_ids=(2, 16))

families = {  # configuration class, its settings, model class, sample: shapes of ids or of pictures and sound
    "encoder": ("BertConfig", tiny, "BertModel", ids),
            "encoder, disentangled": ("DebertaV2Config",
                                      tiny | dict(relative_attention=True, pos_att_type=["p2c", "c2p"]),
                                      "DebertaV2Model", ids),
    "decoder": ("GPT2Config", dict(vocab_size=99, n_embd=32, n_layer=2, n_head=4), "GPT2LMHeadModel", ids),
    "decoder, grouped queries": ("LlamaConfig", tiny | dict(num_key_value_heads=2), "LlamaForCausalLM", ids),
            "decoder, soft caps": ("Gemma2Config", tiny | dict(num_key_value_heads=2, head_dim=8),
                                   "Gemma2ForCausalLM", ids),
    "encoder-decoder": ("T5Config", dict(vocab_size=99, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
                        "T5Model", both), "encoder-decoder, learned positions": (
                            "BartConfig", seq2seq, "BartModel", both),
    "mixture of experts": ("MixtralConfig", tiny | dict(num_key_value_heads=2, num_local_experts=4),
                           "MixtralForCausalLM", ids),
    "state space": ("MambaConfig", dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8),
                    "MambaForCausalLM", ids),
    "state space, chunked": ("Mamba2Config",
                             dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, state_size=8, num_heads=8,
                                  head_dim=8, n_groups=2), "Mamba2ForCausalLM", ids),
    "recurrent": ("RwkvConfig", dict(vocab_size=99, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32,
                                     intermediate_size=48), "RwkvModel", ids),
    "speech": ("WhisperConfig", seq2seq | dict(num_mel_bins=16, max_source_positions=50, pad_token_id=0,
                                               bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
               "WhisperModel",
               dict(input_features=(2, 16, 100), decoder_input_ids=(2, 16))),
    "speech, raw": ("Wav2Vec2Config", tiny
                    | dict(conv_dim=(16,) * 7, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4),
                    "Wav2Vec2Model", dict(input_values=(1, 4000))),
    "vision": ("ViTConfig", vision, "ViTModel", pixels),
            "vision, windows": ("SwinConfig", dict(
                image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4),
                                "SwinModel", pixels),
    "vision-language": ("CLIPConfig", dict(text_config=tiny
                                           | dict(max_position_embeddings=32, projection_dim=16, eos_token_id=2),
                                           vision_config=vision | dict(projection_dim=16), projection_dim=16),
                        "CLIPModel", ids | pixels)}

def made(family):
    "The model of a family, and its sample."
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config, settings, model, shapes = families[family]
    if not hasattr(transformers, config): pytest.skip(f"this transformers has no {config}")
    torch.manual_seed(0)
    sample = {k: torch.randint(5, 90, s) if "ids" in k else torch.randn(s) for k, s in shapes.items()}
    return getattr(transformers, model)(getattr(transformers, config)(**settings)), sample

def sum_of_results(out):
    return sum(v.float().sum() for v in out.to_tuple() if isinstance(v, torch.Tensor) and v.requires_grad)

@pytest.mark.parametrize("family", in_line(families, why="another family",
                                           ci=("decoder, grouped queries", "encoder-decoder", "vision-language")))
def test_transformer_families(family):
    net, sample = made(family)
    work = count_work(net, sample)
    assert work.unknown_ops == {} and work.contraction_flops > 0
    if family == "decoder, grouped queries":
        # per token and layer: q and o 2·32·32, k and v 2·32·16, three mlp products 3·32·48, all times 2; attention
        # 2·2·32 per token and key,
        # of which a token has 16, and needs (16 + 1) / 2; the head 2·32·99
        def by_hand(keys): return 2*16 * (2 * (2*(2*32*32 + 2*32*16 + 3*32*48) + 2*2*keys*32) + 2*32*99)
        assert (work.dense_flops, work.contraction_flops) == (by_hand(16), by_hand(17 / 2))
    step = count_work(net, sample, backward=True, loss=sum_of_results, optimizer=torch.optim.AdamW(net.parameters()))
    assert step.unknown_ops == {}, step.unknown_ops

networks = {"GRU": lambda: (nn.GRU(4, 5, 2, bidirectional=True), torch.randn(3, 2, 4)),
            "LSTM, projected": lambda: (nn.LSTM(4, 5, proj_size=3), torch.randn(3, 2, 4)),
            "LSTM, float64": lambda: (nn.LSTM(4, 5).double(), torch.randn(3, 2, 4).double()),
            "ragged batch": lambda: (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1),
                                     dict(src=torch.randn(2, 4, 8),
                                          src_key_padding_mask=torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]).bool()))}

@pytest.mark.parametrize("name", networks)
def test_networks(name):
    model, sample = networks[name]()
    assert count_work(model, sample).unknown_ops == {}

def test_dynamically_quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2)), {nn.Linear})
    work = count_work(model, torch.randn(3, 8))
    assert work.unknown_ops == {} and work.contraction_flops == 2*3*(8*4 + 4*2)
    # weights of one byte: input and output as floats, 32 weights, 4 biases
    assert work.by_module()["0"].bytes_moved == 4*(24 + 12) + 32 + 4*4
