"""Every private or version-specific piece of torch that the backend touches.

Supported: torch 2.11 to 2.15. What there is no compiling without is imported here; names, and
other modules, are looked up at each use: one that a torch does not have costs what needs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch._C import _autograd, _profiler
from torch._dynamo import eval_frame
from torch._functorch import config as functorch_config
from torch._guards import CompileContext, TracingContext
from torch._inductor import config, custom_graph_pass, utils
from torch.fx import GraphModule
from torch.utils._ordered_set import OrderedSet

from memprof.profiler.model import MemoryFormatMeta

log = logging.getLogger("memprof")

# --- CUDA graphs' kernels in traces --------------------------------------------------------


@functools.cache
def can_mark_kernels() -> bool:
    """Tells whether kernels of graphs can be annotated: torch 2.12, cuda-bindings and a driver of
    CUDA 13.1 or later; the log says once if not."""
    try:
        from torch.cuda._graph_annotations import _is_tools_id_unavailable
    except ImportError:
        unavailable = True
    else:
        unavailable = _is_tools_id_unavailable()
    if unavailable:
        log.warning(
            "annotate_kernels does nothing here: it takes torch 2.12 or later, the package "
            "cuda-bindings and a driver of CUDA 13.1 or later."
        )
    return not unavailable


def mark_kernels(annotation: dict[str, str]) -> contextlib.AbstractContextManager[Any]:
    """Annotates what a capture takes in the context."""
    from torch.cuda._graph_annotations import mark_kernels as mark

    return mark(annotation)


# --- compile_fx ---------------------------------------------------------------------------


@contextlib.contextmanager
def _without_autograd_cache(compile_fx: Any) -> Iterator[None]:
    """compile_fx with AOTAutograd's own cache out of the way: a hit there never asks our inner
    compile. The config switch is overruled by an environment variable; what decides in every
    version is whether the compilers are marked as serialisable."""
    with _COMPILE_FX_LOCK:
        marker = getattr(compile_fx, "SerializableAOTDispatchCompiler", None)
        if marker is None:
            with functorch_config.patch(enable_autograd_cache=False):
                yield
            return
        compile_fx.SerializableAOTDispatchCompiler = lambda output_code_type, compiler: compiler
        try:
            yield
        finally:
            compile_fx.SerializableAOTDispatchCompiler = marker


# The marker is a module global, so two threads must not swap it at the same time.
# Reentrant: a graph can contain a call that compiles another one with our backend.
_COMPILE_FX_LOCK = threading.RLock()


def run_compile_fx(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    inner_compile: Callable[..., Any],
    config_patches: dict[str, Any],
    *,
    autograd_cache: bool,
) -> Callable[..., Any]:
    """Runs Inductor's ``compile_fx`` with our inner compile, and with AOTAutograd's cache if
    wanted."""
    cfx: Any = importlib.import_module("torch._inductor.compile_fx")
    with contextlib.nullcontext() if autograd_cache else _without_autograd_cache(cfx):
        compiled: Callable[..., Any] = cfx.compile_fx(
            gm, list(example_inputs), inner_compile=inner_compile, config_patches=config_patches
        )
    return compiled


# --- AOTAutograd's cache: Note [Warm starts] ----------------------------------------------


def aot_loadables() -> list[Any]:
    """Classes whose ``load`` and ``post_compile`` make a compiled graph of a part of an entry; none
    where the cache is off, or a torch that is not known has no such classes."""
    if not getattr(functorch_config, "enable_autograd_cache", False):
        return []
    try:
        results: Any = importlib.import_module("torch._functorch._aot_autograd.aot_autograd_result")
        found = [results.FxGraphCacheLoadable, results.BundledOutputCodeLoadable]
    except (ImportError, AttributeError):
        return []
    if not hasattr(autograd_cache_module(), "autograd_cache_key"):
        return []
    return [c for c in found if hasattr(c, "load") and hasattr(c, "post_compile")]


def autograd_cache_module() -> Any:
    """Module of AOTAutograd's cache, with ``autograd_cache_key``."""
    return importlib.import_module("torch._functorch._aot_autograd.autograd_cache")


def aot_cache_miss(why: str) -> Exception:
    """The exception by which ``load`` says that an entry cannot be used."""
    miss: Exception = autograd_cache_module().FXGraphCacheMiss(why)
    return miss


def misses_are_errors() -> bool:
    """Tells whether AOTAutograd hands a miss of an entry's part on to the user."""
    dynamo_config: Any = importlib.import_module("torch._dynamo.config")
    strict = getattr(functorch_config, "strict_autograd_cache", False)
    return bool(strict or getattr(dynamo_config, "strict_precompile", False))


def is_marked_static(placeholder: torch.fx.Node) -> bool:
    """Tells whether an input of a Dynamo graph was given to ``mark_static_address``."""
    known = placeholder.meta.get("tensor_dict") or {}
    return known.get("_dynamo_static_input_type") is not None


def is_no_leaf(placeholder: torch.fx.Node) -> bool:
    """Tells whether an input of a Dynamo graph asks for a gradient and was computed."""
    value = placeholder.meta.get("example_value")
    return isinstance(value, torch.Tensor) and value.requires_grad and not value.is_leaf


@contextlib.contextmanager
def tagged_keys(tag: str) -> Iterator[None]:
    """Gives keys of caches a tag more."""
    keys: Any = torch.compiler.config
    with keys.patch(cache_key_tag=f"{keys.cache_key_tag}{tag}"):
        yield


def subscribe_to_reset(backend: Callable[..., Any]) -> None:
    """Have the next ``torch._dynamo.reset()`` call ``backend.reset()``, as after an earlier one."""
    known = eval_frame.cached_backends
    if not any(getattr(b, "compiler_fn", b) is backend for b in list(known.values())):
        known[id(backend)] = backend


def compile_fx_inner() -> Callable[..., Any]:
    """Inductor's inner compile, looked up at each use: debuggers and other tools replace it."""
    found: Callable[..., Any] = importlib.import_module(
        "torch._inductor.compile_fx"
    ).compile_fx_inner
    return found


def cache_keyed_by_donation(backward: bool) -> contextlib.AbstractContextManager[object]:
    """Keeps code that writes to saved tensors apart, in Inductor's cache, from code that must not:
    a backward that is compiled while its graph is retained donates nothing. AOTAutograd's cache
    tells the two apart, Inductor's does not."""
    if not backward:
        return contextlib.nullcontext()
    return tagged_keys(f"donated={utils.get_donated_idxs()}")


def no_cudagraphs() -> Any:
    """A fresh box for the ``cudagraphs`` argument: torch never wraps, its own box is untouched."""
    return utils.BoxedBool(False)


def switch_off(box: Any) -> None:
    """Tell Inductor, through its box, that what it compiles is not captured; None is no box."""
    if box is not None:
        utils.BoxedBool.disable(box)


def mode_options(mode: str) -> dict[str, Any]:
    """Inductor's settings for ``torch.compile(mode=...)``.

    Raises:
        RuntimeError: torch does not know the mode (torch's message lists those it does).
    """
    return dict(torch._inductor.list_mode_options(mode))


def inductor_option_names() -> frozenset[str]:
    """Names that ``options=`` may set, with ``_`` and ``-`` as torch accepts them."""
    return frozenset(config.get_config_copy())


def inductor_option_type(name: str) -> Any:
    """The declared type of an Inductor option."""
    return config.get_type(name)  # type: ignore[attr-defined, unused-ignore]


# --- tracing context ----------------------------------------------------------------------


def inductors_lists(compiled: Any, given: Mapping[str, Any]) -> tuple[Sequence[int], Sequence[int]]:
    """Inputs that stay where they are by Inductor's account, and inputs that its code writes to.

    Args:
        given: keyword arguments of the inner compile.
    """
    mutated = getattr(compiled, "mutated_input_idxs", None)
    return tuple(given.get("static_input_idxs") or ()), tuple(mutated or ())


def forward_metadata() -> Any:
    """AOTAutograd's ViewAndMutationMeta of the graph being compiled, None outside."""
    context = TracingContext.try_get()
    return context.fw_metadata if context is not None else None


def compile_id() -> str | None:
    """Dynamo's id of the frame being compiled, e.g. ``0/1``; None outside Dynamo."""
    found = CompileContext.current_compile_id()
    return str(found) if found is not None else None


def aot_id() -> int | None:
    """AOTAutograd's number of the graph that it is compiling now, ``_aot_id`` of the
    autograd.Function that it makes; None outside of it."""
    from torch._functorch._aot_autograd import logging_utils

    names, _, _ = logging_utils.get_aot_compilation_context()  # e.g. ["3_forward"]
    number = names[-1].partition("_")[0] if names else ""
    return int(number) if number.isdigit() else None


def cache_key(compiled: Any) -> str | None:
    """Key in Inductor's FX graph cache, None if it is not cached."""
    return getattr(compiled, "_fx_graph_cache_key", None)


def entries_have_code() -> bool:
    """Tells whether entries of AOTAutograd's cache contain code, which Inductor's then has not."""
    return bool(getattr(functorch_config, "bundled_autograd_cache", False))


def how_compiled(compiled: Any) -> Mapping[str, Any]:
    """Keyword arguments with which a graph from a cache was compiled."""
    return getattr(compiled, "fx_kwargs", None) or {}


def kind_of_cached(compiled: Any) -> str:
    """``forward``, ``backward`` or ``inference``: what a graph from a cache was compiled as."""
    how = how_compiled(compiled)
    if how.get("is_backward"):
        return "backward"
    return "inference" if how.get("is_inference") else "forward"


def source_code(compiled: Any) -> str:
    """Source of the generated code of a ``CompiledFxGraph``; "" if it has none."""
    return getattr(compiled, "source_code", "") or ""


def inductor_cache_dir() -> str:
    """Folder of Inductor's caches (``TORCHINDUCTOR_CACHE_DIR``)."""
    from torch._inductor.runtime import cache_dir_utils

    return str(cache_dir_utils.cache_dir())


def _autograd_cache() -> Any:
    return autograd_cache_module().AOTAutogradCache


def write_to_cache(key: str, content: bytes) -> None:
    """Writes an entry of AOTAutograd's cache, whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    _autograd_cache()._write_to_local_cache(key, content)
    record_for_saving(key, content)


def why_not_stored(error: OSError) -> str:
    """Reason why ``write_to_cache`` failed, the same for each graph: the error's own text names a
    temporary file."""
    return f"{inductor_cache_dir()}: {error.strerror or error}"


def read_from_cache(key: str) -> Iterator[bytes]:
    """The contents of the entries ``key`` of AOTAutograd's cache that can be read."""
    folder = _autograd_cache()._get_tmp_dir_for_key(key)
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            if not name.startswith("."):  # one that is being written
                with open(os.path.join(folder, name), "rb") as file:
                    yield file.read()


def record_for_saving(key: str, content: bytes) -> None:
    """Has ``torch.compiler.save_cache_artifacts()`` carry an entry of AOTAutograd's cache."""
    caches: Any = importlib.import_module("torch.compiler._cache")
    caches.CacheArtifactManager.record_artifact("aot_autograd", key, content)


# --- the lowering -------------------------------------------------------------------------

# 2.13+: only subclasses of CustomSchedulerPass take part in the cache key, others disable the
# cache. Before there is no such class: any value that pickles takes part.
SchedulerPass: Any = getattr(custom_graph_pass, "CustomSchedulerPass", object)
inductor_config: Any = config


def graph_being_lowered() -> Any:
    """Inductor's ``GraphLowering`` of this thread."""
    from torch._inductor.virtualized import V

    return V.graph


@contextlib.contextmanager
def compiling_again(key: str | None) -> Iterator[None]:
    """Compile a graph a second time, which Inductor's cache has under ``key``: what is there is
    forgotten, and stored anew, since code that is compiled again may have other names. The first
    time has told the tracing context the strides of the outputs, which Inductor expects to find
    empty."""
    context = TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        context.output_strides.clear()
    # Kernels that this process has are not compiled again, and would miss in what is stored.
    kernels: Any = importlib.import_module("torch._inductor.async_compile")
    kernels.CompiledTritonKernels.cache_clear()
    stored = False
    if key is not None:
        caches: Any = importlib.import_module("torch._inductor.codecache")
        folder = caches.FxGraphCache._get_tmp_dir_for_key(key)
        shutil.rmtree(folder, ignore_errors=True)
        stored = not os.path.exists(folder)
    with config.patch(fx_graph_cache=stored, fx_graph_remote_cache=False):
        yield


# --- generated code -----------------------------------------------------------------------


def generated_globals(compiled: Any) -> dict[str, Any] | None:
    """Globals of the generated Python module of a ``CompiledFxGraph``, None if there is none."""
    runner = getattr(compiled, "compiled_fn_runner", None)
    if runner is not None:
        found: dict[str, Any] = type(runner).call.__globals__
        return found
    function: Any = getattr(compiled, "current_callable", None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    function = getattr(function, "__func__", function)
    candidates = [function]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            candidates.append(getattr(cell.cell_contents, "__func__", cell.cell_contents))
    for candidate in candidates:
        found = getattr(candidate, "__globals__", {})
        if "empty_strided_cpu" in found and "call" in found:
            return found
    return None


def mark_graph(compiled: Any, id: int) -> None:
    """Note on a ``CompiledFxGraph`` which of our graphs it is."""
    if hasattr(compiled, "current_callable"):
        compiled._memprof_graph = id


def graph_of_operation(node: Any) -> int | None:
    """Id of our graph whose backward an autograd node is, None if it is none's: the node's class
    is the one that AOTAutograd makes for each forward."""
    forward = getattr(type(node), "_forward_cls", None)
    found: int | None = getattr(getattr(forward, "compiled_fw", None), "_memprof_graph", None)
    return found


def runner_partitions(compiled: Any) -> list[Callable[[list[Any]], Any]]:
    """Callables of the partitions of generated code, in order."""
    runner = getattr(compiled, "compiled_fn_runner", None)
    return list(getattr(runner, "partitions", None) or ())


def runs_in_parts(compiled: Any) -> bool:
    """Tells whether the graph trees get parts of generated code: it has several partitions, or does
    more than to call the only one."""
    runner = getattr(compiled, "compiled_fn_runner", None)
    partitions = runner_partitions(compiled)
    if not partitions or wraps_whole_graphs():
        return False
    code = getattr(getattr(runner, "call", None), "__code__", None)
    uses = set(code.co_names) if code is not None else {"unknown"}
    return len(partitions) > 1 or not uses <= {"clear", "partitions"}


def wraps_whole_graphs() -> bool:
    """Tells whether Inductor hands whole graphs to what captures them, although it cuts them into
    partitions: ``cudagraph_policy``, from torch 2.13 on."""
    return getattr(config, "cudagraph_policy", None) is not None


def why_others_capture() -> str:
    """Reason why CUDA code is not handed to the graph trees, "" if it is."""
    if not config.triton.cudagraph_trees:
        return "triton.cudagraph_trees is off: Inductor captures it by itself, without trees"
    if wraps_whole_graphs():
        return "cudagraph_policy has not handed it to the graph trees"
    return ""


def is_unsafe_in_graphs(node: torch.fx.Node) -> bool:
    """Tells whether Inductor knows an operator as one that no CUDA graph can have."""
    return bool(utils.is_cudagraph_unsafe_fx_node(node))


def skips_warm_up() -> bool:
    """Tells whether CUDA graphs are recorded without a warm-up before."""
    return bool(config.triton.skip_cudagraph_warmup)


def partitions(compiled: Any) -> list[tuple[Indices, Indices]]:
    """For each partition, the indices of the graph's inputs that its inputs are, None for what
    another partition makes; and of the graph's outputs that its outputs are.

    Up to 2.13 torch keeps one index or None for an output, from 2.15 on a list of them; the
    first stands for all, since they are the same tensor.
    """

    def first(found: Any) -> int | None:
        index: int | None = (found or [None])[0] if isinstance(found, (list, tuple)) else found
        return index

    return [
        (tuple(p.input_index_mapping), tuple(map(first, p.output_index_mapping)))
        for p in getattr(compiled, "partition_maps", None) or ()
    ]


Indices = tuple[int | None, ...]


def realign_inputs(
    function: Callable[[list[Any]], Any], compiled: Any, mutated: Sequence[int]
) -> Callable[[list[Any]], Any]:
    """Wrap ``function`` to copy misaligned inputs, as Inductor wraps generated code; ``mutated``
    are inputs that it writes to."""
    to_check = list(getattr(compiled, "inputs_to_check", None) or ())
    if not to_check:
        return function
    aligned: Callable[[list[Any]], Any] = utils.align_inputs_from_check_idxs(
        function, to_check, OrderedSet(mutated)
    )
    return aligned


# --- kinds of values ----------------------------------------------------------------------


def is_nested_size(size: torch.SymInt) -> bool:
    """Tells whether ``size`` is the ragged size of a jagged tensor."""
    return bool(size.node.is_nested_int())


def size_symbols(size: int | torch.SymInt) -> frozenset[str]:
    """Names of the symbols that a size depends on."""
    if not isinstance(size, torch.SymInt):
        return frozenset()
    return frozenset(map(str, size.node.expr.free_symbols))


# --- the allocators' own account of a call ------------------------------------------------

push_range: Any = _profiler._RecordFunctionFast
"""A named range in what a profiler records: a context manager, made from its name."""
disable_legacy_profiler: Callable[[], Any] = _autograd._disable_profiler_legacy


def enable_legacy_profiler() -> None:
    """Record this thread's allocations and releases, with their signed sizes.

    Raises:
        RuntimeError: another profiler holds the thread.
    """
    plain = _profiler._ExperimentalConfig()
    cpu = _profiler.ProfilerState.CPU
    config = _profiler.ProfilerConfig(cpu, False, True, False, False, False, plain)
    _autograd._enable_profiler_legacy(config)


@functools.cache
def cpp_log_level() -> Any:
    """c10's log threshold as a ctypes integer, None where this build does not export it."""
    library = os.path.join(torch.__path__[0], "lib", "libc10.so")
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(library), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


# --- AOTAutograd's run-time wrapper: Note [Straight calls] --------------------------------

aot_wrappers: Any = None
"""torch's module of run-time wrappers; None where a torch that is not known has none."""
with contextlib.suppress(ImportError):
    aot_wrappers = importlib.import_module("torch._functorch._aot_autograd.runtime_wrappers")

_C: Any = torch._C
aot_config: Any = functorch_config
profiler: Any = torch.autograd.profiler
"""torch's module; ``_is_profiler_enabled`` is True while a profiler runs."""
DisableAutocast = _C._DisableAutocast
function_apply = _C._FunctionBase.__dict__["apply"]
replays_views = _C._is_view_replay_enabled
set_replays_views = _C._set_view_replay_enabled
set_grad_enabled: Callable[[bool], None] = _C._set_grad_enabled
functorch_is_active = _C._are_functorch_transforms_active
functorch_stack = _C._functorch.peek_interpreter_stack
graph_is_kept = _C._autograd._get_current_graph_task_keep_graph
dynamo_callback = _C._dynamo.eval_frame.get_eval_frame_callback
skip_code: Callable[[Any], None] = eval_frame.skip_code
"""Has Dynamo skip frames of a code object, though not of the code that it calls."""
increment_version = _C._increment_version
# The first is its name from 2.13 on.
mark_varying: Any = getattr(aot_wrappers, "mark_dynamo_propagated_dynamic_indices", None) or (
    getattr(aot_wrappers, "maybe_mark_dynamic_helper", None)
)
"""Marks on a tensor, for Dynamo, which of its dimensions came from sizes that vary."""
in_format: Any = getattr(aot_wrappers, "coerce_to_expected_memory_format", None)
"""Brings a gradient into the strides that its backward was compiled for."""


def torchs_format(layout: MemoryFormatMeta) -> Any:
    """The layout as ``in_format`` takes it."""
    name = layout.memory_format
    return replace(layout, memory_format=None if name is None else getattr(torch, name))


def has_subclasses(metadata: Any) -> bool:
    """Tells whether torch's metadata of a graph counts tensor subclasses, of which the graph itself
    has the inner tensors."""
    values = (*metadata.subclass_inp_meta, *metadata.subclass_fw_graph_out_meta)
    return any(isinstance(v, aot_wrappers.SubclassCreationMeta) for v in values)


def has_known_wrapper() -> bool:
    """Tells whether this is a release whose run-time wrapper is known."""
    return torch.__version__.startswith(("2.11.", "2.12.", "2.13.", "2.14.", "2.15."))


def callers_context() -> Any:
    """The context variables of the thread that called ``backward()``, None for this one's.

    From 2.12 on torch runs compiled backwards in them. A copy: a context cannot be entered twice,
    and a backward may run another one.
    """
    if torch.__version__.startswith("2.11.") or not _C._is_key_in_tls("context"):
        return None
    context = _C._get_obj_in_tls("context")
    return None if context is None else context.copy()


def compiled_fx_graph(compiled: Any) -> Any:
    """Inductor's object for compiled code, None if it is not compiled by Inductor.

    torch 2.11 puts wrappers around every graph in case that it takes a random state or has effects
    in an order, which a graph with straight calls has not.
    """
    from torch._inductor.output_code import CompiledFxGraph

    idle = (("compiled_fn", "runtime_metadata", "self"), ("compiled_fn", "num_tokens"))
    while getattr(getattr(compiled, "__code__", None), "co_freevars", None) in idle:
        if not compiled.__code__.co_filename.endswith("runtime_wrappers.py"):
            break
        compiled = compiled.__wrapped__
    return compiled if isinstance(compiled, CompiledFxGraph) else None


def inductor_debug() -> Any:
    """Module whose ``RECORD_GRAPH_EXECUTION`` says that the order of execution is recorded."""
    return importlib.import_module("torch._inductor.debug")


def is_dead_wrapper(value: Any) -> bool:
    """Tells whether an input is what a functorch transform left behind, which torch takes apart."""
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and _C._functorch.is_functorch_wrapped_tensor(value)


def hooks_are_inlined() -> bool:
    """Tells whether hooks for saved tensors were traced into the graph that is being compiled."""
    return bool(aot_wrappers._should_disable_saved_tensors_hooks())


def uses_objects() -> bool:
    """Tells whether the graph that is being compiled uses objects of the program: streams, events.

    From 2.12 on the first is the current stream, of every graph where there is a device.
    """
    from torch._dynamo import graph_bytecode_inputs as objects

    has_stream = hasattr(objects, "CURRENT_STREAM_INDEX") and torch.accelerator.is_available()
    return len(objects.index_to_bytecode_constructor) > has_stream
