"""The command line as a process of its own. Most runs are forks of a process that has torch loaded; help, progress and the
main job are run by the installed command."""
import csv, fcntl, io, json, os, pty, shutil, struct, subprocess, sys, termios
from pathlib import Path

import pytest

import forked
import ncu_files
from conftest import heavy, root

command = str(Path(sys.executable).with_name("fasterbench"))
net = "import torch\ndef make(): return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), torch.randn(8, 64)\ndef broken(): raise OSError('disk on fire')\ndef bare(): return torch.nn.Bilinear(8, 8, 8)\n"

bars = {k: v for k, v in os.environ.items() if not k.startswith("TQDM")}       # nothing but the command itself decides about progress bars

def installed(*args, cwd=None): return subprocess.run([command, *args], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=bars)

def fasterbench(*args, cwd=None):
    "The same without the seconds that imports take."
    return forked.python(f"import sys\nsys.argv = {['fasterbench', *map(str, args)]!r}\nfrom fasterbench.cli.main import main\nsys.exit(main())", cwd=cwd, env=bars)

def test_both_ways_of_running_are_the_same():
    for args in (["--help"], ["unheard"], ["report", "absent.json"]):
        one, other = installed(*args), fasterbench(*args)
        assert (one.returncode, one.stdout, one.stderr) == (other.returncode, other.stdout, other.stderr), args

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    d = tmp_path_factory.mktemp("cli")
    (d/"net.py").write_text(net)
    shutil.copy(root/"tests/data/resnet50.json", d/"saved.json")
    (d/"newer.json").write_text('{"schema": "fasterbench.result", "version": 99}')
    (d/"broken.json").write_text("{")
    return d

def test_help_of_every_verb():
    for verb in ([], ["roofline"], ["peaks"], ["report"], ["compare"], ["ncu"]):
        done = fasterbench(*verb, "--help")
        assert done.returncode == 0 and "Usage: fasterbench" in done.stdout and done.stderr == ""

@pytest.mark.parametrize("args, code, part", [
    (["roofline"], 2, "Missing argument"), (["roofline", "resnet18"], 2, "does not name a model"), (["roofline", "absent.py:make"], 2, "no file 'absent.py'"),
    (["roofline", "net.py:nothing"], 2, "it has make, broken, bare"), (["roofline", "net.py:broken"], 1, "disk on fire"), (["roofline", "net.py:make", "--input", "2,5"], 1, "shapes cannot be multiplied"),
    (["roofline", "net.py:bare"], 1, "it can return (module, sample)"), (["roofline", "net.py:make", "--csv", "-", "--json", "-"], 2, "one of them at a time"),
    (["roofline", "net.py:make", "--steps", "none"], 2, "'none'"), (["roofline", "net.py:make", "--device", "cuda:9"], 2, "cuda:9"), (["peaks", "--dtype", "int16"], 2, "int16"),
    (["roofline", "net.py:make", "--no-html", "--json", "no/such/folder.json"], 2, "no/such/folder.json"), (["unheard"], 2, "unheard"),
    (["report", "absent.json"], 2, "absent.json"), (["report", "broken.json"], 1, "broken.json is not a JSON file"),
    (["report", "newer.json"], 1, "version 99 cannot be read"), (["report", "net.py"], 1, "net.py is not a JSON file"),
    (["report", "saved.json", "--html", "no/such/folder.html"], 2, "no/such"),
    (["report"], 2, "Missing argument"), (["report", "saved.json", "--top", "-1"], 2, "-1"),
    (["compare", "saved.json", "absent.json"], 2, "absent.json"), (["compare", "saved.json"], 2, "Missing argument"),
    (["compare", "newer.json", "saved.json"], 1, "version 99"),
    (["ncu", "absent.csv"], 2, "absent.csv"), (["ncu", "net.py"], 1, "no table of Nsight Compute"), (["ncu", "net.py", "--by", "layer"], 2, "'layer'")])
def test_errors_are_one_line(folder, args, code, part):
    done = fasterbench(*args, cwd=folder)
    lines = [l for l in done.stderr.splitlines() if not l.startswith("wrote ")]
    assert done.returncode == code and len(lines) == 1 and lines[0].startswith("fasterbench: ") and part in lines[0], done.stderr
    assert "Traceback" not in done.stderr

def test_debug_shows_the_traceback(folder):
    done = fasterbench("roofline", "net.py:broken", "--debug", cwd=folder)
    assert done.returncode == 1 and "Traceback" in done.stderr

def test_a_model_from_a_file(folder):
    done = fasterbench("roofline", "net.py:make", "--steps", "3", "--csv", "rows.csv", "--json", "result.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Linear" in done.stdout and "util%" in done.stdout
    assert json.loads((folder/"result.json").read_text())["schema"] == "fasterbench.result" and "Roofline of net.py:make" in (folder/"make.html").read_text()
    assert (folder/"rows.csv").read_text().startswith("rank,name,type") and "it/s" not in done.stderr

def test_json_on_standard_output(folder):
    done = fasterbench("roofline", "net.py:make", "--steps", "3", "--json", "-", "--no-html", cwd=folder)
    assert done.returncode == 0 and len(json.loads(done.stdout)["points"]) == 2 and done.stderr == ""

def test_one_thing_at_a_time_on_standard_output(folder):
    "What is asked for with - is all there is, so that a pipe can read it."
    text = fasterbench("roofline", "net.py:make", "--steps", "3", "--csv", "-", "--no-html", cwd=folder).stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [r["type"] for r in rows if r["type"] == "Linear"] == ["Linear"] and len(rows) == 2
    assert fasterbench("report", "saved.json", "--html", "-", cwd=folder).stdout.startswith("<!DOCTYPE html>")
    pairs = fasterbench("compare", "saved.json", "saved.json", "--csv", "-", cwd=folder).stdout
    assert len(list(csv.DictReader(io.StringIO(pairs)))) == 142

def test_saved_results_need_no_torch(folder):
    "With torch out of reach, a saved result is read, shown, drawn, compared and written again as it was."
    block = "import sys\nfor m in ('torch', 'numpy'): sys.modules[m] = None\n"
    code = block + """
import json, fasterbench
saved = fasterbench.from_json("saved.json")
saved.summary(3); saved.plot(); saved.to_csv("saved.csv"); saved.to_html("saved.html"); saved._repr_html_()
saved.to_json("again.json"); assert fasterbench.from_json("again.json") == saved
both = fasterbench.compare(saved, "saved.json")
both.summary(3); both.plot(); both.to_html("both.html"); both.to_csv("both.csv")
from fasterbench.cli.main import main
for args in (["report", "saved.json"], ["compare", "saved.json", "saved.json", "--html", "cli.html"]):
    try: main(args)
    except SystemExit as e: assert e.code == 0
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr
    assert "maxpool" in done.stdout and "142 rows on both sides" in done.stdout and (folder/"cli.html").stat().st_size > 1e6

def test_a_report_of_nsight_compute(folder):
    report = ncu_files.gemm_tiled(folder)
    done = fasterbench("ncu", report, "--csv", "kernels.csv", cwd=folder)
    assert done.returncode == 0 and "gemm_tiled_kernel<32>" in done.stdout and "ncu --csv --page raw" in done.stdout and done.stderr == "wrote kernels.csv\n"
    done = fasterbench("ncu", report, "--by", "kernel", "--json", "-", cwd=folder)
    assert done.returncode == 0 and json.loads(done.stdout)["points"][0]["time_s"] == 2.5e-3

@pytest.mark.timed
def test_peaks(folder):
    done = fasterbench("peaks", "--json", "peaks.json", cwd=folder)
    assert done.returncode == 0 and "ridge point" in done.stdout and "DRAM" in done.stdout and "it [" not in done.stderr and "measuring" not in done.stderr
    from fasterbench import HardwarePeaks
    assert HardwarePeaks.from_json(folder/"peaks.json").peak_flops > 1e8
    done = fasterbench("peaks", "--html", "peaks.html", cwd=folder)
    assert done.returncode == 0 and done.stderr == "wrote peaks.html\n" and 1e6 < (folder/"peaks.html").stat().st_size < 6e6

def test_given_peaks(folder):
    "They are taken as they are; where they are not for this model or this device, one line says so."
    from fasterbench import HardwarePeaks
    def warned(*args):
        done = fasterbench("roofline", "net.py:make", "--steps", "3", "--no-html", "--json", "given.json", *args, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert json.loads((folder/"given.json").read_text())["peaks"]["peak_flops"] == 1.25e12
        return [l for l in done.stderr.splitlines() if l != "wrote given.json"]
    HardwarePeaks(1.25e12, 1e11).to_json(folder/"own.json")
    HardwarePeaks(1.25e12, 1e11, device="cuda:0", environment=dict(device_name="GPU X")).to_json(folder/"other.json")
    assert warned("--peaks", "own.json") == []
    assert [l.startswith("WARNING: other.json: they are of GPU X (cuda:0), and the model ran on ") for l in warned("--peaks", "other.json")] == [True]
    line, = warned("--peaks", "own.json", "--dtype", "bfloat16")
    assert "no ceiling for bfloat16, so float32 stands in for it" in line

def test_training_steps(folder):
    done = fasterbench("roofline", "net.py:make", "--steps", "3", "--backward", "--no-html", "--csv", "-", cwd=folder)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert done.returncode == 0 and {"forward", "backward"} <= {r["phase"] for r in rows}, done.stderr

@pytest.mark.timed
def test_a_report_is_named_after_the_last_part(folder):
    from fasterbench.cli.loading import _library
    try: transformers = _library("transformers")
    except ValueError: pytest.skip("transformers is not installed")
    transformers.BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=64).save_pretrained(folder/"tiny")
    done = fasterbench("roofline", "transformers:tiny/", "--steps", "3", cwd=folder)
    assert done.returncode == 0 and "wrote tiny.html" in done.stderr, done.stderr

@pytest.mark.timed
def test_a_terminal_sees_progress(folder):
    "With a terminal at standard error a bar appears."
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = subprocess.Popen([command, "peaks"], stdout=subprocess.DEVNULL, stderr=follower, env=bars)
    os.close(follower)
    text = b""
    while True:
        try: chunk = os.read(leader, 65536)
        except OSError: break
        if not chunk: break
        text += chunk
    assert done.wait() == 0 and b"measuring peaks" in text

@pytest.mark.skipif(not heavy, reason="needs torchvision and half a minute: FASTERBENCH_TESTS=all")
@pytest.mark.timed
def test_the_main_job(tmp_path):
    done = installed("roofline", "torchvision:resnet18", cwd=tmp_path)
    assert done.returncode == 0 and "layer4.0.conv2" in done.stdout and "wrote resnet18.html" in done.stderr
    assert 1e6 < (tmp_path/"resnet18.html").stat().st_size < 6e6
    done = fasterbench("roofline", "torchvision:resnet81", cwd=tmp_path)
    assert done.returncode == 2 and "resnet18" in done.stderr and done.stderr.count("\n") == 1
