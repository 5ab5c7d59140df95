"""Hooks, a retained gradient and attributes of an output that a replay hands out again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ..support import graphed, same, step

pytestmark = pytest.mark.simgpu


def doubling() -> type[torch.autograd.Function]:
    """``x * 2``; its forward and its backward run on trees."""
    like = torch.ones(8, device="cuda")
    forward = graphed(lambda x: [x * 2], [like], is_inference=False)
    backward = graphed(lambda g: [g * 2], [like], is_backward=True)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return forward([x])[0]  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
            return backward([g])[0]

    return Function


@pytest.mark.parametrize("early", [False, True], ids=["gradient held", "gradient dropped"])
def test_a_hook_of_a_former_step_does_not_swallow_those_of_later_ones(early: bool) -> None:
    function = doubling()
    x = torch.ones(8, device="cuda", requires_grad=True)
    for i in range(6):
        # WHEN a loop hangs a hook on the output in each step, and the last step's gradient is
        # there until the forward has run, or not
        called: list[int] = []
        if early:
            x.grad = None
        with step():
            out = function.apply(x)
        out.register_hook(lambda g, i=i, called=called: called.append(i))
        x.grad = None
        out.sum().backward()
        del out
        # THEN the hook of this step runs, and that alone
        assert called == [i]


@pytest.mark.parametrize("early", [False, True], ids=["gradient held", "gradient dropped"])
def test_a_retained_gradient_is_that_of_its_step(early: bool) -> None:
    function = doubling()
    x = torch.ones(8, device="cuda", requires_grad=True)
    for i in range(6):
        if early:
            x.grad = None
        with step():
            out = function.apply(x)
        # GIVEN that nothing is left of what the user did to the output of the last step
        assert out.grad is None
        assert not out.retains_grad
        out.retain_grad()
        x.grad = None
        (out * (i + 1)).sum().backward()
        same(out.grad, torch.full((8,), i + 1.0))
        del out


@pytest.mark.parametrize("trains", [False, True])
def test_attributes_of_a_former_steps_output_are_not_those_of_the_next(trains: bool) -> None:
    function = doubling()
    x = torch.ones(8, device="cuda", requires_grad=trains)
    for i in range(6):
        with step():
            out = function.apply(x)
        assert not hasattr(out, "tag")
        out.tag = i
        del out
