"""A data-flow profile as objects of the model that files and views have: what is live at an
instant, bytes by category over time, and the peak.

Note [Bytes at an instant]
~~~~~~~~~~~~~~~~~~~~~~~~~~
The bytes at time t are those of storages born at or before t and released after t;
storages that were there before count from the start, whether they are ever released or
not. A storage that is written to keeps its bytes and may change its category: the
version is that of the last write before t.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from memprof.profiler.model import (
    Category,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowStorage,
    SourceFrame,
)

from ._torch_compat import DESTROY, INCREMENT_VERSION
from .categories import CATEGORIES, ORDER
from .columns import NODE, Bytes, Ints, differs
from .lines import frames_of_events
from .profile import DataFlowProfile

_POSITION = np.empty(len(ORDER), np.uint8)
_POSITION[list(ORDER)] = np.arange(len(ORDER))


@dataclass(slots=True)
class BytesByCategory:
    """Live bytes of one device."""

    time: Ints
    """Each distinct time, ascending, in the unit that was asked for. What was there before the
    trace has an entry of its own: just before the first change, in µs at it."""
    bytes: Ints  # shape (times, categories), columns as in ``ORDER``

    @property
    def totals(self) -> Ints:
        """Bytes of all categories at each time."""
        return np.asarray(self.bytes.sum(axis=1))


def deltas(profile: DataFlowProfile, device: int) -> tuple[Ints, Bytes, Ints]:
    """Times (ns, -1 for before the trace), columns of ``ORDER`` and signed bytes.

    An increment of a version is two changes: out of one category, into the other.
    """
    t = profile.changes
    rows = np.flatnonzero(t.device == device).astype(np.int32)
    twice = t.action[rows] == INCREMENT_VERSION
    entry = np.repeat(rows, 1 + twice.view(np.uint8))
    second = np.zeros(len(entry), np.bool_)
    second[1:] = entry[1:] == entry[:-1]
    action = t.action[entry]
    leaving = (action == DESTROY) | ((action == INCREMENT_VERSION) & ~second)
    before, after = profile.change_categories()
    column = before[entry]
    column[second] = after[entry[second]]
    del before, after, action, second
    size = t.storages.size[t.storage[entry]]
    np.negative(size, out=size, where=leaving)
    return t.time[entry], _POSITION[column], size


def by_category(profile: DataFlowProfile, device: str, *, us: bool = False) -> BytesByCategory:
    """Live bytes by category after every change; times in ns, or in µs, rounded the way torch's
    exports are.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    time, column, size = deltas(profile, profile.device_index(device))
    if us:  # Through a float, so that files agree with torch's to the last digit.
        time = np.asarray([int(t / 1000) if t != -1 else -1 for t in time.tolist()], np.int64)
    # The timeline is sorted by time, so equal times are neighbours.
    starts = differs(time)
    times = time[starts]
    # Index of each change in the table laid out flat, as wide as numpy wants indices.
    cell = np.cumsum(starts, dtype=np.intp)
    cell -= 1
    cell *= len(ORDER)
    cell += column
    del time, column, starts
    # No category has more bytes than all together have at some time; half the width will do
    # for most traces, and sums of such integers are of 64 bits again.
    most = int(np.cumsum(size).max(initial=0))
    table = np.zeros((len(times), len(ORDER)), np.int32 if most < 1 << 31 else np.int64)
    np.add.at(table.reshape(-1), cell, size.astype(table.dtype, copy=False))
    del cell
    np.cumsum(table, axis=0, out=table)
    if len(times) > 1 and times[0] < 0:
        times[0] = times[1] if us else times[1] - 1
    elif len(times) and times[0] < 0 and not us:
        times[0] = profile.columns.begin
    return BytesByCategory(times, table)


def timeline_points(profile: DataFlowProfile, device: str) -> tuple[list[int], list[list[int]]]:
    """Times (µs) and, at each, bytes by category, as torch's ``export_memory_timeline`` has them.

    A row is a leading 0 and then the categories in the order of ``categories.ORDER``.
    """
    points = by_category(profile, device, us=True)
    table = np.concatenate([np.zeros((len(points.time), 1), np.int64), points.bytes], axis=1)
    return points.time.tolist(), table.tolist()


def raw_timeline(profile: DataFlowProfile, device: str) -> list[tuple[int, int, int, int]]:
    """(time in ns, action, signed bytes, column of ``ORDER``) of every change."""
    index = profile.device_index(device)
    time, column, size = deltas(profile, index)
    changes = profile.changes
    action = changes.action[changes.device == index]
    action = np.repeat(action, 1 + (action == INCREMENT_VERSION))
    return list(zip(time.tolist(), action.tolist(), size.tolist(), column.tolist(), strict=True))


def thinned(table: BytesByCategory, points: int) -> BytesByCategory:
    """At most ``points`` times: of each stretch of time the first with the most bytes, and
    the first and the last of all."""
    n = len(table.time)
    if n <= points:
        return table
    span = max(int(table.time[-1] - table.time[0]), 1)
    bucket = (table.time - table.time[0]) * max(points - 3, 1) // span
    order = np.lexsort((-table.totals, bucket))
    _, first = np.unique(bucket[order], return_index=True)
    keep = np.union1d(order[first], [0, n - 1])
    return BytesByCategory(table.time[keep], table.bytes[keep])


def live_rows(profile: DataFlowProfile, device: int, time: int) -> Ints:
    """Rows of ``DataFlowProfile.storages`` that are live at a time, largest first."""
    s = profile.storages
    live = (s.device == device) & (s.born <= time) & (s.died > time) & (s.size > 0)
    live[: s.keys] &= profile.counted
    rows = np.flatnonzero(live)
    return rows[np.argsort(-s.size[rows], kind="stable")]


POINTS = 20_000
"""Most times a device: a page or a file has no use for more."""


def data_flow_columns(
    profile: DataFlowProfile, perf_origin_ns: int = 0, *, points: int = POINTS
) -> DataFlowColumns:
    """Columns that a profile file keeps of a data-flow profile.

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
    if profile.compiled_calls:
        notes.append(
            f"{profile.compiled_calls:,} compiled calls: known by phase here, and by FX node, "
            "replays of CUDA graphs too, in the report of compiled code"
        )
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
    return DataFlowDevice(
        device=device,
        time_ns=(table.time - perf_origin_ns).tolist(),
        bytes={
            CATEGORIES[number]: table.bytes[:, i].tolist()
            for i, number in enumerate(ORDER)
            if table.bytes[:, i].any()
        },
        peak=peak,
        live=storages_at(profile, index, time, perf_origin_ns),
    )


def storages_at(
    profile: DataFlowProfile,
    device: int,
    time: int,
    origin: int = 0,
) -> list[DataFlowStorage]:
    """Storages live at a time (ns) on a device, given by its index, largest first. ``origin`` is
    what to take from times to have the clock of the call log."""
    rows = live_rows(profile, device, time).tolist()
    lines = frames(profile, rows)
    versions = profile.versions_at(time)
    leaves = profile.columns.leaves
    backward = np.sort(leaves.start[leaves.backward == NODE])
    storages = profile.storages
    born, died = storages.born, storages.died
    out = []
    for row in rows:
        category = profile.category(row, versions[row])
        # One of the backward's nodes begins in its life.
        first, end = np.searchsorted(backward, [born[row], died[row]])
        awaited = category is Category.ACTIVATION and bool(first < end)
        known = int(storages.created[row]) >= 0
        storage = DataFlowStorage(
            nbytes=int(storages.size[row]),
            category=category,
            op=profile.operator(row),
            module=profile.module(row),
            frame=lines.get(row),
            created_ns=int(born[row]) - origin if known else None,
            awaited=awaited,
        )
        out.append(storage)
    return out


def frames(profile: DataFlowProfile, storages: Iterable[int]) -> dict[int, SourceFrame]:
    """The line of user code that made each storage, where it is known: the trace is walked once
    more, down to these allocations only."""
    columns, created = profile.columns, profile.storages.created
    event = {s: int(columns.allocations.event[created[s]]) for s in storages if created[s] >= 0}
    found = frames_of_events(columns, set(event.values()))
    return {storage: found[number] for storage, number in event.items() if number in found}
