"""An optimizer whose state lies in bfloat16 between steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def step_by_parameter(step: Callable[..., Any], said: Callable[[int], None]) -> Callable[..., Any]:
    """An optimizer's ``step`` that updates one parameter after the other, in float32, and keeps
    its state in bfloat16.

    Args:
        step: of an optimizer, not hooked by torch yet.
        said: is told how many tensors of state were made narrower by a step that did so.
    """

    @functools.wraps(step)
    def one_by_one(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
        import torch

        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups, narrowed = optimizer.param_groups, 0
        try:
            for group in groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    # The state of a narrow parameter is as narrow by itself.
                    wide = parameter.dtype is torch.float32
                    if wide:
                        _convert(optimizer.state.get(parameter, {}), torch.bfloat16, torch.float32)
                    optimizer.param_groups = [{**group, "params": [parameter]}]
                    step(optimizer)
                    state = optimizer.state.get(parameter, {})
                    if wide:
                        narrowed += _convert(state, torch.float32, torch.bfloat16)
        finally:
            optimizer.param_groups = groups
        if narrowed:
            said(narrowed)
        return loss

    return one_by_one


def _convert(state: Any, old: Any, new: Any) -> int:
    """How many tensors of a state were of type ``old``, and are ``new`` now; numbers stay."""
    import torch

    found = [k for k, v in state.items() if isinstance(v, torch.Tensor) and v.dtype is old]
    found = [key for key in found if state[key].numel() > 1]
    for key in found:
        state[key] = state[key].to(new)
    return len(found)
