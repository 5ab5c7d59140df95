"""A data-flow profile as objects of the one model, which profile files and all views have; and a
reading of these at the peak."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from memprof.profiler.live.attribution import Breakdown, View, data_flow_breakdown
from memprof.profiler.model import (
    Category,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowLeak,
    DataFlowStorage,
    SourceFrame,
)

from .categories import CATEGORIES, ORDER
from .columns import NODE
from .lines import frames_of_events
from .live import by_category, leaks, live_rows, thinned
from .profile import DataFlowProfile

POINTS = 20_000
"""Times a device at most; a page or a file has no use for more."""
LEAKS = 1_000
"""Storages that outlived their step, a device at most."""


def data_flow_columns(
    profile: DataFlowProfile, perf_origin_ns: int = 0, *, points: int = POINTS
) -> DataFlowColumns:
    """Returns what a profile file keeps of a data-flow profile.

    Args:
        profile: from ``profile_memory``.
        perf_origin_ns: ``Profile.perf_origin_ns``: what to take from times of the trace, which
            count from the epoch, to have the clock of the call log.
        points: times a device at most. Of each stretch of time that becomes one, the instant
            with the most bytes is kept, so that peaks stay.
    """
    return DataFlowColumns(
        [data_flow_device(profile, d, perf_origin_ns, points) for d in profile.devices],
        _notes(profile),
    )


def _notes(profile: DataFlowProfile) -> list[str]:
    notes = []
    if (c := profile.compiled) is not None:
        notes.append(
            f"{c.matched:,} of {c.calls:,} compiled calls are known allocation by allocation"
        )
        notes += [f"{n:,} compiled calls are not: {why}" for why, n in sorted(c.unmatched.items())]
    if skipped := profile.columns.skipped_ns:
        notes.append(f"{skipped / 1e9:.1f} s of compilation were not looked at")
    return notes


def data_flow_device(
    profile: DataFlowProfile, device: str, perf_origin_ns: int = 0, points: int = POINTS
) -> DataFlowDevice:
    """Makes the model's record of one device of a data-flow profile.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    table = thinned(by_category(profile, device), points)
    if not len(table.time):
        return DataFlowDevice(device)
    index = profile.device_index(device)
    peak = int(np.argmax(table.totals))
    time = int(table.time[peak])
    start, caching = profile.columns.allocations.start, profile.columns.caching_row
    on_it = profile.columns.allocations.device[caching] == index
    before = np.flatnonzero(on_it & (start[caching] <= time))
    last = before[np.argmax(start[caching[before]])] if len(before) else None
    held = leaks(profile, index, LEAKS)
    # Together: finding lines is a walk over the whole trace.
    rows = [*live_rows(profile, index, time).tolist(), *(row for row, _, _ in held)]
    lines = frames(profile, rows, time)
    leaked = []
    for row, step, steps in held:
        category = profile.category(row, sys.maxsize)  # of its last version
        storage = _described(profile, row, None, category, lines, perf_origin_ns)
        leaked.append(DataFlowLeak(storage, step, steps))
    return DataFlowDevice(
        device=device,
        time_ns=(table.time - perf_origin_ns).tolist(),
        bytes={
            CATEGORIES[number]: table.bytes[:, i].tolist()
            for i, number in enumerate(ORDER)
            if table.bytes[:, i].any()
        },
        peak=peak,
        live=storages_at(profile, index, time, perf_origin_ns, lines),
        leaks=leaked,
        reserved=None if last is None else int(profile.columns.caching_reserved[last]),
        allocated=None if last is None else int(profile.columns.caching_allocated[last]),
    )


def storages_at(
    profile: DataFlowProfile,
    device: int,
    time: int,
    origin: int = 0,
    lines: Mapping[int, SourceFrame] | None = None,
) -> list[DataFlowStorage]:
    """Storages live at a time (ns) on a device, given by its index, largest first. ``origin`` is
    what to take from times to have the clock of the call log; ``lines`` are ``frames`` of the
    storages, where they are known already."""
    rows = live_rows(profile, device, time).tolist()
    lines = frames(profile, rows, time) if lines is None else lines
    versions = profile.versions_at(time)
    leaves = profile.columns.leaves
    backward = np.sort(leaves.start[leaves.backward == NODE])
    out = []
    for row in rows:
        category = profile.category(row, versions[row])
        # One of the backward's nodes begins in its life.
        born, died = np.searchsorted(backward, profile.storages.life(row))
        awaited = category is Category.ACTIVATION and bool(born < died)
        out.append(_described(profile, row, time, category, lines, origin, awaited))
    return out


def frames(
    profile: DataFlowProfile, storages: Iterable[int], time: int | None = None
) -> dict[int, SourceFrame]:
    """The line of user code that made each storage, or whose value is in it at a time (ns),
    where it is known.

    Compiled code names the line that its FX node came from; for the rest the trace is
    walked once more, down to these allocations only.
    """
    out: dict[int, SourceFrame] = {}
    events: dict[int, list[int]] = {}
    for storage in dict.fromkeys(storages):
        row = int(profile.storages.created[storage])
        if row < 0:
            continue
        owner = profile.owner(storage, time)
        if owner is not None and owner.node is not None and owner.node.frame is not None:
            out[storage] = owner.node.frame
            continue
        events.setdefault(int(profile.columns.allocations.event[row]), []).append(storage)
    for event, frame in frames_of_events(profile.columns, set(events)).items():
        out.update(dict.fromkeys(events[event], frame))
    return out


def _described(
    profile: DataFlowProfile,
    row: int,
    time: int | None,
    category: Category,
    lines: Mapping[int, SourceFrame],
    origin: int,
    awaited: bool = False,
) -> DataFlowStorage:
    """A storage as it is at a time (ns), or when it is made."""
    owner = profile.owner(row, time)
    known = int(profile.storages.created[row]) >= 0
    return DataFlowStorage(
        nbytes=int(profile.storages.size[row]),
        category=category,
        op=profile.operator(row, time),
        module=profile.module(row, time),
        frame=lines.get(row),
        created_ns=profile.storages.life(row)[0] - origin if known else None,
        graph=None if owner is None else owner.graph.id,
        awaited=awaited,
        why=profile.why_unknown(row) if category is Category.UNKNOWN else "",
    )


@dataclass(frozen=True, slots=True, repr=False)
class PeakReport:
    """The peak of one device.

    Attributes:
        device: its live bytes over time, what is live at the peak, and what the allocator held.
        time_ns: of the peak, since the epoch; 0 where nothing was ever live.
        nbytes: live bytes then.
        categories, modules, operators, lines: the live bytes by each.
        saved: largest activations that wait for the backward at that time.
        leaks: largest storages of the whole trace that outlived their step.
    """

    device: DataFlowDevice
    time_ns: int
    nbytes: int
    categories: Breakdown
    modules: Breakdown
    operators: Breakdown
    lines: Breakdown
    saved: list[DataFlowStorage]
    leaks: list[DataFlowLeak]

    def __repr__(self) -> str:
        leaks = f", {len(self.leaks)} outlived their step" if self.leaks else ""
        return f"<PeakReport: {self.nbytes:,} bytes on {self.device.device}{leaks}>"


def peak_report(profile: DataFlowProfile, device: str, *, largest: int = 10) -> PeakReport:
    """Returns what is live at the peak of a device, and why.

    Args:
        profile: from ``profile_memory``.
        device: e.g. ``cpu`` or ``cuda:0``.
        largest: how many saved activations and leak suspects to list.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    found = data_flow_device(profile, device)
    at = found.peak
    return PeakReport(
        device=found,
        time_ns=0 if at is None else found.time_ns[at],
        nbytes=0 if at is None else found.bytes_at(at),
        categories=data_flow_breakdown(found.live, View.CATEGORY),
        modules=data_flow_breakdown(found.live, View.MODULE),
        operators=data_flow_breakdown(found.live, View.NODE),
        lines=data_flow_breakdown(found.live, View.LINE),
        saved=[s for s in found.live if s.awaited][:largest],
        leaks=found.leaks[:largest],
    )
