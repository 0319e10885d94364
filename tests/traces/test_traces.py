"Traces of torch.profiler: what is read from them, by hand and from real GPUs, and what is refused."
import copy, gzip, json, random, subprocess, sys, tarfile, tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import heavy_only, in_line

import fasterbench.traces.perfetto as perfetto
from fasterbench import on_trace_ready, read_trace
from fasterbench.traces.perfetto import write_perfetto
from fasterbench.traces.trace_file import Source, plain_pieces, read_file
from fasterbench.roofs.hardware import HardwarePeaks, MemoryLevel
from fasterbench.comparing.compare import compare
from fasterbench.views.headline import divided, headline, terms
from fasterbench.views.result import from_json
from trace_files import by_name, event, kernel, launch, needs_real, operator, read, real, roofs, shared, step, written

@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_files_and_archives(tmp_path, name):
    path = written(tmp_path, step(), name, distributedInfo=dict(rank=3, world_size=8))
    with tarfile.open(tmp_path/"ranks.tar.gz", "w:gz") as archive: archive.add(path, f"ranks/{name}")
    one, many = read_trace(path, peaks=roofs), read_trace(tmp_path/"ranks.tar.gz", peaks=roofs)
    assert one.breakdowns[0].rank == many.breakdowns[0].rank == 3 and by_name(one)["Net_0"] == by_name(many)["Net_0"]
    folder = read_trace(tmp_path, peaks=roofs)
    assert len(folder.breakdowns) == 2 and by_name(folder)["Net_0"].time_s == pytest.approx(2e-6)

@pytest.mark.parametrize("job, who", [({}, "time"), (dict(rank=0, world_size=1), "time"), (dict(rank=0), "time"),
                                      (dict(rank=0, world_size=2), "rank 0"), (dict(rank=1), "rank 1")])
def test_one_process_is_no_rank(tmp_path, job, who):
    assert str(read(tmp_path, step(),
                    distributedInfo=job).breakdowns[0]).startswith(f"{who}: 40.00 µs = 85.0 % idle + ")

def test_parts_that_round_to_zero_are_left_out(tmp_path):
    "Of 100 ms a copy takes 40 µs: 0.0 %."
    events = [event("user_annotation", "ProfilerStep#1", 0, 100000),
              operator("aten::relu", 1, 4, [[64, 16]], ["float"]), launch(2, 12), kernel("relu", 50000, 40000, 12),
              launch(92000, 13, "cudaMemcpyAsync"), kernel("Memcpy DtoH", 95000, 40, 13, "gpu_memcpy")]
    said = str(read(tmp_path, events).breakdowns[0])
    assert said == "time: 100.00 ms = 60.0 % idle + 40.0 % with FLOPs and bytes", said

def test_an_address_is_opened_by_fsspec(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://traces/one.json", "wb") as f: f.write(json.dumps(dict(traceEvents=step())).encode())
    assert by_name(read_trace("memory://traces/one.json", peaks=roofs))["Net_0"].flops == 1024

def test_external_id_of_2023_is_no_link(tmp_path):
    """Where the launch was not recorded, an External id that is the correlation id says nothing, also where an
    operator has that number."""
    events = [e for e in step() if e["cat"] != "cuda_runtime"]
    for e in events:
        if e["cat"] == "kernel": e["args"]["External id"] = e["args"]["correlation"]
        if e["cat"] == "cpu_op": e["args"]["External id"] = 11
    breakdown = read(tmp_path, events).breakdowns[0]
    assert breakdown.parts["no operator recorded"] == pytest.approx(6e-6)
    assert "with FLOPs and bytes" not in breakdown.parts

def test_without_a_launch_the_external_id_links(tmp_path):
    events = [e for e in step() if e["cat"] != "cuda_runtime"]
    for e in events:
        if e["name"] in ("aten::mm", "sgemm"): e["args"]["External id"] = 500
    assert read(tmp_path, events).breakdowns[0].parts["with FLOPs and bytes"] == pytest.approx(4e-6)

@pytest.mark.parametrize("id", (lambda n: n, str))
def test_an_external_id_that_is_the_correlation_links_where_all_of_them_name_operators(tmp_path, id):
    """No launches were recorded: the kernels belong to their operators and modules, and nothing was launched
    outside of the window."""
    events = [e for e in step() if e["cat"] != "cuda_runtime"]
    for e in events:
        if e["cat"] == "kernel": e["args"]["External id"] = e["args"]["correlation"] = id(e["args"]["correlation"])
        if e["cat"] == "cpu_op": e["args"]["External id"] = id({"aten::mm": 11, "aten::relu": 12}[e["name"]])
    result = read(tmp_path, events)
    assert by_name(result)["Net_0.Linear_0"].time_s == pytest.approx(4e-6) and by_name(result)["Net_0"].flops == 1024
    assert result.breakdowns[0].parts["with FLOPs and bytes"] == pytest.approx(6e-6)

def test_a_kernel_that_links_to_an_annotation_was_launched_in_the_window(tmp_path):
    events = step() + [event("user_annotation", "mine", 5, 3, **{"External id": 70}),
                       event("kernel", "own", 30, 2, 7, device=0, correlation=99, **{"External id": 70})]
    parts = read(tmp_path, events).breakdowns[0].parts
    assert parts["no operator recorded"] == pytest.approx(2e-6) and "launched outside the window" not in parts

def test_arguments_that_are_no_object_or_no_utf8_cost_their_event_alone(tmp_path):
    """An event is kept without arguments that are a number, a list or nothing; a byte that is no UTF-8 becomes a
    mark, and all else is read."""
    from fasterbench.traces.trace_file import read_file
    odd = [dict(event("kernel", f"k{i}", 10 + i, 1), args=args) for i,
           args in enumerate((7, None, [1], {"correlation": 5, "Collective name": "all@"}))]
    path = written(tmp_path, [*odd, operator("aten::relu", 1, 2, [[4]], ["float"],
                                             **{"External id": 3, "Concrete Inputs": ["@"]})])
    path.write_bytes(path.read_bytes().replace(b"@", b"\xff"))
    found = read_file(str(path))
    assert [a.id for a in found.activities] == [-1, -1, -1, 5] and found.collectives[3].name == "all\ufffd"
    assert not found.skipped
    assert found.operators[0].id == 3 and found.calls[0].dims == b"[[4]]"

def test_backward_recomputation_and_update(tmp_path):
    def back(ts, dur, **args):
        return event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", ts, dur, 2, **args)
    def mm(ts, tid, **args):
        return dict(operator("aten::mm", ts, 2, [[64, 32], [32, 16]], ["float", "float"], **args), tid=tid)
    def run(ts, n, tid): return dict(launch(ts, n), tid=tid)
    events = [event("python_function", "nn.Module: Net_0", 0, 9),
              event("python_function", "nn.Module: Linear_0", 1, 4),
              mm(2, 1, **{"Sequence number": 5, "Fwd thread id": 0}), run(3, 1, 1),
              back(20, 20, **{"Sequence number": 9, "Fwd thread id": 1}),
              dict(event("python_function", "nn.Module: Linear_0", 21, 4), tid=2), mm(22, 2), run(23, 2, 2),
              back(41, 5, **{"Sequence number": 5, "Fwd thread id": 1}), mm(42, 2), run(43, 3, 2),
              event("user_annotation", "Optimizer.step#SGD.step", 50, 5), mm(51, 1), run(52, 4, 1),
              *[kernel("gemm", 60 + 5 * n, n, n) for n in (1, 2, 3, 4)]]
    rows = {(p.name, p.phase): round(p.time_s * 1e6) for p in read(tmp_path, events).points
            if p.name != "(idle)"}
    assert rows == {("Net_0.Linear_0", "forward"): 1, ("Net_0.Linear_0", "recompute"): 2,
                    ("Net_0.Linear_0", "backward"): 3, ("(optimizer)", "update"): 4}

# Which level served what: without a cache that holds 100 MB the 24 weights of 29 MB come from main memory in every step

cached = HardwarePeaks(1e15, 3e12, device="cuda", levels=(MemoryLevel("L2", 50_000_000, 1e13),
                                                          MemoryLevel("DRAM", None, 3e12)))

def layers(n, between=lambda k: [], at=0.0):
    """`n` equal products of 32×2880 and 2880×5120 in bfloat16, each 12 µs long (main memory needs 10); `between`
    adds what runs after one."""
    events = []
    for k in range(n):
        ts = at + 100 * k
        events += [operator("aten::mm", ts, 50, [[32, 2880], [2880, 5120]], ["c10::BFloat16"] * 2),
                   launch(ts + 5, int(ts) + 1),
                   kernel("gemm", ts + 20, 12, int(ts) + 1), *between(ts)]
    return events

weight, rest = 2 * 2880 * 5120, 2 * 32 * (2880 + 5120)

def main_memory(result, name="mm 32×2880 2880×5120"):
    [row] = [p for p in result.ops if p.name == name]
    return dict(row.bytes_by_level)["DRAM"]

@pytest.mark.parametrize("around", [(), ("OptimizedModule_0", "Torch-Compiled Region: 0/0")])
def test_equal_calls_within_a_step_have_weights_of_their_own(tmp_path, around):
    "Without modules, and in the one module that torch.compile leaves; what is not weights is at most 12 MB."
    events = layers(24) + [event("python_function", f"nn.Module: {a}", -10, 5000) for a in around]
    assert 24 * weight <= main_memory(read_trace(written(tmp_path, events), peaks=cached)) <= 24 * (weight + rest)

def test_equal_calls_of_two_steps_have_the_same_weight(tmp_path):
    "One product of 29 MB in each of two steps: in a cache of 50 MB from the second time on, in a window that repeats."
    steps = [event("user_annotation", f"ProfilerStep#{k}", 200 * k - 10, 190) for k in (0, 1)]
    both = written(tmp_path, [*steps, *layers(1), *layers(1, at=200.0)])
    assert main_memory(read_trace(both, peaks=cached)) == 0
    # two layers of one step
    assert main_memory(read_trace(written(tmp_path, layers(2)), peaks=cached)) >= 2 * weight

def test_a_loop_that_nothing_marks_reads_one_weight(tmp_path):
    """100 products of [1, 2048] with [2048, 2048] in 1 µs each: main memory moves 3 MB in that time, and the
    weight has 8.4."""
    dims, types = [[1, 2048], [2048, 2048]], ["c10::BFloat16"] * 2
    def loop(us):
        def one(ts, k):
            return [operator("aten::mm", ts, 4, dims, types), launch(ts + 1, k), kernel("gemv", ts + 5, us, k)]
        return read_trace(written(tmp_path, [e for k in range(100) for e in one(100.0 * k, k + 1)]), peaks=cached)
    [row] = [p for p in loop(1).points if p.flops]
    assert row.memory_level == "L2" and not row.above_roof
    assert row.utilization_pct == pytest.approx(100 * 2048 * 2048 * 2 / 1e13 / 1e-6, rel=0.01)
    # 15 MB in each: nothing says that it is one
    assert main_memory(loop(5), "mm 1×2048 2048×2048") >= 100 * 2048 * 2048 * 2

@pytest.mark.parametrize("us, least, most", [(1, 0, 0), (15, weight, weight + rest)])
def test_calls_of_unknown_bytes_empty_the_caches_by_what_their_time_allows(tmp_path, us, least, most):
    "In 1 µs main memory moves 3 MB, which leave the 30 MB of the product where they are; in 15 µs 45 MB."
    def unknown(ts):
        return [operator("my::op", ts + 60, 9, [], []), launch(ts + 61, int(ts) + 50),
                kernel("mine", ts + 70, us, int(ts) + 50)]
    assert least <= main_memory(read_trace(written(tmp_path, layers(1, unknown)), peaks=cached)) <= most

def test_a_copy_takes_the_room_that_it_moved(tmp_path):
    def copied(nbytes):
        return lambda ts: [launch(ts + 61, int(ts) + 50, "cudaMemcpyAsync"),
                           event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", ts + 70, 15, 7, device=0,
                                 correlation=int(ts) + 50, bytes=nbytes)]
    assert main_memory(read_trace(written(tmp_path, layers(1, copied(4096))), peaks=cached)) == 0
    assert main_memory(read_trace(written(tmp_path, layers(1, copied(10**9))), peaks=cached)) >= weight

def test_a_value_that_was_given_and_not_kept_is_not_taken_for_left_out():
    """Until 2023 the values of arguments are not recorded. A dtype that was given makes the result of another
    size; whether to wait does not."""
    from fasterbench.traces.trace_file import RecordedCall
    from fasterbench.traces.trace_work import figures, reasons
    def call(name, dims, types):
        return figures(RecordedCall(name, json.dumps(dims).encode(), json.dumps(types).encode(), b"", b""))
    for types in (["float", "Int", "", "", "", ""], ["float", "Scalar", "", "", "", ""]):
        assert call("aten::zeros_like", [[1000], [], [], [], [], []], types).reason == reasons["values"]
    assert call("aten::zeros_like", [[1000], [], [], [], [], []], ["float", "", "", "", "", ""]).nbytes == 4000
    assert call("aten::copy_", [[1000], [1000], []], ["float", "double", "Bool"]).nbytes == 12_000
    assert call("aten::add_", [[1000], [1000], []], ["float", "float", "Double"]).nbytes == 12_000
    attention = [[1, 2, 64, 8]] * 3 + [[], [], [], []]
    # causal or not
    types = ["c10::Half"] * 3 + ["Double", "Bool", "Bool", ""]
    assert call("aten::_scaled_dot_product_flash_attention", attention, types).reason == reasons["values"]

def test_warnings_of_operators_without_data_are_kept(capfd, recwarn):
    "C++ writes this one to the standard error by itself."
    import torch
    from fasterbench.traces.trace_work import _run_quietly
    x, w = torch.empty(1, 3, 8, 8, device="meta"), torch.empty(4, 3, 2, 2, device="meta")
    assert _run_quietly(torch.ops.aten.conv2d.padding, (x, w, None, [1, 1], "same"), {}).shape == (1, 4, 8, 8)
    assert capfd.readouterr().err == "" and not recwarn.list

@heavy_only("a process that imports torch and its compiler; test_start reads what `trace` imports")
def test_the_compiler_is_not_imported_to_read_a_trace(tmp_path):
    events = step() + [operator("aten::native_layer_norm", 15, 4, [[64, 16], [], [16], [16], []],
                                ["float", "ScalarList", "float", "float", "Scalar"],
                                **{"Concrete Inputs": ["", "[16]", "", "", "1e-05"]}), launch(16, 14),
                                kernel("norm", 28, 2, 14)]
    done = subprocess.run([sys.executable, "-c", f"""import sys
from fasterbench import read_trace
rows = read_trace({str(written(tmp_path, events, deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3")]))!r}).ops
assert len(rows) == 3 and all(p.flops for p in rows), rows
assert "torch._dynamo" not in sys.modules
import torch, torch._dynamo
assert torch.compile(lambda x: torch.true_divide(x, 3), backend="eager")(torch.ones(3)).sum() == 1"""],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

def test_every_view_works(tmp_path):
    result = read_trace(written(tmp_path, step(), deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3")]))
    result.to_html(tmp_path/"page.html"); result.to_csv(tmp_path/"rows.csv"); result.to_json(tmp_path/"result.json")
    result.to_perfetto(tmp_path/"copy.json")
    back = from_json(tmp_path/"result.json")
    assert back.breakdowns == [replace(b, source="trace.json") for b in result.breakdowns]
    assert back.points == result.points and result.plot().data
    assert len(compare(result, back).pairs) == len(result.points) and len(result.to_frame("ops")) == 2
    events = json.loads((tmp_path/"copy.json").read_text())["traceEvents"]
    args = next(e["args"] for e in events if e["name"] == "sgemm")
    assert args["roofline FLOPs"] == 2 * 64 * 32 * 16 and args["correlation"] == 11

def test_a_device_without_a_name_is_said(tmp_path):
    result = read_trace(written(tmp_path, step(), deviceProperties=[dict(id=0, name="")]))
    assert result.peaks is None and "names no device; --on NAME" in result.environment["no_roofs"]

@pytest.mark.parametrize("maker, kind", [("privateuse1", "privateuse1_kernel"), ("xpu", "kernel"),
                                         ("mtia", "mtia_ccp_events"), ("hpu", "hpu_op")])
def test_kernels_of_other_accelerators(tmp_path, maker, kind):
    events = [dict(e, cat={"kernel": kind, "cuda_runtime": f"{maker}_runtime"}.get(e["cat"], e["cat"])) for e in step()]
    result = read(tmp_path, events, deviceProperties=[dict(id=0, name="ARTEMIS")])
    assert result.breakdowns[0].parts["with FLOPs and bytes"] == pytest.approx(6e-6)
    assert result.environment["device_name"] == "ARTEMIS"

def test_the_headline_names_what_ran_longest_on_the_device(tmp_path):
    "A sampler keeps the CPU busy for 900 µs, while a graph of 30 µs runs."
    busy = [event("python_function", "nn.Module: Sampler_0", 50, 900),
            operator("aten::neg", 60, 2, [[4, 4]], ["float"]), launch(61, 30), kernel("neg", 70, 1, 30)]
    graph = [event("user_annotation", "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32)", 1000, 50),
             launch(1001, 40, "cudaGraphLaunch"), kernel("g", 1010, 30, 40)]
    assert read(tmp_path, step() + busy).model == "Net"
    assert read(tmp_path, step() + busy + graph).model == "execute_32_context_0_generation_32"

def test_rows_outside_modules_are_told_apart(tmp_path, monkeypatch, capsys):
    "In 80 columns none of their names looks like another."
    events = [*step(), launch(23, 20, "cudaGraphLaunch"), kernel("g1", 28, 1, 20), kernel("early", 0, 3, 99),
              launch(25, 22), kernel("Memcpy DtoH (Device -> Pageable)", 33, 2, 22, "gpu_memcpy")]
    result = read(tmp_path, events)
    assert {"(graph launch)", "(launched outside the window)", "(memcpy and memset)"} <= {p.name for p in result.points}
    monkeypatch.setenv("COLUMNS", "80")
    result.summary()
    names = [line[:20].split("  ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("(")]
    assert len(set(names)) == len(names) == 4, names

def test_devices(tmp_path):
    unknown = written(tmp_path, step(), "a.json", deviceProperties=[dict(id=0, name="Abacus 3")])
    assert "--on NAME names it" in read_trace(unknown).render()
    # an AMD process sees its device under another number than the properties
    events = [dict(e, args=e["args"] | dict(device=9)) if e["cat"] == "kernel" else e for e in step()]
    amd = "AMD Instinct MI300X VF"
    result = read_trace(written(tmp_path, events, "b.json", deviceProperties=[dict(id=0, name=amd)]))
    assert result.environment["device_name"] == amd
    with pytest.raises(ValueError, match="2 devices"): read_trace([unknown, tmp_path/"b.json"])

# Bad input

@pytest.mark.parametrize("content, says", [
    (b"", "it is empty"), (b"   \n", "no JSON"), (b"hello", "no JSON"), (b'{"a": 1}', "no JSON"),
    (b"[]", "no traceEvents"), (b'{"traceEvents": []}', "no traceEvents"),
    (b'{"traceEvents": 7}', "no JSON"), (b'{"traceEvents": [{"ph": "X"', "no JSON"),
    (b"\x1f\x8b\x08\x00garbage", "damaged archive"), (b'[[[[' * 100_000, "cannot be read"),
    (b"\x00" * 1000, "no JSON"), (b'{"traceEvents": [{"ph":"M","name":"x"}]}', "no operators and no GPU kernels"),
])
def test_what_is_no_trace_is_refused_in_one_sentence(tmp_path, content, says):
    (tmp_path/"bad.json").write_bytes(content)
    with pytest.raises(ValueError, match=says) as error: read_trace(tmp_path/"bad.json")
    assert "bad.json" in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 600

def test_a_gzip_that_is_cut_off_is_refused(tmp_path):
    whole = written(tmp_path, step() * 200, "whole.json.gz").read_bytes()
    for size in (1, 2, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path/"cut.json.gz").write_bytes(whole[:size])
        with pytest.raises(ValueError, match="cannot be read"): read_trace(tmp_path/"cut.json.gz")

# What real tools write that is not quite JSON: the name of a Python function as it is, arguments, the end of the file.
as_they_are = {
    "windows": r"C:\Users\me\project\train.py(3): f", "escapes": r"C:\temp\new\bar.py(3): f",
    "no unicode": r"C:\users\u12\x.py",
    "ends in a backslash": "C:\\dir\\", "share": r"\\server\share\x.py", "half escaped": r"C:\\ok\Users\x.py",
    "quoted": '"f"',
    "quotes": 'f("x", 1)', "two quotes": 'f("x", "y")', "a dict": 'd{"a": "b"}', "a list": 'g(["a", "b"])',
    "control": "a\nb\tc\x01\x1b[31m",
    "nothing": "a\x00b", "plain": "train.py(3): f"}
arguments = {"numbers": ', "a": NaN, "b": -Infinity, "c": nan, "d": -nan(ind), "e": 1.#INF, "f": -1.#IND, "g": inf',
             "comma": ","}
ends = {"": ",\n]}", "object": "\n],}", "list": "\n]", "whole": "]}", "tail": ',\n], "traceName": "C:\\Users\\x.json"}'}
cuts = {"event": "", "comma": ",\n", "half": ',\n{"ph": "X", "cat": "kernel", "name": "half", "ts": 300, "dur": 5',
        "name": ',\n{"ph": "X", "cat": "kernel", "name": "ha',
        "list": ',\n{"ph": "X", "cat": "kernel", "ts": 300, "dur": 5, "args": {"grid": [1, 2]'}

def not_quite_json(name="f", more="", end="]}", mark=""):
    "A product of 64 x 64 x 64 in 50 us, with a Python function before and after its operator."
    def line(cat, name, ts, dur, args, tid=1):
        head = f'"ph": "X", "cat": "{cat}", "name": "{name}", "pid": 1, "tid": {tid}, "ts": {ts}, "dur": {dur}'
        return f'{{{head}, "args": {{{args}{more}}}}}'
    frame = line("python_function", name, 90, 40, '"Python id": 3')
    events = [frame, line("cpu_op", "aten::mm", 100, 8,
                          '"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]'), frame,
              line("cuda_runtime", "cudaLaunchKernel", 102, 3, '"correlation": 1'), frame,
              line("kernel", "sgemm", 200, 50, '"correlation": 1, "device": 0', 7)]
    devices = json.dumps([dict(id=0, name="NVIDIA H100 80GB HBM3")])
    return f'{mark}{{"deviceProperties": {devices}, "traceEvents": [\n' + ",\n".join(events) + end

@pytest.mark.parametrize("block", [50, 400, 1 << 22])
@pytest.mark.parametrize("text, cut", [
    *(pytest.param(not_quite_json(name), False, id=key) for key, name in as_they_are.items()),
    *(pytest.param(not_quite_json(r"C:\Users", more, mark="\ufeff"), False, id=key) for key, more in arguments.items()),
    *(pytest.param(not_quite_json('f("x")', end=end), False, id=f"end {key}") for key, end in ends.items()),
    *(pytest.param(not_quite_json(name, end=end), True, id=f"cut {key} {name}") for key, end in cuts.items()
      for name in ("f", r"C:\Users"))])
def test_what_is_not_quite_json_is_read(tmp_path, text, cut, block):
    (tmp_path/"trace.json").write_bytes(text.encode())
    trace = read_file(tmp_path/"trace.json", block=block)
    assert (trace.skipped, trace.cut, trace.device_names) == (0, cut, ["NVIDIA H100 80GB HBM3"])
    assert [r.name for r in (*trace.operators, *trace.launches, *trace.activities)] == ["aten::mm", "cudaLaunchKernel",
                                                                                        "sgemm"]
    if block < 1 << 22: return
    result = read_trace(tmp_path/"trace.json")
    assert [(p.flops, round(p.time_s * 1e6)) for p in result.ops] == [(2 * 64**3, 50)]
    said = "the file is cut off: it ends within the list of events, and what came after is missing"
    assert [n for n in result.notes if "cut off" in n] == [said] * cut

@pytest.mark.parametrize("name", in_line(["f", r"C:\Users", 'f("x")'], 'f("x")', why="another name"))
def test_a_trace_that_ends_anywhere_is_read_up_to_there_or_refused(tmp_path, name):
    "Never more than the events that are whole, and never without a word."
    text = not_quite_json(name, end="]}").encode()
    ends = [i + 1 for i in range(len(text)) if text[i:i + 2] in (b"},", b"}]") and text[i - 1:i] == b"}"][1:]
    for size in range(len(text) - 1):
        (tmp_path/"trace.json").write_bytes(text[:size])
        try: trace = read_file(tmp_path/"trace.json", block=200)
        except ValueError as error: assert "cannot be read" in str(error) and "\n" not in str(error); continue
        whole = sum(end <= size for end in ends)
        assert len(trace.operators) + len(trace.launches) + len(trace.activities) <= whole, size
        assert trace.cut or size == len(text) - 1, size

def test_damage_costs_its_event_alone(tmp_path):
    "A key without a value in the middle: the events around it are read, and one is counted as left out."
    bad = '{"ph": "X", "cat": "kernel", "name": "x", "ts": , "dur": 1},\n'
    head, event, rest = not_quite_json().partition('{"ph": "X", "cat": "cuda_runtime"')
    (tmp_path/"trace.json").write_text(head + bad + event + rest)
    result = read_trace(tmp_path/"trace.json")
    assert [(p.flops, round(p.time_s * 1e6)) for p in result.ops] == [(2 * 64**3, 50)]
    assert "1 events could not be read, and are left out" in result.notes

@pytest.mark.parametrize("name, text", [(f"{key}.json", not_quite_json(value)) for key, value in as_they_are.items()] +
                         [("cut.json", not_quite_json(end=""))])
def test_a_copy_for_perfetto_keeps_what_was_read(tmp_path, name, text):
    (tmp_path/name).write_bytes(text.encode())
    write_perfetto(tmp_path/name, tmp_path/"copy.json", roofs)
    copy = json.loads((tmp_path/"copy.json").read_text())
    assert copy["deviceProperties"] == [dict(id=0, name="NVIDIA H100 80GB HBM3")]
    assert [e["args"]["roofline FLOPs"] for e in copy["traceEvents"] if e.get("name") == "sgemm"] == [2 * 64**3]
    frames = [e["name"] for e in copy["traceEvents"] if e.get("cat") == "python_function"]
    # every backslash there is an escape of JSON: a tab, a line, a backspace
    valid = name in ("escapes.json", "cut.json")
    assert valid or frames == [as_they_are[name[:-5]]] * 3

def test_a_copy_for_perfetto_is_streamed(tmp_path, monkeypatch):
    "Of a trace of 300 blocks, no more than a few pieces are held at once."
    def held(n):
        events = [e for i in range(n) for e in (dict(e, ts=e["ts"] + 100 * i) for e in step())]
        path = written(tmp_path, events, deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3")])
        texts = perfetto._copy(plain_pieces(Source(str(path)), block=1 << 14), {}, [])
        tracemalloc.start()
        size = sum(map(len, texts))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert size > 0.8 * path.stat().st_size         # spaces between fields are not kept
        return peak, path.stat().st_size
    (small_peak, small), (large_peak, large) = held(100), held(3000)
    assert large > 25 * small and large_peak < 1.5 * small_peak and large_peak < large / 10

def strangely(folder, name):
    "A trace that is not quite JSON, or lies in an archive."
    good = json.dumps(dict(traceEvents=step(), deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3")]))
    texts = {"latin1.json": good.encode().replace(b"sgemm", b"sgemm\xe9"),
             "surrogate.json": good.replace("sgemm", "\\ud800x").encode(), "bom.json": b"\xef\xbb\xbf" + good.encode(),
             "nan.json": good.replace('"correlation": 11', '"occupancy": NaN, "sum": 1e999, '
                                      f'"count": {"1234567890" * 3}, "correlation": 11').encode(),
             "list.json": json.dumps(step()).encode(),
             "odd.json": json.dumps([*step(), 7, None, dict(ph="X", cat="kernel", name=["a"], ts=1, dur=1,
                                                            args=dict(correlation={})),
                                                            dict(ph="X", ts=True, args=dict(correlation=[]))]).encode()}
    path = Path(folder)/name
    if name in texts: path.write_bytes(texts[name])
    else:
        member = written(folder, step(), "rank0.json.gz" if "packed" in name else "rank0.json",
                         deviceProperties=[dict(id=0, name="NVIDIA H100 80GB HBM3")])
        with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as archive:
            archive.add(member, f"ranks: all/{member.name}")
        member.unlink()
    return path

@pytest.mark.parametrize("name", ("latin1.json", "surrogate.json", "bom.json", "nan.json", "list.json", "odd.json",
                                  "one.tar", "one.tar.gz", "packed.tar.gz"))
def test_what_is_read_is_written_to_perfetto(tmp_path, name):
    result = read_trace(strangely(tmp_path, name), on="NVIDIA H100 80GB HBM3")
    result.to_perfetto(tmp_path/"copy.json.gz")
    copy = json.loads(gzip.decompress((tmp_path/"copy.json.gz").read_bytes()))
    [args] = [e["args"] for e in copy["traceEvents"] if isinstance(e, dict) and isinstance(e.get("args"), dict)
              and e["args"].get("roofline FLOPs") == 2 * 64 * 32 * 16]
    assert args["correlation"] == 11 and args["roofline utilization (%)"] > 0
    again = read_trace(tmp_path/"copy.json.gz", on="NVIDIA H100 80GB HBM3")
    assert [(p.name, p.time_s, p.flops) for p in again.ops] == [(p.name, p.time_s, p.flops) for p in result.ops]

@pytest.mark.parametrize("keep", (0.2, 0.5, 0.9))
def test_an_archive_that_is_cut_off_is_refused_in_one_sentence(tmp_path, keep):
    chance = random.Random(1)
    (tmp_path/"rank0.json").write_text(json.dumps(dict(traceEvents=[dict(e, name=str(chance.random()))
                                                                    for e in step() * 200])))
    with tarfile.open(tmp_path/"cut.tar.gz", "w:gz") as archive: archive.add(tmp_path/"rank0.json", "rank0.json")
    text = (tmp_path/"cut.tar.gz").read_bytes()
    (tmp_path/"cut.tar.gz").write_bytes(text[:int(keep * len(text))])
    with pytest.raises(ValueError, match="damaged archive") as error: read_trace(tmp_path/"cut.tar.gz")
    assert "cut.tar.gz" in str(error.value) and "\n" not in str(error.value)

@pytest.mark.parametrize("unit, says", [(b" ", "hold no event"), (b'{"ph":"M","name":"a"},', "200 times its size")])
@pytest.mark.parametrize("name", in_line(("bomb.json.gz", "bomb.tar.gz", "packed.tar"), "bomb.tar.gz"))
def test_what_unpacks_without_end_is_refused_early(tmp_path, monkeypatch, unit, says, name):
    "Of a text of 32 MB in 0.05 MB at most a half is unpacked, where 1 MB is the bound."
    import io
    from fasterbench.traces import trace_file
    monkeypatch.setattr(trace_file, "small", 1 << 20); monkeypatch.setattr(trace_file, "most_between", 1 << 20)
    monkeypatch.setattr(trace_file.read_file, "__defaults__", (1 << 20,))
    unpacked, whole = [0], trace_file._Unpacked.read
    def read(self, size=-1):
        found = whole(self, size)
        unpacked[0] += len(found)
        return found
    monkeypatch.setattr(trace_file._Unpacked, "read", read)
    text = b'{"traceEvents":[' + unit * ((1 << 25) // len(unit)) + b'{"ph":"M","name":"a"}]}'
    packed = gzip.compress(text, 9)
    if name == "bomb.json.gz": (tmp_path/name).write_bytes(packed)
    else:
        member, inside = ("a.json.gz", packed) if name == "packed.tar" else ("a.json", text)
        with tarfile.open(tmp_path/name, "w:gz" if name.endswith("gz") else "w") as archive:
            info = tarfile.TarInfo(member); info.size = len(inside)
            archive.addfile(info, io.BytesIO(inside))
    with pytest.raises(ValueError, match="200 times its size" if name == "bomb.tar.gz" else says):
        read_trace(tmp_path/name)
    assert 0 < unpacked[0] <= 1 << 24

def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(FileNotFoundError): read_trace(tmp_path/"none.json")
    with pytest.raises(ValueError, match="folder without a trace"): read_trace(tmp_path)
    with pytest.raises(ValueError, match="no GPU kernels"):
        read_trace(written(tmp_path, [e for e in step() if e["cat"] != "kernel"]))
    with pytest.raises(ValueError, match="by='layer'"): read_trace(tmp_path, by="layer")
    with pytest.raises(TypeError, match="HardwarePeaks"): read_trace(tmp_path, peaks=7)
    for e in (bare := step()): e["args"].pop("Input Dims", None), e["args"].pop("Input type", None)
    result = read(tmp_path, bare)
    assert result.breakdowns[0].parts["no shapes recorded"] == pytest.approx(6e-6)
    assert any("record_shapes=True" in n for n in result.notes)

@pytest.mark.parametrize("dur", "NaN Infinity -Infinity -3 null 1e999 1e30".split())
def test_events_without_a_usable_duration_are_left_out_and_counted(tmp_path, dur):
    """Of the product's kernel: the activation is what is left. Of the only kernel: there is nothing to be seen,
    and it is said why."""
    def broken(events): return [dict(e, dur=12345) if e["name"] == "sgemm" else e for e in events]
    def read_broken(events):
        (tmp_path/"trace.json").write_text(json.dumps(dict(traceEvents=broken(events))).replace("12345", dur))
        return read_trace(tmp_path/"trace.json", peaks=roofs)
    left = "1 event without a usable duration (not from 0 to 2⁶³ ns) was left out"
    result = read_broken(step())
    assert [k.name for k in result.kernels] == ["relu_kernel"] and left in result.notes
    with pytest.raises(ValueError, match="no GPU kernels with a usable duration: 1 event without"):
        read_broken([e for e in step() if e["name"] != "relu_kernel"])
    assert not any("usable" in n for n in read(tmp_path, step()).notes)
    on_cpu = [dict(e, dur=12345) if e["name"] == "aten::mm" else e for e in step()
              if e["cat"] in ("cpu_op", "python_function")]
    result = read_broken(on_cpu)
    assert [k.name for k in result.kernels] == ["aten::relu"] and left in result.notes

def test_a_trace_without_roofs_says_how_a_trace_gets_them(tmp_path):
    result = read_trace(written(tmp_path, step()))
    result.to_html(tmp_path/"page.html")
    page = (tmp_path/"page.html").read_text()
    no_roofs, = (line for line in result.text().splitlines() if "no roofs" in line)
    assert "--on" in no_roofs and "ncu" not in result.text()
    assert all(note in page.replace("&#39;", "'").replace("\u00a0", " ") for note in (no_roofs, *result.caveats))

hostile = ["__import__('os').system('touch HERE')", "'); DROP", "\u0000", "</script>", "\ud800", "a" * 100_000, "{}",
           "[[[[", "1e999", "-1", "0x10", "(lambda: 1)()", "nn.Module: ", "\x1b[31m", "🦀" * 50]
strange = [None, True, -1, 2**70, 1e308, -1e308, "x", [], {}, [[]], [-1], [2**62, 2**62], ["a"], [[1, "b"]], {"a": 1},
           0.5]

@pytest.mark.parametrize("seed", in_line(range(40), *range(8), why="more damage by chance"))
def test_hostile_traces_are_read_or_refused(tmp_path, seed, monkeypatch):
    "Strange values in every place: an error of a sentence, or an breakdown that adds up. Nothing of it runs."
    chance = random.Random(seed)
    def pick(values): return copy.deepcopy(chance.choice(values))
    monkeypatch.chdir(tmp_path)
    events = [e for _ in range(3) for e in step()]
    for e in events:
        for k in list(e):
            if chance.random() < 0.15: e[k] = pick(strange + hostile)
        if isinstance(e.get("args"), dict):
            for k in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs", "correlation", "External id",
                      "Sequence number", "Fwd thread id", "device", "stream"):
                if chance.random() < 0.25: e["args"][k] = pick(strange + hostile)
                elif chance.random() < 0.2: e["args"][k] = [pick(strange + hostile) for _ in range(3)]
    (tmp_path/"hostile.json").write_text(json.dumps(dict(traceEvents=events, deviceProperties=pick(strange),
                                                         distributedInfo=pick(strange))))
    before = sorted(p.name for p in tmp_path.iterdir())
    try: result = read_trace(tmp_path/"hostile.json", peaks=roofs)
    except ValueError as error: assert "\n" not in str(error)
    else:
        for a in result.breakdowns:
            assert abs(sum(a.parts.values()) - a.span_s) <= 1e-3 * a.span_s and min(a.parts.values()) >= 0
        result.to_json(tmp_path/"result.json")
        if seed % 10 == 0: result.to_html(tmp_path/"page.html")
        for name in ("result.json", "page.html"): (tmp_path/name).unlink(missing_ok=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == before

@pytest.mark.parametrize("seed", range(20))
def test_any_times_add_up(tmp_path, seed):
    """Kernels that overlap in every way, on two devices, with times before and after each other: the parts sum
    to the span."""
    chance = random.Random(seed)
    events = []
    for n in range(60):
        start = chance.uniform(-1e3, 1e3)
        events += [operator("aten::relu", start, chance.uniform(0, 50), [[4, 4]], ["float"]),
                   launch(start + chance.uniform(-5, 60), n),
                   dict(kernel(chance.choice(["k", "nccl", "Memcpy HtoD"]), start + chance.uniform(-100, 100),
                               chance.choice([0, 1, chance.uniform(0, 300), -4]), n,
                               chance.choice(["kernel", "gpu_memcpy", "gpu_memset"])), tid=chance.randrange(3))]
        events[-1]["args"]["device"] = chance.randrange(2)
    result = read(tmp_path, events)
    assert len(result.breakdowns) == 2 and (result.notes or seed >= 0)
    for a in result.breakdowns: assert sum(a.parts.values()) == pytest.approx(a.span_s, rel=1e-9)

def test_ranks_through_an_executor(tmp_path):
    paths = []
    for rank in range(6):
        events = step()
        next(e for e in events if e["name"] == "sgemm")["dur"] = 3 + rank / 10
        paths.append(written(tmp_path, events, f"rank{rank}.json", distributedInfo=dict(rank=rank, world_size=6)))
    with ThreadPoolExecutor(3) as pool: result = read_trace(paths, peaks=roofs, executor=pool)
    assert by_name(result)["Net_0.Linear_0"].time_s == pytest.approx(3.25e-6)
    assert [a.rank for a in result.breakdowns] == list(range(6))
    assert by_name(result)["Net_0.Linear_0"].time_iqr_s == pytest.approx(0.25e-6)
    assert len(read_trace(paths, by="rank", peaks=roofs).points) == 6

def test_on_trace_ready_writes_every_cycle(tmp_path):
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule
    with pytest.raises(ValueError, match=".html"): on_trace_ready("report.txt")
    handler = on_trace_ready(tmp_path/"report.json", peaks=roofs)
    x = torch.ones(32, 32)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True,
                 schedule=schedule(wait=0, warmup=1, active=1, repeat=2), on_trace_ready=handler) as prof:
        for _ in range(4): x @ x; prof.step()
    assert from_json(tmp_path/"report.json").points and from_json(tmp_path/"report.2.json").points

def test_a_trace_of_this_machine_has_the_work_that_is_counted(tmp_path):
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile
    from fasterbench import count_work, ranges
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
                             nn.Linear(8 * 16 * 16, 10)).eval(), torch.ones(2, 3, 16, 16)
    with torch.no_grad(), ranges(model), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        model(x)
    prof.export_chrome_trace(str(tmp_path/"cpu.json"))
    with torch.no_grad(): work = count_work(model, x).by_module()
    rows = by_name(read_trace(tmp_path/"cpu.json", peaks=roofs))
    for name in ("0", "1", "3"):
        assert (rows[name].flops, rows[name].eager_bytes) == (work[name].flops, work[name].eager_bytes), name

# Traces of real GPUs

def traces(): return sorted(real.glob("*.json.gz")) if real.is_dir() else []
in_the_line = ("h100_vit_base_infer", "b200_gptoss_vllm_tp8_rank0", "mi300x_norm_layers_train",
               "v100_resnet50_2021_schema", "a100_alexnet_2023_wrong_external_id",
               "mi210_gpu_only", "a100_alexnet_cupti_counters")

@needs_real
@pytest.mark.parametrize("name", in_line([p.name.removesuffix(".json.gz") for p in traces()], *in_the_line,
                                         why="a trace of another device or program"))
def test_the_breakdown_adds_up(name):
    path = real/f"{name}.json.gz"
    if "cupti_counters" in name:
        with pytest.raises(ValueError, match="no GPU kernels"): read_trace(path)
        return
    for a in read_trace(path).breakdowns: assert abs(sum(a.parts.values()) / a.span_s - 1) < 1e-3

@needs_real
@pytest.mark.parametrize("name, least", [("h100_vit_base_infer", 0.97), ("mi300x_vit_base_infer", 0.97),
                                         ("mi300x_norm_layers_train", 0.97), ("mi300x_resnet_ddp8_train_rank0", 0.97),
                                         ("h100_qwen1.5_0.5b_prefill", 0.95)])
def test_linked_time_has_figures(name, least):
    [breakdown] = read_trace(real/f"{name}.json.gz").breakdowns
    assert breakdown.parts["with FLOPs and bytes"] / breakdown.linked_s >= least

@needs_real
@pytest.mark.parametrize("name", ("mi210_gpu_only", "a100_resnet_ddp2_rank0_nccl",
                                  "a100_alexnet_2023_wrong_external_id"))
@pytest.mark.parametrize("by", (None, "collective", "rank"))
def test_unknown_work_is_no_zero(name, by):
    result = read_trace(real/f"{name}.json.gz", by=by)
    first, second, _ = headline(result)
    assert first.endswith(" · ? FLOP/s") and "forward · " not in first, first
    assert result.program.flops is None and all(s.flops is None for s in result.steps)
    assert "0 at the roof" not in second and "?" not in second, second

@needs_real
@pytest.mark.parametrize("name", in_line(("h100_vit_base_infer", "mi300x_vit_base_infer", "h100_qwen1.5_0.5b_prefill",
                                          "mi300x_resnet_ddp8_train_rank0", "b200_gptoss_vllm_tp8_rank0"),
                                         "h100_vit_base_infer", why="another trace"))
def test_without_its_module_events_a_trace_says_the_same_of_operators(tmp_path, name):
    data = json.loads(gzip.open(real/f"{name}.json.gz").read())
    bare = [e for e in data["traceEvents"] if not str(e.get("name", "")).startswith("nn.Module: ")]
    assert len(bare) < len(data["traceEvents"])
    (tmp_path/"bare.json").write_text(json.dumps(data | dict(traceEvents=bare)))
    def summed(r):
        return {(p.name, p.operator): [sum(q.roof_time_s for q in same), sum(q.time_s for q in same)] for p in r.ops
                if p.roof_time_s is not None
                        for same in [[q for q in r.ops if (q.name, q.operator) == (p.name, p.operator)
                                      and q.roof_time_s is not None]]}
    whole, without = summed(read_trace(real/f"{name}.json.gz")), summed(read_trace(tmp_path/"bare.json"))
    def share(sums, k): return sums[k][0] / sums[k][1] if sums[k][1] else 0
    assert whole.keys() == without.keys() and whole
    assert {k: (share(whole, k), share(without, k)) for k in whole
            if share(without, k) != pytest.approx(share(whole, k), rel=0.1)} == {}

@pytest.mark.parametrize("by", ["module", "operator", "kernel", "collective", "rank"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_terms_of_the_headline_are_those_of_the_program(tmp_path, by, ranks):
    """Of 40 µs: 4 and 2 of layers whose 14 336 and 8192 B need 0.14 and 0.08 at 100 GB/s, 4 of communication, 1
    unknown, 29 idle; of two ranks their mean."""
    events = step() + [launch(13, 13), kernel("ncclDevKernel_AllReduce_Sum_f32", 28, 4, 13), launch(14, 14),
                       kernel("own", 33, 1, 14)]
    paths = [written(tmp_path, [dict(e, ts=e["ts"] + k) for e in events], f"{k}.json",
                     distributedInfo=dict(rank=k, world_size=ranks)) for k in range(ranks)]
    result = read_trace(paths, by=by, peaks=roofs)
    seconds = {t.label: t.seconds for t in terms(divided(result))}
    assert seconds == pytest.approx({"memory": 0.22528e-6, "lost below the roof": 5.77472e-6,
                                     "with unknown FLOPs": 1e-6, "idle": 29e-6,
                                     "waiting for communication": 4e-6})
    result.to_json(tmp_path/"saved.json")
    assert headline(from_json(tmp_path/"saved.json")) == headline(result)

def test_a_collective_that_says_no_group_has_an_unknown_size(tmp_path):
    """A kernel of an engine's own, of one rank of eight: how many take part, who waits and who is last are
    unknown, also in JSON."""
    events = step() + [launch(13, 13), kernel("cross_device_reduce_1stage", 28, 4, 13)]
    for world, said in ((8, "1 of ? 1 ≤ 4.00 µs"), (1, "1 of 1 1 4.00 µs 0 s 0")):
        result = read(tmp_path, events, distributedInfo=dict(rank=0, world_size=world))
        line = next(l for l in result.text().splitlines() if l.startswith("all_reduce"))
        assert line.split() == f"all_reduce {said}".split(), line
        result.to_json(tmp_path/"saved.json")
        [saved] = json.loads((tmp_path/"saved.json").read_text())["collectives"]
        assert saved["group_size"] == {8: None, 1: 1}[world]
        assert from_json(tmp_path/"saved.json").collectives == result.collectives

def test_what_a_collective_does_not_say_is_no_number_in_its_name(tmp_path):
    said = {"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"}
    rows = [read_trace(written(tmp_path, step() + [launch(13, 13),
                                                   event("kernel", "ncclDevKernel", 28, 4, 7, correlation=13, device=0,
                                                         **args)]), by="collective").points
            for args in (said, said | {"Group size": 2}, {"Collective name": "allreduce"})]
    assert [p.name for of in rows for p in of] == ["all_reduce 32.0 B, ? ranks", "all_reduce 32.0 B, 2 ranks",
                                                   "all_reduce ?, ? ranks"]

def test_the_work_of_a_communication_kernel_is_unknown(tmp_path):
    "What it adds and moves is not recorded: it has no bound and no gap."
    events = step() + [launch(13, 13), kernel("ncclDevKernel_AllReduce_Sum_f32", 28, 4, 13)]
    nccl = by_name(read(tmp_path, events, by="kernel"))["ncclDevKernel_AllReduce_Sum_f32"]
    assert (nccl.bound, nccl.flops, nccl.bytes_moved, nccl.utilization_pct, nccl.potential_s) == ("undefined", None,
                                                                                                  None, None, None)

@pytest.mark.parametrize("by, what", [("operator", "operators"), ("kernel", "kernels"), ("rank", "ranks"),
                                      ("collective", "collectives")])
def test_rows_of_different_kinds_are_not_matched(tmp_path, by, what):
    """Modules beside rows of another kind: the idle time alone is the same thing on both sides, and collectives
    are none of the modules."""
    events = step() + [launch(13, 13), kernel("ncclDevKernel_AllReduce_Sum_f32", 28, 4, 13)]
    other, modules = (read(tmp_path, events, by=kind) for kind in (by, "module"))
    found = compare(other, modules)
    assert found.differences[0] == f"rows of different kinds are not matched: {what} → modules"
    assert [q.name for q in found.pairs if q.side == "both"] == ["(idle)"] * (by == "operator")
    assert compare(modules, modules).differences == []
    assert compare(other, modules,
                   other).differences[0] == f"rows of different kinds are not matched: {what}, modules, {what}"

def test_rows_of_one_kind_that_are_no_modules_are_matched_by_name(tmp_path):
    "Kernels of two devices have other names: none is taken for a module of another name."
    renamed = [dict(e, name={"sgemm": "Cijk", "relu_kernel": "vectorized"}.get(e["name"], e["name"])) for e in step()]
    found = compare(*(read(tmp_path, e, f"{i}.json", by="kernel") for i,
                      e in enumerate((step(), renamed))))
    assert [q.side for q in found.pairs] == ["only before"] * 2 + ["only after"] * 2
    assert not any("match" in line for line in found.differences)

@needs_real
def test_a_trace_with_checkpointing_is_saved_and_read(tmp_path):
    "Its forwards that run again have a phase of their own."
    result = read_trace(real/"mi300x_resnet_ddp8_train_rank0.json.gz")
    result.to_json(tmp_path/"ddp.json")
    assert from_json(tmp_path/"ddp.json").points == result.points and "recompute" in {p.phase for p in result.points}

@needs_real
def test_a_vit_on_two_gpus():
    """ViT-B/16, 4 images: 16.87 GMACs of layers without attention's products, a row per layer on both, and the
    same work."""
    h100, mi300x = (read_trace(real/f"{n}_vit_base_infer.json.gz") for n in ("h100", "mi300x"))
    a, b = by_name(h100), by_name(mi300x)
    same = [n for n in a if n in b and a[n].flops is not None]
    assert len(same) == len(a) and all(a[n].flops == b[n].flops for n in same if n != "(idle)")
    assert h100.model == "ViTModel"
    linear = [p for p in h100.points if p.type == "Linear"]
    assert sum(p.contraction_flops for p in linear) == 2 * 4 * (197 * 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 768 * 768)
    assert not [p for p in (*h100.ops, *mi300x.ops) if p.above_roof]

@pytest.mark.skipif(not (shared/"data/other_accelerators").is_dir(),
                    reason="the traces of other accelerators are not there")
def test_a_trace_of_mtia():
    "DMA is copies, waiting for events is no work; the breakdown adds up."
    result = read_trace(shared/"data/other_accelerators/mtia_inference.json.gz")
    [breakdown] = result.breakdowns
    assert result.environment["device_name"] == "ARTEMIS"
    assert sum(breakdown.parts.values()) == pytest.approx(breakdown.span_s, rel=1e-9)
    assert {k.name for k in result.kernels} >= {"pe_exe", "merge", "remote"}
    assert not any(k.name.startswith("event_") for k in result.kernels)

@pytest.mark.parametrize("by", ("rank", "operator", "kernel", None))
def test_the_time_of_several_ranks_is_divided(tmp_path, by):
    "Two steps of 40 µs: 40 on average, also of rows by rank."
    paths = [written(tmp_path, [dict(e, ts=e["ts"] + k) for e in step()], f"{k}.json",
                     distributedInfo=dict(rank=k, world_size=2)) for k in (0, 1)]
    result = read_trace(paths, by=by, peaks=roofs)
    parts = divided(result)
    assert result.program.time_s == parts.end_to_end_s == pytest.approx(40e-6)
    assert result.model == "Net, mean of 2 ranks"
    assert headline(result)[0].startswith("Net, mean of 2 ranks") and "more than the whole" not in headline(result)[1]
    assert by == "kernel" or parts.difference_s == pytest.approx(0, abs=1e-12)

@needs_real
def test_eight_ranks():
    result = read_trace(real/"v100_dlrm_8ranks.tar.gz")
    assert sorted(a.rank for a in result.breakdowns) == list(range(8)) and result.environment["ranks"] == 8
    for a in result.breakdowns: assert sum(a.parts.values()) == pytest.approx(a.span_s, rel=1e-9)
    by_rank = read_trace(real/"v100_dlrm_8ranks.tar.gz", by="rank")
    for time_s in (sum(p.time_s for p in by_rank.points) / 8, result.program.time_s):
        assert by_rank.program.time_s == pytest.approx(time_s)

@pytest.mark.parametrize("name, mask", [("flash_attention", []), ("efficient_attention", [None, True]),
                                        ("cudnn_attention", [None, True]), ("fused_attention_overrideable", [None])])
@pytest.mark.filterwarnings("ignore")
def test_the_backward_of_an_attention_has_its_work(tmp_path, name, mask):
    "2 heads of 16 channels with 64 tokens: 64·65/2 pairs are seen, and 5 products of them."
    import torch
    from fasterbench.traces.trace_file import read_file
    from fasterbench.traces.trace_work import figures
    name = f"_scaled_dot_product_{name}"
    q = torch.randn(1, 2, 64, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as prof:
        getattr(torch.ops.aten, name)(q, q, q, *mask, 0.0, True)[0].sum().backward()
    prof.export_chrome_trace(str(tmp_path/"trace.json"))
    calls = read_file(str(tmp_path/"trace.json")).calls
    found = figures(next(c for c in calls if c.operator == f"aten::{name}_backward"))
    assert found.contraction == 5 * 2 * (64 * 65 // 2) * 2 * 16 == 665_600 and not found.reason

parts_of_a_tensor = dict(
    embedding="F.embedding(i, w)", index_select="w.index_select(1, i)",
    selected_into="torch.index_select(w, 0, i, out=torch.empty(4, 16))", gather="w.gather(1, few)", take="w.take(i)",
    along="torch.take_along_dim(w, wide, 0)",
    index_add="w.clone().index_add_(1, i, torch.ones(50, 4))",
    index_copy="w.clone().index_copy_(0, i, torch.ones(4, 16))", index_fill="w.clone().index_fill_(1, i, 2.0)",
    scatter="w.clone().scatter_(0, few, torch.ones(9, 9))",
    scatter_value="w.clone().scatter_(0, few, 1.0)", scatter_add="w.clone().scatter_add_(0, few, torch.ones(9, 9))",
    put="w.clone().put_(i, torch.ones(4))", bag="F.embedding_bag(i[None], w)", slices="torch.slice_copy(w, 0, 2, 3)",
    narrow="torch.narrow_copy(w, 0, 2, 3)", select="torch.select_copy(w, 0, 2)",
    strided="torch.as_strided_copy(w, [2], [1])", diagonal="torch.diagonal_copy(w)", zeros="w.new_zeros([8])",
    like="torch.zeros_like(w)",
    stride="F.conv2d(image, torch.ones(4, 4, 1, 1), stride=4)",
    transposed="F.conv_transpose2d(image, torch.ones(4, 4, 2, 2), stride=4)", gaps="F.max_pool2d(image, 1, 4)",
    mean_gaps="F.avg_pool2d(image, 1, 4)", adaptive="F.adaptive_avg_pool2d(image, 3)",
    shrunk="F.interpolate(image, size=(2, 2), mode='nearest')",
    bilinear="F.interpolate(image, size=(2, 2), mode='bilinear')",
    grid="F.grid_sample(image, torch.zeros(1, 1, 1, 2), align_corners=False)", columns="F.unfold(image, 1, stride=8)",
    cropped="F.pad(image, (-7, -7))", tril="torch.tril(w, -48)", trace="torch.trace(w)",
    beta="torch.addmm(w, torch.ones(50, 2), torch.ones(2, 16), beta=0)",
    nll="F.nll_loss(torch.zeros(2, 1000), i[:2], torch.ones(1000))",
    causal="F.scaled_dot_product_attention(w[None, :4], w[None], w[None], is_causal=True)",
    norm="F.batch_norm(image, torch.zeros(4), torch.ones(4), training=True)", total="w.sum(0)", softmax="w.softmax(1)",
    sort="w.sort()")

@pytest.mark.parametrize("text", parts_of_a_tensor.values(), ids=parts_of_a_tensor)
@pytest.mark.filterwarnings("ignore")
def test_the_least_of_an_operator_is_not_more_than_its_work(tmp_path, text):
    """Of every operator that is counted with its values, forward and backward: without them it is said to have
    moved less, or as much."""
    import torch, torch.nn.functional as F
    from fasterbench.traces.trace_file import read_file
    from fasterbench.traces.trace_work import figures, least_figures
    w, image = torch.ones(50, 16, requires_grad=True), torch.ones(1, 4, 16, 16, requires_grad=True)
    i = torch.tensor([3, 1, 3, 7])
    few, wide = torch.zeros(3, 4, dtype=torch.long), torch.zeros(4, 16, dtype=torch.long)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                record_shapes=True) as prof, torch.set_grad_enabled("out=" not in text):
        found = eval(text, dict(torch=torch, F=F, w=w, image=image, i=i, few=few, wide=wide))
        found = found if isinstance(found, torch.Tensor) else found[0]
        if found.requires_grad: found.sum().backward()
    prof.export_chrome_trace(str(tmp_path/"trace.json"))
    counted = [(figures(c), least_figures(c._replace(concrete=b""), 10**9, ""))
               for c in read_file(str(tmp_path/"trace.json")).calls if c.operator.startswith("aten::")]
    assert any(not f.reason for f, _ in counted)
    assert all(least is None or f.reason or least.nbytes <= f.nbytes for f, least in counted)

@pytest.mark.parametrize("inside, divided", [([], 6), ([("aten::to", [[2, 3, 5, 5]])], 6),
                                          ([("aten::to", [[2, 3, 5, 5]]), ("aten::copy_", [[2, 3, 5, 5]] * 2)], 150)])
def test_what_a_mean_expanded_is_read_once(tmp_path, inside, divided):
    """Traces of 2021 have no strides: the backward of a mean divides 6 numbers that it has expanded to 150,
    unless it copied them."""
    steps = [("aten::expand", [[2, 3, 1, 1], [], []]), *inside]
    events = [operator("MeanBackward1", 0, 90, [[2, 3, 1, 1]], ["float"]),
              *(operator(name, 1 + 10 * i, 5, dims, ["float"] * 2) for i, (name, dims) in enumerate(steps)),
              operator("aten::div", 60, 20, [[2, 3, 5, 5], []], ["float", "Int"]), launch(65, 1),
              kernel("div_kernel", 100, 10, 1)]
    row, = read(tmp_path, events).ops
    assert (row.operator, row.bytes_moved) == ("aten::div", 4 * (divided + 150))

def test_the_backward_of_a_mean_without_shapes_is_read(tmp_path):
    events = [operator("MeanBackward1", 0, 90, [], []), operator("aten::expand", 1, 5, [], []),
              operator("aten::div", 60, 20, [], []),
              launch(65, 1), kernel("div_kernel", 100, 10, 1), *step()]
    assert read(tmp_path, events).breakdowns[0].parts["no shapes recorded"] == pytest.approx(10e-6)
    wrong = [operator("MeanBackward1", 0, 90, [[2, 3]], ["float"]), operator("aten::expand", 1, 5, [[7, 1]], ["float"]),
             operator("aten::div", 60, 20, [[2, 3], []], ["float", "Int"]), launch(65, 1),
             kernel("div_kernel", 100, 10, 1)]
    assert read(tmp_path, wrong).ops[0].bytes_moved == 2 * 4 * 6

@needs_real
def test_recorded_memory_is_drawn():
    "Of an H100: the most that the [memory] events say; a trace without them has none."
    path = shared/"data/traces/h100_vit_base_infer.json.gz"
    with gzip.open(path) as f: raw = json.load(f)["traceEvents"]
    result, totals = read_trace(path), [e["args"]["Total Allocated"] for e in raw if e["name"] == "[memory]"
                                        and e["args"]["Device Type"] != 0]
    assert result.memory.peak_bytes == max(totals) and sorted(m.total for m in result.memory.timeline) == sorted(totals)
    assert result.memory.line.startswith("peak memory ≥ ") and result.memory.module
    assert [k["name"] for k in result._page()["kinds"]][-1] == "memory"
    assert read_trace(path.with_name("mi300x_torch_compile.json.gz")).memory is None
