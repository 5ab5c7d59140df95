"""When a run has shown what it takes, and when it has not."""

from __future__ import annotations

import pytest

from memprof.what_if.simulate.leaving import (
    BY_ITSELF,
    FACTOR,
    MOST_STEPS,
    SLOW,
    TRAINING,
    Leaving,
    why_undecided,
)


def steps_until_left(peaks: list[int], wanted: int | None = None) -> int:
    """Steps of one optimizer, with these MiB reserved at most by the end of each."""
    leaving = Leaving(wanted)
    return next(n for n, p in enumerate(peaks, 1) if leaving.after_step(n, n, p << 20, 1 << 20))


def test_three_steps_and_more_while_each_raises_the_peak() -> None:
    assert steps_until_left([5, 9, 9, 9, 9]) == 3
    assert steps_until_left([5, 5, 9, 9, 9]) == 4
    assert steps_until_left([5, 6, 7, 8, 8, 9]) == 5
    assert steps_until_left(list(range(20))) == MOST_STEPS
    # The script sets the counter back, or gives memory back: what was there before is known.
    assert steps_until_left([5, 9, 7, 7]) == 3
    assert steps_until_left([9, 5, 7, 7]) == 3


def test_steps_that_were_asked_for_are_kept() -> None:
    assert steps_until_left([5, 9, 9, 9, 9, 9], wanted=5) == 5
    assert steps_until_left([5, 6, 7], wanted=2) == 2
    leaving = Leaving(7)
    assert not leaving.stands_still((1, 5, 3), 10, True)
    assert not leaving.stands_still((1, 5, 3), 1_000 * TRAINING, True)


def test_every_optimizer_has_its_turn() -> None:
    leaving = Leaving(None)
    fullest = [(1, 1, 5), (1, 1, 6), (1, 2, 8), (2, 2, 8), (2, 3, 8)]
    assert not any(leaving.after_step(*seen, 1) for seen in fullest)
    assert leaving.after_step(3, 3, 8, 1)
    # One that pauses is not waited for, and for long where it has not made two.
    for fewest, wanted, left in (2, None, 6), (1, None, 30), (0, None, 30), (0, 3, 6):
        leaving = Leaving(wanted)
        assert next(n for n in range(1, 40) if leaving.after_step(fewest, n, 5, 1)) == left


def test_a_program_that_does_not_train_ends_once_nothing_was_new_for_long() -> None:
    still, asked = Leaving(None), Leaving(3)
    for leaving, left in (still, True), (asked, False):
        assert not leaving.stands_still((0, 5, 3), 100_000, False)
        assert not leaving.stands_still((0, 5, 3), 100_000 * (1 + FACTOR) - 1, False)
        assert leaving.stands_still((0, 5, 3), 100_000 * (1 + FACTOR), False) == left


def test_a_peak_that_rises_with_every_step_is_said() -> None:
    grows, settles = Leaving(6), Leaving(6)
    for step in range(1, 7):
        grows.after_step(step, step, step << 20, 1)
        settles.after_step(step, step, min(step, 5) << 20, 1)
    assert grows.growth("6 optimizer steps") == (
        "the peak still rose, by 1.0 MiB in the last step that was seen: a job that grows needs "
        "more later, which more --steps show"
    )
    assert settles.growth("6 optimizer steps") == grows.growth(BY_ITSELF) == ""


def test_what_is_kept_in_memory_that_is_reserved_already_raises_the_peak() -> None:
    """Of a growth, bytes that are kept of each step, the last step is named and not the segment
    that the allocator had to get for it."""
    for kept, left in (SLOW - 512, 3), (SLOW, MOST_STEPS), (4 << 20, MOST_STEPS):
        leaving = Leaving(None)
        reserved = [(100 + 20 * (step * kept >> 20) // 20) << 20 for step in range(20)]
        steps = (n for n in range(1, 20) if leaving.after_step(n, n, reserved[n], n * kept))
        assert next(steps) == left
        said = leaving.growth(f"{left} optimizer steps")
        words = f"by {kept / 2**20:.1f} MiB in the last step"
        assert words in said if left == MOST_STEPS else not said


def test_a_new_peak_or_a_step_begins_anew() -> None:
    still = Leaving(None)
    assert not still.stands_still((0, 5, 3), 10, True)
    assert not still.stands_still((0, 5, 4), TRAINING, True)
    assert not still.stands_still((1, 5, 4), 2 * TRAINING - 1, True)
    assert not still.stands_still((1, 5, 4), 3 * TRAINING - 2, True)
    assert still.stands_still((1, 5, 4), 3 * TRAINING - 1, True)


@pytest.mark.parametrize(
    ("steps", "backwards", "has_optimizer", "by_itself", "undecided"),
    [
        (2, 2, True, False, False),
        (1, 1, True, False, True),
        (1, 1, True, True, True),  # cut short by its user
        (0, 900, True, False, True),  # accumulates
        (0, 900, True, True, True),
        (0, 900, False, False, True),  # an optimizer that is none of torch's
        (0, 900, False, True, False),  # a benchmark of a layer, seen whole
        (0, 0, True, False, True),  # a server, or a long validation before the first step
        (0, 0, True, True, False),
        (0, 0, False, False, False),
    ],
)
def test_what_was_seen_of_a_training_decides(
    steps: int, backwards: int, has_optimizer: bool, by_itself: bool, undecided: bool
) -> None:
    ended = BY_ITSELF if by_itself else "it was left"
    why = why_undecided(ended, steps, steps, backwards, has_optimizer)
    assert why.startswith(f"{ended}: ") is undecided
    assert bool(why) is undecided


def test_an_optimizer_that_had_no_turn_decides_nothing() -> None:
    for fewest in 0, 1:
        assert "of another" in why_undecided("30 optimizer steps", fewest, 30, 60, True)
        assert not why_undecided(BY_ITSELF, fewest, 30, 60, True)
    assert not why_undecided("6 optimizer steps", 2, 6, 12, True)
