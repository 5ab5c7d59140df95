"""Segments by address."""

from __future__ import annotations

from memprof.profiler.sources.allocator.segments import Segments

MIB = 1 << 20


def test_ranges_of_two_segments_are_never_one() -> None:
    found = Segments()
    for at in (0, 2):
        found.grow(at * MIB, 2 * MIB, False)
    assert sorted(found.free) == [(0, 2 * MIB), (2 * MIB, 2 * MIB)]
    assert found.free.take(2 * MIB) == 2 * MIB
    found.give(2 * MIB, 2 * MIB)
    assert sorted(found.free) == [(0, 2 * MIB), (2 * MIB, 2 * MIB)]
    # Those of growing ones, with a hole that is filled, are.
    for at in (8, 12, 10):
        found.grow(at * MIB, 2 * MIB, True)
    assert sorted(found.free)[2:] == [(8 * MIB, 6 * MIB)]
