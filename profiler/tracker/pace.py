"""Long work of the tracker's thread in short pieces, so that other threads get the GIL."""

from __future__ import annotations

import time

STRETCH_NS = 1_000_000
"""Longest piece. Where another thread runs Python, each rest takes up to the interpreter's 5 ms
until this one has the GIL again: shorter pieces make long work last much longer by the clock."""
_BREATH = 0.0002


class Pace:
    """``pace()`` every some dozen steps of long work sleeps when a piece is over."""

    def __init__(self) -> None:
        self._since = time.perf_counter_ns()

    def __call__(self) -> None:
        if time.perf_counter_ns() - self._since >= STRETCH_NS:
            self.rest()

    def rest(self) -> None:
        """Sleep a moment, which gives the GIL away."""
        time.sleep(_BREATH)
        self._since = time.perf_counter_ns()
