"Collectives as work and the network as a roof: processes over gloo, under torchrun."
import json, os, signal, subprocess, sys
from pathlib import Path

import pytest

root = Path(__file__).resolve().parent.parent

def torchrun(*command, ranks=2, timeout=100, **environment):
    "The finished `torchrun` of `command`; what it started is gone afterwards, whatever happened."
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *command]
    env = os.environ | dict(OMP_NUM_THREADS="1", PYTHONPATH=str(root)) | environment
    p = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
    try: out, err = p.communicate(timeout=timeout)
    finally:
        try: os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError: pass
    return subprocess.CompletedProcess(line, p.returncode, out, err)

start = """
import json, sys, torch
import torch.distributed as dist
from datetime import timedelta
from torch import nn
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, ranks = dist.get_rank(), dist.get_world_size()
def net(): torch.manual_seed(0); return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
x = torch.ones(4, 64)
found = {}
"""
end = """
if rank == 0: print(json.dumps(found))
dist.destroy_process_group()
"""

def on_ranks(tmp_path, body, ranks=2):
    "What rank 0 of a script puts in `found`."
    script = tmp_path/"ranks.py"
    script.write_text(start + body + end)
    done = torchrun(str(script), ranks=ranks)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])

counting = """
from fasterbench.work.count import count_work
def count(name, model, sample=x, **how):
    work = count_work(model, sample, **how)
    found[name] = dict(calls=[[c.operator, c.phase, c.category, *c.sent] for c in work.trace if c.sent], wire_bytes=work.wire_bytes, unknown=work.unknown_ops,
                       sides=[[sum(t.bytes for t in s) for s in (c.reads, c.writes)] for c in work.trace if c.sent])
"""

parameters = 4 * (64 * 64 + 64 + 64 * 8 + 8)      # B of `net`

def test_data_parallel(tmp_path):
    "DDP reduces all gradients once: from the backward of the autograd engine, in C++."
    found = on_ranks(tmp_path, counting + """
model = nn.parallel.DistributedDataParallel(net())
before = [p.clone() for p in model.parameters()]
count("step", model, backward=True, optimizer=torch.optim.SGD(model.parameters(), 0.1))
assert all(map(torch.equal, before, model.parameters()))
count("forward", model)
found["twin"] = [dist.get_world_size()]
""")
    assert found["step"]["calls"] == [["c10d::allreduce_", "backward", "communication", "all_reduce", 2, parameters, parameters]]
    assert found["step"]["sides"] == [[parameters, parameters]] and found["step"]["unknown"] == {}
    assert found["step"]["wire_bytes"] == parameters

@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded(tmp_path, ranks):
    "FSDP2 gathers all parameters in the forward and again in backward, and reduces and scatters all gradients."
    found = on_ranks(tmp_path, counting + """
from torch.distributed.fsdp import fully_shard
model = net()
for m in (model[0], model[2], model): fully_shard(m)
count("step", model, backward=True, optimizer=torch.optim.SGD(model.parameters(), 0.1))
""", ranks)["step"]
    kinds = [(c[3], c[1]) for c in found["calls"]]
    assert sorted(kinds) == sorted([("all_gather", "forward")] * 2 + [("all_gather", "backward")] * 2 + [("reduce_scatter", "backward")] * 2)
    assert found["wire_bytes"] == 3 * parameters * (ranks - 1) / ranks and found["unknown"] == {}
    for c, (read, written) in zip(found["calls"], found["sides"]):      # a shard and the whole
        shard, whole = (read, written) if c[3] == "all_gather" else (written, read)
        assert whole == c[5] == ranks * shard

def test_tensor_parallel(tmp_path):
    "The row-wise layer adds up its output; columns and rows of the weights stay where they are."
    found = on_ranks(tmp_path, counting + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
model = parallelize_module(net(), init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
count("forward", model)
sample = torch.ones(4, 64, requires_grad=True)
count("step", model, sample, backward=True)
""")
    output, input = 4 * 4 * 8, 4 * 4 * 64
    assert found["forward"]["calls"] == [["_c10d_functional::all_reduce", "forward", "communication", "all_reduce", 2, output, output]]
    assert [(c[1], c[3], c[5]) for c in found["step"]["calls"]] == [("forward", "all_reduce", output), ("backward", "all_reduce", input)]

def test_every_collective_as_a_run_sends_it(tmp_path):
    "Collectives in a module: what is read and written on rank 0, what is restored afterwards, and a group of one rank."
    found = on_ranks(tmp_path, counting + """
alone = [dist.new_group([i]) for i in range(ranks)][rank]
class Net(nn.Module):
    def __init__(self): super().__init__(); self.register_buffer("seen", torch.ones(100))
    def forward(self, x):
        parts = [torch.empty(100) for _ in range(ranks)]
        dist.all_reduce(self.seen)
        dist.broadcast(x, 0)
        dist.all_gather(parts, x)
        dist.reduce_scatter(x, parts)
        dist.gather(x, parts if rank == 0 else None, 0)
        dist.scatter(x, parts if rank == 1 else None, 1)
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        dist.barrier()
        dist.all_reduce(x, group=alone)
        return x
model = Net()
count("all", model, torch.ones(100))
assert model.seen.tolist() == [1.0] * 100
""")["all"]
    rows = {(c[3], c[4]): (c[5], c[6], *sides) for c, sides in zip(found["calls"], found["sides"])}
    assert rows == {("all_reduce", 2): (400, 400, 400, 400), ("broadcast", 2): (400, 400, 400, 0), ("all_gather", 2): (800, 400, 400, 800),
                    ("reduce_scatter", 2): (800, 400, 800, 400), ("gather", 2): (800, 400, 400, 800), ("scatter", 2): (800, 400, 0, 400),
                    ("send_recv", 2): (400, 400, 400, 0), ("barrier", 2): (0, 0, 0, 0), ("all_reduce", 1): (400, 0, 400, 400)}
