"""What code costs, counted instead of timed: the same on every machine, busy or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class LineCounter:
    """Counts the lines of Python that this thread runs in functions called in its ``with``, and in
    everything that those call; each turn of a loop or a comprehension counts again.

    Work inside one call of a C function is not seen: a search through a list is as one line.

    Attributes:
        count: lines so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: Any = None

    def __enter__(self) -> LineCounter:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.count += event == "line"
        return self._trace


def lines_run(function: Callable[[], Any]) -> int:
    """Lines of Python that run while ``function()`` does; see ``LineCounter``."""
    with LineCounter() as lines:
        function()
    return lines.count
