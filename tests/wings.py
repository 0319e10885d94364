"""Which module imports which, read from the source: imports inside functions count, and names that `fasterbench` hands on
count as imports of the module they live in."""
import ast
from functools import cache
from pathlib import Path

order = ["core", "engine", "work", "timing", "roofs", "probes", "views", "analysis", "cli"]          # the core
features = ["compiled", "predicting", "serving", "comparing", "counting", "checking", "running", "ncu", "traces", "memory", "training", "network", "profiling"]      # each stands on the core
stands_on = dict(serving="predicting")                            # and on no other feature but this
at_top = dict(roofline="analysis", compute="analysis", __main__="cli")   # where the modules without a folder belong

@cache
def tree(path):
    "A file, parsed once for all who read it; nobody changes what is returned."
    return ast.parse(Path(path).read_text(encoding="utf-8"))

def modules(package):
    "Dotted name below the package → file. A wing is there by its own name if its `__init__` holds something; the package itself is left out."
    files = [p for p in Path(package).rglob("*.py") if p.stem not in ("__init__", "_modidx") or p.parent != Path(package) and p.stem == "__init__" and p.stat().st_size]
    return {".".join(p.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): p for p in files}

def homes(package):
    "Public name → module, as `fasterbench/__init__.py` has it."
    scope = {}
    for node in tree(Path(package)/"__init__.py").body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "_homes": exec(compile(ast.Module([node], []), "homes", "exec"), scope)
    return scope.get("_homes", {})

def targets(node, module, package):
    "Dotted names below the package that an import statement may mean."
    if isinstance(node, ast.Import):
        return [a.name.partition(".")[2] for a in node.names if a.name.split(".")[0] == package]
    if node.level: base = ".".join([*module.split(".")[:-node.level], *([node.module] if node.module else [])])
    else:
        first, _, base = node.module.partition(".")
        if first != package: return []
    return [f"{base}.{a.name}".strip(".") for a in node.names]

def imports(package):
    "Module → the modules of the package that it imports, anywhere in its source."
    files, public, name = modules(package), homes(package), Path(package).name
    def resolved(dotted):
        parts = dotted.split(".")
        if parts[0] in public and parts[0] not in files: return public[parts[0]]
        while parts and ".".join(parts) not in files: parts.pop()
        return ".".join(parts) or None
    graph = {}
    for module, path in files.items():
        statements = [n for n in ast.walk(tree(path)) if isinstance(n, (ast.Import, ast.ImportFrom))]
        here = f"{module}.__init__" if path.stem == "__init__" else module
        found = {resolved(t) for n in statements for t in targets(n, here, name)}
        graph[module] = found - {None, module}
    return graph

def wing(module): return at_top.get(module, module.split(".")[0])

def backwards(graph):
    "(module, module) for each import of a later wing or of another feature, and for wings that are not listed."
    place = {w: i for i, w in enumerate(order)} | dict.fromkeys(features, len(order))
    def is_down(a, b): return a in place and b in place and (a == b or place[b] < place[a] or stands_on.get(a) == b)
    return sorted((a, b) for a, them in graph.items() for b in them if not is_down(wing(a), wing(b)))

def circles(graph):
    "Each set of modules that import one another, directly or by others."
    reach = {a: set(them) for a, them in graph.items()}
    changed = True
    while changed:
        changed = False
        for a, them in reach.items():
            more = set().union(*(reach.get(b, set()) for b in them)) - them
            changed = changed or bool(more)
            them.update(more)
    return sorted({frozenset({a} | {b for b in reach[a] if a in reach.get(b, ())}) for a in reach if a in reach[a]}, key=sorted)
