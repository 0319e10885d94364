"Counts that were wrong once, each with the value by hand; and the same kind of error elsewhere."
import ctypes, functools, io, math, subprocess, sys, threading, warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import heavy_only, in_line
from modules import Call
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

import fasterbench
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
from fasterbench.counting.count_verb import StepCounts
from fasterbench.work.count import count_work
from fasterbench.work.rules import Rule, rules
from fasterbench.work.target import Target

def r(*shape): return torch.randn(*shape)
def root(model, sample, **how): return count_work(model, sample, **how).by_module()[""]

# Memory that lies there before the call, and is written before it is read.

class Cache(nn.Module):
    "One token is written into a preallocated cache, attention reads all of it."
    def __init__(self):
        super().__init__(); self.register_buffer("k", r(1, 8, 2048, 64)); self.register_buffer("v", r(1, 8, 2048, 64))
    def forward(self, q, k, v, pos):
        self.k[:, :, pos] = k; self.v[:, :, pos] = v
        return F.scaled_dot_product_attention(q, self.k, self.v)

def test_a_cache_that_is_written_first():
    one, cache = 4*8*64, 4*8*2048*64
    token = [r(1, 8, 1, 64) for _ in range(3)]
    # q, k, v and pos are read; one row of each cache is written, all of it read; the result is written
    assert root(Cache(), (*token, torch.tensor([1000]))).bytes_moved == 3*one + 8 + 2*one + 2*cache + one

class Holder:
    def __init__(self): self.memory = torch.zeros(1000)

def test_memory_in_buffers_objects_and_globals():
    held, everywhere = Holder(), torch.zeros(1000)
    class Writes(nn.Module):
        def __init__(self, memory): super().__init__(); self.memory = memory
        def forward(self, x): self.memory().copy_(x); return x[:1] * 2
    buffered = Writes(lambda: buffered.last); buffered.register_buffer("last", torch.zeros(1000))
    for model in (buffered, Writes(lambda: held.memory), Writes(lambda: everywhere)):
        # x is read, the memory written, the result written
        assert root(model, r(1000)).bytes_moved == 4000 + 4000 + 4

def test_what_a_call_has_written_is_not_read_from_outside():
    class Mask(nn.Module):
        def __init__(self): super().__init__(); self.w = nn.Parameter(r(512, 8))
        def forward(self, x): x[:, 0] = 0; return x @ self.w
    assert root(Mask(), r(1000, 512)).bytes_moved == 4*(1000 + 1000*511 + 512*8 + 1000*8)
    # ten elements twice, in one call: they are read once; two sums and their sum stay inside
    both = Call(lambda x: x[:10].sum() + x.sum())
    assert root(both, r(100)).bytes_moved == 4*100 + 4

def test_rows_that_several_look_ups_read():
    table = r(1000, 4)
    look = Call(lambda i, j: F.embedding(i, table) + F.embedding(j, table))
    # 2 + 3 rows of 16 bytes, 5 indices, the result of 3 rows by broadcasting 1 over 3
    assert root(look, (torch.tensor([1]), torch.tensor([2, 3, 4]))).bytes_moved == 4*16 + 4*8 + 3*16
    often = Call(lambda i: sum(F.embedding(i, table) for _ in range(500)))
    assert root(often, torch.arange(4)).bytes_moved == 16_000 + 32 + 4*16      # at most the table

def test_memory_that_somebody_else_changed_is_read_again():
    class Parent(nn.Module):
        def __init__(self): super().__init__(); self.child = Call(lambda x: x.add_(1))
        def forward(self, x): y = x.sum(); self.child(x); return y + x.sum()
    assert root(Parent(), r(1000)).bytes_moved == 2*4000 + 4

# Results that are tensors of other classes.

def test_jagged_results():
    jagged = torch.nested.nested_tensor([r(3, 8), r(5, 8)], layout=torch.jagged)
    row = root(nn.Linear(8, 4), jagged)
    assert row.bytes_moved == row.eager_bytes == 4*(64 + 32 + 32 + 4) and root(nn.ReLU(), jagged).bytes_moved == 4*128

def test_results_that_wrap_tensors():
    from torch.testing._internal.two_tensor import TwoTensor
    assert root(nn.ReLU(), TwoTensor(r(10), r(10))).bytes_moved == 2*80

# Composite operators run as they run without being watched.

@pytest.mark.parametrize("mode", ("bilinear", "bicubic", "nearest"))
def test_interpolation_under_inference_mode(mode):
    up, x = nn.Upsample(scale_factor=2, mode=mode), r(2, 4, 8, 8)
    plain = count_work(up, x)
    with torch.inference_mode(): inference = count_work(up, x)
    assert plain.bytes == inference.bytes == 4*(2*4*8*8 + 2*4*16*16) and plain.flops == inference.flops
    assert [o.operator for o in inference.ops] == [f"aten::upsample_{mode}2d"]

@pytest.mark.parametrize("f", (lambda x: x @ x, lambda x: torch.stft(x.flatten(), 16, return_complex=True),
                               nn.GRU(16, 4),
                               lambda x: F.layer_norm(x, (16,)), lambda x: torch.einsum("bij,bjk->bik", x, x),
                               lambda x: x.softmax(-1)))
def test_the_same_work_under_inference_mode(f):
    class Decorated(Call):
        @torch.inference_mode()
        def forward(self, *args): return self.f(*args)
    x = r(3, 16, 16)
    plain, inference = count_work(Call(f), x), count_work(Decorated(f), x)
    assert ((plain.flops, plain.contraction_flops) == (inference.flops, inference.contraction_flops)
            and not inference.unknown_ops)

def jagged_heads():
    return torch.nested.nested_tensor([r(5, 16), r(3, 16)], layout=torch.jagged).unflatten(-1, [2, 8]).transpose(1, 2)

@pytest.mark.parametrize("heads", [jagged_heads, lambda: torch.nested.nested_tensor([r(2, 5, 8), r(2, 3, 8)])])
def test_attention_on_nested_tensors(heads):
    work = count_work(Call(lambda x: F.scaled_dot_product_attention(heads(), heads(), heads())), r(1))
    assert work.unknown_ops == {} and work.contraction_flops == 2*2*2*8*(5*5 + 3*3)

def test_a_linear_on_a_strided_nested_tensor():
    assert count_work(nn.Linear(8, 4), torch.nested.nested_tensor([r(3, 8), r(5, 8)])).contraction_flops == 2*8*8*4

@pytest.mark.parametrize("name, each", [("SiLU", 5), ("Mish", 3)])
def test_a_backward_with_a_kernel_of_its_own_and_a_composite_one(name, each):
    model, x = getattr(nn, name)(), r(8, 8).requires_grad_()
    row = count_work(model, x, backward=True).of_phase("backward").by_module()[""]
    # the gradient of a sum is one number; the input is read, its gradient written
    assert row.flops == each * 64 and row.bytes_moved == row.eager_bytes == 4 + 2 * 256

@pytest.mark.parametrize("model", [nn.SiLU(), nn.Mish(), nn.GELU(), nn.Hardswish(), nn.ChannelShuffle(2),
                                   nn.RMSNorm(8), nn.GLU(), nn.LogSigmoid()])
def test_operators_are_those_that_run(model):
    "The profiler sees all of them where nothing is counted; gradients are summed in place there."
    x = r(1, 4, 8, 8).requires_grad_(not isinstance(model, nn.ChannelShuffle))
    counted = {op.operator.rstrip("_") for op in count_work(model, x, backward=x.requires_grad).ops}
    with torch.profiler.profile() as profile:
        out = model(x)
        if x.requires_grad: out.sum().backward()
    assert counted <= {event.name.rstrip("_") for event in profile.events()}

# with a stride and a dilation of 2 every other element is looked at
@pytest.mark.parametrize("pool, share", [(nn.MaxPool1d(2), 1), (nn.MaxPool1d(3, 1, 1), 1),
                                         (nn.MaxPool1d(3, 2, dilation=2), 1/2),
                                         (nn.MaxPool1d(3, 2, ceil_mode=True), 1)])
@pytest.mark.parametrize("batch", in_line([(), (2,)], (2,)))
def test_a_pool_along_one_axis_writes_no_indices(pool, share, batch):
    x = r(*batch, 4, 64)
    out = pool(x)
    ops = RooflineAnalyzer(nn.Sequential(pool), x,
                           HardwarePeaks(1e12, 1e11)).profile(warmup=1, steps=2, progress=False).ops
    assert [(op.operator, op.flops) for op in ops] == [("aten::max_pool1d", out.numel() * pool.kernel_size)]
    assert ops[0].bytes_moved == share * x.nbytes + out.nbytes and ops[0].time_s > 0
    step, = (op for op in count_work(pool, x.requires_grad_(), backward=True).ops
             if op.operator.startswith("aten::max_pool") and op.phase == "forward")
    assert step.operator == "aten::max_pool2d_with_indices" and step.bytes == share * x.nbytes + 3 * out.nbytes

def test_a_pool_over_two_axes_writes_indices():
    work = count_work(nn.MaxPool2d(2), r(1, 3, 8, 8))
    assert ([op.operator for op in work.ops] == ["aten::max_pool2d_with_indices"]
            and work.bytes == 4 * (192 + 48) + 8 * 48)

@pytest.mark.parametrize("f, each", [(torch.logaddexp, 2), (torch.xlogy, 2), (torch.special.xlog1py, 2),
                                     (torch.hypot, 2)])
def test_two_operations_per_element(f, each):
    assert count_work(Call(f), (r(8).abs(), r(8).abs())).flops == 8 * each

@pytest.mark.parametrize("loss", [nn.MultiMarginLoss(), nn.MultiLabelMarginLoss(), nn.SoftMarginLoss()])
def test_gradients_of_margin_losses(loss):
    target = {"MultiMarginLoss": torch.tensor([0, 1]),
              "MultiLabelMarginLoss": torch.zeros(2, 8).long()}.get(type(loss).__name__, torch.ones(2, 8))
    step = count_work(loss, (r(2, 8).requires_grad_(), target), backward=True)
    assert step.unknown_ops == {} and step.of_phase("backward").by_module()[""].flops == 3 * 16

# Scripts.

def scripted(optimize):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optimize(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()))

def saved_and_loaded(module):
    file = io.BytesIO(); torch.jit.save(torch.jit.freeze(module), file); file.seek(0)
    return torch.jit.load(file)

@pytest.mark.parametrize("optimize", (lambda m: m, lambda m: torch.jit.freeze(m), saved_and_loaded,
                                      lambda m: nn.Sequential(torch.jit.freeze(m), nn.Flatten())))
def test_scripts(optimize):
    assert count_work(scripted(optimize), r(1, 3, 8, 8)).contraction_flops == 2*4*36*27

def test_operators_past_the_dispatcher_are_unknown():
    work = count_work(scripted(torch.jit.optimize_for_inference), r(1, 3, 8, 8))
    assert work.flops is None and list(work.unknown_ops) == ["prim::mkldnn_convolution (in an optimized script)"]

def test_a_script_that_ran_before():
    script, x = scripted(lambda m: m), r(1, 3, 8, 8)
    with torch.no_grad():
        for _ in range(3): script(x)
    assert count_work(script, x).contraction_flops == 2*4*36*27

# Threads.

pool, weight = ThreadPoolExecutor(2), torch.ones(64, 64)

@pytest.mark.parametrize("how", ("kept", "made in the forward"))
def test_functional_work_in_threads(how):
    def forward(x):
        if how == "kept": return sum(pool.map(lambda c: c @ weight, x.chunk(2)))
        with ThreadPoolExecutor(2) as mine: return sum(mine.map(lambda c: c @ weight, x.chunk(2)))
    work = count_work(Call(forward), r(64, 64))
    assert work.flops is None and work.unknown_ops == {"aten::matmul (in another thread)": 2}

def test_counts_in_several_threads_leave_the_profiler_of_new_threads_as_it_was():
    "Several contexts that overlap in any order put back what was there before the first."
    def mine(frame, event, arg): return None
    threading.setprofile(mine)
    try:
        from fasterbench.work.dispatch import OtherThreads
        first, second = OtherThreads(), OtherThreads()
        first.__enter__(); second.__enter__(); first.__exit__(*[None] * 3); second.__exit__(*[None] * 3)
        assert threading.getprofile() is mine
        with OtherThreads() as others, OtherThreads() as inner: threading.Thread(target=lambda: None).start()
        assert others.present and inner.present and threading.getprofile() is mine
    finally: threading.setprofile(None)

def test_threads_that_do_something_else():
    pool.submit(lambda: None).result()
    assert count_work(Call(lambda x: x @ weight), r(64, 64)).flops == 2*64**3

@pytest.mark.parametrize("f, flops", [
    (torch.unique, 1000 * 10),                              # a sort of 1000: log2 is 9.97
    # each with the one before
    (torch.unique_consecutive, 1000), (lambda x: torch.unique_consecutive(x, dim=0), 1000),
    (lambda x: torch.unique(x, dim=0), 1000 * 7),           # a sort of 100 rows of 10
    (lambda x: torch.sparse.sum(x.to_sparse(), dim=0), 1000)])
def test_comparisons_and_sums_of_entries(f, flops):
    trace = count_work(Call(f), torch.arange(1, 1001.).view(100, 10)).trace
    assert sum(c.flops for c in trace if "unique" in c.operator or "sum" in c.operator) == flops

n = 64
values, bytes_of_values = {"_linalg_svd": 4 * n**3 - 4 * n**3 / 3, "_linalg_eigh": 4 / 3 * n**3,
                           "_linalg_eigvals": 10 * n**3}, 4 * n
@pytest.mark.parametrize("f, operator", [
    (torch.linalg.svdvals, "_linalg_svd"), (lambda a: torch.linalg.matrix_norm(a, "nuc"), "_linalg_svd"),
    (lambda a: torch.linalg.matrix_norm(a, 2), "_linalg_svd"), (torch.linalg.cond, "_linalg_svd"),
    (torch.linalg.matrix_rank, "_linalg_svd"),
    (torch.linalg.eigvalsh, "_linalg_eigh"), (torch.linalg.eigvals, "_linalg_eigvals")])
def test_values_of_a_decomposition_alone(f, operator):
    "PyTorch leaves the vectors out where nobody counts: they are not counted either."
    trace = count_work(Call(f), r(n, n) + n * torch.eye(n)).trace
    found = next(c for c in trace if c.operator == "aten::" + operator)
    assert found.flops == values[operator] and sum(t.bytes for t in found.reads) == 4 * n**2
    # complex
    assert sum(t.bytes for t in found.writes) == bytes_of_values * (2 if operator == "_linalg_eigvals" else 1)

@pytest.mark.parametrize("f, flops", [
    (lambda a: torch.linalg.svd(a, full_matrices=False), 22 * n**3), (lambda a: torch.linalg.svd(a).S, 21 * n**3),
    (torch.linalg.eigh, 9 * n**3), (torch.linalg.eig, 25 * n**3)])
def test_vectors_that_are_asked_for_are_counted(f, flops):
    assert (sum(c.flops for c in count_work(Call(f), r(n, n) + n * torch.eye(n)).trace if "linalg" in c.operator)
            == flops)

def test_a_step_of_an_optimizer_is_one_after_its_first():
    """SGD with momentum copies the gradient in its first step; in others it adds the decay (2), scales (1) and adds
    (1) to the momentum, and updates (2)."""
    model = nn.Linear(100, 100, bias=False)
    fresh = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1, foreach=False)
    before = model.weight.detach().clone()
    def update():
        return sum(c.flops for c in count_work(model, r(2, 100), backward=True, optimizer=fresh).trace
                   if c.phase == "update")
    assert update() == 10_000 * (2 + 1 + 1 + 2) and not fresh.state and torch.equal(model.weight, before)

@pytest.mark.parametrize("call", [count_work, lambda model, x, **how: RooflineAnalyzer(model, x).profile(**how)])
def test_an_optimizer_of_another_model_is_refused(call):
    with pytest.raises(ValueError, match="none of which is a parameter"):
        call(nn.Linear(4, 4), r(2, 4), backward=True, optimizer=torch.optim.SGD(nn.Linear(4, 4).parameters(), 0.1))

def test_gradients_of_singular_values_need_the_vectors():
    "In a training step PyTorch computes them for the backward."
    class Norm(nn.Module):
        def __init__(self): super().__init__(); self.weight = nn.Parameter(r(n, n))
        def forward(self, x): return torch.linalg.matrix_norm(self.weight @ x, "nuc")
    trace = count_work(Norm(), r(n, n), backward=True).trace
    assert next(c.flops for c in trace if c.operator == "aten::_linalg_svd") == 22 * n**3

@pytest.mark.parametrize("what", [count_work,
                                  lambda model, x: RooflineAnalyzer(
                                      model, x, HardwarePeaks(1e12, 1e11)).profile(warmup=0, steps=1)])
def test_a_module_in_a_thread_whose_errors_nobody_sees(what):
    layer, out = nn.Linear(4, 4), []
    class Model(nn.Module):
        def __init__(self): super().__init__(); self.layer = layer
        def forward(self, x):
            thread = threading.Thread(target=lambda: out.append(layer(x)))
            thread.start(); thread.join()
            return out.pop() if out else x
    with pytest.raises(RuntimeError, match="a module was called from another thread"): what(Model(), r(2, 4))

# Higher-order operators.

def higher_order():
    from torch._higher_order_ops import scan, while_loop
    # 2.11 runs a first step for the shapes alone
    scan_steps = 6 if torch.__version__.startswith("2.11.") else 5
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    return {"cond": (lambda x: torch.cond(x.sum() > 0, lambda x: a(x), lambda x: b(x), (x,)), r(2, 4), 2*2*16),
            "while_loop": (lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, a(x)), (torch.tensor(0), x)),
                           r(2, 4), 3*2*2*16),
            "scan": (lambda x: scan(lambda c, x: (c + a(x), c + x), torch.zeros(4), x, dim=0), r(5, 4),
                     scan_steps*2*16)}

@pytest.mark.parametrize("name", ("cond", "while_loop", "scan"))
def test_operators_that_call_functions(name):
    f, x, contraction = higher_order()[name]
    work = count_work(Call(f), x)
    assert work.contraction_flops == contraction and work.unknown_ops == {}

def test_an_exported_model_with_a_branch():
    class Branch(nn.Module):
        def __init__(self): super().__init__(); self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        def forward(self, x): return torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.b(x), (x,))
    exported = torch.export.export(Branch().eval(), (r(2, 4),)).module()
    assert count_work(exported, r(2, 4)).contraction_flops == 2*2*16

def test_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    q = tuple(r(1, 2, 256, 16) for _ in range(3))
    dense = count_work(Call(lambda q, k, v: flex_attention(q, k, v)), q)
    assert dense.contraction_flops == 2*2*256*256*(16 + 16)
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu")
    causal = count_work(Call(lambda q, k, v: flex_attention(q, k, v, block_mask=mask)), q)
    assert causal.contraction_flops == 2*2*(3*128*128)*(16 + 16)          # 3 of 4 blocks of 128×128

# Training: work and time in the same row.

class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.a, self.b = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
    def forward(self, x): self.x = x; return self.b(torch.tanh(self.a(x)))

def test_a_gradient_within_the_loss_belongs_to_the_loss():
    net, n = Net(), 2*32**3
    def physics(out): return (torch.autograd.grad(out.sum(), net.x, create_graph=True)[0] - out).square().mean()
    step = count_work(net, r(32, 32).requires_grad_(), backward=True, loss=physics)
    forward = step.of_phase("forward").by_module()
    assert (forward["(loss)"].contraction_flops == 2*n
            and forward["a"].contraction_flops == forward["b"].contraction_flops == n)

def test_functional_code_that_is_run_again_belongs_to_its_module():
    class Checkpointed(nn.Module):
        def __init__(self): super().__init__(); self.w, self.c = nn.Parameter(r(32, 32)), nn.Linear(32, 32, bias=False)
        def forward(self, x): return self.c(checkpoint(lambda x: torch.tanh(x @ self.w), x, use_reentrant=True))
    work = count_work(Checkpointed(), r(32, 32).requires_grad_(), backward=True)
    step, again = work.of_phase("backward").by_module(), work.of_phase("recompute").by_module()
    assert step[""].contraction_flops == 2 * 2*32**3 and step["c"].contraction_flops == 2 * 2*32**3
    assert again[""].contraction_flops == 2*32**3
    assert step.get("(loss)") is None or step["(loss)"].contraction_flops == 0

@pytest.mark.parametrize("make", (lambda: _hooked(), lambda: _called()))
def test_work_at_the_root_outside_of_forward(make):
    rows = count_work(make(), r(64, 64)).by_module()
    assert rows[""].contraction_flops == 2*64**3 and rows[""].bytes_moved == 3*4*64*64

def _hooked():
    model = nn.Sequential(nn.ReLU())
    model.register_forward_hook(lambda module, args, out: out @ weight)
    return model

def _called():
    class Own(nn.Sequential):
        def __call__(self, x): return super().__call__(x @ weight)
    return Own(nn.ReLU())

# Unknown and zero.

def test_integers_are_zero_before_they_are_unknown():
    op = torch.library.custom_op("demo::ids", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    work = count_work(Call(lambda i: op(i)), torch.arange(4))
    assert work.flops == 0 and work.unknown_ops == {}
    assert count_work(Call(lambda i: torch.isin(i, i)), torch.arange(4)).flops == 0

def test_one_unknown_operator_leaves_a_lower_bound():
    op = torch.library.custom_op("demo::nobody_knows", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    work = count_work(nn.Sequential(nn.Linear(8, 8, bias=False), Call(lambda x: op(x) * 2)), r(4, 8))
    assert work.flops is None and work.flops_lower_bound == 2*4*64 + 32 and work.by_module()["0"].flops == 2*4*64
    assert work.by_module()["1"].flops is None and work.by_module()["1"].flops_lower_bound == 32 and "≥" in repr(work)
    # it may have temporaries
    assert not work.memory.exact and count_work(nn.Linear(8, 8), r(4, 8)).memory.exact

@pytest.mark.parametrize("gives, said", [(lambda *a, out=None: -5, "total=-5"),
                                         (lambda *a, out=None: math.nan, "nan"),
                                         (lambda *a, out=None: math.inf, "inf"), (lambda *a, out=None: "x", "'x'"),
                                         (lambda *a, out=None: fasterbench.Flops(10, 20), "contraction=20"),
                                         (lambda *a, out=None: a[7], "IndexError"), (lambda: 3, "TypeError")])
def test_a_rule_whose_flops_cannot_be_is_refused(gives, said, monkeypatch):
    monkeypatch.setitem(rules, "aten::relu", Rule(gives, "activation"))
    with pytest.raises(ValueError, match="the rule for aten::relu") as refused: count_work(nn.ReLU(), r(4))
    assert said in str(refused.value)

def test_the_phases_of_a_step_say_what_is_unknown(monkeypatch):
    """Of the forward, ReLU and the sum have 32 FLOPs each and the product is unknown; the product of the backward
    has 512."""
    monkeypatch.setitem(rules, "aten::mm",
                        Rule(lambda a, b, out=None: None if a == (4, 8) and b == (8, 8) else 2 * a[0] * a[1] * b[1],
                             "matmul"))
    model, sample = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()), r(4, 8)
    work = count_work(model, sample, backward=True)
    assert StepCounts(model, work, sample).lines[-1] == ("a training step: forward ≥ 64.00 FLOP, backward 576.00 FLOP")

def test_a_rule_of_ones_own_holds_for_integers():
    import fasterbench
    op = torch.library.custom_op("demo::int8_product", lambda a, b: a @ b, mutates_args=(),
                                 schema="(Tensor a, Tensor b) -> Tensor")
    @fasterbench.rule(torch.ops.demo.int8_product, category="matmul")
    def product(a, b, *, out): return fasterbench.Flops(2*a[0]*a[1]*b[1], 2*a[0]*a[1]*b[1])
    i = torch.ones(4, 4, dtype=torch.int8)
    assert count_work(Call(op), (i, i)).contraction_flops == 128

# What a library keeps between forward and backward of a recurrent layer is as large as the library likes.

sequence, weights = 4 * 4*16*64, 4 * 4*64*(64 + 64 + 2)

def test_bytes_of_a_recurrent_step_are_without_workspaces():
    """By hand: sequence, weights and both states are read, results written; the backward reads all of these, and
    the one number that every gradient is."""
    lstm, x = nn.LSTM(64, 64, batch_first=True), r(4, 16, 64)
    states = 2 * 4 * 4*64
    for target in (None, Target("cpu")):
        forward, backward = [op for op in count_work(lstm, x, backward=True, target=target).ops
                             if "mkldnn_rnn_layer" in op.operator]
        assert (forward.bytes_read, forward.bytes_written) == (sequence + weights + states, sequence + states)
        assert ((backward.bytes_read, backward.bytes_written)
                == (2 * (sequence + states) + weights + 4, sequence + weights + states))

@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_bytes_of_a_recurrent_step_are_the_same_without_data(layer):
    net, x = layer(64, 64, 2, bidirectional=True), r(4, 16, 64)
    real, fake = (count_work(net, x, backward=True, target=target) for target in (None, Target("cpu")))
    assert ((real.bytes, real.flops, real.by_module()[""].bytes_moved)
            == (fake.bytes, fake.flops, fake.by_module()[""].bytes_moved))

def test_a_recurrent_step_of_a_gpu_reads_its_weights_once():
    net, x = nn.LSTM(64, 64), r(4, 16, 64)
    forward, backward = [op for op in count_work(net, x, backward=True, target=Target("cuda", "sm90")).ops
                         if "_cudnn_rnn" in op.operator]
    states = 2 * 4 * 16*64
    assert (forward.bytes_read == sequence + weights + states
            and sequence + weights < backward.bytes_read < 3 * (sequence + states) + weights)

# What a sparse tensor stores, and no more.

def test_sparse_gradients_touch_the_rows_they_name():
    table, ids = nn.Embedding(100_000, 16, sparse=True), torch.tensor([1, 20, 300, 4_000, 50_000, 6, 7, 8])
    rows, indices = 8 * 16 * 4, 8 * 8
    def update(optimizer): return count_work(table, ids, backward=True, optimizer=optimizer).of_phase("update")
    sgd = update(torch.optim.SGD(table.parameters(), lr=.1))
    # a product and a sum per element; the gradient's values and indices, and the rows of the table, are read; these
    # written
    assert (sgd.flops, sgd.bytes) == (2 * 8 * 16, rows + indices + 2 * rows)
    for optimizer in (torch.optim.SparseAdam(table.parameters()), torch.optim.Adagrad(table.parameters())):
        work = update(optimizer)
        assert work.flops < 20 * 8 * 16
        assert all(op.bytes < 10 * rows for op in work.ops if op.operator != "aten::zeros_like"), work.ops

@pytest.mark.parametrize("sparse", ["to_sparse", "to_sparse_csr"])
def test_a_sum_with_a_sparse_tensor(sparse):
    few = torch.zeros(100, 100); few[3, 4] = few[5, 6] = 1
    few, dense = getattr(few, sparse)(), r(100, 100)
    assert (count_work(Call(lambda d: d + few), dense).flops == 2
            == count_work(Call(lambda d: d.add_(few)), dense).flops)
    assert count_work(Call(lambda d: d.add_(few, alpha=-2)), dense).flops == 4
    assert (count_work(Call(lambda d: d + few), dense).bytes > 80_000 > 4_000
            > count_work(Call(lambda d: d.add_(few)), dense).bytes)

def test_a_sum_over_a_sparse_tensor():
    few = torch.sparse_coo_tensor([[3, 5]], torch.ones(2, 4), (1000, 4))
    assert count_work(Call(lambda x: torch.sparse.sum(few) + x), r(1)).flops == 8 + 1

# Results that a function transform wraps.

@pytest.mark.parametrize("transform", ["vmap", "vmap of vmap", "jvp", "dual numbers", "grad"])
def test_results_of_transformed_modules(transform):
    layer, x = nn.Linear(32, 16), r(8, 4, 32)
    def dual(x):
        with torch.autograd.forward_ad.dual_level(): return layer(torch.autograd.forward_ad.make_dual(x, x))
    call = {"vmap": torch.vmap(layer), "vmap of vmap": torch.vmap(torch.vmap(layer)), "dual numbers": dual,
            "jvp": lambda x: torch.func.jvp(layer, (x,), (x,)),
            "grad": torch.func.grad(lambda x: layer(x).sum())}[transform]
    class Model(nn.Module):
        def __init__(self): super().__init__(); self.layer = layer
        def forward(self, x): return call(x)
    results = 2 if transform in ("jvp", "dual numbers") else 1      # a tangent beside each
    assert count_work(Model(), x).by_module()["layer"].bytes_moved == 4 * (32*32 + 32*16 + 16 + results * 32*16)

# The ceiling of quantized products.

@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bias", [True, False])
def test_the_dtype_of_quantized_products(bias):
    x = torch.quantize_per_tensor(r(8, 16), .1, 0, torch.quint8)
    static = torch.ao.nn.quantized.Linear(16, 16, bias_=bias)
    dynamic = torch.ao.nn.quantized.dynamic.Linear(16, 16, bias_=bias)
    half = torch.ao.nn.quantized.dynamic.Linear(16, 16, bias_=bias, dtype=torch.float16)
    assert ([c.dtype for c in count_work(static, x).trace] == ["int8"]
            == [c.dtype for c in count_work(dynamic, r(8, 16)).trace])
    assert "int8" not in [c.dtype for c in count_work(half, r(8, 16)).trace]
    assert [c.dtype for c in count_work(nn.Linear(16, 16, bias=bias), r(8, 16)).trace] == ["float32"]

# What is not counted, and says so.

async def _awaited(x): return x * 2
async def _streamed(x): yield x * 2
def _generated(x): yield x * 2

@pytest.mark.parametrize("lazy", [_generated, _awaited, _streamed, lambda x: map(torch.relu, [x])])
@pytest.mark.parametrize("backward", [False, True])
def test_a_forward_that_works_later(lazy, backward):
    model = nn.Sequential(nn.Linear(4, 4), Call(lazy)) if not backward else Call(lazy)
    with pytest.raises(TypeError, match="the model's forward returned a (generator|coroutine|async_generator|map)"):
        count_work(model, r(2, 4), backward=backward)

def test_a_generator_within_a_model_is_counted():
    assert count_work(Call(lambda x: sum(_generated(x))), r(2, 4)).flops == 8 + 8

def test_a_forward_that_asks_for_gradients():
    class Forces(nn.Module):
        def __init__(self): super().__init__(); self.energy = nn.Linear(3, 1)
        def forward(self, x):
            x.requires_grad_(True)
            e = self.energy(x).sum()
            return e, torch.autograd.grad(e, x, create_graph=True)[0]
    # the value, and the gradients of the input: 5 rows of 3 numbers
    assert count_work(Forces(), r(5, 3)).contraction_flops == 2 * 2*5*3
    assert count_work(Forces(), r(5, 3), backward=True).flops > 0

def test_a_lazy_model():
    with pytest.raises(ValueError, match="0.weight of the model is uninitialized: run the model once"):
        count_work(nn.Sequential(nn.LazyLinear(4)), r(2, 4))

class Outside(nn.Module):
    "`f` computes with arrays what comes out of a layer."
    def __init__(self, f): super().__init__(); self.layer, self.f, self.w = nn.Linear(4, 4), f, nn.Parameter(r(4, 4))
    def forward(self, x):
        h = self.layer(x)
        return self.f(h, self.w.detach())

outside = {
    "the result": lambda h, w: torch.from_numpy(h.numpy() @ w.numpy()),
    "a result": lambda h, w: dict(kept=h, other=[torch.from_numpy(h.numpy() @ h.numpy().T)]),
    "in between": lambda h, w: torch.from_numpy(h.numpy() @ w.numpy()) * 2,
    "a copy": lambda h, w: torch.tensor(h.numpy() @ w.numpy()),
    "a copy in between": lambda h, w: torch.tensor(np.asarray(h) @ w.numpy()).relu(),
    "a view of an array": lambda h, w: h + torch.as_tensor((h.numpy() @ w.numpy())[:1])}

@pytest.mark.parametrize("how", outside)
def test_work_in_another_library_is_unknown(how):
    work = count_work(Outside(outside[how]), r(4, 4))
    assert (work.flops is None and work.unknown_ops == {"work outside of PyTorch": 1}
            and work.flops_lower_bound >= 2*4*4*4 + 16)

table = np.arange(16, dtype=np.float32).reshape(4, 4)
everywhere = torch.from_numpy(table)
constants = {
    "a list": lambda h, w: h + torch.tensor([1.0, 2.0, 3.0, 4.0]), "a number": lambda h, w: h * torch.tensor(2.0),
    "an array": lambda h, w: h + torch.from_numpy(table), "a copy of an array": lambda h, w: h + torch.tensor(table),
    "an array as a tensor": lambda h, w: h + torch.as_tensor(table), "a global": lambda h, w: h + everywhere,
    "numbers taken out": lambda h, w: h * (int(h.numpy().argmax()) + len(w.tolist()))}

@pytest.mark.parametrize("how, backward",
                         [*((how, False) for how in constants),
                          *((how, True) for how in constants if how != "numbers taken out")])
def test_constants_are_no_work(how, backward):
    assert count_work(Outside(constants[how]), r(4, 4), backward=backward).unknown_ops == {}

def test_parameters_and_samples_that_lie_in_arrays_are_no_work():
    layer = nn.Linear(4, 4)
    layer.weight.data = torch.from_numpy(table)
    layer.register_buffer("scale", torch.from_numpy(table))
    class Model(nn.Module):
        def __init__(self): super().__init__(); self.layer, self.plain = layer, torch.from_numpy(table)
        def forward(self, x, lengths):
            return self.layer(x) * self.layer.scale + self.plain + lengths.numpy().max(), self.plain
    assert count_work(Model(), (torch.from_numpy(table), torch.from_numpy(np.arange(4)))).unknown_ops == {}

# Part of a tensor: what is named is read and written, and no more.

@pytest.mark.parametrize("name, nbytes",
                         [("put_", 16 + 8 + 8), ("put_ that adds", 16 + 8 + 8 + 8),
                          ("index_reduce_", 16 + 8000 + 8000 + 8000),
                          ("index_put_", 16 + 8000 + 8000), ("fill_diagonal_", 4000), ("take", 16 + 8 + 8)])
def test_a_scatter_touches_what_it_names(name, nbytes):
    i, v, row = torch.tensor([1, 2]), torch.ones(2), torch.ones(2, 1000)
    calls = {"put_": lambda x: x.put_(i, v), "put_ that adds": lambda x: x.put_(i, v, accumulate=True),
             "index_reduce_": lambda x: x.index_reduce_(0, i, row, "amax"),
             "index_put_": lambda x: x.index_put_((i,), row),
             "fill_diagonal_": lambda x: x.fill_diagonal_(1.0), "take": lambda x: x.take(i)}
    assert count_work(Call(calls[name]), torch.zeros(1000, 1000)).bytes == nbytes

def test_bytes_are_whole_numbers():
    class Graph(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(16, 32)
        def forward(self, x, e): h = self.l(x); return torch.zeros(x.shape[0], 32).index_add_(0, e[1], h[e[0]])
    class Parts(nn.Module):
        def forward(self, x): x[:, 3:7] += 1; return x[::3].sum() + x[1:8, 2:9].sum() + x.unfold(0, 4, 2).sum()
    for model, sample in ((Graph(), (r(100, 16), torch.randint(0, 100, (2, 400)))), (Parts(), r(10, 10))):
        rows = count_work(model, sample).by_module().values()
        assert all(type(row.bytes_moved) is int for row in rows), rows

# Operators of `torch.func`, sparse products, and decompositions of matrices.

def test_forward_derivatives():
    w, x = r(32, 16), r(16)
    jacobian = count_work(Call(lambda x: torch.func.jacfwd(lambda v: w @ v)(x)), x)
    # the product, a column per input, and the tangent of the weight: zeros, which PyTorch may multiply all the same
    assert not jacobian.unknown_ops and jacobian.contraction_flops / (2*32*16) in (1 + 16, 1 + 16 + 1)
    hessian = count_work(Call(lambda x: torch.func.hessian(lambda v: (w @ v).square().sum())(x)), x)
    assert not hessian.unknown_ops and hessian.contraction_flops >= 2*32*16 * (1 + 16)

@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_products_of_two_sparse_matrices(layout):
    a, b = torch.zeros(6, 4), torch.zeros(4, 5)
    a[[0, 1, 2], 1], a[3, 2], b[1, [0, 4]], b[2, 3], b[3, :] = 1, 1, 1, 1, 1
    a, b = getattr(a, layout)(), getattr(b, layout)()
    work = count_work(Call(lambda x: torch.sparse.mm(a, b).to_dense() + x), r(6, 5))
    assert work.contraction_flops == 2 * (3*2 + 1*1)       # column 1: three entries meet two; column 2: one meets one

def test_decompositions_that_are_made_of_others():
    a = r(64, 16)
    polar = (count_work(Call(lambda a: torch.linalg.svd(a, full_matrices=False)), a).flops + 2*64*16*16 + 2*16**3 + 3
             *16**2)
    assert not hasattr(torch.linalg, "polar") or count_work(Call(torch.linalg.polar), a).flops == polar
    root = count_work(Call(torch.linalg.eigh), r(16, 16)).flops + 2*16**3 + 3*16**2 + 2*16
    assert (not hasattr(torch.linalg, "matrix_sqrth")
            or count_work(Call(torch.linalg.matrix_sqrth), torch.eye(16)).flops == root)

# Attention: the pairs that are needed.

def pairs_in_blocks(mask, n, size=128):
    "Pairs in the blocks in which a mask leaves something."
    seen = mask(0, 0, torch.arange(n)[:, None], torch.arange(n))
    blocks = [(i, j) for i in range(0, n, size) for j in range(0, n, size) if seen[i:i + size, j:j + size].any()]
    return sum((min(n, i + size) - i) * (min(n, j + size) - j) for i, j in blocks)

@pytest.mark.parametrize("n", [130, 200, 256])
@pytest.mark.parametrize("mask", [lambda b, h, i, j: i >= j, lambda b, h, i, j: (i < 128) == (j < 128)])
def test_blocks_at_the_edge_of_flex_attention(mask, n):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    q, blocks = r(1, 2, n, 16), create_block_mask(mask, None, None, n, n, device="cpu")
    work = count_work(Call(lambda q: flex_attention(q, q, q, block_mask=blocks)), q)
    assert work.contraction_flops == 2 * 4*16 * pairs_in_blocks(mask, n)
    assert work.dense_flops == 2 * 4*16 * n*n

def test_causal_attention_in_a_model():
    from transformers import GPT2Config, GPT2LMHeadModel
    n, width, layers, words = 64, 32, 2, 50
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_head=4, n_embd=width, vocab_size=words, n_positions=n)).eval()
    work = count_work(model, dict(input_ids=torch.zeros(1, n, dtype=torch.long), use_cache=False))
    linear = layers * 2*n*12*width**2 + 2*n*width*words
    assert work.dense_flops == linear + layers * 4*width * n*n
    assert work.contraction_flops == linear + layers * 4*width * n*(n + 1)//2 <= work.flops
    for row in (*work.by_module().values(), *work.ops):
        assert row.contraction_flops <= row.flops and row.contraction_flops <= row.dense_flops

def test_every_operator_of_attention_keeps_its_contractions_within_its_flops():
    "Rules for kernels that only GPUs have, on shapes: forward and backward, causal, within a window, with a cache."
    from fasterbench.work.rules import Shape, rules
    q, k = Shape((2, 5, 3, 8)), Shape((2, 9, 3, 8))
    for name, known in rules.items():
        if "_attention_forward" not in name or "mask" in name or name.endswith("inplace"): continue
        for causal in (False, True, 2 if "efficient" in name else True):
            flops = known.flops(q, k, k, None, None, None, 5, 9, *([False] * ("cudnn" in name)), 0.0, causal,
                                window_size_left=2, window_size=3)
            assert 0 < flops.contraction < flops.total and flops.dense >= flops.contraction, name

@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no MKL")
def test_packed_weights_of_a_frozen_linear_layer():
    w, b, x = r(72, 64), r(72), r(4, 64)
    packed = torch.ops.mkl._mkl_reorder_linear_weight(w, 4)
    work = count_work(Call(lambda x: torch.ops.mkl._mkl_linear(x, packed, w, b, 4)), x)
    assert work.contraction_flops == 2*4*64*72 and work.flops == 2*4*64*72 + 4*72
    assert work.bytes == 4 * (4*64 + 72*64 + 72 + 4*72)            # the weight is read in one of its two forms

# A tensor without dimensions has one element along each dimension that an operator names.

zero = torch.tensor([0])

@pytest.mark.parametrize("f, nbytes", [
    (lambda x: x.index_fill_(0, zero, 1.), 8 + 4), (lambda x: x.index_add_(0, zero, x.clone()), 8 + 8 + 4 + 2*4),
    (lambda x: x.index_copy_(0, zero, x.clone()), 8 + 8 + 4 + 4), (lambda x: x.index_select(0, zero), 8 + 4 + 4),
    (lambda x: x.gather(0, zero[0]), 8 + 4 + 4), (lambda x: x.take(zero), 8 + 4 + 4),
    (lambda x: x.put_(zero, x.clone().view(1)), 8 + 8 + 4 + 4),
    (lambda x: x.scatter_(0, zero[0], 1.), 8 + 4), (lambda x: x.scatter_add_(0, zero[0], x.clone()), 8 + 8 + 4 + 2*4),
    (lambda x: torch.unfold_copy(x, 0, 1, 1), 4 + 4)])
def test_tensors_without_dimensions(f, nbytes):
    assert count_work(Call(f), torch.tensor(2.)).bytes == nbytes
    assert RooflineAnalyzer(Call(f), torch.tensor(2.),
                            HardwarePeaks(1e12, 1e11)).profile(warmup=0, steps=1, progress=False).ops

# A mask selects as many elements as are true, where that is known.

def test_a_mask_without_data_selects_nothing():
    from torch._subclasses.fake_tensor import FakeTensorMode
    fill = Call(lambda x, m: x.masked_fill_(m, 0.))
    for where in (torch.device("meta"), FakeTensorMode()):
        with where: sample = torch.empty(100, 100), torch.empty(100, 1, dtype=torch.bool)
        assert count_work(fill, sample).bytes == 100                                # of the mask: the least
    three = torch.arange(100)[:, None] < 3
    assert count_work(fill, (r(100, 100), three)).bytes == 100 + 4 * 300
    # the mask has data, the tensor has none
    held = Call(lambda x: x.masked_fill_(three, 0.))
    assert count_work(held, torch.empty(100, 100, device="meta")).bytes == 100 + 4 * 300

def test_a_quantized_table_is_unpacked_whole():
    # a row is 4 bytes, a scale and an offset
    packed = torch.ops.quantized.embedding_bag_byte_prepack(r(10, 4))
    assert count_work(Call(torch.ops.quantized.embedding_bag_byte_unpack), packed).bytes == 10 * (4 + 2*4) + 4*10*4
    look = Call(lambda w, i, at: torch.ops.quantized.embedding_bag_byte_rowwise_offsets(w, i, at))
    assert count_work(look, (packed, torch.tensor([1, 2, 3]), torch.tensor([0]))).bytes == 3*12 + 3*8 + 8 + 4*4

def test_samples_in_regions_of_an_image():
    from torchvision.ops import roi_align
    box, image = torch.tensor([[0., 1, 1, 5, 5]]), r(1, 3, 100, 100)
    # 2×2 bins with a sample each between 4 pixels, in 3 channels; 2 samples along each axis; as many as the box needs,
    # 4/2
    for samples, read in ((1, 3*4*4), (2, 3*4*4*4), (0, 3*4*4*4)):
        assert (count_work(Call(lambda x, b: roi_align(x, b, 2, 1., samples)), (image, box)).bytes == 4
                * (read + 5 + 3*4))

@pytest.mark.parametrize("layout", ["to_sparse_csr", "to_sparse_csc", "to_sparse"])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_factor_names_rows_of_the_other(layout):
    few = torch.zeros(100, 100); few[0, 3] = few[5, 7] = 1
    few, x = getattr(few, layout)(), r(100, 4)
    one, = (o for o in count_work(Call(lambda x: few @ x), x).ops)
    stored = sum(t.nbytes for t in {"to_sparse": lambda: (few._values(), few._indices()),
                                    "to_sparse_csr": lambda: (few.values(), few.crow_indices(), few.col_indices()),
                                    "to_sparse_csc": lambda: (
                                        few.values(), few.ccol_indices(), few.row_indices())}[layout]())
    assert (one.bytes_read, one.bytes_written) == (stored + 2*4*4, 1600)

# What outlives a call without being returned is written: whatever holds it.

class Slotted: __slots__ = "kept",
slotted, kept_here = Slotted(), {}

def keep_in_a_generator(y):
    def later(): yield y
    return later()

holders = {
    "an attribute of an object with slots": lambda y: setattr(slotted, "kept", y),
    "a view": lambda y: kept_here.update(y=y[1:]),
    "an array": lambda y: kept_here.update(y=y.numpy()),
    "a partial": lambda y: kept_here.update(y=functools.partial(torch.add, y)),
    "a closure": lambda y: kept_here.update(y=lambda: y),
    "a generator": lambda y: kept_here.update(y=keep_in_a_generator(y))}

@pytest.mark.parametrize("how", holders)
def test_what_outlives_a_call_is_written(how):
    def forward(x): holders[how](x.exp()); return x.sum()
    # read x, write its exponential and its sum
    assert root(Call(forward), r(4, 8)).bytes_moved == 128 + 128 + 4

def test_what_modules_and_arguments_keep():
    class Keeps(nn.Module):
        def forward(self, x): self.state = x.exp(); return x.sum()
    append = Call(lambda x, found: found.append(x.exp()) or x.sum())
    insert = Call(lambda x, found: found.update(y=x.exp()) or x.sum())
    for model, sample in ((Keeps(), r(4, 8)), (append, (r(4, 8), [])), (insert, (r(4, 8), {}))):
        assert root(model, sample).bytes_moved == 128 + 128 + 4
    cell = Keeps(); cell.forward = lambda x: setattr(cell, "state", x.exp()) or x + 1
    # both calls write it
    assert count_work(nn.Sequential(cell, cell), r(4, 8)).by_module()["0"].bytes_moved == 2 * 3*128
    hooked = nn.Sequential(nn.ReLU())
    hooked[0].register_forward_hook(lambda module, args, out: kept_here.update(y=out.exp()))
    assert root(hooked, r(4, 8)).bytes_moved == 2*128                          # the hook's work belongs to the root

def test_what_nothing_holds_stays_inside():
    def in_a_cycle(x): around = [x.exp()]; around.append(around); return x.sum()
    for f in (lambda x: (x.exp(), x.sum())[1], in_a_cycle): assert root(Call(f), r(4, 8)).bytes_moved == 128 + 4

def test_a_growing_cache_of_transformers():
    from transformers import DynamicCache
    def attend(q, k, v, cache): return F.scaled_dot_product_attention(q, *cache.update(k, v, 0))
    cache, token = DynamicCache(), [r(1, 4, 1, 8) for _ in range(3)]
    cache.update(r(1, 4, 40, 8), r(1, 4, 40, 8), 0)
    # 40 tokens of 4 heads of 8 are read, for keys and values, and the three of the new one; 41 and the result are
    # written
    assert root(Call(attend), (*token, cache)).bytes_moved == 2*40*128 + 3*128 + 2*41*128 + 128

# Views of one tensor that overlap: their union.

@pytest.mark.parametrize("f, elements", [
    (lambda x: torch.diff(x, dim=0).sum(), 32), (lambda x: torch.diff(x, dim=1).sum(), 32),
    (lambda x: (x[:, 2:] - x[:, 1:-1] - x[:, :-2]).sum(), 32),
    (lambda x: (x[1:] - x[:-1]).abs().sum() + (x[:, 1:] - x[:, :-1]).abs().sum(), 32),
    (lambda x: (x[:, ::2] * x[:, 1::2]).sum(), 32),
    (lambda x: x.unfold(1, 4, 3).sum(), 4*7), (lambda x: x.unfold(1, 3, 1).sum(), 32),
    (lambda x: x[1:3, 2:6].sum() + x[2:, :4].sum(), 2*4 + 2*4 - 2)])
def test_views_that_overlap_are_read_once(f, elements):
    assert root(Call(f), r(4, 8)).bytes_moved == 4 * elements + 4

def test_one_operator_reads_each_byte_once():
    op, = (op for op in count_work(Call(lambda x: x[:, 1:] - x[:, :-1]), r(4, 8)).ops if op.operator == "aten::sub")
    assert (op.bytes_read, op.bytes_written) == (4*32, 4*28)

# Tensors of a class of one's own, made in the forward.

class Plain(torch.Tensor): pass
class Noting(torch.Tensor):
    seen = []
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})
class Below(torch.Tensor):
    "Runs its operators where no mode sees them."
    @staticmethod
    def __new__(cls, data): return torch.Tensor._make_subclass(cls, data)
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return super().__torch_dispatch__(func, types, args, kwargs or {})
class Wrapping(torch.Tensor):
    @staticmethod
    def __new__(cls, data): return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype)
    def __init__(self, data): self.data_inside = data
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(a.data_inside if isinstance(a, Wrapping) else a for a in args), **(kwargs or {}))

@pytest.mark.parametrize("kind", [Plain, Noting, Below, Wrapping])
def test_tensor_classes_made_in_a_forward(kind):
    w = r(8, 16)
    model, x = nn.Sequential(Call(lambda x: kind(x) @ w)), r(4, 8)
    before = len(Noting.seen); model(x); bare = len(Noting.seen) - before
    assert count_work(model, x).contraction_flops == 2*4*8*16
    assert len(Noting.seen) - before in (2 * bare, 3 * bare)       # run again where other threads might have worked
    assert RooflineAnalyzer(model, x, HardwarePeaks(
        1e12, 1e11)).profile(warmup=1, steps=2, progress=False).program.contraction_flops == 2*4*8*16
    assert "__new__" not in vars(torch.Tensor) and "numpy" not in vars(torch.Tensor)

def test_a_tensor_class_made_of_a_list_and_a_causal_bias():
    from torch.nn.attention.bias import causal_lower_right
    assert count_work(Call(lambda x: x @ Plain([[1.] * 16] * 8)), r(4, 8)).contraction_flops == 2*4*8*16
    q, k = r(1, 2, 4, 8), r(1, 2, 16, 8)
    work = count_work(Call(lambda q, k: F.scaled_dot_product_attention(q, k, k, causal_lower_right(4, 16))), (q, k))
    assert work.contraction_flops in (2*58*32, 2*64*32)          # 13 + 14 + 15 + 16 pairs, or all 64 under a mask

@heavy_only("a process that imports the compiler")
def test_the_compiler_is_imported_while_operators_are_watched():
    "A forward may import it, which keeps `Tensor.__new__` by its identity."
    code = """
import sys, torch
from fasterbench.work.doors import doors_watched
assert "torch._dynamo" not in sys.modules
with doors_watched(None):
    assert torch.Tensor.__new__ is not torch._C.TensorBase.__new__
    import torch._dynamo
from torch._dynamo.trace_rules import _polyfilled_function_ids
assert id(torch._C.TensorBase.__new__) in _polyfilled_function_ids
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]

# A forward that takes gradients itself.

layer = nn.Linear(8, 1, bias=False)
def residual(x):
    x = x.detach().requires_grad_()
    first, = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    return first + torch.autograd.grad(first.sum(), x)[0]
def by_backward(x):
    x = x.detach().requires_grad_()
    layer(x).sum().backward()
    return x.grad

n = 2 * 4*8        # FLOPs of the layer on 4 rows
gradients = {
    # value and gradient; of the latter two gradients more, without those of the weight
    "autograd.grad, twice": (residual, (2*n, 4*n)),
    "backward": (by_backward, (3*n,)),                # value, gradients of input and weight
    "func.grad": (torch.func.grad(lambda x: layer(x).sum()), (2*n,)),
    "vmap of grad": (torch.vmap(torch.func.grad(lambda x: layer(x).sum())), (2*n,))}

@pytest.mark.parametrize("how", gradients)
@pytest.mark.parametrize("outside_of", [torch.no_grad, torch.enable_grad])
def test_gradients_in_a_forward(how, outside_of):
    f, (least, *most) = gradients[how]
    model = Call(f).eval(); model.layer = layer
    with outside_of():
        on = torch.is_grad_enabled()
        counted = count_work(model, r(4, 8)).contraction_flops
        profiled = RooflineAnalyzer(model, r(4, 8),
                                    HardwarePeaks(1e12, 1e11)).profile(warmup=1, steps=2, progress=False).program
        assert least <= counted == profiled.contraction_flops <= max(most, default=least)
        assert torch.is_grad_enabled() == on and layer.weight.grad is None

def test_other_errors_of_a_forward_stay_what_they_are():
    def fails(x): raise RuntimeError("a grad that nobody requires")
    with pytest.raises(RuntimeError, match="^a grad that nobody requires$"): count_work(Call(fails), r(2))

# Work outside of PyTorch is unknown, at the row that does it.

def into(out, x): np.dot(x.numpy(), np.ones((8, 8), np.float32), out=out.numpy()); return out
def through_addresses(out, x): ctypes.memmove(out.data_ptr(), x.data_ptr(), x.nbytes); return out
def without_modes(x):
    with _disable_current_modes(): return hidden_layer(x)
hidden_layer, eight = nn.Linear(8, 8), np.ones((8, 8), np.float32)

works_outside = {
    "numpy": lambda x: torch.from_numpy(x.numpy() @ eight),
    "asarray": lambda x: torch.as_tensor(np.asarray(x) @ eight),
    "a function of numpy": lambda x: torch.as_tensor(np.exp(x)),
    "dlpack": lambda x: torch.from_dlpack(np.from_dlpack(x) @ eight),
    "a buffer": lambda x: torch.frombuffer(bytearray((x.numpy() @ eight).tobytes()), dtype=torch.float32).view(4, 8),
    "a loop over a list": lambda x: torch.tensor([[2 * v for v in row] for row in x.tolist()]),
    "a loop over numbers": lambda x: torch.tensor([2 * float(v) for v in x.flatten()]).view(4, 8),
    "an array as a list": lambda x: torch.tensor((x.numpy() @ eight).tolist()),
    "in place": lambda x: (np.multiply(x.numpy(), 2, out=x.numpy()), x)[1],
    "into zeros": lambda x: into(torch.zeros(4, 8), x), "into new memory": lambda x: into(torch.empty(4, 8), x),
    "addresses": lambda x: through_addresses(torch.empty(4, 8), x),
    "addresses, zeros": lambda x: through_addresses(torch.zeros(4, 8), x),
    "modes off": without_modes}

@pytest.mark.parametrize("how", works_outside)
def test_work_outside_is_unknown_at_its_row(how):
    middle = nn.Sequential(nn.Linear(8, 8), Call(works_outside[how]), nn.Linear(8, 8))
    for model in (middle, middle[:2]):
        rows = count_work(model, r(4, 8)).by_module()
        assert ({name for name, row in rows.items() if row.flops is None} == {"1"}
                and rows["1"].unknown == ("work outside of PyTorch",))

constant = r(8)
works_inside = {
    "a global": lambda x: x + constant, "an address compared": lambda x: x
    + float(x.data_ptr() == constant.data_ptr()), "a look": lambda x: x * float(x.numpy().max() > 0),
    "new memory, written": lambda x: torch.empty_like(x).copy_(x), "a constant": lambda x: x + torch.tensor([1.] * 8),
    "one number": lambda x: x * torch.tensor(x.max().item()),
    "numbers of constants": lambda x: x * max(torch.tensor(float(k)).log2().item() for k in (2, 4, 8, 16)),
    "whole numbers": lambda x: x + torch.tensor((x > 0).int().tolist()),
    "a result": lambda x: torch.add(x, x, out=torch.empty(0)), "a size": lambda x: x + torch.empty(4, 0).sum()}

@pytest.mark.parametrize("how", works_inside)
def test_looks_and_constants_are_no_work_outside(how):
    assert (count_work(nn.Sequential(nn.Linear(8, 8), Call(works_inside[how]), nn.Linear(8, 8)), r(4, 8)).unknown_ops
            == {})

# Shapes found on fake tensors are no work.

@pytest.mark.parametrize("backward", [False, True])
def test_shapes_that_a_forward_looks_for(backward):
    from torch._subclasses.fake_tensor import FakeTensorMode
    w = nn.Parameter(r(8, 16))
    class Looks(nn.Module):
        def __init__(self): super().__init__(); self.w = w
        def forward(self, x):
            with FakeTensorMode() as mode: shape = (mode.from_tensor(x) @ mode.from_tensor(self.w)).exp().shape
            return (x @ self.w).view(shape)
    work = count_work(Looks(), r(4, 8), backward=backward)
    # the sum, the loss
    assert (work.contraction_flops == (1 + backward) * 2*4*8*16
            and work.flops - work.contraction_flops == backward * 4*16)

# Work that differs from run to run.

def counting(calls, times):
    def forward(self, x):
        calls[0] += 1
        for _ in range(times(calls[0])): x = self.step(x)
        return x
    return forward

def work_differs(times, functional=False, **how):
    calls, w = [0], r(64, 64) / 64
    class Model(nn.Module):
        def __init__(self): super().__init__(); self.l = nn.Linear(64, 64)
        def step(self, x): return x @ w if functional else self.l(x)
        forward = counting(calls, times)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = RooflineAnalyzer(Model(), r(16, 64),
                                 HardwarePeaks(1e12, 1e11)).profile(warmup=1, steps=10, progress=False)
    said = [str(w.message) for w in heard if issubclass(w.category, fasterbench.NotMeasuredWarning)]
    return found, [s for s in said if "differs" in s or "the same operators" in s]

every_run = [lambda k: k, lambda k: max(60 - k, 1), lambda k: 1 + k % 4, lambda k: 1 + 3 * (k % 2)]

# Calls of modules are counted in each timed run; functions only in three of all runs, which may miss one in five.
@pytest.mark.parametrize("times, functional",
                         [*product(every_run, (False, True)), (lambda k: 1 + 9 * (k % 5 == 0), False)])
def test_work_that_differs_from_run_to_run_is_said(times, functional):
    found, said = work_differs(times, functional)
    assert said
    if not functional: assert any("l was called" in note for note in found.result.notes)

def test_shapes_that_grow_are_said():
    held = []
    def grows(x): held.append(x); return torch.cat(held).sum()
    with pytest.warns(fasterbench.NotMeasuredWarning, match="differs from run to run .*other operators or shapes"):
        RooflineAnalyzer(nn.Sequential(Call(grows)), r(16, 64),
                         HardwarePeaks(1e12, 1e11)).profile(warmup=1, steps=3, progress=False)

@pytest.mark.parametrize("times", [lambda k: 1 if k == 1 else 3, lambda k: 3 if k == 1 else 1, lambda k: 2])
def test_a_first_run_that_does_more_or_less(times):
    "The figures are those of the runs that follow."
    for functional in (False, True):
        found, said = work_differs(times, functional)
        assert not said and found.program.contraction_flops == times(2) * 2*16*64*64

class Nested(nn.Module):
    def __init__(self, inner): super().__init__(); self.own, self.inner = nn.Linear(4, 4), inner
    def forward(self, x): return self.inner(self.own(x))

@heavy_only("240 modules")
def test_modules_nested_as_deep_as_python_lets_them():
    """240 modules, each of which calls the next, take nearly all of the 1000 frames that Python allows; 2×4×4 FLOP
    for each of 2 rows."""
    model, limit = nn.Linear(4, 4), sys.getrecursionlimit()
    for _ in range(239): model = Nested(model)
    x = r(2, 4)
    assert count_work(model, x).contraction_flops == 240 * 2*2*4*4
    rows = RooflineAnalyzer(model, x, HardwarePeaks(1e12, 1e11)).profile(warmup=1, steps=2, progress=False).results
    assert sum(p.contraction_flops for p in rows) == 240 * 2*2*4*4 and sys.getrecursionlimit() == limit
