"Grouped products in traces, which do not record how many rows a group has."
import pytest

from fasterbench import read_trace
from trace_files import event, kernel, launch, operator, roofs, written

def experts(rows, took, name="aten::_grouped_mm", dtype="c10::BFloat16"):
    "A product of so many rows of 64 by 16 experts of 64 by 32, in so many µs."
    dims = [[rows, 64], [16, 64, 32], [16], [], []]
    concrete = {"Concrete Inputs": ["", "", "", "", ""], "Input Strides": [[64, 1], [2048, 32, 1], [1], [], []]}
    return [event("user_annotation", "ProfilerStep#1", 0, 40 + took),
            operator(name, 3, 4, dims, [dtype, dtype, "int", "", ""], **concrete), launch(4, 11),
            kernel("grouped", 20, took, 11)]

def moved(groups, rows, size): return size * (groups * 64 * 32 + rows * (64 + 32)) + 4 * 16

@pytest.mark.parametrize("dtype, size", [("c10::BFloat16", 2), ("float", 4)])
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_at_most_as_many_experts_as_rows(tmp_path, rows, dtype, size):
    point, = read_trace(written(tmp_path, experts(rows, 1000, dtype=dtype)), peaks=roofs, by="operator").ops
    # 16 experts, or one for each row; all rows multiplied, and the ends of 16 groups
    assert (point.bytes_moved, point.contraction_flops) == (moved(min(rows, 16), rows, size), 2 * rows * 64 * 32)
    assert point.source == ("at least" if rows > 1 else "counted") and point.utilization_pct < 100

def test_a_row_never_above_its_roof(tmp_path):
    "8 rows that one expert may have: what the time allows, and no less than one expert."
    whole, one = (moved(groups, 8, 2) / 1e11 * 1e6 for groups in (8, 1))      # µs at 100 GB/s
    half, = read_trace(written(tmp_path, experts(8, whole / 2)), peaks=roofs, by="operator").ops
    assert half.source == "at least" and half.utilization_pct == pytest.approx(100, abs=0.1)
    assert half.bytes_moved == pytest.approx(moved(8, 8, 2) / 2, rel=1e-3) and half.contraction_flops <= half.flops
    short, = read_trace(written(tmp_path, experts(8, one * 1.001)), peaks=roofs, by="operator").ops
    assert short.utilization_pct <= 100.1 and short.bytes_moved == pytest.approx(moved(1, 8, 2), rel=2e-3)
