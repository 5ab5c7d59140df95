"""Every private or version-specific piece of torch that compiled autograd touches.

Supported: torch 2.11 to 2.15. Each function says what it stands on.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
import torch._dynamo.compiled_autograd as _ca
from torch._dispatch.python import enable_python_dispatcher as enable_python_dispatcher
from torch._dynamo import external_utils as _external
from torch._guards import CompileContext, CompileId, compile_context as compile_context
from torch._subclasses.fake_tensor import (
    FakeTensor as FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.experimental.proxy_tensor import disable_autocast_cache as disable_autocast_cache
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, _suppress_guards
from torch.utils._python_dispatch import (
    TorchDispatchMode as TorchDispatchMode,
    is_traceable_wrapper_subclass,
)

from memprof.profiler.model import MemoryFormatMeta

_utils: Any = importlib.import_module("torch._dynamo.utils")
trace_structured: Any = importlib.import_module("torch._logging").trace_structured
_engine: Any = torch._C._dynamo.compiled_autograd

# --- what a captured graph calls ----------------------------------------------------------
#
# Dynamo knows these functions (it inlines some, replaces one by the callbacks that hooks
# queued, and takes the op namespace as allowed in graphs), so graphs must call torch's own.

call_hook: Callable[..., Any] = _external.call_hook
"""``call_hook(hook, *args, hook_type=...)``; a hook's None means "unchanged"."""
call_backward: Callable[..., Any] = _external.call_backward
"""``call_backward(ctx, saved_tensors, *grads)``: the backward of an autograd.Function."""
call_accumulate_grad: Callable[..., Any] = _external.call_accumulate_grad
"""Up to 2.12 ``(variable, grad, has_post_hooks)``, then with ``variable_grad`` before ``grad``."""


def call_first_accumulate_grad(
    variable: torch.Tensor, gradient: torch.Tensor, has_post_hooks: bool
) -> Any:
    if _TAKES_CURRENT:
        return call_accumulate_grad(variable, None, gradient, has_post_hooks)
    call_accumulate_grad(variable, gradient, has_post_hooks)
    return variable.grad


_TAKES_CURRENT = call_accumulate_grad.__code__.co_varnames[1] == "variable_grad"


run_final_callbacks: Callable[..., Any] = (
    _external.FakeCompiledAutogradEngine._exec_final_callbacks_stub
)
unwrap_size: Callable[..., Any] = _external.unwrap_maybe_dynamic_int
"""``torch.empty(0, n)`` -> ``n``: a size that Dynamo treats as dynamic."""
call_cpp_tensor_pre_hooks: Callable[..., Any] = _engine.call_cpp_tensor_pre_hooks
copy_slices_prologue: Callable[..., Any] = _ca.copy_slices_prologue
copy_slices_epilogue: Callable[..., Any] = _ca.copy_slices_epilogue

ops: Any = _ca.ops
"""torch's process-wide namespace of autograd nodes as functions; C++ binds each name once a
process, with ``ops.add``, so there can be no second one."""


def is_builtin_op(target: Any) -> bool:
    """Tells whether ``target`` is the function of one of torch's own autograd nodes."""
    return isinstance(target, _ca.Op) and not target.is_custom_function


# --- the engine's switch ------------------------------------------------------------------

Factory = Callable[[], Any]


def set_compiler(factory: Factory | None, dynamic: bool) -> tuple[Factory | None, bool]:
    """Have every later backward of the process captured by ``factory()``; what was set before."""
    prior: tuple[Factory | None, bool] = _engine.set_autograd_compiler(factory, dynamic)
    return prior


clear_cache: Callable[[], None] = _engine.clear_cache
"""Forget captured graphs. The cache is keyed by autograd graph, not by who captured it."""

state: Any = _ca
"""torch's module, whose globals Dynamo and AOTAutograd read: ``compiled_autograd_enabled``,
``depth``, ``in_compiled_autograd_region``, ``active_disable_ctx``."""


def stance_is_force_eager() -> bool:
    from torch._dynamo import eval_frame

    return bool(eval_frame._stance.stance == "force_eager")


def prepare_captures() -> None:
    """Before compiled autograd is switched on.

    Where torch has CUDA, its graph-tree module must be loaded before a backward runs. With
    ``TORCH_LOGS=compiled_autograd_verbose`` C++ says why it finds no captured graph, and where each
    input comes from.
    """
    if torch.cuda.is_available():
        importlib.import_module("torch._inductor.cudagraph_trees")
    asked = _ca.snapshot_verbose_logging_enabled()
    _engine.set_verbose_logger(_ca.verbose_log if asked else None)


def backward_id() -> int:
    """Number of the backward that this thread runs, -1 if none."""
    return int(torch._C._current_graph_task_id())


def autograd_node(output: Any) -> Any:
    """The node that computes a tensor, or accumulates its gradient; of a gradient edge, its."""
    if isinstance(output, torch.Tensor):
        return torch.autograd.graph.get_gradient_edge(output).node
    return output.node


def sequence_number(node: Any) -> int:
    """The later the forward made an autograd node, the higher; highest where it accumulates."""
    return int(node._sequence_nr())


def is_busy(error: Exception) -> bool:
    """Tells whether the engine refuses since it captures, or runs, another backward at this moment.

    Nothing of the backward has run then.
    """
    return isinstance(error, RuntimeError) and str(error).startswith(
        (
            "compiled_autograd._enable() does not support multiple Python threads",
            "Trying to run compiled autograd within another compiled autograd call",
            "Re-entrant into Compiled Autograd from a parent Compiled Autograd call",
        )
    )


def is_double_backward(error: Exception) -> bool:
    """Tells whether the engine has met the node of a compiled backward, of which AOTAutograd makes
    one for ``create_graph`` that has no sizes to be told apart by.

    Nothing of the backward has run then. In the normal engine that node says in words that it has
    no derivative.
    """
    text = str(error)
    return isinstance(error, AttributeError) and text.startswith("'CompiledFunctionBackward")


def is_refusal(error: Exception) -> bool:
    """Tells whether the engine says that it cannot describe a node, hook or tensor to a capture.

    Its texts differ; all end with ways to switch compiled autograd off.
    """
    text = str(error).lower()
    if isinstance(error, NotImplementedError):
        return "compiled autograd" in text
    of_ddp = text.startswith("compiled autograd is not compatible with c++ ddp reducer")
    return isinstance(error, RuntimeError) and of_ddp


# --- Dynamo ---------------------------------------------------------------------------------
#
# Note [Dynamo is not to see us]
# A backward may begin, and be captured, inside a compiled function: after a graph break Dynamo
# looks at every Python frame that begins, ours among them, and traces what the engine was to run.
# So we take Dynamo away while our code runs; the frame that does so is marked, since Dynamo would
# look at that one. The captured graph, hooks and callbacks are run as they would be without us.

_F = TypeVar("_F", bound=Callable[..., Any])
_set_eval_frame: Any = torch._C._dynamo.eval_frame.set_eval_frame


_unseen = threading.local()
"""``before``: what Dynamo had set in this thread, for each time that it was taken away."""


def leave_dynamo() -> None:
    """Dynamo looks at no frame of this thread until ``return_to_dynamo``."""
    before = _set_eval_frame(None)
    if not hasattr(_unseen, "before"):
        _unseen.before = []
    _unseen.before.append(before)


def return_to_dynamo() -> None:
    _set_eval_frame(_unseen.before.pop())


def unseen_by_dynamo(function: _F) -> _F:
    """``function``, at which and at whose callees Dynamo does not look."""

    @functools.wraps(function)
    def unseen(*args: Any, **kwargs: Any) -> Any:
        leave_dynamo()
        try:
            return function(*args, **kwargs)
        finally:
            return_to_dynamo()

    return entered_by_dynamo(cast(_F, unseen))


def seen_by_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called from where ``leave_dynamo`` is in force, as if it were not."""

    def seen(*args: Any, **kwargs: Any) -> Any:
        _set_eval_frame(_unseen.before[-1])
        try:
            return function(*args, **kwargs)
        finally:
            _set_eval_frame(None)

    return seen


def entered_by_dynamo(function: _F) -> _F:
    """Mark ``function``: Dynamo does not look at a frame of it, but at those of its callees.

    A compiled function that calls it has a graph break there.
    """
    from torch._dynamo.decorators import skip

    skip(function)
    return function


for _function in (leave_dynamo, return_to_dynamo):
    entered_by_dynamo(_function)


# --- captures -----------------------------------------------------------------------------


@contextlib.contextmanager
def new_capture() -> Iterator[tuple[int, CompileContext]]:
    """Inside, something is captured: its number, which is from torch's counter, and what makes
    Dynamo name compilations of the graph ``!<number>/...``."""
    _utils.counters["compiled_autograd"]["captures"] += 1
    number = next(_ca.COMPILE_COUNTER)
    context = CompileContext(
        CompileId(compiled_autograd_id=number, frame_id=None, frame_compile_id=None)
    )
    events: Any = _utils.get_chromium_event_logger()
    begin, data = time.time_ns(), {"graph_id": number}
    events.log_event_start("compiled_autograd", begin, data, log_pt2_compile_event=True)
    try:
        with compile_context(context):
            yield number, context
    finally:
        end = time.time_ns()
        events.log_event_end("compiled_autograd", end, data, begin, log_pt2_compile_event=True)


def reset_capture_ids() -> None:
    _ca.COMPILE_COUNTER = itertools.count()


def log_before_passes(root: torch.nn.Module, graph: Graph, capture_id: int) -> None:
    """The graph as captured, into ``TORCH_TRACE``."""

    def text() -> str:
        class_name = f"CompiledAutograd{capture_id}PreReordering"
        return GraphModule(root, graph, class_name).print_readable(print_output=False)

    metadata = {"name": "compiled_autograd_graph_pre_reordering", "encoding": "string"}
    trace_structured("artifact", metadata_fn=lambda: metadata, payload_fn=text)


def log_graph(graph: GraphModule, moved: Iterable[int], removed: int) -> None:
    """``TORCH_LOGS=compiled_autograd``, ``compiled_autograd_verbose`` and ``TORCH_TRACE``; nothing
    is rendered unless asked. Passes ``moved`` inputs to the GPU and ``removed`` nodes."""
    for i in moved:
        _ca.verbose_log.debug("Moving node inputs[%d] from cpu to cuda", i)
    _ca.verbose_log.debug("DCE removed %d nodes", removed)
    text = _utils.lazy_format_graph_code(
        "Compiled autograd graph", graph, include_device=True, include_stride=True, colored=True
    )
    _ca.compiled_autograd_log.info("%s", text)
    _ca.verbose_log.debug("%s", text)
    readable = functools.partial(graph.print_readable, print_output=False)
    trace_structured("compiled_autograd_graph", payload_fn=readable)


def log_reasons(reasons: list[str]) -> None:
    """Writes what C++ says about a cache miss into ``TORCH_TRACE``."""
    metadata = {"name": "compiled_autograd_compile_reasons", "encoding": "json"}
    trace_structured("artifact", metadata_fn=lambda: metadata, payload_fn=lambda: reasons)


# --- graphs -------------------------------------------------------------------------------


def mark_dynamic_size(value: int) -> Any:
    """A size as a tensor that Dynamo makes dynamic; ``unwrap_size`` takes it apart."""
    if value <= 0:  # no tensor has a negative size, and 0 is always specialised
        return value
    carrier = torch.empty(0, value)
    torch._dynamo.maybe_mark_dynamic(carrier, 1)
    return carrier


def inductor_cuda_graphs() -> bool:
    from torch._inductor import config

    return bool(config.triton.cudagraphs)


def steal_inputs(graph: GraphModule) -> None:
    """Dynamo empties the caller's list of inputs, so that each dies after its last use."""
    _utils.set_locals_to_steal(graph, ["inputs"])


def trace_node_by_node(graph: GraphModule) -> None:
    """Have whoever traces ``graph`` (a Dynamo graph) see its nodes' metadata.

    AOTAutograd interprets a graph module node by node and copies stack traces and modules.
    A graph with a list among its inputs it wraps in a module of its own, calls that as a
    function, and copies nothing; so the function interprets.
    """
    from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts
    from torch.fx.traceback import preserve_node_meta

    def forward(*args: Any) -> Any:
        with preserve_node_meta():
            return PropagateUnbackedSymInts(graph).run(*args)  # type: ignore[no-untyped-call, unused-ignore]

    graph.forward = forward


def is_dynamos(compiled: Any) -> bool:
    return isinstance(compiled, torch._dynamo.OptimizedModule)


def rename_node(node: Node, name: str) -> None:
    node._rename(name)


# c10::ScalarType, whose numbers C++ puts into the metadata of outputs.
_SCALAR_TYPES: dict[Any, torch.dtype] = {
    **dict(enumerate((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))),
    **dict(enumerate((torch.float16, torch.float32, torch.float64, torch.complex32), 5)),
    **dict(enumerate((torch.complex64, torch.complex128, torch.bool), 9)),
    15: torch.bfloat16,
    23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}


def output_size(metadata: Any) -> tuple[tuple[Any, ...], torch.dtype | None, torch.device] | None:
    """``(sizes, dtype, device)`` of a validated gradient, None where C++ gave none."""
    if metadata is None:
        return None
    options, sizes = metadata[0], metadata[1]
    device = next((o for o in options if isinstance(o, torch.device)), torch.device("cpu"))
    number = next((o for o in options if isinstance(o, int) and not isinstance(o, bool)), None)
    return tuple(sizes), _SCALAR_TYPES.get(number), device


def replace_torchs_class(new: Any) -> Any:
    """Put ``new`` where torch looks its compiler class up; return the class that was there."""
    module: Any = _ca
    before = module.AutogradCompilerInstance
    module.AutogradCompilerInstance = new
    return before


# --- stand-ins for values: fake tensors and symbolic numbers ---------------------------------

_SHAPE_ONLY: list[torch.Tensor] = []


def new_fake_mode() -> FakeTensorMode:
    return FakeTensorMode(
        allow_fallback_kernels=True, allow_non_fake_inputs=True, shape_env=ShapeEnv()
    )


def dummy_tensor(mode: FakeTensorMode, device: torch.device) -> torch.Tensor:
    """A tensor that stands for a gradient in the engine's hands; its shape means nothing.

    Made directly and not by an operator: twenty times cheaper, and there is one for every
    gradient of the graph.
    """
    if not _SHAPE_ONLY:
        with torch._C._DisableTorchDispatch():
            _SHAPE_ONLY.append(torch.empty(0, 123456789, device="meta"))
    return FakeTensor(mode, _SHAPE_ONLY[0], device)


def fake_of_input(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake of the same shape (in numbers), layout, dtype and device.

    Raises:
        Exception: torch has no fake of such a tensor.
    """
    if _is_plain(tensor):
        functorch = torch._C._functorch
        if functorch.is_functorch_wrapped_tensor(tensor):
            raise NotImplementedError("a tensor inside a torch.func transform")
        if functorch.is_legacy_batchedtensor(tensor):
            raise NotImplementedError("a gradient of grad(..., is_grads_batched=True)")
        shape_only = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        return FakeTensor(mode, shape_only, tensor.device)
    return mode.from_tensor(tensor.detach(), static_shapes=True)


def storage_key(tensor: torch.Tensor) -> int | None:
    """A number for the storage of ``tensor``, None where it has none of its own."""
    return int(tensor.untyped_storage()._cdata) if _is_plain(tensor) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def without_guards(mode: FakeTensorMode) -> AbstractContextManager[None]:
    """Sizes read while capturing must not become guards: C++ guards by its own key."""
    assert mode.shape_env is not None
    return _suppress_guards(mode.shape_env)


def symbol(mode: FakeTensorMode, value: float, name: str, index: int) -> Any:
    """A symbol for the number ``name[index]``, or the number itself where torch specialises."""
    from torch._dynamo.source import GetItemSource, LocalSource

    shapes, source = mode.shape_env, GetItemSource(LocalSource(name), index)
    assert shapes is not None
    if isinstance(value, int):
        return shapes.create_unspecified_symint_and_symbol(value, source, DimDynamic.DYNAMIC)
    of_float = shapes.create_unspecified_symbol(value, source, DimDynamic.DYNAMIC)
    return shapes.create_symfloatnode(of_float, hint=value, source=source)


def build_expression(expression: Any, symbols: dict[Any, Proxy]) -> Any:
    """Compute a sympy expression in an FX graph.

    Raises:
        KeyError: it has a symbol that is not among ``symbols``.
    """
    from torch.utils._sympy.interp import sympy_interp
    from torch.utils._sympy.reference import PythonReferenceAnalysis

    return sympy_interp(PythonReferenceAnalysis, symbols, expression)


def hint(value: Any) -> int | None:
    """The number that a size stands for at capture, None if it is unknown."""
    node = getattr(value, "node", None)
    found = node.hint if node is not None and node.has_hint() else value
    return found if isinstance(found, int) else None


# --- AOTAutograd's backward ------------------------------------------------------------------


allow_in_graph: Callable[[Callable[..., Any]], Callable[..., Any]] = torch.compiler.allow_in_graph


def aot_runtime_wrappers() -> Any:
    return importlib.import_module("torch._functorch._aot_autograd.runtime_wrappers")


def aot_backward_module(forward_class: Any) -> GraphModule:
    """The backward graph of AOTAutograd's autograd.Function, ``ctx._forward_cls`` of a node.

    Raises:
        LookupError: the graph was not kept (a hit of AOTAutograd's cache).
    """
    info = forward_class._lazy_backward_info
    if info is None:
        raise LookupError("AOTAutograd's cache keeps no backward graph")
    if hasattr(info, "bw_module"):
        return info.bw_module  # type: ignore[no-any-return]
    with unset_fake_temporarily():
        return info.bw_module_fn()  # type: ignore[no-any-return]


def has_subclasses(forward_class: Any) -> bool:
    """Tells whether AOTAutograd takes tensor subclasses apart around the graph of its function."""
    return forward_class.maybe_subclass_metadata is not None


def in_layouts(
    gradients: Sequence[Any], layouts: Sequence[MemoryFormatMeta]
) -> list[torch.Tensor | None]:
    """Gradients in the layouts that their backward was compiled for; None stays None."""
    in_format = aot_runtime_wrappers().coerce_to_expected_memory_format
    found = []
    for x, layout in zip(gradients, layouts, strict=True):
        name = layout.memory_format
        expected = replace(layout, memory_format=None if name is None else getattr(torch, name))
        found.append(None if x is None else in_format(x, expected))
    return found


def is_subclass(value: Any) -> bool:
    """Tells whether ``value`` is of a tensor subclass that AOTAutograd takes apart."""
    return bool(is_traceable_wrapper_subclass(value))


def aot_id(ctx: Any) -> int | None:
    """AOTAutograd's id of the graph, if it made this autograd.Function's node."""
    return getattr(ctx._forward_cls, "_aot_id", None)


def takes_boxed_grads(ctx: Any) -> bool:
    """Tells whether the backward wants its gradients in one list (2.13+), which nothing here can
    give."""
    return bool(getattr(ctx._forward_cls, "boxed_grads_call", False))


def aot_symints(ctx: Any) -> Sequence[Any]:
    """The symbolic sizes that the forward saved, lifted by this capture."""
    return ctx._get_compiled_autograd_symints()  # type: ignore[no-any-return]
