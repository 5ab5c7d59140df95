"""Functions that keep a tensor of the pool: who is blamed, and who goes on with graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from memprof.cudagraph_trees.record.pool_check import check_pool, memory_kept
from memprof.cudagraph_trees.replay.errors import UntrackedMemory
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.profiler.model import LedgerEntry, LedgerKind

from .support import graphed, in_steps, live_blocks, manager, same

pytestmark = pytest.mark.simgpu

N = 1 << 10


def ones(value: float = 1.0) -> Tensor:
    return torch.full((N,), float(value), device="cuda")


class Keeper:
    """Returns ``2 * (x + 1)`` and keeps ``x + 1``.

    Args:
        when: whether to keep it, asked in each call.
    """

    def __init__(self, when: Callable[[], bool]) -> None:
        self.when = when
        self.kept: list[Tensor] = []

    def __call__(self, x: Tensor) -> list[Tensor]:
        y = x + 1
        if self.when():
            self.kept.append(y)
        return [y * 2]


def failures() -> list[LedgerEntry]:
    return [e for e in manager().entries() if e.kind is LedgerKind.TREE_FAILURE]


def run(keeper: Keeper, first: str, steps: int = 8) -> tuple[object, object]:
    """Calls it and an innocent function in each step and looks at all values.

    Returns:
        Both functions, without which there is no manager.
    """
    a = graphed(keeper, [ones()], compile_id="keeper")
    b = graphed(lambda x: [x - 1, x * 3], [ones()], compile_id="innocent")
    seen = []
    for i in in_steps(range(steps)):
        x = ones(i)
        if first == "keeper":
            (y,) = a([x])
            c, d = b([y])
        else:
            c, d = b([x])
            (y,) = a([c])
        seen.append(torch.stack([t[0] for t in (y, c, d)]))
        del y, c, d
    expected = (
        [(2.0 * (i + 1), 2.0 * i + 1, 6.0 * (i + 1)) for i in range(steps)]
        if first == "keeper"
        else [(2.0 * i, i - 1.0, 3.0 * i) for i in range(steps)]
    )
    same(torch.stack(seen), torch.tensor(expected))
    return a, b


def recorded() -> set[str]:
    return {n.wrapped_function.label for n in manager().nodes()}


@pytest.mark.parametrize("first", ["keeper", "innocent"])
@pytest.mark.parametrize("where", ["warm-up", "recording"])
def test_the_one_that_keeps_memory_each_time_runs_without_graphs(where: str, first: str) -> None:
    capturing = torch.cuda.is_current_stream_capturing
    keeper = Keeper(lambda: capturing() == (where == "recording"))
    functions = run(keeper, first)
    # THEN it failed twice, and it alone; the second time it is known where the memory comes from
    assert {e.tree.function for e in failures() if e.tree} == {"keeper inference"}
    assert sum(e.count for e in failures()) == 2
    assert all("not tracked as outputs" in e.reason for e in failures())
    assert any("bytes at " in e.reason and f"{__file__}:" in e.reason for e in failures())
    assert len(functions) == 2
    # AND the other one is replayed
    assert recorded() == {"innocent inference"}
    # AND nothing has written over what was kept
    for t in keeper.kept:
        same(t, t[:1].expand(N))
    keeper.kept.clear()


def test_one_that_fills_a_cache_is_recorded() -> None:
    # GIVEN a function that keeps what it made in its first call, and uses it in all
    cache: list[Tensor] = []

    def cached(x: Tensor) -> list[Tensor]:
        if not cache:
            cache.append(torch.full((N,), 5.0, device="cuda"))
        return [x + cache[0]]

    f = graphed(cached, [ones()])
    g = graphed(lambda x: [x * 2], [ones()])
    for i in in_steps(range(8)):
        (y,) = f([ones(i)])
        (z,) = g([y])
        same(z, ones(2.0 * (i + 5)))
        del y, z
    # THEN it is found, and once: both are replayed in another pool
    assert [e.count for e in failures()] == [1]
    assert manager().path.state is ExecutionState.EXECUTION
    assert len(recorded()) == 2
    assert live_blocks() == 1
    cache.clear()


def test_outputs_of_the_step_outlive_the_pool_that_is_left() -> None:
    keeper = Keeper(lambda: True)
    f = graphed(lambda x: [x + 1], [ones()])
    for i in in_steps(range(4)):
        (y,) = f([ones(i)])
        if i == 3:
            a = graphed(keeper, [ones()])
            (z,) = a([y])
            # WHEN others are recorded in the new one
            (w,) = f([z])
            same(y, ones(i + 1))
            same(z, ones(2.0 * (i + 2)))
            same(w, ones(2.0 * (i + 2) + 1))
            del z, w
        del y
    keeper.kept.clear()


def test_a_tensor_in_a_reference_cycle_is_not_kept() -> None:
    def cycle(x: Tensor) -> list[Tensor]:
        ring: list[object] = [x + 1]
        ring.append(ring)
        return [x * 2]

    f = graphed(cycle, [ones()])
    for i in in_steps(range(5)):
        (y,) = f([ones(i)])
        same(y, ones(2.0 * i))
        del y
    assert failures() == []
    assert manager().path.state is ExecutionState.EXECUTION


def test_the_check_itself() -> None:
    f = graphed(lambda x: [x + 1], [ones()])
    (y,) = f([ones()])
    pool = manager().pool
    address = y.untyped_storage().data_ptr()
    check_pool(pool, [address])
    assert memory_kept(pool, [address]) == ""
    assert hex(address) in memory_kept(pool, [])
    # What is known and gone is the recording's business, not a sign of memory that was kept.
    assert memory_kept(pool, [address, 64]) == ""
    with pytest.raises(UntrackedMemory, match="should be allocated"):
        check_pool(pool, [address, 64])
    with pytest.raises(UntrackedMemory, match="not tracked as outputs"):
        check_pool(pool, [])
