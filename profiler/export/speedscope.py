"""Flame graphs of bytes: module → FX node → source line, of a live set or of all allocations, in
speedscope's file format and as collapsed stacks.

speedscope: https://www.speedscope.app/file-format-schema.json, profiles of type ``sampled`` whose
weights are bytes. Collapsed: one line a stack, frames joined by ``;``, a space and the bytes, as
Brendan Gregg's flamegraph.pl and inferno read it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from ..attribution import Attribution, Site, View, module_parts
from ..devices import devices_of
from ..live import Instant, LiveItem
from ..model import DataFlowDevice, DeviceAccount, Profile, SourceFrame
from ..timeline import Timeline
from ..writing import Output
from .walk import Part


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of a stack: what to show, and where in user code, if it is there."""

    name: str
    file: str | None = None
    line: int | None = None


Stack = tuple[Frame, ...]


class Stacks:
    """Adds up bytes by stack. Every byte is in exactly one stack: what compiled code did not
    make, and what nothing is known of, have stacks of their own, named in parentheses."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._attribution = Attribution(timeline.profile)

    def live_at(self, call: int, instant: int) -> Counter[Stack]:
        """Live bytes; they add up to ``timeline.live_at(call, instant).nbytes``."""
        return self._add(
            (i, i.nbytes) for i in self._timeline.live_at(call, instant).items if i.nbytes
        )

    def allocated(self, calls: range) -> Counter[Stack]:
        """Bytes allocated inside ``calls``, freed since or not."""
        kinds = Counter(map(self._timeline.kind, calls))
        example = {self._timeline.kind(call): call for call in reversed(calls)}
        return self._add(
            (after, after.nbytes * count)
            for kind, count in kinds.items()
            for before, after in self._timeline.changes(example[kind])
            if before is None and after is not None and after.nbytes
        )

    def _add(self, items: Iterable[tuple[LiveItem, int]]) -> Counter[Stack]:
        sums: Counter[Stack] = Counter()
        for item, nbytes in items:
            site = self._attribution.site(item.graph, item.storage, item.owner, item.line)
            sums[_stack(site, item)] += nbytes
        return sums


def peak_between(timeline: Timeline, calls: range) -> Instant:
    """The first instant of ``calls``, of which there is one, with the most live bytes."""
    peaks = timeline.bytes_over_time().peak[calls.start : calls.stop]
    best = max(peaks)
    call = calls.start + peaks.index(best)
    deltas = (
        (after.nbytes if after else 0) - (before.nbytes if before else 0)
        for before, after in timeline.changes(call)
    )
    live = list(accumulate(deltas, initial=timeline.live_at(call, 0).nbytes))
    return Instant(call, live.index(best), best)


def data_flow_stacks(device: DataFlowDevice) -> Counter[Stack]:
    """What was live at the peak of a data-flow profile, eager memory included."""
    sums: Counter[Stack] = Counter()
    for s in device.live:
        module = _module(s.module) if s.module is not None else (Frame("(module unknown)"),)
        op = s.op or f"({s.category.label})"
        sums[(*module, Frame(op), *_source(s.frame))] += s.nbytes
    return sums


def account_stacks(account: DeviceAccount) -> Counter[Stack]:
    """What was reserved: purpose → modules → FX nodes → source line. They add up to ``reserved``
    but where more is explained than that, and what is no block has stacks of its own."""
    sums: Counter[Stack] = Counter()
    for r in account.rows:
        modules = tuple(Frame(m) for m in r.modules.split(" > ") if m)
        nodes = (Frame(r.nodes),) if r.nodes else ()
        lines = (*_source(r.frame), *_source(r.library))
        sums[(Frame(r.what), *modules, *nodes, *lines)] += r.nbytes
    for name, _, nbytes in account.other_parts():
        sums[(Frame(f"({name})"),)] += max(nbytes, 0)
    return +sums


def _stack(site: Site, item: LiveItem) -> Stack:
    if site.module is not None:
        module = _module(site.module)
    elif site.outside:
        module = (Frame(f"({site.outside})"),)
    else:
        module = (Frame("(module unknown)"), Frame(f"({site.why.get(View.MODULE, 'unknown')})"))
    if site.outside:
        # A parameter of a known module stands below it, and is still no memory the module made.
        node = Frame(f"({site.outside}) {site.fqn or site.node or item.storage.name}".strip())
    elif site.node is not None:
        node = Frame(f"{site.node} {site.op or ''}".strip())
    else:
        node = Frame(f"(node unknown: {site.why.get(View.NODE, 'unknown')})")
    return (*module, node, *_source(site.frame))


def _module(path: str) -> Stack:
    parts = module_parts(path)
    return (Frame("(root)"), *(Frame(".".join(parts[: i + 1])) for i in range(len(parts))))


def _source(frame: SourceFrame | None) -> Stack:
    if frame is None:
        return ()
    text = frame.code.strip() or frame.function
    name = f"{frame.file.rpartition('/')[2]}:{frame.line} {text}".strip()
    return (Frame(name, frame.file, frame.line),)


def write_speedscope(profile: Profile, file: Output, part: Part) -> None:
    """Write two profiles a device, see ``export_profile``: bytes live at the peak, and allocated by
    all calls; with them those live at the peak of the data flow, and reserved in an account."""
    frames: dict[Frame, int] = {}
    profiles: list[dict[str, Any]] = []

    def add(name: str, sums: Counter[Stack]) -> None:
        samples = [[frames.setdefault(f, len(frames)) for f in stack] for stack in sums]
        figures = {"startValue": 0, "endValue": sums.total(), "weights": list(sums.values())}
        about = {"type": "sampled", "name": name, "unit": "bytes", "samples": samples}
        profiles.append(about | figures)

    calls = part.calls(profile)
    for device in part.devices if calls else ():
        timeline = Timeline(profile, device)
        stacks = Stacks(timeline)
        at = peak_between(timeline, calls)
        live = f"live at the peak, in call {at.call + 1:,}"
        add(f"{device}: {live}", stacks.live_at(at.call, at.instant))
        allocated = f"allocated by calls {calls[0] + 1:,} to {calls[-1] + 1:,}"
        add(f"{device}: {allocated}", stacks.allocated(calls))
    for of in profile.dataflow.devices if profile.dataflow is not None else ():
        add(f"{of.device}: live at the peak of the data-flow profile", data_flow_stacks(of))
    for account in profile.accounts:
        if account.device in part.devices and not account.present:
            when = "at the snapshot" if account.snapshot else "at the peak"
            add(f"{account.device}: reserved {when}", account_stacks(account))
    if not profiles:
        add("no calls", Counter())
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": "memprof",
        "exporter": f"memprof {profile.memprof}",
        "activeProfileIndex": 0,
        "profiles": profiles,
        "shared": {"frames": [*map(_frame, frames)]},
    }
    file.write(json.dumps(document, separators=(",", ":")).encode())


def write_collapsed(profile: Profile, file: Output, part: Part, *, allocated: bool = False) -> None:
    """Write collapsed stacks of what is live at the peak, or of all that calls have ``allocated``,
    freed since or not; see ``export_profile``.

    The first frame is the device. A device that no compiled code used has what was reserved in its
    account.
    """
    calls = part.calls(profile)
    compiled = devices_of(profile) if calls else []
    accounts = {a.device: a for a in profile.accounts if not a.present}
    for device in part.devices:
        if device in compiled:
            timeline = Timeline(profile, device)
            stacks = Stacks(timeline)
            at = None if allocated else peak_between(timeline, calls)
            sums = stacks.live_at(at.call, at.instant) if at else stacks.allocated(calls)
        elif device in accounts and not allocated:
            sums = account_stacks(accounts[device])
        else:
            continue
        lines: Counter[str] = Counter()
        for stack, nbytes in sums.items():
            # The format has no escapes: `;` parts frames, the last space parts the count.
            names = (" ".join(f.name.replace(";", ",").split()) for f in stack)
            lines[";".join((device, *names))] += nbytes
        for line, nbytes in sorted(lines.items()):
            file.write(f"{line} {nbytes}\n".encode("utf-8", "backslashreplace"))


def _frame(frame: Frame) -> dict[str, Any]:
    place = {} if frame.file is None else {"file": frame.file, "line": frame.line}
    return {"name": frame.name, **place}
