"""All that was reserved on a device: the first line is what must fit, the rows add up to it."""

from __future__ import annotations

from collections.abc import Callable

from ...model import BEFORE, AccountRow, DeviceAccount
from ..format import format_ns, shorten_path
from ..section import Cell, Column, Foot, Note, Section, Show, Table, Tone, Unit

_AUTOGRAD = "(no Python was running: autograd)"
_BYTES = Column("bytes", Unit.BYTES, adds=True)


def of_account(a: DeviceAccount, show: Show) -> Section:
    """The account of one device."""
    parts = (
        _purposes(a),
        _outside(a),
        _groups(a, "module", lambda r: r.modules or "(outside of modules)"),
        _groups(a, "source line", _location),
        _blocks(a),
        _host_reads(a),
    )
    simulated = ", simulated: kernels computed nothing" if a.simulated else ""
    title = f"{a.name or a.device}, {show(a.total)}{simulated}"
    return Section("", title, *_about(a, show), parts=tuple(p for p in parts if p.tables))


def _about(a: DeviceAccount, show: Show) -> tuple[tuple[Note, ...], tuple[Table, ...]]:
    where = ""
    if a.phase:
        where = f" in the {a.phase} of step {a.step}" if a.phase != "optimizer" else ""
        where = where or f" in optimizer step {a.step}"
    notes = [
        Note(f"Peak reserved on {a.device}: {show(a.reserved)} ({a.reserved:,} B){where}"),
        Note(f"{show(a.most_allocated)} allocated at most"),
    ]
    if a.outside:
        notes.append(Note(f"{show(a.needed)} with what is outside of torch's allocator"))
    if a.elapsed_ns:
        steps = f"{a.steps:,} optimizer step{'s' if a.steps != 1 else ''} in " if a.steps else ""
        notes.append(Note(f"{steps}{format_ns(a.elapsed_ns)}; ended: {a.ended}"))
    notes += [Note(note, Tone.WARN) for note in a.notes]
    columns = (
        Column("", Unit.TEXT),
        Column("times", Unit.TIMES, adds=True),
        Column("module", Unit.CODE),
        Column("source line", Unit.FRAME),
    )
    failed = [
        (f"out of memory: {show(f.nbytes)} asked for", f.count, f.modules, f.frame)
        for f in a.failed
    ]
    table = Table(columns, failed, rest="more requests could not be served", lines=True)
    return tuple(notes), (table,) if failed else ()


def _purposes(a: DeviceAccount) -> Section:
    rows = [(n, n, what) for what, n in a.parts() if n or what == "not explained"]
    columns = (_BYTES, Column("share", Unit.SHARE, whole=a.reserved), Column("what"))
    foot = (Foot((a.reserved, a.reserved, "total reserved")),)
    table = Table(columns, rows, foot, least=len(rows))
    return Section("", "What is reserved at the peak", tables=(table,))


def _outside(a: DeviceAccount) -> Section:
    rows = [(o.nbytes, o.what, f"{'estimate: ' * o.estimated}{o.source}") for o in a.outside]
    table = Table((_BYTES, Column("what"), Column("from", fold=True)), rows, least=len(rows))
    return Section("", "Outside of torch's allocator", tables=(table,) if rows else ())


def _groups(a: DeviceAccount, by: str, key: Callable[[AccountRow], str]) -> Section:
    found: dict[str, int] = {}
    for r in a.rows:
        found[key(r)] = found.get(key(r), 0) + r.nbytes
    share = Column("share", Unit.SHARE, adds=True, whole=a.live)
    rows = [(n, n, name) for name, n in sorted(found.items(), key=lambda item: -item[1])]
    table = Table((_BYTES, share, Column(by, Unit.PATH)), rows)
    return Section("", f"Live at the peak by {by}", tables=(table,) if rows else ())


def _location(r: AccountRow) -> str:
    return _nowhere(r) if r.frame is None else f"{shorten_path(r.frame.file)}:{r.frame.line}"


def _nowhere(r: AccountRow) -> str:
    """What to say of a row without a line."""
    return f"({BEFORE})" if r.detail == BEFORE else _AUTOGRAD


def _blocks(a: DeviceAccount) -> Section:
    columns = (
        _BYTES,
        Column("blocks", Unit.COUNT, adds=True),
        Column("what"),
        Column("code"),
        Column("asked for by", Unit.FRAME),
        Column("module", Unit.CODE, below=True),
        Column("FX nodes of compiled code", Unit.CODE, below=True),
    )
    rows: list[tuple[Cell, ...]] = []
    for r in a.rows:
        code = "compiled" if r.compiled else "eager" if r.frame is not None else "autograd"
        code = "" if r.frame is None and r.detail == BEFORE else code
        rows.append((r.nbytes, r.count, r.what, code, r.frame or _nowhere(r), r.modules, r.nodes))
    title = "Live at the peak, largest first"
    return Section("", title, tables=(Table(columns, rows),) if rows else ())


def _host_reads(a: DeviceAccount) -> Section:
    count = sum(r.count for r in a.host_reads)
    times = "once" if count == 1 else f"{count:,} times"
    rows = [(r.count, r.nbytes, r.frame or _AUTOGRAD) for r in a.host_reads]
    columns = (Column("times", Unit.COUNT, adds=True), _BYTES, Column("source line", Unit.FRAME))
    title = f"The program looked at values {times}; kernels computed none"
    return Section("", title, tables=(Table(columns, rows),) if rows else ())
