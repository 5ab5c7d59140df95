"""Live memory of all code, eager and compiled, as the events of ``torch.profiler`` tell it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...model import DataFlowDevice
from ..format import format_ns
from ..parts import DataFlowPeak
from ..section import Column, Foot, Note, Section, Show, Table, Unit
from .about import module_name

_MOST = 300
"""Storages of a peak in a page, the largest; the rest is added up."""


def dataflow(
    peaks: Iterable[DataFlowPeak],
    show: Show,
    devices: Mapping[str, DataFlowDevice] | None = None,
    graphs: Mapping[int, str] | None = None,
) -> Section:
    """The peak of each device by category.

    Args:
        peaks: one a device.
        show: how bytes are written.
        devices: by name, for a page: what was live then, and a curve of each.
        graphs: labels by id, for a page.
    """
    parts = []
    for p in peaks:
        title = f"Data flow on {p.device}, eager code included: peak {show(p.nbytes)}, "
        title += f"{format_ns(p.after_ns)} into the torch.profiler run"
        tables, view = [_categories(p)], ""
        if devices is not None:
            tables.append(_live(devices[p.device], p.nbytes, graphs or {}))
            view = f"curve dataflow {p.device}"
        notes = (Note(f"{p.times:,} changes."),)
        parts.append(Section("", title, notes, tuple(tables), view=view))
    none = Note("The torch.profiler run has no memory events: was profile_memory=True?")
    empty = devices is not None and not parts
    title = "Data flow, eager code included"
    return Section("dataflow", title, (none,) if empty else (), parts=tuple(parts))


def _categories(p: DataFlowPeak) -> Table:
    columns = (
        Column("bytes", Unit.BYTES),
        Column("share", Unit.SHARE, whole=p.nbytes),
        Column("category", Unit.CATEGORY),
    )
    rows = [(n, n, category.value) for category, n in p.categories.items()]
    foot = (Foot((p.nbytes, p.nbytes, "total")),)
    return Table(columns, rows, foot, least=len(rows), only="text")


def _live(device: DataFlowDevice, total: int, graphs: Mapping[int, str]) -> Table:
    live = sorted(device.live, key=lambda s: -s.nbytes)
    columns = (
        Column("bytes", Unit.BYTES),
        Column("share", Unit.SHARE, whole=total),
        Column("category", Unit.CATEGORY),
        Column("made by", Unit.CODE),
        Column("graph", Unit.CODE, below=True),
        Column("module", Unit.CODE, below=True),
        Column("source line", Unit.FRAME, below=True),
    )
    rows = [
        (
            *(s.nbytes, s.nbytes, s.category.value, s.op or "unknown, or made before the run"),
            *(None if s.graph is None else graphs.get(s.graph), module_name(s.module), s.frame),
        )
        for s in live[:_MOST]
    ]
    rest = sum(s.nbytes for s in live[_MOST:])
    smaller = (rest, rest, "", f"{len(live) - _MOST:,} smaller", "", "", None)
    foot = (Foot((total, total, "", "total", "", "", None)),)
    caption = f"Live on {device.device} at that peak"
    return Table(columns, rows, (Foot(smaller), *foot) if rest else foot, caption, only="page")
