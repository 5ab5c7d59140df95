"""Serving a pool's requests again: sizes of segments, and ranges.

``test_random_captures_add_up_and_cost_what_they_cost`` holds the rest against torch's allocator.
"""

from __future__ import annotations

import pytest

from memprof.profiler.model.address_ranges import clipped, merged, shares, total
from memprof.profiler.model.simulated_allocator import SimulatedAllocator
from memprof.profiler.sources.allocator.captures import PoolRequest, reserved_without
from memprof.profiler.sources.allocator.history import AllocatorBlock

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
    block = AllocatorBlock(0, size, size, 1, 0, ())
    assert reserved_without([PoolRequest(block, size, 0, 1)]) == segment


def test_neighbours_in_address_of_two_segments_stay_apart() -> None:
    allocator = SimulatedAllocator()
    allocator.add_segment(0, 20 * MIB)
    allocator.add_segment(20 * MIB, 20 * MIB)
    for address, _ in [allocator.allocate(20 * MIB) for _ in range(2)]:
        allocator.free(address)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 80 * MIB


def test_ranges() -> None:
    assert merged([(5, 9), (0, 3), (3, 4), (6, 7)]) == [(0, 4), (5, 9)]
    assert clipped([(0, 4), (5, 9)], [(2, 6), (8, 20)]) == [(2, 4), (5, 6), (8, 9)]
    assert total([(0, 4), (5, 9)]) == 8
    assert shares({1: [(0, 10)], 2: [(5, 7), (9, 12)], 7: []}) == {(1,): 7, (1, 2): 3, (2,): 2}
