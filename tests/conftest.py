"""Where tests are, which run, and in which order.

    test_house, test_words, test_typing, test_features     the code itself: wings, words, types, a feature taken out
    test_canary, test_start, test_release, test_debug      PyTorch's private names, what a start imports, the wheel
    test_counting, test_operators, test_tensors, test_zoo  work: rules, operators, models
    test_accelerator, test_ranks, test_memory, test_scale  devices (simulated.py), ranks, peaks, large models, load
    test_faults*, test_interrupts, test_state              what goes wrong, and what a run leaves behind
    test_rows, test_saved, test_report, test_views         rows of every source, files, pages in a browser
    test_cli, test_help, test_warnings, test_site          verbs, help, what is said, the docs
    a folder, as network/ or serving/                      a feature, the folder of the same name in the package
    test_notebooks                                         each notebook of nbs/, from top to bottom
    benchmarks/, test_gpu_script                           scripts that measure; mutants.py says what the tests catch

Three levels: the test line of the README; FASTERBENCH_TESTS=all, as `.ci/run`, adds what is marked
`@heavy_only(why)`, and parameters that `in_line` does not keep; FASTERBENCH_TESTS=nightly, once a week, adds
`@nightly_only(why)`, long pages and cells `#| slow`. What a level leaves out is deselected and counted; a test is
skipped for what the machine lacks.

Tests run on several workers, the files of `together` on one; what they share is made `once`. Those that compare
times carry the mark `timed`: they come last, and no other test runs beside them. Of a notebook only the cells that
carry `#| timed` are alone. Those of a minute carry the mark `long`, and come first."""
import gc, os, re, shutil, tempfile, warnings
from collections import Counter
from pathlib import Path

import pytest
from filelock import FileLock

from alone import cores, machine

root = Path(__file__).resolve().parent.parent
heavy = os.environ.get("FASTERBENCH_TESTS") in ("all", "nightly")
nightly = os.environ.get("FASTERBENCH_TESTS") == "nightly"
unix = hasattr(os, "fork")
# real files of other tools, where there are some
shared = Path(os.environ.get("FASTERBENCH_SHARED", root.parent/"shared"))

gc.disable()                # until the tests are collected: what they import stays
# Notebooks run in processes of their own: nothing draws bars or opens browsers there.
os.environ.update(TQDM_DISABLE="1", PLOTLY_RENDERER="plotly_mimetype")

# One folder for the whole run, for workers and their processes: measured peaks, the locks of the timed tests,
# temporary files.
worker = "PYTEST_XDIST_WORKER" in os.environ
if not worker: os.environ["FASTERBENCH_TEST_FOLDER"] = tempfile.mkdtemp(prefix="fasterbench-")
folder = Path(os.environ["FASTERBENCH_TEST_FOLDER"])
os.environ.update(FASTERBENCH_CACHE=str(folder/"peaks"), TMPDIR=str(folder))
tempfile.tempdir = str(folder)

def shared_file(*parts):
    "A file of the shared folder; skips the test, with the reason, where it is not there."
    path = shared.joinpath("data", *parts)
    if not path.exists(): pytest.skip(f"no {path}; FASTERBENCH_SHARED names the folder that holds it")
    return path

def once(name, make):
    "A folder of this run, which the first worker that asks for it fills with `make(folder)`."
    with FileLock(folder/f"{name}.lock"):
        if not (folder/name).exists():
            new = Path(tempfile.mkdtemp(dir=folder))
            make(new)
            new.rename(folder/name)
    return folder/name

def no_browser(why):
    warnings.warn(f"NO PAGE IS TESTED: {why}")
    pytest.skip(f"NO PAGE IS TESTED: {why}")

@pytest.fixture(scope="session")
def chrome(tmp_path_factory):
    """A browser without a network. Selenium takes the one that is installed, or fetches one; without either there
    is nothing to test with."""
    try: from selenium import webdriver
    except ImportError: no_browser("selenium is not installed; the dev extra has it")
    options = webdriver.ChromeOptions()
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-background-networking",
                     "host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", dict(browser="ALL", performance="ALL"))
    options.binary_location = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
                                   "")
    driver = shutil.which("chromedriver")
    try: browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver) if driver else None)
    except Exception as error:
        no_browser("no Chrome or Chromium with its driver was found or could be fetched: "
                   f"{str(error).splitlines()[0]}")
    browser.downloads = tmp_path_factory.mktemp("downloads")
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", dict(behavior="allow", downloadPath=str(browser.downloads)))
    yield browser
    browser.quit()

def heavy_only(why):
    "A mark: the test runs with FASTERBENCH_TESTS=all, as `.ci/run` does, and not in the test line of the README."
    return pytest.mark.level("all", why)

def nightly_only(why):
    "A mark: the test runs with FASTERBENCH_TESTS=nightly, as a workflow does once a week, and not in `.ci/run`."
    return pytest.mark.level("nightly", why)

def in_line(values, *kept, ci=None, why="another value of the same"):
    """Parameters of a test: those that are `kept` run in the test line of the README, those of `ci` (nothing: all
    others) with FASTERBENCH_TESTS=all, the rest once a week."""
    def mark(value): return (heavy_only if ci is None or value in ci else nightly_only)(why)
    return [v if v in kept else pytest.param(v, marks=mark(v)) for v in values]

def level_of(item):
    "The level from which on a test runs, or nothing."
    levels = {m.args[0] for m in item.iter_markers("level")}
    return "nightly" if "nightly" in levels else "all" if levels else ""

def pytest_xdist_auto_num_workers(config):
    "Workers for a run of everything; a run of chosen files stays in one process."
    chosen = (config.invocation_params.args
              and any(not str(a).startswith("-") and str(a).split("::")[0].endswith((".py", ".ipynb"))
                      for a in config.invocation_params.args))
    return 0 if chosen or not unix else min(max(cores(), 2), 4)         # each imports all that tests do

@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    "Workers are told paths in UTF-8: tests below a path that the locale cannot read stay in one process."
    try: str(root).encode()
    except UnicodeEncodeError: config.option.numprocesses = 0

def pytest_configure(config):
    if not config.getoption("numprocesses", 0): return
    # workers share the cores; timed cells have them all (`run_notebook`)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import forked
    forked.start()                                      # the servers load while the workers collect

def pytest_ignore_collect(collection_path):
    "Without fork, files of tests that need it are left out."
    if unix or collection_path.suffix != ".py": return None
    return re.search(r"\b(forked|fcntl|fork|mkfifo|killpg)\b",
                     collection_path.read_text(encoding="utf-8")) is not None or None

def pytest_report_header():
    return [] if unix else ["tests that fork processes need Unix and are left out, notebooks too"]

def timed(item):
    "Return the part of a test that has to be alone: all of it, or only \"cells\" of a notebook."
    mark = item.get_closest_marker("timed")
    return mark and (mark.args or ("all",))[0]

# Files that one worker runs: it alone starts a browser, imports models or the compiler, and parses the package.
together = dict(test_report="pages", test_views="pages", test_compiled="compiler", test_inductor="compiler",
                test_canary="compiler", test_serve="models", test_serve_models="models", test_serve_times="models",
                test_training="models", test_house="text", test_words="text", test_typing="text",
                test_warnings="text", test_cli="commands")

def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling
    class ByFile(LoadScopeScheduling):
        "One test after the other to the worker that is free, and the files of `together` to one."
        def _split_scope(self, nodeid): return together.get(Path(nodeid.partition("::")[0]).stem, nodeid)
    config.option.loadscopereorder = False
    return ByFile(config, log)

def place_in_run(item):
    "Long tests first, then the files of one worker, so that nobody waits for them at the end; timed ones last."
    return ([None, "cells", "all"].index(timed(item)), item.get_closest_marker("long") is None,
            item.path.stem not in together)

left_out = Counter()         # Tests of this process that a higher level adds, by level

def pytest_collection_modifyitems(config, items):
    out = [item for item in items if level_of(item) and not (nightly or heavy and level_of(item) == "all")]
    left_out.update(map(level_of, out))
    config.hook.pytest_deselected(items=out)
    items[:] = sorted((item for item in items if item not in {*out}), key=place_in_run)

def pytest_sessionfinish(session):
    if worker: session.config.workeroutput["left_out"] = dict(left_out)

@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    left_out.update({k: n - left_out[k] for k, n in getattr(node, "workeroutput", {}).get("left_out", {}).items()})

def pytest_collection_finish():
    "What is imported stays: the collector, which a count of work runs, looks at what a test makes alone."
    gc.freeze()
    gc.enable()

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    "A timed test has the machine to itself, its fixtures included; a notebook with timed cells takes it cell by cell."
    if timed(item) == "cells": return (yield)
    with machine(alone=timed(item) == "all"): return (yield)

def several(n, what): return f"{n:,} {what}{'' if n == 1 else 's'}".replace(",", " ")

def cells_of(reports):
    "How many cells of notebooks were executed, and how many were left out, by the reason."
    counts = Counter()
    for report in reports:
        for name, n in getattr(report, "user_properties", ()):
            if report.when == "call" and name.startswith("cells "): counts[name[6:]] += n
    return counts

def pytest_terminal_summary(terminalreporter):
    "Two sentences: what ran and what a higher level adds; what this machine lacks."
    stats, cells = terminalreporter.stats, cells_of(terminalreporter.getreports("passed"))
    ran = (several(len(stats.get("passed", ())) + len(stats.get("failed", ())), "test")
           + (f" and {several(cells['executed'], 'cell')} of notebooks" if cells else ""))
    higher = dict(all=cells["heavy"], nightly=cells["weekly"])
    more = {level: [several(n, what) for n, what in ((left_out[level], "test"), (higher[level], "cell")) if n]
            for level in higher}
    adds = [f"FASTERBENCH_TESTS={level} adds {' and '.join(counts)}" for level, counts in more.items() if counts]
    lacks = Counter(str(r.longrepr[-1]).removeprefix("Skipped: ") for r in stats.get("skipped", ()))
    lacks += Counter({"no GPU": cells["cuda"]})
    terminalreporter.write_line("; ".join([f"{ran} ran", *adds]) + ".")
    if lacks:
        terminalreporter.write_line("Left out for what this machine lacks: "
                                    + "; ".join(f"{n} × {why}" for why, n in lacks.most_common()) + ".")

def pytest_unconfigure():
    if not worker: shutil.rmtree(folder, ignore_errors=True)
