"The command line as a process of its own."
import fcntl, json, os, pty, struct, subprocess, sys, termios
from pathlib import Path

import pytest

from conftest import heavy, root

command = str(Path(sys.executable).with_name("fasterbench"))
net = "import torch\ndef make(): return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()), torch.randn(8, 64)\ndef broken(): raise OSError('disk on fire')\n"

def fasterbench(*args, cwd=None): return subprocess.run([command, *args], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)

@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    d = tmp_path_factory.mktemp("cli")
    (d/"net.py").write_text(net)
    return d

def test_help_of_every_verb():
    for verb in ([], ["roofline"], ["peaks"], ["ncu"]):
        done = fasterbench(*verb, "--help")
        assert done.returncode == 0 and "Usage: fasterbench" in done.stdout and done.stderr == ""

@pytest.mark.parametrize("args, code, part", [
    (["roofline"], 2, "Missing argument"), (["roofline", "resnet18"], 2, "does not name a model"), (["roofline", "absent.py:make"], 2, "no file 'absent.py'"),
    (["roofline", "net.py:nothing"], 2, "it has make, broken"), (["roofline", "net.py:broken"], 1, "disk on fire"), (["roofline", "net.py:make", "--input", "2,5"], 1, "shapes cannot be multiplied"),
    (["roofline", "net.py:make", "--steps", "none"], 2, "'none'"), (["roofline", "net.py:make", "--device", "cuda:9"], 2, "cuda:9"), (["peaks", "--dtype", "int8"], 2, "int8"),
    (["roofline", "net.py:make", "--no-html", "--json", "no/such/folder.json"], 2, "no/such/folder.json"), (["unheard"], 2, "unheard"),
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
    assert json.loads((folder/"result.json").read_text())["schema"] == "fasterbench.result" and "<table>" in (folder/"make.html").read_text()
    assert (folder/"rows.csv").read_text().startswith("name,type") and "it/s" not in done.stderr

def test_json_on_standard_output(folder):
    done = fasterbench("roofline", "net.py:make", "--steps", "3", "--json", "-", "--no-html", cwd=folder)
    assert done.returncode == 0 and len(json.loads(done.stdout)["points"]) == 2 and done.stderr == ""

def test_a_report_of_nsight_compute(folder):
    report = root/"tests"/"data"/"ncu"/"gemm_tiled.csv"
    done = fasterbench("ncu", report, "--csv", "kernels.csv", cwd=folder)
    assert done.returncode == 0 and "gemm_tiled_kernel<32>" in done.stdout and "ncu --csv --page raw" in done.stdout and done.stderr == "wrote kernels.csv\n"
    done = fasterbench("ncu", report, "--by", "kernel", "--json", "-", cwd=folder)
    assert done.returncode == 0 and json.loads(done.stdout)["points"][0]["time_s"] == 10195552 / 1e9

def test_peaks(folder):
    done = fasterbench("peaks", "--json", "peaks.json", cwd=folder)
    assert done.returncode == 0 and "ridge point" in done.stdout and "DRAM" in done.stdout and "it [" not in done.stderr
    from fasterbench import HardwarePeaks
    assert HardwarePeaks.from_json(folder/"peaks.json").peak_flops > 1e8

def test_a_terminal_sees_progress(folder):
    "With a terminal at standard error a bar appears."
    env = {k: v for k, v in os.environ.items() if not k.startswith("TQDM")}
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    done = subprocess.Popen([command, "peaks"], stdout=subprocess.DEVNULL, stderr=follower, env=env)
    os.close(follower)
    text = b""
    while True:
        try: chunk = os.read(leader, 65536)
        except OSError: break
        if not chunk: break
        text += chunk
    assert done.wait() == 0 and b"measuring peaks" in text

@pytest.mark.skipif(not heavy, reason="needs torchvision and half a minute: FASTERBENCH_TESTS=all")
def test_the_main_job(tmp_path):
    done = fasterbench("roofline", "torchvision:resnet18", cwd=tmp_path)
    assert done.returncode == 0 and "layer4.0.conv2" in done.stdout and "wrote resnet18.html" in done.stderr
    assert 1e6 < (tmp_path/"resnet18.html").stat().st_size < 6e6
    done = fasterbench("roofline", "torchvision:resnet81", cwd=tmp_path)
    assert done.returncode == 2 and "resnet18" in done.stderr and done.stderr.count("\n") == 1
