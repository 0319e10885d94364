"""What the tests protect: 60 lines of the package that matter are changed, one at a time, and the tests run.

    python tests/benchmarks/mutants.py [--seed 1] [--number 60] [--only WING] [--near] [--all] [--list] [-- PYTEST
    ARGUMENTS]

A mutant is one constant that is 20 % greater (a whole number: one more), one comparison that includes or leaves out
its limit, or one sign that is the other. They are drawn with a seed from functions of `work`, `roofs`, `timing`,
`traces` and `analysis`, as many of each wing as of every other; `--only serving` draws from another. Each is
written in a copy of the project, into the module and into the cell of the notebook that it comes from, as a change
would be; the test line of the README runs there until a test fails, and `--all` lets the tests of `.ci/run`
(FASTERBENCH_TESTS=all) try those that it lets pass. `--near` runs less, in minutes: the notebook of the mutant's
module, and the files of tests that name the module or have the folder of its wing. Prints each mutant with the test
that caught it, and at the end how many each caught. A machine that others use slows it down and changes nothing
else: a mutant counts as caught where a test fails that passes without it."""
import argparse, ast, json, os, random, re, shutil, subprocess, sys, tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]
import style

root = Path(__file__).resolve().parent.parent.parent
wings = "work", "roofs", "timing", "traces", "analysis"
comparisons = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
signs = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}

def in_functions(tree):
    "Every node within a function, docstrings, annotations and defaults left out."
    for f in ast.walk(tree):
        if isinstance(f, (ast.FunctionDef, ast.Lambda)):
            for part in f.body if isinstance(f.body, list) else [f.body]: yield from ast.walk(part)

def constant(node):
    "The text of a number that is changed; nothing for one whose change says nothing, as an index or a flag."
    v = node.value
    if isinstance(v, bool) or not isinstance(v, (int, float)) or v in (0, 1, -1): return None
    return repr(v + 1) if isinstance(v, int) and v < 100 else repr(type(v)(v * 1.2))

def changes(path):
    "Every mutant of a file: (line, first column, last column, new text)."
    text = path.read_text(encoding="utf-8")
    lines, seen = text.splitlines(), set()
    for node in in_functions(ast.parse(text)):
        found = None
        if isinstance(node, ast.Constant) and (new := constant(node)):
            found = node.lineno, node.col_offset, node.end_col_offset, new
        elif isinstance(node, (ast.Compare, ast.BinOp)):
            left, right = ((node.left, node.comparators[0]) if isinstance(node, ast.Compare)
                           else (node.left, node.right))
            new = comparisons.get(type(node.ops[0])) if isinstance(node, ast.Compare) else signs.get(type(node.op))
            if new and left.end_lineno == right.lineno:
                between = lines[left.end_lineno - 1].encode()[left.end_col_offset:right.col_offset].decode()
                if sign := re.search(r"<=|>=|==|!=|<|>|\+|-|\*|/", between):
                    found = left.end_lineno, left.end_col_offset + sign.start(), left.end_col_offset + sign.end(), new
        if found and found not in seen:
            seen.add(found)
            yield found

def drawn(number, seed, only):
    "The mutants of this seed: a wing after the other, a file of it, a line of that, one change of that line."
    rng, picked = random.Random(seed), {}
    files = {w: sorted(p for p in (root/"fasterbench"/w).glob("*.py") if p.name != "__init__.py")
             for w in ([only] if only else wings)}
    while len(picked) < number:
        for wing in files:
            path = rng.choice(files[wing])
            if found := list(changes(path)):
                line = rng.choice(sorted({f[0] for f in found}))
                picked.setdefault((path.relative_to(root), line), rng.choice([f for f in found if f[0] == line]))
    return list(picked.items())[:number]

def mutated(text, change):
    line, first, last, new = change
    lines = text.splitlines(True)
    raw = lines[line - 1].encode()
    lines[line - 1] = (raw[:first] + new.encode() + raw[last:]).decode()
    return "".join(lines)

def with_cell(project, path, line, change):
    """The files that a mutant changes, and their new texts: the module, and its notebook where the cell has the
    same line."""
    module = (project/path).read_text(encoding="utf-8")
    changed, lines = {path: mutated(module, change)}, module.splitlines()
    start, name, ident = next((n, *m.groups()) for n in range(line - 1, -1, -1)
                              if (m := re.match(r"# %% (\S+\.ipynb) #(\S+)", lines[n])))
    source = (project/path).parent.joinpath(name).resolve().relative_to(project.resolve())
    notebook = json.loads((project/source).read_text(encoding="utf-8"))
    cell = next(c for c in notebook["cells"] if c["id"] == ident)
    before, after = lines[line - 1], changed[path].splitlines()[line - 1]
    same = [n for n, l in enumerate(cell["source"]) if l.rstrip("\n") == before]
    nth = lines[start:line - 1].count(before)                        # of several lines alike the one at the same place
    if nth < len(same):
        cell["source"][same[nth]] = cell["source"][same[nth]].replace(before, after)
        changed[source] = json.dumps(notebook)
    return changed

def near(path):
    """The notebook of a module, and the files of tests that name it or stand in a folder of its wing, those in a
    browser last."""
    module, texts = (".".join(path.with_suffix("").parts),
                     {t: t.read_text(encoding="utf-8") for t in sorted((root/"tests").rglob("test_*.py"))})
    named = [t for t, text in texts.items() if t.parent.name == path.parent.name
             or re.search(rf"{re.escape(module)}\b", text)]
    named.sort(key=lambda t: "chrome" in texts[t])
    return [f"tests/test_notebooks.py::test_notebook[{path.parent.name}/{path.stem}.ipynb]",
            *(str(t.relative_to(root)) for t in named)]

def failing(project, everything, arguments):
    "The tests that fail in `project`, until the first one that does; \"collection\" where pytest could not run."
    env = dict(os.environ, PYTHONPATH=str(project), PYTHONDONTWRITEBYTECODE="1",
               **dict(FASTERBENCH_TESTS="all") if everything else {})
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x", *arguments],
                          cwd=project, env=env, capture_output=True, text=True)
    return (set(re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M))
            or ({"collection"} if done.returncode not in (0, 5) else set()))

def catcher(project, changed, everything, arguments):
    "A test that fails with the `changed` texts of files and passes with their own; `None` where there is none."
    texts, left_out = {path: (project/path).read_text(encoding="utf-8") for path in changed}, []
    while True:
        try:
            for path, text in changed.items(): (project/path).write_text(text, encoding="utf-8")
            failed = failing(project, everything, [*arguments, *(f"--deselect={t}" for t in left_out)])
        finally:
            for path, text in texts.items(): (project/path).write_text(text, encoding="utf-8")
        if not failed: return None
        if failed == {"collection"}: return "collection"
        if not failing(project, everything, sorted(failed)): return min(failed)
        left_out += failed

def copied(folder):
    "A copy of the project in `folder`, beside the shared files where there are some."
    shutil.copytree(root, project := Path(folder)/"project", ignore=style.beside)
    if (root.parent/"shared").is_dir(): (Path(folder)/"shared").symlink_to(root.parent/"shared")
    return project

def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=1); p.add_argument("--number", type=int, default=60)
    p.add_argument("--only", metavar="WING")
    for flag in ("--near", "--all", "--list"): p.add_argument(flag, action="store_true")
    p.add_argument("arguments", nargs="*", help="for pytest, behind --")
    how = p.parse_args()
    mutants, caught = drawn(how.number, how.seed, how.only), {"line": 0, "all": 0}
    with tempfile.TemporaryDirectory() as folder:
        project = copied(folder)
        levels = ["line", "all"] if how.all else ["line"]
        for n, ((path, line), change) in enumerate(mutants, 1):
            changed = with_cell(project, path, line, change)
            before, after = (text.splitlines()[line - 1].strip()
                             for text in ((project/path).read_text(encoding="utf-8"), changed[path]))
            print(f"{n:3} {path}:{line}  {before}\n      ->  {after}")
            if how.list: continue
            arguments = [*how.arguments, *(near(path) if how.near else [])]
            for level in levels:
                if by := catcher(project, changed, level == "all", arguments):
                    for l in levels[levels.index(level):]: caught[l] += 1
                    print(f"      caught ({level}) by {by}", flush=True)
                    break
            else: print("      NOT CAUGHT", flush=True)
    if not how.list:
        print("; ".join(
            f"{caught[level]} of {len(mutants)} caught by {'the test line' if level == 'line' else '.ci/run'}"
            for level in levels))

if __name__ == "__main__": main()
