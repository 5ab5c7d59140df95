"""Describes what straight calls need of torch 2.11 to 2.15: Note [Straight calls]."""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo  # first, since it and AOTAutograd's wrappers import each other
from torch import Tensor
from torch._functorch import config as functorch_config

wrappers: Any = None
"""torch's module of run-time wrappers; None where a torch that is not known has none."""
with contextlib.suppress(ImportError):
    wrappers = importlib.import_module("torch._functorch._aot_autograd.runtime_wrappers")

KNOWN_TORCH = ("2.11.", "2.12.", "2.13.", "2.14.", "2.15.")
"""Releases whose run-time wrapper is known: with another one torch's own is kept."""

profiler: Any = torch.autograd.profiler
"""Its ``_is_profiler_enabled`` is True while a profiler runs."""

config: Any = functorch_config
_C: Any = torch._C
is_grad_enabled = torch.is_grad_enabled
set_grad_enabled = _C._set_grad_enabled
replays_views = _C._is_view_replay_enabled
set_replays_views = _C._set_view_replay_enabled
functorch_is_active = _C._are_functorch_transforms_active
functorch_stack = _C._functorch.peek_interpreter_stack
graph_is_kept = _C._autograd._get_current_graph_task_keep_graph
deterministic_is_asked = _C._get_deterministic_algorithms
dynamo_callback = _C._dynamo.eval_frame.get_eval_frame_callback
skip_code: Callable[[Any], None] = torch._dynamo.eval_frame.skip_code
"""Has Dynamo look at no frame of some code; at those of what it calls it does."""
increment_version = _C._increment_version
unsafe_view = torch.ops.aten._unsafe_view
_HAS_CONTEXT = not torch.__version__.startswith("2.11.")


def callers_context() -> Any:
    """The context variables of the thread that called ``backward()``, None for this one's.

    From 2.12 on torch runs compiled backwards in them. A copy: a context cannot be entered twice,
    and a backward may run another one.
    """
    if _HAS_CONTEXT and _C._is_key_in_tls("context"):
        context = _C._get_obj_in_tls("context")
        return None if context is None else context.copy()
    return None


# --- what compiled code is called through ---------------------------------------------------


def is_boxed(compiled: Any) -> bool:
    """Tells whether compiled code takes its inputs in one list."""
    return bool(getattr(compiled, "_boxed_call", False))


def steady(compiled: Any, without_autocast: bool) -> Callable[[list[Any]], Any]:
    """Compiled code, as straight as it can be called.

    From the second time on, and without a profiler or a record of the order of execution, past
    Inductor's object for it, which looks for what a first call leaves: results of autotuning, and
    metrics.
    """
    from torch._inductor import debug
    from torch._inductor.output_code import CompiledFxGraph

    run: Callable[[list[Any]], Any] = compiled
    graph = _without_idle_wrappers(compiled)
    if isinstance(graph, CompiledFxGraph):
        is_first = True

        def past_it(args: list[Any]) -> Any:
            nonlocal is_first
            if is_first or profiler._is_profiler_enabled or debug.RECORD_GRAPH_EXECUTION:
                out = compiled(args)
                is_first = False
                return out
            return graph.current_callable(args)  # type: ignore[misc]

        run = past_it
    if not without_autocast:
        return run

    def call(args: list[Any]) -> Any:
        with _C._DisableAutocast():
            return run(args)

    return call


_IDLE_WRAPPERS = (("compiled_fn", "runtime_metadata", "self"), ("compiled_fn", "num_tokens"))


def _without_idle_wrappers(compiled: Any) -> Any:
    """Returns what stands inside of the wrappers that torch 2.11 puts around every graph in case
    that it takes a random state or has effects in an order, which straight calls have not."""
    while getattr(getattr(compiled, "__code__", None), "co_freevars", None) in _IDLE_WRAPPERS:
        if not compiled.__code__.co_filename.endswith("runtime_wrappers.py"):
            break
        compiled = compiled.__wrapped__
    return compiled


def without_disabling_dynamo(compiled: Any) -> Any:
    """Returns what a compiled backward is without ``torch._dynamo.disable`` around it, which does
    nothing where Dynamo is not on: see ``dynamo_callback``."""
    if getattr(compiled, "_torchdynamo_disable", False):
        return getattr(compiled, "_torchdynamo_orig_callable", compiled)
    return compiled


def listed(outputs: Any, expected: int) -> list[Any]:
    """Outputs of compiled code as a list of ``expected``."""
    found: list[Any] = outputs
    if type(outputs) is not list:
        found = list(outputs) if isinstance(outputs, tuple) else [outputs]
    if len(found) != expected:
        raise AssertionError(f"expected {expected} outputs, got {len(found)}")
    return found


def plain_apply(function: Any) -> Callable[..., Any]:
    """``function.apply`` without what it does for functorch, which is not active, and for tensors
    that functorch left behind, which is_dead_wrapper() looks for."""
    apply: Callable[..., Any] = _C._FunctionBase.__dict__["apply"].__get__(None, function)
    return apply


def is_dead_wrapper(value: Any) -> bool:
    """Tells whether an input is what a functorch transform left behind, which torch takes apart."""
    return isinstance(value, Tensor) and _C._functorch.is_functorch_wrapped_tensor(value)


def set_up_nodes(function: Any, backward: Callable[..., Any]) -> None:
    """Have the engine call ``backward`` for nodes of ``function`` without looking for it; what they
    save is nothing unless a forward says otherwise."""
    node = function._backward_cls
    setattr(node, "apply_boxed" if takes_gradients_boxed(function) else "apply", backward)
    node.symints = node.opaque_objects = node._tensors_no_vc_check = ()


def takes_gradients_boxed(function: Any) -> bool:
    """Tells whether the engine hands gradients over in one list (from 2.13 on)."""
    return bool(getattr(function, "boxed_grads_call", False))


# --- AOTAutograd's wrapper -------------------------------------------------------------------


def hooks_are_inlined() -> bool:
    """Tells whether hooks for saved tensors were traced into the graph that is being compiled."""
    return bool(wrappers._should_disable_saved_tensors_hooks())


def uses_objects() -> bool:
    """Tells whether the graph that is being compiled uses objects of the program: streams, events.

    From 2.12 on the first is the current stream, of every graph where there is a device.
    """
    from torch._dynamo import graph_bytecode_inputs as objects

    has_stream = hasattr(objects, "CURRENT_STREAM_INDEX") and torch.accelerator.is_available()
    return len(objects.index_to_bytecode_constructor) > has_stream


# The first is its name from 2.13 on.
tell_varying: Any = getattr(wrappers, "mark_dynamo_propagated_dynamic_indices", None) or getattr(
    wrappers, "maybe_mark_dynamic_helper", None
)
"""What tells Dynamo, on a tensor, which of its dimensions came from sizes that vary."""

in_format: Any = getattr(wrappers, "coerce_to_expected_memory_format", None)
"""What brings a gradient into the strides that its backward was compiled for."""

# --- AOTAutograd's wrapper, replaced --------------------------------------------------------


Replace = Callable[[Any, Any, Any, bool, Callable[[Any], Any]], Any]
"""See ``replacing``."""


class _Compiling(threading.local):
    replace: Replace | None = None


_COMPILING = _Compiling()
_INSTALL = threading.Lock()


@contextlib.contextmanager
def replacing(replace: Replace) -> Iterator[None]:
    """Have AOTAutograd's run-time wrappers of what is compiled inside, in this thread, replaced.

    Args:
        replace: gets torch's ``RuntimeWrapper``, what it is to wrap, torch's metadata of the graph,
            whether the graph writes its mutations itself, and a function that makes torch's
            wrapper; returns the wrapper.
    """
    if not torch.__version__.startswith(KNOWN_TORCH):
        yield
        return
    _install()
    outer = _COMPILING.replace
    _COMPILING.replace = replace
    try:
        yield
    finally:
        _COMPILING.replace = outer


def _install() -> None:
    wrapper: Any = wrappers.RuntimeWrapper
    with _INSTALL:
        plain = wrapper.post_compile
        if getattr(plain, "_memprof", False):
            return

        @functools.wraps(plain)
        def post_compile(
            self: Any, compiled_fn: Any, aot_config: Any, *, runtime_metadata: Any
        ) -> Any:
            def torchs(compiled_fn: Any) -> Any:
                return plain(self, compiled_fn, aot_config, runtime_metadata=runtime_metadata)

            replace = _COMPILING.replace
            if replace is None:
                return torchs(compiled_fn)
            keep = bool(aot_config.keep_inference_input_mutations)
            return replace(self, compiled_fn, runtime_metadata, keep, torchs)

        post_compile._memprof = True  # type: ignore[attr-defined]
        wrapper.post_compile = post_compile
