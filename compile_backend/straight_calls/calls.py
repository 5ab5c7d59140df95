"""Straight calls where AOTAutograd would put its run-time wrapper: Note [Straight calls]."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from .._torch_compat import is_backward_state
from ..aot_metadata.view_and_mutation import view_and_mutation_meta
from ..ledger import Ledger
from . import _torch_compat as compat
from .plan import Call, CallPlan, NotStraight, TrainingPlan, inference_plan, training_plan


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
    if not wrapper.trace_joint:
        if not compat.is_boxed(compiled):
            raise NotStraight("takes its inputs one by one")
        plan = inference_plan(known, keep)
        run = compat.steady(compiled, without_autocast)
        return _inference(run, plan, torchs(compiled))
    function: Any = getattr(compiled, "__self__", None)
    if not isinstance(function, type) or not compat.is_boxed(getattr(function, "compiled_fw", 0)):
        raise NotStraight("is not called through an autograd.Function")
    if function.maybe_subclass_metadata is not None:  # type: ignore[attr-defined]
        raise NotStraight("has tensor subclasses")
    if compat.hooks_are_inlined():
        raise NotStraight("has hooks for what it saves")
    if compat.uses_objects():
        raise NotStraight("uses objects that its backward must find again")
    detached = tuple(wrapper.indices_of_inps_to_detach)
    return _training(function, training_plan(known, keep), detached, without_autocast, torchs)


def _inference(run: Call, plan: CallPlan, torchs: Call) -> Call:
    """A straight call of a graph without a backward.

    Args:
        run: the compiled code.
        plan: what to do besides.
        torchs: torch's wrapper of the same code.
    """
    written, returns, varying = plan.written, plan.returns, plan.varying
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
    plan: TrainingPlan,
    detached: tuple[int, ...],
    without_autocast: bool,
    wrap: Callable[[Any], Call],
) -> Call:
    """A straight call of a graph with a backward, and with that straight as well.

    Args:
        function: the ``autograd.Function`` that AOTAutograd made.
        plan: what to do besides.
        detached: inputs that never get a gradient although they ask for one.
        without_autocast: compiled code runs with autocast off, which was traced into it.
        wrap: makes torch's wrapper around the ``apply`` of such a function.
    """
    ours = _derived(function, plan, without_autocast)
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


def _derived(function: Any, plan: TrainingPlan, without_autocast: bool) -> Any:
    """``function`` with a straight ``forward`` and ``backward``."""
    backward = _backward(function, plan, without_autocast)
    members = {
        "forward": staticmethod(_forward(function, plan, without_autocast)),
        "backward": staticmethod(backward),
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
    }
    ours = type(function)(function.__name__, (function,), members)
    compat.set_up_nodes(ours, backward)
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
