"""Addresses that are made up for blocks of which only the size is known."""

from __future__ import annotations

import pytest

from memprof.profiler.views.export.made_up_addresses import MadeUpAddresses

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
    allocator = MadeUpAddresses()
    allocator.allocate(size)
    assert [s.nbytes for s in allocator.segments] == [segment]


def test_neighbours_in_address_of_two_segments_stay_apart() -> None:
    allocator = MadeUpAddresses()
    for address, _ in [allocator.allocate(20 * MIB) for _ in range(2)]:
        allocator.free(address)
    allocator.allocate(40 * MIB)
    assert [s.nbytes for s in allocator.segments] == [20 * MIB, 20 * MIB, 40 * MIB]
