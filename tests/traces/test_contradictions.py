"Traces that contradict themselves, and those of several devices: what cannot be is decided or said, at each door."
import pytest
from fastcore.test import test_eq as equal

from fasterbench import read_trace
from trace_files import event, kernel, launch, operator, written

h100 = dict(deviceProperties=[dict(id=k, name="NVIDIA H100 80GB HBM3", totalGlobalMem=85 * 10**9) for k in (0, 1, 2)])

def product(k, ts, start, dur, correlation=None, device=0, types=("float", "float"), size=1024):
    "An operator at `ts` µs, its launch, and its kernel."
    correlation = k if correlation is None else correlation
    args = operator("aten::mm", ts, 6, [[size, size]] * 2, types, **{"External id": k})
    gemm = kernel("gemm", start, dur, correlation)
    gemm["args"] |= {"device": device, "External id": k}
    return [args, launch(ts + 2, correlation), gemm]

def read(tmp_path, events, name="trace.json", **more): return read_trace(written(tmp_path, events, name, **h100 | more))
def notes(result, part): return [n for n in result.notes if part in n]

@pytest.mark.parametrize("second", (200, 20), ids=("after the first kernel", "before it"))
def test_a_correlation_id_that_occurs_twice(tmp_path, second):
    events = product(1, 0, 40, 50, correlation=7) + product(2, second, 240, 50, correlation=7)
    result = read(tmp_path, events)
    equal(result.program.flops, 2 * 2 * 1024**3)
    equal(len(notes(result, "occurs more than once in the file, as in merged traces: 2")), 1)
    copy = result.to_perfetto()
    equal(copy.count("roofline FLOPs"), 2)

@pytest.mark.parametrize("devices", (2, 3))
def test_a_process_with_several_devices_is_one_of_them_in_the_mean(tmp_path, devices):
    steps = [event("user_annotation", "ProfilerStep#1", 0, 1400)]
    events = [e for d in range(devices) for e in product(d + 1, 4 + 10 * d, 100, 1300, device=d,
                                                         types=["c10::BFloat16"] * 2, size=8192)]
    result = read(tmp_path, steps + events)
    share = 100 * 2 * 8192**3 / 989.4e12 / 1400e-6
    for whole in (result.program, *result.steps, read_trace(result.breakdowns[0].source, by="rank").points[0]):
        assert abs(whole.utilization_pct - share) < 0.5, whole
    assert abs(sum(p.time_s for p in result.points) - 1400e-6) < 1e-9
    assert notes(result, f"{devices} GPUs") and result.model.endswith(f"mean of {devices} GPUs")
    assert len(result.breakdowns) == devices

def test_devices_that_differ_have_no_common_roof(tmp_path):
    two = dict(deviceProperties=[dict(id=0, name="NVIDIA A100-SXM4-80GB"), dict(id=1, name="NVIDIA L40S")])
    result = read(tmp_path, product(1, 0, 40, 50) + product(2, 10, 40, 50, device=1), **two)
    assert result.peaks is None and "A100-SXM4-80GB and NVIDIA L40S" in result.environment["no_roofs"]
    assert any("no roofs: kernels ran on different devices" in line for line in result.text().splitlines())
    assert read_trace(result.breakdowns[0].source, on="NVIDIA L40S").peaks

def test_kernels_before_their_launch_and_over_one_another(tmp_path):
    result = read(tmp_path, product(1, 100, 40, 50) + product(2, 200, 250, 50) + product(3, 210, 270, 50))
    assert notes(result, "before their own launch: 1") and notes(result, "on their stream: 1")

def exchange(sent, rank=0, elements=1_000_000, dur=100, **more):
    args = {"Collective name": "all_to_allv", "In msg nelems": elements, "Out msg nelems": elements,
            "dtype": "BFloat16",
            "Group size": len(sent), "Process Group Ranks": str([*range(4, 4 + len(sent))]),
            "In split size": str(sent)} | more
    transfer = kernel("ncclDevKernel_SendRecv", 120, dur, 5)
    transfer["args"] |= args
    return [launch(100, 5), transfer], dict(distributedInfo=dict(rank=rank, world_size=8))

# rows sent to each of three ranks, 4, 5 and 6; 1 000 000 elements of 2 B in all
@pytest.mark.parametrize("sent, rank, bytes_away", [([1, 1, 2], 6, 1e6), ([0, 3, 1], 5, 5e5), ([4, 0, 0], 4, 0.0),
                                                    ([1, 3], 7, None), ([3, 4, 0], 4, None)])   # 7 are no divisor
def test_uneven_splits_of_an_all_to_all(tmp_path, sent, rank, bytes_away):
    events, job = exchange(sent, rank)
    result = read(tmp_path, events, **job)
    rows = [result.points[0].wire_bytes, result.program.wire_bytes,
            read_trace(result.breakdowns[0].source, by="collective").points[0].wire_bytes]
    equal(rows, [bytes_away] * 3)

def test_splits_that_the_call_says(tmp_path):
    events, job = exchange([], 1, **{"Process Group Ranks": "[0, 1]", "Group size": 2})
    call = operator("c10d::alltoall_base_", 90, 20, [[4, 8], [4, 8], [], [], []], ["c10::BFloat16"] * 2 + [""] * 3,
                    **{"Concrete Inputs": ["", "", "", "[3, 1]", "[3, 1]", ""]})
    equal(read(tmp_path, [call, *events], **job).points[0].wire_bytes, 2e6 * 3 / 4)

@pytest.mark.parametrize("elements, dur", [(3_500_000_000_000, 100), (30_000_000_000, 100), (2_000_000_000, 100)])
def test_sizes_beyond_the_device_are_left_out(tmp_path, elements, dur):
    events, job = exchange([1, 1], 4, elements, dur)
    result = read(tmp_path, events, **job)
    equal((result.points[0].wire_bytes, result.collectives[0].nbytes), (None, None))
    assert notes(result, "whose size is left out")

def test_memory_beyond_the_device_is_left_out(tmp_path):
    def allocated(ts, total):
        return dict(ph="i", cat="cpu_instant_event", s="t", name="[memory]", pid=1, tid=1, ts=ts,
                    args={"Total Allocated": total, "Device Id": 0, "Device Type": 1})
    result = read(tmp_path, [*product(1, 0, 40, 50), allocated(5, 512), allocated(6, 10**30)])
    equal(result.memory.peak_bytes, 512)
    assert notes(result, "memory events left out")

def test_a_product_of_two_dtypes_is_not_exact(tmp_path):
    result = read(tmp_path, product(1, 0, 40, 50, types=["float", "c10::Half"]))
    equal(result.program.flops, None)
    assert notes(result, "operands of two dtypes")
    # as autocast records it: the call inside has one dtype, and counts
    inner = product(1, 1, 40, 50, types=["c10::Half"] * 2)
    outer = operator("aten::linear", 0, 9, [[1024, 1024]] * 2, ["c10::Half", "float"])
    equal(read(tmp_path, [outer, *inner]).program.flops, 2 * 1024**3)

@pytest.mark.parametrize("given", [dict(by=[]), dict(by={}), dict(captures=5), dict(captures=[5]), dict(executor=5),
                                   dict(rules=7),
                                   dict(like=5), dict(kernels=5), dict(config=5)], ids=str)
def test_arguments_of_no_use_are_named(tmp_path, given):
    [(name, value)] = given.items()
    path = written(tmp_path, product(1, 0, 40, 50), **h100)
    with pytest.raises((TypeError, ValueError), match=name): read_trace(path, **given)
