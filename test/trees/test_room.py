"""On a device that is nearly full a job runs wherever it would run without graphs."""

from __future__ import annotations

import functools
import gc

import pytest
import torch

from memprof.cudagraph_trees.capture import recovery
from memprof.cudagraph_trees.path import ExecutionState
from memprof.cudagraph_trees.pool_owner import MAX_ROOMS
from memprof.cudagraph_trees.torch_options import TreeOptions
from memprof.profiler.model import LedgerKind

from .room import MIB, leave, one, reasons, scratch, with_scratch
from .support import graphed, manager, next_step, pool_segments, same

pytestmark = [pytest.mark.simgpu, pytest.mark.usefixtures("whole_device")]


@pytest.mark.parametrize("or_error", [False, True])
def test_memory_of_the_general_pool_goes_to_a_graph_that_needs_it(or_error: bool) -> None:
    # GIVEN a general pool with memory that nobody uses, and a device without any more
    first = graphed(lambda x: [-x], [one()])
    first([one()])
    next_step()
    options = TreeOptions({"cudagraph_or_error": or_error})
    f = graphed(functools.partial(with_scratch, 64), [one()], torch_options=options)
    unused = scratch(80)
    del unused
    leave(8 * MIB)
    for i in range(4):
        next_step()
        (y,) = f([one(i)])
        same(y, one(i + 1))
        del y
    # THEN the pool has got it: from torch 2.13 on the allocator looks there itself
    assert manager().path.state is ExecutionState.EXECUTION
    assert manager().path.step == 5
    failures = reasons(LedgerKind.TREE_FAILURE)
    assert all("once more" in failure for failure in failures)
    assert len(failures) == (torch.__version__ < "2.13")


def test_what_writes_too_much_to_be_copied_is_warmed_up_in_the_general_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a cache that is too large to be copied, and a function that writes to it
    monkeypatch.setattr(recovery, "MAX_BACKUP_BYTES", 8)
    cache = torch.zeros(4, device="cuda")

    def step(cache: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        held = scratch(64)
        cache.add_(x)
        return [cache + held.numel() * 0]

    f = graphed(step, [cache, one()], static=(0,), mutated_input_idxs=(0,))
    gc.collect()
    torch.cuda.empty_cache()
    # The scratch memory fits once.
    leave(72 * MIB)
    for i in range(4):
        next_step()
        (y,) = f([cache, one()])
        # THEN nothing was added twice
        same(y, one(i + 1.0))
        del y
        if i == 0:
            assert not any(s["allocated_size"] for s in pool_segments())
    assert manager().path.state is ExecutionState.EXECUTION
    assert reasons(LedgerKind.TREE_FAILURE) == []
    (warm_up,) = reasons(LedgerKind.WARM_UP)
    assert warm_up == "in the general pool: it writes to 16 bytes of its inputs"


@pytest.mark.parametrize("writes", [False, True])
def test_a_function_that_does_not_fit_beside_the_pool_gets_its_memory(
    writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a function with a graph, and a larger one that cannot be recorded: it would fit alone
    small = graphed(functools.partial(with_scratch, 32), [one()])
    buffer = torch.zeros(4, device="cuda")

    def step(buffer: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        if torch.cuda.is_current_stream_capturing():
            raise torch.OutOfMemoryError("in a capture")
        held = scratch(96)
        if writes:
            buffer.add_(1)
        return [x + buffer + held.numel() * 0]

    if writes:
        monkeypatch.setattr(recovery, "MAX_BACKUP_BYTES", 8)
    which = (0,) if writes else ()
    large = graphed(step, [buffer, one()], static=(0,), mutated_input_idxs=which)
    gc.collect()
    torch.cuda.empty_cache()
    leave(112 * MIB)
    for i in range(12):
        # WHEN both are called in turn THEN both have their values
        next_step()
        (y,) = small([one(i)])
        same(y, one(i + 1.0))
        del y
        next_step()
        (y,) = large([buffer, one(i)])
        same(y, one(i + (i + 1.0 if writes else 0.0)))
        del y
    # and in the end nothing is recorded any more, since it would be dropped again
    assert "does not fit beside a pool" in manager().owner.no_room
    assert str(MAX_ROOMS) in manager().owner.no_room
    assert list(manager().nodes()) == []
    assert reasons(LedgerKind.SKIP)


@pytest.mark.parametrize("fits", [False, True])
def test_there_is_room_for_what_the_first_step_of_an_optimizer_makes(fits: bool) -> None:
    # GIVEN a step whose pool and an optimizer's state fit the device or not
    parameters = torch.ones(8 * MIB, device="cuda")  # 32 MiB

    def forward(w: torch.Tensor) -> list[torch.Tensor]:
        return [w * 2]

    def backward(saved: torch.Tensor) -> list[torch.Tensor]:
        held = scratch(64)
        return [torch.where(saved != saved, saved, 1.0) if held.numel() else saved]

    f = graphed(forward, [parameters], static=(0,), is_inference=False)
    b = graphed(backward, [parameters], static=(0,), is_inference=False, is_backward=True)
    gc.collect()
    torch.cuda.empty_cache()
    # The pool takes 148: what is saved, scratch and a gradient. The state takes 64, an update 48.
    leave((290 if fits else 218) * MIB)
    state: list[torch.Tensor] = []
    for _ in range(5):
        next_step()
        saved = f([parameters])
        (gradient,) = b(saved)
        same(gradient[:4], one())
        if not state:
            # WHEN the optimizer makes its state THEN there is memory for it
            state += [torch.zeros_like(parameters) for _ in range(2)]
        held = scratch(48)
        state[0] += gradient
        del held
        del gradient, saved
    same(state[0][:4], one(5.0))
    # and later there are graphs if they fit as well
    assert bool(list(manager().nodes())) is fits
    if not fits:
        assert "the pool would need" in manager().owner.no_room
