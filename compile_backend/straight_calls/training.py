"""A straight forward and backward: Note [Straight calls]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from . import _torch_compat as compat
from .plan import Call, TrainingPlan


def straight(
    function: type,
    plan: TrainingPlan,
    detached: tuple[int, ...],
    without_autocast: bool,
    wrap: Callable[[Any], Call],
) -> Call:
    """The call.

    Args:
        function: the ``autograd.Function`` that AOTAutograd made.
        plan: what to do besides.
        detached: inputs that never get a gradient although they ask for one.
        without_autocast: compiled code runs with autocast off, which was traced into it.
        wrap: makes torch's wrapper around the ``apply`` of such a function.
    """
    ours = derived(function, plan, without_autocast)
    torchs = wrap(ours.apply)
    apply = compat.plain_apply(ours)
    written, varying = plan.written, plan.varying
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


def derived(function: Any, plan: TrainingPlan, without_autocast: bool) -> Any:
    """``function`` with a straight ``forward`` and ``backward``."""
    backward = _backward(function, plan, without_autocast)
    members = {
        "forward": staticmethod(_forward(function, plan, without_autocast)),
        "backward": staticmethod(backward),
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    ours = type(function)(function.__name__, (function,), members)
    compat.set_node_apply(ours, backward)
    compat.set_nothing_saved(ours, "symints", "opaque_objects", "_tensors_no_vc_check")
    return ours


def _forward(
    function: Any, plan: TrainingPlan, without_autocast: bool
) -> Callable[..., tuple[Any, ...]]:
    run = compat.steady(function.compiled_fw, without_autocast)
    returns, sizes, saved_varying = plan.returns, plan.saved_sizes, plan.saved_varying
    tell_varying = compat.tell_varying()
    saved, saved_unchecked, kept = plan.saved, plan.saved_unchecked, plan.kept_views
    has_unchecked, has_sizes = saved_unchecked != slice(0, 0), sizes != slice(0, 0)
    without_gradient = plan.without_gradient
    unsafe_views, unsafe_view = plan.unsafe_views, compat.unsafe_view

    def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
        outputs = run(list(args))
        tensors = outputs[saved]
        ctx.to_save = tuple(_kept(tensors, kept))  # As save_for_backward() does.
        if has_unchecked:
            ctx._tensors_no_vc_check = _kept(outputs[saved_unchecked], kept[len(tensors) :])
        for i, dims in saved_varying:
            n = len(tensors)
            tell_varying(ctx.to_save[i] if i < n else ctx._tensors_no_vc_check[i - n], dims)
        if has_sizes:
            ctx.symints = outputs[sizes]
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


def _backward(function: Any, plan: TrainingPlan, without_autocast: bool) -> Callable[..., Any]:
    torchs = function.backward
    tangents = plan.tangents
    in_order = plan.deterministic is False
    deterministic_is_asked = compat.deterministic_is_asked
    is_grad_enabled, functorch_stack = compat.is_grad_enabled, compat.functorch_stack
    graph_is_kept, dynamo_callback = compat.graph_is_kept, compat.dynamo_callback
    callers_context, in_format = compat.callers_context, compat.in_format()
    boxed = compat.takes_gradients_boxed(function)
    # A format that is no strides has no size and none, and is looked at by in_format().
    formats = [(i, expected.size, expected.stride, expected) for i, expected in tangents]
    known: Any = None
    run: Any = None

    def backward(ctx: Any, *given: Any) -> Any:
        nonlocal known, run
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
        for i, _ in tangents:
            if type(grads[i]) is not Tensor:
                return torchs(ctx, *given)
        if compiled is not known:
            run = compat.steady(compat.without_disabling_dynamo(compiled), without_autocast)
            known = compiled
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
