"""Predictions against what others measured, where the folder with their data is there."""
import csv, gzip, itertools, json, os, re, subprocess, sys
from pathlib import Path

import pytest

from conftest import heavy_only, nightly, nightly_only

root = Path(__file__).resolve().parents[2]
shared = Path(os.environ.get("FASTERBENCH_SHARED", root.parent / "shared")) / "data"
sys.path.insert(0, str(root / "tests" / "benchmarks"))
needs_data = pytest.mark.skipif(not shared.is_dir(), reason=f"{shared} is not here")

@pytest.fixture(scope="module")
def proof():
    import predict
    sys.modules.pop("predict")
    return predict

@needs_data
def test_the_devices_of_others_are_in_the_table():
    from fasterbench.roofs.datasheet import datasheet, match_device
    extra = json.loads((shared / "datasheets_extra.json").read_text())
    for name, figures in (extra["devices"] | extra["corrections"]).items():
        own = datasheet(name)
        assert {k: v for k, (v, _) in figures.items()}.items() <= {k: p.value for k, p in own.items()}.items(), name
    for name, figures in extra["capacities"].items():
        own = match_device(name).device.capacities
        for key, ours, unit in (("L2_MB", "L2", 1 << 20), ("memory_GB", "memory", 1e9), ("power_W", "power", 1),
            ("link_GBps_per_direction", "link", 1e9)):
            assert key not in figures or figures[key] * unit == own[ours], (name, key)

@needs_data
def test_the_memory_of_a_device_is_what_its_driver_reports():
    "The least that a trace of the device says: an A100 of 40 GB has 42.3e9 B, a B300 of 288 GB 287.4e9."
    from fasterbench.roofs.datasheet import match_device
    found = {}
    for path in (shared / "traces").glob("*.json.gz"):
        with gzip.open(path, "rt", errors="replace") as f: head = f.read(4000)
        for name, total in re.findall(r'"name": "([^"]+)", "totalGlobalMem": (\d+)', head):
            device = match_device(name).device
            if device and "memory" in device.capacities: found.setdefault(device.name, []).append(int(total))
    assert (len(found) >= 4 and all(min(totals) == match_device(name).device.capacities["usable memory"]
                                    for name, totals in found.items())), found

@needs_data
def test_names_in_measurements_are_matched_without_doubt():
    from fasterbench.roofs.datasheet import match_device
    with gzip.open(shared / "neusight" / "linear.csv.gz", "rt") as f: names = {r["Device"] for r in csv.DictReader(f)}
    with open(shared / "neusight" / "models.csv") as f: names |= {r["device"] for r in csv.DictReader(f)}
    for name in names: assert match_device(name).device is not None and not match_device(name).caveat, name

@needs_data
def test_no_kernel_runs_above_its_limit(proof):
    "Every seventh kernel of five devices, in float32; once a week every one."
    from fasterbench.roofs.datasheet import datasheet_peaks
    peaks, seen, step = {}, 0, 1 if nightly else 7
    for file in ("linear", "bmm", "softmax", "ln", "elem"):
        with gzip.open(shared / "neusight" / f"{file}.csv.gz", "rt") as f:
            for r in itertools.islice(csv.DictReader(f), 0, None, step):
                device = peaks.setdefault(r["Device"], datasheet_peaks(r["Device"]))
                limit = proof.warm(proof.neusight_call(r["OPName"], r), device).limit
                assert limit <= float(r["Latency"]) * 1e-3, r
                seen += 1
    assert seen == (15508 if nightly else 2217)

def test_float32_has_the_limit_of_the_unit_that_it_may_run_on():
    """PyTorch runs convolutions in float32 as TF32 and products not, as its switches stand; the sheet of H100 has
    both rates."""
    import torch
    from torch import nn
    from fasterbench import predict
    from fasterbench.engine.process import preserved_process
    with torch.device("meta"):
        conv, linear, x, y = ((nn.Conv2d(512, 512, 3, padding=1), nn.Linear(8192, 8192), torch.randn(64, 512, 28, 28),
                               torch.randn(8192, 8192)))
    def limit(model, sample): return predict(model, sample, "NVIDIA H100 80GB HBM3").points[0].roof_time_s
    product = 2 * 64 * 28 * 28 * 512 * 512 * 9
    with preserved_process():
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
        # its bias is 0.1 % on the vector units
        assert limit(conv, x) == pytest.approx(product / 494.7e12, rel=1e-3)
        assert limit(linear, y) == pytest.approx(2 * 8192**3 / 66.9e12, rel=1e-3)
        torch.backends.cudnn.allow_tf32 = False
        assert limit(conv, x) == pytest.approx(product / 66.9e12, rel=1e-3)

@pytest.fixture(scope="module")
def singles():
    "The benchmark of single kernels, and the folder of its data."
    pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    import kernels
    return kernels, shared / "aiconfigurator"

formats = ("bfloat16", "fp8", "nvfp4", "sq", "int8_wo", "int4_wo")
every_nth = 1 if nightly else 8

@needs_data
def test_no_published_kernel_is_faster_than_its_limit(singles):
    "Products in six formats and attention on four devices; FP4 by its own peak."
    kernels, data = singles
    found = ([kernels.products(data, every_nth, formats)]
             + [kernels.attention(data, every_nth, kind) for kind in ("decode", "prefill")])
    for rows in found: assert (kernels.limit(rows) <= rows.measured).all()
    assert sum(len(rows.measured) for rows in found) > 15_000 / every_nth

@needs_data
def test_rows_above_main_memory_fit_into_the_cache(singles):
    """Attention on an L40S is faster than its main memory as long as what it reads fits into its L2, and on an H100
    never."""
    kernels, data = singles
    for device, faster_there in (("l40s", True), ("h100", False)):
        rows = kernels.attention(data, every_nth, "decode")
        rows = rows.where(rows.device == device)
        faster = rows.moved / rows.bandwidth > rows.measured
        assert faster.any() == faster_there and (rows.moved[faster] < 1.3 * 96 * 2**20).all()

@needs_data
def test_kernels_are_near_what_is_expected(singles):
    "The mean of the median errors of four devices."
    kernels, data = singles
    constants = kernels.model.constants
    for rows, formula, most in ((kernels.products(data, every_nth), kernels.time_of_products, 0.115),
                                (kernels.attention(data, every_nth, "decode"), kernels.time_of_attention, 0.185),
                                (kernels.attention(data, every_nth, "prefill"), kernels.time_of_attention, 0.17)):
        assert kernels.over_devices(rows, formula(rows, constants)) < most

@needs_data
@heavy_only("fits the constants four times")
@pytest.mark.parametrize("kind", ("products", "decode", "prefill"))
def test_devices_that_were_left_out_of_the_fit(singles, kind):
    "Errors and intervals where the constants were fitted on the other three devices."
    import numpy as np
    kernels, data = singles
    if kind == "products":
        rows, formula, names = kernels.products(data, 8), kernels.time_of_products, kernels.product_names
    else:
        rows, formula = kernels.attention(data, 8, kind), kernels.time_of_attention
        names = kernels.attention_names[kind]
    constants, sigma = kernels.model.constants, kernels.model.spread["matmul" if kind == "products" else "attention"]
    took, wide = kernels.left_out(rows, formula, names, constants), np.exp(kernels.model.z80 * sigma.value)
    again = took * formula(kernels.repeated(rows, kind), constants) / formula(rows, constants)
    inside = (np.minimum(took / wide, again) <= rows.measured) & (rows.measured <= took * wide)
    assert kernels.over_devices(rows, took) < dict(products=0.125, decode=0.20, prefill=0.18)[kind]
    assert 0.8 <= inside.mean() <= 0.9
    for device in kernels.devices: assert 0.75 <= inside[rows.device == device].mean() <= 0.96
    if kind == "decode":           # vLLM alone, on each device
        for device in kernels.devices:
            at = (rows.device == device) & (rows.engine == "vllm")
            assert kernels.error(rows.where(at), took[at]) < 0.2, device

@heavy_only("predicts a hundred programs")
@needs_data
def test_programs_of_single_operators_in_float32(tmp_path):
    "KernelBench on two boards: none above its limit, and 80 % intervals that mean it, of convolutions as of all."
    from leave_out import kernelbench
    found = list(kernelbench(tmp_path, 1)())
    assert len(found) == 2 * 98 and not [r.name for r in found if r.limit > r.fastest]
    def inside(rows): return sum(r.low <= r.measured <= r.high for r in rows) / len(rows)
    # its batch norm was timed in training mode; in eval mode it would be expected at 0.36 of the measured time
    norms = [r.expected / r.measured for r in found if r.name == "33_BatchNorm"]
    assert len(norms) == 2 and all(0.8 < n < 1.25 for n in norms)
    convolutions = [r for r in found if r.family == "convolution float32"]
    assert len(convolutions) == 48 and 0.75 <= inside(convolutions) <= 0.9 and 0.75 <= inside(found) <= 0.95
    errors = sorted(abs(r.expected / r.measured - 1) for r in convolutions)
    assert errors[24] < 0.25                                                        # it was 0.4 to 0.8, with 0 inside
    widths = sorted(r.high / r.low for r in convolutions)    # two programs, one on each board, are of two convolutions
    assert widths[-3] < 2.5 < widths[-2] < 3.5

def test_what_was_never_measured_has_a_range_and_no_expected_time():
    "Recurrent layers, sorts, FFTs, products in float64, 3-D: the range begins at the limit, and the words say why."
    import torch
    from torch import nn
    from fasterbench import predict
    class Sort(nn.Module):
        def forward(self, x): return torch.sort(x)[0]
    class Fourier(nn.Module):
        def forward(self, x): return torch.fft.fft(x)
    with torch.device("meta"):
        tried = ((nn.GRU(64, 64), (32, 8, 64), "recurrent layers"), (nn.LSTM(64, 64), (32, 8, 64), "recurrent layers"),
                 (Sort(), (4096, 512), "sort"), (Fourier(), (512, 512), "FFT"),
                 (nn.Conv3d(4, 8, 3), (2, 4, 16, 16, 16), "3-D convolutions"),
                 (nn.MaxPool3d(2), (2, 4, 16, 16, 16), "3-D pooling"))
    for model, shape, words in tried:
        found = predict(model, torch.empty(shape, device="meta"), "NVIDIA H100 80GB HBM3")
        p, text = found.program, found.text()
        assert p.uncertain and p.interval_s[0] == p.roof_time_s and p.interval_s[1] > 10 * p.roof_time_s, words
        assert (words in found.notes[0] and "no expected time" in found.notes[0] and "80 %" not in text
                and "never measured" in text)
    measured = predict(nn.Linear(512, 512), torch.empty(4096, 512), "NVIDIA H100 80GB HBM3")
    assert not measured.program.uncertain and "80 % interval" in measured.notes[0]

def test_attention_in_float32_has_a_third_of_the_tf32_peak():
    """The memory-efficient kernel computes each product as three in TF32; of an RTX 4090, whose vector units are
    faster, it has those."""
    import torch
    from torch import nn
    from fasterbench import predict
    class Attention(nn.Module):
        def forward(self, q): return nn.functional.scaled_dot_product_attention(q, q, q)
    q = torch.empty(8, 16, 4096, 64, device="meta")
    flops = 2 * 2 * 8 * 16 * 4096**2 * 64
    for device, rate in (("NVIDIA H100 80GB HBM3", 494.7e12 / 3), ("NVIDIA GeForce RTX 4090", 128 * 256 * 3.105e9)):
        limit = predict(Attention(), q, device).program.roof_time_s
        assert flops / rate <= limit < 1.1 * flops / rate

def test_a_cache_may_keep_a_part_of_what_does_not_fit():
    "140 MB in 134 MB of L2: a walk that forgets the oldest first finds nothing again, and a GPU does."
    import torch
    from torch import nn
    from fasterbench import predict
    size = 140 * 10**6
    class Sum(nn.Module):
        def forward(self, x): return x.sum()
    limit = predict(Sum(), torch.empty(size // 4, device="meta"),
                    "NVIDIA RTX PRO 6000 Blackwell Server Edition").program.roof_time_s
    assert limit < size / 1.792e12 / 2 and limit >= (size - 134217728) / 1.792e12

@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    "Where counts of models are kept."
    return tmp_path_factory.mktemp("counted")

twelve = {"resnet18", "mobilenetv3_large_100", "seresnet50", "wide_resnet50_2", "resnet50", "efficientnet_b0", "vgg16",
          "densenet121", "regnety_032", "resnext50_32x4d", "mobilenetv2_100", "repvgg_a2"}

@needs_data
@nightly_only("counts twelve models")
def test_timm_models_run_below_their_limit_and_near_what_is_expected(proof, counted):
    "Models that are counted in seconds; tests/benchmarks/predict.py does all."
    pytest.importorskip("timm")
    for file, device in (("rtx3090", "NVIDIA GeForce RTX 3090"), ("rtx4090", "NVIDIA GeForce RTX 4090")):
        rows, failed, _ = proof.timm_rows(counted, file, device, 1, keep=lambda name: name in twelve)
        assert not failed and len(rows) >= len(twelve)
        assert all(limit <= measured for _, measured, limit, *_ in rows)
        errors = sorted(abs(expected / measured - 1) for _, measured, _, expected, _ in rows)
        assert errors[len(errors) // 2] < 0.15, (device, errors)

def test_predictions_are_told_apart_by_their_batch():
    "A prediction knows what the model was called with, as a measurement does."
    import torch
    from fasterbench import compare, predict
    found = [predict(torch.nn.Linear(4, 2), torch.randn(b, 4), "NVIDIA H100 80GB HBM3") for b in (32, 1, 8)]
    assert found[0].sample == [dict(name="0", shape=[32, 4], dtype="float32")]
    series = compare(*found)
    assert series.labels == ["batch 1", "batch 8", "batch 32"] and series.quantity == "batch"

def test_a_prediction_says_what_it_was_not_given():
    "Beside a profile of the same step nothing of the call differs; an optimizer is named by its class."
    import torch
    from fasterbench import predict
    from fasterbench.comparing.differences import differences
    net, x = torch.nn.Linear(8, 8), torch.ones(2, 8)
    forward = predict(net, x, on="H100")
    step = predict(net, x, on="H100", backward=True, optimizer=torch.optim.SGD(net.parameters(), 0.1))
    assert (forward.call == dict(backward=False, loss=None, optimizer=None)
            and step.call == dict(backward=True, loss=None, optimizer="SGD"))
    assert {"backward: False → True", "optimizer: not given → SGD"} <= set(differences([forward, step]))

@heavy_only("six seconds of counting, alone in a process")
def test_predict_is_fast_and_needs_no_memory_for_weights():
    "A language model of 7 billion parameters: 27 GB of weights would not pass a limit of 3 GB."
    pytest.importorskip("transformers")
    script = """
import resource, time, torch, transformers
from fasterbench.predicting.predict import predict
config = transformers.LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
                                  num_attention_heads=32)
with torch.device("meta"): model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
start = time.process_time()
result = predict(model, dict(input_ids=torch.zeros(1, 512, dtype=torch.long)), "NVIDIA H100 80GB HBM3")
print(time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
      result.program.dense_flops, result.program.contraction_flops)
"""
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, cwd=root,
        check=True).stdout
    busy, memory, dense, needed = map(float, out.split()[-4:])
    assert memory < 3e9 and busy < 20
    # by hand: per word 2 × the weights of products, and attention: 2 · 2 · 4096 per layer, word and key, of which a
    # word needs (512 + 1) / 2
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000
    def by_hand(keys): return 512 * (2 * weights + 32 * 4 * keys * 4096)
    assert abs(dense / by_hand(512) - 1) < 1e-3 and abs(needed / by_hand(513 / 2) - 1) < 1e-3

@pytest.mark.parametrize("wrong", ("int7", "int8", "float64", "float32", 5, True))
def test_autocast_to_what_it_cannot_is_said(wrong):
    "What was given, and what autocast casts to; by name and as a dtype of torch."
    import torch
    from fasterbench.predicting.predict import predict
    for given in (wrong, getattr(torch, str(wrong), wrong)):
        with pytest.raises(ValueError) as raised:
            predict(torch.nn.Linear(4, 4), torch.zeros(2, 4), "NVIDIA H100 80GB HBM3", autocast=given)
        assert str(raised.value) == f"autocast={given!r}: the dtypes of autocast are bfloat16 and float16"

@pytest.mark.parametrize("device", ("NVIDIA H100 80GB HBM3", "cpu"))
def test_a_model_without_operators_has_a_limit_of_0_s(device):
    "It is said in one line, without an interval and without a host that has nothing to launch."
    import torch
    from fasterbench import HardwarePeaks
    from fasterbench.predicting.predict import predict
    on = HardwarePeaks(1e12, 1e11) if device == "cpu" else device
    found = predict(torch.nn.Identity(), torch.zeros(3), on)
    assert (found.program.roof_time_s, found.program.time_s, found.program.interval_s) == (0, 0, ())
    assert found.notes == [f"Predicted for {device}, not measured: no operator runs, so the limit is 0 s."]
    assert "· expected 0 s, limit 0 s ·" in " ".join(found.text().split())
    host = predict(torch.nn.Identity(), torch.zeros(3), on, launch_s=1e-3).program
    assert (host.roof_time_s, host.time_s, host.interval_s) == (0, 1e-3, (1e-3, 1e-3))

def test_batches_of_a_model_without_operators_have_no_rate():
    import torch
    from fasterbench.predicting.predict import predict
    from fasterbench.comparing.compare import series_of
    from fasterbench.predicting.predict_verb import Predictions
    found = [predict(torch.nn.Identity(), torch.zeros(n, 3), "NVIDIA H100 80GB HBM3") for n in (1, 8)]
    rows = [line.split() for line in Predictions(series_of(found)).text().splitlines()]
    assert ([(r[0], r[-4:]) for r in rows if r and r[0] in ("1", "8")]
            == [("1", ["?", "12.0", "B", "0.0%"]), ("8", ["?", "96.0", "B", "0.0%"])])

def test_a_prediction_is_read_back_as_it_was_saved(tmp_path):
    "A row's bytes by level are those of its limit: a file whose limit is below its bytes is refused."
    import torch
    from torch import nn
    from fasterbench import predict
    from fasterbench.views.result import from_json
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2),
                              nn.GRU(56, 8))
    found = predict(model[:4], torch.empty(64, 3, 224, 224, device="meta"), "NVIDIA GeForce RTX 4090")
    unmeasured = predict(model[4], torch.empty(64, 8, 56, device="meta"), "NVIDIA GeForce RTX 4090")
    for i, result in enumerate((found, unmeasured)):
        result.to_json(tmp_path / f"{i}.json")
        assert from_json(tmp_path / f"{i}.json") == result

def test_channels_that_are_last_are_not_reordered():
    """A convolution of 3×3 on tensor cores: its input and its result of 103 MB each are read and written once more
    where they are not last."""
    import torch
    from torch import nn
    from fasterbench import predict
    with torch.device("meta"): conv = nn.Conv2d(256, 256, 3, padding=1, bias=False)
    x, on = torch.empty(64, 256, 56, 56, device="meta"), "NVIDIA H100 80GB HBM3"
    first = predict(conv, x, on, autocast="float16").ops
    last = predict(conv.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last), on,
                   autocast="float16").ops
    took = [sum(p.time_s for p in ops if p.operator == "aten::convolution") for ops in (first, last)]
    moved = 2 * (2 * 64 * 256 * 56 * 56 + 256 * 256 * 9)
    assert took[0] - took[1] == pytest.approx(2 * moved / (0.80 * 3.35e12), rel=0.02)

def test_a_batch_norm_in_eval_mode_is_no_more_than_pointwise_work():
    "8 channels keep 8 multiprocessors busy while statistics are found, and all of them where these are known."
    import torch
    from torch import nn
    from fasterbench import predict
    x, on = torch.empty(1024, 8, 112, 112, device="meta"), "NVIDIA GeForce RTX 4090"
    with torch.device("meta"): norm, relu = nn.BatchNorm2d(8).eval(), nn.ReLU().eval()
    took = [predict(m, x, on, autocast="float16").program.time_s for m in (norm, relu)]
    assert took[0] == pytest.approx(took[1], rel=0.05)         # both read and write the tensor once

def test_a_batch_norm_in_eval_mode_in_half_precision_is_no_more_either():
    """Where cuDNN does not take it, it is `native_batch_norm`: 2 · 64 · 64 · 112 · 112 elements of 2 B at 0.88 of
    3.35 TB/s, and 5 µs to start."""
    import torch
    from torch import nn
    from fasterbench import predict
    x, on = torch.empty(64, 64, 112, 112, device="meta"), "NVIDIA H100 80GB HBM3"
    with torch.device("meta"): norm = nn.BatchNorm2d(64).eval()
    for dtype in (torch.float16, torch.bfloat16):
        found = predict(norm.to(dtype), x.to(dtype), on)
        assert "aten::native_batch_norm" in {p.operator for p in found.ops}
        assert found.program.time_s == pytest.approx(2 * 64 * 64 * 112 * 112 * 2 / (0.88 * 3.35e12) + 5e-6, rel=1e-3)

def test_what_launches_no_kernel_has_no_device_time():
    "Twenty allocations and one product of 256 elements: a start of 5 µs, and one operator to launch."
    import torch
    from fasterbench import predict
    class Allocates(torch.nn.Module):
        def forward(self, x):
            for _ in range(20): torch.empty_like(x)
            return x * 2
    found = predict(Allocates(), torch.randn(16, 16), "NVIDIA H100 80GB HBM3")
    assert found.program.time_s == pytest.approx(5e-6, rel=0.01) and found.environment["operators"] == 1

@heavy_only("every device of the table")
def test_of_one_chip_no_product_with_higher_roofs_is_slower():
    "A product of 8192³ in bfloat16, a stream and a step's product, on every pair of devices of an architecture."
    import torch
    from torch import nn
    from fasterbench import predict
    from fasterbench.roofs.datasheet import devices, match_device
    with torch.device("meta"): dense = nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16)
    def rows(n): return torch.empty(n, 8192, dtype=torch.bfloat16, device="meta")
    programs = (dense, rows(8192)), (dense, rows(1)), (nn.ReLU(), rows(1 << 15))
    chips = {}
    for name in devices():
        device = match_device(name).device
        rates = {k: p.value for k, p in device.figures.items() if k in ("float32", "bfloat16", "DRAM")}
        chips.setdefault(device.architecture,
                         []).append((name, rates, [predict(m, x, name).program.time_s for m, x in programs]))
    pairs = [(a, b) for chip in chips.values() for a, b in itertools.permutations(chip, 2)
             if a[1].keys() == b[1].keys() and all(a[1][k] >= b[1][k] for k in b[1])]
    assert len(pairs) > 100
    for (name, _, took), (other, _, at_most) in pairs:
        assert all(t <= 1.001 * m for t, m in zip(took, at_most)), (name, other)

def test_a_peak_that_is_borrowed_from_a_narrower_dtype_gives_a_range():
    """An H20 has no peak in float32: the limit is at 148 TFLOP/s of 16 bits, and no time is expected, nor as
    compiled, nor like a measurement."""
    import torch
    from dataclasses import replace
    from torch import nn
    from fasterbench import HardwarePeaks, predict
    with torch.device("meta"): dense, x = nn.Linear(8192, 8192, bias=False), torch.empty(8192, 8192)
    here = predict(dense, x, HardwarePeaks(1e13, 1e12))
    here = replace(here, points=[replace(p, source="counted") for p in here.points],
                   program=replace(here.program, source="counted"))
    for how in ({}, dict(compiled=True), dict(like=here)):
        found = predict(dense, x, "NVIDIA H20", **how)
        assert found.program.is_range and found.points[0].is_range and found.program.time_s is None
        assert found.program.roof_time_s == pytest.approx(2 * 8192**3 / 148e12, rel=1e-3)
        assert "no expected time" in found.notes[0] and "products in float32 on this device" in found.notes[0]
        assert any(n.startswith("NVIDIA H20 has no peak for float32") for n in found.notes)
    with torch.device("meta"): half = nn.Linear(8192, 8192, bias=False, dtype=torch.bfloat16)
    assert not predict(half, x.bfloat16(), "NVIDIA H20").program.is_range

def test_a_dtype_without_a_peak_is_said():
    "Turing has tensor cores for float16 and none for bfloat16."
    import torch
    from fasterbench import HardwarePeaks, predict
    def said(device, dtype):
        return [n for n in predict(torch.nn.Linear(64, 64).to(dtype), torch.ones(8, 64, dtype=dtype), device).notes
                if "no peak" in n]
    assert said("Tesla T4", torch.bfloat16) == ["Tesla T4 has no peak for bfloat16; that of float32 is used"]
    assert said("Tesla T4", torch.float16) == said("NVIDIA H100 80GB HBM3", torch.bfloat16) == []
    # a peak, of float32, and no list of ceilings
    alone = HardwarePeaks(1e12, 1e11, device="a device")
    assert (said(alone, torch.float32) == []
            and said(alone, torch.bfloat16) == ["a device has no peak for bfloat16; that of float32 is used"])

def test_a_rank_of_fsdp_updates_its_shard():
    """SGD reads weights and gradients and writes the weights, 4 MiB each; of 8 ranks by FSDP each does an eighth of
    it, by DDP all."""
    pytest.importorskip("fasterbench.network")
    import torch
    from fasterbench import HardwarePeaks, predict
    net, x = torch.nn.Linear(1024, 1024, bias=False), torch.randn(8, 1024)
    def step(parallel):
        return predict(net, x, HardwarePeaks(1e15, 1e11), backward=True, optimizer=torch.optim.SGD(net.parameters()),
                       devices=8, parallel=parallel)
    replica, shard = step("ddp"), step("fsdp")
    whole = 3 * 4 * 1024**2 / 1e11
    def update(result): return sum(p.roof_time_s for p in result if p.phase == "update")
    assert update(replica) == pytest.approx(whole) and update(shard) == pytest.approx(whole / 8)
    assert replica.program.roof_time_s - shard.program.roof_time_s == pytest.approx(whole * 7 / 8)
    assert "the update is of a shard" in " ".join(shard.notes) and "shard" not in " ".join(replica.notes)
