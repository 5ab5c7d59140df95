"""The search of ``memprof fit`` on functions whose answer is known."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, strategies as st

from memprof.what_if.fit.table import Needed, largest
from memprof.what_if.fit.tries import Tried

MEMORY = 1_000_000


class Steps:
    """A rising function of an index; it fits up to ``limit``, which is at least the memory."""

    def __init__(self, rises: list[int], limit: int = MEMORY) -> None:
        self._needed = [sum(rises[: i + 1]) for i in range(len(rises))]
        self._limit = limit
        self.tried: list[int] = []

    def probe(self, index: int) -> Tried:
        self.tried.append(index)
        needed = self._needed[index]
        # The allocator gives back what is free before it fails: no more than the device's.
        return Tried(fits=needed <= self._limit, needed=min(needed, MEMORY))

    @property
    def answer(self) -> int:
        return sum(n <= self._limit for n in self._needed) - 1


@given(
    st.lists(st.integers(0, 400_000), min_size=1, max_size=80),
    st.integers(MEMORY, 2 * MEMORY),
    st.integers(0, 79),
    st.none() | st.dictionaries(st.integers(0, 99), st.floats(-1e6, 2e6), min_size=2),
)
def test_the_answer_is_right_and_each_index_is_tried_once(
    rises: list[int], limit: int, second: int, guess: Needed | None
) -> None:
    steps = Steps(rises, limit)
    found, _ = largest(len(rises), MEMORY, steps.probe, second=second, guess=guess)
    assert found == steps.answer
    assert len(set(steps.tried)) == len(steps.tried)
    # What is reported was run, and so was the next larger one.
    assert found == -1 or found in steps.tried
    assert found == len(rises) - 1 or found + 1 in steps.tried
    assert len(steps.tried) <= 3 * math.ceil(math.log2(len(rises) + 1))


def test_a_straight_line_takes_four_tries() -> None:
    steps = Steps([30_000 + 7_919] + [7_919] * 255)
    found, _ = largest(256, MEMORY, steps.probe)
    assert found == steps.answer == (MEMORY - 30_000) // 7_919 - 1
    assert len(steps.tried) == 4


def test_a_guess_from_another_device_takes_two() -> None:
    steps = Steps([30_000 + 7_919] + [7_919] * 255)
    guess = {3: 30_000 + 4 * 7_919, 9: 30_000 + 10 * 7_919}
    found, _ = largest(256, MEMORY, steps.probe, guess=guess)
    assert found == steps.answer
    assert len(steps.tried) == 2


def test_a_range_that_fits_whole_takes_three() -> None:
    steps = Steps([30_000] + [10] * 255)
    found, _ = largest(256, MEMORY, steps.probe)
    assert found == 255
    assert steps.tried == [0, 3, 255]


@given(st.integers(0, 150), st.integers(1_000, 9_000), st.integers(0, 150), st.booleans())
def test_what_fragmentation_takes_costs_few_tries(
    thousandths: int, slope: int, more: int, known: bool
) -> None:
    # GIVEN a device of which fragmentation takes a share that no line tells, and requests that fail
    # and would have taken some more than what was missing in all
    limit = MEMORY - thousandths * MEMORY // 1_000
    steps = Steps([30_000 + slope] + [slope] * 2_000, limit)

    def probe(index: int) -> Tried:
        found = steps.probe(index)
        over = 30_000 + slope * (index + 1) - limit
        if known and not found.fits:
            return msgspec.structs.replace(found, short=over + more * 1_000)
        return found

    # WHEN the largest is looked for THEN that takes few tries
    found, _ = largest(2_001, MEMORY, probe)
    assert found == steps.answer
    assert len(steps.tried) <= 16


@pytest.mark.parametrize(
    ("base", "first", "slope", "bend", "largest_that_fits", "short"),
    [
        # GPT-2 124M on 40 GB: from batch 8 on the backward is the fullest, not the optimizer's
        # step, and a tenth of the device lies in pieces of which none holds the logits' gradient.
        (2_904, 756, 822, 8, 38, 6_000),
        # ResNet-50 on 16 GB: the forward fails, long before what would be the peak.
        (822, 39.4, 42.7, 30, 333, 45),
        (822, 39.4, 42.7, 30, 946, 45),
    ],
)
def test_programs_as_they_are_take_ten_tries(
    base: float, first: float, slope: float, bend: int, largest_that_fits: int, short: int
) -> None:
    # GIVEN what a program needs in MiB, by its batch
    def needed(batch: int) -> float:
        return base + first * min(batch, bend) + slope * max(batch - bend, 0)

    memory = 40_343 if largest_that_fits == 38 else needed(largest_that_fits) + 70
    tried: list[int] = []

    def probe(index: int) -> Tried:
        tried.append(index)
        if index + 1 <= largest_that_fits:
            return Tried(fits=True, needed=int(needed(index + 1)))
        return Tried(fits=False, needed=0, short=short)

    # WHEN the largest batch is looked for THEN it takes ten tries at most
    found, _ = largest(4_096, int(memory), probe)
    assert found + 1 == largest_that_fits
    assert len(tried) <= 10
