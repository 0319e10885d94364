import torch
import fasterbench as fb
from fasterbench.compute import compute_compute
from fasterbench.profiling import LayerProfiler

model, sample = torch.nn.Linear(8, 8), torch.ones(2, 8)
peaks, sheet = fb.measure_peaks("cpu", dtype=torch.float32, steps=20), fb.datasheet_peaks("NVIDIA H100 80GB HBM3")
by_hand, memory = (fb.HardwarePeaks(1e12, 1e11, ceilings=(fb.Ceiling("float32", 1e12),)),
                   fb.MemoryLevel("DRAM", None, 1e11))
fb.clear_peaks_cache()
ra = fb.RooflineAnalyzer(model, sample, peaks=peaks).profile(warmup=5, steps=20)
ra.summary(top=10)
rows, timing, unknown, figure, frame = ra.results, ra.timing, ra.unknown_ops, ra.plot(title="Linear"), ra.to_frame()
slowest: fb.RooflinePoint = max(rows, key=lambda r: r.time_s or 0.0)
table, page, saved, whole = ra.csv(points="ops"), ra.render(top=5), fb.from_json("linear.json"), ra.program
paper = fb.roofline_analysis([dict(name="a", flops=10, memory_bytes=5)], peaks.peak_flops, peaks.peak_bandwidth)
work, needs, sent = (fb.count_work(model, sample, backward=True), fb.model_flops(model, sample),
                     fb.step_traffic(model, 8))
@fb.rule("my::op", category="pointwise")
def flops_of_my_op(x: tuple[int, ...], out: tuple[int, ...]) -> fb.Flops: return fb.Flops(8.0)
shown, sheets = fb.PeaksView(peaks).csv(), LayerProfiler(model, sample).to_frame()
held: fb.Memory|None = work.memory
largest: dict[str, fb.ModuleMemory] = held.modules or {} if held else {}
modules, flops, layers = work.by_module(), work.flops, LayerProfiler(model, sample).profile("speed")
pair, series, gathered = fb.compare(ra, saved), fb.compare(ra, saved, "other.json"), ra.gather()
change, columns, macs = pair.pairs[0].ratio("time_s"), series.labels, compute_compute(model, sample)
guess, served = fb.predict(model, sample, on="NVIDIA H100 80GB HBM3", like=ra), fb.serve("config.json", batch=(1, 8))
choices, within = (fb.serve("config.json", on=["H100", "L40S"], tensor_parallel=[1, 2]),
                   fb.serve("config.json", tpot=0.05))
choice = choices.options[0]
decode, trace, report = ((served.point("decode", 8), fb.read_trace("trace.json", by="operator"),
                          fb.read_ncu("report.csv")))
with fb.watch(model, every=100, on_sample=lambda step, metrics: print(step, metrics)) as watched, fb.ranges(
    model) as named:
    model(sample)
samples, last, handler = watched.series, watched.result, fb.on_trace_ready("cycle.html")
network, fitted, bus = ((fb.measure_network(), fb.fit_network([("all_reduce", 8, 1024, 1e-5)]),
                         fb.bus_bandwidth("all_reduce", 1024, 1e-5, 8)))
roof, callbacks = network.roof("all_reduce", 8), (fb.trainer_callback(every=100), fb.lightning_callback())
light: fb.SpeedOfLight = fb.speed_of_light(model, sample, on="NVIDIA H100 80GB HBM3", rtol=1e-2,
                                           promise=fb.Promised(cold=True))
verdict, found = light.judge(1e-3), fb.depends(model, sample)
first: fb.Dependence|None = found[0] if found else None
missed: dict[str, float] = fb.rounded_misses(model, sample)
