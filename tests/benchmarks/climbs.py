"""How four values travel: `device` of a profile, `on` of a prediction, `peaks` of the rows of a result, the result
of a report.

A run is watched. A hand-over is a call from one module of the package into another with the value, or what was made
of it, among its arguments; a question to the value itself (a method of it, a function of the module that defines
it) counts as well. A value that only goes down reaches each module from one other; each further module that hands
it there is a climb: the value came back up and went down again. `python tests/benchmarks/climbs.py [FOLDER OF A
CHECKOUT]`"""
import sys
from pathlib import Path

def handed(run, carries, package):
    "The (from, to) of modules between which `run` hands over what `carries` tells."
    found, own = {}, str(package) + "/"
    def module(frame):
        file = frame.f_code.co_filename
        return file.removeprefix(own).removesuffix(".py") if file.startswith(own) else None
    def seen(frame, event, arg):
        if event != "call" or (to := module(frame)) is None or frame.f_code.co_name.startswith("<"): return
        code = frame.f_code
        names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
        if not any(carries(frame.f_locals.get(n)) for n in names): return
        caller = frame.f_back
        while caller is not None and module(caller) is None: caller = caller.f_back
        source = "user" if caller is None else module(caller)
        if source != to: found.setdefault((source, to), f"{code.co_name}")
    sys.setprofile(seen)
    try: run()
    finally: sys.setprofile(None)
    return found

def report(name, edges):
    rooms = {to for _, to in edges}
    print(f"{name:28} {len(rooms):3} modules, {len(edges):3} hand-overs, {len(edges) - len(rooms):3} climbs")
    if "-v" in sys.argv:
        for (a, b), f in edges.items(): print(f"    {a} → {b}: {f}")

def main():
    folder = Path(next((a for a in sys.argv[1:] if a != "-v"), Path(__file__).parents[2])).resolve()
    sys.path.insert(0, str(folder))
    import torch, fasterbench
    from fasterbench import HardwarePeaks, RooflineAnalyzer, predict
    assert Path(fasterbench.__file__).parents[1] == folder
    package, model = Path(fasterbench.__file__).parent, torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    sample, device = torch.ones(2, 8), torch.device("cpu")
    from fasterbench.engine.accelerator import Host
    def is_device(v): return isinstance(v, torch.device | Host) or isinstance(v, str) and v == "cpu"
    report("device of profile", handed(lambda: RooflineAnalyzer(model, sample).profile(device="cpu", steps=3),
                                       is_device, package))
    name = "NVIDIA H100 80GB HBM3"
    def is_on(v): return isinstance(v, HardwarePeaks) or isinstance(v, str) and v == name
    report("on of predict", handed(lambda: predict(model, sample, on=name), is_on, package))
    roofs = HardwarePeaks(1e12, 1e11)
    from fasterbench.analysis import rows
    def is_peaks(v): return isinstance(v, HardwarePeaks)
    ra, real, edges = RooflineAnalyzer(model, sample, peaks=roofs), rows.measured_result, {}
    def watched(*args, **more):
        out = []
        edges.update(handed(lambda: out.append(real(*args, **more)), is_peaks, package))
        return out[0]
    for m in list(sys.modules.values()):
        if getattr(m, "measured_result", None) is real: m.measured_result = watched
    ra.profile(steps=3)
    report("peaks of measured_result", edges)
    from fasterbench.views.result import Result
    report("result of a report", handed(lambda: ra.result.render("page"), lambda v: isinstance(v, Result), package))

if __name__ == "__main__": main()
