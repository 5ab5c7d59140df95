"""Describes how much of the time something may take, and at a stretch.

Note [Which operations are looked at]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
In a loop of very short operations to look at both edges costs more time than they do. When one
begins nobody knows how long it will last. So two accounts are kept:

* *its name's own*: the share of the time that operations of this name last, less what was spent on
  them. A name whose operations last ``1 / share`` times as long as it takes to look at them never
  runs out, whatever the others do: each of them has figures.
* *everybody's*: the share of all time, less what was spent on any. It is for short operations
  that are seldom, and for as many of those that are many as it reaches.

An operation is looked at if either has something left; both are charged. So the cost is at most the
share of the time, and once more for each operation around another whose own account pays. What
was not used may be used later, up to ``SAVED_NS`` of time (of an operation's own account
``SAVED_OF_A_NAME_NS``): a run that is short, or has just begun, is looked at closely.
"""

from __future__ import annotations

import random
import time

from memprof.profiler.model.tracker import MAX_NAMES

SAVED_NS = 10_000_000_000
SAVED_OF_A_NAME_NS = 20_000_000
LONGEST_NS = 2_000_000
"""What takes longer did so because the thread was taken off its core, for somebody else's sake."""


class Allowance:
    """The two accounts of Note [Which operations are looked at]; a ``share`` of 0 allows nothing.
    From ``next_ns`` on everybody's has something left."""

    def __init__(self, share: float) -> None:
        self.next_ns = 0
        self._share = share
        self._own: dict[str, int] = {}
        # Not an even rhythm: in a loop of operations always the same one could have its turn.
        # A generator of its own, since the user's has to give what it would have given.
        self._dice = random.Random(0)

    def allows(self, name: str, now: int) -> bool:
        """Tells whether an operation of this name that begins now is to be looked at."""
        if not self._share:
            return False
        return self._own.get(name, 0) >= 0 or now >= self.next_ns

    def spend(self, begin: int, end: int) -> int:
        """One look was made, from ``begin`` to ``end``. What it counts for, ns."""
        took = min(end - begin, LONGEST_NS)
        saved = max(self.next_ns, begin - SAVED_NS)
        due = saved + round(took / self._share * self._dice.uniform(0.5, 1.5))
        # The other account may let it be done: what that spends is not owed for ever.
        self.next_ns = min(due, end + SAVED_NS)
        return took

    def settle(self, name: str, lasted: int, spent: int) -> None:
        """An operation has ended that ``lasted`` so long and had so much ``spent`` on it, ns."""
        if name not in self._own and len(self._own) >= MAX_NAMES:
            return
        earned = lasted * self._share
        if earned < spent:  # uneven, as the other account is
            spent = round(spent * self._dice.uniform(0.5, 1.5))
        self._own[name] = min(self._own.get(name, 0) + round(earned) - spent, SAVED_OF_A_NAME_NS)


STRETCH_NS = 1_000_000
"""Longest piece. Where another thread runs Python, each rest takes up to the interpreter's 5 ms."""
_BREATH = 0.0002


class Pace:
    """Long work of the tracker's thread in pieces, so that other threads get the GIL: ``pace()``
    every some dozen steps sleeps when a piece is over."""

    def __init__(self) -> None:
        self._since = time.perf_counter_ns()

    def __call__(self) -> None:
        if time.perf_counter_ns() - self._since >= STRETCH_NS:
            self.rest()

    def rest(self) -> None:
        time.sleep(_BREATH)
        self._since = time.perf_counter_ns()
