"""A count that threads share."""

from __future__ import annotations

import itertools
from collections.abc import Callable


class Counter:
    """A count that several threads can advance without losing any: ``tick()``."""

    def __init__(self) -> None:
        self._count = itertools.count()
        self.tick: Callable[[], int] = self._count.__next__

    @property
    def value(self) -> int:
        """Number of calls of ``tick`` so far."""
        return int(repr(self._count)[len("count(") : -1])
