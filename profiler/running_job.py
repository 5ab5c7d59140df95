"""What a job does now, from the file that it writes: for a live view, and of one that has ended.

Note [What a live view may cost]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The job pays nothing for being looked at: its file is read, which it writes in any case. So what is
shown is as old as the last that it wrote (a session writes every 5 s, a tracker with each
snapshot), and its age stands beside it. Who looks reads what is new and works on the latest calls.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from .advice import advise
from .attribution import Attribution, View
from .devices import main_device, timelines
from .following import Followed, Writer
from .growth import growth
from .model import DeviceTotals, GraphKind, Growth, Process, Profile

STALLED_NS = 60_000_000_000
"""A job that writes nothing new for so long is said to do nothing."""
_RATE_NS = 60_000_000_000
"""Steps of the last minute are counted."""
_LEAST = 3
"""Steps that a rate needs."""
_FINDINGS = 3
_CPU = "resident (host)"


@dataclass(frozen=True, slots=True)
class Present:
    """One process, as far as its file tells.

    Attributes:
        path: of the file.
        writer: whether it still runs.
        process: whose file it is, with 0 and "" where that is not known.
        age_ns: how long ago the latest was written, None if not known.
        calls: of compiled code, so far.
        rate: steps a second in the last minute of the log, None without two of them.
        steps: what a step is: backwards of a graph, else calls.
        devices: by the allocators' counters; the process's resident bytes last.
        peak: of compiled code, on ``peak_device``; None without calls.
        peak_device: the device that has it.
        categories: bytes at that peak, largest first.
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
        """Whether it runs, and has had nothing new to write for ``STALLED_NS``."""
        running = self.writer in (Writer.ALIVE, Writer.UNKNOWN)
        return running and self.age_ns is not None and self.age_ns > STALLED_NS


class JobFile:
    """Looks at one file again and again."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = Followed(path)
        self._seen: Profile | None = None
        self._made: Present | None = None
        self._first: dict[str, int] = {}

    def look(self, now_ns: int | None = None) -> Present:
        """What the file tells now.

        Args:
            now_ns: ``time.time_ns()``, for tests.

        Raises:
            ProfileError: as ``Followed.profile``.
        """
        profile = self._file.profile()
        if self._made is None or profile is not self._seen:
            self._made, self._seen = self._of(profile), profile
        now_ns = time.time_ns() if now_ns is None else now_ns
        age = max(0, now_ns - profile.created_ns) if profile.created_ns else None
        return replace(self._made, writer=self._file.writer(), age_ns=age)

    def _of(self, profile: Profile) -> Present:
        devices = _devices(profile)
        for d in devices:
            self._first.setdefault(d.device, d.reserved)
        process = profile.process
        if process is None and profile.tracker is not None:
            about = profile.tracker.metadata
            process = Process(host=about.host, pid=about.pid)
        rate, steps = _rate(profile)
        found = Present(
            self.path,
            Writer.UNKNOWN,
            process or Process(),
            calls=len(profile.calls) + profile.calls.dropped,
            rate=rate,
            steps=steps,
            devices=devices,
            grows=growth(profile),
            since={d.device: d.reserved - self._first[d.device] for d in devices},
        )
        return _with_compiled(found, profile)


def _devices(profile: Profile) -> list[DeviceTotals]:
    """The allocators' counters, the latest; of a tracker those of its last snapshot."""
    found = list(profile.totals)
    last = profile.tracker.snapshots[-1] if profile.tracker and profile.tracker.snapshots else None
    resident, most = profile.resident, 0
    if last is not None and profile.tracker is not None:
        every = profile.tracker.snapshots
        resident = last.resident_bytes if resident is None else resident
        most = max(s.resident_bytes or 0 for s in every)
        known = {d.device for d in found}
        for name, m in last.devices.items():
            if name != "cpu" and name not in known and m.reserved_bytes:
                held = (s.devices[name].reserved_bytes or 0 for s in every if name in s.devices)
                found.append(
                    DeviceTotals(
                        *(name, m.total_bytes or 0, m.allocated_bytes or 0, m.reserved_bytes),
                        *(m.peak_bytes or 0, max(held)),
                    )
                )
    if resident:
        found.append(DeviceTotals(_CPU, 0, 0, resident, 0, max(most, resident)))
    return found


def _rate(profile: Profile) -> tuple[float | None, str]:
    """Steps a second, and what a step is."""
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


def _with_compiled(found: Present, profile: Profile) -> Present:
    """With what compiled code had at its peak, and what could be changed."""
    of = timelines(profile)
    device = main_device(of)
    timeline, attribution = of[device], Attribution(profile)
    at = timeline.peak()
    advice = [
        (f.nbytes, f.whose, f.title) for f in advise(profile, timeline, attribution)[:_FINDINGS]
    ]
    if at is None:
        return replace(found, findings=advice)
    live = attribution.breakdown(timeline.live_at(at.call, at.instant), View.CATEGORY)
    return replace(
        found,
        findings=advice,
        peak=at.nbytes,
        peak_device=device,
        categories=[(p.key, p.nbytes) for p in (*live.parts, *live.remainder)],
    )
