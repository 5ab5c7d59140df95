"""When a function dies, all that the trees have of it goes, whoever else uses the pool.

Functions: torch itself (2.11 to 2.15) keeps what it compiled until ``torch.compiler.reset()``,
whether or not anybody can still call it.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from memprof.cudagraph_trees.replay.spec import FunctionSpec
from memprof.profiler.model import LedgerKind

from .support import graphed, in_steps, manager, pool_segments, same

pytestmark = pytest.mark.simgpu

MIB = 1 << 20
N = 2 * MIB  # elements: 8 MiB


class Model:
    """A boxed callable with a constant, as compiled code has them."""

    def __init__(self) -> None:
        self.constant = torch.full((N,), 3.0, device="cuda")

    def __call__(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x * self.constant[:4], self.constant]


def run(f: Callable[[list[Any]], list[Any]], times: int) -> None:
    for _ in in_steps(range(times)):
        out = f([torch.ones(4, device="cuda")])
        same(out[0], torch.full((4,), 3.0))
        del out


def other() -> Callable[[list[Any]], list[Any]]:
    """Another function, which keeps the manager, and was replayed twice."""
    g = graphed(lambda x: [x + 2], [torch.ones(4, device="cuda")])
    run(g, 4)
    return g


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_model_recordings_and_constants_go_with_their_function(calls: int) -> None:
    # GIVEN a function that was warmed up, recorded or replayed, beside another one
    g = other()
    before = torch.cuda.memory_allocated()
    model = Model()
    f = graphed(
        model, [torch.ones(4, device="cuda")], constants=(model.constant,), compile_id="5/0"
    )
    run(f, calls)
    gone = weakref.ref(model)
    # WHEN it dies
    del f, model
    gc.collect()
    # THEN so do its code and its constants, at once
    assert gone() is None
    # (torch 2.13 has two small tensors for each graph, for its generator)
    assert torch.cuda.memory_allocated() - before in (0, 1024)
    # and with the next call that is no replay the rest of it
    run(graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")]), 1)
    assert torch.cuda.memory_allocated() == before
    assert {n.wrapped_function.label for n in manager().nodes()} == {"inference function 0"}
    assert all(f.compile_id != "5/0" for f in manager().functions)
    # and the other one is replayed as before.
    run(g, 2)
    assert [n.replays for n in manager().nodes()] == [4]


def test_a_function_that_dies_while_its_output_is_held() -> None:
    g = other()
    f = graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")])
    h = graphed(lambda y: [y + 1], [torch.ones(4, device="cuda")])
    for _ in in_steps(range(4)):
        (y,) = f([torch.ones(4, device="cuda")])
        (z,) = h([y])
    # WHEN the function dies whose recording is above that of another in the path that runs
    del f
    gc.collect()
    # THEN outputs of the step are what they were, and the step goes on
    same(y, torch.full((4,), 3.0))
    (w,) = h([z])
    same(w, torch.full((4,), 5.0))
    same(y, torch.full((4,), 3.0))
    del w
    # and the use of an output of a former step raises, and says whose it was
    run_other(g, 3)
    with pytest.raises(RuntimeError, match="inference function 1"):
        y + 1
    assert "inference function 1" not in {n.wrapped_function.label for n in manager().nodes()}


def run_other(g: Callable[[list[Any]], list[Any]], times: int) -> None:
    for _ in in_steps(range(times)):
        (y,) = g([torch.ones(4, device="cuda")])
        same(y, torch.full((4,), 3.0))
        del y
    run(graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")]), 1)


def test_a_pool_whose_recordings_are_all_gone_is_given_back() -> None:
    # GIVEN a function with large buffers, and another one that was not recorded yet
    f = graphed(
        lambda x: [(x * torch.ones(N, device="cuda")).sum()[None].expand(4)],
        [torch.ones(1, device="cuda")],
    )
    g = graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")])
    run(g, 1)
    for _ in in_steps(range(4)):
        f([torch.ones(1, device="cuda")])
    assert sum(s["total_size"] for s in pool_segments()) >= 8 * MIB
    # WHEN it dies, and the other one is called again
    del f
    gc.collect()
    run(g, 4)
    # THEN the pool has what that one needs
    assert sum(s["total_size"] for s in pool_segments()) <= 2 * MIB
    assert [n.replays for n in manager().nodes()] == [3]


def test_a_function_that_dies_while_others_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    g = other()
    f = [graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")]) for _ in range(2)]
    for function in f:
        run(function, 2)
    forget = manager().policy.moves.forget

    def forget_and_collect(function: FunctionSpec) -> None:
        f.clear()  # the second dies, if it has not died
        gc.collect()
        forget(function)

    # GIVEN one that died, WHEN another one dies while that is buried
    monkeypatch.setattr(manager().policy.moves, "forget", forget_and_collect)
    del f[0], function
    gc.collect()
    for _ in range(2):
        run(graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")]), 1)
    # THEN nothing is known of either
    assert {f.number for f in manager().functions} & {1, 2} == set()
    run(g, 1)


def test_a_function_that_dies_while_recordings_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, quick_collections: None
) -> None:
    # GIVEN a recorded function in a cycle that nobody holds
    g = other()
    f = graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")])
    run(f, 3)
    dead: list[object] = [f]
    dead.append(dead)
    gc.disable()
    del dead, f
    nodes: list[int] = []
    look = manager().policy.moves.look

    def look_meanwhile(*args: Any) -> Any:
        gc.collect()
        nodes.append(len(list(manager().nodes())))
        return look(*args)

    # WHEN the collector finds it in the midst of a look at all recordings
    monkeypatch.setattr(manager().policy.moves, "look", look_meanwhile)
    try:
        run(graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")]), 1)
    finally:
        gc.enable()
    # THEN its recording goes later
    assert nodes == [2]
    assert len(list(manager().nodes())) == 1
    run(g, 1)


def test_evictions_are_in_the_ledger() -> None:
    g = other()
    f = graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")])
    run(f, 4)
    del f
    gc.collect()
    run_other(g, 1)
    (entry,) = [e for e in manager().entries() if e.kind is LedgerKind.EVICTION]
    assert entry.reason == "its function is gone"
    replayed = [e.count for e in manager().entries() if e.kind is LedgerKind.REPLAY]
    assert sorted(replayed) == [2, 3]


def test_replays_of_one_that_was_recorded_after_itself_are_counted_once() -> None:
    # GIVEN a function that is called twice in each step, so that one recording is below the other
    g = other()
    f = graphed(lambda x: [x * 3], [torch.ones(4, device="cuda")])
    for _ in in_steps(range(5)):
        first = f([torch.ones(4, device="cuda")])
        second = f([torch.ones(4, device="cuda")])
        del first, second
    counts = [e.count for e in manager().entries() if e.kind is LedgerKind.REPLAY]
    # WHEN it dies, and both are dropped
    del f
    gc.collect()
    run_other(g, 1)
    # THEN the ledger says the same of them as before, and of the other one a replay more
    after = [e.count for e in manager().entries() if e.kind is LedgerKind.REPLAY]
    assert sum(after) == sum(counts) + 1
    assert len(after) == len(counts) == 3
