"""Straight calls where AOTAutograd would put its run-time wrapper: Note [Straight calls]."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from .._torch_compat import is_backward_state
from ..aot_metadata.view_and_mutation import view_and_mutation_meta
from ..ledger import Ledger
from . import _torch_compat as compat
from . import inference, training
from .plan import Call, NotStraight, inference_plan, training_plan


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
        return inference.straight(run, plan, torchs(compiled))
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
    return training.straight(
        function, training_plan(known, keep), detached, without_autocast, torchs
    )
