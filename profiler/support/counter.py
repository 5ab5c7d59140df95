"""A count that threads share."""

from __future__ import annotations

import itertools
from collections.abc import Callable


class Counter:
    """A count that several threads can advance without losing any: ``tick()``.

    Attributes:
        note: gives how far it has come, for ``number_in``, without a line of Python.
    """

    def __init__(self) -> None:
        self._count = itertools.count()
        self.tick: Callable[[], int] = self._count.__next__
        self.note: Callable[[], str] = self._count.__repr__

    @staticmethod
    def number_in(note: str) -> int:
        """Number of calls of ``tick`` when ``note`` was made."""
        return int(note[len("count(") : -1])

    @property
    def value(self) -> int:
        """Number of calls of ``tick`` so far."""
        return self.number_in(self.note())
