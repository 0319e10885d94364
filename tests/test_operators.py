"""Operators outside `aten`: each that PyTorch, torchvision and torchao register has a rule, or stands here with the
reason.

The names come from the registry, so that an operator which a new release adds fails here until it has either."""
import importlib, pkgutil, warnings

import pytest
import torch
import torch._higher_order_ops
import torch.ao.quantization.fx._decomposed
import torchvision
from modules import Call
from torch import nn
from torch.nn import functional as F
from torch._ops import _higher_order_ops
from torch.fx import symbolic_trace

from fasterbench.core.dtypes import rate_dtype
from fasterbench.engine.accelerator import accelerator
from fasterbench.probes.peaks import measurable
from fasterbench.probes.probes import compute_probes
from fasterbench.work.count import count_work
from fasterbench.work.dispatch import is_composite, is_view
from fasterbench.work.flops import _is_pointwise, _rule_for
from fasterbench.work.rules import op_name
from conftest import heavy_only

def r(*shape): return torch.randn(*shape)

# Operators that are unknown, and why.
_boxes = "how many corners two turned boxes share is found step by step"
_blocks = "the weight is packed in blocks of which the kernel leaves out zeros; PyTorch gives it back dense"
reasons = {"torchvision::box_iou_rotated": _boxes, **dict.fromkeys(("sparse::qlinear", "sparse::qlinear_relu",
           "sparse::qlinear_dynamic", "sparse::qlinear_relu_dynamic"), _blocks),
           "sparse::qlinear_prepack": "packs integers",
           "float8_sparse::fp8_sparse_mm": "the packed weight does not say how much it stores",
           **dict.fromkeys((f"image::{n}"
                            for n in """decode_gif decode_image decode_jpeg decode_jpegs_cuda decode_png decode_webp
           encode_jpeg encode_jpegs_cuda encode_png read_file write_file""".split()),
                           "bytes of files: integers, a known zero"),
           "cplib::flex_cp_allgather": "a collective of torchao's prototype: how many ranks is not in its arguments",
           "cplib::flex_cp_allgather_backward": "as its forward"}

# Spaces of libraries that are looked through; of PyTorch's own, those of quantization.
spaces = "torchvision", "image", "quantized", "_quantized", "quantized_decomposed", "quantization", "onednn", "sparse"
of_torchao = "torchao", "ao", "blocksparse", "float8_sparse", "quant", "quant_logger", "cplib"

def overload(name):
    space, _, rest = name.partition("::")
    packet, _, which = rest.partition(".")
    try: return getattr(getattr(getattr(torch.ops, space), packet), which or "default")
    except AttributeError: return None            # a kernel for an operator that was never defined

def has_tensors(op): return any("Tensor" in str(a.type) for a in (*op._schema.arguments, *op._schema.returns))

def without_rule(spaces):
    "Operators of the registry that no rule covers and that are not listed."
    found = {name: overload(name) for name in torch._C._dispatch_get_all_op_names() if name.split("::")[0] in spaces}
    ops = {name: op for name, op in found.items() if op is not None and has_tensors(op)}
    def known(op): return _rule_for(op_name(op)) or _is_pointwise(op, op_name(op)) or is_view(op) or is_composite(op)
    return len(ops), sorted(name for name, op in ops.items() if not known(op) and op_name(op) not in reasons)

def test_every_operator_of_torchvision_and_quantization_has_a_rule_or_a_reason():
    n, left = without_rule(spaces)
    assert left == [] and n > 200

@heavy_only("imports all of torchao")
def test_every_operator_of_torchao_has_a_rule_or_a_reason():
    torchao = pytest.importorskip("torchao")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(torchao.__path__, "torchao.", onerror=lambda name: None):
            try: importlib.import_module(module.name)
            except BaseException: pass             # a part that needs a GPU, or other packages
    n, left = without_rule(of_torchao)
    assert left == [] and n > 40

# Higher-order operators run other operators, which are counted; these are not functions of operators that can be seen.
_compiled = "hands compiled code to another runtime"
higher_order_reasons = {
    "triton_kernel_wrapper_mutation": "a kernel of the user's own",
    "triton_kernel_wrapper_functional": "a kernel of the user's own",
    "inline_asm_elementwise": "assembly text", "call_torchbind": "a method of an object of C++",
    "aoti_call_delegate": _compiled,
    "executorch_call_delegate": _compiled, "inductor_compiled_code": _compiled}
# Those that need what a plain call cannot give them: a trace, a GPU, an exported program
traced_only = {"auto_functionalized_v2", "flat_apply", "invoke_leaf_function", "local_map_hop", "trace_wrapped",
               "run_dtensor_rng_op",
               "graphsafe_run_with_rng_state", "autograd_function_apply", "custom_function_call",
               "dynamo_bypassing_wrapper",
               "wrap_activation_checkpoint", "flex_gemm", "invoke_quant_packed", "foreach_map", "auto_functionalized",
               "control_deps"}

aten = torch.ops.aten
def times(a): return (a @ a,)
graph = symbolic_trace(times)
x, once = r(4, 4), 2*4*4*4
def called(name, *args, **kwargs):
    return lambda a: _higher_order_ops[name](*[a if v is x else v for v in args], **kwargs)
higher_order = {
    "cond": (lambda a: torch.cond(torch.tensor(True), lambda b: b @ b, torch.sin, (a,)), once),
    "switch": (called("switch", torch.tensor(0), (times, times), (x,)), once),
    "map_impl": (called("map_impl", lambda row: (row * 2,), (x,), ()), 16),
    "scan": (lambda a: _higher_order_ops["scan"](lambda c, row: (c + row, c * row), (a[0],), (a,), ()), 2*16),
    "while_loop": (lambda a: _higher_order_ops["while_loop"](
        lambda i, b: i < 3, lambda i, b: (i + 1, b @ b), (torch.tensor(0), a), ()), 3*once),
    "while_loop_stack_output": (lambda a: _higher_order_ops["while_loop_stack_output"](
        lambda i, b: i < 3, lambda i, b: (i + 1, b @ b), (torch.tensor(0), a), ()), 3*once),
    "associative_scan": (lambda a: _higher_order_ops["associative_scan"](lambda p, q: (p + q,), (a,), ()), 16),
    "out_dtype": (called("out_dtype", aten.mul.Tensor, torch.float32, x, x), 16),
    "wrap": (called("wrap", lambda b: b @ b, x), once),
    "wrap_with_set_grad_enabled": (called("wrap_with_set_grad_enabled", False, times, x), once),
    "wrap_with_autocast": (called("wrap_with_autocast", "cpu", torch.bfloat16, True, None, times, x), once),
    "strict_mode": (called("strict_mode", times, (x,)), once),
    "tag_activation_checkpoint": (called("tag_activation_checkpoint", graph, x), once),
    "invoke_subgraph": (called("invoke_subgraph", times, "name", x), once),
    "invoke_quant": (called("invoke_quant", graph, x), once),
    "hints_wrapper": (called("hints_wrapper", times, (x,), {}, hints={}), once),
    "run_and_save_rng_state": (called("run_and_save_rng_state", aten.mm.default, x, x), once),
    "run_with_rng_state": (called("run_with_rng_state", torch.get_rng_state(), aten.mm.default, x, x), once),
    "with_effects": (called("with_effects", torch.tensor([]), aten.mm.default, x, x), once),
    "run_const_graph": (called("run_const_graph", graph, (x,)), once)}

@pytest.mark.parametrize("name", higher_order)
def test_what_a_higher_order_operator_runs_is_counted(name):
    if name not in _higher_order_ops: pytest.skip("not in this release")
    f, flops = higher_order[name]
    f(x)
    work = count_work(Call(f), x)
    assert (work.flops, work.unknown_ops) == (flops, {})

def test_every_higher_order_operator_is_tried_or_stands_with_a_reason():
    known = {*higher_order, *higher_order_reasons, *traced_only}
    assert sorted(n for n in _higher_order_ops if n not in known and not _rule_for(f"higher_order::{n}")) == []

# Backward of operators of torchvision; the gradient that a sum gives is one number, expanded.

picture, box = r(1, 8, 16, 16), torch.tensor([[0, 0., 0, 7, 7]])
def backward_of(f, *sample):
    work = count_work(Call(f), (sample[0].requires_grad_(), *sample[1:]), backward=True)
    assert work.unknown_ops == {}
    return next(c for c in work.trace if c.phase == "backward" and c.operator.startswith("torchvision::"))

@pytest.mark.parametrize("f, flops, read", [
    # a box of 7×7 in 3×3 bins: 8 per sample, with 4 or ⌈7/3⌉² = 9 of them in a bin, and a division
    (lambda x, b: torchvision.ops.roi_align(x, b, 3, 1.0, 2), 8*9*(8*4 + 1), 4 + 20),
    (lambda x, b: torchvision.ops.roi_align(x, b, 3, 1.0, -1, True), 8*9*(8*9 + 1), 4 + 20),
    # one sum per gradient; the place of each maximum
    (lambda x, b: torchvision.ops.roi_pool(x, b, 3), 8*9, 4 + 20 + 8*9*4),
    # 2 channels of 2×2 bins of 4 + 4 pixels along an axis: a sum per pixel, a division per bin; the channel of each
    (lambda x, b: torchvision.ops.ps_roi_pool(x, b, 2), 2*(8*8 + 4), 4 + 20 + 2*4*4),
    (lambda x, b: torchvision.ops.ps_roi_align(x, b, 2), 2*4*(8*16 + 1), 4 + 20 + 2*4*4)])
def test_backward_of_regions(f, flops, read):
    call = backward_of(f, picture.detach().clone(), box)
    assert (call.flops == flops and sum(t.bytes for t in call.reads) == read
            and sum(t.bytes for t in call.writes) == 4*8*16*16)

@pytest.mark.parametrize("masked", [False, True])
def test_backward_of_a_deformable_convolution(masked):
    offset, weight, mask = r(1, 18, 14, 14), r(4, 8, 3, 3), r(1, 9, 14, 14) if masked else None
    forward = count_work(Call(lambda *a: torchvision.ops.deform_conv2d(*a, mask=mask)),
                         (picture.detach(), offset, weight))
    taps, once = 14*14*8*9, 2*4*14*14*8*9
    # 4 neighbours of 2 FLOPs each, and the mask; a bias
    assert (forward.flops, forward.contraction_flops) == (once + (8 + masked)*taps + 4*14*14, once)
    call = backward_of(lambda x, o, w: torchvision.ops.deform_conv2d(x, o, w, mask=mask), picture.detach().clone(),
                       offset, weight.requires_grad_())
    # sampled, spread, two offsets of 7 each; six for the mask
    assert (call.flops, call.contraction_flops) == (2*once + (8 + 8 + 14 + 6*masked)*taps + 4*14*14, 2*once)

@heavy_only("a detector of torchvision")
def test_the_step_of_a_detector_is_known():
    detector = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=3)
    target = dict(boxes=torch.tensor([[5., 5, 40, 40]]), labels=torch.tensor([1]))
    work = count_work(detector, ([torch.rand(3, 64, 64)], [target]), backward=True,
                      loss=lambda losses: sum(losses.values()))
    assert work.unknown_ops == {} and any("_roi_align_backward" in c.operator for c in work.trace)

def test_regions_without_data_are_unknown():
    work = count_work(Call(lambda x, b: torchvision.ops.roi_align(x, b, 3)),
                      (picture.detach().to("meta"), box.to("meta")))
    assert work.unknown_ops == {"torchvision::roi_align": 1}

# ---- every kind of product that a row can be has a probe

eight = torch.randint(-9, 9, (8, 8), dtype=torch.int8)
picture8 = torch.randint(-9, 9, (1, 8, 4, 4), dtype=torch.int8)
one, scales, zeros = torch.ones(()), torch.ones(8), torch.zeros(8, dtype=torch.int64)

def quantized(t, dtype=torch.quint8): return torch.quantize_per_tensor(t.float(), 0.1, 0, dtype)

def quantized_linear(a):
    packed = torch.ops.quantized.linear_prepack(quantized(eight, torch.qint8), None)
    dynamic = torch.ops.quantized.linear_dynamic(a.float(), packed)
    return torch.ops.quantized.linear(quantized(a), packed, 0.1, 0), dynamic

def quantized_conv(a):
    packed = torch.ops.quantized.conv2d_prepack(quantized(r(8, 8, 3, 3), torch.qint8), None, [1, 1], [1, 1], [1, 1], 1)
    return torch.ops.quantized.conv2d(quantized(a), packed, 0.1, 0)

def exported_linear(a):
    packed = torch.ops.onednn.qlinear_prepack(a, [8, 8])
    return torch.ops.onednn.qlinear_pointwise(a, 0.1, 0, packed, scales, zeros.int(), None, 1.0, 0, torch.float32,
                                              "none", [], "")

def scaled(a): return torch._scaled_mm(a, a.t(), one, one, out_dtype=torch.bfloat16)

in_a_dtype = {
    "product": (lambda a: a @ a, (8, 8)), "products": (lambda a: torch.bmm(a, a), (2, 8, 8)),
    "convolution": (lambda a: F.conv2d(a, a), (8, 8, 4, 4)),
    "of voxels": (lambda a: F.conv_transpose3d(a, a), (4, 4, 2, 2, 2)),
    "attention": (lambda a: F.scaled_dot_product_attention(a, a, a), (1, 2, 8, 8)),
    "recurrent": (lambda a: nn.GRU(8, 8, dtype=a.dtype)(a), (2, 2, 8))}
drawn = [(f, r(*shape).to(d)) for f, shape in in_a_dtype.values()
         for d in (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128)
         if not d.is_complex or f is in_a_dtype["product"][0]]
drawn += [(scaled, r(16, 16).to(d)) for d in (torch.float8_e4m3fn, torch.float8_e5m2)]
drawn += [(exported_linear, r(8, 8).to(torch.float8_e4m3fn)), (exported_linear, eight), (quantized_linear, eight),
          (quantized_conv, picture8), (lambda a: torch._int_mm(a, a), eight)]

def test_every_kind_of_product_has_a_probe():
    "Attention and recurrent layers are products of matrices; a convolution is a kind of its own."
    here, rows = accelerator(torch.device("cpu")), set()
    for f, a in drawn: rows |= {(c.category, rate_dtype(c.dtype)) for c in count_work(Call(f), a).trace
                                if c.contraction_flops}
    kinds = {dtype: {"conv" in p.name for p in compute_probes(here, getattr(torch, dtype))} for dtype in measurable}
    assert {dtype for _, dtype in rows} == set(measurable)
    assert sorted((k, d) for k, d in rows if (k == "convolution") not in kinds[d]) == []
    assert {"convolution", "matmul"} <= {k for k, d in rows if d == "int8"}
