"""Calls that go straight from Dynamo's function to compiled code, and to its backward.

Note [Straight calls]
~~~~~~~~~~~~~~~~~~~~~
Between the two AOTAutograd's run-time wrapper takes care of everything that a graph may do: write
to its inputs, return views of them, take subclasses apart, thread tokens and random states through.
Most graphs do nothing of it, and pay for the questions at each call. For those this does what is
left; a graph that does more keeps torch's wrapper, and so does each call in a situation that is not
the common one: the first call, a profiler, a gradient of a gradient, a retained graph, functorch,
no_grad around a graph that was compiled for training.

The autograd function derives from the one that AOTAutograd made and keeps its layout of saved
values, so that all who know that class (compiled autograd, checkpointing, memprof itself) see no
difference, and torch's backward can run after the straight forward. What is left to do, and in
which order, follows torch's ``RuntimeWrapper`` and ``AOTDispatchAutograd`` of 2.11 to 2.15
(``torch/_functorch/_aot_autograd/runtime_wrappers.py``); with another torch nothing is replaced.

Host's CPU time of a whole training step, torch 2.13, straight and with torch's wrapper: with 1, 50
and 200 parameters 94, 349 and 1,106 instead of 136, 415 and 1,260 us on the CPU, 219, 411 and 1,095
instead of 275, 485 and 1,237 us in graph trees (``benchmarks/call_budget.py``'s model). A call
without a backward takes 3 to 5 us less of 24 to 35, on 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from memprof.profiler.model import GraphDescription, OutputType, ViewAndMutationMeta
from memprof.profiler.support.process_hooks import ForkSafeLock

from . import _torch_compat as compat
from .session.ledger import Ledger
from .stages.describe._torch_compat import is_backward_state

Describe = Callable[[Any], "GraphDescription | None"]
"""Takes torch's metadata of a forward and gives the description of the same; None if there is
none."""

Call = Callable[[list[Any]], Any]
"""A wrapper: takes a list of inputs, which it may empty, and returns a list of outputs."""


_compiling = threading.local()
"""``ledger``, ``describe``, ``wanted``: this thread compiles a graph whose autograd.Function gets
its description; as of ``straight_calls``. Not set: it does not."""
_INSTALL = ForkSafeLock()


@contextlib.contextmanager
def straight_calls(
    ledger: Ledger, example_inputs: Sequence[Any], describe: Describe, *, wanted: bool = True
) -> Iterator[None]:
    """The autograd.Function of the graph that this thread compiles inside carries its description,
    for the tracer of whole backwards, and its calls are straight ones, if they can be.

    Args:
        ledger: gets what memprof failed at; torch's wrapper is kept then.
        describe: of that graph, when it has been compiled.
        example_inputs: Dynamo's, of the graph. With hooks for compiled autograd among them, which
            its forward hands on, torch's wrapper is kept.
        wanted: not so keeps torch's wrapper, too.
    """
    if not compat.has_known_wrapper():
        yield
        return
    _install()
    outer = vars(_compiling).copy()
    wanted = wanted and not any(map(is_backward_state, example_inputs))
    vars(_compiling).update(ledger=ledger, describe=describe, wanted=wanted)
    try:
        yield
    finally:
        vars(_compiling).clear()
        vars(_compiling).update(outer)


def _install() -> None:
    """Replace what makes AOTAutograd's run-time wrapper, once a process."""
    wrapper: Any = compat.aot_wrappers.RuntimeWrapper
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

            ledger = getattr(_compiling, "ledger", None)
            if ledger is None:
                return torchs(compiled_fn)
            try:
                function = getattr(compiled_fn, "__self__", None)
                subclasses = compat.has_subclasses(runtime_metadata)
                description = _compiling.describe(None if subclasses else runtime_metadata)
                if isinstance(function, type):
                    function.memprof_description = description  # type: ignore[attr-defined]
                keep = bool(aot_config.keep_inference_input_mutations)
                call = None
                if _compiling.wanted and not subclasses:
                    call = _straight(self, compiled_fn, description, keep, torchs)
            except Exception as error:
                ledger.fallback(None, "a straight call in place of AOTAutograd's wrapper", error)
                return torchs(compiled_fn)
            if call is None:
                return torchs(compiled_fn)
            call._boxed_call = True  # type: ignore[attr-defined]
            return call

        post_compile._memprof = True  # type: ignore[attr-defined]
        wrapper.post_compile = post_compile


def _straight(
    wrapper: Any,
    compiled: Any,
    description: GraphDescription | None,
    keep: bool,
    torchs: Callable[[Any], Call],
) -> Call | None:
    """The straight call of one graph; None if the graph needs more.

    Args:
        wrapper: torch's ``RuntimeWrapper``.
        compiled: what it is to wrap.
        description: of the graph.
        keep: whether the graph writes its mutations itself.
        torchs: makes torch's wrapper.
    """
    if (
        compat.aot_config.debug_assert
        or compat.uses_objects()  # A backward must find them again.
        or description is None
        or _does_more(description.metadata)
    ):
        return None
    metadata = description.metadata
    written = metadata.mutated_graph_handled_indices_seen_by_autograd if keep else ()
    without_autocast = bool(wrapper.disable_amp)
    if not wrapper.trace_joint:
        if not getattr(compiled, "_boxed_call", False):
            return None
        run = _inference(_straight_code(compiled, without_autocast))
        return _call(run, torchs(compiled), metadata, written, training=False)
    function: Any = getattr(compiled, "__self__", None)
    forward = getattr(function, "compiled_fw", None)
    if (
        not isinstance(function, type)
        or not getattr(forward, "_boxed_call", False)
        or compat.hooks_are_inlined()
        or _trains_with_more(metadata)
    ):
        return None
    ours = _derived(function, metadata, without_autocast)
    run = _training(ours, tuple(wrapper.indices_of_inps_to_detach))
    return _call(run, torchs(ours.apply), metadata, written, training=True)


def _does_more(metadata: ViewAndMutationMeta) -> bool:
    """Tells whether a call has more to do, or it is not known what."""
    return bool(
        metadata.unknown
        or any(o.output_type.is_alias for o in metadata.output_info)
        or metadata.num_mutated_outputs
        or metadata.num_intermediate_bases
        or metadata.tokens
        or metadata.num_backward_tokens
        or metadata.is_rng_op_functionalized
        or metadata.grad_enabled_mutation is not None
    )


def _trains_with_more(metadata: ViewAndMutationMeta) -> bool:
    """Tells whether a training step has more to do than a call, or it is not known what."""
    return bool(
        metadata.num_graphsafe_rng_states
        or metadata.num_opaque_objects_saved_for_bw
        or metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        or metadata.num_symints_saved_for_bw is None
        or metadata.num_tensors_saved_with_no_vc_check is None
        or None in metadata.subclass_tangent_meta
        or len(metadata.subclass_tangent_meta) != len(metadata.tangents)
    )


def _call(
    run: Call,
    torchs: Call,
    metadata: ViewAndMutationMeta,
    written: tuple[int, ...],
    *,
    training: bool,
) -> Call:
    """A straight call: ``run``, unless the situation wants torch's wrapper, ``torchs``.

    Args:
        written: inputs that the graph itself writes to, whose version is to be advanced.
        training: whether it has a backward.
    """
    # Outputs with the dimensions of each that vary, of which Dynamo is told.
    varying = [(i, o.dynamic_dims) for i, o in enumerate(metadata.output_info) if o.dynamic_dims]
    # torch's wrapper looks, at its first call, for aliases that custom operators hide.
    checks_operators = bool(compat.aot_config.check_custom_op_aliasing)
    is_first = True
    is_common = True

    def call(args: list[Any]) -> Any:
        nonlocal is_first, is_common
        if is_first:
            # Whether an input is of this kind is among Dynamo's guards: it stays as it is.
            is_common = not any(map(compat.is_dead_wrapper, args))
            if checks_operators:
                out = torchs(args)
                is_first = False
                return out
            is_first = False
        if (
            not is_common
            or compat.profiler._is_profiler_enabled
            or (training and (not torch.is_grad_enabled() or compat.functorch_is_active()))
        ):
            return torchs(args)
        if written:
            compat.increment_version(tuple([args[i] for i in written]))
        outputs = run(args)
        for i, dims in varying:
            compat.mark_varying(outputs[i], dims)
        return outputs

    return call


def _inference(compiled: Call) -> Call:
    """Compiled code without a backward, which runs without gradients."""

    def run(args: list[Any]) -> list[Any]:
        if not torch.is_grad_enabled():
            return _listed(compiled(args))
        try:
            # An interrupt may come right after it.
            compat.set_grad_enabled(False)
            return _listed(compiled(args))
        finally:
            compat.set_grad_enabled(True)

    return run


def _listed(outputs: Any) -> list[Any]:
    """The outputs of compiled code as AOTAutograd hands them on."""
    if type(outputs) is list:
        return outputs
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _training(function: Any, detached: tuple[int, ...]) -> Call:
    """``apply`` of a function as ``_derived`` makes them; ``detached`` are inputs that never get a
    gradient although they ask for one."""
    # ``function.apply`` without what it does for functorch, which is not active, and for tensors
    # that functorch left behind, which ``is_dead_wrapper`` looks for.
    apply = compat.function_apply.__get__(None, function)

    def run(args: list[Any]) -> Any:
        if detached:
            args = list(args)
            for i in detached:
                if isinstance(args[i], Tensor):
                    args[i] = args[i].detach()
        if compat.replays_views():
            return list(apply(*args))
        compat.set_replays_views(True)
        try:
            return list(apply(*args))
        finally:
            compat.set_replays_views(False)

    return run


def _derived(function: Any, metadata: ViewAndMutationMeta, without_autocast: bool) -> Any:
    """``function``, which AOTAutograd made, with a straight ``forward`` and ``backward``, in which
    autocast is off if it was traced into them."""
    backward = _backward(function, metadata, without_autocast)
    members = {
        "forward": staticmethod(_forward(function, metadata, without_autocast)),
        "backward": staticmethod(backward),
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    ours = type(function)(function.__name__, (function,), members)
    _set_up_nodes(ours, backward)
    return ours


def _straight_code(compiled: Any, without_autocast: bool) -> Call:
    """Compiled code, as straight as it can be called.

    From the second time on, and without a profiler or a record of the order of execution, past
    Inductor's object for it, which looks for what a first call leaves: results of autotuning, and
    metrics.
    """
    run: Call = compiled
    graph = compat.compiled_fx_graph(compiled)
    debug = compat.inductor_debug()
    if graph is not None:
        is_first = True

        def past_it(args: list[Any]) -> Any:
            nonlocal is_first
            if is_first or compat.profiler._is_profiler_enabled or debug.RECORD_GRAPH_EXECUTION:
                out = compiled(args)
                is_first = False
                return out
            return graph.current_callable(args)

        run = past_it
    if not without_autocast:
        return run

    def call(args: list[Any]) -> Any:
        with compat.DisableAutocast():
            return run(args)

    return call


def _without_disabling_dynamo(compiled: Any) -> Any:
    """Unwrap a compiled backward from ``torch._dynamo.disable``, which does nothing where Dynamo
    is not on: see ``_backward``."""
    if getattr(compiled, "_torchdynamo_disable", False):
        return getattr(compiled, "_torchdynamo_orig_callable", compiled)
    return compiled


def _set_up_nodes(function: Any, backward: Callable[..., Any]) -> None:
    """Have the engine call ``backward`` for nodes of ``function`` without looking for it; what they
    save is nothing unless a forward says otherwise."""
    node = function._backward_cls
    setattr(node, "apply_boxed" if _takes_gradients_boxed(function) else "apply", backward)
    node.symints = node.opaque_objects = node._tensors_no_vc_check = ()


def _takes_gradients_boxed(function: Any) -> bool:
    """Tells whether the engine hands gradients over in one list (from 2.13 on)."""
    return bool(getattr(function, "boxed_grads_call", False))


def _forward(
    function: Any, metadata: ViewAndMutationMeta, without_autocast: bool
) -> Callable[..., tuple[Any, ...]]:
    run = _straight_code(function.compiled_fw, without_autocast)
    infos = list(enumerate(metadata.output_info))
    returns, saved_varying = len(infos), metadata.dynamic_saved_tensors_idxs
    unsafe_views = [i for i, o in infos if o.output_type is OutputType.UNSAFE_VIEW_ALIAS]
    without_gradient = [i for i, o in infos if o.is_tensor and not o.requires_grad]
    # At the end of the outputs: tensors, those whose version is not checked, and sizes.
    sizes = metadata.num_symints_saved_for_bw or 0
    unchecked = metadata.num_tensors_saved_with_no_vc_check or 0
    saved = slice(metadata.num_forward, -(unchecked + sizes) or None)
    saved_unchecked = slice(-(unchecked + sizes), -sizes or None)
    kept = metadata.saved_tensor_is_graph_input

    def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
        outputs = run(list(args))
        tensors = outputs[saved]
        ctx.to_save = tuple(_kept(tensors, kept))  # As save_for_backward() does.
        if unchecked:
            ctx._tensors_no_vc_check = _kept(outputs[saved_unchecked], kept[len(tensors) :])
        for i, dims in saved_varying:
            n = len(tensors)
            compat.mark_varying(ctx.to_save[i] if i < n else ctx._tensors_no_vc_check[i - n], dims)
        if sizes:
            ctx.symints = outputs[-sizes:]
        ctx._materialize_non_diff_grads = False
        returned = outputs[:returns]
        if unsafe_views:
            returned = list(returned)
            for i in unsafe_views:
                x = returned[i]
                returned[i] = torch.ops.aten._unsafe_view(x, x.shape)
        if without_gradient:
            ctx.mark_non_differentiable(*[returned[i] for i in without_gradient])
        return tuple(returned)

    return forward


def _kept(tensors: Any, as_they_are: tuple[bool, ...]) -> Sequence[Tensor]:
    """Tensors to save: views are detached, as they keep their base's history alive, except inputs,
    where torch 2.15 says which these are."""
    if not any(map(Tensor._is_view, tensors)):
        return tensors  # type: ignore[no-any-return]
    if not as_they_are:
        return [x.detach() if x._is_view() else x for x in tensors]
    return [
        x if kept or not x._is_view() else x.detach()
        for x, kept in zip(tensors, as_they_are, strict=False)
    ]


def _backward(
    function: Any, metadata: ViewAndMutationMeta, without_autocast: bool
) -> Callable[..., Any]:
    torchs = function.backward
    flows = metadata.tangents
    in_order = metadata.deterministic is False
    boxed = _takes_gradients_boxed(function)
    # A format that is no strides has no size either, and is looked at by in_format.
    formats = [
        (i, expected.size, expected.stride, compat.torchs_format(expected))
        for i, expected in zip(flows, metadata.subclass_tangent_meta, strict=True)
        if expected is not None
    ]
    last: Any = None
    run: Any = None

    def backward(ctx: Any, *given: Any) -> Any:
        nonlocal last, run
        compiled = function.compiled_bw
        if (
            compiled is None
            or compat.graph_is_kept()
            or torch.is_grad_enabled()
            or compat.dynamo_callback() is not None
            or compat.functorch_stack() is not None
            or (in_order and torch.are_deterministic_algorithms_enabled())
        ):
            return torchs(ctx, *given)
        grads: Any = given[0] if boxed else given
        for i in flows:
            if type(grads[i]) is not Tensor:
                return torchs(ctx, *given)
        if compiled is not last:
            run = _straight_code(_without_disabling_dynamo(compiled), without_autocast)
            last = compiled
        # Nothing else here may hold what the compiled code is to free.
        args = [*ctx.symints, *ctx.saved_tensors, *ctx._tensors_no_vc_check]
        for i, size, stride, expected in formats:
            x = grads[i]
            args.append(
                x if x.shape == size and x.stride() == stride else compat.in_format(x, expected)
            )
        x = None
        if boxed:
            grads.clear()
        ctx.maybe_clear_saved_tensors()
        context = compat.callers_context()
        out = run(args) if context is None else context.run(run, args)
        return tuple(out) if type(out) in (list, tuple) else (out,)

    # The engine may call it where Dynamo looks at every frame: a backward in a compiled function.
    compat.skip_code(backward.__code__)
    return backward
