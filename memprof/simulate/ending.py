"""When a simulated run has shown what it takes.

Note [When the peak has stood still]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A training run ends after so many optimizer steps. What serves a model has none, and neither has a
compiled optimizer (its hooks are compiled away). There the run ends once the program has asked for
``FACTOR`` times as many blocks without a new peak as it had when the last one came, and for at
least ``LEAST``. Blocks are counted, not seconds, so that the answer does not depend on the machine:
compiling takes long and asks for nothing. Where there is an optimizer that has not stepped yet, the
program may be validating before it trains: there it takes ``WITH_OPTIMIZER`` times as many.
"""

from __future__ import annotations

from dataclasses import dataclass

FACTOR = 3
LEAST = 20_000
WITH_OPTIMIZER = 10


@dataclass(slots=True)
class Stillness:
    """Notices that a peak stands still; see Note [When the peak has stood still].

    Attributes:
        peak: the greatest that was seen, whatever it is made of.
        asked: blocks that had been asked for when it was first seen.
    """

    peak: tuple[int, ...] = ()
    asked: int = 0

    def reached(self, peak: tuple[int, ...], asked: int, waits_for_step: bool) -> bool:
        """Whether nothing more is to be expected.

        Args:
            peak: the greatest so far.
            asked: blocks asked for so far.
            waits_for_step: there is an optimizer that has not stepped.
        """
        if peak > self.peak:
            self.peak, self.asked = peak, asked
            return False
        enough = max(LEAST, FACTOR * self.asked) * (WITH_OPTIMIZER if waits_for_step else 1)
        return asked - self.asked >= enough
