"""What every row keeps, wherever it was made: measured, predicted, read from a file of another tool, folded,
gathered, saved."""
import json, random
from dataclasses import fields, replace
from tempfile import NamedTemporaryFile
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

import pytest, torch
from conftest import heavy_only
from torch import nn

import ncu_files
from fasterbench import RooflineAnalyzer, predict, read_ncu, read_trace
from fasterbench.core.files import restored
from fasterbench.roofs.place import place
from fasterbench.roofs.point import RooflinePoint
from fasterbench.roofs.row import Row, declarations, part_of, sum_of_all, summed, sums
from fasterbench.roofs.violations import violations
from fasterbench.roofs.hardware import Ceiling, HardwarePeaks, MemoryLevel
from fasterbench.views.fold import fold
from fasterbench.network.gathered import gathered
from fasterbench.views.page import finite
from fasterbench.views.result import from_json
from fasterbench.serving import serve_view
from fasterbench.running.metrics import metric_fields, metrics_of
from fasterbench.work.count import count_work
from trace_files import event, needs_real, real, written

here = HardwarePeaks(1e15, 1e14, levels=(MemoryLevel("L2", 1 << 20, 4e14), MemoryLevel("DRAM", None, 1e14)),
                     ceilings=(Ceiling("float32", 1e15), Ceiling("float32", 1e14, "pointwise")), launch_s=1e-9)

def all_points(result):
    yield from (*result.points, *result.ops, *result.kernels, *result.steps)
    if result.program is not None: yield result.program

def saved(result):
    with NamedTemporaryFile("w", suffix=".json") as file:
        result.to_json(file.name)
        return from_json(file.name)

def check(result, least=0):
    "No row of `result` is unsound: as it is, folded, gathered with itself, and saved."
    peaks = None if result.environment.get("compiled") else result.peaks    # a compiled limit counts products alone
    twice = gathered([result, replace(result, points=[replace(p, time_s=2 * p.time_s, utilization_pct=p.utilization_pct
                                                              and p.utilization_pct / 2) for p in result.points])])
    for r in (result, saved(result), twice):
        found = {p.name or "(whole)": why for p in all_points(r) if (why := violations(p, peaks))}
        assert not found, found
        for group in ("block", "type", "category"):
            for p in fold(r.points, group): assert not violations(p, peaks), (p.name, group)
    assert sum(p.flops or 0 for p in result.points) >= least

class Sees(nn.Module):
    "Attention of 2 heads of 8 channels to what came before, and a product."
    def __init__(self): super().__init__(); self.out = nn.Linear(16, 16, bias=False)
    def forward(self, x):
        q = x.unflatten(-1, (2, 8)).transpose(1, 2)
        return self.out(nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2))

def made():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Identity(), nn.Flatten(),
                         nn.Linear(8 * 6 * 6, 4))

def test_rows_of_a_profile():
    check(RooflineAnalyzer(made(), torch.ones(2, 3, 8, 8), here).profile(warmup=1, steps=3, progress=False).result,
          1000)

def test_rows_of_causal_attention():
    check(RooflineAnalyzer(Sees(), torch.ones(2, 64, 16), here).profile(warmup=1, steps=3, progress=False).result,
          1000)

def test_rows_of_a_training_step():
    net = made()
    step = RooflineAnalyzer(net, torch.ones(2, 3, 8, 8), here)
    check(step.profile(warmup=1, steps=3, backward=True,
                       optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
                       progress=False).result, 3000)

@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=heavy_only("asks the compiler"))])
def test_rows_of_a_prediction(compiled):
    check(predict(made(), torch.ones(2, 3, 8, 8), "NVIDIA H100 80GB HBM3", compiled=compiled), 1000)
    check(predict(Sees(), torch.ones(2, 64, 16), "NVIDIA A100-SXM4-80GB", autocast=torch.bfloat16,
                  compiled=compiled))

# Causal flash attention of 32 heads over 32 768 tokens of 128 channels takes 15 ms, the product after it 1.5 ms.

def launched(i, name, dims, types, values, kernel, at, took):
    yield event("cpu_op", name, 100 * i, 50, **{"External id": i, "Input Dims": dims, "Input type": types,
                                                "Concrete Inputs": values, "Input Strides": [[] for _ in dims]})
    yield event("cuda_runtime", "cudaLaunchKernel", 100 * i + 5, 2, correlation=i, **{"External id": i})
    yield event("kernel", kernel, at, took, correlation=i, device=0, stream=7, **{"External id": i})

def attention_trace(path):
    q, mm, dtype = [1, 32, 32768, 128], [[32768, 4096], [4096, 4096]], "c10::BFloat16"
    events = [event("python_function", "nn.Module: Attn_0", 50, 300),
              *launched(1, "aten::_scaled_dot_product_flash_attention", [q, q, q, [], [], [], []],
                        [dtype] * 3 + ["Scalar"] * 3 + [""], ["", "", "", "0.", "True", "False", ""],
                        "flash_fwd_kernel", 1000, 15000),
              *launched(2, "aten::mm", mm, [dtype] * 2, ["", ""], "nvjet_gemm", 17000, 1500)]
    return read_trace(written(path, events, deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3")]))

def test_rows_of_causal_attention_in_a_trace(tmp_path):
    """By hand: 32 · 32768 · 32769 / 2 pairs, each 4 · 128 FLOP in products, 8.8 TFLOP at 989 TFLOP/s: 8.9 ms. The
    product adds 2 · 32768 · 4096², 1.1 ms, so the module needs 10.0 of its 16.5 ms."""
    result = attention_trace(tmp_path)
    check(result, 1e12)
    pairs = 32 * 32768 * 32769 // 2
    attention = next(p for p in result.ops if p.category == "attention")
    assert attention.contraction_flops <= attention.flops and attention.flops == pytest.approx(pairs * 512, rel=0.02)
    assert attention.roof_time_s == pytest.approx(8.9e-3, rel=0.02)
    module = next(p for p in result.points if p.name == "Attn_0")
    assert (module.roof_time_s == pytest.approx(10.0e-3, rel=0.02)
            and module.utilization_pct == pytest.approx(61, abs=1))

def test_8_bit_operators_of_different_shapes_are_rows_of_their_own(tmp_path):
    shapes, fp8 = ([[128, 64], [64, 32]], [[256, 64], [64, 32]]), "c10::Float8_e4m3fn"
    events = [e for i, dims in enumerate(shapes)
              for e in launched(i + 1, "vllm::fp8_gemm", dims, [fp8] * 2, ["", ""], "fp8_kernel", 1000 * (i + 1), 100)]
    result = read_trace(written(tmp_path, events, deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3")]))
    assert {p.name for p in result.ops} == {"vllm::fp8_gemm 128×64 64×32", "vllm::fp8_gemm 256×64 64×32"}
    check(result)

@pytest.mark.parametrize("by", ["launch", "kernel", "nvtx"])
@pytest.mark.filterwarnings("ignore")
def test_rows_of_counters(tmp_path, by):
    metrics = [("gpu__time_duration.sum", "ns", "80,000"), ("dram__bytes.sum", "byte", "4,194,304"),
               ("lts__t_bytes.sum", "byte", "16,777,216"), ("l1tex__t_bytes.sum", "byte", "33,554,432"),
               *((f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum", "inst", "1,048,576")
                 for op in ("fadd", "fmul", "ffma"))]
    counted = tmp_path/"counted.csv"
    counted.write_text("\n".join(ncu_files.page("a.out", "k", "(256, 1, 1)", "(64, 1, 1)", "9.0", metrics)) + "\n")
    check(read_ncu(counted, by=by, peaks=HardwarePeaks(1e15, 1e14, device="cuda")), 4 * 1048576)
    for path in ncu_files.all_of(tmp_path).values():
        check(read_ncu(path, by=by))
        check(read_ncu(path, by=by, peaks=HardwarePeaks(1e15, 1e14, device="cuda")))

@needs_real
def test_rows_of_a_real_trace():
    check(read_trace(real/"h100_vit_base_infer.json.gz"), 1e9)

# 2 samples of 64 tokens: 64·65/2 of 64² pairs per head, each 4·8 FLOP in products; then 2·128·16² of the linear layer.
needed_pairs, every_pair, linear = 2 * 2 * 64 * 65 // 2 * 32, 2 * 2 * 64 * 64 * 32, 2 * 128 * 16 * 16

def seen(**how):
    if how: return predict(Sees(), torch.ones(2, 64, 16), "NVIDIA A100-SXM4-80GB", **how)
    return RooflineAnalyzer(Sees(), torch.ones(2, 64, 16), here).profile(warmup=1, steps=3, progress=False).result

@pytest.mark.parametrize("how", [{}, pytest.param(dict(compiled=True), marks=heavy_only("compiles")),
                                 dict(autocast=torch.bfloat16)], ids=["profile", "compiled", "predict"])
def test_every_pair_is_a_figure_beside_the_needed_ones(how):
    result = seen(**how)
    found = {p.name: (p.contraction_flops, p.dense_flops) for p in result.points if p.dense_flops}
    if not how: check(result)
    if not how.get("compiled"): assert found == {"": (needed_pairs, every_pair), "out": (linear, linear)}
    for r in (result, saved(result)):
        assert (r.program.contraction_flops, r.program.dense_flops) == (needed_pairs + linear, every_pair + linear)
    whole = fold(result.points, "category")
    assert sum(p.dense_flops for p in whole) == every_pair + linear
    assert ("dense_flops [FLOP]" in result.csv().splitlines()[0]
            and result.to_frame().dense_flops.sum() == every_pair + linear)

def test_contractions_are_no_more_than_with_every_pair():
    p = seen().program
    assert not violations(p) and violations(replace(p, dense_flops=p.contraction_flops // 2)) == [
        f"contraction_flops is {p.contraction_flops:g}, and dense_flops {p.contraction_flops // 2:g}"]

def test_a_call_without_a_figure_of_every_pair_is_unknown():
    work = count_work(Sees(), torch.ones(2, 64, 16))
    assert work.dense_flops == every_pair + linear
    bare = replace(work, trace=[replace(c, dense_flops=None) for c in work.trace])
    assert bare.dense_flops is None and {m.dense_flops for m in bare.by_module().values()} == {None}
    assert bare.contraction_flops == needed_pairs + linear

def test_both_counts_of_mfu_are_named():
    """Of 1 s at 1e6 FLOP/s the needed pairs and the product take 0.33 s, with every pair 0.59 s."""
    whole = seen()
    roofs = HardwarePeaks(1e6, 1e14)
    found = metrics_of(replace(whole, peaks=roofs, program=replace(whole.program, time_s=1.0)))
    assert found["mfu"] == pytest.approx((needed_pairs + linear) / 1e6)
    assert found["dense_mfu"] == pytest.approx((every_pair + linear) / 1e6)
    assert [metric_fields[k].title for k in ("mfu", "dense_mfu")] == ["MFU, unmasked pairs", "MFU, all pairs"]
    assert ([serve_view._serve_fields[k].title for k in ("causal_mfu", "mfu")]
            == ["MFU, unmasked pairs", "MFU, all pairs"])

@pytest.mark.parametrize("into", [False, True], ids=["binary", "in place"])
def test_a_fused_convolution_that_adds_a_tensor(into):
    """4 to 8 channels, 3×3 on 8×8 pixels: 2·8·64·36 FLOP in products, then a bias and a sum of 512 elements. The
    input of 256, weight of 288, bias of 8 and the other tensor of 512 numbers are read, 512 written."""
    x, w, other = torch.ones(1, 4, 8, 8), torch.ones(8, 4, 3, 3), torch.ones(1, 8, 8, 8)
    class Fused(nn.Module):
        def __init__(self): super().__init__(); self.w, self.b = nn.Parameter(w), nn.Parameter(torch.ones(8))
        def forward(self, x, other):
            how = self.w, self.b, [1, 1], [1, 1], [1, 1], 1, "add", 1.0, None, [], None
            if into: return torch.ops.mkldnn._convolution_pointwise_.binary(other, x, *how)
            return torch.ops.mkldnn._convolution_pointwise.binary(x, other, *how)
    with torch.no_grad(): op, = count_work(Fused(), (x, other)).ops
    assert (op.contraction_flops, op.dense_flops, op.flops) == (36864, 36864, 36864 + 2 * 512)
    assert (op.bytes_read, op.bytes_written) == (4 * (256 + 288 + 8 + 512), 4 * 512)

# ---- rows drawn at random, field by field: what a field declares is all that is known of it here

def drawn(kind, rng):
    "A value of the type of a field. Numbers are powers of two, so that parts and sums are exact."
    of = get_args(kind)
    if get_origin(kind) is Literal: return rng.choice(of)
    if get_origin(kind) in (Union, UnionType): return drawn(rng.choice(of), rng)
    if get_origin(kind) is not tuple:
        values = {str: ("a", "b"), bool: (False, True), int: (1, 2, 4), float: (0.5, 8.0, 64.0), NoneType: (None,)}
        return rng.choice(values[kind])
    if of[1:] != (...,): return tuple(drawn(k, rng) for k in of)
    items = [drawn(of[0], rng) for _ in range(2)]
    named = {item[0]: item for item in items if isinstance(item, tuple)}
    return tuple(named.values() if named else sorted(items)) if rng.random() < 0.8 else ()

def drawn_point(rng): return RooflinePoint(**{f.name: drawn(f.type, rng) for f in fields(RooflinePoint)})

def rounded(value):
    if isinstance(value, tuple): return tuple(map(rounded, value))
    return round(value, 9) if isinstance(value, float) else value

def unordered(value): return sorted(rounded(value)) if isinstance(value, tuple) else rounded(value)

@pytest.mark.parametrize("seed", range(20))
def test_every_field_adds_divides_and_is_written_as_it_declares(seed):
    rng = random.Random(seed)
    points = [drawn_point(rng) for _ in range(3)]
    there, back = sums(points, RooflinePoint), sums(points[::-1], RooflinePoint)
    [p, *_] = points
    half, written = part_of(p, 0.5), json.loads(json.dumps(finite(p)))
    whole, read = sums([half, half], RooflinePoint), restored(RooflinePoint, written)
    for name, of in declarations(RooflinePoint).items():
        value = getattr(p, name)
        if of["adds"]: assert unordered(there[name]) == unordered(back[name]), name
        if not of["part"]: assert getattr(half, name) == value, name
        elif of["adds"]: assert unordered(whole[name]) == unordered(value), name
        if of["adds"] is sum_of_all:
            assert (there[name] is None) == any(getattr(q, name) is None for q in points), name
        assert (name in written) == of["saved"] and (not of["saved"] or getattr(read, name) == value), name

def test_a_sum_of_counted_work_and_of_a_part_of_it_is_at_least_that_much():
    rows = [Row(f"net.{i}", "Linear", 1e6, 1e5, 1e-3, at_least=not i) for i in (0, 1)]
    [folded] = fold([place(row, here) for row in rows], "type")
    assert folded.source == place(summed(rows), here).source == "at least"
    [other] = fold([place(rows[0], here), place(rows[1], here, source="ncu")], "type")
    assert other.source == "mixed"
