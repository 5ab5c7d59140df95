"""The search of ``memprof fit`` on functions whose answer is known."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from memprof.fit.search import Line, Try, largest

MEMORY = 1_000_000


class Steps:
    """A rising function of an index; it fits up to ``limit``, which is at least the memory."""

    def __init__(self, rises: list[int], limit: int = MEMORY) -> None:
        self._needed = [sum(rises[: i + 1]) for i in range(len(rises))]
        self._limit = limit
        self.tried: list[int] = []

    def probe(self, index: int) -> Try:
        self.tried.append(index)
        needed = self._needed[index]
        # The allocator gives back what is free before it fails: no more than the device's.
        return Try(needed <= self._limit, min(needed, MEMORY))

    @property
    def answer(self) -> int:
        return sum(n <= self._limit for n in self._needed) - 1


@given(
    st.lists(st.integers(0, 400_000), min_size=1, max_size=80),
    st.integers(MEMORY, 2 * MEMORY),
    st.integers(0, 79),
    st.none() | st.builds(Line, st.floats(-1e6, 2e6), st.floats(-1e5, 1e5)),
)
def test_the_answer_is_right_and_each_index_is_tried_once(
    rises: list[int], limit: int, second: int, guess: Line | None
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
    found, line = largest(256, MEMORY, steps.probe)
    assert found == steps.answer == (MEMORY - 30_000) // 7_919 - 1
    assert len(steps.tried) == 4
    assert line is not None
    assert round(line.slope) == 7_919


def test_a_guess_from_another_device_takes_two() -> None:
    steps = Steps([30_000 + 7_919] + [7_919] * 255)
    guess = Line(30_000 + 7_919, 7_919)
    found, _ = largest(256, MEMORY, steps.probe, guess=guess)
    assert found == steps.answer
    assert len(steps.tried) == 2


def test_a_range_that_fits_whole_takes_three() -> None:
    steps = Steps([30_000] + [10] * 255)
    found, _ = largest(256, MEMORY, steps.probe)
    assert found == 255
    assert steps.tried == [0, 3, 255]


def test_nothing_fits() -> None:
    steps = Steps([MEMORY + 1] * 256)
    assert largest(256, MEMORY, steps.probe) == (-1, None)
    assert steps.tried == [0]


@given(st.integers(0, 60), st.integers(1_000, 9_000))
def test_what_fragmentation_takes_costs_few_tries(thousandths: int, slope: int) -> None:
    # GIVEN a device of which fragmentation takes a share that no line tells
    steps = Steps([30_000 + slope] + [slope] * 2_000, MEMORY - thousandths * MEMORY // 1_000)
    # WHEN the largest is looked for THEN that takes few tries
    found, _ = largest(2_001, MEMORY, steps.probe)
    assert found == steps.answer
    assert len(steps.tried) <= 12
