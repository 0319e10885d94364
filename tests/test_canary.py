"""The private names of PyTorch that the package uses: a new PyTorch that moves one fails here first, and says which.

`python tests/test_canary.py` prints what is missing, without pytest."""
import ast, importlib, sys
from functools import cache
from pathlib import Path

import torch

from wings import tree

package = Path(__file__).resolve().parent.parent/"fasterbench"

# Names that stand in the code as they are written here are found by reading it; these stand in it as text or on
# objects.
as_text = {"torch._dynamo.eval_frame._stance": "engine.process",
           "torch._dynamo.eval_frame._set_stance": "engine.process",
           "torch._dynamo.utils": "running.program",
           "torch._dynamo.config.fake_tensor_cache_enabled": "engine.uncompiled",
           **{f"torch._inductor.{name}": "compiled.inductor" for name in (
               "debug.set_kernel_post_grad_provenance_tracing", "codegen.cpp.set_kernel_post_grad_provenance_tracing",
               "codegen.triton.set_kernel_post_grad_provenance_tracing", "graph.GraphLowering._compile_to_module",
               "scheduler.Scheduler.codegen_extern_call",
               "codegen.wrapper.PythonWrapperCodegen.write_provenance_debug_handle",
               "codecache.PyCodeCache.modules", "utils.set_tracing_context_output_strides")},
           **{f"torch._dynamo.eval_frame.{name}": "compiled.inductor" for name in (
               "_callback_from_stance", "_create_wrapped_callback", "innermost_backend")}}
on_objects = {  # name → (object, attributes)
    "Module": (lambda: torch.nn.Linear(2, 2),
               ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
                "_compiled_call_impl")),
    "Tensor": (lambda: torch.nn.Parameter(torch.ones(2)),
               ("_backward_hooks", "_post_accumulate_grad_hooks", "_version")),
    "OpOverload": (lambda: torch.ops.aten.mm.default, ("_schema", "_op_dk", "_overloadname")),
    "compiled module": (lambda: torch.compile(torch.nn.Linear(2, 2)), ("_orig_mod",))}

def private(chain): return any(part.startswith("_") and not part.startswith("__") for part in chain.split("."))

def chain_of(node):
    "`a.b.c` of nested attributes; nothing where they do not begin with a name."
    parts = []
    while isinstance(node, ast.Attribute): parts, node = [node.attr, *parts], node.value
    return ".".join([node.id, *parts]) if isinstance(node, ast.Name) else ""

@cache
def used():
    "Each private name of PyTorch in the code, with the modules that use it."
    found = {}
    for path in package.rglob("*.py"):
        parsed, inner = tree(path), set()
        names = {}
        for node in ast.walk(parsed):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
                for a in node.names: names[a.asname or a.name] = f"{node.module}.{a.name}"
            elif isinstance(node, ast.Import): inner |= {a.name for a in node.names if a.name.startswith("torch.")}
        for node in ast.walk(parsed):
            first, _, rest = chain_of(node).partition(".")
            if rest and first in ("torch", *names): inner.add(f"{names.get(first, first)}.{rest}")
        for name in filter(private, inner | set(names.values())):
            found.setdefault(name, set()).add(".".join(path.relative_to(package).with_suffix("").parts))
    return found

def exists(name):
    "Return whether PyTorch has `name`: a module, or an attribute of one."
    parts = name.split(".")
    for i in range(len(parts), 0, -1):
        try: value = importlib.import_module(".".join(parts[:i]))
        except ImportError: continue
        for part in parts[i:]:
            if not hasattr(value, part): return False
            value = getattr(value, part)
        return True
    return False

# What every module but `core.private` uses. A name that is not here belongs there, unless it is one of the parts of
# PyTorch
# that a module works with: the compiler, the switches of a process, the decompositions.
elsewhere = {
    "compiled.compiled": "_dynamo.utils.counters",
    "engine.accelerator": "_C",
    "work.stand_ins": "ops._c10d_functional ops._c10d_functional.wait_tensor ops._c10d_functional.wait_tensor.default",
    "compiled.inductor": """_C _C._dynamo _C._dynamo.eval_frame _C._dynamo.eval_frame._debug_get_cache_entry_list
        _dynamo _dynamo.eval_frame _dynamo.eval_frame.innermost_backend _dynamo.exc.RestartAnalysis
        _dynamo.guards.DeletedGuardManagerWrapper _functorch.config _functorch.config.patch
        _inductor _inductor.codecache.PyCodeCache _inductor.codecache.PyCodeCache.modules _inductor.codegen.cpp
        _inductor.codegen.triton _inductor.compile_fx.compile_fx _inductor.compile_fx.compile_fx_inner _inductor.debug
        _inductor.graph _inductor.scheduler _inductor.virtualized.V _inductor.virtualized.V.graph
        _inductor.utils.set_tracing_context_output_strides _dynamo.device_interface
        _dynamo.device_interface.get_interface_for_device utils._triton""",
    "engine.process": """_C _C._is_multithreading_enabled _C._set_multithreading_enabled _GLOBAL_DEVICE_CONTEXT
        _dynamo.eval_frame.DynamoStance _higher_order_ops.utils""",
    "engine.backward": """_C _C._autograd _C._autograd._pop_saved_tensors_default_hooks
        _C._autograd._push_saved_tensors_default_hooks _C._autograd._top_saved_tensors_default_hooks
        _C._current_graph_task_id _C._will_engine_execute_node autograd._engine_run_backward""",
    "work.lives": "_C _C.StorageBase _C.StorageBase.resize_",
    "engine.uncompiled": """_decomp _decomp.decompositions _decomp.global_decomposition_table
        _decomp.global_decomposition_table.values _disable_dynamo _dynamo _lazy_modules _refs""",
    "traces.trace_work": "_meta_registrations",
    "probes.probes": "_int_mm _scaled_mm",
    "running.program": "autograd._engine_run_backward",          # is replaced while a program is watched
    "work.dispatch": "_mkldnn",
    "compiled.kernel_work": "_inductor.dependencies.MemoryDep _inductor.ir.NonOwningLayout "
                            "utils._sympy.functions.FloorDiv utils._sympy.functions.Mod "
                            "utils._sympy.functions.ModularIndexing",
    "work.trace": "UntypedStorage._new_with_weak_ptr autograd.forward_ad._current_level"}

optional = {"torch._C._cuda_getDriverVersion"}             # asked for with a default: a build without CUDA has none

def missing():
    names = used() | {n: {m} for n, m in as_text.items()}
    gone = [f"{n}, which {', '.join(sorted(m))} uses" for n, m in sorted(names.items()) if n not in optional
            and not exists(n)]
    for kind, (make, attributes) in on_objects.items():
        made = make()
        gone += [f"{a} of a {kind}" for a in attributes if not hasattr(made, a)]
    return [f"PyTorch {torch.__version__} has no {g}" for g in gone]

def test_the_private_names_of_pytorch_are_there():
    found = used()
    # the reader finds what is there
    assert "torch.utils._python_dispatch._pop_mode" in found and len(found) > 20, sorted(found)
    assert missing() == []

def test_private_names_stand_where_they_are_expected():
    found = {(module, name) for name, modules in used().items() for module in modules if module != "core.private"}
    assert found == {(module, f"torch.{name}") for module, names in elsewhere.items() for name in names.split()}

def test_the_function_that_sees_kernels_is_asked_as_before():
    "It is called with these three by every code generator; another signature makes a compiled model one row."
    import inspect, torch._inductor.debug as debug
    asked = list(inspect.signature(debug.set_kernel_post_grad_provenance_tracing).parameters)
    assert asked[:3] == ["node_schedule", "kernel_name", "is_extern"], asked

def test_a_name_that_is_gone_is_named(monkeypatch):
    monkeypatch.delattr("torch.utils._python_dispatch._pop_mode")
    assert (missing() == [
        f"PyTorch {torch.__version__} has no torch.utils._python_dispatch._pop_mode, which core.private uses"])

if __name__ == "__main__":
    for line in missing(): print(line)
    sys.exit(bool(missing()))
