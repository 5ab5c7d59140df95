"""Ranges of addresses."""

from __future__ import annotations

from memprof.profiler.model.address_ranges import clipped, merged, shares, total


def test_ranges() -> None:
    assert merged([(5, 9), (0, 3), (3, 4), (6, 7)]) == [(0, 4), (5, 9)]
    assert clipped([(0, 4), (5, 9)], [(2, 6), (8, 20)]) == [(2, 4), (5, 6), (8, 9)]
    assert total([(0, 4), (5, 9)]) == 8
    assert shares({1: [(0, 10)], 2: [(5, 7), (9, 12)], 7: []}) == {(1,): 7, (1, 2): 3, (2,): 2}
