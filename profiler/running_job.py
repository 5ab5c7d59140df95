"""Present state of a job, or last state of one that has ended, from the file that it writes: for a
live view.

The job pays nothing for being looked at. What is shown is as old as the last that it wrote (a
session writes every 5 s, a tracker with each snapshot).

Note [What a file says of its writer]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A running process writes to its file every few seconds if anything is new, so the age of what is
there says when it last did something; that it lives says its lock on the file (``writing.py``), and
an end says the last frame. Without an end and without a lock it has died. Where the file system has
no locks the process is asked for by its number, on its own host only; else nobody can tell.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass, field
from enum import Enum

from .file.decoding import Document
from .file.frames import Frame, Kind, frames, may_begin
from .file.reading import read_from
from .live.growth import growth
from .model import DeviceTotals, Growth, Process, Profile
from .support import writing
from .support.errors import ProfileInvalidError

KEEP_CALLS = 100_000
"""Latest calls of the log that a view of the present looks at."""
STALLED_NS = 60_000_000_000
"""Time in ns without anything new in its file after which a job is said to do nothing."""
_RATE_NS = 60_000_000_000
"""Time in ns over which steps are counted for the rate."""
_LEAST = 3
"""Least steps for a rate."""
_HOST = "host"
"""Name of the row for the resident memory of the process."""


class Writer(str, Enum):
    """State of the process that writes a profile file."""

    ALIVE = "alive"
    ENDED = "ended"
    """The session came to its end."""
    DIED = "died"
    """The file has no end, and no process writes it any more."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Present:
    """One process, as far as its file tells.

    Attributes:
        age_ns: how long ago the latest was written, None if not known.
        rate: calls a second, in the last minute of the log, of the graph that was called last: a
            step calls each once. None without three of them.
        devices: by the allocators' counters; the process's resident bytes last.
        grows: what is held across steps and grows.
    """

    path: str
    writer: Writer
    age_ns: int | None = None
    rate: float | None = None
    devices: list[DeviceTotals] = field(default_factory=list)
    grows: list[Growth] = field(default_factory=list)

    @property
    def stalled(self) -> bool:
        running = self.writer in (Writer.ALIVE, Writer.UNKNOWN)
        return running and self.age_ns is not None and self.age_ns > STALLED_NS


class JobFile:
    """One profile file that may grow, looked at again and again: what is new is read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._read = 0
        self._document: Document | None = None

    def profile(self) -> Profile:
        """The profile as far as it is in the file; of several, the one that began last.

        Raises:
            ProfileError: the file cannot be read, or holds no profile.
        """
        data, begin, self._file = read_from(self.path, self._read, self._file)
        if begin and not may_begin(data):
            # Written anew, as a tracker's is.
            data, begin, self._file = read_from(self.path, 0, None)
        if not begin:
            self._document, self._read = None, 0
        for frame in frames(data, self.path):
            if not isinstance(frame, Frame):
                break
            if frame.kind == Kind.HEADER:
                self._document = Document(self.path, KEEP_CALLS)
            if self._document is not None:
                self._document.add(frame)
            self._read = begin + frame.end
        if self._document is None:
            raise ProfileInvalidError(self.path, "not a memprof profile, or not one yet")
        return self._document.profile()

    def look(self, now_ns: int | None = None) -> Present:
        """Present state of the job, as the file has it now.

        Raises:
            ProfileError: as ``profile``.
        """
        profile = self.profile()
        now_ns = time.time_ns() if now_ns is None else now_ns
        return Present(
            self.path,
            self._writer(profile),
            age_ns=max(0, now_ns - profile.created_ns) if profile.created_ns else None,
            rate=_rate(profile),
            devices=_devices(profile),
            grows=growth(profile),
        )

    def _writer(self, profile: Profile) -> Writer:
        """State of the process that writes the file; see Note [What a file says of its writer]."""
        if profile.complete:
            return Writer.ENDED
        alive = writing.is_locked(self.path)
        if alive is None:
            of = _process(profile)
            if not of.pid or of.host != platform.node():
                return Writer.UNKNOWN
            alive = os.path.exists(f"/proc/{of.pid}")
        return Writer.ALIVE if alive else Writer.DIED


def _process(profile: Profile) -> Process:
    if profile.process is None and profile.tracker is not None:
        return Process(host=profile.tracker.metadata.host, pid=profile.tracker.metadata.pid)
    return profile.process or Process()


def _devices(profile: Profile) -> list[DeviceTotals]:
    """Latest counters of each device's allocator, else of the tracker's last snapshot, and resident
    bytes of the process, last."""
    found = list(profile.totals)
    snapshots = profile.tracker.snapshots if profile.tracker is not None else []
    resident = profile.resident
    if resident is None and snapshots:
        resident = snapshots[-1].resident_bytes
    known = {"cpu", *(d.device for d in found)}
    for name, m in snapshots[-1].devices.items() if snapshots else ():
        if name not in known and m.reserved_bytes:
            held = (s.devices[name].reserved_bytes or 0 for s in snapshots if name in s.devices)
            now = (m.total_bytes or 0, m.allocated_bytes or 0, m.reserved_bytes)
            found.append(DeviceTotals(name, *now, m.peak_bytes or 0, max(held)))
    if resident:
        most = max((s.resident_bytes or 0 for s in snapshots), default=0)
        found.append(DeviceTotals(_HOST, 0, 0, resident, 0, max(most, resident)))
    return found


def _rate(profile: Profile) -> float | None:
    calls = profile.calls
    last = calls.graph[-1] if calls.graph else None
    ends = [e for g, e in zip(calls.graph, calls.end_ns, strict=True) if g == last]
    latest = max(ends, default=0)
    ends = sorted(e for e in ends if latest - e <= _RATE_NS)
    if len(ends) < _LEAST or ends[-1] == ends[0]:
        return None
    return (len(ends) - 1) * 1e9 / (ends[-1] - ends[0])
