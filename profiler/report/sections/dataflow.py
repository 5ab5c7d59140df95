"""Live memory of all code, eager and compiled, as the events of ``torch.profiler`` tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...breakdown import View, data_flow_breakdown
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
            tables += [_by(devices[p.device], of, caption) for of, caption in _VIEWS.items()]
            tables.append(_live(devices[p.device], p.nbytes, graphs or {}))
            view = f"curve dataflow {p.device}"
        tables += [table for table in (_unknown(p), _leaks(p)) if table.rows]
        parts.append(Section("", title, tuple(_notes(p, show)), tuple(tables), view=view))
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


_VIEWS = {
    View.MODULE: "By module at that peak",
    View.NODE: "By operator at that peak",
    View.LINE: "By source line at that peak",
}


def _notes(p: DataFlowPeak, show: Show) -> Iterator[Note]:
    yield Note(f"{p.times:,} changes.")
    if p.reserved is not None and p.allocated is not None:
        idle = show(p.reserved - p.allocated)
        yield Note(f"The allocator held {show(p.reserved)} then, {idle} of it idle.")
    if p.replay_reserved:
        yield Note(
            f"Pools of CUDA graphs and the arena hold {show(p.replay_reserved)} from the system; "
            "what is live in them is counted here."
        )
    for note in p.notes:
        yield Note(f"{note}.")


def _by(device: DataFlowDevice, view: View, caption: str) -> Table:
    found = data_flow_breakdown(device.live, view)
    columns = (
        Column("bytes", Unit.BYTES),
        Column("share", Unit.SHARE, whole=found.total),
        Column(view.value, Unit.CODE),
    )
    rows = [
        *((s.nbytes, s.nbytes, s.key or "(root)") for s in found.parts),
        *((s.nbytes, s.nbytes, f"({s.key})") for s in found.remainder),
    ]
    rows = sorted(rows, key=lambda row: -row[0])
    return Table(columns, rows, caption=caption, most=_MOST, folded=True, only="page")


def _unknown(p: DataFlowPeak) -> Table:
    columns = (Column("bytes", Unit.BYTES), Column("why", fold=True))
    rows = [(nbytes, why) for why, nbytes in p.unknown.items()]
    return Table(columns, rows, caption="Without a category")


def _leaks(p: DataFlowPeak) -> Table:
    columns = (
        Column("bytes", Unit.BYTES),
        Column("made in step", Unit.COUNT),
        Column("steps it outlived", Unit.COUNT),
        Column("category", Unit.CATEGORY),
        Column("made by", Unit.CODE),
        Column("module", Unit.CODE, below=True),
        Column("source line", Unit.FRAME, below=True),
    )
    rows = [
        (
            *(s.nbytes, leak.made_in, leak.held_for, s.category.value),
            *(s.op or "unknown", module_name(s.module), s.frame),
        )
        for leak in p.leaks
        for s in (leak.storage,)
    ]
    return Table(columns, rows, caption="Outlives its training step, the largest")


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
