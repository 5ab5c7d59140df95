"""Straight calls where AOTAutograd would put its run-time wrapper: Note [Straight calls]."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .._torch_compat import is_backward_state
from ..aot_metadata import OutputType, ViewAndMutationMeta, view_and_mutation_meta
from ..ledger import Ledger
from . import _torch_compat as compat

Call = Callable[[list[Any]], Any]
"""What a wrapper is: from a list of inputs, which it may empty, to a list of outputs."""

Varying = tuple[tuple[int, frozenset[int]], ...]
"""Tensors by position with the dimensions of each that vary, of which Dynamo is told."""


class NotStraight(Exception):
    """The graph needs more than a straight call does; the message says what, after "it"."""


def straight_calls(
    ledger: Ledger, example_inputs: Sequence[Any]
) -> contextlib.AbstractContextManager[None]:
    """The graph that this thread compiles inside gets straight calls, if it can have them.

    Args:
        ledger: hears of what memprof failed at; torch's wrapper is kept then.
        example_inputs: Dynamo's, of the graph. With hooks for compiled autograd among them, which
            its forward hands on, torch's wrapper is kept.
    """
    if any(map(is_backward_state, example_inputs)):
        return contextlib.nullcontext()

    def replace(
        wrapper: Any, compiled: Any, metadata: Any, keep: bool, torchs: Callable[[Any], Call]
    ) -> Call:
        try:
            call = _straight(wrapper, compiled, metadata, keep, torchs)
        except NotStraight:
            return torchs(compiled)
        except Exception as error:
            ledger.fallback(None, "a straight call in place of AOTAutograd's wrapper", error)
            return torchs(compiled)
        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    return compat.replacing(replace)


def _straight(
    wrapper: Any, compiled: Any, metadata: Any, keep: bool, torchs: Callable[[Any], Call]
) -> Call:
    if compat.debug_assert():
        raise NotStraight("is checked by debug_assert")
    known = view_and_mutation_meta(metadata)
    without_autocast = bool(wrapper.disable_amp)
    # Inputs that the graph itself writes to, whose version is to be advanced.
    written = known.mutated_graph_handled_indices_seen_by_autograd if keep else ()
    if not wrapper.trace_joint:
        if not compat.is_boxed(compiled):
            raise NotStraight("takes its inputs one by one")
        _check(known)
        run = compat.steady(compiled, without_autocast)
        return _inference(run, known, written, torchs(compiled))
    function: Any = getattr(compiled, "__self__", None)
    if not isinstance(function, type) or not compat.is_boxed(getattr(function, "compiled_fw", 0)):
        raise NotStraight("is not called through an autograd.Function")
    if function.maybe_subclass_metadata is not None:  # type: ignore[attr-defined]
        raise NotStraight("has tensor subclasses")
    if compat.hooks_are_inlined():
        raise NotStraight("has hooks for what it saves")
    if compat.uses_objects():
        raise NotStraight("uses objects that its backward must find again")
    _check(known)
    _check_training(known)
    detached = tuple(wrapper.indices_of_inps_to_detach)
    return _training(function, known, written, detached, without_autocast, torchs)


def _check(known: ViewAndMutationMeta) -> None:
    """Raises ``NotStraight`` if a call has more to do."""
    _refuse(
        {
            f"has metadata that could not be read: {', '.join(known.unknown)}": known.unknown,
            "returns views": any(o.output_type.is_alias for o in known.output_info),
            "has inputs that are written to after the call": known.num_mutated_outputs,
            "returns bases of views": known.num_intermediate_bases,
            "has effects in an order": known.tokens + known.num_backward_tokens,
            "takes a random state as an input": known.is_rng_op_functionalized,
            "changes the grad mode": known.grad_enabled_mutation is not None,
        }
    )


def _check_training(known: ViewAndMutationMeta) -> None:
    """Raises ``NotStraight`` if a training step has more to do."""
    sizes, unchecked = known.num_symints_saved_for_bw, known.num_tensors_saved_with_no_vc_check
    tangents = known.subclass_tangent_meta
    _refuse(
        {
            "takes random states as inputs": known.num_graphsafe_rng_states,
            "saves opaque objects": known.num_opaque_objects_saved_for_bw,
            "writes to inputs in its backward": (
                known.indices_of_inputs_that_requires_grad_with_mutations_in_bw
            ),
            "is not partitioned": sizes is None or unchecked is None,
            "takes gradients that are subclasses": None in tangents,
            "takes gradients of another number than its outputs": (
                len(tangents) != sum(o.takes_gradient for o in known.output_info)
            ),
        }
    )


def _refuse(reasons: dict[str, Any]) -> None:
    for words, holds in reasons.items():
        if holds:
            raise NotStraight(words)


def _varying(known: ViewAndMutationMeta) -> Varying:
    return tuple((i, o.dynamic_dims) for i, o in enumerate(known.output_info) if o.dynamic_dims)


def _inference(
    run: Call, known: ViewAndMutationMeta, written: tuple[int, ...], torchs: Call
) -> Call:
    """A straight call of a graph without a backward. ``torchs`` is torch's wrapper of it."""
    returns, varying = len(known.output_info), _varying(known)
    tell_varying = compat.tell_varying()
    profiler, increment_version = compat.profiler, compat.increment_version
    is_grad_enabled, set_grad_enabled = compat.is_grad_enabled, compat.set_grad_enabled
    is_first = compat.checks_custom_operators()

    def call(args: list[Any]) -> Any:
        nonlocal is_first
        if is_first or profiler._is_profiler_enabled:
            out = torchs(args)
            is_first = False
            return out
        if written:
            increment_version(tuple([args[i] for i in written]))
        if is_grad_enabled():
            set_grad_enabled(False)
            try:
                outputs = run(args)
            finally:
                set_grad_enabled(True)
        else:
            outputs = run(args)
        outputs = compat.listed(outputs, returns)
        for i, dims in varying:
            tell_varying(outputs[i], dims)
        return outputs

    return call


def _training(
    function: type,
    known: ViewAndMutationMeta,
    written: tuple[int, ...],
    detached: tuple[int, ...],
    without_autocast: bool,
    wrap: Callable[[Any], Call],
) -> Call:
    """A straight call of a graph with a backward, and with that straight as well.

    Args:
        function: the ``autograd.Function`` that AOTAutograd made.
        detached: inputs that never get a gradient although they ask for one.
        without_autocast: compiled code runs with autocast off, which was traced into it.
        wrap: makes torch's wrapper around the ``apply`` of such a function.
    """
    ours = _derived(function, known, without_autocast)
    torchs = wrap(ours.apply)
    apply = compat.plain_apply(ours)
    varying = _varying(known)
    tell_varying = compat.tell_varying()
    profiler, increment_version = compat.profiler, compat.increment_version
    is_grad_enabled, functorch_is_active = compat.is_grad_enabled, compat.functorch_is_active
    replays_views, set_replays_views = compat.replays_views, compat.set_replays_views
    checks_operators = compat.checks_custom_operators()
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
            profiler._is_profiler_enabled
            or not is_common
            or not is_grad_enabled()
            or functorch_is_active()
        ):
            return torchs(args)
        if written:
            increment_version(tuple([args[i] for i in written]))
        if detached:
            args = list(args)
            for i in detached:
                if isinstance(args[i], Tensor):
                    args[i] = args[i].detach()
        if replays_views():
            outputs = list(apply(*args))
        else:
            set_replays_views(True)
            try:
                outputs = list(apply(*args))
            finally:
                set_replays_views(False)
        for i, dims in varying:
            tell_varying(outputs[i], dims)
        return outputs

    return call


def _derived(function: Any, known: ViewAndMutationMeta, without_autocast: bool) -> Any:
    """``function`` with a straight ``forward`` and ``backward``."""
    backward = _backward(function, known, without_autocast)
    members = {
        "forward": staticmethod(_forward(function, known, without_autocast)),
        "backward": staticmethod(backward),
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    ours = type(function)(function.__name__, (function,), members)
    compat.set_up_nodes(ours, backward)
    return ours


def _forward(
    function: Any, known: ViewAndMutationMeta, without_autocast: bool
) -> Callable[..., tuple[Any, ...]]:
    run = compat.steady(function.compiled_fw, without_autocast)
    tell_varying, unsafe_view = compat.tell_varying(), compat.unsafe_view
    infos = list(enumerate(known.output_info))
    returns, saved_varying = len(infos), known.dynamic_saved_tensors_idxs
    unsafe_views = [i for i, o in infos if o.output_type is OutputType.UNSAFE_VIEW_ALIAS]
    without_gradient = [i for i, o in infos if o.is_tensor and not o.requires_grad]
    # At the end of the outputs: tensors, those whose version is not checked, and sizes.
    sizes = known.num_symints_saved_for_bw or 0
    unchecked = known.num_tensors_saved_with_no_vc_check or 0
    saved = slice(known.num_forward, -(unchecked + sizes) or None)
    saved_unchecked = slice(-(unchecked + sizes), -sizes or None)
    kept = known.saved_tensor_is_graph_input

    def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
        outputs = run(list(args))
        tensors = outputs[saved]
        ctx.to_save = tuple(_kept(tensors, kept))  # As save_for_backward() does.
        if unchecked:
            ctx._tensors_no_vc_check = _kept(outputs[saved_unchecked], kept[len(tensors) :])
        for i, dims in saved_varying:
            n = len(tensors)
            tell_varying(ctx.to_save[i] if i < n else ctx._tensors_no_vc_check[i - n], dims)
        if sizes:
            ctx.symints = outputs[-sizes:]
        ctx._materialize_non_diff_grads = False
        returned = outputs[:returns]
        if unsafe_views:
            returned = list(returned)
            for i in unsafe_views:
                x = returned[i]
                returned[i] = unsafe_view(x, x.shape)
        if without_gradient:
            ctx.mark_non_differentiable(*[returned[i] for i in without_gradient])
        return tuple(returned)

    return forward


def _kept(tensors: Any, as_they_are: tuple[bool, ...]) -> Sequence[Tensor]:
    """What is saved of ``tensors``: no view, which would keep its base's history alive, but for
    inputs, where torch 2.15 says which are."""
    if not any(map(Tensor._is_view, tensors)):
        return tensors  # type: ignore[no-any-return]
    if not as_they_are:
        return [x.detach() if x._is_view() else x for x in tensors]
    return [
        x if kept or not x._is_view() else x.detach()
        for x, kept in zip(tensors, as_they_are, strict=False)
    ]


def _backward(
    function: Any, known: ViewAndMutationMeta, without_autocast: bool
) -> Callable[..., Any]:
    torchs = function.backward
    flows = [i for i, o in enumerate(known.output_info) if o.takes_gradient]
    in_order = known.deterministic is False
    deterministic_is_asked = compat.deterministic_is_asked
    is_grad_enabled, functorch_stack = compat.is_grad_enabled, compat.functorch_stack
    graph_is_kept, dynamo_callback = compat.graph_is_kept, compat.dynamo_callback
    callers_context, in_format = compat.callers_context, compat.in_format()
    boxed = compat.takes_gradients_boxed(function)
    # A format that is no strides has no size and none, and is looked at by in_format().
    formats = [
        (i, expected.size, expected.stride, expected)
        for i, expected in zip(flows, known.subclass_tangent_meta, strict=True)
        if expected is not None
    ]
    last: Any = None
    run: Any = None

    def backward(ctx: Any, *given: Any) -> Any:
        nonlocal last, run
        compiled = function.compiled_bw
        if (
            compiled is None
            or graph_is_kept()
            or is_grad_enabled()
            or dynamo_callback() is not None
            or functorch_stack() is not None
            or (in_order and deterministic_is_asked())
        ):
            return torchs(ctx, *given)
        grads: Any = given[0] if boxed else given
        for i in flows:
            if type(grads[i]) is not Tensor:
                return torchs(ctx, *given)
        if compiled is not last:
            run = compat.steady(compat.without_disabling_dynamo(compiled), without_autocast)
            last = compiled
        # Nothing else here may hold what the compiled code is to free.
        args = [*ctx.symints, *ctx.saved_tensors, *ctx._tensors_no_vc_check]
        for i, size, stride, expected in formats:
            x = grads[i]
            args.append(x if x.shape == size and x.stride() == stride else in_format(x, expected))
        x = None
        if boxed:
            grads.clear()
        ctx.maybe_clear_saved_tensors()
        context = callers_context()
        out = run(args) if context is None else context.run(run, args)
        return tuple(out) if type(out) in (list, tuple) else (out,)

    return backward
