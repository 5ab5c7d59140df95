"""A straight call of a graph without a backward: Note [Straight calls]."""

from __future__ import annotations

from typing import Any

from . import _torch_compat as compat
from .plan import Call, CallPlan


def straight(run: Call, plan: CallPlan, torchs: Call) -> Call:
    """The call.

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
