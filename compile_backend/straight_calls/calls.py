"""Straight calls where AOTAutograd would put its run-time wrapper: Note [Straight calls]."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .._torch_compat import is_backward_state
from ..session.ledger import Ledger
from ..stages.describe.aot_metadata import OutputType, ViewAndMutationMeta, view_and_mutation_meta
from . import _torch_compat as compat

Call = Callable[[list[Any]], Any]
"""What a wrapper is: from a list of inputs, which it may empty, to a list of outputs."""


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
    if compat.config.debug_assert:
        raise NotStraight("is checked by debug_assert")
    known = view_and_mutation_meta(metadata)
    without_autocast = bool(wrapper.disable_amp)
    written = known.mutated_graph_handled_indices_seen_by_autograd if keep else ()
    if not wrapper.trace_joint:
        if not compat.is_boxed(compiled):
            raise NotStraight("takes its inputs one by one")
        _check(known, training=False)
        run = _inference(compat.steady(compiled, without_autocast), len(known.output_info))
        return _call(run, torchs(compiled), known, written, training=False)
    function: Any = getattr(compiled, "__self__", None)
    if not isinstance(function, type) or not compat.is_boxed(getattr(function, "compiled_fw", 0)):
        raise NotStraight("is not called through an autograd.Function")
    if function.maybe_subclass_metadata is not None:  # type: ignore[attr-defined]
        raise NotStraight("has tensor subclasses")
    if compat.hooks_are_inlined():
        raise NotStraight("has hooks for what it saves")
    if compat.uses_objects():
        raise NotStraight("uses objects that its backward must find again")
    _check(known, training=True)
    ours = _derived(function, known, without_autocast)
    run = _training(ours, tuple(wrapper.indices_of_inps_to_detach))
    return _call(run, torchs(ours.apply), known, written, training=True)


def _check(known: ViewAndMutationMeta, training: bool) -> None:
    """Raises ``NotStraight`` if a call, or a training step, has more to do."""
    reasons: dict[str, Any] = {
        f"has metadata that could not be read: {', '.join(known.unknown)}": known.unknown,
        "returns views": any(o.output_type.is_alias for o in known.output_info),
        "has inputs that are written to after the call": known.num_mutated_outputs,
        "returns bases of views": known.num_intermediate_bases,
        "has effects in an order": known.tokens + known.num_backward_tokens,
        "takes a random state as an input": known.is_rng_op_functionalized,
        "changes the grad mode": known.grad_enabled_mutation is not None,
    }
    if training:
        sizes, unchecked = known.num_symints_saved_for_bw, known.num_tensors_saved_with_no_vc_check
        written = known.indices_of_inputs_that_requires_grad_with_mutations_in_bw
        formats = known.subclass_tangent_meta
        flows = sum(o.takes_gradient for o in known.output_info)
        reasons |= {
            "takes random states as inputs": known.num_graphsafe_rng_states,
            "saves opaque objects": known.num_opaque_objects_saved_for_bw,
            "writes to inputs in its backward": written,
            "is not partitioned": sizes is None or unchecked is None,
            "takes gradients that are subclasses": None in formats,
            "takes gradients of another number than its outputs": len(formats) != flows,
        }
    for words, holds in reasons.items():
        if holds:
            raise NotStraight(words)


def _call(
    run: Call,
    torchs: Call,
    known: ViewAndMutationMeta,
    written: tuple[int, ...],
    training: bool,
) -> Call:
    """A straight call: ``run``, unless the situation wants torch's wrapper, ``torchs``.

    Args:
        written: inputs that the graph itself writes to, whose version is to be advanced.
    """
    # Outputs with the dimensions of each that vary, of which Dynamo is told.
    varying = [(i, o.dynamic_dims) for i, o in enumerate(known.output_info) if o.dynamic_dims]
    # torch's wrapper looks, at its first call, for aliases that custom operators hide.
    checks_operators = bool(compat.config.check_custom_op_aliasing)
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
            compat.profiler._is_profiler_enabled
            or not is_common
            or (training and (not compat.is_grad_enabled() or compat.functorch_is_active()))
        ):
            return torchs(args)
        if written:
            compat.increment_version(tuple([args[i] for i in written]))
        outputs = run(args)
        for i, dims in varying:
            compat.tell_varying(outputs[i], dims)
        return outputs

    return call


def _inference(compiled: Call, returns: int) -> Call:
    """Compiled code without a backward, which returns so many outputs."""

    def run(args: list[Any]) -> Any:
        if not compat.is_grad_enabled():
            return compat.listed(compiled(args), returns)
        try:
            compat.set_grad_enabled(False)  # an interrupt may come right after it
            return compat.listed(compiled(args), returns)
        finally:
            compat.set_grad_enabled(True)

    return run


def _training(function: Any, detached: tuple[int, ...]) -> Call:
    """``apply`` of a function as ``_derived`` makes them; ``detached`` are inputs that never get a
    gradient although they ask for one."""
    apply = compat.plain_apply(function)

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


def _derived(function: Any, known: ViewAndMutationMeta, without_autocast: bool) -> Any:
    """``function``, which AOTAutograd made, with a straight ``forward`` and ``backward``, in which
    autocast is off if it was traced into them."""
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
            compat.tell_varying(ctx.to_save[i] if i < n else ctx._tensors_no_vc_check[i - n], dims)
        if sizes:
            ctx.symints = outputs[-sizes:]
        ctx._materialize_non_diff_grads = False
        returned = outputs[:returns]
        if unsafe_views:
            returned = list(returned)
            for i in unsafe_views:
                x = returned[i]
                returned[i] = compat.unsafe_view(x, x.shape)
        if without_gradient:
            ctx.mark_non_differentiable(*[returned[i] for i in without_gradient])
        return tuple(returned)

    return forward


def _kept(tensors: Any, as_they_are: tuple[bool, ...]) -> Sequence[Tensor]:
    """Returns what is saved of ``tensors``: no view, which would keep its base's history alive, but
    for inputs, where torch 2.15 says which are."""
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
    boxed = compat.takes_gradients_boxed(function)
    # A format that is no strides has no size either, and is looked at by in_format.
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
            or compat.graph_is_kept()
            or compat.is_grad_enabled()
            or compat.dynamo_callback() is not None
            or compat.functorch_stack() is not None
            or (in_order and compat.deterministic_is_asked())
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
