"""A limit on the bytes that a pool reserves.

Note [Keeping a pool within its budget]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
All recordings share the pool's segments, and each has addresses in them baked in. So no
segment can be given back while a recording lives that may use it, and dropping one
recording, say the least recently used one, frees nothing. What works is to drop them all:
the pool goes, and whatever is used again is recorded again into a new one, which then holds
the working set and no longer the sizes that were seen once.

What a recording needs is known only when it has been made, so a pool may be above its
budget until the step ends. Then:

* normally, everything is dropped, as above;
* if that was done less than ``PATIENCE`` steps ago, the working set itself does not fit.
  Then the function whose recording went over the limit runs without a graph from now on,
  as well. Each time that happens one function fewer is recorded, so it comes to an end.
"""

from __future__ import annotations

from .spec import FunctionSpec

PATIENCE = 4
"""Steps in which a working set is recorded once more."""


class Budget:
    """Watches one pool.

    Attributes:
        limit: bytes, None for no limit.
        over: the pool is above it, until the step ends.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.over = False
        self._by: FunctionSpec | None = None
        self._last_time: int | None = None

    def lower(self, limit: int | None, reserved: int) -> None:
        """The pool may have no more than ``limit`` bytes, either. It has ``reserved`` now."""
        if limit is not None and (self.limit is None or limit < self.limit):
            self.limit = limit
            self.over = reserved > limit

    def check(self, function: FunctionSpec, reserved: int) -> None:
        """``function`` was run or recorded, and the pool has ``reserved`` bytes now."""
        if self.limit is not None and reserved > self.limit and not self.over:
            self.over = True
            self._by = function

    def enforce(self, step: int) -> FunctionSpec | None:
        """The step has ended, and recordings go.

        Args:
            step: number of the step that has ended.

        Returns:
            The function that is to be given up as well, None if none is.
        """
        function, self._by, self.over = self._by, None, False
        soon = self._last_time is not None and step - self._last_time < PATIENCE
        self._last_time = step
        return function if soon else None
