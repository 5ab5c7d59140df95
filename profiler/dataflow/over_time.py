"""Bytes by category over time: the one live curve of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .categories import ORDER
from .columns import Bytes, Ints
from .profile import DataFlowProfile
from .storages import Action

_POSITION = np.empty(len(ORDER), np.uint8)
_POSITION[list(ORDER)] = np.arange(len(ORDER))


@dataclass(slots=True)
class BytesByCategory:
    """Live bytes of one device.

    Attributes:
        time: one entry a distinct time, ascending; in the unit that was asked for. What was there
            before the trace counts from the first event on, as an entry of its own.
        bytes: shape (times, categories), columns as in ``ORDER``.
    """

    time: Ints
    bytes: Ints

    @property
    def totals(self) -> Ints:
        """Bytes of all categories at each time."""
        return np.asarray(self.bytes.sum(axis=1))

    def total_at(self, time: int) -> int:
        """Bytes of all categories at a time."""
        at = int(np.searchsorted(self.time, time, side="right")) - 1
        return int(self.bytes[at].sum()) if at >= 0 else 0


def deltas(profile: DataFlowProfile, device: int) -> tuple[Ints, Bytes, Ints]:
    """Times (ns, -1 for before the trace), columns of ``ORDER`` and signed bytes.

    An increment of a version is two changes: out of one category, into the other.
    """
    t = profile.changes
    rows = np.flatnonzero(t.device == device).astype(np.int32)
    twice = t.action[rows] == Action.INCREMENT_VERSION
    entry = np.repeat(rows, 1 + twice.view(np.uint8))
    second = np.zeros(len(entry), np.bool_)
    second[1:] = entry[1:] == entry[:-1]
    action = t.action[entry]
    leaving = (action == Action.DESTROY) | ((action == Action.INCREMENT_VERSION) & ~second)
    before, after = profile.change_categories()
    column = before[entry]
    column[second] = after[entry[second]]
    del before, after, action, second
    size = t.storages.size[t.storage[entry]]
    np.negative(size, out=size, where=leaving)
    return t.time[entry], _POSITION[column], size


def by_category(profile: DataFlowProfile, device: str) -> BytesByCategory:
    """Live bytes by category after every change, times in ns.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    time, column, size = deltas(profile, profile.device_index(device))
    table = _accumulate(time, column, size)
    if len(table.time) and table.time[0] < 0:  # what was there before, and nothing changed it
        table.time[0] = profile.columns.begin
    return table


def by_category_us(profile: DataFlowProfile, device: str) -> BytesByCategory:
    """The same with times in µs, rounded the way torch's exports are.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    time, column, size = deltas(profile, profile.device_index(device))
    # Through a float, so that files agree with torch's to the last digit.
    us = np.asarray([int(t / 1000) if t != -1 else -1 for t in time.tolist()], np.int64)
    return _accumulate(us, column, size)


def _accumulate(time: Ints, column: Bytes, size: Ints) -> BytesByCategory:
    # The timeline is sorted by time, so equal times are neighbours.
    starts = np.diff(time, prepend=-2) != 0
    times = time[starts]
    # Index of each change in the table laid out flat, as wide as numpy wants indices.
    cell = np.cumsum(starts, dtype=np.intp)
    cell -= 1
    cell *= len(ORDER)
    cell += column
    del starts
    # No category has more bytes than all together have at some time; half the width will do
    # for most traces, and sums of such integers are of 64 bits again.
    most = int(np.cumsum(size).max(initial=0))
    table = np.zeros((len(times), len(ORDER)), np.int32 if most < 1 << 31 else np.int64)
    np.add.at(table.reshape(-1), cell, size.astype(table.dtype, copy=False))
    del cell
    np.cumsum(table, axis=0, out=table)
    if len(times) > 1 and times[0] < 0:
        times[0] = times[1]
    return BytesByCategory(times, table)


def distinct(table: BytesByCategory) -> BytesByCategory:
    """``table`` with a time of its own, just before the first change, for what was there before."""
    if len(table.time) > 1 and table.time[0] == table.time[1]:
        time = table.time.copy()
        time[0] -= 1
        return BytesByCategory(time, table.bytes)
    return table


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
