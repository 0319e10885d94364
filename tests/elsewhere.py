"""The tests on machines that nobody here has seen: in made-up surroundings, and a table of what ran and what failed.

    python tests/elsewhere.py                      # notebooks and texts in every surrounding; an hour
    python tests/elsewhere.py --few                # what notices most, in three combinations; a minute
    python tests/elsewhere.py --few --each         # the same tests in every surrounding
    python tests/elsewhere.py "COLUMNS=40" --tests tests/test_words.py

Each surrounding has a copy of the project, a home and a folder for temporary files of its own: a run that leaves a
file in that folder has failed. A processor's name, a number of cores and an order of the tests are made by
`sitecustomize` in a folder on the path, so that every process of the run has them."""
import argparse, os, re, shutil, subprocess, sys, tempfile
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

root = Path(__file__).resolve().parent.parent
notebooks_and_texts = "tests/test_notebooks.py", "tests/test_words.py", "tests/test_house.py", "tests/test_help.py"
noticing = ["checking/check_verb", "comparing/compare", "views/headline", "probes/machine", "core/files", "cli/app",
            "timing/machine_load"]
few_tests = *(f"tests/test_notebooks.py::test_notebook[{name}.ipynb]" for name in noticing), "tests/test_help.py"

def processor(name): return dict(cpuinfo=b"processor\t: 0\nmodel name\t: " + name + b"\n")
def variables(**env): return dict(env=env)

arm = b"processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\n"
surroundings = {
    "processor without a name": processor(b""),
    "AMD EPYC 7763 64-Core Processor": processor(b"AMD EPYC 7763 64-Core Processor"),
    "processor of 49 letters": processor(b"A Processor Whose Name Has Forty-Nine Letters, So"),
    "processor with commas": processor(b"Xeon, Gold, 6148, v2"),
    "processor in Latin-1": processor(b"Prozessor f\xfcr Rechner"),
    "processor of ARM": dict(cpuinfo=arm),
    "no /proc/cpuinfo": dict(cpuinfo=None),
    "1 core": dict(cores=1), "2 cores": dict(cores=2), "64 cores": dict(cores=64),
    **{f"COLUMNS={n}": variables(COLUMNS=str(n)) for n in (40, 60, 200)}, "no COLUMNS": variables(COLUMNS=None),
    "no .git": {}, "a worktree": dict(git="worktree"),
    "a path with spaces and umlauts": dict(folder="mein schönes Projekt"),
    "unpacked sources": dict(folder="fasterbench-0.2.0", unpacked=True),
    "no HOME": variables(HOME=None), "a HOME that is read-only": variables(HOME="/proc"),
    "a user without a name": dict(user=54321), "a user without a name or HOME": dict(user=54321, env=dict(HOME=None)),
    "TZ +14": variables(TZ="Pacific/Kiritimati"), "TZ -11": variables(TZ="Pacific/Pago_Pago"),
    "LC_ALL=C": variables(LC_ALL="C"), "LC_ALL=tr_TR.UTF-8": variables(LC_ALL="tr_TR.UTF-8"),
    "POSIX without UTF-8": variables(LC_ALL="POSIX", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0"),
    "PYTHONIOENCODING=cp1252": variables(PYTHONIOENCODING="cp1252"),
    "PYTHONIOENCODING=ascii": variables(PYTHONIOENCODING="ascii"),
    "a long TMPDIR": dict(temporary="t" * 80), "random order": dict(options=["-p", "shuffled"]),
    "four workers": dict(workers=4), "a busy machine": dict(busy=True)}
combined = {
    "AMD EPYC 7763, COLUMNS=200, no .git, TZ +14": [
        "AMD EPYC 7763 64-Core Processor", "COLUMNS=200", "no .git", "TZ +14"],
    "ARM, COLUMNS=40, ascii, no HOME, 64 cores": [
        "processor of ARM", "COLUMNS=40", "PYTHONIOENCODING=ascii", "no HOME", "64 cores"],
    "Latin-1, POSIX, umlauts, a user without a name": [
        "processor in Latin-1", "POSIX without UTF-8", "a path with spaces and umlauts", "a user without a name",
        "random order"]}

made_up = '''"What a machine elsewhere answers."
import builtins, io, os
cpuinfo, cores, read = {cpuinfo!r}, {cores!r}, io.open
def opened(file, *how, **named):
    if cpuinfo != "" and file == "/proc/cpuinfo":
        if cpuinfo is None: raise FileNotFoundError(2, "No such file or directory", file)
        file = cpuinfo
    return read(file, *how, **named)
if cpuinfo != "": builtins.open = opened
if cores: os.cpu_count, os.sched_getaffinity = (lambda: cores), (lambda pid: set(range(cores)))
'''
shuffled = '''import random, pytest
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items): random.Random(7).shuffle(items)
'''

def joined(names):
    "The surroundings of these names as one."
    found = {}
    for name in names:
        for key, value in surroundings[name].items():
            found[key] = found.get(key, {}) | value if key == "env" else value
    return found

def copied(folder, unpacked=False, git=None):
    "A copy of the project, as git knows it or as a source distribution has it; without `.git`, or as a worktree."
    if git == "worktree":
        subprocess.run(["git", "worktree", "add", "-q", "--detach", folder], cwd=root, check=True)
        return
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                           capture_output=True, check=True).stdout
    for name in filter(None, map(os.fsdecode, names.split(b"\0"))):
        if unpacked and name.startswith("."): continue
        if not (root/name).is_file(): continue
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root/name, folder/name)

def as_user(number):
    """What makes a command run as a user that has no name here; it may still read Python where that lies with
    another user."""
    if number is None: return []
    return ["setpriv", f"--reuid={number}", "--clear-groups", "--inh-caps=+dac_read_search",
            "--ambient-caps=+dac_read_search", "--"]

@contextmanager
def at_work(busy):
    "Keep every core busy within the context."
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"])
                for _ in range(2 * (os.cpu_count() or 1) * busy)]
    try: yield
    finally:
        for process in spinning: process.kill(); process.wait()

def environment(base, project, of):
    "The variables of a run below `base`, and the folder for its temporary files."
    made, temporary = base/"made", base/of.get("temporary", "tmp")
    for folder in (made, temporary, base/"home"): folder.mkdir(mode=0o777)
    path = of.get("cpuinfo", "")
    if path: (base/"cpuinfo").write_bytes(path)
    (made/"sitecustomize.py").write_text(made_up.format(
        cpuinfo=str(base/"cpuinfo") if path else path, cores=of.get("cores")))
    (made/"shuffled.py").write_text(shuffled)
    env = (os.environ | dict(PYTHONPATH=f"{made}{os.pathsep}{project}", TMPDIR=str(temporary), HOME=str(base/"home"),
                             FASTERBENCH_SHARED=str(base),
                             PYTHONDONTWRITEBYTECODE="1", HYPOTHESIS_STORAGE_DIRECTORY=str(base/"home")))
    env |= dict(PYTEST_ADDOPTS=None, FASTERBENCH_TESTS=None) | of.get("env", {})
    return {k: v for k, v in env.items() if v is not None}, temporary

def tried(name, names, tests, log, workers=2):
    "One row of the table: the surrounding, what passed and failed, what it left behind, and how long it took."
    of, start = joined(names), monotonic()
    base = Path(tempfile.mkdtemp(prefix="elsewhere-", dir="/tmp" if os.path.isdir("/tmp") else None))
    project = base/of.get("folder", "project")
    try:
        copied(project, of.get("unpacked", False), of.get("git"))
        env, temporary = environment(base, project, of)
        if of.get("user"): subprocess.run(["chown", "-R", str(of["user"]), base], check=True)
        command = [*as_user(of.get("user")), sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n",
                   str(of.get("workers", workers)), *of.get("options", ()), *tests]
        with at_work(of.get("busy", False)):
            done = subprocess.run(command, cwd=project, env=env, capture_output=True)
        text, left = (done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace"),
                      sorted(p.name for p in temporary.iterdir()))
    finally:
        if of.get("git"): subprocess.run(["git", "worktree", "remove", "--force", project], cwd=root)
        shutil.rmtree(base, ignore_errors=True)
    with open(log, "a", encoding="utf-8") as f: f.write(f"==== {name}\n{text}\n")
    counts = {what: int(n) for n, what in re.findall(
        r"(\d+) (passed|failed|errors?)\b", text.rpartition("\n=")[2] or text)}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
    wrong = ([*failed, *(f"left {file}" for file in left)]
             or ([] if counts.get("passed") and not done.returncode else [f"exit {done.returncode}"]))
    return (wrong, f"| {name} | {counts.get('passed', 0)} | {', '.join(wrong) or 'none'} | "
                   f"{(monotonic() - start) / 60:.1f} min |")

if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("names", nargs="*", metavar="SURROUNDING",
                       help="of these, together; left out: each alone, and the combinations")
    asked.add_argument("--few", action="store_true",
                       help="the combinations, with the tests that notice most, in one process")
    asked.add_argument("--each", action="store_true", help="with --few: each surrounding alone too")
    asked.add_argument("--tests", nargs="+", help="what pytest runs; default: notebooks and texts")
    asked.add_argument("--log", type=Path, default=Path("elsewhere.log"), help="where the output goes")
    asked = asked.parse_args()
    every = {name: [name] for name in surroundings} | combined
    rows = ({", ".join(asked.names): asked.names} if asked.names else combined if asked.few and not asked.each
            else every)
    if unknown := set(asked.names) - set(surroundings):
        sys.exit(f"{', '.join(unknown)}: no such surrounding; there are {', '.join(surroundings)}")
    print("| surrounding | passed | failed | took |\n|---|---|---|---|", flush=True)
    bad, root_here = 0, hasattr(os, "getuid") and os.getuid() == 0
    for name, names in rows.items():
        # only root can be somebody else
        if any("user" in surroundings[n] for n in names) and (not root_here or not shutil.which("setpriv")): continue
        wrong, row = tried(name, names, asked.tests or (few_tests if asked.few else notebooks_and_texts), asked.log,
                           0 if asked.few else 2)
        bad += bool(wrong)
        print(row, flush=True)
    sys.exit(bad > 0)
