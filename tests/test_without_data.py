"""A figure without data is the one with data, or a bound whose side is said."""
import threading

import pytest, torch
import torch.nn.functional as F
from conftest import heavy_only, nightly_only
from memory_cases import cases, prepared, whole
from modules import Calls
from torch import nn
from torch._higher_order_ops import while_loop
from torch._higher_order_ops.map import map as each

from fasterbench import HardwarePeaks, RooflineAnalyzer, count_work
from fasterbench.work.rules import experts_read, filled_groups, least_experts, routed_evenly
from fasterbench.work.target import Target
from test_zoo import families, made, network_of, others, sum_of_results

cpu = Target("cpu")
targets = dict(cpu=cpu, cuda=Target("cuda", "sm90"))

def alike(model, sample, target=cpu, **how):
    "Compare a run without data with the same run on data; one that needs data is refused in words."
    try: there = count_work(model, sample, target=target, **how)
    except ValueError as error:
        assert "tensors without data do not have" in str(error)
        return
    here = count_work(model, sample, **how)
    check(there, here)
    most, found = here.memory.peak_bytes, there.memory
    assert found.peak_bytes == most or not found.exact and found.peak_bytes < most

def check(there, here):
    "Without data FLOPs are those with data; bytes too, or a bound, or what is assumed says that neither is known."
    said = "".join(there.assumptions)
    assert (there.flops, there.unknown_ops) == (here.flops, here.unknown_ops)
    assert there.bytes == here.bytes or "above or below" in said or "least" in said and there.bytes < here.bytes

@nightly_only("counts fifty runs twice")
@pytest.mark.parametrize("name", [*cases, *whole])
def test_the_cases_of_memory(name):
    model, sample, how = prepared((cases | whole)[name])
    alike(model, sample, **how)

@nightly_only("counts sixteen families twice, and their steps")
@pytest.mark.parametrize("family", families)
def test_families(family):
    net, sample = made(family)
    alike(net, sample)
    alike(net, sample, backward=True, loss=sum_of_results)

architectures = """beit_base_patch16_224 cait_xxs24_224 coat_lite_tiny convnext_atto davit_tiny edgenext_xx_small
    efficientnet_b0 fastvit_t8 ghostnet_050 hiera_tiny_224 hrnet_w18_small levit_128s mambaout_femto mixer_s32_224
    nfnet_l0 pvt_v2_b0 resnet18 sequencer2d_s swin_tiny_patch4_window7_224 xcit_nano_12_p16_224""".split()

@nightly_only("counts twenty architectures twice, and their steps")
@pytest.mark.parametrize("name", architectures)
def test_pictures(name):
    net, x = pytest.importorskip("timm").create_model(name), torch.rand(2, 3, 224, 224)
    alike(net.eval(), x)
    alike(net.train(), x, backward=True, loss=lambda y: y.square().sum())

@nightly_only("counts forty networks twice")
@pytest.mark.parametrize("kind, name", others())
def test_kinds_of_networks(kind, name): alike(*network_of(kind, name))

# ---- answers, guards and masks

@pytest.mark.parametrize("holds", [lambda y: torch.isfinite(y).all(),
                                   lambda y: not (torch.isnan(y).any() | torch.isinf(y).any()),
                                   lambda y: (y.abs() < float("inf")).all(), lambda y: (y == y).all()])
def test_nothing_overflows_where_nothing_is_known(holds):
    "16 numbers by 8 weights each, and their biases; a test that fails would clamp."
    net = Calls(lambda m, x: m.a(x) if holds(m.a(x)) else m.a(x).clamp(-1, 1), a=nn.Linear(8, 8, device="meta"))
    work = count_work(net, torch.empty(2, 8, device="meta"))
    assert work.contraction_flops == 2 * 2 * 2 * 8 * 8 and work.assumptions == ("no number is infinite or NaN",)

def test_a_function_of_the_users_hears_nothing():
    def _shift_right(h): return h if (h.sum(-1) > 0).all() else -h
    with pytest.raises(ValueError, match="reads what is in a tensor"):
        count_work(Calls(lambda m, x: _shift_right(x)), torch.empty(2, 4, device="meta"))

def test_a_mask_selects_nothing_at_least():
    "Zeros are written, 64·64·4 B, and the mask is read, 64·64 B; what it fills is not known."
    net = Calls(lambda m, x, mask: torch.zeros_like(x).masked_fill_(mask, 1.0))
    work = count_work(net, (torch.empty(64, 64, device="meta"), torch.empty(64, 64, dtype=torch.bool, device="meta")))
    assert work.bytes == 64 * 64 * 5 and "least" in work.assumptions[0]

def test_the_fewest_experts_and_even_routing():
    "4 tokens that choose 8 of 64: at least 8 are read; evenly 64 · (1 − (7/8)^4) = 26.5."
    ends = torch.empty(64, dtype=torch.int32, device="meta")
    ends.chosen = 8
    assert filled_groups(ends, 4 * 8, 64) == (32, 8)
    with routed_evenly(): assert filled_groups(ends, 4 * 8, 64) == (32, 26)
    assert round(experts_read(64, 8, 4), 1) == 26.5 and "least" in least_experts

class Routed(nn.Module):
    "Sixteen experts as transformers runs them on GPUs: rows in the order of their experts, whose ends `histc` counts."
    def __init__(self): super().__init__(); self.up = nn.Parameter(torch.ones(16, 64, 32, dtype=torch.bfloat16))
    def forward(self, x, chosen):
        chosen, order = chosen.flatten().sort()
        ends = torch.histc(chosen.int() if chosen.is_cuda else chosen.float(), 16, 0, 15).cumsum(0, dtype=torch.int32)
        return torch._grouped_mm(x[order // 2], self.up, ends)

@pytest.mark.parametrize("target", [None, *targets.values()])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_given_routing_is_read(target, device):
    "Of 16 experts the 4 that are chosen are read, 64·32 numbers of 2 B each."
    chosen = torch.tensor([[0, 1], [0, 1], [2, 0], [5, 1]])
    x = torch.ones(4, 64, dtype=torch.bfloat16, device=device)
    work = count_work(Routed().to(device), (x, chosen), target=target)
    product = next(c for c in work.trace if c.operator.endswith("grouped_mm"))
    assert sum(t.bytes for t in product.reads if t.bytes > 4000) == 4 * 64 * 32 * 2
    assert product.flops == 8 * 2 * 64 * 32 and work.assumptions == ()

@pytest.mark.parametrize("chosen", [[[0, 1], [0, 1], [2, 0], [5, 1]], [[3, 3]] * 4])
def test_given_routing_is_profiled(chosen):
    "Each chosen expert of 64·32 numbers of 2 B, the tokens, 8 numbers of 8 B, and the result."
    peaks, experts = HardwarePeaks(1e12, 1e11), len({e for of in chosen for e in of})
    made = RooflineAnalyzer(Routed(), (torch.ones(4, 64, dtype=torch.bfloat16), torch.tensor(chosen)), peaks)
    made.profile(warmup=1, steps=2, progress=False)
    assert made.result.points[0].bytes_moved == experts * 64 * 32 * 2 + 4 * 64 * 2 + 8 * 8 + 8 * 32 * 2

def test_one_hot_rows_are_made_by_the_operators_that_run_on_data():
    rows = Calls(lambda m, t: F.one_hot(t, 7))
    alike(rows, torch.tensor([0, 3, 6]))
    alike(nn.Sequential(nn.Linear(4, 4), Calls(lambda m, x: F.one_hot(x.argmax(-1), 4))), torch.ones(3, 4))

# ---- operators

of_two_dtypes = [       # beside layers: what is called with 4 × 8 ones
    lambda x: F.nll_loss(x, x[:, 0].long(), x[0].double()), lambda x: F.nll_loss(x, x[:, 0].int()),
    lambda x: x.index_select(0, x[0].short()), lambda x: F.conv1d(x[None], x[:, :4, None], x[:, 0].half()),
    lambda x: F.embedding_bag(x.long(), x, per_sample_weights=x.double(), mode="sum"),
    lambda x: F.batch_norm(x, x[0].double(), x[0].double()), lambda x: F.batch_norm(x, x[0], x[0], x[0].bfloat16()),
    lambda x: F.layer_norm(x, (8,), x[0], x[0].double()), lambda x: torch.cdist(x, x.double()),
    lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None].half(), x[None, None])]

@pytest.mark.parametrize("layer, x", [(nn.Linear(16, 8), torch.ones(4, 16).double()),
                                      (nn.Linear(16, 8).bfloat16(), torch.ones(4, 16)),
                                      (nn.Conv2d(3, 4, 1), torch.ones(1, 3, 8, 8).double()),
                                      *((Calls(lambda m, x, f=f: f(x)), torch.ones(4, 8)) for f in of_two_dtypes)])
@pytest.mark.parametrize("target", targets)
def test_calls_of_two_dtypes_are_refused(layer, x, target):
    with pytest.raises((RuntimeError, ValueError), match="type"): count_work(layer, x)
    with pytest.raises((RuntimeError, ValueError), match="one dtype|should be the same|the same dtype|indices in"):
        count_work(layer, x, target=targets[target])

def test_a_loss_of_two_dtypes_is_in_the_wider():
    "The differences of 4 numbers are in float64: 8 · 4 B of buffer, 4 · 4 and 8 · 4 B of operands."
    net = Calls(lambda m, x: F.mse_loss(x, m.y), y=torch.ones(4).double())
    alike(net, torch.ones(4))
    assert count_work(net, torch.ones(4), target=cpu).memory.peak_bytes == 80

@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.binary_cross_entropy, F.soft_margin_loss, F.l1_loss,
                                  F.huber_loss])
def test_a_loss_keeps_its_buffer(loss):
    alike(nn.Sequential(nn.Linear(16, 16), nn.Sigmoid()), torch.rand(64, 16), backward=True,
          loss=lambda y: loss(y, torch.ones_like(y)))

class Clipping(torch.optim.AdamW):
    def step(self, closure=None):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        return super().step(closure)

def test_clipping_is_one_operator_over_all_gradients():
    net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)])
    first, second = ([c.operator for c in count_work(net, torch.ones(4, 16), target=t, backward=True,
                                                     optimizer=Clipping(net.parameters())).trace] for t in (None, cpu))
    assert first == second and first.count("aten::_foreach_norm") == 1

def test_the_operators_of_a_gradient_scaler():
    "A product and a check for each number of a gradient."
    def unscale(m, x):
        torch._amp_foreach_non_finite_check_and_unscale_([x], torch.zeros(1), torch.ones(1))
        return x
    assert count_work(Calls(unscale), torch.ones(4, 8)).flops == 2 * 4 * 8

@pytest.mark.parametrize("target", targets.values())
def test_loops_take_their_steps_and_one_branch_runs(target):
    "Six steps of 4 rows; of two branches the one with one product."
    one, layer = 2 * 4 * 16 * 16, nn.Linear(16, 16, bias=False)
    def flops(f, x): return count_work(Calls(f, l=layer).eval(), x, target=target)
    assert flops(lambda m, x: each(m.l, x), torch.ones(6, 4, 16)).contraction_flops == 6 * one
    work = flops(lambda m, x: torch.cond(x.sum() > 0, lambda y: m.l(m.l(y)), m.l, (x,)), torch.ones(4, 16))
    assert work.contraction_flops == one and "branch" in work.assumptions[0] and not work.memory.exact

@pytest.mark.parametrize("forward, counters", [
    (lambda m, x: torch.cond(torch.ones(1, 4).sum() > 0, lambda y: m.l(m.l(y)), m.l, (x,)), 0),
    (lambda m, x: while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, m.l(y)), (torch.tensor(0), x))[1], 3)])
def test_conditions_on_what_a_forward_makes_are_known(forward, counters):
    "Two products of 4 rows each. At most there are the weight, what a step gets and gives, the sample, and one truth."
    work = count_work(Calls(forward, l=nn.Linear(16, 16, bias=False)), torch.ones(4, 16), target=cpu)
    assert (work.contraction_flops, work.assumptions) == (2 * 2 * 4 * 16 * 16, ())
    assert work.memory.peak_bytes == 4 * 16 * 16 + 3 * 4 * 4 * 16 + 1 + 8 * counters

@pytest.mark.parametrize("forward", [
    lambda m, x: torch.cond(x.sum() > 0, m.l, m.k, (x,)),
    lambda m, x: m.l(torch.cond(x.sum() > 0, m.k, m.l, (x,))),
    lambda m, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (m.l(x),)), lambda m, x: each(m.l, x)])
@pytest.mark.parametrize("target", [None, *targets.values()])
def test_a_backward_that_pytorch_does_not_make_is_refused(forward, target):
    "Where a mode watches, PyTorch loses the gradients of what functions of an operator use."
    net = Calls(forward, l=nn.Linear(16, 16), k=nn.Linear(16, 16))
    with pytest.raises(ValueError, match="step through torch.cond"):
        count_work(net, torch.ones(4, 16), backward=True, target=target)

def test_two_devices_are_named():
    "A loss that makes its tensors on the CPU fails on a GPU, here and there."
    def loss(y): return F.mse_loss(y, torch.zeros(4, 8))
    with pytest.raises(ValueError, match="tensors on (cuda:0 and cpu|cpu and cuda:0), where"):
        count_work(nn.Linear(16, 8), torch.ones(4, 16), backward=True, loss=loss, target=targets["cuda"])

@pytest.mark.parametrize("norm, x", [(nn.LayerNorm(16), torch.ones(2, 8, 16)),
                                     (nn.BatchNorm2d(8), torch.ones(2, 8, 4, 16))])
def test_norms_lay_their_results_as_kernels_do(norm, x):
    "Whatever order the axes of their gradient have: a layer before them takes theirs without a copy."
    net = Calls(lambda m, x: m.norm(m.layer(x)).transpose(1, 2).contiguous(), layer=nn.Linear(16, 16), norm=norm)
    alike(net, x, backward=True, loss=lambda y: y.square().sum())

@pytest.mark.parametrize("f", [
    F.hardswish, F.elu, F.softplus, F.hardtanh, F.logsigmoid, lambda x: F.rrelu(x, training=True), lambda x: 2 ** x,
    lambda x: x.roll(1, 1), lambda x: torch.xlogy(x, x.detach()),
    lambda x: F.mse_loss(x, x.detach(), reduction="none"),
    lambda x: F.binary_cross_entropy(x, x.detach(), reduction="none")])
@pytest.mark.parametrize("x", [torch.rand(2, 8, 4, 4).contiguous(memory_format=torch.channels_last),
                               torch.rand(2, 4, 8).transpose(1, 2)])
def test_elements_lie_as_kernels_lay_them(f, x):
    "In rows, or as an operand: what follows copies them, or does not."
    net = Calls(lambda m, x: f(x * m.scale), scale=nn.Parameter(torch.ones(())))
    alike(net, x, backward=True, loss=lambda y: y.reshape(-1).square().sum())

def test_a_recurrent_layer_in_bfloat16_has_gradients_in_float32():
    alike(nn.LSTM(4, 5).bfloat16(), torch.ones(2, 3, 4).bfloat16(), backward=True, loss=lambda y: y[0].float().sum())

@heavy_only("torch.cond asks the compiler")
def test_layers_that_an_operator_calls_are_timed():
    "The product of 4 rows."
    if not hasattr(torch._higher_order_ops.utils, "_hop_compile_and_call"): pytest.skip("PyTorch 2.11")
    net = Calls(lambda m, x: torch.cond(x.sum() > 0, m.l, m.k, (x,)), l=nn.Linear(16, 16), k=nn.Linear(16, 16))
    made = RooflineAnalyzer(net.eval(), torch.ones(4, 16), HardwarePeaks(1e12, 1e11))
    made.profile(warmup=1, steps=2, progress=False)
    row = next(p for p in made.result.points if p.name == "l")
    assert row.contraction_flops == 2 * 4 * 16 * 16 and row.time_s > 0

def test_a_convolution_of_one_picture_made_of_tokens():
    "The batch of 1 has the stride of a channel: the result lies by rows, and the layer behind it adds its bias apart."
    def forward(m, x): return m.l(m.c(x.transpose(1, 2).view(1, 8, 4, 4)).flatten(2).transpose(1, 2))
    net = Calls(forward, c=nn.Conv2d(8, 8, 3, padding=1, groups=8), l=nn.Linear(8, 4))
    alike(net, torch.ones(1, 16, 8))
    alike(net, torch.ones(1, 16, 8), backward=True)

def test_the_backward_of_a_view_that_is_written():
    "PyTorch writes the gradient of a view by strides: 3·3·8 numbers of 4 B more than without data."
    def forward(m, x):
        y = m.l(x)
        z = y * 2
        z[1:] += y[0]
        return z
    net = Calls(forward, l=nn.Linear(8, 8))
    alike(net, torch.ones(4, 3, 8), backward=True, loss=lambda y: y.square().sum())
    alike(net, torch.ones(4, 3, 8))

outside = torch.ones(4, 16)
held_views = [lambda m, x: x + m.table[0], lambda m, x: x @ m.more["table"].t(),
              lambda m, x: x + m.table[0] + m.table[1], lambda m, x: x + outside[0]]

@pytest.mark.parametrize("forward", held_views)
@pytest.mark.parametrize("backward", [False, True])
def test_tensors_that_code_holds_count_once(forward, backward):
    "Plain tensors, no buffers, and views of them."
    net = Calls(lambda m, x: forward(m, m.layer(x)), layer=nn.Linear(16, 16), table=torch.ones(4, 16),
                more=dict(table=torch.ones(8, 16)))
    for target in targets.values(): alike(net, torch.ones(32, 16), target, backward=backward)

def test_tensors_that_code_holds_count_beside_another_thread():
    "A run that looks for the thread's operators brings them too."
    over = threading.Event()
    waits = threading.Thread(target=over.wait)
    waits.start()
    try: test_tensors_that_code_holds_count_once(held_views[-1], False)
    finally:
        over.set()
        waits.join()

# ---- classes of tensors

class Named(nn.Parameter):
    def __new__(cls, data, requires_grad=False, **more):
        made = torch.Tensor._make_subclass(cls, data, requires_grad)
        made.more = more
        return made

class Bias(torch.Tensor): pass

def use_held(m, x):
    assert isinstance(m.w, Named) and m.w.more == dict(scale=3)
    return x @ m.w.t()

made_in_forward = [use_held, lambda m, x: x @ Named(m.w.data, scale=1).t(),
                   lambda m, x: (x @ m.w.t()).as_subclass(Bias),
                   lambda m, x: x.as_subclass(Bias) @ m.w.t()]

@pytest.mark.parametrize("target", targets)
@pytest.mark.parametrize("forward", made_in_forward)
def test_classes_are_kept_and_made_in_a_forward(forward, target):
    net, x = Calls(forward, w=Named(torch.ones(32, 64), scale=3)), torch.ones(8, 64)
    here, there = count_work(net, x), count_work(net, x, target=targets[target])
    assert here.contraction_flops == there.contraction_flops == 2 * 8 * 32 * 64 and here.bytes == there.bytes
    assert type(net.w) is Named

class Eight(torch.Tensor):
    "A matrix in 8 bits with a scale for each row, which says that it is float32."
    __torch_function__ = torch._C._disabled_torch_function_impl
    @staticmethod
    def __new__(cls, rows, scales): return torch.Tensor._make_wrapper_subclass(cls, rows.shape, device=rows.device)
    def __init__(self, rows, scales): self.rows, self.scales = rows, scales
    def __tensor_flatten__(self): return ["rows", "scales"], None
    @classmethod
    def __tensor_unflatten__(cls, parts, meta, size, stride): return cls(**parts)
    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None):
        if op is torch.ops.aten.detach.default: return cls(op(args[0].rows), op(args[0].scales))
        return op(*(a.rows * a.scales if isinstance(a, cls) else a for a in args), **(kwargs or {}))

def test_parts_of_a_tensor_class_count_once():
    "Integers and scales of 32 rows, the sample and the result; the peak has them, and the matrix made of them, once."
    net = nn.Sequential(nn.Linear(64, 32, bias=False))
    net[0].weight = nn.Parameter(Eight(torch.ones(32, 64, dtype=torch.int8), torch.ones(32, 1)), requires_grad=False)
    x, stored = torch.ones(8, 64), 32 * 64 + 4 * 32
    alike(net, x)
    there = count_work(net, x, target=targets["cuda"])
    assert there.by_module()["0"].bytes_moved == stored + 4 * 8 * 64 + 4 * 8 * 32
    assert there.memory.peak_bytes == stored + 4 * 8 * 64 + 4 * 32 * 64 + 4 * 8 * 32

# ---- masks of flex_attention

@pytest.mark.parametrize("held", [True, False])
def test_a_mask_that_code_holds_is_followed_to_another_device_and_into_the_backward(held):
    """Three of four blocks of 128 × 128 for two heads: two products, and five in the backward; before them a layer
    and the gradient of its weight, over 512 rows."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu")
    def forward(m, x):
        q = m.l(x)
        return flex_attention(q, q, q, block_mask=m.mask if held else mask)
    net = Calls(forward, l=nn.Linear(16, 16, bias=False), mask=mask if held else None)
    work = count_work(net, torch.ones(1, 2, 256, 16), backward=True, target=targets["cuda"])
    assert work.contraction_flops == 7 * 2 * 2 * 16 * 3 * 128 * 128 + 2 * 2 * 512 * 16 * 16
    assert isinstance(vars(mask)["kv_num_blocks"], torch.Tensor)
