"""Memory of training steps on a device that is not here, the batch that fits, and what many devices share."""
import json, re, sys
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import in_line
from torch import nn
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).parents[1]))
from fasterbench import count_work
from fasterbench.core.units import format_si
from fasterbench.engine.backward import backward_here
from fasterbench.memory.fit import Fit, fit
from fasterbench.work.target import Target
from memory_cases import cases, prepared

steps = ["MLP, step", "MLP, step with momentum", "returns ten layers, step", "swin blocks, step",
         "vit of 32 pixels, step", "in-place activations, step", "views of one storage, step", "tied weights, step",
         "checkpointing", "checkpointing, reentrant", "encoder layer, step", "GRU and batch norm, step", "GPT-2, step"]

@pytest.mark.parametrize("name", in_line(steps, "MLP, step", "tied weights, step", "checkpointing, reentrant",
                                         "encoder layer, step"))
def test_a_backward_that_is_run_here_frees_what_the_engine_frees(name):
    """For a device that is not here nodes run one by one: peak, parts and place are those of PyTorch's engine, to
    the byte."""
    model, sample, how = prepared(cases[name])
    engine = count_work(model, sample, **how).memory
    model, sample, how = prepared(cases[name])
    with backward_here(): here = count_work(model, sample, **how).memory
    assert (here.peak_bytes, here.parts, here.place) == (engine.peak_bytes, engine.parts, engine.place)

def test_a_step_on_a_gpu_holds_what_it_holds_on_a_cpu():
    "Two layers: input, weights twice, one activation; by hand."
    with torch.device("meta"):
        net, x = (nn.Sequential(nn.Linear(256, 256, bias=False), nn.ReLU(), nn.Linear(256, 256, bias=False)),
                  torch.empty(64, 256))
    there = count_work(net, x, backward=True, target=Target("cuda", "sm90")).memory
    weights, row = 2 * 4 * 256 * 256, 4 * 64 * 256
    # the result of the ReLU is the saved input
    assert there.parts["weights"] == weights and there.saved_bytes == row
    after = there.timeline[-1]
    assert after.parts["gradients"] == weights and after.parts["saved for backward"] in (0, 4)     # the loss

class Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x.exp()
    @staticmethod
    def backward(ctx, g): x, = ctx.saved_tensors; return g * x.exp()

def test_what_was_freed_is_not_used_again():
    x = torch.ones(3, requires_grad=True)
    with backward_here():
        y = (Plain.apply(x) * x).sum()
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="second time"): y.backward()
    assert torch.equal(x.grad, 2 * (x.detach().exp() * 2))

def test_a_workspace_of_unknown_size_is_said():
    "oneDNN and cuDNN alone know what a recurrent layer keeps for its backward."
    with torch.device("meta"): lstm, x = nn.LSTM(16, 16), torch.empty(5, 3, 16)
    assert not count_work(lstm, x, backward=True).memory.exact and count_work(lstm, x).memory.exact
    assert not count_work(lstm, x, backward=True, target=Target("cuda", "sm90")).memory.exact
    memory = count_work(lstm, x, backward=True).memory
    assert re.fullmatch(r"the largest batch that fits in 1\.00 MB is at most \d+ samples, with ≥ \S+ [kM]B.*",
                        str(fit(lstm, x, 1e6, backward=True)))
    assert (memory.share_of(4 * memory.peak_bytes)
            == f"≥ 25.0 % of the device's {format_si(4 * memory.peak_bytes, 'B')}")
    assert str(Fit(10, None, True, {1: 4}, exact=False)) == "the largest batch that fits in 10.00 B is unknown"

# ---- verbs

script = """import torch
from torch import nn
def make(): return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
def made(): return make(), torch.empty(8, 64)
def plain(): return make()
def images(): return nn.Conv2d(3, 8, 3)
"""

def said(tmp_path, capsys, *args):
    from fasterbench.cli.main import main
    (tmp_path/"net.py").write_text(script)
    try: main([a.replace("NET", str(tmp_path/"net.py")) for a in args])
    except SystemExit as end:
        assert end.code in (0, None) or "Invalid" in (e := capsys.readouterr().err), end.code
        return e if end.code else " ".join(capsys.readouterr().out.split())
    return " ".join(capsys.readouterr().out.split())

def test_count_on_a_device_says_its_share_and_the_batch_that_fits(tmp_path, capsys):
    out = said(tmp_path, capsys, "count", "NET:made", "--on", "Tesla T4", "--backward")
    assert ("of the device's 15.84 GB" in out
            and (found := re.search(r"the largest batch that fits in 14\.26 GB is (\d+) samples, with 14\.\d+ GB",
                                    out))), out
    # beside the weights and their gradients, a sample of 64 and 64 results, an activation of 256 and its gradient, or
    # more: 4 B each
    assert int(found[1]) <= 0.9 * 15843721216 / (4 * (64 + 64 + 256 + 256))

def test_the_row_of_the_model_has_the_update_in_flops_and_in_peak(tmp_path, capsys):
    "Weights, gradients and two moments are alive in the update, 4 B each; no module is at work then."
    said(tmp_path, capsys, "count", "NET:made", "--backward", "--optimizer", "AdamW", "--json", str(tmp_path/"c.json"))
    counted = json.loads((tmp_path/"c.json").read_text())
    first, *others = counted["rows"]
    assert first["peak_bytes"] == counted["peak_memory"] > 4 * 4 * (2 * 64 * 256 + 256 + 64)
    assert first["flops"] > sum(r["flops"] for r in others) and counted["memory"]["phase"] == "update"

def test_devices_that_share_a_batch(tmp_path, capsys):
    "Weights of 64·256 twice and 320 biases, of 4 B: an all-reduce of 4 sends 2·3/4 of them."
    out = said(tmp_path, capsys, "predict", "NET:plain", "--input", "8,64", "--on", "NVIDIA H100 80GB HBM3",
               "--backward", "--gpus", "4", "--fit")
    assert (f"each sends {2 * 3 / 4 * 4 * (2 * 64 * 256 + 320) / 1e3:.2f} kB" in out
            and re.search(r"largest batch \d+ samples \(\d+ each, 10 % of the memory kept free\)", out)), out

@pytest.mark.parametrize("more,why", [(["--gpus", "4", "--batch", "3", "--backward"],
                                       "a batch of 3 does not divide among 4 devices; 4 does"),
                                      (["--gpus", "4"], "it needs a training step: add --backward")])
def test_what_devices_cannot_share(more, why, tmp_path, capsys):
    assert why in said(tmp_path, capsys, "predict", "torchvision:resnet18", "--on", "Tesla T4", *more)

def test_the_python_call_says_the_same():
    from fasterbench import predict
    net, x = nn.Linear(4, 4), torch.zeros(2, 4)
    with pytest.raises(ValueError, match="share a training step: give backward=True"):
        predict(net, x, "Tesla T4", devices=2)
    with pytest.raises(ValueError, match="tensor parallelism"):
        predict(net, x, "Tesla T4", devices=2, backward=True, parallel="tp")
    with pytest.raises(ValueError, match="whole number of at least 1"):
        predict(net, x, "Tesla T4", devices=0, backward=True)

def test_batches_have_a_column_of_memory(tmp_path, capsys):
    out = said(tmp_path, capsys, "predict", "torchvision:squeezenet1_1", "--on", "Tesla T4", "--batch", "1,2")
    assert re.search(r"expected .* memory share 1 .* MB [\d.]+% 2 .* MB [\d.]+%", out), out

class Cast(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.first, self.second, self.call = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False), call
    def forward(self, x): return self.second(self.call(self.first, x))

@pytest.mark.parametrize("call", [lambda f, x: f(x), partial(checkpoint, use_reentrant=False),
                                  partial(checkpoint, use_reentrant=True)])
@pytest.mark.parametrize("target", [Target("cpu", "", torch.bfloat16), Target("cuda", "sm90", torch.bfloat16)])
def test_each_step_under_autocast_casts_its_weights(call, target):
    """The step that is counted with an optimizer is the second: it casts both weights and the input as the first
    did, and none is left over."""
    with torch.device("meta"): net, x = Cast(call), torch.empty(4, 64, requires_grad=True)
    found = count_work(net, x, backward=True, optimizer=torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
                       target=target)
    casts = [sum(t.bytes for t in c.reads) for c in found.of_phase("forward").trace if c.operator == "aten::_to_copy"
             and c.dtype == "float32"]
    assert sorted(casts) == [4 * 4 * 64, 4 * 64 * 64, 4 * 64 * 64] and found.memory.parts["buffers"] == 0
    assert {c.dtype for c in found.trace if c.operator == "aten::mm"} == {"bfloat16"}

def test_autocast_of_data_casts_in_each_step():
    net, x = nn.Linear(64, 64, bias=False), torch.randn(4, 64)
    with torch.autocast("cpu", torch.bfloat16):
        found = count_work(net, x, backward=True, optimizer=torch.optim.AdamW(net.parameters()))
    assert sorted(sum(t.bytes for t in c.reads) for c in found.of_phase("forward").trace
                  if c.operator == "aten::_to_copy" and c.dtype == "float32") == [4 * 4 * 64, 4 * 64 * 64]

class InFloat(nn.Module):
    "A product that the model keeps out of autocast."
    def __init__(self): super().__init__(); self.weight = nn.Parameter(torch.randn(64, 64))
    def forward(self, x):
        with torch.autocast("cpu", enabled=False): return x @ self.weight

def test_autocast_of_data_ends_with_the_loss():
    "A backward inside autocast would cast what the forward kept out of it."
    net, x = InFloat(), torch.randn(4, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16): found = count_work(net, x, backward=True)
    assert [c.dtype for c in found.trace if c.operator == "aten::mm"] == ["float32"] * 3
