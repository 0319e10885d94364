"Files of the project, lines over 120 columns, and methods assigned from outside."
import ast, json, os
from fnmatch import fnmatch
from pathlib import Path

from wings import tree

root = Path(__file__).resolve().parent.parent
columns = 120

def notebooks(): return sorted(p for p in (root/"nbs").rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)
def modules(): return sorted(p for p in (root/"fasterbench").rglob("*.py") if p.stem not in ("_modidx", "__init__"))

_beside = (".git", ".venv*", "_proc", "_docs", "_site", "build", "dist", "*.egg-info", "__pycache__", ".pytest_cache",
           ".hypothesis")

def beside(folder, names):
    "What lies in a folder of a clone and is no part of the project: environments of any name, builds, caches."
    return {n for n in names if any(fnmatch(n, p) for p in _beside) or (Path(folder)/n/"pyvenv.cfg").is_file()}

def sources(*kinds):
    "The files of the project that these patterns match."
    for folder, folders, names in os.walk(root):
        out = beside(folder, folders)
        folders[:] = [f for f in folders if f not in out]
        yield from (Path(folder)/n for n in sorted(names) if any(fnmatch(n, kind) for kind in kinds))

def code_cells(path):
    "The source of each code cell."
    return ["".join(c["source"]) for c in json.loads(path.read_text(encoding="utf-8"))["cells"]
            if c["cell_type"] == "code"]

def is_generated(line): return line.startswith(("__all__ = [", "           '"))       # the list that nbdev writes

def long_lines():
    "(file, line) for each line over 120 columns, in the code of notebooks, in the package and in tests."
    cells = [(p, line) for p in notebooks() for source in code_cells(p) for line in source.splitlines()]
    files = [(p, line) for p in (*modules(), *(root/"tests").rglob("*.py"))
             for line in p.read_text(encoding="utf-8").splitlines() if not is_generated(line)]
    return [(str(p.relative_to(root)), line) for p, line in cells + files if len(line) > columns]

def assigned_methods():
    "`A.b = …` at the top of a module: a method that its class does not show."
    found = []
    for path in modules():
        for node in tree(path).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            found += [f"{path.relative_to(root)}:{node.lineno} {ast.unparse(t)}" for t in targets
                      if isinstance(t, ast.Attribute) and t.attr != "__doc__"]
    return found
