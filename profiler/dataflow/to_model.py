"""A data-flow profile as objects of the one model, which profile files and all views have."""

from __future__ import annotations

import numpy as np

from memprof.profiler.model import (
    DataFlowColumns,
    DataFlowDevice,
    DataFlowFailure,
    SourceFrame,
)

from .categories import CATEGORIES, ORDER
from .columns import ScopeKind
from .live import frames, leaked, leaks, live_rows, storages_at
from .over_time import by_category, distinct, thinned
from .profile import DataFlowProfile
from .source import frames_of_events

POINTS = 20_000
"""Times a device at most; a page or a file has no use for more."""
LEAKS = 1_000
"""Storages that outlived their step, a device at most."""


def data_flow_columns(
    profile: DataFlowProfile, perf_origin_ns: int = 0, *, points: int = POINTS
) -> DataFlowColumns:
    """What a profile file keeps of a data-flow profile.

    Args:
        profile: from ``profile_memory``.
        perf_origin_ns: ``Profile.perf_origin_ns``: what to take from times of the trace, which
            count from the epoch, to have the clock of the call log.
        points: times a device at most. Of each stretch of time that becomes one, the instant
            with the most bytes is kept, so that peaks stay.
    """
    return DataFlowColumns(
        [data_flow_device(profile, d, perf_origin_ns, points) for d in profile.devices],
        failures(profile, perf_origin_ns),
        _notes(profile),
    )


def _notes(profile: DataFlowProfile) -> list[str]:
    notes = []
    if (c := profile.compiled) is not None:
        replayed = f", {c.replayed:,} of them replayed" if c.replayed else ""
        notes.append(
            f"{c.matched:,} of {c.calls:,} compiled calls are known allocation by "
            f"allocation{replayed}"
        )
        notes += [f"{n:,} compiled calls are not: {why}" for why, n in sorted(c.unmatched.items())]
    if skipped := profile.columns.skipped_ns:
        notes.append(f"{skipped / 1e9:.1f} s of compilation were not looked at")
    return notes


def data_flow_device(
    profile: DataFlowProfile, device: str, perf_origin_ns: int = 0, points: int = POINTS
) -> DataFlowDevice:
    """The same of one device.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    table = thinned(distinct(by_category(profile, device)), points)
    if not len(table.time):
        return DataFlowDevice(device)
    index = profile.device_index(device)
    peak = int(np.argmax(table.totals))
    time = int(table.time[peak])
    a = profile.columns.allocations
    told = np.flatnonzero((a.device == index) & (a.reserved >= 0) & (a.start <= time))
    last = int(told[np.argmax(a.start[told])]) if len(told) else None
    held = leaks(profile, index, LEAKS)
    # Together: finding lines is a walk over the whole trace.
    rows = [*live_rows(profile, index, time).tolist(), *(row for row, _, _ in held)]
    lines = frames(profile, rows, time)
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
        leaks=leaked(profile, held, perf_origin_ns, lines),
        reserved=None if last is None else int(a.reserved[last]),
        allocated=None if last is None else int(a.allocated[last]),
        replay_reserved=sum(m.reserved for m in profile.memory if m.device == device),
    )


def failures(profile: DataFlowProfile, perf_origin_ns: int = 0) -> list[DataFlowFailure]:
    """Allocations that failed for want of memory, in order of time."""
    columns = profile.columns
    found = columns.out_of_memory
    if not found:
        return []
    known = columns.devices
    live = {d: by_category(profile, str(d)) for f in found if (d := f.device) in known}
    lines: dict[int, SourceFrame] = {}
    if columns.kineto is not None:
        events = {f.event for f in found}
        lines = frames_of_events(columns.kineto, events, skip_compiler=columns.skip_compiler)
    out = []
    for f in found:
        nbytes = None if f.device is None else 0
        if f.device in live:
            nbytes = live[f.device].total_at(f.time)
        scope = f.scope
        while scope >= 0 and columns.scopes.kind[scope] != ScopeKind.MODULE:
            scope = int(columns.scopes.parent[scope])
        out.append(
            DataFlowFailure(
                f.time - perf_origin_ns,
                None if f.device is None else str(f.device),
                nbytes,
                columns.names[f.op] if f.op >= 0 else None,
                profile.module_path(scope) if scope >= 0 else None,
                lines.get(f.event),
            )
        )
    return out
