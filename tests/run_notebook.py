"Run the code cells of a notebook in this process, one after the other, in a namespace of their own."
import ast, json, os, re, sys, types
from contextlib import contextmanager
from pathlib import Path

from _pytest.assertion.rewrite import rewrite_asserts

from alone import cores, machine

flags = {"notest": "heavy", "slow": "weekly", "cuda": "cuda"}

def kind(source):
    "Why a code cell may be left out: heavy, weekly, cuda, never (nbdev's `eval: false`), or nothing."
    if re.search(r"^#\|\s*eval:\s*false", source, re.M): return "never"
    directive = re.match(r"#\|\s*(\w+)", source)
    return flags.get(directive[1], "") if directive else ""

def left_out(heavy, weekly=False):
    "The kinds of cells that are not run."
    from torch.cuda import is_available
    return {"never", *["heavy"] * (not heavy), *["weekly"] * (not weekly), *["cuda"] * (not is_available())}

def is_timed(source):
    "Return whether a cell compares times, and has to be alone."
    return re.search(r"^#\|\s*timed\b", source, re.M) is not None

@contextmanager
def turn(source, shares):
    "Where a notebook `shares` the machine: while a cell has its part of it, or all of it and all threads."
    from torch import get_num_threads, set_num_threads
    if not shares:
        yield
        return
    threads, setting = get_num_threads(), os.environ.get("OMP_NUM_THREADS")
    with machine(alone=is_timed(source)):
        if setting is None or not is_timed(source):
            yield
            return
        set_num_threads(cores())
        del os.environ["OMP_NUM_THREADS"]
        yield
        set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = setting

def has_timed(cells, out):
    "Return whether one of the cells that are run compares times."
    return any(is_timed(source) and kind(source) not in out for *_, source in cells)

def code_cells(path):
    "(place among all cells, id, source) of each code cell."
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    return [(i, c.get("id", "-"), "".join(c["source"])) for i, c in enumerate(cells) if c["cell_type"] == "code"
            and "".join(c["source"]).strip()]

class BothSides:
    "Lets an assert that fails say what was on both sides, as pytest does."
    def visit(self, tree):
        rewrite_asserts(tree, b"")
        for node in ast.walk(tree):             # what pytest has put in begins somewhere, and ends nowhere
            if getattr(node, "end_lineno", 0) is None and hasattr(node, "lineno"): node.end_lineno = node.lineno
        return tree

def shell():
    "IPython, as a kernel has it: every form of a displayed value is made, and the text form is printed."
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config
    config = Config()
    config.HistoryManager.enabled, config.HistoryManager.hist_file = False, ":memory:"
    config.InteractiveShell.colors = "nocolor"
    made = InteractiveShell.instance(config=config, user_module=types.ModuleType("__main__"),
                                     ipython_dir=os.environ["FASTERBENCH_TEST_FOLDER"])     # not in the user's home
    made.display_formatter.active_types = made.display_formatter.format_types
    made.ast_transformers.append(BothSides())
    return made

def run(path, heavy, weekly=False):
    """Execute the cells; print how many were executed and left out. An error ends the process, with the cell on
    standard error."""
    os.chdir(Path(path).parent)
    # what the encoding lacks, as the command line does
    for stream in (sys.stdout, sys.stderr): stream.reconfigure(errors="replace")
    # see `forked`
    os.environ["PATH"] = os.pathsep.join((os.environ["FASTERBENCH_TEST_FOLDER"] + "/bin", os.environ["PATH"]))
    out, ip, counts = left_out(heavy, weekly), shell(), dict(executed=0, heavy=0, weekly=0, cuda=0, never=0)
    cells = code_cells(path)
    shares = has_timed(cells, out)
    for place, ident, source in cells:
        if (why := kind(source)) in out:
            counts[why] += 1
            continue
        with turn(source, shares): done = ip.run_cell(source, silent=False, store_history=False)
        if not done.success:
            where = f"{Path(path).name}, cell {place} (id {ident})"
            sys.stdout.flush()
            print(f"\n{where}:\n{source}\n{'-' * 20}\n{type(done.error_in_exec or done.error_before_exec).__name__}: "
                  f"{done.error_in_exec or done.error_before_exec}", file=sys.stderr)
            sys.exit(1)
        counts["executed"] += 1
    print("\ncells:" + json.dumps(counts))
