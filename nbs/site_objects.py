"""Reference pages from the source: signatures, and the comments beside the parameters as a table. Nothing is imported;
what is public is what a module's `__all__` names."""
import ast, io, tokenize
from pathlib import Path

package = Path(__file__).resolve().parent.parent/"fasterbench"
wings = dict(core="what everything else stands on", engine="running a model and leaving it as it was", work="what has to be done", timing="how long it took", roofs="what the device allows, and a row of work under it",
             probes="measuring what the device allows", views="what people look at", analysis="the roofline of a model",
             compiled="a row for every kernel of a compiled model", predicting="a model on a device that is not here", serving="how fast devices serve a language model", training="FLOPs of a training step, MFU, and traffic of many devices", comparing="results side by side", counting="the tree of a model's work", checking="whether models keep their budgets",
             running="a model in a running program", ncu="reports of Nsight Compute", traces="traces of torch.profiler", memory="what takes the room, and what fits", network="the network between ranks",
             profiling="layers by time, memory, size and compute")
at_top = dict(analysis=("roofline", "compute"))      # modules of a wing that stand beside the wings

class Source:
    "One module: its syntax tree, and the comment of each line."
    def __init__(self, path):
        self.path, text = path, path.read_text(encoding="utf-8")
        self.tree, self.text = ast.parse(text), text
        self.comments = {t.start[0]: t.string.lstrip("# ").strip() for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT}
        self.name = ".".join(("fasterbench", *path.relative_to(package).with_suffix("").parts))
        self.nodes, self.imported = {}, imported(self.tree, self.name)
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef) and "overload" in decorators(node): continue      # its signature for type checkers
            for name in names_of(node): self.nodes.setdefault(name, node)

    @property
    def public(self):
        "The names of `__all__` that are defined here, in the order of the source."
        listed = next((ast.literal_eval(n.value) for n in self.tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__"), []) if self.path.stem != "__init__" else []
        return sorted((n for n in listed if n in self.nodes), key=lambda n: self.nodes[n].lineno)

def imported(tree, name):
    "Name → where the package has it, for what a module imports from the package."
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*name.split(".")[:-node.level], node.module or ""]).rstrip(".")
            found |= {a.asname or a.name: f"{base}.{a.name}" for a in node.names}
    return found

class Qualified(ast.NodeTransformer):
    "Annotations with the full names of the package's classes, so that each leads to one entry."
    def __init__(self, source): self.names = {n: f"{source.name}.{n}" for n, node in source.nodes.items() if isinstance(node, ast.ClassDef)} | source.imported
    def visit_Name(self, node): return ast.parse(self.names[node.id], mode="eval").body if node.id in self.names else node

def type_of(source, node): return "" if node is None else ast.unparse(Qualified(source).visit(ast.parse(ast.unparse(node), mode="eval")))

def names_of(node):
    "The names that a statement of a module defines."
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)): return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]

def modules(wing):
    "The modules of a wing."
    paths = [package/f"{m}.py" for m in at_top.get(wing, ())] + sorted(p for p in (package/wing).glob("*.py") if p.stem != "__init__")
    return [Source(p) for p in paths if p.is_file()]

def parameters(arguments, skip=0):
    "(name as written, name, type, default, lines) of each parameter, and where `/` and `*` stand."
    a, plain = arguments, [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(a.defaults)) + list(a.defaults)
    out = [("", p, d) for p, d in zip(plain, defaults)][skip:]
    if a.vararg: out.append(("*", a.vararg, None))
    elif a.kwonlyargs: out.append(("*", None, None))
    out += [("", p, d) for p, d in zip(a.kwonlyargs, a.kw_defaults)]
    return out + ([("**", a.kwarg, None)] if a.kwarg else [])

def text_of(node): return "" if node is None else ast.unparse(node)

def signature(source, node, skip=0):
    "The parameters of a function with types and defaults, as Python writes them."
    def one(star, p, default):
        if p is None: return star
        kind = f": {type_of(source, p.annotation)}" if p.annotation else ""
        return star + p.arg + kind + ("" if default is None else f" = {text_of(default)}" if kind else f"={text_of(default)}")
    returns = f" -> {type_of(source, node.returns)}" if node.returns else ""
    return f"({', '.join(one(*p) for p in parameters(node.args, skip))}){returns}"

def table(rows, head):
    "A table of (name, type, default, meaning); columns that nobody fills are left out."
    used = [i for i in range(4) if i == 0 or any(r[i] for r in rows)]
    if len(used) == 1: return []
    code = lambda t: f"`{t}`" if t else ""
    cells = [[code(name), code(kind), code(default), meaning] for name, kind, default, meaning in rows]
    line = lambda r: "| " + " | ".join(r[i].replace("|", "\\|") for i in used) + " |"
    return [line([head, "type", "default", "meaning"]), "|" + "---|" * len(used), *map(line, cells), ""]

def comment_of(source, parameter, taken):
    "The comment on the line of a parameter, else those on the lines right above it that belong to no other (`taken`)."
    if parameter.end_lineno in source.comments: return source.comments[parameter.end_lineno]
    above, line = [], parameter.lineno - 1
    while line in source.comments and line not in taken:
        above.insert(0, source.comments[line])
        line -= 1
    return " ".join(above)

def parameter_table(source, node, skip=0):
    written = [(star, p, d) for star, p, d in parameters(node.args, skip) if p is not None]
    taken = {p.end_lineno for _, p, _ in written}
    rows = [(star + p.arg, text_of(p.annotation), text_of(d), comment_of(source, p, taken)) for star, p, d in written]
    return table(rows, "parameter") if any(r[3] for r in rows) else []

def decorators(node): return {text_of(d).split("(")[0].split(".")[-1] for d in node.decorator_list}

def block(kind, head, body, depth):
    fence = "`" * (8 - depth)
    return [f"{fence}{{{kind}}} {head}", "", *body, fence, ""]

def function(source, node, kind="py:function", skip=0, depth=2):
    body = [ast.get_docstring(node) or "", "", *parameter_table(source, node, skip)]
    return block(kind, node.name + signature(source, node, skip), body, depth)

def property_(source, node):
    returns = [f":type: {type_of(source, node.returns)}", ""] if node.returns else []
    return block("py:property", node.name, [*returns, ast.get_docstring(node) or ""], 3)

def patched(sources, name):
    "Functions beside the class that fastcore's `patch` makes its methods."
    for s in sources:
        for node in s.tree.body:
            if isinstance(node, ast.FunctionDef) and "patch" in decorators(node) and node.args.args and text_of(node.args.args[0].annotation) == name: yield s, node

def fields_of(source, node, sources):
    "The (module, field) of a class and of those it derives from."
    above = [(s, s.nodes[b.id]) for b in node.bases if isinstance(b, ast.Name) for s in sources if isinstance(s.nodes.get(b.id), ast.ClassDef)]
    own = [(source, n) for n in node.body if isinstance(n, ast.AnnAssign) and not n.target.id.startswith("_")]
    return [*{f.target.id: (s, f) for s, f in [*(of for s, n in above for of in fields_of(s, n, sources)), *own]}.values()]

def is_declared(field):
    "Tell if a field says of itself what it means, as those of a row do."
    return isinstance(field.value, ast.Call) and text_of(field.value.func) != "field"

def meaning_of(source, field):
    "The comment of a field, or the longest text of its declaration."
    texts = [n.value for n in ast.walk(field.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)] if is_declared(field) else []
    return source.comments.get(field.end_lineno) or max(texts, key=len, default="")

def klass(source, node, sources):
    "A class: its fields or the parameters of its constructor, then its public methods."
    members = [(source, n) for n in node.body if isinstance(n, ast.FunctionDef)] + list(patched(sources, node.name))
    start = next((n for _, n in members if n.name == "__init__"), None)
    fields = fields_of(source, node, sources)
    if start: head, rows = signature(source, start, 1), parameter_table(source, start, 1)
    elif fields:
        head = "(" + ", ".join(f"{f.target.id}: {type_of(where, f.annotation)}" + (f" = {text_of(f.value)}" if f.value and not is_declared(f) else "") for where, f in fields) + ")"
        rows = table([(f.target.id, text_of(f.annotation), "" if is_declared(f) else text_of(f.value), meaning_of(where, f)) for where, f in fields], "field")
    else: head, rows = "", []
    body = [ast.get_docstring(node) or "", "", *rows]
    for where, n in members:
        if n.name.startswith("_") or not ast.get_docstring(n): continue
        kinds, static = decorators(n), "staticmethod" in decorators(n)
        if kinds & {"property", "cached_property"}: body += property_(where, n)
        else: body += function(where, n, "py:staticmethod" if static else "py:classmethod" if "classmethod" in kinds else "py:method", 0 if static else 1, 3)
    return block("py:class", node.name + head, body, 2)

def described(source, name, sources):
    "One public name."
    node = source.nodes[name]
    if isinstance(node, ast.ClassDef): return klass(source, node, sources)
    if isinstance(node, ast.FunctionDef): return function(source, node)
    return block("py:data", name, [source.comments.get(node.end_lineno, "")], 2)

def wing_page(wing):
    "The public names of a wing, module by module."
    sources, out = modules(wing), []
    for s in sources:
        if not s.public: continue
        notebook = f"../{wing}/{s.path.stem}.ipynb"
        out += ["", f"## {s.name}", "", (ast.get_docstring(s.tree) or "").partition("\n\n")[0], "", f"Explained, with examples and tests, in [{s.path.stem}]({notebook}).", "",
                "```{py:module} " + s.name, "```", ""]
        for name in s.public: out += described(s, name, sources)
    return "\n".join(out)

def homes():
    "Public name → module, as the package itself has it."
    scope, tree = {}, ast.parse((package/"__init__.py").read_text(encoding="utf-8"))
    found = next(n for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "_homes")
    exec(compile(ast.Module([found], []), "homes", "exec"), scope)
    return scope["_homes"]

# What one does with the public names, in the order in which one comes to it
uses = {"Profile a model": "RooflineAnalyzer Result RooflinePoint Timing from_json compare Comparison Series",
        "Measure the roofs": "measure_peaks clear_peaks_cache datasheet_peaks HardwarePeaks MemoryLevel Ceiling KindCeiling PeaksView roofline_analysis",
        "Count, without a time": "count_work Work ModuleWork OpWork rule Flops",
        "Watch a program while it runs": "watch Watch MetricSeries trainer_callback lightning_callback",
        "Read what other tools recorded": "read_trace on_trace_ready TraceResult Breakdown Collective read_ncu ranges",
        "Devices that are not here": "predict serve ServeResult ServePoint ServeSeries ServeOption model_flops ModelFlops step_traffic StepTraffic",
        "Several processes": "measure_network fit_network bus_bandwidth NetworkPeaks NetworkRoof NetworkView RankError",
        "Warnings": "FasterbenchWarning NotMeasuredWarning ProvisionalWarning UnknownWarning NotKeptWarning FasterbenchDeprecationWarning"}

def brief_signature(node):
    "The names of the parameters, of a class those of its constructor; empty for what is not called by its users."
    start = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None) if isinstance(node, ast.ClassDef) else node
    if not isinstance(start, ast.FunctionDef): return ""
    names = [star + p.arg if p is not None else star for star, p, _ in parameters(start.args, isinstance(node, ast.ClassDef))]
    return f"({', '.join([*names[:6], *['…'] * (len(names) > 6)])})"

def public_row(name, module):
    "A line of the index: the name with its parameters, which leads to its entry, and the first line about it."
    source = Source(package/(module.replace(".", "/") + ".py"))
    node = source.nodes.get(name)
    doc = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split()) if node is not None else ""
    shown = name + (brief_signature(node) if node is not None else "")
    return f"| {{py:obj}}`{shown} <fasterbench.{module}.{name}>` | {doc.replace('|', chr(92) + '|')} |"

def public_page():
    "What `from fasterbench import …` gives, by use: each with its parameters, its line and a link to its entry."
    lines, found = [], homes()
    listed = [n for names in uses.values() for n in names.split()]
    for heading, names in (uses | {"Further names": " ".join(n for n in found if n not in listed)}).items():
        rows = [public_row(n, found[n]) for n in names.split() if n in found]
        if rows: lines += [f"## {heading}", "", "| name | what it is |", "|---|---|", *rows, ""]
    return "\n".join(lines)

def counts(): return {w: {s.name: s.public for s in modules(w)} for w in [*wings, "cli"]}
