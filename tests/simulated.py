"""A device that PyTorch takes for a real one, with a clock of its own: the right answers are known.

Its tensors are plain tensors of PyTorch's spare device type, over memory of the CPU: a DLPack capsule says which
device a block of memory belongs to, so changing that word moves a tensor over without a copy, and back. Each
operator that a CPU has a kernel for gets one here, which computes on the CPU and writes into the books of the
device what a queue would have done: the call keeps the CPU for `launch`, the kernel begins once it was launched and
its stream is free, and takes what the table says. Nothing waits for real: all times are whole nanoseconds of a
clock that only these books move."""
import ctypes, functools, itertools, json, threading, weakref
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity
from torch.utils._pytree import tree_leaves, tree_map

from fasterbench.engine import accelerator as seam

name = "sim"
aten = torch.ops.aten

# ---- memory: the same bytes as a tensor of the CPU and as one of the device

class _Device(ctypes.Structure): _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]
class _Tensor(ctypes.Structure): _fields_ = [("data", ctypes.c_void_p), ("device", _Device)]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_cpu, _extension = 1, 12                  # of DLPack: a CPU, and a device that it does not know

def _over(t, kind):
    capsule = torch._C._to_dlpack(t)
    _Tensor.from_address(_pointer(capsule, b"dltensor")).device.type = kind
    return torch._C._from_dlpack(capsule)

def on_cpu(t): return _over(t, _cpu)
def is_here(t): return isinstance(t, torch.Tensor) and t.device.type == name

# ---- the books

class OutOfMemory(torch.OutOfMemoryError): pass

@dataclass
class Table:
    "What each thing takes, ns."
    launch: int = 5_000                   # A call, of the CPU's time
    recorded: int = 0                     # What a call takes more of it while the profiler runs
    allocation: int = 1_000               # Of the CPU's time too
    gap: int = 0                          # Between two kernels of a stream
    kernels: dict = field(default_factory=dict)  # Of an operator
    other: int = 10_000                   # Of every other operator
    copy: int = 20_000                    # From or to the CPU's memory
    # `cost(operator, arguments, results)`, where that is not enough; None: as above
    cost: object = None
    capacity: int = 1 << 34               # B
    block: int = 1                        # What the allocator gives out are multiples of it, B
    caches: tuple = ()                    # Name and capacity of each
    lacks: tuple = ()                     # dtypes
    computes: bool = True                 # False: results have shapes and no values

class Event(NamedTuple):
    "One line of the device's record, as Kineto's events are asked."
    kind: str
    called: str
    start: int
    end: int
    thread: int = 0
    id: int = 0
    args: dict = {}
    def name(self): return self.called
    def activity_type(self): return self.kind
    def device_type(self): return DeviceType.PrivateUse1 if self.kind in ("kernel", "gpu_memcpy") else DeviceType.CPU
    def start_ns(self): return self.start
    def end_ns(self): return self.end
    def device_resource_id(self): return self.thread
    def start_thread_id(self): return self.thread
    end_thread_id = start_thread_id
    def correlation_id(self): return self.id
    def linked_correlation_id(self):
        return self.args.get("External id", 0) if self.kind in ("kernel", "gpu_memcpy") else 0

class Books:
    "The clock of the CPU, the ends of the streams, the memory, and the record."
    def __init__(self): self.lock = threading.RLock(); self.reset(Table())

    def reset(self, table):
        self.table, self.now, self.ends, self.stream = table, 0, {}, 0
        self.synchronised, self.launched, self.record, self.recording, self.captured = 0, 0, [], False, None
        self.fails, self.error, self.numbers = {}, None, itertools.count(1)
        self.allocated, self.most = getattr(self, "allocated", 0), 0

    def note(self, *event, **args):
        if self.recording: self.record.append(Event(*event, args=args))

    def check_capture(self, what):
        "A wait, or an event that has a time, ends a capture with an error."
        if self.captured is None: return
        self.captured = None
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    def surface(self):
        """An error of an earlier call comes up now; in the program's thread, as PyTorch ends a process whose spare
        device fails in autograd's."""
        if threading.current_thread() is not threading.main_thread(): return
        error, self.error = self.error, None
        if error is not None: raise type(error)(*error.args)

    def launch(self, operator, duration, kind="kernel", dims=(), types=()):
        "A call on the CPU, and a kernel in the current stream."
        with self.lock:
            self.surface()
            if self.captured is not None: return self.into_graph(operator, duration, dims, types)
            begin, thread, number = self.now, threading.get_ident(), next(self.numbers)
            self.now += self.table.launch + self.table.recorded * self.recording
            self.launched += 1
            if self.launched in self.fails: self.error = self.fails.pop(self.launched)
            self.note("cpu_op", operator, begin, self.now, thread, number,
                      **{"Input Dims": dims, "Input type": types, "External id": number})
            self.note("privateuse1_runtime", "simLaunchKernel", begin + self.table.launch // 5, self.now, thread,
                      number)
            self.run(operator, duration, kind, number)

    def into_graph(self, operator, duration, dims=(), types=()):
        "A call while a graph is captured: the CPU is as long at it, and no kernel runs."
        begin, thread, number = self.now, threading.get_ident(), next(self.numbers)
        self.now += self.table.launch
        self.captured.append((operator, duration))
        self.note("cpu_op", operator, begin, self.now, thread, number, **{"Input Dims": dims, "Input type": types})
        self.note("privateuse1_runtime", "simLaunchKernel", begin + self.table.launch // 5, self.now, thread, number,
                  kernel=f"sim::{operator.partition('::')[2]}")

    def run(self, operator, duration, kind, number):
        start = max(self.now, self.ends.get(self.stream, -self.table.gap) + self.table.gap)
        self.ends[self.stream] = start + duration
        self.note(kind, f"sim::{operator.partition('::')[2]}", start, start + duration, 7 + self.stream, number,
                  **{"External id": number})

    def wait(self):
        with self.lock:
            self.now = max(self.now, *self.ends.values(), 0)
            self.surface()

    def take(self, t):
        "`t`, a tensor of the CPU that owns its memory, as one of the device."
        storage = t.untyped_storage()
        size = -(-storage.nbytes() // self.table.block) * self.table.block
        with self.lock:
            if self.allocated + size > self.table.capacity:
                raise OutOfMemory(
                    f"sim out of memory: tried to allocate {size} B, {self.table.capacity - self.allocated} B are "
                    "free")
            self.allocated += size
            self.most = max(self.most, self.allocated)
        weakref.finalize(storage, self.give, size)
        return _over(t, _extension)

    def give(self, size): self.allocated -= size

books = Books()

@contextmanager
def stream(number):
    "Within the context calls go into another stream."
    before, books.stream = books.stream, number
    try: yield
    finally: books.stream = before

def write_trace(events, path):
    "Write what was recorded as PyTorch's profiler does."
    lines = []
    for e in events:
        more = {"correlation": e.id} if e.kind != "cpu_op" else {}
        if e.kind in ("kernel", "gpu_memcpy"): more |= dict(device=0, stream=e.thread)
        lines.append(dict(ph="X", cat=e.kind, name=e.called, pid=0 if e.kind in ("kernel", "gpu_memcpy") else 1,
                          tid=e.thread, ts=e.start / 1e3, dur=(e.end - e.start) / 1e3, args={**e.args, **more}))
    with open(path, "w") as f: json.dump(dict(traceEvents=lines, deviceProperties=[dict(id=0, name="Simulated")]), f)

@contextmanager
def annotated(model):
    "Within the context the record names the modules that run, as the ranges of a profiled model do."
    handles, begins = [], {}
    def enter(path, kind):
        def hook(*_): begins[path] = books.now
        def leave(*_):
            books.note("user_annotation", f"nn.Module: {path} ({kind})", begins[path], books.now,
                       threading.get_ident(), 0)
        return hook, leave
    for path, m in model.named_modules():
        before, after = enter(path or "(model)", type(m).__name__)
        handles += [m.register_forward_pre_hook(before), m.register_forward_hook(after)]
    try: yield
    finally:
        for h in handles: h.remove()

def join(of, into=0): books.ends[into] = max(books.ends.get(into, 0), books.ends.get(of, 0))

@contextmanager
def recorded():
    "Within the context everything is written down; gives the list of events."
    events, before = [], books.recording
    books.record, books.recording = events, True
    try: yield events
    finally: books.recording = before

# ---- operators

_views = ("as_strided", "view", "view.dtype", "_reshape_alias", "unfold", "view_as_real", "view_as_complex",
          "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor")
_as_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_type_names = {torch.float32: "float", torch.int64: "long int", torch.bool: "bool"}

def _described(args):
    "The shapes and the types of arguments, as the profiler writes them."
    dims = [list(a.shape) if isinstance(a, torch.Tensor) else [] for a in args]
    return dims, [_type_names.get(a.dtype, str(a.dtype)) if isinstance(a, torch.Tensor) else "" for a in args]

def _shapes_alone(op, args, kwargs):
    "The results of `op`, with memory that nothing is written to."
    given = {}
    def to_meta(t):
        if not isinstance(t, torch.Tensor): return torch.device("meta") if isinstance(t, torch.device) else t
        m = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        given[id(m)] = m, t
        return m
    out = op(*tree_map(to_meta, args), **tree_map(to_meta, kwargs))
    for m, t in given.values():
        if m.numel() and not t.numel(): t.resize_(m.shape)
    def back(t): return given[id(t)][1] if id(t) in given else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    return tree_map(lambda t: back(t) if isinstance(t, torch.Tensor) else t, out)

def kernel(op, *args, **kwargs):
    "Run `op` on the CPU, and enter its kernel into the books."
    table, here, empties = books.table, {}, []
    def to_cpu(t):
        if isinstance(t, torch.device): return torch.device("cpu")
        if not is_here(t): return t
        c = on_cpu(t)
        if not t.numel() and op._schema.is_mutable: c = torch.empty(0, dtype=t.dtype); empties.append((t, c))
        here[id(c)] = t, c
        return c
    a, k = tree_map(to_cpu, (args, kwargs))
    books.surface()
    out = op(*a, **k) if table.computes else _shapes_alone(op, a, k)
    for t, c in empties:
        if c.numel(): aten.set_.source_Tensor.redispatch(_as_cpu, t, books.take(c))
    result = tree_map(lambda t: here[id(t)][0] if id(t) in here else books.take(t) if isinstance(t, torch.Tensor)
                      else t, out)
    called = op._schema.name
    ns = (table.kernels.get(called.partition("::")[2], table.other) if table.cost is None
          else table.cost(op, a, k, tree_leaves(out)))
    books.launch(called, ns, "kernel", *_described(args))
    if called in _waiting: books.wait()
    return result

_waiting = {"aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::item"}

def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    _allocating("aten::empty_strided")
    return books.take(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))

def _empty(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    _allocating("aten::empty")
    return books.take(torch.empty(size, dtype=dtype, device="cpu",
                                  memory_format=memory_format or torch.contiguous_format))

def _copy_from(src, dst, non_blocking=False):
    "Within the device a kernel; to and from the CPU a copy, which the CPU waits for unless it is told not to."
    inside = is_here(src) and is_here(dst)
    source, target = (on_cpu(t) if is_here(t) else t for t in (src, dst))
    books.surface()
    if books.table.computes: target.copy_(source)
    table = books.table
    ns = table.kernels.get("copy_", table.other) if inside else table.copy
    if inside and table.cost: ns = table.cost(aten.copy_.default, (target, source), {}, [target])
    books.launch("aten::copy_", ns, "kernel" if inside else "gpu_memcpy", *_described((dst, src)))
    if not inside and not non_blocking: books.wait()
    return dst

def _resize(t, size, memory_format=None):
    if torch.Size(size).numel() * t.itemsize > t.untyped_storage().nbytes():
        aten.set_.source_Tensor.redispatch(_as_cpu, t, _empty(size, t.dtype))
    else: t.set_(t.untyped_storage(), 0, size)
    return t

def composite(op, key, *args, **kwargs):
    "Run an operator that is made of others: what it calls has kernels, and it has a line in the record."
    begin = books.now
    out = op._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)
    books.note("cpu_op", op._schema.name, begin, books.now, threading.get_ident(), next(books.numbers))
    return out

def _allocating(operator):
    begin, books.now = books.now, books.now + books.table.allocation
    books.note("cpu_op", operator, begin, books.now, threading.get_ident(), next(books.numbers))

def _convolution(x, w, bias, *rest): return kernel(aten.convolution.default, x, w, bias, *rest)
def _convolution_backward(g, x, w, stride, padding, dilation, transposed, out_padding, groups, mask):
    bias = [w.shape[1] * groups if transposed else w.shape[0]] if mask[2] else None
    return kernel(aten.convolution_backward.default, g, x, w, bias, stride, padding, dilation, transposed,
                  out_padding, groups, mask)

_no_autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

def lower(op, *args, **kwargs):
    "Run `op` under autocast: floating-point arguments in its dtype."
    dtype = torch.get_autocast_dtype(name)
    def cast(t): return t.to(dtype) if is_here(t) and t.is_floating_point() else t
    with torch._C._ExcludeDispatchKeyGuard(_no_autocast): return op(*tree_map(cast, args), **tree_map(cast, kwargs))

# ---- the seam

class Simulated(seam.Accelerator):
    recorder, graphs, activity = "simulated", True, ProfilerActivity.PrivateUse1
    activities = [ProfilerActivity.CPU]
    def clock(self): return books.now * 1e-9
    def synchronize(self): books.synchronised += 1; books.check_capture("a wait"); books.wait()
    def mark(self, name): books.note("cpu_op", name, books.now, books.now, threading.get_ident(), 0)
    def event(self):
        books.check_capture("an event that has a time")
        return max(books.now, books.ends.get(books.stream, 0))
    def seconds(self, events): return [(t - events[0]) * 1e-9 for t in events]
    def free_memory(self): return books.table.capacity - books.allocated
    def empty_cache(self): pass
    def properties(self): return dict(device_name="Simulated", driver="1.0")
    def caches(self): return list(books.table.caches)
    def lacks(self, dtype): return "this device has no arithmetic of it" if dtype in books.table.lacks else ""

    def _graph(self, call, times):
        books.captured = []
        self.call("simStreamBeginCapture")
        try:
            for _ in range(times): call()
            inside = books.captured
        finally: books.captured = None
        self.call("simStreamEndCapture")
        return lambda: self.replay(inside)

    def replay(self, inside):
        books.surface()
        number = self.call("simGraphLaunch")
        for operator, duration in inside: books.run(operator, duration, "kernel", number)

    def call(self, name):
        "A call of the runtime; its number."
        number, begin, books.now = next(books.numbers), books.now, books.now + books.table.launch
        books.note("privateuse1_runtime", name, begin, books.now, threading.get_ident(), number)
        return number

    @contextmanager
    def recording(self, session):
        events = []
        with session, recorded() as seen: yield events
        events += seen

class _Module:
    "PyTorch's module of the device."
    def is_initialized(self): return True
    def is_available(self): return True
    def current_device(self): return 0
    def _is_in_bad_fork(self): return False
    def manual_seed_all(self, seed): pass
    def device_count(self): return 1
    def get_amp_supported_dtype(self): return [torch.float16, torch.bfloat16]
    def memory_allocated(self, device=None): return books.allocated
    def reset_peak_memory_stats(self, device=None): books.most = books.allocated
    def max_memory_allocated(self, device=None): return books.most
    def memory_stats(self, device=None):
        return {"requested_bytes.all.current": books.allocated, "requested_bytes.all.peak": books.most}
    def is_current_stream_capturing(self): return books.captured is not None

def rates(flops, levels):
    "The cost of operators on a device with rates: FLOP/s by dtype, and (capacity, B/s) of each level, nearest first."
    def cost(op, args, kwargs, out):
        called = op._schema.name.partition("::")[2]
        given = dict(zip((a.name for a in op._schema.arguments), args)) | kwargs
        named = [(a, given[a.name]) for a in op._schema.arguments if isinstance(given.get(a.name), torch.Tensor)]
        written = ([v for a, v in named if a.is_out or a.alias_info is not None and a.alias_info.is_write]
                   or [t for t in out if isinstance(t, torch.Tensor)])
        read = [v for a, v in named if not a.is_out
                and not (called in ("copy_", "fill_", "zero_", "normal_") and a.name == "self")]
        moved = sum(t.numel() * t.itemsize for t in (*read, *written))
        held = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in (*read, *written)}.values())
        speed = next((b for capacity, b in levels if capacity is None or held <= capacity))
        work = _products(called, args, out)
        rate = flops.get(read[0].dtype if read else None, flops[torch.float32])
        return round(1e9 * max(work / rate, moved / speed))
    return cost

def _products(called, args, out):
    "FLOPs of a product; those of everything else cost nothing beside its memory."
    if called == "addmm": args = args[1:]
    if called in ("mm", "addmm"): return 2 * args[0].shape[0] * args[0].shape[1] * args[1].shape[1]
    if called == "bmm": return 2 * args[0].numel() * args[1].shape[2]
    if called.startswith("convolution") and "backward" not in called:
        return 2 * out[0].numel() * args[1].numel() // args[1].shape[0]
    return 0

def install_compiler():
    """Let Inductor compile for the device: its wrapper calls kernels of the CPU, which are entered into the books
    and compute nothing."""
    from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen.common import (DeviceOpOverrides, register_backend_for_device,
                                                register_device_op_overrides)
    from torch._inductor.codegen.cpp import CppScheduling
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    class Interface(DeviceInterface):
        is_available, current_device, device_count = (staticmethod(lambda n=n: n) for n in (True, 0, 1))
    class Overrides(DeviceOpOverrides):
        def import_get_raw_stream_as(self, name): return f"def {name}(i): return 0"
        def set_device(self, i): return "pass"
        def synchronize(self): return "pass"
        def device_guard(self, i): return "torch._ops.contextlib.nullcontext()"
    class Wrapper(PythonWrapperCodegen):
        @staticmethod
        def create(is_subgraph, *args):
            return PythonWrapperCodegen.create(is_subgraph, *args) if is_subgraph else Wrapper()
        def _generate_kernel_call_helper(self, kernel_name, call_args, **how):
            self.writeline(self.wrap_kernel_call(kernel_name, call_args))
    def compiled(self, types, source, *args, **kwargs):
        return lambda *tensors: books.launch("inductor::fused", books.table.kernels.get("fused", books.table.other))
    AsyncCompile.cpp_pybinding = compiled
    register_backend_for_device(name, CppScheduling, Wrapper)
    register_interface_for_device(name, Interface)
    register_device_op_overrides(name, Overrides())

_kept = []                               # libraries, whose kernels go with them

def install():
    "Let PyTorch and the seam know the device; for the rest of the process."
    if _kept: return
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
    _setup_privateuseone_for_python_backend(name, backend_module=_Module())
    own, rest = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
    given = {f"aten::{k}": f for k, f in {"empty_strided": _empty_strided, "empty.memory_format": _empty,
                                          "_copy_from": _copy_from, "resize_": _resize,
        "convolution_overrideable": _convolution, "convolution_backward_overrideable": _convolution_backward}.items()}
    for k in _views:
        packet, _, overload = k.partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        given[f"aten::{k}"] = lambda *a, _op=op, **kw: _op.redispatch(_as_cpu, *a, **kw)
    for key in ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"):
        for k in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            packet, _, overload = k.removeprefix("aten::").partition(".")
            op = getattr(getattr(aten, packet, None), overload or "default", None) if k.startswith("aten::") else None
            if op is None or k in given: continue
            view = any(r.alias_info and not r.alias_info.is_write for r in op._schema.returns)
            one = key == "CPU" or packet.startswith(("_foreach_", "_fused_"))
            if view: continue
            given[k] = functools.partial(kernel, op) if one else functools.partial(composite, op, key)
    for k, f in given.items(): own.impl(k.removeprefix("aten::"), f, "PrivateUse1")
    rest.fallback(kernel, "PrivateUse1")
    rest.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for k in ("linear", "matmul", "conv2d", "scaled_dot_product_attention"):
        own.impl(k, functools.partial(lower, getattr(aten, k).default), "AutocastPrivateUse1")
    _kept.extend([own, rest])
    seam.kinds[name] = Simulated
    seam.accelerator.cache_clear()
    return torch.device(name, 0)
