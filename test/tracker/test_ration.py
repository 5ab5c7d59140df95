"""No more than a share of the time, in the long run and after a pause."""

from __future__ import annotations

from memprof.profiler.tracker.ration import Allowance


def spent(ration: Allowance, begin: int, end: int, each: int, every: int) -> int:
    """What was spent by someone who comes every ``every`` ns and takes ``each`` where allowed."""
    total = 0
    for now in range(begin, end, every):
        if now >= ration.next_ns:
            ration.spend(now, now + each)
            total += each
    return total


def test_its_share_and_no_more() -> None:
    ration = Allowance(0.01)
    second = 1_000_000_000
    spent(ration, 100 * second, 101 * second, 1_000_000, 1_000_000)  # what was saved
    long = spent(ration, 101 * second, 201 * second, 50_000, 1_000_000)
    assert 0.8 * second <= long <= 1.1 * second


def test_what_was_saved_may_be_used_at_once() -> None:
    ration = Allowance(0.01)
    second = 1_000_000_000
    # 10 s of 1 %, and the share of the time itself.
    burst = spent(ration, 1000 * second, 1001 * second, 1_000_000, 1_000_000)
    assert 80_000_000 <= burst <= 140_000_000


def test_a_loop_of_two_gives_both_a_turn() -> None:
    ration = Allowance(0.01)
    turns = [0, 0]
    for i, now in enumerate(range(10**12, 2 * 10**12, 5_000_000)):
        if now >= ration.next_ns:
            ration.spend(now, now + 100_000)  # as much as pays for exactly one of two
            turns[i % 2] += 1
    assert min(turns) > 0.4 * sum(turns)


def test_time_off_the_core_is_not_charged() -> None:
    ration = Allowance(0.01)
    second = 1_000_000_000
    ration.spend(100 * second, 101 * second)
    assert ration.next_ns <= 100 * second
