"Any one value of a saved result is replaced by something else: either the file is refused, or every view works."
import copy, json, random
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import heavy, nightly, nightly_only
from fasterbench.roofs.place import place
from fasterbench.roofs.row import Row
from fasterbench.roofs.hardware import Ceiling, HardwarePeaks, MemoryLevel
from fasterbench.network.collectives_view import collectives_table
from fasterbench.roofs.network import Collective
from fasterbench.comparing.compare import compare
from fasterbench.work.memory import Memory, ModuleMemory, Moment
from fasterbench.views.result import Breakdown, Result, Timing, from_dict, from_json

junk = (None, "x", "", -1, 0, 1.5, 10**400, 5e-324, 1e308, 1e-100, 1e100, True, [], [1], ["x", 1], {}, dict(a=1),
        "inf", "del")

@pytest.fixture(scope="module")
def full():
    "A result that has something of everything."
    peaks = HardwarePeaks(100, 10, levels=(MemoryLevel("L2", 100, 20.0), MemoryLevel("DRAM", None, 10.0)),
                          ceilings=(Ceiling("float32", 100.0, spread=0.1),), environment=dict(device_name="A CPU"),
                          load=dict(cores=2, load_average=1.0, others=0.1), sweep=(("copy", 100, 10.0),),
                          trials=(("float32", "matmul", 100, 90.0),))
    points = [place(Row("conv", "Conv2d", 1000, 20, 20.0), peaks, share=0.8),
              place(Row("copy", "Copy", 0, 20, 4.0), peaks, share=0.16),
              place(Row("mystery", "Op", None, 20, 1.0), peaks, share=0.04),
              place(Row("count", "Add", 5, 0, 0.0), peaks)]
    program = place(Row("", "Net", 1000, 60, 25.0), peaks, shares=(("compute", 0.8), ("memory", 0.2)))
    memory = Memory(100, dict(weights=60, temporaries=40), "conv", "forward", "aten::mm",
                    [Moment("conv", "forward", "aten::mm", (60, 0, 0, 0, 0, 0, 0, 40))],
                    modules=dict(conv=ModuleMemory(0, 100, 40, 0)), start_bytes=60)
    return Result(points, peaks, memory=memory, program=program,
                  timing=Timing(25.0, 0.5, 24.9, 0.1, 20, 7, "by hand", 0.0),
                  unknown_ops={"my::op": 1}, model="Net", notes=["by hand"], steps=[program],
                  ops=[replace(points[0], operator="aten::mm")], environment=dict(device_name="A CPU", threads=2),
                  sample=[dict(name="0", shape=[1, 3], dtype="float32")], call=dict(device="cpu", steps=None),
                  settings=dict(parameters=7), breakdowns=[Breakdown(0, 25.0, dict(rows=20.0, idle=5.0), "trace")],
                  collectives=[Collective("all_reduce", "0", (0, 1), 2, 1e6, 50e-6, (40e-6, 0.0), 1, 40e-6, 0.0)])

def places(value, path=()):
    "Yield the paths of all values."
    yield path
    for k, v in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(v, (*path, k))

def ways(plain):
    """Every field with every value, as (path, value): "*" stands for the places of a list, and each value is put at
    the next of them. A row of the layers, of the operators, of a step and of the program are fields of their own."""
    fields = {}
    for path in filter(None, places(plain)):
        fields.setdefault(tuple("*" if isinstance(k, int) else k for k in path), []).append(path)
    return [(paths[i % len(paths)], other) for paths in fields.values() for i, other in enumerate(junk)]

def damaged(plain, path, other):
    "Return the file with another value at `path`; `del` removes it."
    data = copy.deepcopy(plain)
    inner = data
    for k in path[:-1]: inner = inner[k]
    if other == "del": del inner[path[-1]]
    else: inner[path[-1]] = other
    return data

def written(r):
    repr(r), str(r.timing), r.text(None, "block"), r._repr_html_(), r.to_json()
    for points in ("modules", "ops"): r.csv(points), r.to_frame(points)

def compared(r, full):
    "Comparisons with a sound result, as text."
    several = compare(full, r), compare(r, full), compare(full, r, full)
    for c in several: c.text(), c.csv()
    return several

def test_a_sound_file_is_shown(full):
    again = from_dict(json.loads(full.to_json()))
    assert again == full and "rank 1" in collectives_table(again.collectives)
    written(again), again.plot(), [c.plot() for c in compared(again, full)], again._page()

def shown(r, full, drawn):
    "Everything that a result is written as; where it has roofs and is to be `drawn`, its charts and its page too."
    written(r)
    if r.peaks is None: return                              # without roofs there is neither chart nor page
    several = compared(r, full)
    if drawn: r.plot(), [c.plot() for c in several], r._page()

def test_a_damaged_value_is_refused_or_shown(full):
    """Values by chance in fields by chance, once a week every value in every field. What is read is written and
    compared; of some fields, once a week of every one, the first that is read is drawn."""
    plain = json.loads(full.to_json())
    every = ways(plain)
    many, drawings = (len(every), len(every)) if nightly else (500, 10) if heavy else (100, 6)
    read, drawn = 0, set()
    for path, other in random.Random(15).sample(every, many):
        try: again = from_dict(damaged(plain, path, other))
        except ValueError: continue
        read += 1
        field = tuple("*" if isinstance(k, int) else k for k in path)
        try: shown(again, full, field not in drawn and len(drawn) < drawings)
        except Exception as error: raise AssertionError(f"{path} = {other!r:.40}") from error
        drawn.add(field)
    assert many / 50 < read < many / 2

def contradictions():
    """Yield (what, change, field): a change of one field that the others contradict, and the field that the message
    names."""
    def row(**values): return lambda d: d["points"][0].update(values)
    yield "more contractions than FLOPs", row(contraction_flops=1001), "points[0].contraction_flops"
    yield "levels that do not sum to the bytes", row(bytes_by_level=[
        ["L2", 5], ["DRAM", 16]]), "points[0].bytes_by_level"
    yield "intensity", row(arithmetic_intensity=51.0), "points[0].arithmetic_intensity"          # 1000 / 20 = 50
    # 1000 / 20 s = 50 FLOP/s
    yield "FLOP rate", row(achieved_gflops=6e-8), "points[0].achieved_gflops"
    # 1000 / 100 = 10 s of 20
    yield "utilization", row(utilization_pct=51.0), "points[0].utilization_pct"
    # at 50 FLOP/B, ridge point 10
    yield "bound", row(bound="memory"), "points[0].bound"
    yield "above its roof", row(above_roof=True), "points[0].above_roof"
    yield "share", row(share=0.5), "points[0].share"
    yield "share of more than all", row(share=7.0), "points[0].share"
    yield "level", row(memory_level="L77"), "points[0].memory_level"
    yield "bound without work", row(bound="none", utilization_pct=None), "points[0].bound"
    yield "time of the rows", lambda d: d["timing"].update(rows_s=30.0), "timing.rows_s"
    yield "time of a row", row(time_s=30.0, achieved_gflops=1000 / 30e9, utilization_pct=100 / 3), "points[0].share"
    yield "parts of a window", lambda d: d["breakdowns"][0].update(span_s=26.0), "breakdowns[0].span_s"
    yield "the whole", lambda d: d["program"].update(arithmetic_intensity=1.0), "program.arithmetic_intensity"
    yield "no calls", row(calls=0), "points[0].calls"
    yield "spread", row(time_iqr_s=1e9), "points[0].time_iqr_s"
    yield "source", row(source="banana"), "points[0].source"
    yield "shares of a kernel", row(layers=[["conv", "Conv2d", 7.0, 20]]), "points[0].layers"
    yield "what is sent", row(sends=[["all_reduce over 2", 9]], wire_bytes=8), "points[0].sends"
    yield "time of what is not sent", row(network_s=1.0), "points[0].network_s"
    yield "times of ranks", row(ranks=[[0, 1.0], [1, 2.0]]), "points[0].time_s"
    yield "interval", row(interval_s=[1.0, 2.0]), "points[0].interval_s"
    yield "shares of the whole", lambda d: d["program"].update(shares=[["compute", 0.7]]), "program.shares"
    yield "end to end", lambda d: d["timing"].update(end_to_end_s=1000.0), "timing.end_to_end_s"
    yield "threads", lambda d: d["environment"].update(threads=-4), "environment.threads"
    def held(**values): return lambda d: d["memory"].update(values)
    yield "peak", held(peak_bytes=10**12), "memory.peak_bytes"
    yield "part of the peak", held(parts={"weights": 60, "temporaries": 40, "<b>": 0}), "memory.parts"
    yield "module of the peak", held(module="nope.nope"), "memory.module"
    yield "phase of the peak", held(phase="banana"), "memory.phase"
    yield "start", held(start_bytes=101), "memory.start_bytes"
    yield "moment", lambda d: d["memory"]["timeline"][0].__setitem__(3, [90, 0, 0, 0, 0, 0, 0, 40]), "memory.timeline"
    yield "memory of a module", lambda d: d["memory"]["modules"]["conv"].update(peak_bytes=101), "memory.modules"
    yield "an operator", lambda d: d["ops"][0].update(contraction_flops=1001), "ops[0].contraction_flops"

@pytest.mark.parametrize("what, change, field", list(contradictions()))
def test_a_result_that_contradicts_itself_is_refused(full, what, change, field):
    data = json.loads(full.to_json())
    change(data)
    with pytest.raises(ValueError) as refused: from_json(json.dumps(data))
    assert (f"damaged: {field}" in str(refused.value) and len(str(refused.value)) < 200
            and "\n" not in str(refused.value))

def test_a_result_is_read_from_its_text_and_from_a_file_with_a_byte_order_mark(full, tmp_path):
    (tmp_path / "marked.json").write_text(full.to_json(), encoding="utf-8-sig")
    text = full.to_json()
    for source in (text, "\ufeff" + text, tmp_path / "marked.json", str(tmp_path / "marked.json")):
        assert from_json(source) == full
    peaks = full.peaks.to_json()
    (tmp_path / "peaks.json").write_text(peaks, encoding="utf-8-sig")
    for source in (peaks, "\ufeff" + peaks, tmp_path / "peaks.json"):
        assert HardwarePeaks.from_json(source) == full.peaks
    for wrong in ("x" * 10_000, "one\ntwo", text[1:]):
        with pytest.raises(ValueError) as refused: from_json(wrong)
        assert len(str(refused.value)) < 200

def test_a_row_without_work_has_no_intensity_in_the_file():
    result = from_json(Path(__file__).parent/"data/resnet50.json")
    idle = [p for p in result.ops if p.flops == p.bytes_moved == 0]
    assert len(idle) == 53 and {(p.bound, p.arithmetic_intensity) for p in idle} == {("none", None)}

def test_a_file_of_another_version_is_refused():
    data = json.loads((Path(__file__).parent/"data/resnet50.json").read_text())
    with pytest.raises(ValueError, match="version 1 cannot be read; this release reads version 3"):
        from_dict(data | dict(version=1))

@nightly_only("reads a file for each place and value")
def test_every_place_is_read_or_refused(full):
    plain = json.loads(full.to_json())
    for path in filter(None, places(plain)):
        for other in junk:
            try: from_dict(damaged(plain, path, other))
            except ValueError: pass
            except Exception as error: raise AssertionError(f"{path} = {other!r:.40}") from error
