"""A job that runs, as far as the file that it writes tells; see ``profiler/running_job.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .profile import DeviceTotals, Growth, Process


class Writer(str, Enum):
    """State of the process that writes a profile file."""

    ALIVE = "alive"
    ENDED = "ended"
    """The session came to its end."""
    DIED = "died"
    """The file has no end, and no process writes it any more."""
    UNKNOWN = "unknown"


STALLED_NS = 60_000_000_000
"""Time in ns without anything new in its file after which a job is said to do nothing."""


@dataclass(frozen=True, slots=True)
class Present:
    """One process, as far as its file tells.

    Attributes:
        process: with 0 and "" where that is not known.
        age_ns: how long ago the latest was written, None if not known.
        rate: steps a second in the last minute of the log, None without two of them; of ``steps``,
            which are backwards of a graph, else calls.
        devices: by the allocators' counters; the process's resident bytes last.
        peak, peak_device, categories: bytes of compiled code, None without calls; where; and of
            what, largest first.
        grows: what is held across steps and grows.
        since: by device, by how much reserved memory has grown since somebody began to look.
        findings: what could be changed, in words, most bytes first.
    """

    path: str
    writer: Writer
    process: Process = field(default_factory=Process)
    age_ns: int | None = None
    calls: int = 0
    rate: float | None = None
    steps: str = "calls"
    devices: list[DeviceTotals] = field(default_factory=list)
    peak: int | None = None
    peak_device: str = ""
    categories: list[tuple[str, int]] = field(default_factory=list)
    grows: list[Growth] = field(default_factory=list)
    since: dict[str, int] = field(default_factory=dict)
    findings: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def stalled(self) -> bool:
        running = self.writer in (Writer.ALIVE, Writer.UNKNOWN)
        return running and self.age_ns is not None and self.age_ns > STALLED_NS
