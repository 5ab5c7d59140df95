"""How much of the time something may take."""

from __future__ import annotations

import random


class Ration:
    """Lets something be done as long as it takes no more than a share of the time.

    Args:
        share: of the time. What was not used in the last ``SAVED_NS`` may be used at once.

    Attributes:
        next_ns: from when on it may be done again.
    """

    SAVED_NS = 10_000_000_000
    LONGEST_NS = 2_000_000
    """What takes longer did so because the thread was taken off its core; the rest of that time
    was somebody else's. (The thread's CPU time would say so, for a system call more.)"""

    def __init__(self, share: float) -> None:
        self._share = share
        self.next_ns = 0
        # Not an even rhythm: in a loop of operations always the same one could have its turn.
        # A generator of its own, since the user's has to give what it would have given.
        self._dice = random.Random(0)

    def spend(self, begin: int, end: int) -> None:
        """It was done, from ``begin`` to ``end``, ns."""
        saved = max(self.next_ns, begin - self.SAVED_NS)
        took = min(end - begin, self.LONGEST_NS)
        self.next_ns = saved + round(took / self._share * self._dice.uniform(0.5, 1.5))
