"""Whatever goes wrong in a training step while it is profiled, and whenever: model, loss, optimizer and process are
left as they were."""
import os

import pytest
import torch
from torch import nn

from fasterbench.roofline import RooflineAnalyzer
from conftest import nightly_only
from test_faults import Fuse, Step, peaks, snapshot

class Burning(torch.autograd.Function):
    "Does nothing, through the fuse, in both directions."
    @staticmethod
    def forward(ctx, x, fuse): ctx.fuse = fuse; fuse(); return x.clone()
    @staticmethod
    def backward(ctx, g): ctx.fuse(); return g, None

class Layer(Step):
    def forward(self, x): return Burning.apply(super().forward(x.clone()), self.fuse[0])

class Loss(nn.Module):
    "A loss with a parameter and a buffer of its own."
    def __init__(self, fuse):
        super().__init__()
        self.fuse, self.scale = [fuse], nn.Parameter(torch.ones(())); self.register_buffer("seen", torch.zeros(1))
    def forward(self, out): self.fuse[0](); self.seen += 1; return (out * self.scale).square().mean()

class Adam(torch.optim.AdamW):
    def __init__(self, params, fuse): super().__init__(params, lr=0.1); self.fuse = fuse
    def step(self, closure=None):
        self.fuse()
        super().step(closure)
        self.steps_done = getattr(self, "steps_done", 0) + 1
        self.fuse()

def setting(fuse, stepped):
    """A model, a loss, an optimizer that also steps a tensor of neither, and a sample; with an optimizer state, or
    before the first step."""
    torch.manual_seed(0)
    model, loss, other = (nn.Sequential(Layer(fuse), nn.BatchNorm1d(4), nn.Dropout(), Layer(fuse)), Loss(fuse),
                          nn.Parameter(torch.ones(2)))
    model[1].eval()
    model[3].lin.bias.requires_grad_(False)
    optimizer, sample = Adam([*model.parameters(), *loss.parameters(), other], fuse), torch.ones(3, 4)
    if stepped:
        loss(model(sample)).backward()
        optimizer.step()
    else: model[0].lin.weight.grad, other.grad = torch.ones(4, 4), torch.ones(2)
    return model, loss, optimizer, other, sample

def state(model, loss, optimizer, other, sample):
    "Return all that a user could notice, as values and identities."
    held = [(id(p), {k: (id(v), v.numpy().tobytes()) if isinstance(v, torch.Tensor) else v for k, v in s.items()})
            for p, s in optimizer.state.items()]
    groups = [{k: list(map(id, v)) if k == "params" else v for k, v in g.items()} for g in optimizer.param_groups]
    attributes = {k: v if isinstance(v, (int, float, str)) else id(v) for k, v in optimizer.__dict__.items()}
    tensors = [(p.detach().numpy().tobytes(), id(p.grad), None if p.grad is None else p.grad.numpy().tobytes())
               for p in (other, *loss.parameters(), *loss.buffers())]
    process = torch._C._autograd._profiler_enabled(), os.environ.get("KINETO_LOG_LEVEL")
    return process, snapshot(model, sample), held, groups, attributes, tensors, loss.training

def profile(model, loss, optimizer, other, sample):
    return RooflineAnalyzer(model, sample, peaks).profile(
        warmup=1, steps=2, backward=True, loss=loss, optimizer=optimizer)

@pytest.mark.parametrize("stepped", [False, True])
def test_a_training_profile_leaves_no_trace(stepped):
    them = setting(Fuse(), stepped)
    before = state(*them)
    ra = profile(*them)
    assert state(*them) == before
    phases = {r.phase for r in ra.results if r.category != "overhead"}
    assert phases == {"forward", "backward", "update"} and len(ra.steps) == 2

@nightly_only("hundreds of steps; test_interrupts has lines of a profile")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("stepped", [False, True])
def test_interrupted_at_any_stage(error, stepped):
    "At every third call, once a week at every one."
    fuse = Fuse()
    them = setting(fuse, stepped)
    fuse.count = 0
    profile(*them)
    total = fuse.count
    assert total > 60
    for at in range(1, total + 1):
        fuse = Fuse()
        them = setting(fuse, stepped)
        fuse.count, fuse.at, fuse.error = 0, at, error
        before = state(*them)
        try: profile(*them)
        except error as e: assert str(e) == "burnt"
        else:                                               # the first profile took another round
            assert total / 3 < fuse.count < at
            break
        assert state(*them) == before, f"call {at} of {total}"

def test_steps_are_obeyed_exactly():
    """With an optimizer that has its state: the warm-up, one of them to count, then timestamped, bare and
    operator-timed ones."""
    for steps, warmup in ((1, 0), (2, 1), (5, 3), (9, 3)):
        fuse = Fuse()
        them = setting(fuse, True)
        fuse.count = 0
        model, loss, optimizer, _, sample = them
        ra = RooflineAnalyzer(model, sample, peaks)
        ra.profile(warmup=warmup, steps=steps, backward=True, loss=loss, optimizer=optimizer)
        assert len(ra.steps) == steps and ra.timing.steps <= steps
        # where nothing is steady; twice where others are at work
        most = max(1 + warmup, 2) + 3 * steps
        assert max(1, warmup) + steps + 2 <= fuse.count / 11 <= 2 * most + 1           # eleven fuses in a step
