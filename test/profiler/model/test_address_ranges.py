"""Ranges of addresses, and the allocator that is simulated in them."""

from __future__ import annotations

import pytest

from memprof.profiler.model.address_ranges import clipped, merged, shares, total
from memprof.profiler.model.simulated_allocator import SimulatedAllocator

MIB = 1 << 20


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB + 512, 12 * MIB),
    ],
)
def test_a_segment_is_as_large_as_the_allocator_makes_it(size: int, segment: int) -> None:
    allocator = SimulatedAllocator()
    allocator.allocate(size)
    assert [s.nbytes for s in allocator.segments] == [segment]


def test_neighbours_in_address_of_two_segments_stay_apart() -> None:
    allocator = SimulatedAllocator()
    for address, _ in [allocator.allocate(20 * MIB) for _ in range(2)]:
        allocator.free(address)
    allocator.allocate(40 * MIB)
    assert [s.nbytes for s in allocator.segments] == [20 * MIB, 20 * MIB, 40 * MIB]


def test_ranges() -> None:
    assert merged([(5, 9), (0, 3), (3, 4), (6, 7)]) == [(0, 4), (5, 9)]
    assert clipped([(0, 4), (5, 9)], [(2, 6), (8, 20)]) == [(2, 4), (5, 6), (8, 9)]
    assert total([(0, 4), (5, 9)]) == 8
    assert shares({1: [(0, 10)], 2: [(5, 7), (9, 12)], 7: []}) == {(1,): 7, (1, 2): 3, (2,): 2}
