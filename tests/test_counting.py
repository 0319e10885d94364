"Counts that were wrong once, each with the value by hand; and the same kind of error elsewhere."
import io, warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from fasterbench.work.count import count_work

class Call(nn.Module):
    def __init__(self, f): super().__init__(); self.f = f
    def forward(self, *args): return self.f(*args)

def r(*shape): return torch.randn(*shape)
def root(model, sample, **how): return count_work(model, sample, **how).by_module()[""]

# Memory that lies there before the call, and is written before it is read.

class Cache(nn.Module):
    "One token is written into a preallocated cache, attention reads all of it."
    def __init__(self): super().__init__(); self.register_buffer("k", r(1, 8, 2048, 64)); self.register_buffer("v", r(1, 8, 2048, 64))
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
        assert root(model, r(1000)).bytes_moved == 4000 + 4000 + 4      # x is read, the memory written, the result written

def test_what_a_call_has_written_is_not_read_from_outside():
    class Mask(nn.Module):
        def __init__(self): super().__init__(); self.w = nn.Parameter(r(512, 8))
        def forward(self, x): x[:, 0] = 0; return x @ self.w
    assert root(Mask(), r(1000, 512)).bytes_moved == 4*(1000 + 1000*511 + 512*8 + 1000*8)
    both = Call(lambda x: x[:10].sum() + x.sum())       # ten elements twice, in one call: they are read once; two sums and their sum stay inside
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

@pytest.mark.parametrize("f", (lambda x: x @ x, lambda x: torch.stft(x.flatten(), 16, return_complex=True), nn.GRU(16, 4),
                               lambda x: F.layer_norm(x, (16,)), lambda x: torch.einsum("bij,bjk->bik", x, x), lambda x: x.softmax(-1)))
def test_the_same_work_under_inference_mode(f):
    class Decorated(Call):
        @torch.inference_mode()
        def forward(self, *args): return self.f(*args)
    x = r(3, 16, 16)
    plain, inference = count_work(Call(f), x), count_work(Decorated(f), x)
    assert (plain.flops, plain.contraction_flops) == (inference.flops, inference.contraction_flops) and not inference.unknown_ops

def test_a_linear_on_a_strided_nested_tensor():
    assert count_work(nn.Linear(8, 4), torch.nested.nested_tensor([r(3, 8), r(5, 8)])).contraction_flops == 2*8*8*4

# Scripts.

def scripted(optimize):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return optimize(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()))

def saved_and_loaded(module):
    file = io.BytesIO(); torch.jit.save(torch.jit.freeze(module), file); file.seek(0)
    return torch.jit.load(file)

@pytest.mark.parametrize("optimize", (lambda m: m, lambda m: torch.jit.freeze(m), saved_and_loaded, lambda m: nn.Sequential(torch.jit.freeze(m), nn.Flatten())))
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

def test_threads_that_do_something_else():
    pool.submit(lambda: None).result()
    assert count_work(Call(lambda x: x @ weight), r(64, 64)).flops == 2*64**3

# Higher-order operators.

def higher_order():
    from torch._higher_order_ops import scan, while_loop
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    return {"cond": (lambda x: torch.cond(x.sum() > 0, lambda x: a(x), lambda x: b(x), (x,)), r(2, 4), 2*2*16),
            "while_loop": (lambda x: while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, a(x)), (torch.tensor(0), x)), r(2, 4), 3*2*2*16),
            "scan": (lambda x: scan(lambda c, x: (c + a(x), c + x), torch.zeros(4), x, dim=0), r(5, 4), 5*2*16)}

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
    def __init__(self): super().__init__(); self.a, self.b = nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False)
    def forward(self, x): self.x = x; return self.b(torch.tanh(self.a(x)))

def test_a_gradient_within_the_loss_belongs_to_the_loss():
    net, n = Net(), 2*32**3
    def physics(out): return (torch.autograd.grad(out.sum(), net.x, create_graph=True)[0] - out).square().mean()
    step = count_work(net, r(32, 32).requires_grad_(), backward=True, loss=physics)
    forward = step.of_phase("forward").by_module()
    assert forward["(loss)"].contraction_flops == 2*n and forward["a"].contraction_flops == forward["b"].contraction_flops == n

def test_functional_code_that_is_run_again_belongs_to_its_module():
    class Checkpointed(nn.Module):
        def __init__(self): super().__init__(); self.w, self.c = nn.Parameter(r(32, 32)), nn.Linear(32, 32, bias=False)
        def forward(self, x): return self.c(checkpoint(lambda x: torch.tanh(x @ self.w), x, use_reentrant=True))
    step = count_work(Checkpointed(), r(32, 32).requires_grad_(), backward=True).of_phase("backward").by_module()
    assert step[""].contraction_flops == 3 * 2*32**3 and step["c"].contraction_flops == 2 * 2*32**3
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

def test_a_rule_of_ones_own_holds_for_integers():
    import fasterbench
    op = torch.library.custom_op("demo::int8_product", lambda a, b: a @ b, mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor")
    @fasterbench.rule(torch.ops.demo.int8_product, category="matmul")
    def product(a, b, *, out): return fasterbench.Flops(2*a[0]*a[1]*b[1], 2*a[0]*a[1]*b[1])
    i = torch.ones(4, 4, dtype=torch.int8)
    assert count_work(Call(op), (i, i)).contraction_flops == 128

def test_count_work_is_found_where_it_is_expected():
    import fasterbench
    from fasterbench.work import Work, count_work as found
    assert found is count_work is fasterbench.count_work and Work.__name__ == "Work"
