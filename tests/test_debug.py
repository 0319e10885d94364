"FASTERBENCH_DEBUG=1 says on standard error what a profile does; without it nothing is printed."
import pytest, torch
from torch import nn

from fasterbench import HardwarePeaks, RooflineAnalyzer

def profiled():
    "Two modules: a product with its bias, and a ReLU."
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    RooflineAnalyzer(model, torch.ones(2, 4), peaks=HardwarePeaks(1e12, 1e11)).profile("cpu", warmup=1, steps=3)

@pytest.mark.parametrize("value, lines", [("1", 3), ("0", 0), ("", 0)])
def test_a_profile_says_what_it_does(monkeypatch, capsys, value, lines):
    monkeypatch.setenv("FASTERBENCH_DEBUG", value)
    profiled()
    said = [line.split(" s  ", 1)[1] for line in capsys.readouterr().err.splitlines()
            if line.startswith("fasterbench ")]
    if not lines: assert said == []
    else:
        assert said[0] == "counted 2 operators in 3 modules" and said[1].startswith("timed 3 runs by ")
        assert any(line.startswith("timed 2 of 2 operators") for line in said) and "under their roofs" in said[-1]
