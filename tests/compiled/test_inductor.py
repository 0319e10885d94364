"What Inductor says of a model without compiling it: code for a GPU where there is none, other compilers, no kernels."
import ast, copy, json, math, sys
from importlib.util import find_spec
from types import FunctionType

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import fasterbench.compiled.inductor as inductor
from conftest import in_line, nightly_only
from fasterbench import predict
from fasterbench.compiled.kernel_work import read_buffers, read_site
from fasterbench.roofline import RooflineAnalyzer
from test_compiled import kernels, made, peaks, products, profiled

def test_results_that_are_freed_are_timestamped_for_themselves():
    "Statements that free results, also several in a row, are one slot; the kernel between keeps its own."
    body = "a = make()", "b = make()", "del a", "del b", "kernel(args)", "del args", "return 1"
    source = "\n    ".join(["def call(args):", *body])
    function, log = ast.parse(source).body[0], []
    code = inductor._timestamped_code(function, {id(function.body[4]): 1}, "here.py", freeing=2)
    space = dict(make=int, kernel=lambda args: log.append("kernel"),
                 fasterbench_timestamp=lambda *timestamp: log.append(timestamp))
    assert FunctionType(code, space)(0) == 1
    def of(slot): return [("enter", slot), ("leave", slot)]
    assert log == [("enter", 0), *of(2), ("enter", 1), "kernel", ("leave", 1), *of(2), ("leave", 0)]

def somebodys_compiler(graph, inputs): return graph.forward

@pytest.mark.parametrize("backend", in_line(["eager", "aot_eager", somebodys_compiler], "eager"))
def test_another_backend_stays_one_row(backend):
    result = profiled(torch.compile(made(), backend=backend))
    name = getattr(backend, "__name__", backend)
    assert not kernels(result) and any(name in n and "one row" in n for n in result.notes), result.notes

def test_sites_of_what_is_not_compiled(tmp_path):
    analyzer = RooflineAnalyzer(made(), torch.ones(8, 16), peaks).profile(warmup=1, steps=1, progress=False)
    with pytest.raises(ValueError, match="no kernels of compiled code"): analyzer.to_kernels(tmp_path / "kernels.json")
    with pytest.raises(ValueError, match="compiled=True"):
        predict(made(), torch.ones(8, 16), peaks, kernels=tmp_path / "kernels.json")

# Code for a GPU, generated where there is none

h100 = "sm90", 132, 50 << 20     # what Inductor asks of a GPU

def generated(model, sample, device):
    "The graph that Inductor generates for a device, from tensors without data."
    mode, model = FakeTensorMode(allow_non_fake_inputs=True), copy.deepcopy(model)
    def there(t): return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
    with mode:
        for m in model.modules():
            m._parameters = {k: None if p is None else nn.Parameter(there(p), requires_grad=False) for k,
                             p in m._parameters.items()}
            m._buffers = {k: None if b is None else there(b) for k, b in m._buffers.items()}
        sample = there(sample)
    with torch.no_grad():
        graph = torch.export.export(model, (sample,), strict=False).graph_module
        inputs = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
        made, = inductor.Generator(read_site, read_buffers).generate(graph, inputs, h100 if device == "cuda"
                                                                     else ()).graphs
    return made

def bytes_of(kernel): return sum(t.bytes for t in (*kernel.call.reads, *kernel.call.writes))

def check_triton(model, sample):
    made = generated(model, sample, "cuda")
    assert "triton" in made.source and "async_compile.triton(" in made.source
    # every kernel is placed
    assert sorted(inductor.kernel_statements(made.source)) == list(range(len(made.kernels)))
    assert sum(k.call.contraction_flops for k in made.kernels) == products(model, sample)
    paths = {n for n, _ in model.named_modules()}
    for k in made.kernels: assert k.layers and {path for path, *_ in k.layers} <= paths and bytes_of(k) > 0, k.name
    return made

triton = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton: a build of PyTorch for CPUs")

@triton
def test_triton_code_of_a_transformer():
    "GELU between two products, by hand: on a GPU the bias of the first is added here, and read."
    model, sample = made(), torch.ones(8, 16)
    made_here = check_triton(model, sample)
    gelu = [k for k in made_here.kernels if any(path == "blocks.0.act" for path, *_ in k.layers)]
    assert min(map(bytes_of, gelu)) == 2 * 4 * 8 * 32 + 4 * 32

@triton
@nightly_only("Inductor generates the code of a whole ResNet-18")
def test_triton_code_of_resnet18():
    import torchvision
    made_here = check_triton(torchvision.models.resnet18().eval(), torch.ones(1, 3, 224, 224))
    assert len(made_here.kernels) == 57

@triton
def test_a_compiled_model_is_predicted_by_its_kernels():
    "The rows are those of the code that Inductor generates for that GPU, and nothing of PyTorch stays replaced."
    model, sample = made(), torch.ones(8, 16)
    before = [vars(torch.cuda)[n] for n in ("get_device_properties", "get_device_capability", "current_device",
                                            "_lazy_init")]
    result = predict(model, sample, "NVIDIA H100 80GB HBM3", compiled=True)
    assert [vars(torch.cuda)[n] for n in ("get_device_properties", "get_device_capability", "current_device",
                                          "_lazy_init")] == before
    assert sum(p.contraction_flops for p in result.points) == products(model, sample)
    assert any(p.type.startswith("fused ") for p in result.points) and all(p.layers for p in result.points)
    up = next(p for p in result.points if p.name == "blocks.0.up" and p.contraction_flops)
    assert up.bytes_moved == 4 * (8 * 16 + 16 * 32 + 8 * 32)                  # its bias is added by the next kernel
    assert result.program.roof_time_s <= result.program.time_s and "kernels that Inductor" in result.text()

@triton
def test_attention_is_predicted_as_its_kernel(tmp_path):
    """Attention by hand: two products of 2·4 heads, 16 rows, 16 columns and 8 numbers; a product of a projection
    has its layer."""
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.o = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
        def forward(self, x):
            q = self.q(x).view(2, 16, 4, 8).transpose(1, 2)
            return self.o(nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).reshape(2, 16, 32))
    with torch.device("meta"): model, x = Attends().to(torch.bfloat16), torch.empty(2, 16, 32, dtype=torch.bfloat16)
    result = predict(model, x, "NVIDIA H100 80GB HBM3", compiled=True, kernels=tmp_path / "kernels.json")
    attention, = [p for p in result.points if p.category == "attention"]
    assert attention.contraction_flops == 2 * 2 * 2 * 4 * 16 * 16 * 8
    names = [kernel["name"] for kernel in json.loads((tmp_path / "kernels.json").read_text())["sites"]]
    assert names[0] == names[-1] == "aten::mm" and "aten::_scaled_dot_product_flash_attention" in names

def test_a_prediction_says_where_inductor_cannot_be_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.runtime", None)
    result = predict(made(), torch.ones(8, 16), "NVIDIA H100 80GB HBM3", compiled=True)
    assert "could not be asked (Inductor needs Triton" in " ".join(result.notes)
    assert not any(p.layers for p in result.points)

@triton
def test_the_limit_of_a_kernel_leaves_out_what_a_cache_can_have_kept():
    """By hand: a result of 82 MB, of which an L2 of 50 MiB may still hold its size, whatever the order of the
    next kernel."""
    with torch.device("meta"):
        model, rows = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.GELU()), torch.empty(20000, 1024)
    result = predict(model, rows, "NVIDIA H100 80GB HBM3", compiled=True)
    gelu, size = next(p for p in result.points if not p.contraction_flops), 4 * 20000 * 1024
    assert dict(gelu.bytes_by_level) == {"L2": h100[2], "DRAM": 2 * size - h100[2]}
    assert math.isclose(gelu.roof_time_s, (2 * size - h100[2]) / result.peaks.memory[-1].bandwidth)
