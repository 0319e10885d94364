"Whatever goes wrong while a model is profiled, and whenever: it is left as it was."
import gc, random
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import heavy, heavy_only
from fasterbench.core.arguments import tensors_of
from fasterbench.engine.accelerator import accelerator
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
from fasterbench.probes.probes import memory_probe, streams
from fasterbench.timing.modules import node_cost, timestamp_cost
from fasterbench.views.result import Timing

peaks = HardwarePeaks(1e12, 1e11)

def Fuse():
    "Burns through at call number `at`. It is a function, so that its counter is not a part of the model's state."
    def burn():
        burn.count += 1
        if burn.count == burn.at: raise burn.error("burnt")
    burn.at, burn.count, burn.error = None, 0, None
    return burn

class Step(nn.Module):
    "A layer that leaves traces in everything that a forward can reach."
    def __init__(self, fuse):
        super().__init__()
        self.fuse, self.lin, self.calls, self.cache, self.seen_list = [fuse], nn.Linear(4, 4), 0, {}, []
        self.register_buffer("seen", torch.zeros(3))
    def forward(self, x):
        self.fuse[0]()
        self.seen += 1; self.calls += 1; self.cache[self.calls] = 1; self.seen_list.append(1)
        x.add_(torch.rand_like(x) + random.random() + np.random.rand())
        out = self.lin(x)
        self.fuse[0]()
        return out

def net(fuse):
    model = nn.Sequential(Step(fuse), nn.BatchNorm1d(4), nn.Dropout(), Step(fuse))
    model[1].eval()
    model[3].lin.weight.requires_grad_(False)
    model[0].lin.weight.grad = torch.ones(4, 4)
    model[0].register_forward_hook(lambda *a: None)
    return model

def snapshot(model, sample):
    "Return all that a user could notice, as values and identities."
    modules = [(type(m), m.training, {k: id(v) for k, v in m.__dict__.items() if k != "calls"},
                getattr(m, "calls", 0), dict(getattr(m, "cache", {})), list(getattr(m, "seen_list", [])),
                len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    tensors = [(k, id(t), t.detach().clone().numpy().tobytes(), t.requires_grad, id(t.grad),
                None if t.grad is None else t.grad.numpy().tobytes(), str(t.device))
               for k, t in (*model.named_parameters(), *model.named_buffers())]
    world = (torch.get_rng_state().numpy().tobytes(), random.getstate(), np.random.get_state()[1].tobytes(),
             torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(),
             torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32,
             torch.backends.mkldnn.enabled, gc.isenabled(),
             torch.is_inference_mode_enabled(), len(torch.utils._python_dispatch._get_current_dispatch_mode_stack()))
    return modules, tensors, world, sample.numpy().tobytes()

def profile(model, sample): RooflineAnalyzer(model, sample, peaks).profile(warmup=1, steps=2)

def test_a_profile_leaves_no_trace():
    model, sample = net(Fuse()), torch.ones(2, 4)
    before = snapshot(model, sample)
    profile(model, sample)
    assert snapshot(model, sample) == before

def calls_of_a_profile():
    fuse = Fuse()
    profile(net(fuse), torch.ones(2, 4))
    return fuse.count

@pytest.mark.parametrize("error", [KeyboardInterrupt,
                                   *(pytest.param(e, marks=heavy_only("another error"))
                                     for e in (RuntimeError, SystemExit))])
def test_interrupted_at_any_call(error):
    total = calls_of_a_profile()
    assert total > 20
    for at in range(1, total + 1, 1 if heavy else 3):
        fuse = Fuse()
        model, sample = net(fuse), torch.ones(2, 4)
        fuse.at, fuse.error = at, error
        before = snapshot(model, sample)
        try: profile(model, sample)
        except error as e: assert "burnt" in str(e)
        else:                                                # on a busy machine the first profile took another round
            assert 20 < fuse.count < at
            break
        assert snapshot(model, sample) == before, f"call {at} of {total}"

def test_earlier_results_survive_a_failed_profile():
    fuse = Fuse()
    ra = RooflineAnalyzer(net(fuse), torch.ones(2, 4), peaks).profile(steps=2, warmup=0)
    rows = ra.results
    fuse.at, fuse.count, fuse.error = 3, 0, RuntimeError
    with pytest.raises(RuntimeError): ra.profile(steps=2, warmup=0)
    assert ra.results is rows

def test_files_are_whole_or_not_there(tmp_path):
    "A file that cannot be written fails with its name, and nothing is left of it."
    ra = RooflineAnalyzer(nn.Linear(4, 4), torch.ones(2, 4), peaks).profile(steps=2)
    for kind in ("json", "csv", "html"):
        with pytest.raises(OSError, match=f"r.{kind}"): getattr(ra, f"to_{kind}")(tmp_path/"missing"/f"r.{kind}")
        assert list(tmp_path.iterdir()) == []

@pytest.mark.parametrize("again, kept", [(1e15, 1e15), (1e2, 1e3)])
def test_roofs_from_a_bad_moment_are_measured_again(tmp_path, monkeypatch, again, kept):
    """Rows stand above roofs that were kept two hours ago: the higher of these and of new ones are the roofs, and
    are kept."""
    from fasterbench.probes import peaks as module
    rates, ago = [1e3, again], (datetime.now(timezone.utc) - timedelta(hours=2)).isoformat()
    def measured(here, *settings):
        rate, date = rates.pop(0), dict(date=ago) if len(rates) == 1 else {}
        return HardwarePeaks(rate, rate / 4, device="cpu", environment=module.environment(here.properties()) | date)
    monkeypatch.setenv("FASTERBENCH_CACHE", str(tmp_path))
    def busy(*seconds): return True            # on a quiet machine roofs below what was reached are measured once more
    for name, value in dict(_remembered={}, _reached={}, _measure=measured, is_busy=busy).items():
        monkeypatch.setattr(module, name, value)
    def profile():
        return RooflineAnalyzer(torch.nn.Linear(64, 64), torch.ones(8, 64)).profile(steps=3, warmup=0).result
    with pytest.warns(UserWarning, match=f"of 1 rows were faster than the roofs of {ago[:16]}.*measured again"):
        found = profile()
    assert (found.peaks.peak_flops == kept and rates == []
            and bool(sum(p.above_roof for p in found.points)) == (kept == 1e3))
    # kept in the process, and on disk; nothing is measured a third time
    for _ in range(2):
        assert profile().peaks.peak_flops == kept
        module._remembered.clear()

class Devices(TorchDispatchMode):
    "Where operators put their results."
    def __init__(self): super().__init__(); self.used = set()
    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        self.used |= {t.device.type for t in tensors_of(out)}
        return out

def test_a_default_device_moves_no_calibration(capsys):
    with torch.device("meta"):
        with Devices() as devices:
            timestamp_cost(n=5, rounds=2), node_cost(20, 2)
            for kind in streams: memory_probe(kind, 1 << 16, accelerator(torch.device("cpu"))).build()()
        assert devices.used == {"cpu"}
        model, x = nn.Linear(64, 64, device="cpu"), torch.ones(16, 64, device="cpu")
        for _ in range(2): RooflineAnalyzer(model, x, peaks).profile(steps=5, progress=False).summary()
    assert "Linear" in capsys.readouterr().out

def test_rows_of_no_time_at_all_are_told():
    assert Timing(0.0, 0.0, 0.0, 0.0, 1, 1, "", 0.0, ops_s=1.0).warnings == []
