"Collectives as work and the network as a roof: ranks over gloo."
import json

import pytest, torch

from conftest import heavy_only, nightly_only
from forked import command_line, python, ranks

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

def on_ranks(tmp_path, body, n=2):
    "Run a script on several ranks; return the `found` of rank 0."
    done = ranks(start + body + end, n, tmp_path)
    assert not any(d.returncode for d in done), [d.stderr[-2000:] for d in done]
    return json.loads(done[0].stdout.splitlines()[-1])

counting = """
from fasterbench.work.count import count_work
def count(name, model, sample=x, **how):
    work = count_work(model, sample, **how)
    found[name] = dict(calls=[[c.operator, c.phase, c.category, *c.sent[:4]] for c in work.trace if c.sent],
                       wire_bytes=work.wire_bytes, unknown=work.unknown_ops,
                       unknown_sends=work.unknown_sends, rows=[m.wire_bytes for m in work.by_module().values()],
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
other = nn.parallel.DistributedDataParallel(net())
count("adam", other, backward=True, optimizer=torch.optim.Adam(other.parameters()))
found["twin"] = [dist.get_world_size()]
""")
    # not those of the second step, which sorts the buckets
    assert found["adam"]["calls"] == found["step"]["calls"]
    assert (found["step"]["calls"] == [["c10d::allreduce_", "backward", "communication", "all_reduce", 2, parameters,
                                        parameters]])
    assert found["step"]["sides"] == [[parameters, parameters]] and found["step"]["unknown"] == {}
    assert found["step"]["wire_bytes"] == parameters

@pytest.mark.parametrize("n", [2, 4])
def test_sharded(tmp_path, n):
    "FSDP2 gathers all parameters in the forward and again in backward, and reduces and scatters all gradients."
    found = on_ranks(tmp_path, counting + """
from torch.distributed.fsdp import fully_shard
model = net()
for m in (model[0], model[2], model): fully_shard(m)
count("step", model, backward=True, optimizer=torch.optim.SGD(model.parameters(), 0.1))
""", n)["step"]
    kinds = [(c[3], c[1]) for c in found["calls"]]
    assert (sorted(kinds) == sorted([("all_gather", "forward")] * 2 + [("all_gather", "backward")] * 2
                                    + [("reduce_scatter", "backward")] * 2))
    assert found["wire_bytes"] == 3 * parameters * (n - 1) / n and found["unknown"] == {}
    for c, (read, written) in zip(found["calls"], found["sides"]):      # a shard and the whole
        shard, whole = (read, written) if c[3] == "all_gather" else (written, read)
        assert whole == c[5] == n * shard

def test_gradients_that_wait_for_their_reduction(tmp_path):
    """FSDP2 accumulates without reducing: a step that is counted in between adds nothing, be it the first step or a
    later one."""
    found = on_ranks(tmp_path, counting + """
from torch.distributed.fsdp import fully_shard
def gradients(before, counted):
    model = net()
    for m in (model[0], model[2], model): fully_shard(m)
    model.set_requires_gradient_sync(False)
    for _ in range(before): model(x).sum().backward()
    if counted: count("step", model, backward=True)
    model.set_requires_gradient_sync(True)
    model(x).sum().backward()
    return [p.grad.full_tensor() for p in model.parameters()]
found["same"] = [all(map(torch.equal, gradients(n, True), gradients(n, False))) for n in (0, 2)]
""")
    assert found["same"] == [True, True]

@heavy_only("two ranks that wait for each other")
def test_hooks_that_work_in_other_threads(tmp_path):
    """What a communication hook of DDP does once all ranks have come is not counted, and said to be unknown; its
    state comes back."""
    found = on_ranks(tmp_path, counting + """
import time
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
hooks = dict(plain=(None, default_hooks.allreduce_hook), half=(None, default_hooks.bf16_compress_hook),
             low_rank=(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook))
for name, hook in hooks.items():
    model = nn.parallel.DistributedDataParallel(net())
    def late(state, bucket, hook=hook): time.sleep(0.3 * rank); return hook[1](state, bucket)
    model.register_comm_hook(hook[0], late)
    for _ in range(3): model(x).sum().backward()
    def held(of): return of.iter, [e.clone() for e in of.error_dict.values()], of.rng.get_state()[1].tolist()
    before = hook[0] and held(hook[0])
    count(name, model, backward=True)
after = held(hook[0])
found["state"] = before[::2] == after[::2] and all(map(torch.equal, before[1], after[1])) and len(before[1])
""")
    thread = " (in another thread)"
    assert found["plain"]["unknown"] == {} and found["half"]["unknown"] == {"aten::copy_" + thread: 1}
    assert (found["low_rank"]["unknown"]["c10d::allreduce_" + thread] == 2
            and "aten::bmm" + thread in found["low_rank"]["unknown"])
    known, unknown = ([found[name][k] for k in ("wire_bytes", "unknown_sends")] for name in ("half", "low_rank"))
    assert (known == [parameters // 2, {}] and unknown == [None, {"c10d::allreduce_" + thread: 2}]
            and None in found["low_rank"]["rows"])
    assert found["state"] > 0

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
    assert (found["forward"]["calls"] == [["_c10d_functional::all_reduce", "forward", "communication", "all_reduce",
                                           2, output, output]])
    assert ([(c[1], c[3], c[5]) for c in found["step"]["calls"]]
            == [("forward", "all_reduce", output), ("backward", "all_reduce", input)])

def test_every_collective_as_a_run_sends_it(tmp_path):
    """Collectives in a module: what is read and written on rank 0, what is restored afterwards, and a group of one
    rank."""
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
    assert (rows == {("all_reduce", 2): (400, 400, 400, 400), ("broadcast", 2): (400, 400, 400, 0),
                     ("all_gather", 2): (800, 400, 400, 800),
                     ("reduce_scatter", 2): (800, 400, 800, 400), ("gather", 2): (800, 400, 400, 800),
                     ("scatter", 2): (800, 400, 0, 400),
                     ("send_recv", 2): (400, 400, 400, 0), ("barrier", 2): (0, 0, 0, 0),
                     ("all_reduce", 1): (400, 0, 400, 400)})

@nightly_only("measures a network")
def test_peaks_command(tmp_path):
    "Rank 0 prints and writes, and what it wrote is read again; outside torchrun the error says what to start."
    from fasterbench.roofs.hardware import HardwarePeaks
    from fasterbench.probes.peaks import measure_peaks
    measure_peaks("cpu", progress=False)                           # kept in the cache of the tests
    kept, page = tmp_path/"peaks.json", tmp_path/"peaks.html"
    threads = torch.get_num_threads()                              # roofs are kept for a number of threads
    done = ranks(f"torch.set_num_threads({threads})\n"
                 + command_line("peaks", "--network", "--json", kept, "--html", page))
    assert [d.returncode for d in done] == [0, 0], done[0].stderr[-3000:]
    out = done[0].stdout
    assert done[1].stdout == "" and out.count("network: gloo, 1 host") == 1
    network = HardwarePeaks.from_json(kept).network
    assert ({r.collective for r in network.roofs}
            == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"}
            - set(network.environment["skipped"]))
    assert all(r.ranks == 2 and r.samples and r.name in out for r in network.roofs)
    assert "all_reduce over 2" in page.read_text()
    done = python(command_line("peaks", "--network"))
    assert (done.returncode == 2 and "torchrun --nproc-per-node 2 -m fasterbench peaks --network" in done.stderr
            and done.stdout == "")
    assert len(done.stderr.splitlines()) == 1

@heavy_only("waits for the limit of a rank")
def test_a_rank_that_does_not_measure_ends_the_others():
    "After the limit, not after the 60 s of the group, which has its own limit again."
    code = """
store = dist.distributed_c10d._get_default_store()
from fasterbench.network.network_probes import measure_network
if rank == 1: store.wait(["told"], timedelta(seconds=300))         # until rank 0 has given up
try: found = measure_network(sizes=[1024, 65536]) if rank == 0 else None
except RuntimeError as e: found = str(e)
store.set("told", "yes")
print(json.dumps([str(found), dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds()]))
"""
    done = ranks(start + code, FASTERBENCH_TIMEOUT="3")
    text, limit = json.loads(done[0].stdout.splitlines()[-1])
    assert text.startswith("measure_network ended in a collective (") and limit == 60, (text, limit)
    assert ("the others wait 3 s at most, which FASTERBENCH_TIMEOUT sets" in text
            and ("imed out" in text or "timeout" in text))

meshed = """
from torch.distributed.device_mesh import init_device_mesh
from fasterbench.network.network_probes import measure_network
sizes = [4**k for k in range(5, 9)]
"""

def test_groups_of_a_mesh(tmp_path):
    """Of a mesh of 2 x 2 ranks each dimension has roofs of its own; what a row sends stands under that of its
    dimension.

    Ranks 0, 1, 3 are a group of two distances. A mesh whose groups look alike is refused on every rank, and nobody
    waits."""
    found = on_ranks(tmp_path, meshed + """
from torch.distributed.device_mesh import DeviceMesh
from fasterbench.roofs.call_row import network_fields
from fasterbench.work.count import count_work
from fasterbench.network import network_probes as probes
# times are made up: a latency of 0.1 ms per distance of the first two ranks, and 1 GB/s
real = probes._collective_time
def sample(kind, n, device, group, repeats):
    real(kind, n, device, group, repeats)
    first, second, *_ = dist.get_process_group_ranks(group)
    return 1e-4 * (second - first) + n * 1e-9
probes._collective_time = sample
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
peaks = measure_network(mesh, sizes, repeats=1)
found["names"], found["environment"] = [r.name for r in peaks.roofs], peaks.environment
class Net(nn.Module):
    def forward(self, x):
        for name in ("data", "tensor"): dist.all_reduce(x, group=mesh.get_group(name))
        return x
sent = [network_fields(call.sent, peaks) for call in count_work(Net(), torch.ones(100)).trace if call.sent]
found["sends"] = [one for call in sent for one in call["sends"]]
found["network_s"] = sum(call["network_s"] for call in sent)
uneven = dist.new_group([0, 1, 3])
if rank != 2: found["uneven"] = [r.name for r in measure_network(uneven, sizes, repeats=1).roofs]
try: measure_network(DeviceMesh("cpu", [[0, 1], [3, 2]]), sizes)
except ValueError as e: ring = str(e)
found["ring"] = [None] * ranks
dist.all_gather_object(found["ring"], ring)
""", 4)
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
    assert set(found["names"]) == {f"{kind} over 2{stride}" for kind in kinds for stride in (" (stride 2)", "")}
    assert ((found["environment"]["ranks"], found["environment"]["hosts"], found["environment"]["skipped"])
            == (4, 1, {}))
    assert found["sends"] == [["all_reduce over 2 (stride 2)", 400], ["all_reduce over 2", 400]]
    assert found["network_s"] == pytest.approx(2e-4 + 400e-9 + 1e-4 + 400e-9)
    assert ("all_reduce over 3 (strides 1, 2)" in found["uneven"]
            and all("do not tell apart" in text for text in found["ring"]))

def test_a_collective_without_a_roof_is_left_out(tmp_path):
    "Times that do not grow with the size show no bandwidth: the reason is kept, and said where a row sends that."
    found = on_ranks(tmp_path, meshed + """
from dataclasses import replace
from fasterbench import HardwarePeaks, RooflineAnalyzer
from fasterbench.network import network_probes as probes
from fasterbench.views.peaks_page import peaks_table
from fasterbench.views.table import footer
probes._collective_time = lambda kind, n, *more: 0.1 if kind == "all_reduce" else 1e-3 + n * 1e-9
peaks = replace(HardwarePeaks(1e11, 1e10), network=measure_network(sizes=sizes))
found["skipped"], found["table"] = peaks.network.environment["skipped"], peaks_table(peaks)
model = nn.parallel.DistributedDataParallel(net())
analyzer = RooflineAnalyzer(model, x, peaks).profile(backward=True, warmup=1, steps=2, progress=False)
found["footer"] = footer(analyzer.result)
""")
    why = "the largest message of 65536 B takes no longer than the smallest; larger messages are needed"
    assert found["skipped"] == {"all_reduce over 2": why} and "broadcast over 2" in found["table"]
    line = f"not measured: all_reduce over 2 ({why})"
    assert line in " ".join(found["table"].split()) and line in found["footer"]        # the table wraps it
    assert any("the network has no roof, or several, for some of these" in text for text in found["footer"])

def test_peaks_command_waits_as_long_as_a_profile_does():
    done = ranks(command_line("peaks", "--network"), FASTERBENCH_TIMEOUT="soon")
    assert all(d.returncode for d in done) and "FASTERBENCH_TIMEOUT='soon'" in done[0].stderr, done[0].stderr[-2000:]

profiled = """
from dataclasses import replace
from fasterbench import NetworkPeaks, NetworkRoof
from fasterbench.roofline import HardwarePeaks, RooflineAnalyzer
slow = NetworkPeaks((NetworkRoof("all_reduce", 2, 1.0, 1e9, 0.0, 0.0),))
model = nn.parallel.DistributedDataParallel(net())
for name, network in dict(known=slow, unknown=None).items():
    analyzer = RooflineAnalyzer(model, x, replace(HardwarePeaks(1e11, 1e10), network=network))
    result = analyzer.profile(backward=True, warmup=1, steps=2, progress=False).result
    found[name] = dict(rows=[[p.name, p.phase, p.bound, p.wire_bytes, p.network_s, p.sends]
                             for p in result.points if p.wire_bytes != 0],
                       least=[p.roof_time_s / p.time_s for p in result.points if p.wire_bytes],
                       ops=[[p.name, p.operator, p.wire_bytes] for p in result.ops if p.wire_bytes],
                       program=[result.program.wire_bytes, result.program.network_s, result.program.bound],
                       text=result._repr_html_(), csv=result.to_frame().wire_bytes.sum())
"""

def test_rows(tmp_path):
    """A latency of one second makes the step bound by the network; without a roof the table says it.

    The row of waiting has the bytes of its phase, and no layer has them: its time has no waiting in it. The
    operators say who sends."""
    found = on_ranks(tmp_path, profiled)
    second = pytest.approx(1 + parameters / 1e9)
    (row,) = found["known"]["rows"]
    assert row == ["(communication)", "backward", "network", parameters, second, [["all_reduce over 2", parameters]]]
    # it needs a second, and the model waits less: what the network needs is all of it
    assert found["known"]["least"] == [1.0]
    # it starts with the last gradient
    assert found["known"]["ops"] == [["module.0", "c10d::allreduce_", parameters]]
    assert found["known"]["program"] == [parameters, second, "network"] and found["known"]["csv"] == parameters
    (row,) = found["unknown"]["rows"]
    assert row[2] == "none" and row[3:5] == [parameters, None] and found["unknown"]["program"][1] is None
    assert ("send data (all_reduce over 2), and no roof of the network is known" in found["unknown"]["text"]
            and "send data" not in found["known"]["text"])

def test_roofs_of_the_network_alone(tmp_path):
    "Given `NetworkPeaks`, the roofs of the machine are measured and kept without them, for profiles and for samples."
    found = on_ranks(tmp_path, """
from fasterbench import NetworkPeaks, NetworkRoof, HardwarePeaks, RooflineAnalyzer, watch
from unittest.mock import patch
machine = HardwarePeaks(1e14, 1e13)            # above any CPU
for module in ("roofline", "running.watch"): patch(f"fasterbench.{module}.peaks_of", lambda *a, **how: machine).start()
slow = NetworkPeaks((NetworkRoof("all_reduce", 2, 1.0, 1e9, 0.0, 0.0, stride=1),))
model = nn.parallel.DistributedDataParallel(net())
result = RooflineAnalyzer(model, x, slow).profile(backward=True, warmup=1, steps=2, progress=False).result
found["profile"] = [result.peaks.network == slow, result.peaks.peak_flops, machine.network is None,
                    *(p.bound for p in result.points if p.name == "(communication)")]
with torch.profiler.profile():                            # its records are somebody else's: no waiting is recorded
    result = RooflineAnalyzer(model, x, slow).profile(backward=True, warmup=1, steps=2, progress=False).result
found["blind"] = [result.notes, [[p.bound, p.above_roof] for p in result.points]]
with watch(model, every=100, warmup=2, active=2, peaks=slow) as watched:
    for _ in range(60): model(x).sum().backward()
result = watched.result
found["watch"] = [result.peaks.network == slow, result.program.bound, result.program.wire_bytes,
                  sum(p.wire_bytes for p in result.points)]
found["bounds"], found["notes"] = [[p.bound, p.above_roof] for p in result.points], result.notes
""")
    assert found["profile"] == [True, 1e14, True, "network"]
    assert found["watch"] == [True, "network", parameters, parameters]
    # a latency of a second would put every layer above its roof: its time has some waiting in it, and nothing says how
    # much
    for notes, rows in ((found["notes"], found["bounds"]), found["blind"]):
        assert not any(bound == "network" or above for bound, above in rows)
        assert "time spent waiting for other ranks was not recorded; the rows include it" in notes

def test_traces_of_several_ranks(tmp_path):
    "Two ranks by hand, 1 MB of float32: rank 1 arrives 40 µs later, and the transfer takes its 60 µs."
    from fasterbench import read_trace
    from fasterbench.roofs.hardware import HardwarePeaks
    about = {"Collective name": "allreduce", "In msg nelems": 250_000, "Out msg nelems": 250_000, "Group size": 2,
             "dtype": "Float", "Process Group Name": "0"}
    def trace(rank, start, end):
        events = [dict(ph="X", cat="kernel", name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", pid=0, tid=7, ts=start,
                       dur=end - start, args=dict(about, correlation=1, device=0, stream=7)),
                  dict(ph="X", cat="kernel", name="multimem_all_reduce_kernel", pid=0, tid=7, ts=end + 5, dur=10,
                       args=dict(correlation=2, device=0, stream=7))]
        path = tmp_path/f"rank{rank}.json"
        path.write_text(json.dumps(dict(traceEvents=events, distributedInfo=dict(rank=rank, world_size=2),
                                        deviceProperties=[dict(id=0, name="NVIDIA H100")])))
        return path
    paths = [trace(0, 100, 200), trace(1, 140, 200)]
    for given in (paths, tmp_path):
        result = read_trace(given, peaks=HardwarePeaks(1e15, 3e12, device="cuda:0"))
        first, second = result.collectives
        assert ((first.kind, first.nbytes, first.ranks, first.last, first.alone)
                == ("all_reduce", 10**6, (0, 1), 1, False))
        assert (first.transfer_s == pytest.approx(60e-6) and first.wait_s == pytest.approx(20e-6)
                and first.bus_bandwidth == pytest.approx(1e6 / 60e-6))
        assert ((second.kind, second.nbytes, second.bus_bandwidth) == ("all_reduce", None, None)
                and second.transfer_s == pytest.approx(10e-6))
    again = tmp_path/"again.json"
    again.write_bytes(paths[0].read_bytes())
    with pytest.raises(ValueError, match="rank0.json and .*again.json are the same recording"):
        read_trace([*paths, again])
    assert len(read_trace(tmp_path.glob("rank*.json")).ops) == len(result.ops)      # any iterable of paths
    rows = {p.type: p for p in result.ops}
    assert {p.name for p in result.ops} == {"(communication) all_reduce"}
    assert ([rows[n].wire_bytes for n in ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "multimem_all_reduce_kernel")]
            == [10**6, None])
    assert result.program.wire_bytes is None                    # one of the two is unknown
    done = python(command_line("trace", *paths), tmp_path)
    assert done.returncode == 0, done.stderr
    line = next(l for l in done.stdout.splitlines() if l.startswith("all_reduce") and "1.00 MB" in l)
    assert line.split()[4:] == "2 of 2 1 60.0 µs 20.0 µs 1 16.7 GB/s".split()

def test_collectives_stand_in_the_file(tmp_path, capsys):
    """Two ranks by hand, 1 MB: the transfer takes 60 µs, rank 0 waits 40. `trace --json` keeps it, `report` prints
    it again without the traces."""
    from fasterbench import from_json
    from fasterbench.cli.main import app, register
    register()
    about = {"Collective name": "allreduce", "In msg nelems": 250_000, "Out msg nelems": 250_000, "Group size": 2,
             "dtype": "Float", "Process Group Name": "0"}
    paths = []
    for rank, start in ((0, 100), (1, 140)):
        event = dict(ph="X", cat="kernel", name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", pid=0, tid=7, ts=start,
                     dur=200 - start, args=dict(about, device=0, stream=7))
        paths.append(tmp_path/f"rank{rank}.json")
        paths[-1].write_text(json.dumps(dict(traceEvents=[event], distributedInfo=dict(rank=rank, world_size=2),
                                             deviceProperties=[dict(id=0, name="NVIDIA H100")])))
    printed = []
    for args in (["trace", *map(str, paths)], ["trace", *map(str, paths), "--json", str(tmp_path/"both.json")],
                 ["report", str(tmp_path/"both.json"), "--html", str(tmp_path/"both.html")]):
        app(args, standalone_mode=False)
        printed += [l.split() for l in capsys.readouterr().out.splitlines() if l.startswith("all_reduce")]
    assert printed == ["all_reduce 0 1.00 MB 2 of 2 1 60.0 µs 20.0 µs 1 16.7 GB/s".split()] * 3
    (one,) = from_json(tmp_path/"both.json").collectives
    assert (one.ranks == (0, 1) and one.last == 1 and one.transfer_s == pytest.approx(60e-6)
            and one.waits_s == pytest.approx((40e-6, 0)))
    damaged = json.loads((tmp_path/"both.json").read_text())
    damaged["collectives"][0]["waits_s"] = []
    (tmp_path/"damaged.json").write_text(json.dumps(damaged))
    with pytest.raises(ValueError, match=r"collectives\[0\].waits_s"): from_json(tmp_path/"damaged.json")
