"""The pool is given back in the midst of things: no call is lost, and graphs come back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from memprof.cudagraph_trees.device.cuda import CudaPool, GeneratorStates
from memprof.cudagraph_trees.record import pool_owner
from memprof.cudagraph_trees.record.recovery import InputBackup
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.cudagraph_trees.torch_options import TreeOptions
from memprof.profiler.model import LedgerKind

from .support import graphed, in_steps, manager, same

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


@pytest.mark.parametrize("failures", [0, 2])
def test_there_is_no_memory_for_another_pool(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN no memory for another pool so many times
    options = TreeOptions({"cudagraph_initial_mempool_allocation_gb": 4 / 1024})
    f = graphed(lambda x: [x * 2], [ones()], torch_options=options)
    g = graphed(Cached(), [ones()])
    f([ones()])
    asked: list[int] = []

    def create(index: int, nbytes: int) -> CudaPool:
        asked.append(nbytes)
        if len(asked) <= failures:
            raise torch.OutOfMemoryError("no memory for a pool")
        return CudaPool(index, nbytes)

    monkeypatch.setattr(pool_owner, "CudaPool", create)
    # WHEN a call that has its result leaves the pool
    for i in in_steps(range(8)):
        (a,) = f([ones(i)])
        (b,) = g([a])
        # THEN all results are right
        same(a, ones(2 * i))
        same(b, ones(6 * i))
        del a, b
    # AND it is asked for until there is one
    assert asked == [4 * MIB] * (failures + 1)
    # AND meanwhile calls run without a graph
    skips = {e.reason: e.count for e in manager().entries() if e.kind is LedgerKind.SKIP}
    assert skips.get("there is no pool", 0) == (1 if failures else 0)
    # AND both are replayed at last
    assert not manager().pool.damaged
    assert manager().path.state is ExecutionState.EXECUTION
    assert len(list(manager().nodes())) == 2


def test_forwards_without_a_backward_are_recorded_again() -> None:
    # GIVEN forwards, say an evaluation with grad mode on, whose backward never comes
    f = graphed(lambda x: [x * 2], [ones()], is_inference=False, compile_id="0/0")
    g = graphed(Cached(), [ones()], is_inference=False, compile_id="1/0")
    held: list[Tensor] = []
    for i in in_steps(range(10)):
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
    # THEN both are recorded, and replayed, all the same
    assert {n.wrapped_function.label for n in manager().nodes() if n.replays} == {
        "0/0 forward",
        "1/0 forward",
    }


def test_the_rest_of_a_step_whose_pool_a_capture_has_spoilt() -> None:
    # GIVEN a function whose capture fails and spoils the pool, and one that reads in place what
    # comes from that pool
    f = graphed(lambda x: [x + 1], [ones()])

    def spoils(x: Tensor) -> list[Tensor]:
        if torch.cuda.is_current_stream_capturing():
            manager().pool.damaged = True
            raise NotImplementedError
        return [x * 2]

    g = graphed(spoils, [ones()])
    h = graphed(lambda w, x: [w + x], [ones(), ones()], (0,))
    for i in in_steps(range(8)):
        (a,) = f([ones(i)])
        (b,) = g([a])
        (c,) = h([a, b])
        same(c, ones(3.0 * (i + 1)))
        del a, b, c
    # THEN the others are recorded in another pool
    replayed = {n.wrapped_function.label for n in manager().nodes() if n.replays}
    assert replayed == {"inference function 0", "inference function 2"}


@pytest.mark.parametrize("what", ["inputs", "generators", "generators, interrupted"])
def test_an_error_reaches_the_user_though_its_call_cannot_be_made_again(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a warm-up that fails and spoils the pool
    error = KeyboardInterrupt if "interrupted" in what else ValueError
    failing = [True]

    def foo(x: Tensor) -> list[Tensor]:
        if failing:
            manager().pool.damaged = True
            raise error("mine")
        return [x + 1]

    def lost(*args: object) -> None:
        raise RuntimeError("lost")

    f = graphed(foo, [ones()])
    # WHEN what the call needs to be made again cannot be had, which raises something else
    with monkeypatch.context() as m:
        if what == "inputs":
            m.setattr(InputBackup, "_find_after_warm_up", lost)
        else:
            m.setattr(GeneratorStates, "restore", lost)
        with pytest.raises(error, match="mine") as e:
            f([ones()])
    # THEN the user hears of the first error
    if error is ValueError:
        assert "lost" in str(getattr(e.value, "__notes__", "lost"))
    # AND there is another pool
    assert not manager().pool.damaged
    failing.clear()
    for i in in_steps(range(4)):
        (y,) = f([ones(i)])
        same(y, ones(i + 1))
        del y
    assert manager().path.state is ExecutionState.EXECUTION


def test_results_that_are_there_are_returned_though_the_pool_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails_once(x: Tensor) -> list[Tensor]:
        runs.append(1)
        if len(runs) == 1:
            raise ValueError
        return [x + 1]

    def lost(*args: object) -> None:
        raise RuntimeError("lost")

    runs: list[int] = []
    f = graphed(fails_once, [ones()])
    with monkeypatch.context() as m:
        m.setattr(pool_owner, "memory_kept", lost)
        (y,) = f([ones()])
    same(y, ones(2))
    # AND that pool is not used any more
    before = manager().pool
    for i in in_steps(range(4)):
        (y,) = f([ones(i)])
        same(y, ones(i + 1))
        del y
    assert manager().pool is not before
    assert manager().path.state is ExecutionState.EXECUTION
