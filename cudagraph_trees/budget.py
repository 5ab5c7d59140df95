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

from typing import TYPE_CHECKING

from memprof.profiler.model import LedgerKind

from . import _torch_compat as compat

if TYPE_CHECKING:
    from .function import Function
    from .manager import CUDAGraphTreeManager

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
        self._by: Function | None = None
        self._last_time: int | None = None

    def lower(self, limit: int | None, reserved: int) -> bool:
        """The pool may have no more than ``limit`` bytes, either. It has ``reserved`` now.

        Returns:
            Whether that is too much.
        """
        if limit is None or (self.limit is not None and self.limit <= limit):
            return False
        self.limit = limit
        self.over = reserved > limit
        return self.over

    def spent(self, function: Function, reserved: int) -> bool:
        """``function`` was run or recorded, and the pool has ``reserved`` bytes now.

        Returns:
            Whether it has gone over the limit.
        """
        if self.limit is None or reserved <= self.limit or self.over:
            return False
        self.over = True
        self._by = function
        return True

    def enforce(self, manager: CUDAGraphTreeManager) -> None:
        """The step has ended: drop recordings, and perhaps give up a function.

        Raises:
            RuntimeError: a function is given up, and ``cudagraph_or_error`` is on for it.
        """
        function, self._by, self.over = self._by, None, False
        reason = f"the pool has {manager.pool.reserved_bytes()} bytes, its budget is {self.limit}"
        soon = self._last_time is not None and manager.step - self._last_time < PATIENCE
        self._last_time = manager.step
        manager.start_over(reason)
        if soon and function is not None:
            manager.give_up(function, "it did not fit the pool's budget before")
            why = f"{reason}, and what is in use does not fit"
            manager.note(LedgerKind.SKIP, function, f"{why}: it runs without a graph from now on")
            message = f"skipping cudagraphs of {function.label}: {why}"
            compat.announce_skip(message, function.options.or_error)
