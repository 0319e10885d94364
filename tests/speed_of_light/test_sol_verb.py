"`fasterbench sol`: problems of each form, times, rows, pages and exit codes."
import csv, io, json

import pytest
from typer.testing import CliRunner

from fasterbench.cli.main import app, register

register()
device = "NVIDIA H100 80GB HBM3"
kernelbench = """import torch
from torch import nn
N = 1024
class Model(nn.Module):
    def forward(self, a, b): return a @ b
def get_inputs(): return [torch.rand(N, N), torch.rand(N, N)]
def get_init_inputs(): return []
def broken(a, b): raise ValueError("no such page")
"""
needs_a_library = "import not_installed_here\nclass Model: pass\ndef get_inputs(): return []\n"
definition = dict(name="rows", axes=dict(n=dict(type="var"), half=dict(type="expr", expression="n // 2")),
                  inputs=dict(x=dict(shape=["n", "half"], dtype="float32"), scale=dict(shape=None, dtype="float32")),
                  reference="import torch\ndef run(x, scale): return x.sum(1) * scale\n")
workload = dict(uuid="a", axes=dict(n=4096), inputs=dict(x=dict(type="random"), scale=dict(type="scalar", value=2.0)),
                tolerance=dict(max_rtol=1e-2))

@pytest.fixture
def folder(tmp_path):
    (tmp_path/"product.py").write_text(kernelbench)
    (tmp_path/"other.py").write_text(needs_a_library)
    (tmp_path/"rows").mkdir()
    (tmp_path/"rows"/"definition.json").write_text(json.dumps(definition))
    (tmp_path/"rows"/"workload.jsonl").write_text(json.dumps(workload) + "\n")
    return tmp_path

def sol(*args): return CliRunner().invoke(app, ["sol", *map(str, args), "--on", device])

def rows_of(result): return {r["problem"]: r for r in csv.DictReader(io.StringIO(result.stdout))}

def test_a_folder_has_a_row_for_each_problem(folder):
    result = sol(folder, "--cold", "--csv", "-")
    rows = rows_of(result)
    assert list(rows) == ["other", "product", "rows:a"] and result.exit_code == 0, result.output
    assert "needs not_installed_here, which is not installed" in rows["other"]["verdict"]
    assert float(rows["rows:a"]["bytes_read [B]"]) == 4096 * 2048 * 4            # n // 2 columns
    assert float(rows["rows:a"]["time_s [s]"]) == pytest.approx(4096 * 2048 * 4 / 3.35e12, rel=1e-3)
    assert float(rows["product"]["contraction_flops [FLOP]"]) == 2 * 1024 ** 3

def test_a_time_below_the_bound_is_impossible(folder):
    times = folder/"times.json"
    for seconds, code, verdict in ((1e-9, 1, "impossible"), (1.0, 0, "")):
        times.write_text(json.dumps(dict(level1={"product.py": dict(mean=1e3 * seconds, std=0.0)})))
        result = sol(folder/"product.py", "--cold", "--times", times, "--csv", "-")
        assert (result.exit_code, rows_of(result)["product"]["verdict"]) == (code, verdict), result.output

def test_a_function_that_fails_gives_its_error_and_line(folder):
    result = sol(f"{folder/'product.py'}:broken", "--json", "-")
    row = json.loads(result.stdout)["rows"][0]
    assert row["verdict"] == "not counted: ValueError: no such page (product.py:8)" and result.exit_code == 1

def test_csv_of_seconds_and_a_page(folder):
    (folder/"times.csv").write_text("name,seconds\nproduct,0.001\n")
    result = sol(folder/"product.py", "--times", folder/"times.csv", "--html", folder/"page.html")
    assert "0 of 1 times are impossible" in result.output and "product" in (folder/"page.html").read_text()

@pytest.mark.parametrize("args, said", [
    (("nowhere",), "nowhere does not exist"), (("product.py", "--rtol", "tight"), "'tight' is no tolerance"),
    (("product.py", "--times", "none.csv"), "there is no file 'none.csv'"),
    (("product.py", "--limit", "60"), "'60' is not a positive number with its unit: write 90s"),
    (("product.py:absent", ), None), (("product.py", "--times", "zero.csv"), "the time of product is 0.0"),
    (("product.py", "--times", "foreign.csv"), "no name in 'foreign.csv'")])
def test_bad_arguments(folder, monkeypatch, args, said):
    monkeypatch.chdir(folder)
    (folder/"zero.csv").write_text("product,0\n")
    (folder/"foreign.csv").write_text("relu,1\n")
    result = sol(*args)
    assert result.exit_code == (2 if said else 1), result.output
    text = " ".join(result.output.replace("│", " ").split())
    assert (said or "has no absent") in text, result.output
