"""Which module imports which, read from the source: imports inside functions count, and names that `fasterbench`
hands on count as imports of the module they live in."""
import ast
from functools import cache
from pathlib import Path

order = ["core", "engine", "work", "timing", "roofs", "probes", "views", "analysis", "cli"]          # the core
at_top = dict(roofline="analysis", compute="analysis", __main__="cli")   # where the modules without a folder belong

@cache
def tree(path):
    "A file, parsed once for all who read it; nobody changes what is returned."
    return ast.parse(Path(path).read_text(encoding="utf-8"))

def modules(package):
    """Dotted name below the package → file. A wing is there by its own name if its `__init__` holds something; the
    package itself is left out."""
    files = [p for p in Path(package).rglob("*.py") if p.stem not in ("__init__", "_modidx")
             or p.parent != Path(package) and p.stem == "__init__" and p.stat().st_size]
    return {".".join(p.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): p for p in files}

def constants(path):
    "The values of a module's top level, as far as they are written out there."
    found = {}
    for node in tree(path).body:
        if isinstance(node, ast.Assign): exec_constant(node, found)
    return found

def exec_constant(node, found):
    "Put what an assignment of constants names into `found`; one that asks for more is left out."
    try: exec(compile(ast.Module([node], []), "constants", "exec"), found)
    except NameError: pass

def features(package):
    "Feature → what its `__init__` says of it: `needs`, the features that it builds on, and `public`, names by module."
    said = {p.parent.name: constants(p) for p in Path(package).glob("*/__init__.py")}
    return {name: found for name, found in said.items() if "needs" in found}

def homes(package):
    "Public name → module, of the core and of the features."
    named = dict(constants(Path(package)/"__init__.py").get("_core", {}))
    named |= {f"{f}.{m}": names for f, said in features(package).items() for m, names in said["public"].items()}
    return {name: module for module, names in named.items() for name in names}

def targets(node, module, package):
    "Dotted names below the package that an import statement may mean."
    if isinstance(node, ast.Import):
        return [a.name.partition(".")[2] for a in node.names if a.name.split(".")[0] == package]
    if node.level: base = ".".join([*module.split(".")[:-node.level], *([node.module] if node.module else [])])
    else:
        first, _, base = node.module.partition(".")
        if first != package: return []
    return [f"{base}.{a.name}".strip(".") for a in node.names]

def is_for_type_checkers(node): return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"

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
        told = {n for block in tree(path).body if is_for_type_checkers(block) for n in ast.walk(block)}
        statements = [n for n in ast.walk(tree(path)) if isinstance(n, (ast.Import, ast.ImportFrom)) and n not in told]
        here = f"{module}.__init__" if path.stem == "__init__" else module
        found = {resolved(t) for n in statements for t in targets(n, here, name)}
        graph[module] = found - {None, module}
    return graph

def wing(module): return at_top.get(module, module.split(".")[0])

def backwards(graph, features):
    "(module, module) for each import of a later wing or of another feature, and for wings that are not listed."
    place = {w: i for i, w in enumerate(order)} | dict.fromkeys(features, len(order))
    def is_down(a, b):
        return (a in place and b in place and (a == b or place[b] < place[a]
                                               or b in features.get(a, {}).get("needs", ())))
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
    return sorted({frozenset({a} | {b for b in reach[a] if a in reach.get(b, ())}) for a in reach if a in reach[a]},
                  key=sorted)
