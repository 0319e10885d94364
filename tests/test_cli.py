"""The command line as a process of its own. Most runs are forks of a process that has torch loaded; help, progress
and the main job are run by the installed command."""
import csv, fcntl, io, json, os, pty, re, shutil, struct, subprocess, sys, termios
from pathlib import Path

import pytest

import forked
from conftest import heavy, heavy_only, nightly_only, root
from fasterbench.roofs.hardware import HardwarePeaks

command = str(Path(sys.executable).with_name("fasterbench"))
net = (
    "import torch\ndef make(): return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), torch.randn(8, "
    "64)\ndef broken(): raise OSError('disk on fire')\ndef bare(): return torch.nn.Bilinear(8, 8, 8)\n")

# nothing but the command itself decides about progress bars
bars = {k: v for k, v in os.environ.items() if not k.startswith("TQDM")} | dict(COLUMNS="160")

def installed(*args, cwd=None):
    return subprocess.run([command, *args], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env=bars)

def fasterbench(*args, cwd=None):
    "The same without the seconds that imports take."
    return forked.python(forked.command_line(*args), cwd=cwd, env=bars, package=True)

def test_both_ways_of_running_are_the_same():
    for args in (["report", "absent.json"], *[["--help"], ["unheard"]] * heavy):
        one, other = installed(*args), fasterbench(*args)
        assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr), args

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    d = tmp_path_factory.mktemp("cli")
    (d/"net.py").write_text(net)
    shutil.copy(root/"tests/data/resnet50.json", d/"saved.json")
    (d/"newer.json").write_text('{"schema": "fasterbench.result", "version": 99}')
    (d/"rows.json").write_text('{"schema": "fasterbench.rows", "version": 1, "title": "Batch 1 and 8"}')
    (d/"broken.json").write_text("{")
    HardwarePeaks(1e15, 1e15).to_json(d/"roofs.json")
    (d/"ends.py").write_text("""import sys, torch
class Late(torch.nn.Module):
    def forward(self, x): sys.exit(0)
def make(): sys.exit(0)
def late(): return Late(), torch.randn(2)
""")
    for name, made in (("ends", "make"), ("late", "late")):
        (d/f"{name}.toml").write_text(f'[net]\nmodel = "ends.py:{made}"\nflops = "<= 1"\n')
    (d/"own_code").mkdir()
    (d/"own_code/config.json").write_text(json.dumps(dict(
        model_type="unheard", auto_map=dict(AutoConfig="code.Config", AutoModel="code.Model"))))
    (d/"own_code/code.py").write_text("open('it_ran', 'w')\n")
    return d

@heavy_only("imports transformers")
def test_the_code_of_a_configuration_does_not_run(folder):
    "Whatever stands on standard input: a person who says yes to everything is not asked."
    for verb in (["count", "transformers:own_code"], ["serve", "transformers:own_code", "--on", "NVIDIA H200"]):
        done = subprocess.run([command, *verb], cwd=folder, capture_output=True, text=True, input="y\n" * 99, env=bars)
        assert done.returncode == 2 and not list(folder.rglob("it_ran")), done.stderr

@heavy_only("a process that imports timm")
def test_a_model_file_takes_the_place_of_no_module(tmp_path):
    "A file with the name of a module of Python or of a package, beside a neighbour that it imports."
    (tmp_path/"neighbour.py").write_text("width = 3\n")
    names = ("random", "statistics", "timm", "sched")
    for name in names:
        (tmp_path/f"{name}.py").write_text(
            "import torch\nfrom neighbour import width\ndef make(): return torch.nn.Linear(width, 4), torch.randn(2, "
            "width)\n")
    code = f"""
import sys, importlib
from fasterbench.cli.loading import load_model
for name in {names}:
    assert load_model({str(tmp_path)!r} + f"/{{name}}.py:make")[0].in_features == 3
    assert {str(tmp_path)!r} not in str(importlib.import_module(name).__file__), name
assert {str(tmp_path)!r} not in sys.path
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, env=bars)
    assert done.returncode == 0, done.stderr

def test_version_and_module():
    import fasterbench as package
    for done in (fasterbench("--version"),
                 subprocess.run([sys.executable, "-m", "fasterbench", "--version"], cwd=root, capture_output=True,
                                text=True)):
        assert (done.returncode, done.stdout, done.stderr) == (0, f"fasterbench {package.__version__}\n", "")

wrong = [
    (["roofline"], 2, "Missing argument"), (["roofline", "resnet18"], 2, "does not name a model"),
    (["roofline", "absent.py:make"], 2, "no file 'absent.py'"),
    (["roofline", "net.py:nothing"], 2, "it has make, broken, bare"),
    (["roofline", "net.py:broken"], 1, "disk on fire"),
    (["roofline", "net.py:make", "--input", "2,5"], 1, "shapes cannot be multiplied"),
    (["roofline", "net.py:bare"], 1, "it can return (module, sample)"),
    (["roofline", "net.py:make", "--csv", "-", "--json", "-"], 2, "only one of them can go to standard output"),
    (["roofline", "net.py:make", "--steps", "none"], 2, "'none'"),
    (["roofline", "net.py:make", "--device", "cuda:9"], 2, "cuda:9"), (["peaks", "--dtype", "int16"], 2, "int16"),
    (["roofline", "net.py:make", "--no-html", "--json", "no/such/folder.json"], 2, "no/such/folder.json"),
    (["unheard"], 2, "unheard"),
    (["report", "absent.json"], 2, "absent.json"), (["report", "broken.json"], 1, "broken.json is not a JSON file"),
    (["report", "newer.json"], 1, "version 99 cannot be read"), (["report", "net.py"], 1, "net.py is not a JSON file"),
    (["report", "saved.json", "--html", "no/such/folder.html"], 2, "no/such"),
    (["report"], 2, "Missing argument"), (["report", "saved.json", "--top", "-1"], 2, "-1"),
    (["compare", "saved.json", "absent.json"], 2, "absent.json"),
    (["compare", "saved.json"], 2, "two or more are needed"), (["compare"], 2, "Missing argument"),
    (["roofline", "net.py:make", "--peaks", "Abacus 3000"], 2, "no device of that name"),
    (["roofline", "net.py:make", "--group", "layers"], 2, "'layers' is not one of"),
    (["roofline", "net.py:make", "--seq", "8"], 2, "with its own sample"),
    (["roofline", "net.py:make", "--batch", "1,0"], 2, "'1,0' is not a list of batch sizes"),
    (["roofline", "net.py:make", "--optimizer", "adam"], 2, "it needs a training step: add --backward"),
    (["roofline", "net.py:make", "--backward", "--optimizer", "adamx"], 2, "Adamax"),
    (["roofline", "net.py:make", "--backward", "--loss", "mean"], 2, "forms are cross_entropy and FILE.py:FUNCTION"),
    (["roofline", "net.py:make", "--autocast", "int8"], 2, "'int8' is not one of"),
    (["roofline", "net.py:make", "--backward", "--loss", "net.py:absent"], 2, "it has make, broken, bare"),
    (["count", "net.py:broken"], 1, "disk on fire"), (["count"], 2, "Missing argument"),
    (["count", "resnet18"], 2, "does not name a model"),
    (["serve", "transformers:absent", "--on", "NVIDIA H100"], 2,
     "Invalid value for MODEL: 'absent' is not a folder or file with a configuration"),
    (["compare", "newer.json", "saved.json"], 1, "version 99"),
    (["compare", "broken.json", "saved.json"], 1, "broken.json is not a JSON file"),
    (["trace", "broken.json"], 1, "broken.json cannot be read"),
    (["trace", "absent.json"], 2, "absent.json"),
    (["roofline", "net.py:make", "--peaks", "broken.json"], 2,
     "Invalid value for --peaks: cannot read peaks from 'broken.json'"),
    (["roofline", "net.py:bare", "--batch", "2"], 1, "assuming images of 2x3x224x224"),
    (["count", "net.py:make", "--input", "1,4", "--batch", "2"], 2, "Invalid value for --batch"),
    (["predict", "net.py:make", "--on", "broken.json"], 2, "'--on': broken.json is not a JSON file"),
    (["predict", "net.py:make", "--on", "RTX 9999"], 2, "'--on': 'RTX 9999' is not in the table"),
    (["serve", "transformers:x", "--on", "RTX 9999"], 2, "'--on': 'RTX 9999'"),
    (["serve", "torchvision:resnet18", "--on", "NVIDIA H100"], 2,
     "'torchvision:resnet18' does not name a language model"),
    *((["serve", "transformers:x", "--on", "NVIDIA H100", *wrong], 2, says) for wrong, says in (
        (["--tensor-parallel", "0"], "Invalid value for --tensor-parallel: '0' is not a list of numbers of devices"),
        (["--batch", "0"], "Invalid value for --batch: '0'"),
        (["--network", "-5"], "'-5' is not a positive number with its unit: write 450GB/s"),
        (["--tpot", "40"], "'40' is not a positive number with its unit: write 40ms"),
        (["--measured", "8:-5"], "Invalid value for --measured: {8: …}: its rate=-5.0"),
        (["--measured", "7:5"], "Invalid value for --measured: {7: …}: the batches are 1, 8, 64"),
        (["--measured", "8:1,8:2"], "with each batch once"))),
    (["report", "saved.json", "--csv", "no/such/x.csv"], 2, "Invalid value for --csv"),
    (["check", "absent.toml", "--junit", "no/such/x.xml"], 2, "Invalid value for --junit"),
    (["check", "absent.toml", "--rounds", "2"], 2, "'2' is not a whole number of at least 10"),
    (["roofline", "net.py:make", "--input", "2,5"], 1, "net.py:make was given 2×5 float32: "),
    (["count", "net.py:make", "--input", "2,5"], 1, "net.py:make was given 2×5 float32: "),
    (["predict", "net.py:make", "--on", "NVIDIA H100", "--input", "2,5"], 1, "net.py:make was given 2×5 float32: "),
    (["report", "rows.json"], 1, "its schema is 'fasterbench.rows' (Batch 1 and 8); one that `roofline`"),
    (["compare", "rows.json", "saved.json"], 1, "of one model and batch size, is needed"),
    (["run", "--json", "-", "net.py"], 2, "Invalid value for --json: "),
    (["run", "--html", "-", "net.py"], 2, "Invalid value for --html: "),
    (["predict", "net.py:make", "--on", "NVIDIA H100", "--autocast", "int8"], 2,
     "'int8' is not one of bfloat16, float16"),
    (["predict", "net.py:make", "--on", "nonsense"], 2,
     "'nonsense' is not in the table of 76 devices; `fasterbench peaks --devices` lists all"),
    (["predict", "net.py:make", "--on", "rtx 4095"], 2, "the nearest names are NVIDIA GeForce RTX 4090"),
    (["roofline", "net.py:make", "--peaks", "h1000"], 2, "the nearest names are NVIDIA H100 80GB HBM3"),
    (["count", "ends.py:make"], 2, "ends.py ended the process (SystemExit: 0)"),
    (["count", "ends.py:late"], 1, "ends.py:late ended the process (SystemExit: 0)"),
    (["run", "missing.py", "--debug"], 2, "there is no file 'missing.py'"),
    (["check", "ends.toml"], 2, "ends.py ended the process (SystemExit: 0)"),
    (["check", "late.toml"], 2, "ends.py:late ended the process (SystemExit: 0)"),
    (["count", "transformers:own_code"], 2, "own_code"),
    (["ncu", "absent.csv"], 2, "absent.csv"), (["ncu", "net.py"], 1, "no table of Nsight Compute"),
    (["ncu", "net.py", "--by", "layer"], 2, "'layer'")]

@pytest.fixture(scope="module")
def said(folder):
    "The exit status and standard error of each wrong command line, one after the other in one process."
    done = forked.python(f"""import contextlib, io, json, sys
from fasterbench.cli.main import main
found = []
for args in {[args for args, *_ in wrong]!r}:
    sys.argv, err = ["fasterbench", *args], io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try: code = main()
        except SystemExit as end: code = end.code
    found.append((code, err.getvalue()))
print(json.dumps(found))""", folder, env=bars, package=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])

@pytest.mark.parametrize("i", range(len(wrong)), ids=lambda i: f"{' '.join(map(str, wrong[i][0]))}"[:60])
def test_errors_are_one_line(said, i):
    (_, code, part), (status, text) = wrong[i], said[i]
    lines = [l for l in text.splitlines() if not l.startswith("wrote ")]
    assert status == code and len(lines) == 1 and lines[0].startswith("fasterbench: ") and part in lines[0], text
    assert "Traceback" not in text

def test_the_table_of_devices_is_listed():
    done = fasterbench("peaks", "--devices")
    from fasterbench.roofs.datasheet import devices
    assert ((done.returncode, done.stderr) == (0, "") and done.stdout.splitlines() == devices()
            and "NVIDIA H200" in devices())

def test_torch_does_not_log_what_is_said_anyway(folder):
    "Scaled products of experts take float8 alone; torch logs a traceback of some 25 lines beside the error."
    (folder/"grouped.py").write_text("""import torch
class Experts(torch.nn.Module):
    def __init__(self): super().__init__(); self.w = torch.nn.Parameter(torch.zeros(2, 16, 16))
    def forward(self, x):
        offs = torch.tensor([4, 8], dtype=torch.int32)
        return torch._scaled_grouped_mm(x, self.w, torch.ones(8), torch.ones(2, 16), offs=offs)
def make(): return Experts(), torch.zeros(8, 16)
""")
    done = fasterbench("count", "grouped.py:make", cwd=folder)
    assert (done.returncode == 1 and done.stderr.startswith("fasterbench: grouped.py:make was given 8×16 float32: ")
            and done.stderr.count("\n") == 1), done.stderr

def test_a_file_is_named_once(folder):
    assert fasterbench("report", "net.py", cwd=folder).stderr.count("net.py") == 1

def test_a_configuration_has_the_name_of_its_folder(folder, monkeypatch):
    from fasterbench.cli.app import run_name
    (folder/"llama").mkdir()
    monkeypatch.chdir(folder/"llama")
    assert (run_name("transformers:a/opt/config.json") == "opt-transformers"
            and run_name("transformers:config.json") == "llama-transformers")

def test_debug_shows_the_traceback(folder):
    done = fasterbench("roofline", "net.py:broken", "--debug", cwd=folder)
    assert done.returncode == 1 and "Traceback" in done.stderr

quick = "--steps", "3", "--peaks", "roofs.json"         # measured ones: cli/main

def test_a_model_from_a_file(folder):
    done = fasterbench("roofline", "net.py:make", *quick, "--html", "named.html", "--csv", "rows.csv",
                       "--json", "result.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Linear" in done.stdout and "util%" in done.stdout
    assert (json.loads((folder/"result.json").read_text())["schema"] == "fasterbench.result"
            and "Roofline of net.py:make" in (folder/"named.html").read_text())
    assert (folder/"rows.csv").read_text().startswith("rank,name,type") and "it/s" not in done.stderr

def test_an_old_pytorch_is_told_in_a_sentence(folder):
    code = ("import torch; torch.__version__ = '2.4.0+cu121'; from fasterbench.cli.main import main; "
            "main(['count', 'net.py:make'])")
    done = forked.python(code, cwd=folder, env=bars)
    assert (done.returncode, done.stderr) == (2, "fasterbench: fasterbench needs PyTorch 2.11 or later, and "
                                                 "2.4.0+cu121 is installed: pip install --upgrade torch\n")
    assert "torch>=2.11 " in (root/"settings.ini").read_text()

@heavy_only("a process of its own")
def test_a_compiled_model_without_a_compiler_is_told_in_a_sentence(folder, tmp_path):
    (folder/"compiled.py").write_text("import torch\n"
                                      "def make(): return torch.compile(torch.nn.Tanh()), torch.ones(8)\n")
    done = subprocess.run([command, "roofline", "compiled.py:make", "--no-html", "--steps", "2"], cwd=folder, text=True,
                          env=bars | dict(CXX="/no/compiler", TORCHINDUCTOR_CACHE_DIR=str(tmp_path)),
                          capture_output=True)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == (
        "fasterbench: compiled.py:make is compiled, which needs a C++ compiler on a CPU, and none works here: install "
        "one, or name it in the environment variable CXX")

def test_json_on_standard_output(folder):
    done = fasterbench("roofline", "net.py:make", *quick, "--json", "-", "--no-html", cwd=folder)
    names = [p["name"] for p in json.loads(done.stdout)["points"]]
    assert done.returncode == 0 and {"0", "1"} <= set(names)
    # to the trust, on a busy machine
    limits = (
        r"fasterbench: (NOT STEADY|busy: |other processes used |the hypervisor took |the clock was |memory was short "
        r"|Slow steps|shares are |peak memory |roofs? |warning: |\d+ of \d+ rows are faster than )")
    assert all(re.match(limits, line) for line in done.stderr.splitlines()), done.stderr

def test_one_thing_at_a_time_on_standard_output(folder):
    "What is asked for with - is all there is, so that a pipe can read it."
    text = fasterbench("roofline", "net.py:make", *quick, "--csv", "-", "--no-html", cwd=folder).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [r["type"] for r in rows if r["name"] in ("0", "1")] in (["Linear", "ReLU"], ["ReLU", "Linear"])
    assert fasterbench("report", "saved.json", "--html", "-", cwd=folder).stdout.startswith("<!DOCTYPE html>")
    pairs = fasterbench("compare", "saved.json", "saved.json", "--csv", "-", cwd=folder).stdout
    assert len(list(csv.DictReader(io.StringIO(pairs)))) == 142
    assert "<title>" in fasterbench("compare", *["saved.json"] * 3, "--html", "-", cwd=folder).stdout

@heavy_only("draws and compares without torch; test_release has a report")
def test_saved_results_need_no_torch(folder):
    """With torch out of reach, a saved result is read, shown, drawn, compared and written again as it was; one with
    memory, too."""
    import torch
    from dataclasses import replace
    from fasterbench import count_work, from_json
    memory = count_work(torch.nn.Linear(8, 8), torch.ones(4, 8)).memory
    replace(from_json(folder/"saved.json"), memory=memory).to_json(folder/"memory.json")
    block = "import sys\nfor m in ('torch', 'numpy'): sys.modules[m] = None\n"
    code = block + """
import json, fasterbench
saved = fasterbench.from_json("saved.json")
saved.summary(3); saved.plot(); saved.to_csv("saved.csv"); saved.to_html("saved.html"); saved._repr_html_()
saved.to_json("again.json"); assert fasterbench.from_json("again.json") == saved
both = fasterbench.compare(saved, "saved.json")
both.summary(3); both.plot(); both.to_html("both.html"); both.to_csv("both.csv")
from fasterbench.cli.main import main
for args in (["report", "saved.json"], ["report", "memory.json", "--html", "memory.html"],
                 ["compare", *["memory.json"] * 2, "--html", "pair.html"],
             ["compare", "saved.json", "saved.json", "--html", "cli.html"]):
    try: main(args)
    except SystemExit as e: assert e.code == 0
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr
    assert "maxpool" in done.stdout and "142 rows in both" in done.stdout and (folder/"cli.html").stat().st_size > 1e6

@heavy_only("measures the roofs twice")
def test_peaks(folder):
    done = fasterbench("peaks", "--json", "peaks.json", cwd=folder)
    assert (done.returncode == 0 and "ridge point" in done.stdout and "DRAM" in done.stdout
            and "it [" not in done.stderr and "measuring" not in done.stderr)
    assert HardwarePeaks.from_json(folder/"peaks.json").peak_flops > 1e8
    done = fasterbench("peaks", "--html", "peaks.html", cwd=folder)
    assert (done.returncode == 0 and done.stderr.endswith("wrote peaks.html\n")
            and 1e6 < (folder/"peaks.html").stat().st_size < 6e6)

@heavy_only("six profiles; cli/app has what is said of given roofs")
def test_given_peaks(folder):
    """They are taken as they are; where they are not for this model or this device, a note says so, in the file and
    on the screen."""
    def noted(*args):
        done = fasterbench("roofline", "net.py:make", "--steps", "3", "--no-html", "--json", "given.json", *args,
                           cwd=folder)
        assert done.returncode == 0 and done.stderr == "wrote given.json\n", done.stderr
        found = json.loads((folder/"given.json").read_text())
        assert all(" ".join(n.split()) in " ".join(done.stdout.split()) for n in found["notes"])
        return found
    HardwarePeaks(1.25e12, 1e11).to_json(folder/"own.json")
    HardwarePeaks(1.25e12, 1e11, device="cuda:0", environment=dict(device_name="GPU X")).to_json(folder/"other.json")
    own = noted("--peaks", "own.json")
    assert own["notes"] == [] and own["peaks"]["peak_flops"] == 1.25e12
    note, = noted("--peaks", "other.json")["notes"]
    assert note.startswith("the roofs of other.json were measured on GPU X (cuda:0), and the rows were measured on ")
    note, = noted("--peaks", "own.json", "--dtype", "bfloat16")["notes"]
    assert "no ceiling for bfloat16, so float32 stands in for it" in note
    environment = own["environment"]
    HardwarePeaks(1.25e12, 1e11, environment=dict(
        device_name=environment["device_name"], threads=environment["threads"] + 6)).to_json(folder/"threads.json")
    note, = noted("--peaks", "threads.json")["notes"]
    assert f"measured with {environment['threads'] + 6} threads, the rows with {environment['threads']}" in note
    found = noted("--peaks", "NVIDIA H100 80GB HBM3")                    # a device of the datasheet table
    assert (found["peaks"]["environment"]["device_name"].startswith("NVIDIA H100")
            and "datasheet of NVIDIA H100" in found["notes"][0])

def test_notes_stay_in_the_file_and_on_standard_error(folder):
    "Where standard output is taken, nothing of what limits the trust is lost."
    HardwarePeaks(1.25e12, 1e11, device="cuda:0").to_json(folder/"gpu.json")
    done = fasterbench("roofline", "net.py:make", "--steps", "3", "--no-html", "--json", "-", "--peaks", "gpu.json",
                       cwd=folder)
    note, = json.loads(done.stdout)["notes"]
    assert f"fasterbench: {note}" in done.stderr.splitlines() and "measured on cuda:0" in note

def test_a_warning_is_one_plain_line(folder):
    "Of this library a note, of another one a line on standard error; no path and no line of code."
    (folder/"warned.py").write_text(
        "import torch, warnings\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        warnings.warn('from "
        "elsewhere')\n"
                                    "        return torch.ops.lib.odd(x)\n@torch.library.custom_op('lib::odd', "
                                    "mutates_args=())\ndef odd(x: torch.Tensor) -> torch.Tensor: return x + 1\n"
                                    "def make(): return Net(), torch.ones(4)\n")
    done = fasterbench("roofline", "warned.py:make", *quick, "--no-html", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (done.stderr.splitlines().count("fasterbench: warning: from elsewhere") >= 1
            and all(l.startswith("fasterbench: ") for l in done.stderr.splitlines()))
    assert ("no FLOP rule for lib::odd (1 call)" in done.stdout
            and "1 operator unknown" in " ".join(done.stdout.split()) and ".py" not in done.stderr)

@heavy_only("five processes")
def test_the_result_knows_what_was_run(folder):
    "Sample, call and settings are in the file, and a comparison says each difference."
    for size in (8, 32):
        (folder/f"b{size}.py").write_text(net.replace("randn(8, 64)", f"randn({size}, 64)"))
        done = fasterbench("roofline", f"b{size}.py:make", "--steps", "3", "--no-html", "--json", f"b{size}.json",
                           cwd=folder)
        assert done.returncode == 0, done.stderr
    found = json.loads((folder/"b8.json").read_text())
    assert (found["sample"] == [dict(name="0", shape=[8, 64], dtype="float32")]
            and found["settings"]["parameters"] == 64 * 64 + 64)
    assert (found["call"]["model"] == "b8.py:make" and found["call"]["steps"] == 3
            and "roofline b8.py:make --steps 3" in found["call"]["command"])
    done = fasterbench("compare", "b8.json", "b32.json", cwd=folder)
    lines = done.stdout.splitlines()
    assert ("before" in lines[0] and {"batch: 8 → 32",
                                      "sample 0: 8×64 float32 → 32×64 float32"} <= set(lines)), done.stdout
    done = fasterbench("compare", "b8.json", "b32.json", "b8.json", "--csv", "-", cwd=folder)
    assert (done.returncode == 0 and done.stdout.startswith("name,phase,operator,type,b8 [s]")
            or ",1 [s],2 [s],3 [s]" in done.stdout)

def watched(*args, cwd=None, columns=160):
    "Exit code and standard error of a run with a terminal at standard error."
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    done = subprocess.Popen([command, *args], stdout=subprocess.DEVNULL, stderr=follower, env=bars, cwd=cwd)
    os.close(follower)
    text = b""
    while True:
        try: chunk = os.read(leader, 65536)
        except OSError: break
        if not chunk: break
        text += chunk
    return done.wait(), text.decode().replace("\r\n", "\n")

def at_a_terminal(*args, cwd=None):
    "The lines of a short run with a terminal at standard error, without the seconds that imports take."
    leader, follower = pty.openpty()
    terminal = f"import os\nos.dup2(os.open({os.ttyname(follower)!r}, os.O_RDWR | os.O_NOCTTY), 2)\n"
    done = forked.python(terminal + forked.command_line(*args), cwd=cwd, env=bars, package=True)
    text = os.read(leader, 65536).decode().replace("\r\n", "\n")
    os.close(leader); os.close(follower)
    assert done.returncode == 0, text
    return text

@heavy_only("three processes at a terminal")
def test_a_report_takes_the_place_of_no_other(folder, tmp_path):
    "The name says what was run; a report that is there stays, and the message says so. --html names one to replace."
    (tmp_path/"net.py").write_text(net)
    def run(*args): return at_a_terminal("roofline", *args, "--steps", "3", "--no-progress", cwd=tmp_path)
    assert run("net.py:make").endswith("wrote make.html\n")
    (tmp_path/"make.html").write_text("mine")
    assert run("net.py:make").endswith("wrote make-2.html; make.html already exists\n")
    assert ((tmp_path/"make.html").read_text() == "mine"
            and "Roofline of net.py:make" in (tmp_path/"make-2.html").read_text())
    assert run("net.py:make", "--html", "make.html").endswith("wrote make.html\n")
    assert "Roofline of net.py:make" in (tmp_path/"make.html").read_text()

def test_a_report_is_written_where_a_person_looks(folder):
    "In a pipeline it is written where it is asked for, and a line says how."
    done = fasterbench("roofline", "net.py:make", *quick, cwd=folder)
    assert (done.returncode == 0 and done.stderr.endswith("no report written; --html FILE writes one\n")
            and not (folder/"make.html").exists()), done.stderr
    done = fasterbench("roofline", "net.py:make", *quick, "--no-html", cwd=folder)
    assert "report" not in done.stderr

steps = """
import torch
seen = []
def mean(out): seen.append(out.dtype); return out.square().mean()
"""

def test_a_training_step_with_loss_optimizer_and_autocast(folder):
    (folder/"losses.py").write_text(steps)
    done = fasterbench("roofline", "net.py:make", "--steps", "3", "--backward", "--loss", "losses.py:mean",
                       "--optimizer", "adamw", "--autocast", "bfloat16",
                       "--peaks", "NVIDIA H100", "--json", "step.json", cwd=folder)
    found = json.loads((folder/"step.json").read_text())
    rows = {(p["name"], p["phase"]): p for p in found["points"]}
    assert (done.returncode == 0 and rows["(optimizer)", "update"]["type"] == "AdamW"
            and ("(loss)", "forward") in rows), done.stderr
    assert rows["0", "forward"]["dtype"] == "bfloat16" and found["settings"]["autocast"] is True
    assert found["call"]["loss"] == "losses.py:mean" and found["call"]["optimizer"] == "adamw"

@heavy_only("profiles at three sizes")
def test_several_batch_sizes(folder):
    "One table, one page and one file; the time and the samples per second of each."
    (folder/"sizes.py").write_text("import torch\ndef make(): return torch.nn.Conv2d(3, 8, 3)\n")
    done = fasterbench("roofline", "sizes.py:make", "--batch", "4,1", "--steps", "3", "--json", "sizes.json",
                       "--html", "sizes.html", "--csv", "sizes.csv", cwd=folder)
    found = json.loads((folder/"sizes.json").read_text())
    lines = [line.split() for line in done.stdout.splitlines()]
    assert (done.returncode == 0 and ["name", "type", "batch", "1", "batch", "4", "last/first"]
            in lines), done.stderr + done.stdout
    assert next(l for l in lines if l[:1] == ["samples"])[1].endswith("/s") and found["quantity"] == "batch"
    assert "fasterbench: batch 4: 1 of 2\n" in done.stderr and "fasterbench: batch 1: 2 of 2\n" in done.stderr
    small, large = found["results"]
    # 222×222 places of 8 outputs, 27 multiply-accumulates and a bias each
    assert (small["flops"] == 222 * 222 * 8 * 55 and large["flops"] == 4 * small["flops"]
            and large["samples_per_s"] == pytest.approx(4 / large["time_s"]))
    assert ("Roofline of sizes.py:make" in (folder/"sizes.html").read_text()
            and (folder/"sizes.csv").read_text().startswith("name,phase,operator,type,batch 1 [s],batch 4 [s]"))

def test_count(folder):
    "As worked by hand: a layer of 64×64 weights and 64 biases on 8 samples, and 8·64 comparisons."
    done = fasterbench("count", "net.py:make", "--json", "count.json", cwd=folder)
    rows = {r["name"]: r for r in json.loads((folder/"count.json").read_text())["rows"]}
    assert (done.returncode == 0 and "make · 8×64 float32 · 4.16k parameters, 16.64 kB"
            in done.stdout), done.stderr + done.stdout
    # 4 B each: parameters, sample, and the results of the layer and of the activation
    assert json.loads((folder/"count.json").read_text())["peak_memory"] == 4 * (64 * 65 + 3 * 8 * 64)
    assert (rows["0"]["flops"] == 8 * (2 * 64 * 64 + 64) and rows[""]["parameters"] == 64 * 65
            and rows[""]["flops"] == rows["0"]["flops"] + 8 * 64)
    assert fasterbench("count", "net.py:make", "--csv", "-",
                       cwd=folder).stdout.startswith("name,type,depth,count,output,parameters,trainable")

def test_a_sweep_of_predictions_is_written(folder):
    (folder/"sizes.py").write_text("import torch\ndef make(): return torch.nn.Conv2d(3, 8, 3)\n")
    done = fasterbench("predict", "sizes.py:make", "--on", "NVIDIA H100 80GB HBM3", "--batch", "1,8", "--json",
                       "p.json", "--html", "p.html", "--csv", "-", cwd=folder)
    assert (done.returncode == 0 and done.stdout.startswith(
        "device,batch,limit_s [s],time_s [s],p10 [s],p90 [s],per_s [samples/s],peak_bytes [B],memory_share\n"
        "NVIDIA H100 80GB HBM3,1,")
        ), done.stderr
    assert ([r["name"] for r in json.loads((folder/"p.json").read_text())["results"]] == ["batch 1", "batch 8"]
            and (folder/"p.html").stat().st_size > 1e6)
    assert ("\nNVIDIA H100 80GB HBM3, batch 8: not measured."
            in fasterbench("predict", "sizes.py:make", "--on", "NVIDIA H100 80GB HBM3", "--batch", "1,8",
                           cwd=folder).stdout)

@heavy_only("imports transformers twice")
def test_transformers(folder):
    "The class that the configuration names, with its head; token ids of the asked length."
    from fasterbench.cli.loading import _library
    try: transformers = _library("transformers")
    except ValueError: pytest.skip("transformers is not installed")
    tiny = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=64)
    transformers.BertConfig(**tiny, architectures=["BertForMaskedLM"]).save_pretrained(folder/"tiny")
    done = fasterbench("roofline", "transformers:tiny/", "--steps", "3", "--seq", "16", "--json", "tiny.json",
                       cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder/"tiny.json").read_text())
    assert (found["model"] == "BertForMaskedLM"
            and found["sample"][0] == dict(name="input_ids", shape=[1, 16], dtype="int64"))
    assert any(p["name"].startswith("cls.") for p in found["points"])
    done = fasterbench("roofline", "transformers:tiny/", "--steps", "3", "--input", "1,64", "--no-html", cwd=folder)
    assert done.returncode == 0 and "1×64 int64" in done.stdout, done.stderr

@heavy_only("a model that takes seconds")
def test_a_terminal_sees_progress(folder):
    "With a terminal at standard error a bar appears, once a second has passed."
    (folder/"slow.py").write_text(
        "import time, torch\nclass Slow(torch.nn.Linear):\n    def forward(self, x): time.sleep(0.1); return "
        "super().forward(x)\n"
                                  "def make(): return Slow(8, 8), torch.randn(8, 8)\n")
    code, text = watched("roofline", "slow.py:make", "--steps", "3", "--no-html", cwd=folder, columns=80)
    assert code == 0 and "profiling" in text

@nightly_only("needs torchvision and half a minute")
def test_the_main_job(tmp_path):
    code, text = watched("roofline", "torchvision:resnet18", cwd=tmp_path)
    assert code == 0 and "wrote resnet18.html" in text
    assert 1e6 < (tmp_path/"resnet18.html").stat().st_size < 6e6
    done = fasterbench("roofline", "torchvision:resnet81", cwd=tmp_path)
    assert done.returncode == 2 and "resnet18" in done.stderr and done.stderr.count("\n") == 1

@heavy_only("a process whose reader leaves")
def test_a_reader_that_leaves_loses_no_file(folder, tmp_path):
    "As `fasterbench report … | head -1` does, also with `2>&1`: where it prints is closed before it does."
    for i, (more, errors) in enumerate((([], subprocess.PIPE), (["--csv", "-"], subprocess.PIPE),
                                        (["--csv", "rows.csv"], subprocess.STDOUT))):
        page = tmp_path/f"{i}.html"
        read, end = os.pipe()
        os.close(read)
        done = subprocess.run([command, "report", "saved.json", "--html", str(page), *more], cwd=folder, stdout=end,
                              stderr=errors, text=True, env=bars)
        os.close(end)
        assert (done.returncode, page.exists()) == (0, True) and "Broken" not in (done.stderr or ""), done.stderr

@heavy_only("processes whose streams are closed")
@pytest.mark.parametrize("streams, encoding", [(">&-", "utf-8"), ("<&- >&- 2>&-", "utf-8"), ("", "ascii")])
def test_a_terminal_costs_no_file(folder, tmp_path, streams, encoding):
    page = tmp_path/"page.html"
    line = f"{command} report saved.json --html {page} {streams}"
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=bars | dict(PYTHONIOENCODING=encoding),
                          capture_output=True)
    assert (done.returncode, page.exists()) == (0, True), done.stderr

reads_and_writes = dict(        # what a verb reads, and which of its options write
    roofline=("net.py:make", "net.py", "html json csv kernels"), report=("saved.json", "saved.json", "html csv"),
    compare=("broken.json saved.json", "saved.json", "html csv"), count=("net.py:make", "net.py", "json csv"),
    predict=("net.py:make --on peaks.json", "peaks.json", "html json csv kernels"),
                        mfu=("net.py:make --on L40S --tokens-per-s 1", "net.py", "json"),
    serve=("transformers:own_code --on L40S", "own_code/config.json", "html json csv"),
                        check=("ends.toml", "ends.toml", "html json junit"),
    trace=("saved.json --like newer.json", "newer.json", "html json csv perfetto"),
                        ncu=("newer.json", "newer.json", "html json csv"))

@pytest.mark.parametrize("verb", reads_and_writes)
def test_a_file_that_is_read_is_not_written_over(folder, verb, monkeypatch, capsys):
    "By its name, another spelling of its path, a link to it; with any option that writes, before anything is done."
    from fasterbench.cli.main import main
    given, read, options = reads_and_writes[verb]
    (folder/"peaks.json").write_text("{}")
    link = folder/f"link-{verb}"
    link.symlink_to(folder/read)
    before = (folder/read).read_bytes()
    monkeypatch.chdir(folder)
    ways = ([(option, read) for option in options.split()]
            + [(options.split()[0], path) for path in (f"own_code/../{read}", folder/read, link.name)])
    for option, path in ways:
        with pytest.raises(SystemExit) as ended: main([verb, f"--{option}", str(path), *given.split()])
        said = (
            f"fasterbench: Invalid value for --{option}: {str(path)!r} is read by the same command, which would "
            "overwrite it\n")
        assert (ended.value.code, capsys.readouterr()) == (2, ("", said))
    assert (folder/read).read_bytes() == before and link.is_symlink()

def test_check_writes_over_no_model_that_its_file_names(folder):
    done = fasterbench("check", "ends.toml", "--json", "ends.py", cwd=folder)
    assert done.returncode == 2 and "'ends.py' is read by the same command" in done.stderr

def test_one_file_is_not_written_twice(folder):
    done = fasterbench("count", "net.py:make", "--json", "one", "--csv", "./one", cwd=folder)
    assert ((done.returncode, done.stderr)
            == (2, "fasterbench: Invalid value for --json, --csv: only one of them can go to 'one'\n")
            and not (folder/"one").exists())

def test_what_an_option_writes_is_said_first():
    """A file is checked where the help of its option begins with Write: no option of such a name begins with
    something else."""
    from typer.main import get_command
    from fasterbench.cli.main import app, register
    register()
    names = {"--html", "--json", "--csv", "--kernels", "--perfetto", "--junit"}
    found = [(name, o, p.help) for name, verb in get_command(app).commands.items() for p in verb.params
             for o in p.opts if o in names]
    assert {o for _, o, _ in found} == names
    assert [f for f in found if not f[2].startswith("Write ") and f[:2] != ("trace", "--kernels")] == []
