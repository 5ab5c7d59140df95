"""Present state of a job, or last state of one that has ended, from the file that it writes: for a
live view.

The job pays nothing for being looked at. What is shown is as old as the last that it wrote (a
session writes every 5 s, a tracker with each snapshot). Who looks reads what is new and works on
the latest calls.

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
from dataclasses import replace

from .file.decoding import Document
from .file.frames import Frame, frames, may_begin
from .file.reading import read_from
from .live.attribution import Attribution, View
from .live.devices import main_device, timelines
from .live.growth import growth
from .model import DeviceTotals, GraphKind, Process, Profile
from .model.running_job import Present, Writer
from .support import writing
from .support.errors import ProfileError, ProfileInvalidError
from .views.advice import advise

KEEP_CALLS = 100_000
"""Latest calls of the log that a view of the present looks at."""


_RATE_NS = 60_000_000_000
"""Time in ns over which steps are counted for the rate."""
_LEAST = 3
"""Least steps for a rate."""
_FINDINGS = 3
_CPU = "resident (host)"


class JobFile:
    """One profile file that may grow, looked at again and again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._first: dict[str, int] = {}
        self._forget()

    def _forget(self) -> None:
        self._file: tuple[int, int] | None = None
        self._read = self._process = 0
        self._document: Document | None = None
        self._profile: Profile | None = None
        self._made: Present | None = None

    def profile(self) -> Profile:
        """The profile as far as it is in the file. The same object as long as nothing is new.

        Raises:
            ProfileError: the file cannot be read, holds no profile, or profiles of several
                processes.
        """
        new = self._new()
        if any(f.process != self._process for f in new) and self._document is not None:
            # Another job writes to the same name: it has begun anew.
            self._forget()
            new = self._new()
        for frame in new:
            if self._document is None:
                self._process = frame.process
                self._document = Document(self.path, KEEP_CALLS)
            elif frame.process != self._process:
                raise ProfileError(
                    self.path,
                    "it holds several profiles, of jobs that have ended",
                )
            self._document.add(frame)
            self._profile = self._made = None
        if self._document is None:
            raise ProfileInvalidError(self.path, "not a memprof profile, or not one yet")
        if self._profile is None:
            self._profile = self._document.profile()
        return self._profile

    def _new(self) -> list[Frame]:
        """Whole frames that are new since the last call; all frames if the file was replaced."""
        data, begin, file = read_from(self.path, self._read, self._file)
        if file != self._file or begin < self._read or (begin and not may_begin(data)):
            # Written anew, as a tracker's is.
            self._forget()
            data, begin, self._file = read_from(self.path, 0, None)
        found = [frame for frame in frames(data, self.path) if isinstance(frame, Frame)]
        end = found[-1].end if found else 0
        # What begins no frame becomes none: looked at again, it would be a file written anew.
        self._read = begin + (end if may_begin(data, end) else len(data))
        return found

    def writer(self) -> Writer:
        """State of the process that writes the file; see Note [What a file says of its writer]."""
        found = self._profile
        if found is None or found.complete:
            return Writer.ENDED if found is not None else Writer.UNKNOWN
        locked = writing.is_locked(self.path)
        if locked is not None:
            return Writer.ALIVE if locked else Writer.DIED
        of = _process(found)
        if not of.pid or of.host != platform.node():
            return Writer.UNKNOWN
        return Writer.ALIVE if os.path.exists(f"/proc/{of.pid}") else Writer.DIED

    def look(self, now_ns: int | None = None) -> Present:
        """Present state of the job, as the file has it now.

        Raises:
            ProfileError: as ``profile``.
        """
        profile = self.profile()
        if self._made is None:
            self._made = self._of(profile)
        now_ns = time.time_ns() if now_ns is None else now_ns
        age = max(0, now_ns - profile.created_ns) if profile.created_ns else None
        return replace(self._made, writer=self.writer(), age_ns=age)

    def _of(self, profile: Profile) -> Present:
        devices = _devices(profile)
        for d in devices:
            self._first.setdefault(d.device, d.reserved)
        rate, steps = _rate(profile)
        of = timelines(profile)
        device = main_device(of)
        timeline, attribution = of[device], Attribution(profile)
        advice = advise(profile, timeline, attribution)[:_FINDINGS]
        live = attribution.breakdown(timeline.at_peak(), View.CATEGORY)
        return Present(
            self.path,
            Writer.UNKNOWN,
            _process(profile),
            calls=len(profile.calls) + profile.calls.dropped,
            rate=rate,
            steps=steps,
            devices=devices,
            peak=live.total if len(timeline) else None,
            peak_device=device if len(timeline) else "",
            categories=[(p.key, p.nbytes) for p in (*live.parts, *live.remainder)],
            grows=growth(profile),
            since={d.device: d.reserved - self._first[d.device] for d in devices},
            findings=[(f.nbytes, f.whose, f.title) for f in advice],
        )


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
        found.append(DeviceTotals(_CPU, 0, 0, resident, 0, max(most, resident)))
    return found


def _rate(profile: Profile) -> tuple[float | None, str]:
    """Steps a second in the last minute of the log, None without enough, and ``steps`` or ``calls``
    for what was counted."""
    backwards = {g.id for g in profile.graphs if g.kind is GraphKind.BACKWARD}
    calls = profile.calls
    # Of the last backward of a step alone there is one a step: of the graph called most lately.
    last = next((g for g in reversed(calls.graph) if g in backwards), None)
    of = {last} if last is not None else set(calls.graph)
    ends = [e for g, e in zip(calls.graph, calls.end_ns, strict=True) if g in of]
    latest = max(ends, default=0)
    ends = sorted(e for e in ends if latest - e <= _RATE_NS)
    what = "steps" if last is not None else "calls"
    if len(ends) < _LEAST or ends[-1] == ends[0]:
        return None, what
    return (len(ends) - 1) * 1e9 / (ends[-1] - ends[0]), what
