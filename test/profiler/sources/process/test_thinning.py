"""Bounded for ever: what is dropped and merged, and what never is."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from memprof.profiler.model import MemorySnapshot, SnapshotKind
from memprof.profiler.sources.process.thinning import thin_snapshots

from .records import snapshot


def series(count: int, limit: int) -> list[MemorySnapshot]:
    """As the tracker does it: thin whenever there are an eighth more than allowed."""
    kept: list[MemorySnapshot] = []
    for i in range(count):
        kept.append(snapshot(i * 10, highest=(i * 7919) % 1000))
        if len(kept) > limit + limit // 8:
            kept = thin_snapshots(kept, limit)
    return thin_snapshots(kept, limit)


def test_nothing_happens_up_to_the_limit() -> None:
    few = [snapshot(i) for i in range(10)]
    assert thin_snapshots(few, 10) == few


def test_a_merged_snapshot_is_the_later_one_with_the_higher_peak() -> None:
    three = [snapshot(0), snapshot(10, highest=9), snapshot(20, highest=4)]
    thinned = thin_snapshots(three, 2)
    assert [s.time_ns for s in thinned] == [0, 20]
    assert (thinned[1].merged, thinned[1].total_bytes) == (1, 4)
    assert thinned[1].devices["cpu"].highest_bytes == 9


def test_a_long_run_stays_bounded_and_covers_everything() -> None:
    thinned = series(20_000, 200)
    assert len(thinned) == 200
    assert (thinned[0].time_ns, thinned[-1].time_ns) == (0, 199_990)
    assert sum(s.merged + 1 for s in thinned) == 20_000
    # The highest that was ever seen is still there.
    highest = max(s.devices["cpu"].highest_bytes or 0 for s in thinned)
    assert highest == max((i * 7919) % 1000 for i in range(20_000))
    # Dense at the end, sparser the further back, and no hole: gaps grow with their age only.
    times = [s.time_ns for s in thinned]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    ages = [times[-1] - b + 10 for b in times[1:]]
    assert gaps[-20:] == [10] * 20
    assert max(gap / age for gap, age in zip(gaps[:-50], ages[:-50], strict=True)) < 0.3


def test_named_snapshots_are_merged_last() -> None:
    mixed = [
        snapshot(i, kind=SnapshotKind.CHECKPOINT if i % 10 == 0 else SnapshotKind.PERIODIC)
        for i in range(100)
    ]
    thinned = thin_snapshots(mixed, 15)
    assert sum(s.kind is SnapshotKind.CHECKPOINT for s in thinned) == 10
    only = [snapshot(i, kind=SnapshotKind.CHECKPOINT) for i in range(100)]
    assert len(thin_snapshots(only, 15)) == 15


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=200), st.integers(2, 50))
def test_any_series(times: list[int], limit: int) -> None:
    found = [snapshot(t, highest=t % 17) for t in sorted(times)]
    thinned = thin_snapshots(found, limit)
    assert len(thinned) == min(limit, len(found))
    assert sum(s.merged + 1 for s in thinned) == len(found)
    assert [s.time_ns for s in thinned] == sorted(s.time_ns for s in thinned)
    assert max(s.devices["cpu"].highest_bytes or 0 for s in thinned) == max(t % 17 for t in times)
