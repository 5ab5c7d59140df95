"""Limits on the share of time that looks may take, and on work at a stretch.

Note [Which operations are looked at]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
In a loop of very short operations to look at both edges costs more time than they do. So each name
has an account: ``operation_share`` of the time that operations of this name last, less what was
spent on them. One is looked at if its name has something left. A name whose operations last
``1 / share`` times as long as it takes to look at them never runs out; of shorter ones as many have
figures as the share pays for. Each name begins with ``SAVED_NS``, so operations that are few have
figures however short they are.
"""

from __future__ import annotations

import time

from memprof.profiler.model.tracker import MAX_NAMES

SAVED_NS = 20_000_000
"""Upper limit of an account, ns."""
LONGEST_NS = 2_000_000
"""Most ns that a look is charged: a longer one had its thread taken off the core by others."""


class Allowance:
    """The accounts of Note [Which operations are looked at]; a ``share`` of 0 allows nothing."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._left: dict[str, float] = {}

    def allows(self, name: str) -> bool:
        """Tells whether an operation of this name that begins now is to be looked at."""
        return self._share > 0 and self._left.get(name, SAVED_NS) >= 0

    def settle(self, name: str, lasted: int, spent: int) -> None:
        """Settle an operation that ``lasted`` so many ns and had ``spent`` ns of looks on it."""
        if name in self._left or len(self._left) < MAX_NAMES:
            left = self._left.get(name, SAVED_NS) + lasted * self._share - spent
            self._left[name] = min(left, SAVED_NS)


STRETCH_NS = 1_000_000
"""Longest piece of work, ns. Where another thread runs Python, each rest takes up to the
interpreter's 5 ms."""
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
