"Where a prediction has only a range, no view and no file has a time, or anything that follows from one."
import csv, io, json, re
from dataclasses import replace

import pytest, torch
from torch import nn

from fasterbench.comparing.compare import compare, series_of
from fasterbench.predicting.predict import predict
from fasterbench.views.result import from_dict, from_json, to_dict

@torch.library.custom_op("fasterbench_tests::squared", mutates_args=())
def squared(x: torch.Tensor)->torch.Tensor: return x * x

@squared.register_fake
def _(x): return torch.empty_like(x)

class Own(nn.Module):
    def forward(self, x): return torch.ops.fasterbench_tests.squared(x)

@pytest.fixture(scope="module")
def predicted():
    return predict(nn.Sequential(nn.Linear(256, 256), Own(), nn.Linear(256, 64)), torch.randn(128, 256),
                   "NVIDIA H100 80GB HBM3")

@pytest.fixture(scope="module")
def own(predicted): return next(p for p in predicted if p.type == "Own")

of_time = ("time_s", "share", "utilization_pct", "achieved_gflops", "achieved_bandwidth", "potential_s",
           "interval_low_s")

def test_a_row_and_the_whole_have_a_limit_and_an_upper_end_alone(predicted, own):
    for p in (own, predicted.program, next(p for p in predicted.ops if p.type == "Own")):
        assert {getattr(p, k) for k in of_time} == {None} and 0 < p.roof_time_s == p.interval_s[0] < p.interval_s[1]
    known = [p for p in predicted if p is not own]
    # of no known whole
    assert len(known) == 2 and all(p.time_s and p.utilization_pct and p.share is None for p in known)
    assert predicted.points.index(own) == 0                                     # by its upper end

def test_text_csv_json_and_page_say_unknown(predicted, own):
    row = next(l for l in predicted.text().splitlines() if " Own " in l)
    assert row.count("?") >= 5 and "%" not in row
    [cells] = [r for r in csv.DictReader(io.StringIO(predicted.csv())) if r["type"] == "Own"]
    follows = [k for k in cells if k.split(" ")[0] in (*of_time, "total_s", "time_per_call_s", "cumulative_share",
                                                       "memory_utilization_pct", "bandwidth_L2", "bandwidth_DRAM")]
    assert (len(follows) == 13 and not any(cells[k] for k in follows)
            and float(cells["roof_time_s [s]"]) == own.roof_time_s)
    data = json.loads(json.dumps(to_dict(predicted)))
    for p in (data["program"], next(p for p in data["points"] if p["type"] == "Own")):
        assert (p["time_s"] is p["share"] is p["utilization_pct"] is p["achieved_gflops"] is None
                and len(p["interval_s"]) == 2)
    page = predicted._page()
    tabs = {tab["name"]: tab for tab in page["kinds"]}
    for name, which in (("modules", 0), ("program", 0)):
        values = dict(zip([c["field"] for c in tabs[name]["columns"]], tabs[name]["rows"][which]))
        assert values["time_s"] is values["potential_s"] is values["utilization_pct"] is None, name
    assert page["division"] == [] and ("time", "?") in dict(page["facts"])["Whole model"]

def test_a_saved_file_shows_the_same_and_an_old_one_forgets_its_time(predicted, own, tmp_path):
    predicted.to_json(tmp_path / "p.json")
    again = from_json(tmp_path / "p.json")
    assert (again.text() == predicted.text() and again.csv() == predicted.csv()
            and again.to_dict() == predicted.to_dict())
    old = to_dict(predicted)                              # files once had a time there: 5 µs, 18.8 µs of the whole
    times = [5e-6 if p["time_s"] is None else p["time_s"] for p in old["points"]]
    for p, t in zip(old["points"], times): p |= dict(time_s=t, share=t / sum(times))
    for p in [p for p in old["points"] if p["type"] == "Own"]: p["utilization_pct"] = 100 * p["roof_time_s"] / 5e-6
    old["program"] |= dict(time_s=18.8e-6, utilization_pct=100 * old["program"]["roof_time_s"] / 18.8e-6)
    assert from_dict(old).to_dict() == predicted.to_dict()
    old["points"][1]["time_s"] = None                     # of a row that was measured
    with pytest.raises(ValueError, match="time_s is None"): from_dict(old)

def test_compare_gives_the_range_of_the_ratio_and_no_verdict(predicted, own):
    "A whole of twice the upper end is 2 times as long at least, and at most twice the upper end over the limit."
    low, high = predicted.program.interval_s
    def measured(p):
        return replace(p, time_s=2 * high, source="counted", uncertain=False, interval_s=())
    points = [replace(measured(p), share=1 / 3) for p in predicted]
    other = replace(predicted, points=points, program=measured(predicted.program), environment={})
    compared = compare(predicted, other)
    assert f"time ×2.00 to ×{2 * high / low:.2f}, " in compared.told and compared.times[0] is None
    [pair] = [q for q in compared.pairs if q.after.type == "Own"]
    assert (pair.change, pair.clear, pair.ratio("time_s")) == ("time unknown", None, None)
    [row] = [l for l in compared.text().splitlines() if re.match(r"\S+ +Own ", l)]
    assert " ? " in row and "×" not in row.replace("×1.00", "") and compared.throughputs[0] is None
    both = series_of([predicted, replace(predicted, environment=predicted.environment | dict(device_name="another"))])
    assert ([r["time_s"] for r in both.to_dict()["results"]]
            == [r["samples_per_s"] for r in both.to_dict()["results"]] == [None] * 2)
    assert f"×{low / high:.2g} to ×{high / low:.2f}" in both.changed[0] and compared.render() and both.render()
