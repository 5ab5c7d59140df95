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
    Step,
    why_undecided,
)

MIB = 1 << 20


def steps_until_left(peaks: list[int], wanted: int | None = None) -> int:
    """Steps of one optimizer, with these MiB reserved at most by the end of each."""
    leaving = Leaving(wanted)
    seen = enumerate(peaks, 1)
    return next(n for n, peak in seen if leaving.after_step(n, n, Step(reserved=peak * MIB)))


def test_three_steps_and_two_after_each_that_raises_the_peak() -> None:
    assert steps_until_left([5, 9, 9, 9, 9]) == 3
    assert steps_until_left([5, 5, 9, 9, 9, 9]) == 5
    assert steps_until_left([5, 6, 7, 8, 8, 9, 9, 9]) == 8
    assert steps_until_left([5, 6, 7, 8, 8, 8, 9]) == 6
    assert steps_until_left([n // 2 for n in range(20)]) == MOST_STEPS
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
    turns = [(1, 1), (1, 1), (1, 2), (2, 2), (2, 3)]
    assert not any(leaving.after_step(*seen, Step()) for seen in turns)
    assert leaving.after_step(3, 3, Step())
    # One that pauses is not waited for, and for long where it has not made two.
    for fewest, wanted, left in (2, None, 6), (1, None, 30), (0, None, 30), (0, 3, 6):
        leaving = Leaving(wanted)
        assert next(n for n in range(1, 40) if leaving.after_step(fewest, n, Step())) == left


def test_a_program_that_does_not_train_ends_once_nothing_was_new_for_long() -> None:
    still, asked = Leaving(None), Leaving(3)
    for leaving, left in (still, True), (asked, False):
        assert not leaving.stands_still((0, 5, 3), 100_000, False)
        assert not leaving.stands_still((0, 5, 3), 100_000 * (1 + FACTOR) - 1, False)
        assert leaving.stands_still((0, 5, 3), 100_000 * (1 + FACTOR), False) == left


def test_what_is_kept_below_an_earlier_peak_is_waited_for() -> None:
    def left(held: list[int]) -> int:
        leaving = Leaving(None)
        seen = (Step(99 * MIB, 99 * MIB, held=n * MIB) for n in held)
        return next(n for n, step in enumerate(seen, 1) if leaving.after_step(n, n, step))

    assert left([5, 5, 5, 5]) == 3
    assert left([5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]) == MOST_STEPS
    assert left([5, 9, 9, 13, 13, 17, 17, 21, 21, 25, 25]) == MOST_STEPS  # in every other step
    assert left([9, 7, 7, 8]) == 3  # lengths that vary
    assert left([5, 9, 7, 8]) == 4
    assert left([5, 7, 9, 8, 8]) == 5


def said_after(steps: list[Step], ended: str = "so many optimizer steps") -> str:
    """What may come after these steps, which were asked for."""
    leaving = Leaving(len(steps))
    for n, step in enumerate(steps, 1):
        leaving.after_step(n, n, step)
    return leaving.what_may_come(ended)


def test_a_peak_that_rises_with_every_step_is_said() -> None:
    grows = [Step(reserved=step * MIB) for step in range(1, 7)]
    assert said_after(grows) == (
        "it still grew, by 1.0 MiB last: a job that grows needs more later, which more --steps show"
    )
    assert said_after(grows, BY_ITSELF) == ""
    assert said_after([*grows, grows[-1]]) == ""
    assert said_after(grows[:3]) == ""


def test_what_is_kept_in_memory_that_is_reserved_already_raises_the_peak() -> None:
    """Of a growth the bytes are named that are kept of each step, not the segment that the
    allocator had to get for them."""
    for kept, left in (SLOW - 512, 3), (SLOW, MOST_STEPS), (4 * MIB, MOST_STEPS):
        leaving = Leaving(None)
        for n in range(1, left + 1):
            now = Step(reserved=(100 + 20 * (n * kept // (20 * MIB))) * MIB, allocated=n * kept)
            assert leaving.after_step(n, n, now) == (n == left)
        said = leaving.what_may_come(f"{left} optimizer steps")
        assert said.startswith(f"it still grew, by {kept / MIB:.1f} MiB" if left > 3 else "")
        assert bool(said) == (left > 3)


@pytest.mark.parametrize(
    ("held", "last"),
    [
        ([5, 5, 9, 9, 13, 13, 17, 17], 4),  # in every other step
        ([5, 9, 9, 13, 13], 4),
        ([5, 5, 5, 5, 9, 9, 9, 9, 12, 12, 12, 12], 3),  # in every fourth
        ([5, 5, 5, 5, 9, 9, 9, 9, 12, 12, 12, 12, 12, 12], None),  # too long ago for that
        ([5, 9, 9, 9, 9, 9], None),  # once is no growth
        ([5, 9, 10, 11, 11, 11, 11], None),  # it has settled
        ([5, 9, 10, 8, 10, 11], None),  # lengths that vary
    ],
)
def test_what_is_kept_of_some_steps_grows(held: list[int], last: int | None) -> None:
    said = said_after([Step(reserved=99 * MIB, held=n * MIB) for n in held])
    assert said.startswith(f"it still grew, by {last}.0 MiB" if last else "")
    assert bool(said) == bool(last)


def test_steps_on_a_stream_of_their_own_prepare_a_capture() -> None:
    for wanted, ended, undecided in (
        (None, "3 optimizer steps", True),
        (3, "3 optimizer steps", False),
        (None, BY_ITSELF, False),
    ):
        leaving = Leaving(wanted)
        for n in range(1, 4):
            leaving.after_step(n, n, Step(aside=True))
        assert ("a CUDA graph is captured" in leaving.what_may_come(ended)) == undecided


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
