"""The largest figures of a profile side by side, where several parts have one."""

from __future__ import annotations

from collections.abc import Iterator

from ..columns import Column, Unit
from ..format import format_ns
from ..section import Section, Table
from ..summary import Summary


def totals(s: Summary) -> Section:
    """What each part of the profile has as its peak, most first; nothing where there is one alone.

    A part sees what another does not: compiled code, all code under ``torch.profiler``, the tensors
    of a process. None of these figures is wrong, and the largest is what must fit.
    """
    rows = sorted((row for row in _rows(s) if row[0]), key=lambda row: -row[0])
    columns = (Column("bytes", Unit.BYTES), Column("what"), Column("seen by"))
    table = Table(columns, rows, least=len(rows), brief=4)
    several = bool(s.dataflow or s.tracker) and len(rows) > 1
    if not several:
        return Section("", "")
    return Section("totals", "Peaks", tables=(table,), name="peaks side by side", spare=1)


def _rows(s: Summary) -> Iterator[tuple[int, str, str]]:
    for a in s.profile.accounts:
        yield a.reserved, f"reserved on {a.device}", "torch's allocator"
        yield a.most_allocated, f"allocated on {a.device}", "torch's allocator"
    for p in s.dataflow:
        after = f"the data flow, {format_ns(p.after_ns)} into the torch.profiler run"
        yield p.nbytes, f"live on {p.device}, eager code included", after
    for device, nbytes in s.device_peaks.items():
        yield nbytes, f"live on {device}, of compiled code", "the backend, replays included"
    if s.tracker is None:
        return
    if s.tracker.resident is not None:
        yield s.tracker.resident, "resident in the process", "the tracker's snapshots"
    yield s.tracker.tensors, "live Python tensors, all devices", "the tracker's snapshots"
    known = {a.device for a in s.profile.accounts} | {"cpu"}
    for device, highest in s.tracker.devices.items():
        if highest and device not in known:
            yield highest, f"allocated on {device}", "the tracker's snapshots"
