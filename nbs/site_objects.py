"""Reference pages from the package itself: signatures, and the comments beside the parameters as a table. What is public is
what a module's `__all__` names."""
import inspect, pkgutil, re
from dataclasses import is_dataclass
from importlib import import_module

import fasterbench
from fasterbench.core.docments import commented
from fasterbench.core.features import own_features

wings = dict(core="what everything else stands on", engine="running a model and leaving it as it was",
             work="what has to be done", timing="how long it took",
             roofs="what the device allows, and a row of work under it", probes="measuring what the device allows",
             views="what people look at", analysis="the roofline of a model")
at_top = dict(analysis=["fasterbench.roofline", "fasterbench.compute"])   # modules of a wing that stand beside the wings
features = {name: inspect.getdoc(feature) for name, feature in own_features().items()}
empty = inspect.Parameter.empty

def modules(wing):
    "The modules of a wing, imported."
    folder = import_module(f"fasterbench.{wing}").__path__
    names = [f"fasterbench.{wing}.{m.name}" for m in pkgutil.iter_modules(folder)]
    return [import_module(name) for name in (*at_top.get(wing, ()), *names)]

def line_of(thing): return inspect.getsourcelines(inspect.unwrap(thing))[1]

def public(module):
    "The names of `__all__` that are defined in a module: its constants, then functions and classes as they stand there."
    found = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
    made = {n: x for n, x in found.items() if inspect.isfunction(x) or inspect.isclass(x)}
    constants = [n for n in found if n not in made and not hasattr(found[n], "__origin__")]
    return constants + sorted((n for n, x in made.items() if x.__module__ == module.__name__), key=lambda n: line_of(made[n]))

def type_text(annotation):
    if annotation is empty: return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

def default_text(value):
    "A default as a call would have it: of what has no such form, its name."
    return "" if value is empty else getattr(value, "__name__", repr(value)) if callable(value) else repr(value)

def parameters_of(thing):
    "The parameters of a call, without the instance."
    try: found = list(inspect.signature(thing).parameters.values())
    except (TypeError, ValueError): return []
    return [p for p in found if p.name not in ("self", "cls")]

class Written:
    "A type or a default as a signature shows it."
    def __init__(self, text): self.text = text
    def __repr__(self): return self.text

def shown(value, text): return empty if value is empty else Written(text(value))

def signature(thing):
    "The parameters of a call with types and defaults."
    here = [p.replace(annotation=shown(p.annotation, type_text), default=shown(p.default, default_text))
            for p in parameters_of(thing)]
    result = empty if inspect.isclass(thing) else shown(inspect.signature(thing).return_annotation, type_text)
    return str(inspect.Signature(here, return_annotation=result))

def cell(text): return text.replace("|", "\\|")
def code(text): return f"`{cell(text)}`" if text else ""

def short_names(text):
    "A type without the modules of its classes, which the signature has."
    return re.sub(r"\b[a-z_]+(?:\.\w+)*\.(?=\w)", "", text)

def parameter_table(thing):
    "A table of name, type, default and meaning; columns that nobody fills are left out, and so is a table without a meaning."
    said = commented(thing.__init__ if inspect.isclass(thing) and not is_dataclass(thing) else thing)
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    rows = [(code(stars.get(p.kind, "") + p.name), code(short_names(type_text(p.annotation))), code(default_text(p.default)),
             cell(said.get(p.name, ""))) for p in parameters_of(thing)]
    if not any(row[3] for row in rows): return []
    head = "field" if is_dataclass(thing) else "parameter", "type", "default", "meaning"
    used = [i for i in range(4) if any(row[i] for row in rows)]
    lines = [[row[i] for i in used] for row in (head, ["---"] * 4, *rows)]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]

def block(kind, head, body, depth):
    fence = "`" * (8 - depth)
    return [f"{fence}{{{kind}}} {head}", "", *body, fence, ""]

def summary_of(thing):
    "The docstring as it is written, without what `documented` adds to it."
    return (inspect.getdoc(thing) or "").partition("\nParameters:\n")[0].partition("\nFields:\n")[0]

def function(name, thing, kind="py:function", depth=2):
    return block(kind, name + signature(thing), [summary_of(thing), "", *parameter_table(thing)], depth)

kinds = {staticmethod: "py:staticmethod", classmethod: "py:classmethod"}

def member(cls, name, thing):
    "A public method or property of a class; nothing where it says nothing."
    if name.startswith("_") or not inspect.getdoc(thing): return []
    if inspect.isfunction(thing) or type(thing) in kinds:
        return function(name, getattr(cls, name), kinds.get(type(thing), "py:method"), 3)
    called = getattr(thing, "fget", None) or getattr(thing, "func", None)
    if called is None: return []
    returns = type_text(inspect.signature(called).return_annotation)
    return block("py:property", name, [*([f":type: {returns}", ""] if returns else []), summary_of(thing)], 3)

def klass(name, cls):
    "A class: its fields or the parameters of its constructor, then its public methods."
    made = is_dataclass(cls) or "__init__" in vars(cls)
    body = [summary_of(cls), "", *(parameter_table(cls) if made else [])]
    for n, thing in vars(cls).items(): body += member(cls, n, thing)
    return block("py:class", name + (signature(cls) if made else ""), body, 2)

def described(module, name):
    "One public name."
    thing = getattr(module, name)
    if inspect.isclass(thing): return klass(name, thing)
    return function(name, thing) if inspect.isfunction(thing) else block("py:data", name, [""], 2)

def wing_page(wing):
    "The public names of a wing, module by module."
    out = []
    for module in modules(wing):
        name, stem = module.__name__, module.__name__.rpartition(".")[2]
        if not (names := public(module)): continue
        out += ["", f"## {name}", "", inspect.getdoc(module).partition("\n\n")[0], "",
                f"Explained, with examples and tests, in [{stem}](../{wing}/{stem}.ipynb).", "", "```{py:module} " + name, "```", ""]
        for n in names: out += described(module, n)
    return "\n".join(out)

# What one does with the public names, in the order in which one comes to it
uses = {"Profile a model": "RooflineAnalyzer Result RooflinePoint Timing from_json compare Comparison Series",
        "Measure the roofs": "measure_peaks clear_peaks_cache datasheet_peaks HardwarePeaks MemoryLevel Ceiling KindCeiling PeaksView roofline_analysis",
        "Count, without a time": "count_work Work ModuleWork OpWork rule Flops",
        "Watch a program while it runs": "watch Watch MetricSeries trainer_callback lightning_callback",
        "Read what other tools recorded": "read_trace on_trace_ready TraceResult Breakdown Collective read_ncu ranges",
        "Devices that are not here": "predict serve ServeResult ServePoint ServeSeries ServeOption model_flops ModelFlops step_traffic StepTraffic",
        "The least time of a function": "speed_of_light SpeedOfLight Promised depends Dependence rounded_misses",
        "Several processes": "measure_network fit_network bus_bandwidth NetworkPeaks NetworkRoof NetworkView RankError",
        "Warnings": "FasterbenchWarning NotMeasuredWarning ProvisionalWarning UnknownWarning NotKeptWarning"}

def brief_signature(thing):
    "The names of the parameters, of a class those of its constructor; empty for what is not called by its users."
    if inspect.isclass(thing) and "__init__" not in vars(thing) or is_dataclass(thing): return ""
    names = [str(p).partition(":")[0].partition("=")[0] for p in parameters_of(thing)]
    firsts = [p.kind for p in parameters_of(thing)]
    if inspect.Parameter.KEYWORD_ONLY in firsts and inspect.Parameter.VAR_POSITIONAL not in firsts:
        names.insert(firsts.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return f"({', '.join([*names[:6], *['…'] * (len(names) > 6)])})"

def public_row(name):
    "A line of the index: the name with its parameters, which leads to its entry, and the first line about it."
    thing = getattr(fasterbench, name)
    doc = " ".join(summary_of(thing).partition("\n\n")[0].split())
    return f"| {{py:obj}}`{name}{brief_signature(thing)} <{fasterbench._homes[name]}.{name}>` | {cell(doc)} |"

def public_page():
    "What `from fasterbench import …` gives, by use: each with its parameters, its line and a link to its entry."
    listed, lines = [n for names in uses.values() for n in names.split()], []
    further = [n for n in fasterbench._homes if n not in listed]
    for heading, names in (uses | {"Further names": " ".join(further)}).items():
        rows = [public_row(n) for n in names.split() if n in fasterbench._homes]
        if rows: lines += [f"## {heading}", "", "| name | what it is |", "|---|---|", *rows, ""]
    return "\n".join(lines)
