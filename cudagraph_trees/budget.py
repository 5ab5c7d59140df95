"""A limit on the bytes that a pool reserves.

Note [Keeping a pool within its budget]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
All recordings share the pool's segments, and each has addresses in them baked in. So no
segment can be given back while a recording lives that may use it, and dropping one
recording frees nothing. What works is to drop them all: the pool goes, and whatever is
used again is recorded again into a new one, which then holds the working set and no longer
the sizes that were seen once. The least recently used recordings are those that do not
come back.

What a recording needs is known only when it has been made, so a pool may be above its
budget until the step ends. Then:

* normally, everything is dropped, as above;
* if that was done less than ``PATIENCE`` steps ago, the working set itself does not fit.
  Then the function whose recording went over the limit runs without a graph from now on,
  as well. Each time that happens one function fewer is recorded, so it comes to an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memprof.profiler.model import LedgerKind

if TYPE_CHECKING:
    from .function import Function
    from .manager import CUDAGraphTreeManager

PATIENCE = 4
"""Steps in which a working set is recorded once more."""


class Budget:
    """Watches one pool.

    Attributes:
        limit: bytes, None for no limit.
        over: the function that went over the limit, until the step ends.
    """

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.over: Function | None = None
        self._last_time: int | None = None

    def spent(self, function: Function, reserved: int) -> bool:
        """``function`` was run or recorded, and the pool has ``reserved`` bytes now.

        Returns:
            Whether it has gone over the limit.
        """
        if self.limit is None or reserved <= self.limit or self.over is not None:
            return False
        self.over = function
        return True

    def enforce(self, manager: CUDAGraphTreeManager) -> None:
        """The step has ended: drop recordings, and perhaps give up a function."""
        function, self.over = self.over, None
        assert function is not None
        assert self.limit is not None
        reason = f"the pool has {manager.pool.reserved_bytes()} bytes, its budget is {self.limit}"
        if self._last_time is not None and manager.step - self._last_time < PATIENCE:
            manager.give_up(function, "it did not fit the pool's budget before")
            manager.note(
                LedgerKind.SKIP,
                function,
                f"{reason}, and what is in use does not fit: it runs without a graph from now on",
            )
        self._last_time = manager.step
        manager.start_over(reason)
