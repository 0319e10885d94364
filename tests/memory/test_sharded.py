"""A training step of DDP and of FSDP2 on two ranks over gloo: memory and FLOPs of each rank, by hand."""
import json, sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from forked import ranks

code = """
import datetime, json, warnings
from types import SimpleNamespace
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module, RowwiseParallel
warnings.simplefilter("ignore")
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
from fasterbench import count_work
from fasterbench.work.target import Target
def net(kind):
    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False))
    if kind == "ddp": return nn.parallel.DistributedDataParallel(model)
    for layer in (model[0], model[2]): fully_shard(layer)
    return fully_shard(model)
out = {}
for kind, target in (("ddp", None), ("fsdp", None), ("fsdp without data", Target("cpu"))):
    model = net(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    work = count_work(model, torch.randn(32, 64), backward=True, optimizer=optimizer, target=target)
    m = work.memory
    out[kind] = dict(flops=work.contraction_flops, sent=work.wire_bytes, peak=m.peak_bytes, parts=m.parts,
                     place=m.place, exact=m.exact, timeline=[[t.phase, t.operator, t.parts] for t in m.timeline])
bare, real = out["fsdp without data"], out["fsdp"]
assert (bare["flops"], bare["sent"], bare["exact"]) == (real["flops"], real["sent"], False), bare
assert bare["peak"] <= real["peak"], bare          # gloo copies what it reduces
# a checkpoint in 8 bits, with a scale for each of two weights: of what is gathered a rank sends half
with torch.device("meta"): eight, x = net("fsdp"), torch.randn(32, 64)
eight.config = SimpleNamespace(quantization_config=dict(quant_method="fp8", weight_block_size=None))
for target in (None, Target("cpu")):
    work, stored = count_work(eight, x, target=target), 2 * (64 * 256 + 4)
    read = sum(t.bytes for c in work.trace if c.category == "matmul" for t in c.reads)
    assert (work.wire_bytes, read) == (stored / 2, stored + 4 * 32 * (64 + 256)), (work.wire_bytes, read)
# tensor parallel: half of two products; PyTorch finds the shapes of the whole ones first
with torch.device("meta"):
    layers = nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False))
split = parallelize_module(layers, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
assert count_work(split, x).contraction_flops == 2 * 32 * 64 * 256
print("OUT" + json.dumps(out))
"""

@pytest.fixture(scope="module")
def two(tmp_path_factory):
    done = ranks(code, 2, tmp_path_factory.mktemp("ranks"))
    assert not any(d.returncode for d in done), [d.stderr[-1500:] for d in done]
    return [json.loads(d.stdout.split("OUT")[1]) for d in done]

row, wide, weight = 4 * 32 * 64, 4 * 32 * 256, 4 * 64 * 256      # B: input or result, activation, one of two weights

def check(m):
    "Two products forward, and three backward: the input asks for no gradient. The parts add up."
    assert m["flops"] == 5 * 2 * 32 * 64 * 256 and m["exact"] and sum(m["parts"].values()) == m["peak"]
    assert m["parts"]["sample"] == m["parts"]["returned and cached"] == row

@pytest.mark.parametrize("rank", [0, 1])
def test_ddp(two, rank):
    "Each rank has all weights, gradients and momenta, and a bucket that holds all gradients once more."
    m = two[rank]["ddp"]
    check(m)
    assert m["parts"]["weights"] == m["parts"]["optimizer state"] == 2 * weight
    assert m["sent"] == 2 * weight                             # an all-reduce of two ranks: 2 · 1/2 of the gradients
    first, last = m["timeline"][0][2], m["timeline"][-1][2]
    assert first["gradients"] == 2 * weight and last["gradients"] == 2 * 2 * weight    # the bucket; and the gradients

@pytest.mark.parametrize("rank", [0, 1])
def test_fsdp(two, rank):
    "Each rank keeps half of weights, gradients and momenta; the peak is in the first of two reductions."
    m = two[rank]["fsdp"]
    check(m)
    # each weight is gathered for the forward, and again for the backward (of which a rank sends half); gradients
    # scatter
    assert m["sent"] == 2 * (weight / 2 + weight / 2 + weight / 2)
    assert m["parts"]["weights"] == m["parts"]["optimizer state"] == weight            # halves of two weights
    # half of the gradient of the second layer; for the backward the activation and the loss
    assert m["parts"]["gradients"] == weight / 2 and m["parts"]["saved for backward"] == wide + 4
    # the first layer gathered ahead, the second layer's gradient in order, gloo's copy of it; the gradient of the
    # activation,
    # and that of the loss; PyTorch before 2.15 may hold the second layer's gradient as autograd made it, too
    held = m["parts"]["temporaries"] - (3 * weight + wide + 4)
    assert held in (0, weight) and "backward" in m["place"]
    weights = [parts["weights"] for _, _, parts in m["timeline"]]
    # one layer whole at a time
    assert min(weights) == weight and max(weights) == 2 * weight and weights[-1] == weight
    assert m["timeline"][-1][2]["gradients"] == weight
