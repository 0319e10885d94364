"""Traces of serving engines, graphs and compiled code: by hand, from real GPUs beside a peer's figures, and what
is refused."""
import csv, json
from collections import defaultdict

import pytest
from conftest import heavy_only, nightly_only

import forked
from fasterbench import read_trace
from fasterbench.core.units import total
from trace_files import by_name, event, kernel, launch, needs_real, operator, real, roofs, shared, written

# A decode step by hand, in µs: a graph is launched from 10 to 12 within the annotation of the engine, and runs a
# product from 20 to 24, attention from 24 to 30 and experts from 30 to 40.

names = "Cijk_Alik_Bljk", "kernel_unified_attention_2d", "_matmul_ogs_NNT_bf16xbf16xmxfp4"
bf16 = "c10::BFloat16"
lengths = "execute_2_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq2sk200sqsq2sqsk200)"

def replay(step=lengths, ran=names):
    runs = [(20, 4), (24, 6), (30, 10)]
    return [event("user_annotation", step, 5, 40), launch(10, 7, "hipGraphLaunch")] + [
        kernel(name, ts, dur, 7) for name, (ts, dur) in zip(ran, runs)]

def capture(launched=names, ends=True):
    def call(ts, id, name):
        return event("cuda_runtime", "hipModuleLaunchKernel", ts, 1, correlation=id,
                     **({"kernel": name} if name else {}))
    return [event("cuda_runtime", "hipStreamBeginCapture", 100, 1, correlation=20),
            event("python_function", "nn.Module: Layer_0", 101, 40),
            operator("aiter::gemm_a16w16", 102, 4, [[2, 64], [96, 64], []], [bf16, bf16, ""]),
            call(103, 21, launched[0]),
            operator("vllm::unified_attention_with_output", 110, 4, [[2, 4, 16], [2, 2, 16], [2, 2, 16], [2, 4, 16]],
                     [bf16] * 4), call(111, 22, launched[1]),
            operator("vllm::moe_forward", 120, 9, [[2, 64], [2, 4]], [bf16] * 2), call(121, 23, launched[2]),
            *([event("cuda_runtime", "hipStreamEndCapture", 150, 1, correlation=24)] if ends else [])]

config = dict(num_hidden_layers=1, hidden_size=64, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32)

def read(folder, events, captures=(), **more):
    paths = [written(folder, c, f"capture{k}.json") for k, c in enumerate(captures)]
    return read_trace(written(folder, events), peaks=roofs, captures=paths, **more)

def test_a_graph_has_the_operators_of_its_capture(tmp_path):
    result = read(tmp_path, replay(), [capture()], config=config, by="operator")
    rows = {p.operator: p for p in result.ops}
    product, attention, experts = (rows[n] for n in ("aiter::gemm_a16w16", "vllm::unified_attention_with_output",
                                                     "vllm::moe_forward"))
    assert product.flops == 2 * 2 * 64 * 96 and product.bytes_moved == 2 * (2 * 64 + 96 * 64 + 2 * 96)
    assert product.time_s == pytest.approx(4e-6)
    # 200 keys in all, each with 4 heads of 16 channels: a score and a sum of 2·16 FLOP; the cache of 2 heads is read
    # once
    assert attention.contraction_flops == 4 * 200 * 2 * (16 + 16)
    assert attention.bytes_moved == 2 * (2 * 64 + 2 * 200 * 2 * 16 + 2 * 64)
    # 2 tokens to 2 of 4 experts: three of four are read, at 4.25 bits a weight
    assert experts.flops == 6 * 2 * 2 * 64 * 32
    assert experts.bytes_moved == 2 * (2 * 64 + 2 * 4 + 2 * 64) + 4 * 0.75 * 3 * 64 * 32 * 4.25 / 8
    parts = result.breakdowns[0].parts
    assert parts["with FLOPs and bytes"] == pytest.approx(20e-6) and "graph launch" not in parts
    assert sum(parts.values()) == pytest.approx(20e-6)
    assert any("3 of 3 kernels of 1 graph launch aligned, 3 by name" in n for n in result.notes)
    layer = by_name(read(tmp_path, replay(), [capture()], config=config, by="module"))["Layer_0"]
    assert layer.time_s == pytest.approx(20e-6) and layer.flops == product.flops + attention.flops + experts.flops

def roofline_of(copy):
    "FLOPs and bytes that the kernels of a copy carry, summed."
    said = [e["args"] for e in json.loads(copy.read_bytes())["traceEvents"] if "roofline FLOPs" in e.get("args", {})]
    return len(said), sum(a["roofline FLOPs"] for a in said), sum(a["roofline bytes"] for a in said)

def test_a_copy_for_perfetto_knows_what_was_given_with_the_trace(tmp_path):
    "Captures and the configuration: three kernels of a graph, a call each."
    result = read(tmp_path, replay(), [capture()], config=config, by="operator")
    result.to_perfetto(tmp_path/"copy.json")
    n, flops, nbytes = roofline_of(tmp_path/"copy.json")
    assert n == 3 and flops == sum(p.flops for p in result.ops if p.flops)
    assert nbytes == pytest.approx(sum(p.bytes_moved or 0 for p in result.ops)) and "reading" not in result.to_dict()

def test_every_replay_has_its_own_lengths(tmp_path):
    longer = lengths.replace("sk200", "sk400").replace("sqsk200", "sqsk400")
    later = [dict(e, ts=e["ts"] + 100) for e in replay(longer)]
    for e in later:
        if "correlation" in e["args"]: e["args"]["correlation"] = 8
    result = read(tmp_path, replay() + later, [capture()], config=config, by="operator")
    attention = next(p for p in result.ops if p.operator == "vllm::unified_attention_with_output")
    assert attention.calls == 2 and attention.contraction_flops == 4 * (200 + 400) * 2 * (16 + 16)

def test_without_the_configuration_experts_are_at_least_their_tokens(tmp_path):
    result = read(tmp_path, replay(), [capture()], by="operator")
    experts = next(p for p in result.ops if p.operator == "vllm::moe_forward")
    assert experts.flops is None and experts.bytes_moved == 2 * (2 * 64 + 2 * 4) and experts.source == "at least"
    assert experts.bound == "undefined"
    assert result.breakdowns[0].parts["with bytes, at least"] == pytest.approx(10e-6)
    assert any("experts not recorded (--config)" in n for n in result.notes)

def test_without_the_lengths_attention_is_at_least_its_tensors(tmp_path):
    result = read(tmp_path, replay("step[DECODE bs=2]"), [capture()], config=config, by="operator")
    attention = next(p for p in result.ops if p.operator == "vllm::unified_attention_with_output")
    # q and result of 2·4·16, k and v of 2·2·16 elements; the engine says no lengths
    assert attention.flops is None and attention.bytes_moved == 2 * (2 * 128 + 2 * 64)
    assert attention.source == "at least"
    assert any("lengths of the cache not recorded" in n for n in result.notes)

other = "conv_kernel", "relu_kernel", "pool_kernel"

def test_a_capture_for_a_trace_without_graphs_is_refused(tmp_path):
    with pytest.raises(ValueError, match="launches no graph"):
        read(tmp_path, [operator("aten::relu", 1, 2, [[4]], ["float"]), launch(2, 1), kernel("relu", 5, 1, 1)],
             [capture()])

def test_a_graph_that_was_annotated_names_its_parts(tmp_path):
    events = replay()
    for e in events:
        if e["cat"] == "kernel": e["args"] |= {"graph node id": 1 + int(e["ts"]), "name": "layers.0"}
    assert by_name(read(tmp_path, events, by="module"))["layers.0 (graph launch)"].time_s == pytest.approx(20e-6)

# Twelve layers of three operators; the kernels of the first four were launched before the window.

def layers(n=12, before=4):
    events = []
    for k in range(n):
        for j, (op, dims) in enumerate((("aten::mm", [[64, 32], [32, 16]]), ("aten::relu", [[64, 16]]),
                                        ("aten::neg", [[8, 8]]))):
            at, id = 10 * k + 3 * j, 100 + 3 * k + j
            if k >= before: events += [operator(op, at, 2, dims, ["float"] * len(dims)), launch(at + 1, id)]
            events.append(kernel(f"{op}_kernel", 500 + 10 * k + 3 * j, 2, id))
    return events

def test_kernels_launched_before_the_window_are_recognised_by_their_neighbours(tmp_path):
    result = read(tmp_path, layers(), by="operator")
    parts = result.breakdowns[0].parts
    assert parts["matched by position in the step"] == pytest.approx(4 * 3 * 2e-6)
    assert "launched outside the window" not in parts
    product = next(p for p in result.ops if p.operator == "aten::mm")
    assert product.calls == 12 and product.flops == 12 * 2 * 64 * 32 * 16 and product.time_s == pytest.approx(12 * 2e-6)
    assert sum(parts.values()) == pytest.approx(result.breakdowns[0].span_s)

def test_kernels_of_a_graph_are_recognised_from_an_eager_trace(tmp_path):
    graph = [launch(10, 7, "cudaGraphLaunch")] + [dict(e, args=dict(e["args"], correlation=7)) for e in layers()
                                                  if e["cat"] == "kernel"]
    eager = written(tmp_path, layers(before=0), "eager.json")
    result = read(tmp_path, graph, like=eager, by="operator")
    assert result.breakdowns[0].parts["matched by position in the step"] == pytest.approx(12 * 3 * 2e-6)
    assert next(p for p in result.ops if p.operator == "aten::mm").flops == 12 * 2 * 64 * 32 * 16
    result.to_perfetto(tmp_path/"copy.json")
    assert roofline_of(tmp_path/"copy.json")[:2] == (36, sum(p.flops for p in result.ops))

def test_rules_in_a_file(tmp_path):
    events = [operator("my_company::product", 1, 4, [[8, 16], [32, 16]], [bf16, bf16]), launch(2, 1),
              kernel("secret", 5, 1, 1)]
    unknown = read(tmp_path, events).ops[0]
    assert unknown.flops is None and unknown.bytes_moved == 2 * (8 * 16 + 8 * 16) and unknown.source == "at least"
    rules = tmp_path/"my_rules.py"
    rules.write_text('from fasterbench.traces.other_ops import engine_rule\n'
                     '@engine_rule("my_company::product", category="matmul", result=lambda x, w, *_: (x[0], w[0]))\n'
                     'def product(x, w, *_, **kw): return 2 * x[0] * x[1] * w[0]\n')
    path = written(tmp_path, events)
    code = (f"from fasterbench import read_trace; r = read_trace({str(path)!r}, rules={str(rules)!r}, on='H100'); "
            "print(r.ops[0].flops, r.ops[0].bytes_moved)")
    out = forked.python(code, package=True)
    assert out.stdout.split() == [str(2 * 8 * 16 * 32), str(2 * (8 * 16 + 32 * 16 + 8 * 32))] and not out.stderr
    rules.write_text("this is no Python")
    with pytest.raises(ValueError, match="my_rules.py cannot be read"): read_trace(path, rules=rules)

def test_compiled_kernels_have_the_bytes_of_their_arguments_and_what_pytorch_wrote(tmp_path):
    events = [operator("triton_poi_fused_addmm_gelu_view_15", 1, 2, [[2, 4, 8], [8], []], [bf16, bf16, "Scalar"],
                       **{"Concrete Inputs": ["", "", "64"]}),
              launch(2, 1), kernel("triton_poi_fused_addmm_gelu_view_15", 5, 1, 1)]
    result = read(tmp_path, events)
    [row] = result.ops
    assert (row.flops, row.contraction_flops, row.bytes_moved, row.source) == (None, 0, 2 * (64 + 8 + 64), "at least")
    assert any("compiled kernel, bytes of its arguments" in n for n in result.notes)
    events[0]["args"] |= dict(kernel_num_gb=1e-6, kernel_flop=77, kernel_file="/tmp/torchinductor/ab/x.py")
    row = read(tmp_path, events).ops[0]
    assert (row.flops, round(row.bytes_moved), row.source) == (77, 1000, "counted")

def test_communication_is_no_unknown_work(tmp_path):
    events = layers(before=0) + [launch(300, 900), kernel("ncclDevKernel_AllReduce_Sum_f32", 700, 50, 900)]
    result = read(tmp_path, events)
    row = next(p for p in result.points if p.name == "(communication) all_reduce")
    assert row.time_s == pytest.approx(50e-6) and row.category == "communication" and row.bound == "none"
    assert dict(result.program.shares)["communication"] == pytest.approx(50e-6 / sum(p.time_s for p in result.points))

def test_idle_says_before_what_it_falls_and_why(tmp_path):
    events = [event("python_function", "nn.Module: First_0", 0, 5), operator("aten::relu", 1, 2, [[4]], ["float"]),
              launch(2, 1), kernel("relu", 3, 2, 1),
              event("python_function", "nn.Module: Second_0", 50, 9), operator("aten::relu", 51, 2, [[4]], ["float"]),
              launch(52, 2), kernel("relu", 55, 5, 2)]
    note = next(n for n in read(tmp_path, events).notes if n.startswith("GPU idle"))
    assert "100 % waiting for the CPU" in note and "100 % before Second_0" in note

def test_the_command(tmp_path):
    trace, beside = written(tmp_path, replay()), written(tmp_path, capture(), "capture.json")
    (tmp_path/"config.json").write_text(json.dumps(config))
    def run(*more): return forked.python(forked.command_line("trace", trace, "--on", "MI300X", *more), package=True)
    out = run("--capture", beside, "--config", tmp_path)
    assert out.returncode == 0 and "Layer_0" in out.stdout and "3 of 3 kernels" in out.stdout.replace("\n  ", " ")
    assert not out.stderr
    wrong = run("--capture", written(tmp_path, capture(other), "other.json"))
    assert wrong.returncode and "no capture given fits" in wrong.stderr.replace("\n", " ")
    assert "Traceback" not in wrong.stderr

# Traces of real GPUs, beside what a peer has of the same files

gptoss = dict(num_hidden_layers=24, hidden_size=2880, intermediate_size=2880, num_local_experts=32,
              num_experts_per_tok=4, sliding_window=128,
              layer_types=["sliding_attention", "full_attention"] * 12)
beside = {"mi300x_hipgraph_decode": dict(captures=["mi300x_hipgraph_decode_capture"]),
          "vllm_gptoss_decode": dict(captures=["vllm_gptoss_decode_capture"], config=gptoss, on="AMD Instinct MI300X"),
          "b200_gptoss_vllm_tp8_rank0": dict(config=shared/"data/configs/gpt-oss-120b"), "mi300x_sd35_compiled": {},
          "mi300x_torch_compile": {}}

def read_real(name):
    more = dict(beside[name])
    if "captures" in more: more["captures"] = [real/f"{c}.json.gz" for c in more["captures"]]
    return read_trace(real/f"{name}.json.gz", by="operator", **more)

@needs_real
@pytest.mark.parametrize("name, least", [("mi300x_hipgraph_decode", 0.98), ("vllm_gptoss_decode", 0.98),
                                         ("b200_gptoss_vllm_tp8_rank0", 0.98),
                                         pytest.param("mi300x_sd35_compiled", 0.99,
                                                      marks=heavy_only("another engine")),
                                                      ("mi300x_torch_compile", 0.99)])
def test_engines_have_figures_and_no_row_above_its_roof(name, least):
    result = read_real(name)
    parts, linked = result.breakdowns[0].parts, result.breakdowns[0].linked_s
    assert (parts["with FLOPs and bytes"] + parts.get("with bytes, at least", 0)) / linked >= least
    assert [p.name for p in result.ops if p.utilization_pct is not None and p.utilization_pct > 105] == []

@heavy_only("reads a large trace")
@needs_real
def test_a_row_faster_than_the_last_used_allow_gets_what_the_cache_can_hold():
    "6.4 MB in place behind a batch norm in 11.3 us, which DRAM alone cannot serve; the L2 of 6.29 MB holds most of it."
    result = read_trace(real/"v100_resnet50_2021_schema.json.gz", on="Tesla V100-SXM2", by="operator")
    assert [p.name for p in result.ops if p.utilization_pct is not None and p.utilization_pct > 105] == []
    row = next(p for p in result.ops if p.name == "relu_ 32×256×14×14" and p.phase == "forward")
    served = dict(row.bytes_by_level)
    assert served["L2"] == pytest.approx(2 * 6_291_456 * row.calls, rel=1e-6)
    assert sum(served.values()) == row.bytes_moved

@needs_real
def test_the_kernels_before_the_window_are_recognised():
    for name, least in (("h100_qwen1.5_0.5b_prefill", 0.99), ("mi300x_resnet_ddp8_train_rank0", 0.97)):
        parts = read_trace(real/f"{name}.json.gz").breakdowns[0].parts
        found, left = parts["matched by position in the step"], parts.get("launched outside the window", 0.0)
        assert found / (found + left) >= least, name

def peers(name, file):
    csv.field_size_limit(10**8)
    rows = defaultdict(float), defaultdict(float), defaultdict(int)
    for r in csv.DictReader(open(real/"expected"/name/f"{file}.csv", encoding="utf-8")):
        key, n = r["name"].split("::")[-1], int(r["operation_count"])
        for sums, value in zip(rows, (float(r["GFLOPS"] or 0) * 1e9 * n, float(r["Data Moved (MB)"] or 0) * 2**20 * n,
                                      n)):
            sums[key] += value
    return rows

@needs_real
def test_a_decode_step_beside_the_figures_of_a_peer():
    "The peer's attention counts no softmax and no window; its rope counts the table whole or not at all."
    result, (flops, moved, calls) = read_real("mi300x_hipgraph_decode"), peers("mi300x_hipgraph_decode",
                                                                               "unified_perf_summary_merged")
    own = defaultdict(list)
    for p in result.ops: own[p.operator.split("::")[-1]].append(p)
    assert total(p.flops for p in own["gemm_a16w16"]) == flops["gemm_a16w16"]
    assert sum(p.calls for p in own["gemm_a16w16"]) == calls["gemm_a16w16"] == 144
    assert total(p.bytes_moved for p in own["gemm_a16w16"]) == pytest.approx(moved["gemm_a16w16"], rel=1e-9)
    attention = own["attention_paged_attention_ragged_100"]
    assert total(p.contraction_flops for p in attention) == pytest.approx(flops["attention_paged_attention_ragged"],
                                                                          rel=1e-3)
    assert total(p.bytes_moved for p in attention) == pytest.approx(moved["attention_paged_attention_ragged"], rel=1e-3)
    for name in ("add_rmsnorm", "silu_and_mul", "store_cache"):
        assert total(p.bytes_moved for p in own[name]) == pytest.approx(moved[name], rel=0.01), name

@heavy_only("reads a large trace")
@needs_real
def test_compiled_kernels_beside_the_figures_of_a_peer():
    "Where a kernel joins or cuts tensors, the peer counts each as large as the whole run, which is not what it moves."
    result, (flops, moved, calls) = read_real("mi300x_sd35_compiled"), peers("mi300x_sd35_compiled",
                                                                             "unified_perf_summary")
    same = [p for p in result.ops if p.operator.startswith("triton_") and calls.get(p.operator) == p.calls
            and moved[p.operator] > 1e9]
    joins = [p for p in same if "_cat_" in p.operator or "_slice_" in p.operator]
    assert len(same) > len(joins) >= 2 and all(p.bytes_moved < moved[p.operator] for p in joins)
    assert {p.name: p.bytes_moved for p in same if p not in joins} == pytest.approx({p.name: moved[p.operator]
                                                                                     for p in same if p not in joins},
                                                                                     rel=0.02)

# A prediction of a model beside the trace of it

def predicted_and_traced(model, sample, on, trace, **how):
    import torch
    from fasterbench import compare, predict
    return compare(predict(model, sample, on=on), read_trace(real/f"{trace}.json.gz", **how))

@needs_real
def test_a_prediction_beside_the_trace_of_the_model():
    """ViT-B/16 by its paths, and by classes and counters on an H100: every layer and its FLOPs; the trace has a
    pooler more."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    with torch.device("meta"):
        model = transformers.ViTModel(transformers.ViTConfig(), add_pooling_layer=False).to(torch.bfloat16).eval()
    found = predicted_and_traced(model, torch.empty(4, 3, 224, 224, dtype=torch.bfloat16, device="meta"), "H100",
                                 "h100_vit_base_infer")
    both = [q for q in found.pairs if q.side == "both"]
    for kind, n in (("Linear", 72), ("ViTAttention", 12), ("LayerNorm", 25), ("GELUActivation", 12), ("Conv2d", 1)):
        own = [q for q in both if q.before.type == kind]
        assert len(own) == n and all(q.after.contraction_flops == q.before.contraction_flops for q in own), kind
    assert {q.name for q in found.pairs if q.side == "only after"} == {"(idle)", "ViTModel_0.ViTPooler_0.Linear_72",
                                                                       "ViTModel_0.ViTPooler_0.Tanh_0"}
    assert any("matched by class, order and work" in line for line in found.differences)

@nightly_only("counts a served model")
@needs_real
def test_a_prediction_beside_the_trace_of_a_server():
    "Qwen3-8B, 32 sequences: one product of SGLang is three of the model, and that of the logits lies outside of it."
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from fasterbench.serving.serve_work import language_model
    model = language_model(dict(model_type="qwen3", hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
                                num_attention_heads=32, num_key_value_heads=8,
                                head_dim=128, vocab_size=151936))
    sample = dict(input_ids=torch.zeros(32, 1, dtype=torch.long, device="meta"), use_cache=False)
    found = predicted_and_traced(model, sample, "MI300X", "mi300x_hipgraph_decode",
                                 captures=[real/"mi300x_hipgraph_decode_capture.json.gz"])
    both = {q.name: q for q in found.pairs if q.side == "both"}
    products = [f"model.layers.{i}.{n}" for i in range(36) for n in ("mlp.down_proj", "mlp.gate_proj + up_proj",
                                                                     "self_attn.o_proj",
                                                                     "self_attn.k_proj + q_proj + v_proj")]
    for name in [*products, "lm_head"]: assert both[name].ratio("contraction_flops") == 1, name
    assert all(both[f"model.layers.{i}.self_attn.{n}_norm"].ratio("flops") == pytest.approx(1, abs=0.5)
               for i in range(36) for n in "qk")

def test_sides_are_called_by_where_their_times_are_from(tmp_path):
    "A prediction and a trace are no before and after; two traces are."
    torch = pytest.importorskip("torch")
    from fasterbench import compare, predict
    traced = read(tmp_path, [operator("aten::mm", 3, 4, [[64, 32], [32, 16]], ["float"] * 2), launch(4, 1),
                             kernel("gemm", 20, 5, 1)])
    predicted = predict(torch.nn.Linear(32, 16, device="meta"), torch.empty(64, 32, device="meta"), on="H100")
    for left, right, names in ((predicted, traced, ("predicted", "trace")),
                               (traced, predicted, ("trace", "predicted")), (traced, traced, ("before", "after"))):
        found = compare(left, right)
        text, page = found.text(), found.render()
        assert f"s {names[0]}, 5.00 µs {names[1]}" in text or f"5.00 µs {names[0]}, " in text
        for other in {"before", "after", "predicted", "trace"} - set(names):
            assert f" {other}," not in text and f"time {other}" not in page
        assert f"time {names[0]}" in page and f"time {names[1]}" in page
