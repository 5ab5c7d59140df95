"""Which lines of a program looked at values that no kernel had computed."""

from __future__ import annotations

import sys
from types import FrameType

from memprof.profiler.device.where import is_internal
from memprof.profiler.model import HostRead, SourceFrame

from .pretend import Pretences

__all__ = ["HostReads"]


class HostReads:
    """Counts copies from devices to the host by the line that asked for them.

    Attributes:
        pretences: what some lines are to find there.
    """

    def __init__(self, pretences: Pretences) -> None:
        self.pretences = pretences
        self._found: dict[tuple[str, int, str] | None, list[int]] = {}

    def note(self, nbytes: int, address: int) -> None:
        """One copy to ``address``, asked for by whoever called."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_internal(frame.f_code.co_filename):
            frame = frame.f_back
        key = None
        if frame is not None:
            key = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            self.pretences.apply(key[0], key[1], nbytes, address)
        counted = self._found.setdefault(key, [0, 0])
        counted[0] += 1
        counted[1] += nbytes

    def rows(self) -> list[HostRead]:
        """By line, most often first."""
        rows = [
            HostRead(SourceFrame(*key) if key is not None else None, count, nbytes)
            for key, (count, nbytes) in list(self._found.items())
        ]
        return sorted(rows, key=lambda r: -r.count)
