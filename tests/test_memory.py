"""The counted memory of a run, beside a sum of live storages, PyTorch's MemTracker, and figures worked by hand."""
import gc, math, subprocess, sys, warnings

import pytest
import torch
from torch import nn

from fasterbench import count_work
from fasterbench.work.target import Target
from fasterbench.work.trace import MemoryBlocks
from conftest import heavy_only, in_line, nightly_only
from memory_cases import cases, live_peak, prepared, tracked_peak, whole

def counted(case):
    model, sample, how = prepared(case)
    return count_work(model, sample, **how).memory

def without_collector(measure):
    "What is in a cycle goes when the collector runs, whose moment depends on who else makes objects."
    gc.collect()
    gc.freeze()          # what is there now, models that other tests import among it, is not looked through each time
    gc.disable()
    try: return measure()
    finally: gc.enable()

# One of each kind of memory.
line = ("MLP, step with fused AdamW", "encoder layer, step", "residual blocks, forward",
        "Llama, prefill with its cache", "GRU and batch norm, step",
        "autocast, step", "checkpointing", "views of one storage, step", "sparse embedding, step", "experts",
        "returns ten layers", "cache in an attribute")

@pytest.mark.parametrize("name", [*in_line(cases, *line, why="no kind of memory that those of the line lack"),
                                  *(pytest.param(n, marks=nightly_only("more layers of the same kinds"))
                                    for n in whole)])
def test_peak_is_that_of_live_storages(name):
    "Equal to the byte; the parts add up at the peak and after each operator."
    case = (cases | whole)[name]
    memory, live = without_collector(lambda: counted(case)), without_collector(lambda: live_peak(case))
    assert memory.peak_bytes == live == sum(memory.parts.values())
    assert memory.peak_bytes == max(m.total for m in memory.timeline) and memory.exact
    if "sparse" not in name:                     # MemTracker takes no sparse gradients
        assert without_collector(lambda: tracked_peak(case)) == live

# ---- by hand

def test_gradients_count():
    "Eight layers of 1024 × 1024: weights twice, as gradients too; and what one sample of four rows makes."
    net = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)])
    m = count_work(net, torch.randn(4, 1024), backward=True).memory
    weights, row = 8 * 4 * (1024 * 1024 + 1024), 4 * 4 * 1024
    assert (m.parts["weights"] == m.parts["gradients"] == weights
            and m.parts["sample"] == m.parts["returned and cached"] == row)
    # the gradient of the first layer's output is there when the last gradient is made; the loss, and its own gradient
    assert m.peak_bytes == 2 * weights + 3 * row + 4 + 4

@pytest.mark.parametrize("where", [None, Target("cpu"), Target("cuda", "sm90")])
def test_a_product_copies_the_gradient_of_a_sum(where):
    """Its strides are 0: the product of the weight's gradient reads a copy, beside weight, sample, result, loss and
    its gradient."""
    net, x = nn.Linear(64, 32, bias=False), torch.randn(128, 64)
    assert (count_work(net, x, backward=True, target=where).memory.peak_bytes == 4
            * (2 * 64 * 32 + 128 * 64 + 2 * 128 * 32 + 2))

def test_state_of_the_optimizer_counts():
    net = nn.Linear(64, 32, bias=False)
    m = count_work(net, torch.randn(2, 64), backward=True,
                   optimizer=torch.optim.Adam(net.parameters(), foreach=False)).memory
    size = 4 * 64 * 32
    # two moments, the number of steps
    assert m.parts["optimizer state"] == 2 * size + 4 and m.parts["gradients"] == size
    # the root of the second moment, and that by its correction
    assert (m.parts["temporaries"] == 2 * size and m.phase == "update" and m.operator == "aten::div"
            and m.module == "(optimizer)")

def test_cache_counts():
    "Keys and values of two layers for 24 tokens, which the model returns."
    m = counted(cases["Llama, prefill with its cache"])
    # layers, keys and values, batch, tokens, heads, channels, B
    assert m.parts["returned and cached"] >= 2 * 2 * 2 * 24 * 2 * 16 * 4

class Layer(nn.Module):
    """A transformer layer as Korthikanti et al. (arXiv 2205.05198) count it: s × b × h, a mask of dropout of a byte
    a number."""
    def __init__(self, h, a):
        super().__init__()
        self.a, self.norm1, self.norm2 = a, nn.LayerNorm(h), nn.LayerNorm(h)
        self.q, self.k, self.v, self.out = (nn.Linear(h, h) for _ in range(4))
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
    def drop(self, x): return torch.native_dropout(x, 0.1, True)[0]
    def heads(self, x): return x.view(x.shape[0], -1, x.shape[2] // self.a).transpose(0, 1)
    def attend(self, x):
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = torch.bmm(q, k.transpose(1, 2)).div_(math.sqrt(q.shape[-1]))
        return self.out(torch.bmm(self.drop(scores.softmax(-1)), v).transpose(0, 1).reshape(x.shape))
    def forward(self, x):
        x = x + self.drop(self.attend(self.norm1(x)))
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm2(x)))))

@pytest.mark.parametrize("s,b,h,a", [(64, 2, 128, 4), (32, 3, 64, 8)])
def test_activations_of_a_transformer_layer(s, b, h, a):
    "s·b·h·(34 + 5·a·s/h) bytes in 16 bit, and two terms that the formula leaves out."
    m = count_work(Layer(h, a).bfloat16(), torch.randn(s, b, h).bfloat16(), backward=True).memory
    attention = 2*s*b*h + 4*s*b*h + 2*a*s*s*b + a*s*s*b + 2*a*s*s*b + 2*s*b*h + 2*s*b*h + s*b*h
    mlp, norms = 2*s*b*h + 8*s*b*h + 8*s*b*h + s*b*h, 2 * 2*s*b*h
    assert attention + mlp + norms == s*b*h*34 + 5*a*s*s*b
    # the first norm's input is the sample; left out are mean and deviation of each row in both norms, and the loss
    assert m.saved_bytes + 2*s*b*h == attention + mlp + norms + 2 * 2 * 2*s*b
    left = next(x for x in m.timeline if x.phase == "backward")
    assert left.parts["saved for backward"] == m.saved_bytes + 2

def test_what_a_checkpointed_module_leaves():
    "Its input alone; what the backward makes again is in its peak."
    saving = counted(cases["checkpointing"])
    row, wide = 4 * 128 * 64, 4 * 128 * 256
    blocks = [saving.modules[f"blocks.{i}"].saved_bytes for i in range(4)]
    assert blocks == [row, row, row, 0]                 # the output of the last is returned
    # of the first block, again; and the loss
    assert saving.phase == "backward" and saving.parts["saved for backward"] == 2 * wide + 4

def test_a_module_has_its_own_figures():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    step, forward = (count_work(net, torch.randn(32, 8), backward=b).memory.modules for b in (True, False))
    # a ReLU keeps its result
    assert [step[n].saved_bytes for n in ("0", "1", "2", "")] == [0, 4 * 512, 0, 4 * 512]
    assert ([forward[n].peak_bytes for n in ("0", "1", "2")]
            == [4 * (212 + 256 + n) for n in (512, 512 + 512, 512 + 128)])

def test_what_another_part_of_memory_is():
    "Quantized, sparse and jagged tensors count what they store."
    class Holds(nn.Module):
        def __init__(self, t): super().__init__(); self.t = t
        def forward(self, x): return x + 1
    x, eye = torch.zeros(4), torch.eye(8)
    def held(t): return count_work(Holds(t), x).memory.parts["buffers"]
    assert held(eye.to_sparse()) == 8 * 4 + 2 * 8 * 8                            # values, and two indices of each
    assert (held(torch.sparse_csr_tensor(torch.arange(9), torch.arange(8), torch.ones(8), (8, 8))) == 8 * 4 + 9 * 8
            + 8 * 8)
    assert held(torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8)) == 64
    blocks, batch = MemoryBlocks(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    blocks.number(batch)
    assert blocks.lives.sizes == [20]
    assert held(eye[:2].expand(3, 2, 8)) == 256                                  # the storage, once

class Appends(nn.Module):
    "Puts new keys into a cache that it is given; the old ones go."
    def forward(self, x, cache):
        cache["k"] = torch.cat([cache["k"], x])
        return cache["k"].sum(0)

def test_what_a_cache_lets_go_of_is_freed():
    for device in ("cpu", "meta"):
        x, keys = torch.zeros(4, 8, device=device), torch.zeros(28, 8, device=device)
        m = count_work(Appends(), (x, dict(k=keys))).memory
        assert (m.peak_bytes == 4 * (4 * 8 + 28 * 8 + 32 * 8)
                and m.timeline[-1].total == 4 * (4 * 8 + 32 * 8 + 8)), device

def test_on_meta_and_on_data_alike():
    for name in ("residual blocks, forward", "encoder layer, forward", "Llama, prefill with its cache", "MLP, step",
                 "encoder layer, step", "views of one storage, step", "checkpointing", "LSTM"):
        model, sample, how = prepared(cases[name])
        there = (sample.to("meta") if isinstance(sample, torch.Tensor)
                 else {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in sample.items()})
        here, meta = count_work(model, sample, **how).memory, count_work(model.to("meta"), there, **how).memory
        assert (here.peak_bytes, here.parts, here.place) == (meta.peak_bytes, meta.parts, meta.place), name

@pytest.mark.parametrize("name", ["sparse gradient of an expanded one, step", "sparse embedding, step",
                                  "sparse bag, step", "bag of means, step",
                                  "sparse sample", "norms under autocast, step", "batch norm of a sample, step"])
def test_without_data_the_peak_is_that_of_live_storages(name):
    model, sample, how = prepared(cases[name])
    fake, real = count_work(model, sample, target=Target("cpu"), **how), count_work(model, sample, **how)
    assert fake.memory.peak_bytes == without_collector(lambda: live_peak(cases[name])) and fake.memory.exact
    assert (fake.memory.parts, fake.memory.place, fake.bytes) == (real.memory.parts, real.memory.place, real.bytes)

def test_a_sparse_sample_is_a_sample():
    "64 values, and two indices of each."
    for target in (None, Target("cpu"), Target("cuda", "sm90")):
        parts = count_work(nn.Linear(64, 64), torch.eye(64).to_sparse(), target=target).memory.parts
        assert parts["sample"] == 64 * 4 + 2 * 64 * 8 and not parts["buffers"], target

@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("layer, products", [(nn.LSTM, 2 * 4), (nn.GRU, 2 * 3), (nn.Linear, 1)])
def test_packed_weights_are_as_wide_as_they_are_packed(layer, products, dtype):
    "A matrix of 64 × 64 for the input and for the state of each gate, and its bias of 4 B per number."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.ao.quantization.quantize_dynamic(nn.ModuleDict(dict(a=layer(64, 64))), {layer}, dtype)["a"]
    work = count_work(packed, torch.randn(1, 1, 64))
    assert (work.memory.parts["weights"] == products * 64 * (64 * dtype.itemsize + 4)
            and work.bytes > products * 64 * 64 * dtype.itemsize)

@heavy_only("a process that imports the compiler")
def test_what_imports_the_compiler_holds_its_tensors_no_longer():
    """Checkpointing imports it in its first step, and a frame that its modules leave in a cycle held every frame
    around."""
    code = """
import gc, sys, weakref, torch
from fasterbench.engine.uncompiled import uncompiled
def forward():
    result = torch.ones(3)
    import torch._dynamo as compiler
    return weakref.ref(result)
gc.disable()
with uncompiled(): result = forward()
assert "torch._dynamo.utils" in sys.modules and result() is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]

# ---- budgets, comparisons, files

budgets = """
[net]
model = "net.py:make"
backward = true
peak_memory = "<= 40 MB"
saved_memory = "<= 1 MB"
[net.layers]
"0" = { peak_memory = "<= 70 MB", saved_memory = "<= 1 kB" }
"""

def test_a_budget_that_gradients_break_is_broken(tmp_path, monkeypatch, capsys):
    "67 MB, of which 34 are gradients: 40 MB are not kept. The figures of a layer are limited too."
    from fasterbench.cli.main import main
    (tmp_path/"net.py").write_text(
        "import torch\nfrom torch import nn\ndef make(): return nn.Sequential(*[nn.Linear(1024, 1024) for _ in "
        "range(8)]), torch.randn(4, 1024)\n")
    (tmp_path/"budgets.toml").write_text(budgets)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end: main(["check", "budgets.toml"])
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("broken:")]
    verdicts = [line.split() for line in lines if "memory" in line]
    assert end.value.code == 1, verdicts
    assert [tuple(v[:3]) if v[1].endswith("memory") else tuple(v[1:4]) for v in verdicts] == [
("net", "peak_memory", "broken"), ("net", "saved_memory", "kept"), ("0", "peak_memory", "kept"),
("0", "saved_memory", "broken")], verdicts

def test_a_result_keeps_its_memory(tmp_path):
    from fasterbench import HardwarePeaks, RooflineAnalyzer, compare, from_json
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    ra = RooflineAnalyzer(net, torch.randn(4, 64), HardwarePeaks(1e12, 1e11)).profile(steps=2, warmup=1, backward=True)
    ra.to_json(tmp_path/"saved.json")
    saved = from_json(tmp_path/"saved.json")
    assert saved.memory == ra.result.memory == count_work(net, torch.randn(4, 64), backward=True).memory
    both = compare(ra.result, saved)
    assert (f"peak memory: before {saved.memory.peak}, after {saved.memory.peak}: ×1.00" in both.lines
            and ra.result.memory.line in ra.text().replace("\n  ", " "))
    assert ([k["name"] for k in saved._page()["kinds"]][-1] == [k["name"] for k in both._page()["kinds"]][-1]
            == "memory")
