"""Serving a pool's requests again: segments, splits, merges, and what is left out."""

from __future__ import annotations

import pytest

from memprof.profiler.model.address_ranges import clipped, merged, shares, total
from memprof.profiler.model.simulated_allocator import SimulatedAllocator
from memprof.profiler.sources.allocator.captures import PoolRequest, reserved_without
from memprof.profiler.sources.allocator.history import AllocatorBlock

MIB = 1 << 20


def request(
    size: int, begin: int, end: int | None = None, capture: int = 1, stream: int = 0
) -> PoolRequest:
    block = AllocatorBlock(0, size, size, begin, 0, (), ended=end, stream=stream)
    return PoolRequest(block, size, 1000 * MIB * begin, capture)


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
    assert reserved_without([request(size, 1)]) == segment


def test_what_was_let_go_of_is_one_again() -> None:
    # GIVEN three blocks of one segment, let go of out of order
    steps = [request(6 * MIB, i, end) for i, end in ((1, 6), (2, 4), (3, 5))]
    # THEN 18 of its 20 MiB are there for one request, and more are not
    assert reserved_without([*steps, request(18 * MIB, 7)]) == 20 * MIB
    assert reserved_without([*steps, request(22 * MIB, 7)]) == (20 + 22) * MIB
    # AND before the middle one goes they are not one
    assert reserved_without([*steps, request(18 * MIB, 4)]) == (20 + 18) * MIB


def test_a_block_of_another_stream_or_size_class_is_not_taken() -> None:
    large = request(30 * MIB, 1, 2)
    assert reserved_without([large, request(8 * MIB, 3)]) == 30 * MIB
    assert reserved_without([large, request(8 * MIB, 3, stream=1)]) == 50 * MIB
    assert reserved_without([large, request(512, 3)]) == 32 * MIB


def test_remainders_of_up_to_1_mib_are_not_cut_off() -> None:
    first = request(12 * MIB, 1, 2)
    second = request(11 * MIB, 3)
    assert reserved_without([first, second, request(MIB + 512, 4)]) == 32 * MIB
    assert reserved_without([first, request(9 * MIB, 3), request(MIB + 512, 4)]) == 12 * MIB


def test_neighbours_in_address_of_two_segments_stay_apart() -> None:
    allocator = SimulatedAllocator()
    allocator.add_segment(0, 20 * MIB)
    allocator.add_segment(20 * MIB, 20 * MIB)
    for address, _ in [allocator.allocate(20 * MIB) for _ in range(2)]:
        allocator.free(address)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 80 * MIB


def test_a_capture_that_is_left_out_leaves_its_place_to_the_next() -> None:
    steps = [
        request(40 * MIB, 1, 2, capture=1),
        request(30 * MIB, 3, 4, capture=2),
        request(20 * MIB, 5, None, capture=3),
    ]
    assert reserved_without(steps) == 40 * MIB
    assert reserved_without(steps, {1}) == 30 * MIB
    assert reserved_without(steps, {2}) == 40 * MIB
    assert reserved_without(steps, {1, 2}) == 20 * MIB


def test_ranges() -> None:
    assert merged([(5, 9), (0, 3), (3, 4), (6, 7)]) == [(0, 4), (5, 9)]
    assert clipped([(0, 4), (5, 9)], [(2, 6), (8, 20)]) == [(2, 4), (5, 6), (8, 9)]
    assert total([(0, 4), (5, 9)]) == 8
    assert shares({1: [(0, 10)], 2: [(5, 7), (9, 12)], 7: []}) == {(1,): 7, (1, 2): 3, (2,): 2}
