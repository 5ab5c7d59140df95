"""The pool is given back in the midst of things: no call is lost, and graphs come back."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor

from memprof.cudagraph_trees import configure
from memprof.cudagraph_trees.device.protocol import Pool
from memprof.cudagraph_trees.manager import ExecutionState
from memprof.profiler.model import LedgerKind

from .support import graphed, manager, next_step, same

pytestmark = pytest.mark.simgpu

MIB = 1 << 20
N = 1 << 10


def ones(value: float = 1.0) -> Tensor:
    return torch.full((N,), float(value), device="cuda")


class Cached:
    """Returns ``x * 3``, and its first call keeps a tensor of the pool for good."""

    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def __call__(self, x: Tensor) -> list[Tensor]:
        if not self.kept:
            self.kept.append(x + 1)
        return [x * 3]


def reasons(kind: LedgerKind) -> dict[str, int]:
    return {e.reason: e.count for e in manager().entries() if e.kind is kind}


@pytest.mark.parametrize("failures", [0, 1, 4])
def test_there_is_no_memory_for_another_pool(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN no memory for another pool so many times
    configure(pool_initial=4 * MIB)
    f = graphed(lambda x: [x * 2], [ones()])
    g = graphed(Cached(), [ones()])
    f([ones()])
    asked: list[int] = []
    create_pool = manager().device.create_pool

    def create(nbytes: int = 0) -> Pool:
        asked.append(nbytes)
        if len(asked) <= failures:
            raise torch.OutOfMemoryError("no memory for a pool")
        return create_pool(nbytes)

    monkeypatch.setattr(manager().device, "create_pool", create)
    # WHEN a call that has its result leaves the pool
    for i in range(8):
        next_step()
        (a,) = f([ones(i)])
        (b,) = g([a])
        # THEN all results are right
        same(a, ones(2 * i))
        same(b, ones(6 * i))
        del a, b
    # AND what the pool would begin with is done without, if need be
    assert asked == [4 * MIB, 0, 4 * MIB, 0, 4 * MIB][: failures + 1]
    # AND meanwhile calls run without a graph
    skips = reasons(LedgerKind.SKIP)
    assert skips.get("there is no pool", 0) == (1 if failures == 4 else 0)
    # AND both are replayed at last
    assert not manager().pool.damaged
    assert manager().path_state is ExecutionState.EXECUTION
    assert len(list(manager().nodes())) == 2


def test_forwards_without_a_backward_are_recorded_again() -> None:
    # GIVEN forwards, say an evaluation with grad mode on, whose backward never comes
    f = graphed(lambda x: [x * 2], [ones()], is_inference=False, compile_id="0/0")
    g = graphed(Cached(), [ones()], is_inference=False, compile_id="1/0")
    held: list[Tensor] = []
    for i in range(10):
        next_step()
        (a,) = f([ones(i)])
        # WHEN the pool is given back in the first step, of which something is held for long
        (b,) = g([a])
        if i == 0:
            held += [a, b]
        elif i == 5:
            same(held[0], ones(0))
            held.clear()
        same(a, ones(2 * i))
        same(b, ones(6 * i))
        del a, b
        # THEN nothing is recorded while it is
        assert i > 5 or not list(manager().nodes())
    # AND from then on both are recorded, and replayed
    assert not manager().resting
    assert [n.replays for n in manager().nodes()] == [3, 2]


def test_a_function_that_dies_in_such_a_step_does_not_end_it() -> None:
    f = graphed(lambda x: [x * 2], [ones()])
    g = graphed(Cached(), [ones()])
    h = graphed(lambda x: [x + 1], [ones()])
    next_step()
    h([ones()])
    next_step()
    # GIVEN a step in which the pool is given back
    (a,) = f([ones()])
    (b,) = g([a])
    # WHEN a function dies, with which the last recording might have gone
    del f
    gc.collect()
    h([ones()])
    # THEN nothing is recorded in that step all the same
    assert list(manager().nodes()) == []
    assert list(reasons(LedgerKind.SKIP)) == ["the pool was given back in this step"]
    same(b, ones(6))
