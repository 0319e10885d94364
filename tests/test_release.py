"The package as people get it: its bounds, its name, a wheel without the repository, secrets, and no torch."
import json, os, re, subprocess, sys
from configparser import ConfigParser
from pathlib import Path

import pytest

import forked
import ncu_files
from conftest import heavy_only, nightly_only, root
from style import sources
from test_cli import net

resnet50 = root/"tests/data/resnet50.json"
texts = list(sources("*.ipynb", "*.md", "*.py", "*.yml"))

def test_every_requirement_has_a_lower_bound():
    "An older release of one, which nothing forbids, may make the command lie: exit 0 on a broken budget."
    config = ConfigParser()
    config.read(root/"settings.ini", encoding="utf-8")
    assert [r for r in config["dependencies"]["requirements"].split() if ">=" not in r] == []

taken = re.compile(r"pip install (?:[^\s&;]+ +)*?(?<![\w/.-])fasterbench(?![\w/.-])")

def test_the_name_of_another_project_is_not_installed():
    "On the package index `fasterbench` is another project: it is installed from a clone or a wheel."
    assert [str(p) for p in texts if p.name != "test_release.py" and taken.search(p.read_text(encoding="utf-8"))] == []
    assert (taken.search("python -m pip install fasterbench") and taken.search("pip install -e . fasterbench\n")
            and taken.search("pip install -U fasterbench"))
    assert (not taken.search("pip install ./tools/fasterbench")
            and not taken.search("pip install dist/fasterbench-0.1.0-py3-none-any.whl"))

def test_the_project_lives_in_one_place():
    "Addresses of the project are placeholders, in pyproject.toml alone."
    assert [str(p) for p in texts if p.name not in ("_modidx.py", "test_release.py", "test_house.py")
            and re.search(r"https?://[^\s\"')]*/fasterbench\b(?!-)", p.read_text(encoding="utf-8"))] == []

def python(*args, cwd, **env):
    return subprocess.run([sys.executable, *map(str, args)], cwd=cwd, env=os.environ | dict(TQDM_DISABLE="1") | env,
                          capture_output=True, text=True)

# ---- without torch

absent = "import sys\nsys.modules['torch'] = None\n"

@pytest.mark.parametrize("verb, needs", [(["report", resnet50, "--html", "page.html"], False),
                                         (["roofline", "net.py:make"], True), (["trace", "trace.json"], True),
                                         (["predict", "net.py:make", "--on", "NVIDIA H100"], True), (["peaks"], True),
                                         (["check", "b.toml"], True)])
def test_verbs_without_torch(tmp_path, verb, needs):
    (tmp_path/"net.py").write_text(net)
    (tmp_path/"trace.json").write_text('{"traceEvents": []}')
    (tmp_path/"b.toml").write_text('[net]\nmodel = "net.py:make"\nflops = "<= 1 FLOP"\n')
    done = python("-c", absent + f"from fasterbench.cli.main import main\nmain({list(map(str, verb))!r})",
                  cwd=tmp_path, PYTHONPATH=str(root))
    if needs:
        assert (done.returncode == 2 and done.stderr.count("\n") == 1
                and "pip install torch" in done.stderr), done.stderr
    else: assert done.returncode == 0 and "wrote page.html" in done.stderr, done.stderr

# ---- secrets

@heavy_only("a process that profiles; the words are tested in views/origin")
def test_no_secret_in_files(tmp_path):
    (tmp_path/"own.py").write_text(
        "import torch\nm = torch.nn.Linear(8, 8)\nfor i in range(50): m(torch.ones(2, 8))\n")
    done = python("-m", "fasterbench", "run", "--peaks", "NVIDIA H100", "--json", "found.json", "--html", "page.html",
                  "own.py", "--hf-token", "hf_abcdefgh1234", "--lr", "0.1", "--api_key=q7", cwd=tmp_path,
                  PYTHONPATH=str(root))
    assert done.returncode == 0, done.stderr
    for name in ("found.json", "page.html"):
        text = (tmp_path/name).read_text()
        assert ("hf_abcdefgh1234" not in text and "api_key=q7" not in text
                and "--hf-token MASKED --lr 0.1 --api_key=MASKED" in text), name

# ---- the wheel

@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    "A folder with the package as its wheel installs it, and nothing else."
    made, there = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("installed")
    for args in (["wheel", "--no-deps", "--no-build-isolation", "-w", made, root],
                 ["install", "--no-deps", "--target", there, "--find-links", made, "--no-index", "fasterbench"]):
        done = python("-m", "pip", *args, cwd=made)
        assert done.returncode == 0, done.stderr
    return there

budgets = '[net]\nmodel = "net.py:make"\nflops = "{}"\n'
llama = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=256, intermediate_size=512,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=1000,
             torch_dtype="bfloat16")
trace = """
import torch
m = torch.nn.Linear(64, 64)
with torch.profiler.profile(record_shapes=True) as p: m(torch.ones(8, 64))
p.export_chrome_trace("trace.json")
"""
verbs = {  # verb → arguments, exit code, a part of what is printed
    "count": (["net.py:make"], 0, "FLOP"), "peaks": (["--json", "peaks.json"], 0, "GFLOP/s"),
         "roofline": (["net.py:make", "--steps", "3", "--json", "a.json", "--html", "a.html", "--peaks",
                       "peaks.json"], 0, "Linear"),
    "report": (["a.json", "--html", "again.html"], 0, "Linear"),
         "compare": (["a.json", "a.json", "--html", "both.html"], 0, "×1.00"),
    "check": (["broken.toml"], 1, "1 broken"),
         "predict": (["net.py:make", "--on", "NVIDIA H100 80GB HBM3"], 0, "H100"),
    "serve": (["transformers:config.json", "--on", "NVIDIA H100 80GB HBM3"], 0, "decode"),
         "trace": (["trace.json"], None, ""),
    "ncu": (["saxpy.csv"], 0, "kernels.exe"), "run": (["--peaks", "peaks.json", "loop.py"], 0, "")}

@nightly_only("a wheel, and a process for each verb")
def test_every_verb_runs_from_the_wheel(wheel, tmp_path):
    "The commands of the installed package, in a folder of their own: nothing comes from the repository."
    installed = os.environ | dict(PYTHONPATH=str(wheel), TQDM_DISABLE="1")
    where = f"import fasterbench\nassert fasterbench.__file__.startswith({str(wheel)!r}), fasterbench.__file__\n"
    def call(*args): return forked.python(where + forked.command_line(*args), tmp_path, env=installed)
    assert (python("-m", "fasterbench", "--version", cwd=tmp_path, PYTHONPATH=str(wheel)).stdout
            == call("--version").stdout != "")
    assert (wheel/"fasterbench/py.typed").is_file(), "type checkers read no types without it"
    (tmp_path/"net.py").write_text(net)
    (tmp_path/"loop.py").write_text(
        "from net import make\nmodel, sample = make()\nfor i in range(40): model(sample)\n")
    (tmp_path/"broken.toml").write_text(budgets.format("<= 1 FLOP"))
    (tmp_path/"kept.toml").write_text(budgets.format(">= 1 FLOP"))
    (tmp_path/"config.json").write_text(json.dumps(llama))
    ncu_files.saxpy(tmp_path).rename(tmp_path/"saxpy.csv")
    assert forked.python(trace, tmp_path).returncode == 0
    listed = call("--help").stdout.partition("Commands:")[2]
    assert set(re.findall(r"^  (\w+)  ", listed, re.M)) <= verbs.keys(), "a verb that this test does not run"
    for verb, (args, code, part) in verbs.items():
        done = call(verb, *args)
        assert "Traceback" not in done.stderr and part in done.stdout + done.stderr, (verb, done.stderr)
        assert done.returncode == code or code is None, (verb, done.returncode, done.stderr)
    assert call("check", "kept.toml").returncode == 0 and call("check", "absent.toml").returncode == 2

# ---- the workflows

def test_the_options_of_the_workflows_are_there():
    "A command of nbdev in a workflow has the options that it is given; a newer nbdev may name them otherwise."
    text = "".join(p.read_text() for p in (root/".github/workflows").glob("*.yml"))
    given = re.findall(r"(nbdev-\w+)((?: --[\w-]+(?: \w+)?)+)", text)
    assert given
    for command, options in given:
        found = Path(sys.executable).with_name(command)             # an environment that is not activated has it too
        known = subprocess.run([found if found.exists() else command, "--help"], capture_output=True, text=True,
                               env=os.environ | dict(COLUMNS="200")).stdout
        assert [o for o in re.findall(r"--[\w-]+", options) if not re.search(rf"{o}(?![\w-])", known)] == [], command
