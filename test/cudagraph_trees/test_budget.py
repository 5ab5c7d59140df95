"""A limit on the pool, and its initial size."""

from __future__ import annotations

import pytest
import torch

from memprof.cudagraph_trees.settings import configure, parse_bytes
from memprof.profiler.model import LedgerKind

from .support import graphed, manager, next_step, pool_segments, roots, same

pytestmark = pytest.mark.simgpu

MIB = 1 << 20


def reserved() -> int:
    return sum(s["total_size"] for s in pool_segments())


def run(f, n: int) -> None:  # type: ignore[no-untyped-def]
    next_step()
    (y,) = f([n, torch.full((n,), 3.0, device="cuda")])
    same(y[:2], torch.full((2,), 7.0))


def test_sizes_that_do_not_come_back_are_dropped() -> None:
    # GIVEN a function of many sizes; each needs a little more than the last
    configure(pool_budget="64MiB")
    f = graphed(lambda n, x: [x * 2 + 1], [1, torch.ones(1, device="cuda")])
    for i in range(1, 13):
        for _ in range(3):
            run(f, i * MIB)
    # THEN the pool has not grown with the number of sizes
    evicted = [e for e in manager().entries() if e.kind is LedgerKind.EVICTION]
    assert evicted
    assert "budget is 67108864" in evicted[0].reason
    # and what fits is graphed again
    for _ in range(4):
        run(f, MIB)
    assert reserved() <= 64 * MIB
    assert manager().path.node in roots()


def test_a_working_set_that_does_not_fit_runs_without_graphs() -> None:
    configure(pool_budget=16 * MIB)
    f = graphed(lambda n, x: [x * 2 + 1], [1, torch.ones(1, device="cuda")])
    g = graphed(lambda x: [x + 1], [torch.ones(4, device="cuda")])
    for _ in range(12):
        run(f, 8 * MIB)  # 32 MiB and more
        (y,) = g([torch.ones(4, device="cuda")])
        same(y, torch.full((4,), 2.0))
        del y
    reasons = [e.reason for e in manager().entries() if e.kind is LedgerKind.SKIP]
    assert any("does not fit" in r for r in reasons)
    # Nothing has failed, so nothing says so.
    assert "it did not fit the pool's budget before" in reasons
    assert not any("failed" in r for r in reasons)
    assert reserved() <= 16 * MIB
    # The small function still has its graph.
    assert [r.replays > 3 for r in roots()] == [True]


def test_a_pool_starts_with_one_segment() -> None:
    configure(pool_initial="32MiB")
    f = graphed(lambda x: [x * 2 + 1], [torch.ones(4, device="cuda")])
    for _ in range(3):
        next_step()
        f([torch.ones(2 * MIB, device="cuda")])
    (segment,) = pool_segments()
    assert segment["total_size"] == 32 * MIB


@pytest.mark.parametrize(
    ("text", "value"), [("8GiB", 8 << 30), ("512 MB", 512 * 10**6), ("17", 17), (5, 5)]
)
def test_bytes_in_words(text: str | int, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["8 GiBs", "", "GiB", -1, True, "1e9"])
def test_what_is_no_number_of_bytes(text: str | int) -> None:
    with pytest.raises(ValueError, match="is no number of bytes"):
        parse_bytes(text)
