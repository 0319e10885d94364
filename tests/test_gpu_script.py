"""The script that measures on a GPU, `tests/benchmarks/gpu.py`: its verdicts, what is left when a part fails, and
its rehearsal on the CPU."""
import json, subprocess, sys
from pathlib import Path

import pytest

from conftest import heavy_only, nightly_only

folder_of_script = Path(__file__).parent/"benchmarks"
sys.path.insert(0, str(folder_of_script))
import gpu

def put(folder, part, **found): (folder/f"{part}.json").write_text(json.dumps(dict(part=part, complete=True) | found))
def verdicts(folder): return {l.what: l for l in gpu.limits(folder)}

def test_what_was_not_measured_has_no_verdict(tmp_path):
    assert {l.verdict for l in gpu.limits(tmp_path)} == {"not measured"}

def test_rows_beside_a_step_and_their_roofs(tmp_path):
    put(tmp_path, "models", a=dict(ratio=0.99, above=[]), b=dict(ratio=1.05, above=[["fc", 120.0], ["conv", 106.0]]),
        c=dict(error="out of memory"))
    put(tmp_path, "compiled", d=dict(ratio=1.01, above=[]))
    found = verdicts(tmp_path)
    rows = found["sum of rows ÷ event-timed step"]
    assert (rows.verdict == "does not hold: 1 outside" and rows.outside == {"models: b": 1.05}
            and rows.found == "0.990 to 1.050, median 1.020 of 2")
    assert (found["the same, compiled"].verdict == "holds"
            and found["rows above 105 % of their roof"].outside == {"models: b": 2})
    assert list(rows.lines())[1].strip() == "models: b 1.050"
    assert list(gpu.failures(tmp_path)) == ["models: c: out of memory"]

def test_memory_beside_the_allocator(tmp_path):
    "Of 1100 B at the peak 100 B were there before and 200 B are workspaces: the tensors have 800 B."
    put(tmp_path, "training", a=dict(ratio=1.0, above=[],
                                     memory=dict(counted=792, live=800, requested=1100, allocated=1122, held=100,
                                                 cublas=200)))
    found = verdicts(tmp_path)
    assert found["counted memory ÷ allocator's, without cuBLAS and rounding"].values == {"training: a": 0.99}
    assert found["counted memory ÷ storages alive"].values == {"training: a": 0.99}
    assert found["rounding: allocated ÷ requested"].values["training: a"] == pytest.approx(1.02)

def test_roofs_beside_what_was_published(tmp_path):
    "An H100 in bfloat16: 795 TFLOP/s in long runs, 956 as best of sweeps, 989.4 and 3.35 TB/s on paper."
    ceilings, levels = ({"bfloat16": [800e12, 0.01, "matmul"], "float32": [80e12, 0, ""]},
                        {"DRAM": [None, 3.0e12, 0.01]})
    put(tmp_path, "peaks", device_name="NVIDIA H100 80GB HBM3", first=dict(ceilings=ceilings, levels=levels))
    found = verdicts(tmp_path)
    assert found["peak ÷ published mean of long runs"].values["bfloat16"] == pytest.approx(800 / 795)
    assert found["peak ÷ published best of sweeps"].verdict == "holds"
    promised = found["peak ÷ datasheet"]
    assert (promised.outside == {"float32": pytest.approx(80 / 66.9)}
            and promised.values["DRAM"] == pytest.approx(3 / 3.35, rel=0.01))

def test_counters_and_predictions(tmp_path):
    put(tmp_path, "ncu", counted=dict(add=dict(flops=10, bytes=80)),
        rows=dict(add=dict(flops=10, bytes=100), other=dict(flops=1, bytes=1)))
    put(tmp_path, "expected", a=dict(limit_s=2.0, measured_s=1.0, expected_s=3.0, interval_s=[0.5, 4.0]))
    found = verdicts(tmp_path)
    assert found["counted bytes ÷ ncu's at DRAM"].outside == {"add": 0.8}
    assert found["limit ÷ measured"].outside == {"expected: a": 2.0} and found["expected ÷ measured"].verdict == ""
    assert found["measured in the interval of the expected time (1: yes)"].values == {"expected: a": 1.0}

def test_the_page_is_made_from_the_records(tmp_path):
    """Records of two parts, made up: one run in the range and one outside, and a case that failed. The page and the
    file have all of it."""
    env = dict(device="cuda", device_name="NVIDIA H100 80GB HBM3", driver="580.1", cuda="13.0", torch="2.11.0",
               date="2026-11-26T10:00:00+00:00")
    put(tmp_path, "models", **env, a=dict(ratio=0.99, above=[]), b=dict(ratio=1.05, above=[]),
        c=dict(error="out of memory"))
    put(tmp_path, "traces", **env, a=dict(trace_s=1.01, profile_s=1.0, trace_flops=5, profile_flops=5))
    gpu.write_page(tmp_path, tmp_path/"kept.json", tmp_path/"page.md")
    kept, lines = (json.loads((tmp_path/"kept.json").read_text(encoding="utf-8")),
                   (tmp_path/"page.md").read_text(encoding="utf-8").splitlines())
    assert (kept["environment"] == {k: v for k, v in env.items() if k != "device"}
            and kept["parts"]["models"]["b"]["ratio"] == 1.05)
    assert "one NVIDIA H100 80GB HBM3, on 2026-11-26: PyTorch 2.11.0, driver 580.1." in lines[2]
    assert ("| sum of rows ÷ event-timed step | 0.98 to 1.02 | 0.990 to 1.050, median 1.020 of 2 | does not hold: 1 "
            "outside |" in lines)
    assert "| read_trace ÷ profile, time | 0.98 to 1.02 | 1.010 to 1.010, median 1.010 of 1 | holds |" in lines
    assert ("| sum of rows ÷ event-timed step | models: b | 1.050 |" in lines
            and lines[-1] == "- models: c: out of memory")

def test_there_is_no_page_of_a_rehearsal(tmp_path):
    put(tmp_path, "models", device="cpu", a=dict(ratio=0.99, above=[]))
    with pytest.raises(SystemExit, match="records of cpu: the page is of a GPU"):
        gpu.write_page(tmp_path, tmp_path/"kept.json", tmp_path/"page.md")
    assert not (tmp_path/"page.md").exists()

driver = """
import os, sys, time, types
sys.path.insert(0, {folder!r})
import gpu
def raises(record, device, folder):
    record.attempt("first case", lambda: 1 / 0)
    record.attempt("second case", lambda: dict(ratio=1.0))
    raise RuntimeError("no driver")
def dies(record, device, folder): record.put("before", 1); os.kill(os.getpid(), 9)
def hangs(record, device, folder): record.put("before", 1); time.sleep(100)
def works(record, device, folder): record.put("case", dict(ratio=1.0, above=[]))
gpu.parts.clear()
gpu.parts.update(raises=raises, dies=dies, hangs=hangs, models=works)
gpu.shares = dict(raises=50, dies=50, hangs=6, models=50)
gpu.here = lambda: (types.SimpleNamespace(type="cpu"), dict(device_name="none"))
gpu.main()
"""

@heavy_only("a process that runs parts")
def test_a_part_that_fails_says_why_and_the_others_go_on(tmp_path):
    "One raises, after a case that does; one is killed; one does not end."
    (tmp_path/"driver.py").write_text(driver.format(folder=str(folder_of_script)))
    done = subprocess.run([sys.executable, tmp_path/"driver.py", "--out", tmp_path/"out"], capture_output=True,
                          text=True, timeout=100)
    found = {p.stem: json.loads(p.read_text()) for p in (tmp_path/"out").glob("*.json")}
    assert done.returncode == 0, done.stderr
    assert (found["raises"]["first case"]["error"] == "ZeroDivisionError: division by zero"
            and found["raises"]["second case"] == dict(ratio=1.0))
    assert (found["raises"]["failed"]["error"] == "RuntimeError: no driver"
            and "driver.py" in found["raises"]["failed"]["where"][-1])
    assert found["dies"]["before"] == 1 and found["dies"]["failed"]["error"].startswith("ended with -9")
    assert found["hangs"]["before"] == 1 and found["hangs"]["failed"]["error"] == "stopped after 6 s"
    assert [k for k, v in found.items() if v.get("complete")] == ["models"]
    said = done.stdout.splitlines()
    assert any(l.startswith("sum of rows ÷ event-timed step") and l.endswith("holds") for l in said)
    failed = [l for l in said if l.startswith("failed: ")]
    assert len(failed) == 4 and failed == [f"failed: {l}" for l in found["table"]["failed"]]

def test_a_case_that_comes_too_late_is_named(tmp_path):
    gpu.Record(tmp_path, "faults", -1.0).attempt("late case", lambda: 1)
    assert list(gpu.failures(tmp_path)) == ["faults: out of time before late case"]

def test_each_half_ends_within_ten_minutes():
    assert (sum(gpu.shares[p] for p in gpu.groups["first"]) < 540
            and sum(gpu.shares[p] for p in gpu.groups["rest"]) < 540)
    assert [*gpu.groups["first"], *gpu.groups["rest"]] == list(gpu.parts) == list(gpu.shares)

@nightly_only("parts of the script, as on a GPU, on the simulated device")
@pytest.mark.long
def test_what_only_a_gpu_does_runs_on_the_simulated_device(tmp_path):
    """Its clock is exact: the rows add up to the step between two events, traces and profiles agree, and so do
    counted and allocated memory."""
    call = [sys.executable, folder_of_script/"gpu.py", "--out", tmp_path, "--simulated", "--patience", "6", "--parts",
            "training", "traces"]
    subprocess.run(call, check=True, timeout=1500)
    found = verdicts(tmp_path)
    assert not json.loads((tmp_path/"table.json").read_text())["failed"]
    for what, n in (("sum of rows ÷ event-timed step", 3), ("read_trace ÷ profile, time", 8),
                    ("counted memory ÷ allocator's, without cuBLAS and rounding", 3),
                    ("counted memory ÷ storages alive", 3)):
        values = list(found[what].values.values())
        assert len(values) == n and values == pytest.approx([1] * n, abs=1e-3), what

@nightly_only("every part runs on the CPU, some ten minutes")
@pytest.mark.long
def test_every_part_runs_on_the_cpu(tmp_path):
    subprocess.run([sys.executable, folder_of_script/"gpu.py", "--out", tmp_path, "--patience", "4"], check=True,
                   timeout=2200)
    failed = [line for line in json.loads((tmp_path/"table.json").read_text())["failed"] if "out of time" not in line
              and "is not there" not in line]
    assert not failed
