"""Which lines of a program looked at values that no kernel had computed."""

from __future__ import annotations

from memprof.profiler.device.where import line_of_caller
from memprof.profiler.model import HostRead, SourceFrame

from .pretend import Pretences


class HostReads:
    """Counts copies from devices to the host by the line that asked for them.

    Attributes:
        pretences: what some lines are to find there.
    """

    def __init__(self, pretences: Pretences) -> None:
        self.pretences = pretences
        self._found: dict[SourceFrame | None, list[int]] = {}

    def note(self, nbytes: int, address: int) -> None:
        """One copy to ``address``, asked for by whoever called."""
        line = line_of_caller()
        if line is not None:
            self.pretences.apply(line.file, line.line, nbytes, address)
        counted = self._found.setdefault(line, [0, 0])
        counted[0] += 1
        counted[1] += nbytes

    def rows(self) -> list[HostRead]:
        """By line, most often first."""
        rows = [
            HostRead(line, count, nbytes) for line, (count, nbytes) in list(self._found.items())
        ]
        return sorted(rows, key=lambda r: -r.count)
