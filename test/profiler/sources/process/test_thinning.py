"""Bounded for ever: which snapshots are dropped, and which never are."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from memprof.profiler.model import MemorySnapshot, SnapshotKind
from memprof.profiler.sources.process.recorder import thinned

from .records import snapshot


def series(count: int, limit: int) -> list[MemorySnapshot]:
    """As the tracker does it: with each snapshot."""
    kept: list[MemorySnapshot] = []
    for i in range(count):
        kept = thinned([*kept, snapshot(i * 10)], limit)
    return kept


def test_nothing_happens_up_to_the_limit() -> None:
    few = [snapshot(i) for i in range(10)]
    assert thinned(few, 10) == few


def test_a_long_run_stays_bounded_and_covers_everything() -> None:
    found = series(20_000, 200)
    assert 100 < len(found) <= 200
    assert (found[0].time_ns, found[-1].time_ns) == (0, 199_990)
    # Dense at the end, sparser the further back, and no hole: gaps grow with their age only.
    times = [s.time_ns for s in found]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    ages = [times[-1] - b + 10 for b in times[1:]]
    assert gaps[-20:] == [10] * 20
    assert max(gap / age for gap, age in zip(gaps[2:-50], ages[2:-50], strict=True)) < 0.5


def test_named_snapshots_stay_as_long_as_others_can_go() -> None:
    kept: list[MemorySnapshot] = []
    for i in range(1, 200):
        kind = SnapshotKind.PERIODIC if i % 10 else SnapshotKind.CHECKPOINT
        kept = thinned([*kept, snapshot(i, kind=kind)], 50)
    assert [s.time_ns for s in kept if s.kind is SnapshotKind.CHECKPOINT] == [*range(10, 200, 10)]
    named = [snapshot(i, kind=SnapshotKind.CHECKPOINT) for i in range(100)]
    assert thinned(named, 15) == named[-15:]


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=200), st.integers(10, 50))
def test_any_series(times: list[int], limit: int) -> None:
    found = [snapshot(t) for t in sorted(times)]
    kept = thinned(found, limit)
    assert len(kept) <= limit
    assert [s.time_ns for s in kept] == sorted(s.time_ns for s in kept)
    assert kept[-1] == found[-1]
