"""The main job, the canary and the test line on each version that the package allows, and a table of what came out.

    python tests/versions.py                       # every row; an environment at a time, deleted afterwards
    python tests/versions.py oldest newest         # these rows
    python tests/versions.py oldest --quick        # main job and canary alone

Environments are made by uv where it is there (with every Python that it finds or fetches), and where it is not or
fails by venv with the Pythons that are on the path. A row takes 5 GB while it runs."""
import argparse, os, re, shutil, subprocess, sys, tempfile
from configparser import ConfigParser
from pathlib import Path
from time import monotonic

from style import beside

root = Path(__file__).resolve().parent.parent
config = ConfigParser()
config.read(root/"settings.ini", encoding="utf-8")
requirements = config["dependencies"]["requirements"].split()

# Row → Python, requirement on torch. "oldest" has the lowest release of every requirement.
rows = {"oldest": ("3.10", next(r for r in requirements if r.startswith("torch")).replace(">=", "==") + ".*"),
        "2.12": ("3.11", "torch==2.12.*"), "2.13": ("3.13", "torch==2.13.*"), "2.14": ("3.11", "torch==2.14.*"),
        "newest": ("3.14", "torch")}
job = ["-m", "fasterbench", "roofline", "torchvision:resnet18", "--html", "page.html", "--json", "result.json"]

def lowest():
    "The lowest release of each requirement, as a constraint: `numpy>=1.23` → `numpy==1.23.*`, or 1.23 itself."
    return [re.sub(r">=(.*)", lambda m: f"=={m[1]}" + ".*" * (m[1].count(".") < 2), r) for r in requirements]

def run(command, log, **how):
    "Exit code, with what was printed in `log`."
    with open(log, "a") as f:
        return subprocess.run([*map(str, command)], stdout=f, stderr=subprocess.STDOUT, **how).returncode

def interpreter(python):
    "Where a Python of pyenv lies, for uv and venv alike; else its command, which uv may also fetch."
    own = sorted((Path.home()/".pyenv/versions").glob(f"{python}.*/bin/python"))
    return (str(own[-1]) if own else shutil.which(f"python{python}")
            or (sys.executable if sys.version.startswith(f"{python}.") else None))

def environment(folder, python, torch, constraints, extra, log):
    "An environment with the package and an extra; the path of its Python, or None."
    there, wanted = folder/"env", ["-e", f"{folder}/project[{extra}]", torch]
    pins = folder/"constraints.txt"
    pins.write_text("\n".join(constraints))
    inside = there/("Scripts" if os.name == "nt" else "bin")/"python"
    own = interpreter(python)
    if uv := shutil.which("uv"):
        made = (run([uv, "venv", "-q", "--python", own or python, there], log)
                or run([uv, "pip", "install", "-q", "--python", inside, "-c", pins, *wanted], log))
        if not made: return inside
    if own is None: return None
    made = (run([own, "-m", "venv", "--clear", there], log)
            or run([inside, "-m", "pip", "install", "-q", "-c", pins, *wanted], log))
    return None if made else inside

def tried(name, quick, log):
    "One row of the table: versions, main job, canary, test line."
    python, torch = rows[name]
    with tempfile.TemporaryDirectory(prefix="fasterbench-versions-") as d:
        folder, start = Path(d), monotonic()
        shutil.copytree(root, folder/"project", ignore=beside)    # rows run beside other installations of it
        inside = environment(folder, python, torch, lowest() if name == "oldest" else [],
                             "vision" if quick else "dev", log)
        if inside is None: return [name, torch, python, "not installed", "", "", ""]
        env = ({k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
               | dict(PATH=f"{inside.parent}{os.pathsep}{os.environ['PATH']}", TQDM_DISABLE="1"))
        env.setdefault("FASTERBENCH_SHARED", str(root.parent/"shared"))
        said = subprocess.run([inside, "-c",
                               "import torch, platform; print(torch.__version__, platform.python_version())"],
                              capture_output=True, text=True, env=env).stdout.split()
        work = run([inside, *job], log, cwd=folder, env=env)
        canary = run([inside, folder/"project/tests/test_canary.py"], log, env=env)
        counts = "" if quick else tests(inside, folder/"project", env, log)
        return [name, *(said or ["?", "?"]), *("failed" if code else "runs" for code in (work, canary)), counts,
                f"{(monotonic() - start) / 60:.0f} min"]

def tests(inside, project, env, log):
    "The test line; its last line."
    mark = log.stat().st_size if log.exists() else 0
    run([inside, "-m", "pytest", "-q"], log, cwd=project, env=env)
    found = re.findall(r"(?:(\d+) failed, )?(\d+) passed", log.read_bytes()[mark:].decode("utf-8", "replace"))
    return f"{found[-1][0] or 0} of {int(found[-1][0] or 0) + int(found[-1][1])} failed" if found else "did not run"

if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("rows", nargs="*", choices=[*rows, []], help="rows; left out: all")
    asked.add_argument("--quick", action="store_true", help="main job and canary alone")
    asked.add_argument("--log", type=Path, default=Path("versions.log"), help="where the output of the commands goes")
    asked = asked.parse_args()
    print("| row | torch | Python | main job | canary | test line | took |\n|---|---|---|---|---|---|---|", flush=True)
    bad = 0
    for name in asked.rows or rows:
        cells = tried(name, asked.quick, asked.log.resolve())
        bad += any(c in ("failed", "not installed", "did not run") or re.match("[1-9].* failed", c) is not None
                   for c in cells[2:])
        print("| " + " | ".join(cells) + " |", flush=True)
    sys.exit(bool(bad))
