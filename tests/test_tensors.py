"Tensors of every layout, without memory, and with hooks: a profile reads what can be read, and puts it back."
import pytest
from conftest import in_line, nightly_only
import torch
from torch import nn

from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
from fasterbench.work.count import count_work

peaks = HardwarePeaks(1e12, 1e11)

def profiled(model, sample, **how):
    return RooflineAnalyzer(model, sample, peaks).profile(**dict(warmup=1, steps=2, progress=False) | how)

def flops(analyzed): return analyzed.result.program.flops


class Holder(nn.Module):
    "A model with one more tensor, in a place of choice; its forward does something to it."
    def __init__(self, tensor, where, act=lambda tensor: None):
        super().__init__()
        self.lin, self.act, self.where = nn.Linear(4, 4), act, where
        if where == "buffer": self.register_buffer("held", tensor)
        elif where == "parameter": self.held = nn.Parameter(tensor, requires_grad=False)
        elif where == "attribute": self.held = tensor
        else: self.lin.weight.held = tensor                     # of a parameter, as FSDP keeps its full one
    @property
    def tensor(self): return self.lin.weight.held if self.where == "attribute of a parameter" else self.held
    def forward(self, x):
        self.act(self.tensor)
        return self.lin(x)

def freed(t):
    t.untyped_storage().resize_(0)
    return t

def short():
    "A view that ends 4 B behind its storage."
    t = torch.arange(6.0)[::2]
    t.untyped_storage().resize_(16)
    return t

places = ["buffer", "attribute", "parameter", "attribute of a parameter"]

def in_places(tensors):
    "Each tensor in each place; but once a week in one, the next one for each tensor."
    return [pytest.param(tensor, where, marks=[nightly_only("in another place")] * (where != places[i % 4]))
            for i, tensor in enumerate(tensors) for where in places]

@pytest.mark.parametrize("made, where", in_places([
    lambda: freed(torch.ones(16)), lambda: freed(torch.ones(4, 4).t()), short,
                                                   lambda: freed(torch.ones(3, dtype=torch.int64))]))
def test_a_tensor_without_memory_is_not_read(made, where):
    model = Holder(made(), where)
    before = model.tensor.untyped_storage().nbytes()
    assert flops(profiled(model, torch.ones(2, 4))) == 2 * (2 * 4 * 4) + 2 * 4       # products and bias
    profiled(model, torch.ones(2, 4), backward=True)
    assert count_work(model, torch.ones(2, 4)).flops == 72
    assert model.tensor.untyped_storage().nbytes() == before

def test_a_storage_that_a_forward_fills_is_free_again():
    def fill(t):
        t.untyped_storage().resize_(64)
        t.fill_(1)
    model = Holder(freed(torch.ones(16)), "buffer", fill)
    profiled(model, torch.ones(2, 4))
    assert model.held.untyped_storage().nbytes() == 0

def test_a_storage_that_a_forward_frees_is_whole_again():
    model = Holder(torch.arange(16.0), "buffer", lambda t: t.untyped_storage().resize_(0))
    profiled(model, torch.ones(2, 4))
    assert model.held.tolist() == list(range(16))

def test_a_sample_that_a_forward_frees_is_whole_in_each_run():
    class Freeing(nn.Module):
        def forward(self, x):
            y = x * 2
            x.untyped_storage().resize_(0)
            return y
    x = torch.ones(4)
    assert flops(profiled(Freeing(), x)) == 4 and x.tolist() == [1] * 4
    profiled(Linear44(), (freed(torch.ones(3)), torch.ones(2, 4)))

class Linear44(nn.Module):
    def __init__(self): super().__init__(); self.lin = nn.Linear(4, 4)
    def forward(self, unread, x): return self.lin(x)

def eye(): return torch.eye(4)

layouts = dict(coo=lambda: eye().to_sparse(), csr=lambda: eye().to_sparse_csr(), csc=lambda: eye().to_sparse_csc(),
               bsr=lambda: eye().to_sparse_bsr((2, 2)), bsc=lambda: eye().to_sparse_bsc((2, 2)),
               mkldnn=lambda: eye().to_mkldnn(),
               quantized=lambda: torch.quantize_per_tensor(eye(), .1, 0, torch.quint8),
               nested=lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]),
               conjugate=lambda: torch.ones(3, dtype=torch.complex64).conj(),
               channels=lambda: torch.quantize_per_channel(
                   eye(), torch.full((4,), .1), torch.zeros(4, dtype=torch.long),
                                                           0, torch.qint8))
doubled = dict(coo=lambda t: t.mul_(2), csr=lambda t: t.mul_(2), nested=lambda t: t.mul_(2),
               mkldnn=lambda t: t.zero_(),
               bsr=lambda t: t.values().mul_(2), csc=lambda t: t.values().mul_(2), bsc=lambda t: t.values().mul_(2),
               quantized=lambda t: t.copy_(eye() * 2), conjugate=lambda t: t.mul_(2j),
               channels=lambda t: t.copy_(eye() * 2))

def numbers(t):
    if t.is_nested: return [u.tolist() for u in t.unbind()]
    return (t.dequantize() if t.is_quantized else t.to_dense() if t.layout is not torch.strided else t).tolist()

@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout, where", in_places(layouts))
def test_a_tensor_of_any_layout_is_put_back(layout, where):
    made, before = layouts[layout](), numbers(layouts[layout]())
    if layout != "channels": doubled[layout](changed := layouts[layout]())
    if layout != "channels": assert numbers(changed) != before
    act = doubled[layout] if layout != "channels" else lambda tensor: None
    model = Holder(made, where, act)
    assert flops(profiled(model, torch.ones(2, 4))) >= 72
    profiled(model, torch.ones(2, 4), backward=True)
    count_work(model, torch.ones(2, 4))
    assert numbers(model.tensor) == before

@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", in_line(layouts, "coo", "nested", "quantized", "conjugate", why="another layout"))
def test_a_sample_of_any_layout_runs(layout):
    given = layouts[layout]()
    profiled(Linear44(), (given, torch.ones(2, 4)))
    assert numbers(given) == numbers(layouts[layout]())

@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_sparse_product_is_counted_while_profiled():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__(); self.register_buffer("adj", eye().to_sparse()); self.lin = nn.Linear(4, 4)
        def forward(self, x): return torch.sparse.mm(self.adj, self.lin(x))
    rows = profiled(Graph(), torch.ones(4, 4))
    assert flops(rows) == 4 * 4 * (2 * 4 + 1) + 2 * 4 * 4          # the layer, and 4 non-zeros times rows of 4

@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_sparse_tensor_keeps_the_memory_that_others_share(layout):
    "Its values are written where they lie: who holds them sees them."
    model = Holder(layouts[layout](), "buffer", lambda t: t.mul_(2))
    values = model.held._values() if layout == "coo" else model.held.values()
    profiled(model, torch.ones(2, 4))
    inside = model.held._values() if layout == "coo" else model.held.values()
    assert inside.data_ptr() == values.data_ptr() and values.tolist() == [1] * 4

def _accumulator(p): return p.view_as(p).grad_fn.next_functions[0][0]

hooked = {
    "tensor": lambda p, f: p.register_hook(f),
    "accumulated": lambda p, f: p.register_post_accumulate_grad_hook(f),
    "node": lambda p, f: _accumulator(p).register_hook(f),
    "node before": lambda p, f: _accumulator(p).register_prehook(f),
}

@pytest.mark.parametrize("kept_before", in_line([False, True], False))
@pytest.mark.parametrize("kind", hooked)
def test_hooks_that_a_forward_registers_are_gone(kind, kept_before):
    calls = []
    class Hooking(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(2, 2); self.node = _accumulator(self.lin.weight)
        def forward(self, x):
            if self.training: hooked[kind](self.lin.weight, lambda *args: calls.append("late"))
            self.late = self.lin.weight.register_hook(lambda *args: calls.append("late"))
            return self.lin(x)
    model = Hooking()
    if kept_before: hooked[kind](model.lin.weight, lambda *args: calls.append("early"))
    profiled(model, torch.ones(1, 2), backward=True)
    calls.clear()
    model.lin(torch.ones(1, 2)).sum().backward()
    assert calls == ["early"] * kept_before

def test_hooks_do_not_pile_up_from_run_to_run():
    most = []
    class Hooking(nn.Module):
        def __init__(self): super().__init__(); self.lin = nn.Linear(2, 2)
        def forward(self, x):
            for t in (x, self.lin.weight): t.register_hook(lambda g: None)
            most.append((len(x._backward_hooks), len(self.lin.weight._backward_hooks)))
            return self.lin(x)
    profiled(Hooking(), torch.ones(1, 2, requires_grad=True), backward=True, steps=5)
    assert max(m[0] for m in most) == 1 and set(m[1] for m in most[4:]) == {1}
