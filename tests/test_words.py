"""The words: the project measures and does not advise. Notebooks, README, CONTRIBUTING and docstrings are read for
advice."""
import ast, json, re

from conftest import heavy_only, root

# What tells a reader what to do about a number. Each is found as whole words, in any case.
advice = [
    r"consider(?:ing)?", r"recommend\w*", r"we (?:suggest|advise|propose)", r"suggestions?", r"suggest\w*\(",
    r"bottlenecks?\(", r"it is (?:best|better|advisable|wise) to",
    r"you (?:should|ought|might|may want|need to|could|must|had better)", r"(?:might|may) want",
    r"(?:should|ought to|could|must) be "
    r"(?:compressed|optimi[sz]ed|pruned|quanti[sz]ed|fused|replaced|improved|reduced|avoided)",
    r"(?:layers?|models?|kernels?|operators?|rows?) (?:should|ought to)",
    r"try (?:to|a|an|the|using|out|reducing|increasing)", r"worth (?:optimi[sz]ing|fusing|improving|a try)",
    r"candidates? for (?:optimi[sz]ation|compression|fusion)",
    r"room for improvement", r"best practices?", r"low-hanging", r"make sure", r"don't forget", r"good idea",
    r"optimi[sz]e (?:it|this|these|your|the (?:model|layer|kernel)s?)",
]
pattern = re.compile("|".join(rf"(?<!\w)(?:{a})" + ("" if a.endswith(r"\(") else r"(?!\w)") for a in advice), re.I)

# Sentences that hold such words and tell nobody what to do.
allowed = {
    r"rules that give advice": "a fact about another tool",
}

def found(text):
    "Each piece of advice in a text, with some words around it."
    for passage in allowed: text = re.sub(passage, "", text)
    return [" ".join(text[max(m.start() - 40, 0):m.end() + 40].split()) for m in pattern.finditer(text)]

def texts(path):
    "Return the texts of a file: of a notebook all cells, from which its module is made, and printed outputs."
    if path.suffix == ".md": return [path.read_text(encoding="utf-8")]
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    # warnings of other packages are their words
    outputs = [o for c in cells for o in c.get("outputs", []) if o.get("name") != "stderr"]
    return (["".join(c["source"]) for c in cells]
            + ["".join(o.get("text") or o.get("data", {}).get("text/plain", "")) for o in outputs])

read = sorted(p for p in (*(root/"nbs").rglob("*.ipynb"), *(root/"nbs").rglob("*.md"), *root.glob("*.md"))
              if ".ipynb_checkpoints" not in p.parts)

def test_no_advice():
    "In no notebook, page or printed output, and so in no module; what is found is named with its file."
    told = {str(p.relative_to(root)): hits for p in read if (hits := [a for text in texts(p) for a in found(text)])}
    assert told == {} and len(read) > 100

planted = [
    "This layer is memory bound; consider fusing it.", "We recommend bfloat16.", "You should raise the batch size.",
    "Try to reduce the traffic.", "layer1 should be compressed",
    "You might want channels last.", "ra.suggest()", "ra.bottlenecks(top=3)",
    "Large dots are candidates for optimization.", "It is better to fold the batch norms.", "Consider\nthis",
    "we suggest pruning",
]
fine = [
    "The model considered here has three levels.", "bound by memory", "try: import pandas",
    "A size below 1 is not valid; valid are sizes from 1.", "The sum should agree with the total.",
    "considerably faster",
    "retry to connect", "the bottleneck level is DRAM",
]

def test_advice_is_told_from_facts():
    assert [p for p in planted if not found(p)] == [] and [f for f in fine if found(f)] == []

def test_advice_in_every_kind_of_file_is_found(tmp_path):
    cells = [dict(cell_type="markdown", source=["You should\n", "wait."]),
             dict(cell_type="code", source=["f()"], outputs=[dict(text=["We recommend it."])])]
    (tmp_path/"a.ipynb").write_text(json.dumps(dict(cells=cells)))
    (tmp_path/"a.md").write_text("You might want more.")
    for name, n in (("a.ipynb", 2), ("a.md", 1)): assert len([a for t in texts(tmp_path/name) for a in found(t)]) == n

# Words of this project for which the field has its own. Readers of pages and help meet the field's.
ours = {r"stamps?": "clock reading, or instrumentation overhead"}

def prose(path):
    "Return the text of a page: cells of Markdown, without code in them."
    cells = (json.loads(path.read_text(encoding="utf-8"))["cells"] if path.suffix == ".ipynb"
             else [dict(cell_type="markdown", source=[path.read_text(encoding="utf-8")])])
    text = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.S)

def test_pages_use_words_of_the_field():
    pages = [*root.glob("*.md"), root/"nbs/index.ipynb", *(root/"nbs/tutorials").glob("*.ipynb"),
             *(root/"nbs/docs").iterdir(), *(root/"nbs/reference").iterdir()]
    assert [(p.name, m[0]) for p in pages for word in ours for m in re.finditer(rf"\b{word}\b", prose(p), re.I)] == []
    assert len(pages) > 20 and any("roof" in prose(p) for p in pages)

# How a docstring does not begin: it says what a function does, or what a thing is.
beginnings = re.compile(r"(?:What|Whether|The same, with)\b")

def openings(source):
    "Return the docstrings of a module, its classes and functions that begin as none should."
    places = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    told = [ast.get_docstring(n) or "" for n in ast.walk(ast.parse(source)) if isinstance(n, places)]
    return [t for t in told if beginnings.match(t)]

@heavy_only("words of a list")
def test_docstrings_say_what_a_function_does():
    modules = list((root/"fasterbench").rglob("*.py"))
    found = {str(p.relative_to(root)): them for p in modules if (them := openings(p.read_text(encoding="utf-8")))}
    assert found == {} and len(modules) > 80

def test_docstrings_that_begin_with_what_are_found():
    source = (
        '"What a module holds."\nclass A:\n    "Whatever."\n    def f(self):\n        "Whether it is."\nasync def '
        'g(): "The same, with more."\ndef h(): "Return whether it is."\n')
    assert openings(source) == ["What a module holds.", "The same, with more.", "Whether it is."]

def cells(path): return json.loads(path.read_text(encoding="utf-8"))["cells"]
def test_tutorials_end_with_words():
    "The last thing that a reader sees is what was found, not a test."
    seen = {p.name: [c for c in cells(p) if not "".join(c["source"]).startswith("#| hide")][-1]["cell_type"]
            for p in (root/"nbs/tutorials").glob("*.ipynb")}
    assert [name for name, kind in seen.items() if kind != "markdown"] == []

# ---- terms of output
glossary = root/"nbs/docs/glossary.md"

def defined():
    "The terms of the glossary: those of the first column, which may name several."
    rows = [line.split("|")[1] for line in glossary.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return ({term.strip() for row in rows for part in (row, *row.split(", ")) for term in (part.strip(),)}
            | {row.strip() for row in rows})

def printed_fields():
    "Every column of every table, by its title in the terminal and on pages: the `Field`s that modules hold."
    import importlib, pkgutil
    import fasterbench
    from fasterbench.views.columns import Field
    seen = {}
    def look(value, module, depth=0):
        if isinstance(value, Field):
            for title in (value.heading, value.title): seen.setdefault(title, module)
        elif isinstance(value, (list, tuple, dict)) and depth < 3:
            for v in value.values() if isinstance(value, dict) else value: look(v, module, depth + 1)
    for m in pkgutil.walk_packages(fasterbench.__path__, "fasterbench."):
        if m.name.endswith(("._modidx", ".__main__")): continue
        for name, value in list(vars(importlib.import_module(m.name)).items()):
            if not name.startswith("__"): look(value, m.name)
    return seen

def meant(title):
    "A title without what it is the ratio or the side of, or the memory level that it names."
    return re.sub(r"^FLOP, | (?:ratio|before|after)$|,? (?:limit|expected|unmasked pairs|all pairs)$", "",
                  title).strip()

def test_every_column_is_in_the_glossary():
    terms, fields = defined(), printed_fields()
    assert {t: m for t, m in fields.items() if t not in terms and meant(t) not in terms} == {} and len(fields) > 100

def test_every_word_of_the_headline_is_in_the_glossary():
    "Terms of the equation, bounds, parts of the peak memory, rows of compiled code, and causes of a trace."
    from typing import get_args
    from fasterbench.compiled.compiled import memory_row, wrapper_row
    from fasterbench.compiled.kernel_points import _outside_graphs
    from fasterbench.roofs.point import Bound
    from fasterbench.roofs.division import Division
    from fasterbench.roofs.row import Phase
    from fasterbench.traces.idle_time import causes
    from fasterbench.views.headline import terms
    from fasterbench.work.memory import part_names
    words = {t.label for above in (1, -1) for t in terms(Division(
        10, (("compute", 1),), above, (), 1, 1, 1, 1, (("(idle)", 1),)))}
    words |= ({t.label for t in terms(Division(10, (), 0, (), 0, 1, -2))}
              | {*causes.values(), "matched by position in the step"})
    words |= {*get_args(Bound), *filter(None, get_args(Phase))} - {"none", "undefined"}
    words |= {*part_names, wrapper_row, memory_row, *(name for name, _ in _outside_graphs.values())}
    told = glossary.read_text(encoding="utf-8")
    missing = {w for w in words if w not in defined()
               and meant(w) not in defined()} - {"in rows at their roofs", "with unknown FLOPs"}
    assert missing == set(), missing
    assert all(f"`{b}`" in told for b in ("none", "undefined"))

# Words that were coined here; the field's own are in their place.
coined = re.compile(
    r"others used|PREDICTED|roof-limited|recogni[sz]ed by their neighbours|that the rows sum "
    r"to|provisional\b|(?<![\w.-])anew\b|of unknown work|sets of devices|"
                    r"disturbed: |not steady|above the roofs\b|outside any layer|waited for launches|launched "
                    r"before, waited|; left out|the host needs|were used up|(?:run|forward|step)s vary by")

def printable_texts(source):
    "Return the strings of a module that it can print: those with a blank, no docstrings, and no keys."
    tree = ast.parse(source)
    docs = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and n.body and isinstance(n.body[0], ast.Expr)}
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            and id(n) not in docs]

@heavy_only("words of a list")
def test_nothing_coined_is_printed():
    found = {str(p.relative_to(root)): hits
             for p in (*(root/"fasterbench").rglob("*.py"), *(root/"fasterbench/assets").glob("*.js"))
             if p.name != "_modidx.py"
             if (hits := [t for t in (printable_texts(p.read_text(encoding="utf-8")) if p.suffix == ".py"
                                      else [p.read_text(encoding="utf-8")]) if coined.search(t)])}
    assert found == {}

def test_coined_words_are_found():
    source = (
        'def f():\n    "not steady"\n    return f"{x} of unknown work"\ny = "a dtype; left out: that of the '
        'model"\nz = "other processes used 1.6 of 2 cores"\n')
    assert (printable_texts(source) == ["a dtype; left out: that of the model", "other processes used 1.6 of 2 cores",
                                        " of unknown work"])
    assert [bool(coined.search(t)) for t in printable_texts(source)] == [True, False, True]

def test_the_front_door_is_short():
    front = (root/"README.md").read_text(encoding="utf-8").partition("\n## More")[0]
    assert len(front.split()) <= 900
