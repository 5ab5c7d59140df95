"""What a pending backward alone holds is live, and what none needs holds no step.

PyTorch's pull requests 194124 and 185995 mended these in torch's own trees (the first in 2.15). The
tests are written anew and hold on every supported torch.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from memprof.cudagraph_trees.replay.path import ExecutionState

from .support import graphed, in_steps, manager, same

pytestmark = pytest.mark.simgpu

Boxed = Callable[[list[Any]], list[Any]]


def ones(value: float = 1.0) -> Tensor:
    return torch.full((4,), float(value), device="cuda")


class Saves(torch.autograd.Function):
    """A graph's forward, whose second output only the node of autograd keeps."""

    @staticmethod
    def forward(ctx: Any, f: Boxed, x: Tensor) -> Tensor:
        out, saved = f([x.detach().clone()])
        ctx.save_for_backward(saved)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        (saved,) = ctx.saved_tensors
        return None, g * saved


def forward() -> Boxed:
    """(x + 1, 2 x), so that the gradient of ``Saves`` is 2 x."""
    return graphed(lambda x: (x + 1, x * 2), [ones()], is_inference=False)


def test_what_only_a_pending_backward_holds_is_live() -> None:
    # GIVEN a forward of which nothing but the node of autograd holds a thing
    f, others = forward(), [graphed(lambda x: [x + 5, x + 6], [ones()]) for _ in range(2)]
    for i in in_steps(range(6)):
        x = ones(i).requires_grad_()
        loss = Saves.apply(f, x).sum()
        node = manager().path.node
        assert node is not None
        assert not node.all_outputs_are_dead()
        # WHEN other graphs of the same sizes run before its backward, their outputs held
        held = []
        for other in in_steps(others):
            held += other([ones(100)])
        # THEN they run after it, and took none of its memory
        assert node in (manager().path.node.parent.parent,)  # type: ignore[union-attr]
        loss.backward()
        same(x.grad, torch.full((4,), 2.0 * i))
        same(held, [torch.full((4,), v) for v in (105.0, 106.0, 105.0, 106.0)])
        manager().set_to_running_backward()
        del held, loss


@pytest.mark.parametrize("cyclic", [False, True])
def test_what_a_stale_graph_of_autograd_holds_is_dead(cyclic: bool) -> None:
    # GIVEN outputs that are handed out again at each replay, and carry the graph of the last one,
    # which holds what was saved beside them
    f = forward()
    for i in in_steps(range(6)):
        y = Saves.apply(f, ones(i).requires_grad_())
        node = manager().path.node
        assert node is not None
        assert not node.all_outputs_are_dead()
        # WHEN the program drops them, and no backward comes
        if cyclic:
            cycle: list[object] = [y]
            cycle.append(cycle)
            del cycle
        del y
        gc.collect()
        # THEN nothing is held
        assert node.all_outputs_are_dead()
    assert manager().path.state is ExecutionState.EXECUTION


def test_a_forward_that_nobody_needs_holds_no_step_of_what_comes_after_it() -> None:
    # GIVEN a forward whose outputs are dropped at once, and no backward
    f, g = forward(), graphed(lambda x: [x * 3], [ones()])
    for i in in_steps(range(4)):
        f([ones()])
        # WHEN inference follows
        outputs = []
        for k in in_steps(range(3)):
            outputs += g([ones(k + i)])
        # THEN each of its calls begins a step
        same(outputs[-1], torch.full((4,), 3.0 * (2 + i)))
        for old in outputs[:-1]:
            with pytest.raises(RuntimeError, match="overwritten"):
                old + 1
    # AND is replayed, as the forward is
    assert manager().path.state is ExecutionState.EXECUTION
    assert {n.wrapped_function.mode.name for n in manager().nodes()} == {"FORWARD", "INFERENCE"}
