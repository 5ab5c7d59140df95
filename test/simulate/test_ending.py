"""When a run without optimizer steps has shown what it takes."""

from __future__ import annotations

from memprof.simulate.launch import FACTOR, LEAST, WITH_OPTIMIZER, Stillness


def test_ends_once_nothing_was_new_for_long() -> None:
    still = Stillness()
    assert not still.reached((5, 3), 100_000, False)
    assert not still.reached((5, 3), 100_000 * (1 + FACTOR) - 1, False)
    assert still.reached((5, 3), 100_000 * (1 + FACTOR), False)


def test_a_new_peak_begins_anew() -> None:
    still = Stillness()
    assert not still.reached((5, 3), 10, False)
    assert not still.reached((5, 4), 50_000, False)
    assert not still.reached((5, 4), 50_000 * (1 + FACTOR) - 1, False)
    assert still.reached((5, 4), 50_000 * (1 + FACTOR), False)


def test_few_blocks_prove_nothing() -> None:
    still = Stillness()
    assert not still.reached((1, 1), 10, False)
    assert not still.reached((1, 1), 10 + LEAST - 1, False)
    assert still.reached((1, 1), 10 + LEAST, False)


def test_an_optimizer_that_has_not_stepped_is_waited_for() -> None:
    still = Stillness()
    assert not still.reached((1, 1), 10, True)
    assert not still.reached((1, 1), 10 + LEAST * WITH_OPTIMIZER - 1, True)
    assert still.reached((1, 1), 10 + LEAST * WITH_OPTIMIZER, True)
