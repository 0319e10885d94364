"""Counts without the compiler beside counts with it: each model is counted on the meta device as after a plain
start, with `torch._dynamo` out of reach, and once more with it, where fake tensors are PyTorch's own way
throughout. Every operator, its work, its dtype and its memory have to be the same. torchvision (`ops/roi_align.py`)
and transformers (`masking_utils.py`) import the compiler themselves, so it is hidden for the first count. Exits
with the number of counts that differ; `python fakes.py quick` takes the models of torch alone."""
import importlib, sys, warnings
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from fasterbench.engine.uncompiled import uncompiled
from fasterbench.work.count import count_work
from fasterbench.work.target import Target

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]
from test_zoo import families

def of_torch():
    yield "mlp", lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout()), (8, 64)
    yield "convolutions", lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Hardswish(),
                                                nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear"),
                                                nn.PixelUnshuffle(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                                nn.Linear(32, 10), nn.LogSoftmax(-1)), (2, 3, 18, 18)
    yield "transformer", lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), (2, 9, 64)
    yield "lstm", lambda: nn.LSTM(16, 32, 2, bidirectional=True), (5, 2, 16)
    yield "losses", Losses, (4, 6)

class Losses(nn.Module):
    "Operators that Python's versions of operators stand for on the meta device."
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 6)

    def forward(self, x):
        x, f, y = self.first(x), nn.functional, x.roll(1, 0)
        losses = (f.huber_loss(x, y), f.smooth_l1_loss(x, y), f.kl_div(x, y), f.mse_loss(x, y),
                  f.hinge_embedding_loss(x, y), f.margin_ranking_loss(x, y, y))
        return (sum(losses) + torch.linalg.vector_norm(x) + torch.special.entr(x).sum()
                + x.true_divide(3).cumsum(0).var() + torch.fft.rfft(x).abs().sum())

def of_torchvision():
    from torchvision import models
    for name in (
        "resnet18 mobilenet_v3_small efficientnet_b0 densenet121 googlenet shufflenet_v2_x0_5 swin_t vit_b_32 "
        "convnext_tiny".split()):
        yield name, lambda name=name: models.get_model(
            name, weights=None, **dict(init_weights=False) if name == "googlenet" else {}), (1, 3, 224, 224)

def of_timm():
    timm = importlib.import_module("timm")
    for name in (
        "vit_tiny_patch16_224 resmlp_12_224 convmixer_768_32 levit_128s.fb_dist_in1k mobilevit_xxs "
        "eva02_tiny_patch14_224.mim_in22k ghostnet_100 maxvit_rmlp_pico_rw_256.sw_in1k".split()):
        model = timm.create_model(name, pretrained=False)
        yield name, lambda name=name: timm.create_model(
            name, pretrained=False), (1, 3, *model.default_cfg["input_size"][1:])

def of_transformers():
    t = importlib.import_module("transformers")
    for family, (config, settings, model, shapes) in families.items():
        if family.startswith("state space") or not hasattr(t, config): continue     # their forwards import the compiler
        config, model = getattr(t, config)(**settings), getattr(t, model)           # as some modules do
        sample = {k: torch.zeros(s, dtype=torch.int64 if "ids" in k else torch.float32) for k, s in shapes.items()}
        yield family, lambda: model(config), sample

def counted(make, sample, target, backward):
    "What counting says: figures, operators, or the error."
    FakeTensorMode.cache_clear()                # of results that the other way has left
    try:
        with uncompiled(), torch.device("meta"): model = make()
        x = (torch.empty(sample, device="meta") if isinstance(sample, tuple)
             else {k: v.to("meta") for k, v in sample.items()})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work = count_work(model.train(backward), x, target=target, backward=backward)
    except Exception as error: return type(error).__name__, str(error)
    return (work.flops, work.contraction_flops, work.bytes,
            work.peak_memory if hasattr(work, "peak_memory") else None, work.unknown_ops,
            [(c.operator, c.part, c.flops, c.contraction_flops, c.dtype, [r.bytes for r in c.reads],
              [w.bytes for w in c.writes]) for c in work.trace])

ways = {"cpu": (None, False), "sm90": (Target("cuda", "sm90", torch.bfloat16), False), "training": (None, True)}

@contextmanager
def hidden():
    "Take the compiler out of reach within the context, as if nothing had imported it yet."
    import torch._dynamo
    names = "torch._dynamo", "torch._dynamo.config"
    modules = {n: sys.modules.pop(n) for n in names}
    del torch._dynamo
    try:
        yield
        if "torch._dynamo" in sys.modules: raise AssertionError("a count imported the compiler")
    finally:
        sys.modules.update(modules)
        torch._dynamo = modules[names[0]]

def main(families):
    differ = n = 0
    for family in families:
        for name, make, sample in family():
            for way, how in ways.items():
                with hidden(): light = counted(make, sample, *how)
                same, n = light == counted(make, sample, *how), n + 1
                told = (f"{light[0]}: {light[1][:60]}" if isinstance(light[0], str)
                        else f"{light[0]:.4g} FLOP, {light[2]:,} B, {len(light[-1])} operators")
                print(f"{name:32}{way:10}{'the same' if same else 'DIFFERENT':10} {told}", flush=True)
                differ += not same
    print(f"{n} counts on PyTorch {torch.__version__}, {differ} differ")
    return differ

if __name__ == "__main__":
    sys.exit(main([of_torch] if sys.argv[1:] == ["quick"] else [of_torch, of_torchvision, of_timm, of_transformers]))
