"Compiled models: a row for every kernel, with figures by hand or from an independent counter, and everything put back."
import json, math, os, shutil, sys, threading
from functools import partial

import pytest
import torch
from modules import Call
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import fasterbench.compiled.inductor as inductor
from conftest import heavy_only, in_line, nightly, nightly_only
from fasterbench import compare, count_work, predict, read_trace
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
from fasterbench.roofs.violations import violations
from fasterbench.views import report
from fasterbench.views.page import unbroken
from fasterbench.views.result import from_dict

cxx = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
pytestmark = [heavy_only("compiles C++"), pytest.mark.skipif(shutil.which(cxx) is None, reason="no C++ compiler")]
peaks = HardwarePeaks(1e15, 1e15)      # roofs that nothing here reaches

class Block(nn.Module):
    "A layer with a branch, so that kernels join operators of several modules."
    def __init__(self, n=16):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n)
    def forward(self, x): return x + self.down(self.act(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, blocks=2):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(blocks)), nn.Linear(16, 4)
    def forward(self, x):
        for b in self.blocks: x = b(x)
        return self.head(x).softmax(-1)

def made(kind=Net):
    torch.manual_seed(0)
    torch._dynamo.reset()
    return kind().eval()

def profiled(model, sample=None, **how):
    sample = torch.ones(8, 16) if sample is None else sample
    return RooflineAnalyzer(model, sample, peaks).profile(warmup=1, steps=3, progress=False, **how).result

def products(model, sample, backward=False):
    "FLOPs of the products, by PyTorch's own counter."
    with FlopCounterMode(display=False) as mode, torch.set_grad_enabled(backward):
        out = model(sample)
        if backward: out.sum().backward()
    return mode.get_total_flops()

def kernels(result): return [p for p in result.points if p.layers]
def contractions(result): return sum(p.contraction_flops for p in kernels(result))
def layer_paths(result): return {path for p in kernels(result) for path, *_ in p.layers}
def around(result): return sorted(p.name for p in result.points if not p.layers)

def check(result):
    "What holds for every row of a kernel, and that each call in the wrapper has one."
    assert not any("no row" in n for n in result.notes), result.notes
    for p in kernels(result):
        assert math.isclose(sum(share for _, _, share, _ in p.layers), 1), p
        assert violations(p, peaks) == [] and p.flops is not None and (p.time_s > 0 or p.uncertain)
    restored = from_dict(json.loads(result.to_json()))
    assert restored.points == result.points and restored.limits == result.limits
    return result

@pytest.fixture(scope="module")
def forward():
    model = made()
    sample = torch.ones(8, 16)
    return model, sample, check(profiled(torch.compile(model), sample))

def test_products_have_the_flops_of_the_eager_model(forward):
    model, sample, result = forward
    assert contractions(result) == products(model, sample) == 2 * 8 * (2 * 2 * 16 * 32 +
                                                                                                    16 * 4)

def test_every_kernel_has_its_layers(forward):
    model, _, result = forward
    paths, known = layer_paths(result), {n for n, _ in model.named_modules()}
    assert paths <= known and {"blocks.0.norm", "blocks.1.act", "blocks.1.down", "head"} <= paths
    assert {"(guards)", "(wrapper)"} <= set(around(result)) <= {"(freed memory)", "(guards)", "(wrapper)"}
    assert {(path, kind) for p in kernels(result) for path, kind, *_ in p.layers} <= {(n, type(m).__name__) for n,
                                                                                      m in model.named_modules()}

def test_kernels_shorter_than_their_timestamps_keep_their_work(monkeypatch):
    "A time below the cost of its timestamps is 0 s; FLOPs and bytes of the kernel are as certain as before."
    monkeypatch.setattr("fasterbench.timing.modules.kernel_cost", lambda: 1e-3)
    result = check(profiled(torch.compile(made())))
    assert len(kernels(result)) >= 6
    assert {(p.time_s, p.uncertain, p.utilization_pct) for p in kernels(result)} == {(0.0, True, None)}
    assert contractions(result) == products(made(), torch.ones(8, 16))
    assert sum(p.bytes_moved for p in kernels(result)) == result.limits[1][2]
    assert result.text(top=None) and result.text(group="layer") and report.report_of(result)

def test_products_move_their_tensors(forward):
    "A product by hand: input, weight and bias are read once, the result is written once."
    result = forward[-1]
    up = next(p for p in kernels(result) if p.name == "blocks.0.up")
    assert up.bytes_moved == 4 * (8 * 16 + 16 * 32 + 32 + 8 * 32) and up.flops == 2 * 8 * 16 * 32 + 8 * 32

def test_the_fused_kernel_reads_and_writes_once(forward):
    "GELU between two products, by hand: the result of one is read, the input of the other is written."
    gelu = next(p for p in kernels(forward[-1]) if p.name == "blocks.0.act")
    assert gelu.bytes_moved == 2 * 4 * 8 * 32 and gelu.flops == 5 * 8 * 32      # x·½ · (1 + erf(x·√½))

def test_rows_by_layer_are_those_of_the_kernels(forward):
    result = forward[-1]
    by_layer = result.folded("layer").points
    for field in ("time_s", "bytes_moved", "flops"):
        assert math.isclose(sum(getattr(p, field) for p in by_layer), sum(getattr(p, field) for p in result.points))
    names = [p.name for p in by_layer]
    assert len(names) == len(set(names)) and "blocks.0.norm" in names
    assert next(p for p in by_layer if p.name == "blocks.0.act").type == "GELU"

def test_by_layer_wherever_rows_are_shown(forward):
    "Text, frame and page: the layers have the kernels' time, and the page has kernels and layers in tabs of their own."
    result = forward[-1]
    frame = result.to_frame(group="layer").set_index("name")
    assert math.isclose(frame["time_s"].sum(), sum(p.time_s for p in result.points))
    assert {"blocks.0.norm", "blocks.1.act", "head"} <= set(frame.index)
    norm = sum(b for p in kernels(result) for path, *_, b in p.layers if path == "blocks.0.norm")
    assert math.isclose(frame.loc["blocks.0.norm", "eager_bytes"], norm)
    text = result.text(top=None, group="layer")
    assert "LayerNorm" in text and "GELU" in text and "fused" not in text.partition("name")[2]
    tabs = report.report_of(result)["kinds"]
    assert [(t["name"], t["title"]) for t in tabs] == [("modules", "kernels"), ("layers", "layers"),
                                                       ("program", "whole model"), ("memory", "memory")]
    layers, columns = tabs[1], [c["field"] for c in tabs[1]["columns"]]
    assert {"eager_bytes", "bytes_moved"} <= {c["field"] for c in layers["columns"] if c["visible"]}
    rows = [dict(zip(columns, row)) for row in layers["rows"]]
    assert {row["name"] for row in rows} == set(frame.index)
    assert math.isclose(sum(row["time_s"] for row in rows), frame["time_s"].sum())

def test_eager_beside_compiled(forward):
    "The bytes of the operators, one by one, are those of the eager profile; the comparison has a line for each layer."
    model, sample, result = forward
    eager = profiled(model, sample)
    for e in eager.points:
        if e.name.startswith("("): continue
        assert math.isclose(sum(b for p in kernels(result) for path, _, _, b in p.layers if path == e.name),
                            e.eager_bytes), e.name
    found = compare(eager, result)
    lines, limits = found.rows, [line for line in found.equations if "minimum times" in line]
    assert len(limits) == 1 and limits[0].startswith("after: ") and "perfect fusion" in limits[0]
    assert unbroken(limits[0]) in found.render()
    assert {"blocks.0.norm", "blocks.1.up", "head"} <= {l.name for l in lines if None not in l.points}

threads = {"cpp.threads": 2}        # with one thread Inductor makes a loop of a scatter

def compiled_rows(f, *sample):
    torch._dynamo.reset()
    return check(profiled(torch.compile(Call(f), options=threads), sample))

def scatters():
    "What is added to, an index of the rows and of each element, and a source: 100, 3000 and 3000 rows of 16."
    torch.manual_seed(0)
    rows, index = torch.randint(0, 100, (3000,)), torch.randint(0, 100, (3000, 16))
    return torch.zeros(100, 16), rows, index, torch.randn(3000, 16)

@pytest.mark.parametrize("f", [lambda o, i, s: o.index_add(0, i, s) * 2,
                               lambda o, i, s: o.index_put((i,), s, accumulate=True) * 2])
def test_a_loop_that_adds_to_a_place_has_its_additions(f):
    "By hand: an addition for each element of the source, and a product for each of the result; integers have none."
    out, rows, _, source = scatters()
    assert compiled_rows(f, out, rows, source).program.flops == 3000 * 16 + 100 * 16
    assert compiled_rows(f, out.long(), rows, source.long()).program.flops == 0

def row_of(result, kind): return next(p for p in result.points if p.type == kind)

def copies(result): return sorted(p.bytes_moved for p in kernels(result) if p.type.startswith("fused "))

def test_operators_that_change_a_tensor_have_rows():
    "By hand: a copy of the result is made, then index and source are read, and the result is read and written."
    out, _, index, source = scatters()
    added = compiled_rows(lambda o, i, s: o.scatter_add(0, i, s) * 2, out, index, source)
    assert added.program.flops == 3000 * 16 + 100 * 16 and copies(added) == [12_800, 12_800]
    row = row_of(added, "scatter_reduce_")
    assert (row.flops, row.bytes_moved) == (3000 * 16, 384_000 + 192_000 + 2 * 6400)
    assert row.layers[0][:2] == ("", "Call")
    most = compiled_rows(lambda o, i, s: o.scatter_reduce(0, i, s, "amax"), out, index, source)
    assert (row_of(most, "scatter_reduce_").flops, most.program.flops) == (48_000, 48_000)
    drawn = compiled_rows(lambda x: torch.empty_like(x).bernoulli_(.3) * x, source)
    assert row_of(drawn, "bernoulli_").bytes_moved == 192_000
    turned = compiled_rows(lambda x: x.to(torch.complex64), source)
    assert row_of(turned, "copy_").bytes_moved == 192_000 + 384_000

def test_an_operator_without_a_row_is_named(monkeypatch):
    monkeypatch.setattr(inductor, "_numbered", lambda generator, scheduler, node, original: original(scheduler, node))
    out, _, index, source = scatters()
    f = torch.compile(Call(lambda o, i, s: o.scatter_add(0, i, s).scatter_add(0, i, s)), options=threads)
    torch._dynamo.reset()
    assert any("no row for aten.scatter_reduce_.two (2 calls):" in n for n in profiled(f, (out, index, source)).notes)

def test_an_index_put_that_inductor_calls_has_a_row():
    "By hand, with an index of rows, and with two of single elements: 3000 additions of 16, and of one."
    out, rows, index, source = scatters()
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        by_row = compiled_rows(lambda o, i, s: o.index_put((i,), s, accumulate=True), out, rows, source)
        single = compiled_rows(lambda o, i, j, s: o.index_put((i, j), s, accumulate=True), out, rows, index[:, 0] % 16,
                               source[:, 0])
        twice = compiled_rows(lambda o, i, s: o.index_put((i, i), s, accumulate=True), out, rows % 16, source[:, 0])
    finally: torch.use_deterministic_algorithms(before)
    row = row_of(by_row, "index_put_")
    assert (row.flops, row.bytes_moved) == (48_000, 24_000 + 192_000 + 2 * 6400)
    row = row_of(single, "index_put_")
    assert (row.flops, row.bytes_moved) == (3000, 2 * 24_000 + 12_000 + 2 * 6400)
    row = row_of(twice, "index_put_")
    assert (row.flops, row.bytes_moved) == (3000, 24_000 + 12_000 + 2 * 6400)         # one index, given twice

def test_an_operator_that_only_checks_has_a_row():
    """By hand: an inverse of 64 rows takes 2·64³, reads and writes 64 × 64 numbers, and a code of 4 B that is
    read again."""
    result = compiled_rows(torch.linalg.inv, torch.eye(64))
    row = row_of(result, "linalg_inv_ex")
    assert (row.flops, row.bytes_moved) == (2 * 64**3, 2 * 4 * 64 * 64 + 4)
    row = row_of(result, "_linalg_check_errors")
    assert (row.flops, row.bytes_moved) == (0, 4) and not any("one row" in n for n in result.notes)

class Gathers(nn.Module):
    def __init__(self): super().__init__(); self.fc, self.pick = nn.Linear(64, 64), Call(lambda x, i: x.gather(0, i))
    def forward(self, x, i): return self.pick(self.fc(x), i)

def test_the_gradient_of_a_gather_has_a_row():
    "By hand: 200 × 64 gradients are added into 50 × 64 zeros."
    sample = torch.randn(50, 64), torch.randint(0, 50, (200, 64))
    result = check(profiled(torch.compile(made(Gathers), options=threads), sample, backward=True))
    row = row_of(result, "scatter_reduce_")
    assert (row.phase, row.flops, row.layers[0][0]) == ("backward", 200 * 64, "pick")
    assert row.bytes_moved == 200 * 64 * (8 + 4) + 2 * 4 * 50 * 64

def test_three_limits(forward):
    model, sample, result = forward
    (_, eager_s, eager), (_, made_s, generated), (_, least_s, least) = result.limits
    assert [name for name, *_ in result.limits] == ["eager", "as generated", "perfect fusion"]
    assert generated == sum(p.bytes_moved for p in kernels(result)) and least_s < min(made_s, eager_s)
    assert least < generated < eager
    weights = sum(t.numel() for t in model.parameters())
    assert least == 4 * (weights + 8 * 16 + 8 * 4)                             # weights, sample and result, once
    assert "perfect fusion" in result.text()

class Chain(nn.Module):
    def forward(self, x): return x.sin().cos().tan()

def test_memory_is_of_the_eager_operators(forward):
    """Eagerly the sample and two results are alive at a time; the one kernel has no results between: nothing is
    "at least"."""
    found = count_work(torch.compile(Chain()), torch.ones(256, 256)).memory
    assert found.peak_bytes == 3 * 4 * 256 * 256 and found.eager and found.peak == "786.43 kB (eager operators)"
    assert not count_work(Chain(), torch.ones(256, 256)).memory.eager and "(eager operators) = " in forward[-1].text()

@pytest.mark.parametrize("how", ["compile", "child", "each block"])
def test_compiled_in_other_ways(how):
    "`module.compile()`, a compiled child, and each block compiled for itself: the same layers, by their whole names."
    model, sample = made(), torch.ones(8, 16)
    if how == "compile": model.compile()
    elif how == "child": model.blocks[1] = torch.compile(model.blocks[1])
    else:
        for b in model.blocks: b.compile()
    result = check(profiled(model, sample))
    wanted = {"compile": {"blocks.0.up", "blocks.1.up", "head"}, "child": {"blocks.1.up"},
              "each block": {"blocks.0.up", "blocks.1.up"}}[how]
    assert wanted <= layer_paths(result)
    assert sum(p.contraction_flops or 0 for p in result.points) == products(made(), sample)
    # all three limits are of the whole model: what runs eagerly beside the kernels is in each
    work, compiled = count_work(made(), sample).by_module(), {"compile": "", "child": "blocks.1",
                                                              "each block": "blocks"}[how]
    beside = sum(w.eager_bytes for path, w in work.items() if not path.startswith(compiled))
    (_, eager_s, eager), (_, made_s, generated), (_, least_s, least) = result.limits
    assert generated == sum(p.bytes_moved for p in kernels(result)) + beside and (beside > 0) == (how != "compile")
    assert eager == sum(w.eager_bytes for w in work.values()) and beside < least <= generated and least_s <= made_s

def test_training_step():
    model, sample = made(), torch.ones(8, 16)
    result = check(profiled(torch.compile(model), sample, backward=True))
    found = {phase: sum(p.contraction_flops for p in kernels(result) if p.phase == phase)
             for phase in ("forward", "backward")}
    assert found["forward"] == products(made(), sample)
    assert sum(found.values()) == products(made(), sample, backward=True)
    assert {"blocks.0.up", "head"} <= {path for p in kernels(result) if p.phase == "backward" for path, *_ in p.layers}

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 16), nn.Linear(16, 16, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, ids): return self.head(self.embedding(ids).tanh())

def test_a_product_that_adds_the_gradients_of_tied_weights_has_its_layer():
    "A pattern of Inductor adds the embedding's gradient within the product, which then has no record of its module."
    result = check(profiled(torch.compile(made(Tied)), torch.arange(8), backward=True))
    found = [p for p in kernels(result) if p.contraction_flops]
    assert any(p.type == "addmm" for p in found) and {p.layers[0][0] for p in found} == {"head"}
    assert layer_paths(result) <= {"embedding", "head", ""}

class Breaks(Net):
    def forward(self, x):
        x = self.blocks[0](x)
        torch._dynamo.graph_break()
        return self.head(self.blocks[1](x))

def test_graph_break():
    result = check(profiled(torch.compile(made(Breaks))))
    assert contractions(result) == products(made(Breaks), torch.ones(8, 16))
    assert {"blocks.0.up", "blocks.1.up", "head"} <= layer_paths(result)

class Eagerly(Net):
    @torch.compiler.disable
    def between(self, x): return x @ x.T @ x
    def forward(self, x): return self.head(self.between(self.blocks[0](x)))

def test_what_runs_eagerly_between_graphs():
    "Two products of 8 × 16 with its transpose run in no graph; they are in the row of the module."
    result = profiled(torch.compile(made(Eagerly)))
    row = next(p for p in result.points if not p.layers and p.flops)
    assert row.flops == 2 * 8 * 16 * 8 + 2 * 8 * 8 * 16 and row.name == ""

@pytest.mark.parametrize("dynamic, before, sample",
                         [(None, (8, 6), torch.ones(5, 16)), (True, (5,), torch.ones(5, 16)),
                          (True, (5,), torch.ones(8, 16)[2:7])], ids=["compiled again", "own memory", "a view"])
def test_dynamic_shapes(dynamic, before, sample):
    """Compiled for other batches before, or for any: the kernels have the sizes of this sample. With dynamic=True the
    symbol of a size is named after its tensor, or after the one that this is a view of."""
    model = torch.compile(made(), dynamic=dynamic)
    with torch.no_grad():
        for n in before: model(sample[:n] if n == len(sample) else torch.ones(n, 16))
    result = check(profiled(model, sample))
    assert contractions(result) == products(made(), sample) and not result.notes
    up = next(p for p in kernels(result) if p.name == "blocks.0.up")
    assert up.bytes_moved == 4 * (5 * 16 + 16 * 32 + 32 + 5 * 32)

@pytest.mark.parametrize("part", [slice(None), slice(2, 5)], ids=["own memory", "a view"])
def test_products_of_sizes_that_are_symbols(part):
    class Layer(nn.TransformerEncoderLayer):
        def __init__(self): super().__init__(16, 2, 32, batch_first=True)
    model, sample = torch.compile(made(Layer), dynamic=True), torch.ones(7, 5, 16)[part]
    with torch.no_grad(): model(sample)
    result = check(profiled(model, sample))
    assert kernels(result) and not result.notes

class Cache(nn.Module):
    "A step of attention, element by element, of one row against 2048 that are kept: 16 heads of 64 numbers."
    def __init__(self):
        super().__init__()
        for name in "kv": self.register_buffer(name, torch.zeros(1, 16, 2048, 64))
    def forward(self, x):
        at = torch.tensor([5])
        for cache in (self.k, self.v): cache.index_copy_(2, at, x)
        scores = (x * self.k).sum(-1).softmax(-1)
        return (scores.unsqueeze(-1) * self.v).sum(2)

def test_a_cache_that_is_written_and_read_in_one_kernel():
    "By hand: of keys and values all rows but the new one are read."
    result = check(profiled(torch.compile(made(Cache)), torch.ones(1, 16, 1, 64)))
    moved, rows = sum(p.bytes_moved for p in kernels(result)), 2 * 4 * 16 * 2047 * 64
    scores, row = 4 * 16 * 2048, 4 * 16 * 64
    assert rows + 2 * row + 2 * row <= moved <= rows + 8 * row + 4 * scores

def test_a_graph_that_dynamo_begins_again(monkeypatch):
    "Where a number turns out to be a constant, PyTorch gives up the graph, and Dynamo makes it in another way."
    from torch._dynamo.exc import TensorifyScalarRestartAnalysis
    model, generate, given_up = torch.compile(made()), inductor._generate, []
    def once_in_vain(*args):
        if not given_up: given_up.append(args); raise TensorifyScalarRestartAnalysis
        return generate(*args)
    monkeypatch.setattr(inductor, "_generate", once_in_vain)
    result = check(profiled(model))
    assert given_up and len(kernels(result)) > 1 and not result.notes, result.notes

def exported(model): return torch.compile(torch.export.export(model, (torch.ones(8, 16),)).module())

@pytest.mark.parametrize("compiled", [partial(torch.compile, mode="reduce-overhead"), exported,
                                      partial(torch.compile, options={"freezing": True}),
                                      partial(torch.compile, mode="max-autotune")],
                         ids=["reduce-overhead", "exported", "freezing", "max-autotune"])
@nightly_only("another way to compile")
def test_modes(compiled):
    result = check(profiled(compiled(made())))
    assert kernels(result), result.notes
    assert contractions(result) == products(made(), torch.ones(8, 16))

def test_autocast():
    class Cast(Net):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16): return super().forward(x)
    result = check(profiled(torch.compile(made(Cast))))
    assert contractions(result) == products(made(), torch.ones(8, 16))
    assert {p.dtype for p in kernels(result) if p.contraction_flops} == {"bfloat16"}

@nightly_only("the build of a wrapper in C++")
def test_a_wrapper_in_cpp_stays_one_row():
    result = profiled(torch.compile(made(), options={"cpp_wrapper": True}))
    assert not kernels(result) and any("its wrapper is C++" in n for n in result.notes), result.notes
    assert sum(p.contraction_flops or 0 for p in result.points) == products(made(), torch.ones(8, 16))

def test_one_row_where_that_is_asked_for():
    result = profiled(torch.compile(made()), kernels=False)
    assert not kernels(result) and result.notes == [] and result.limits == ()

def test_a_pytorch_without_the_records_says_so(monkeypatch):
    model = ready()
    monkeypatch.delattr("torch._inductor.codegen.cpp.set_kernel_post_grad_provenance_tracing")
    result = profiled(model)
    assert not kernels(result) and any("has no torch._inductor.codegen.cpp.set_kernel" in n for n in result.notes)

def test_code_that_is_not_found_says_so(monkeypatch):
    monkeypatch.setattr(inductor, "modules_of_graph", lambda graph: [])
    result = profiled(torch.compile(made()))
    assert not kernels(result) and any("not the code that runs" in n for n in result.notes)

@pytest.mark.parametrize("of", in_line(["each block", "training"], ci=["each block"]))
def test_a_trace_with_its_sites(of, tmp_path):
    "A trace of three runs on this CPU: its kernels have the layers, FLOPs and bytes that the profile has."
    with torch._inductor.config.patch({"cpp.enable_kernel_profile": True}):
        model, sample, trains = made(), torch.ones(8, 16), of == "training"
        if of == "each block":
            for b in model.blocks: b.compile()
        else: model = torch.compile(model)
        analyzer = RooflineAnalyzer(model, sample, peaks).profile(warmup=1, steps=2, progress=False, backward=trains)
        analyzer.to_kernels(tmp_path / "kernels.json")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as recorded:
            for _ in range(3):
                with torch.set_grad_enabled(trains): out = model(sample)
                if trains: out.sum().backward()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    without = read_trace(tmp_path / "trace.json", peaks=peaks, by="operator")
    assert not any("fused" in p.name for p in without.points)           # these kernels have no shapes
    found = [p for p in read_trace(tmp_path / "trace.json", peaks=peaks, kernels=tmp_path / "kernels.json").points
             if p.layers]
    def sums(points, field): return {key: sum(getattr(p, field) for p in points if (p.name, p.type) == key)
                                  for key in {(p.name, p.type) for p in points}}
    wanted = kernels(analyzer.result)
    for field in ("flops", "contraction_flops", "bytes_moved", "calls"):
        assert sums(found, field) == {key: 3 * v for key, v in sums(wanted, field).items()}, field

class Product(nn.Linear):
    "A layer with a forward of its own: PyTorch 2.11 does not compile a call of one of its own layers alone."
    def forward(self, x): return nn.functional.linear(x, self.weight, self.bias)

class Interleaved(Net):
    "Two compiled functions that are called in turn."
    def __init__(self):
        super().__init__()
        self.blocks[1] = Product(16, 16)
    def forward(self, x):
        for b in (*self.blocks, *self.blocks): x = b(x)
        return self.head(x)

def test_kernels_of_graphs_that_are_called_in_turn_are_in_order(tmp_path):
    model = made(Interleaved)
    for b in model.blocks: b.compile()
    analyzer = RooflineAnalyzer(model, torch.ones(8, 16), peaks).profile(warmup=1, steps=1, progress=False)
    analyzer.to_kernels(tmp_path / "kernels.json")
    layers = [kernel["layers"][0][0] for kernel in json.loads((tmp_path / "kernels.json").read_text())["sites"]]
    assert [k for k, path in enumerate(layers) if path == "blocks.1"] == [len(layers) // 2 - 1, len(layers) - 1]

def test_what_no_record_names_is_said():
    "The product that adds the gradients of tied weights (above) has an inferred layer; a forward has none."
    trained = profiled(torch.compile(made(Tied)), torch.arange(8), backward=True)
    assert any("inferred from the operators around them" in n and "addmm" in n for n in trained.notes), trained.notes
    assert not any("inferred" in n for n in profiled(torch.compile(made())).notes)

# What is put back

def snapshot(function):
    import torch._dynamo.eval_frame as dynamo, torch._functorch.config as functorch
    from torch._inductor import config
    seams = [getattr(where, name) for where, name in inductor._seams()]
    codes = [(f.__code__, sorted(f.__globals__)) for f in function]
    configs = config.get_config_copy(), functorch.get_config_copy()
    return seams, codes, configs, inductor._lock._is_owned(), dynamo._stance

def wrappers():
    from torch._inductor.codecache import PyCodeCache
    return [vars(type(m.call.__self__))["call"] for m in PyCodeCache.modules
            if hasattr(getattr(m, "call", None), "__self__")]

def ready():
    model = torch.compile(made())
    with torch.no_grad(): model(torch.ones(8, 16))
    return model

@nightly_only("compiles three times")
def test_nothing_is_compiled_anew_and_nothing_stays():
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
    model, code = ready(), Net.forward.__code__
    before, entries = snapshot(wrappers()), _debug_get_cache_entry_list(code)
    for _ in range(10): profiled(model)                    # more often than the limit of recompilations
    assert snapshot(wrappers()) == before and _debug_get_cache_entry_list(code)[0] is not None and len(entries) == 1
    with torch._dynamo.config.patch(error_on_recompile=True), torch.no_grad(): model(torch.ones(8, 16))
    with torch.no_grad(): model(torch.ones(3, 16))        # a size that is new is still compiled
    assert kernels(profiled(model, torch.ones(3, 16)))

def test_two_threads():
    """Two compiled models, profiled at once: each has the kernels of its own, or says that the other had it run
    eagerly; nothing stays."""
    models = [torch.compile(made(kind)) for kind in (Net, Breaks)]
    with torch.no_grad():
        for m in models: m(torch.ones(8, 16))
    before, found = snapshot(wrappers()), [None, None]
    def run(i): found[i] = profiled(models[i])
    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for t in threads: t.start()
    for t in threads: t.join(300)
    for r in filter(kernels, found):
        assert {"blocks.0.up", "blocks.1.up", "head"} <= layer_paths(r)
        assert contractions(r) == products(made(), torch.ones(8, 16))
    assert all("stance being 'force_eager'" in " ".join(r.notes) for r in found if not kernels(r))
    assert snapshot(wrappers()) == before

class Burnt(Exception): pass

def test_an_error_in_a_kernel(monkeypatch):
    model = ready()
    before, functions = snapshot(wrappers()), wrappers()
    calls = []
    def burning(kernel):
        def burn(*args):
            calls.append(1)
            if any("fasterbench_timestamp" in f.__globals__ for f in functions): raise Burnt
            return kernel(*args)
        return burn
    for space in [f.__globals__ for f in functions]:
        for name in [k for k in space if k.startswith("cpp_fused")]:
            monkeypatch.setitem(space, name, burning(space[name]))
    with pytest.raises(Burnt): profiled(model)
    monkeypatch.undo()
    assert calls and snapshot(wrappers()) == before

def lines_of(f, files, at=None):
    "Run `f`; interrupt it at the line number `at` of those that it runs in `files`; return how many there are."
    count = 0
    def line(frame, event, arg):
        nonlocal count
        if event == "line":
            count += 1
            if count == at: raise KeyboardInterrupt
        return line
    old = sys.gettrace()
    sys.settrace(lambda frame, event, arg: line if frame.f_code.co_filename in files else None)
    try: f()
    finally: sys.settrace(old)
    return count

def test_interrupted_at_every_line_of_the_swap():
    model, sample = ready(), torch.ones(8, 16)
    with torch.no_grad(): frames = inductor.Generator(lambda *kernel: kernel[2]).run(lambda: model(sample))
    timestamped = inductor.Timestamped(frames[0].graphs)
    before = snapshot(wrappers())
    def swap():
        with (undo := inductor.Undo()), undo:
            undo.add(timestamped.leave)
            timestamped.enter(lambda graph: lambda event, i: None)
    files = {inductor.__file__}
    total = lines_of(swap, files)
    assert total > 8
    for at in range(1, total + 1):
        with pytest.raises(KeyboardInterrupt): lines_of(swap, files, at)
        timestamped.leave()                                     # as the profile's own undo does once more
        assert snapshot(wrappers()) == before, at

@nightly_only("compiles until it is interrupted, again and again")
def test_interrupted_while_code_is_generated():
    model, sample = ready(), torch.ones(8, 16)
    before = snapshot(wrappers())
    def generate():
        with torch.no_grad(): inductor.Generator(lambda *kernel: kernel[2]).run(lambda: model(sample))
    files = {inductor.__file__}
    total = lines_of(generate, files)
    for at in range(1, total + 1, max(total // (40 if nightly else 13), 1)):
        try: lines_of(generate, files, at)
        except BaseException: pass
        assert snapshot(wrappers()) == before, at
    assert kernels(profiled(model))

class Flex(nn.Module):
    def __init__(self, mask=None):
        super().__init__()
        self.mask = mask
    def forward(self, q, k, v):
        from torch.nn.attention.flex_attention import flex_attention
        return flex_attention(q, k, v, block_mask=self.mask)

def test_flex_attention_has_the_pairs_that_its_mask_leaves():
    """2 heads of 256 × 64: all pairs, or 3 of 4 blocks of 128; queries, keys, values and results once, and the
    lists of blocks."""
    from torch.nn.attention.flex_attention import create_block_mask
    causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cpu")
    qkv, roofs = tuple(torch.ones(1, 2, 256, 64) for _ in range(3)), HardwarePeaks(1e15, 1e15, device="cpu")
    for mask, pairs in ((None, 256 * 256), (causal, 3 * 128 * 128)):
        program = predict(Flex(mask), qkv, on=roofs, compiled=True, progress=False).program
        assert program.contraction_flops == 2 * 4 * 64 * pairs
        assert 0 <= program.bytes_moved - 4 * 2 * 256 * 64 * 4 < 1000
