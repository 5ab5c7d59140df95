"""A random state is where its reader looks for it, whatever made it: the host or the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memprof.profiler.model import LedgerKind

from .support import graphed, in_steps, manager, next_step

pytestmark = pytest.mark.simgpu


def state() -> Tensor:
    """As attention makes it."""
    capturing = torch.cuda.is_current_stream_capturing()
    return torch.full((), 7, dtype=torch.int64, device="cuda" if capturing else "cpu")


def forward(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, state()


class Backward:
    """As that of attention: where it runs it reads its state on the host."""

    def __init__(self) -> None:
        self.ran = 0

    def __call__(self, seed: Tensor, g: Tensor) -> Tensor:
        assert seed.is_cuda == torch.cuda.is_current_stream_capturing()
        if seed.is_cpu:
            assert seed.item() == 7
            self.ran += 1
        return g * 2


class Pair(torch.autograd.Function):
    """A forward and a backward on graph trees, as AOTAutograd joins them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Any, back: Any) -> Tensor:
        out, seed = run([x.detach().clone()])
        ctx.back = back
        ctx.save_for_backward(seed)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        (seed,) = ctx.saved_tensors
        inputs = [seed, g]
        del seed, g
        return ctx.back(inputs)[0], None, None


def pair() -> tuple[Any, Any, Backward]:
    fn = Backward()
    x = torch.ones(4, device="cuda")
    example = torch.zeros((), dtype=torch.int64)
    return (
        graphed(forward, [x], is_inference=False),
        graphed(fn, [example, x], is_backward=True),
        fn,
    )


def leaf() -> Tensor:
    return torch.ones(4, device="cuda", requires_grad=True)


def test_a_backward_that_is_first_called_when_its_forward_is_replayed() -> None:
    # GIVEN a forward that was recorded, and no backward yet
    run, back, fn = pair()
    for _ in in_steps(range(3)):
        Pair.apply(leaf(), run, back)
    for _ in in_steps(range(4)):
        # WHEN it is followed by one
        x = leaf()
        Pair.apply(x, run, back).sum().backward()
        # THEN that is warmed up with its state on the host, and is recorded in the end
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 4
    assert fn.ran == 1
    kinds = [e.kind for e in manager().entries()]
    assert kinds.count(LedgerKind.TREE_FAILURE) == 0


@pytest.mark.parametrize("recorded", [False, True])
def test_a_checkpoint_sees_one_device(recorded: bool) -> None:
    # GIVEN checkpointed forwards of each kind (warmed up, recorded, replayed)
    run, back, _ = pair()
    losses = []
    if recorded:
        for _ in in_steps(range(3)):
            checkpoint(Pair.apply, leaf(), run, back, use_reentrant=False)
    for _ in in_steps(range(3)):
        x = leaf()
        losses.append((x, checkpoint(Pair.apply, x, run, back, use_reentrant=False).sum()))
    # WHEN their backwards come late, and recompute them in other ways
    for x, loss in in_steps(losses):
        loss.backward()
        # THEN none of them finds another device
        assert x.grad is not None
        assert x.grad.tolist() == [2.0] * 4
    # AND the same holds where a recomputation runs without a graph
    x = leaf()
    loss = checkpoint(Pair.apply, x, run, back, use_reentrant=False).sum()
    (function,) = (f for f in manager().functions if f.mode.name == "FORWARD")
    function.state.given_up = "for this test"
    manager().owner.drop(list(manager().nodes()), "for this test")
    next_step()
    loss.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 4


def test_a_users_output_on_the_host_stays_there() -> None:
    # GIVEN a forward whose output on the host is the user's
    run = graphed(
        lambda x: [x, torch.ones(1, dtype=torch.int64, device="cpu")],
        [torch.ones(4, device="cuda")],
        is_inference=False,
        user_visible_output_idxs=(0, 1),
        stack_traces=[None, None],
    )
    devices = []

    def call(x: Tensor) -> Tensor:
        _out, number = run([x.detach().clone()])
        devices.append(number.device.type)
        return x * 2

    for _ in in_steps(range(4)):
        checkpoint(call, leaf(), use_reentrant=False).sum().backward()
    assert set(devices) == {"cpu"}
