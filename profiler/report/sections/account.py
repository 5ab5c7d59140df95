"""All that was reserved on a device: the first line is what must fit, the rows add up to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...model import BEFORE, AccountRow, DeviceAccount, Failure, PoolShare
from .. import failure as words
from ..device_peak import EAGER, FREE, ROUNDING, UNATTRIBUTED, DevicePeak
from ..format import format_ns, shorten_path
from ..section import Cell, Column, Foot, Note, Section, Show, Table, Tone, Unit

_BRIEF = 6
"""Uses of memory in a short text."""
_AUTOGRAD = "(no Python was running: autograd)"
_BYTES = Column("bytes", Unit.BYTES, adds=True)


def of_accounts(
    accounts: Iterable[DeviceAccount], show: Show, peaks: Iterable[DevicePeak] = ()
) -> tuple[Section, ...]:
    """Accounts, each with the peak of its device if there is one."""
    of = {p.device: p for p in peaks}
    sections = [_of_account(a, show, of.get(a.device)) for a in accounts]
    # The one with most comes first.
    return (*sections[:1], *(replace(s, detail=True, name="other devices") for s in sections[1:]))


def _of_account(a: DeviceAccount, show: Show, peak: DevicePeak | None) -> Section:
    """The account of one device.

    Args:
        a: the account.
        show: bytes in words.
        peak: of the device, if ``a`` is of the present and more is known of the peak.
    """
    every: tuple[Section, ...] = (_purposes(a), _outside(a))
    if peak is not None:
        now = replace(_purposes(a), detail=True, name="what is reserved now")
        every = (_peak(peak), now, _outside(a))
    if a.present:
        every += (_holders(a),)
    elif a.snapshot:
        every += (*_of_snapshot(a), *_peak_of_history(a, show))
    else:
        every += (
            replace(
                _groups(a, "module", lambda r: r.modules or "(outside of modules)"),
                detail=True,
                name="modules of all reserved memory",
            ),
            replace(_groups(a, "source line", _location), name="its source lines", spare=1),
            replace(_blocks(a), detail=True, name="its blocks"),
            replace(_host_reads(a), detail=True, name="reads of values"),
        )
    parts = tuple(p for p in every if p.tables or p.parts)
    simulated = ", simulated: kernels computed nothing" if a.simulated else ""
    title = f"{a.name or a.device}, {show(a.total)}{simulated}"
    if a.snapshot:
        title = f"Snapshot of {a.device}"
    if a.failure is None:
        return Section("", title, *_about(a, show), parts=parts)
    return Section("", *_failed(a, a.failure, title, show), parts=(_helps(a.failure), *parts))


def _of_snapshot(a: DeviceAccount) -> tuple[Section, ...]:
    """What a snapshot tells of the blocks of an instant, as far as it does."""
    parts = [_pools(a)]
    if any(r.modules for r in a.rows):
        parts.append(_groups(a, "module", lambda r: r.modules or "(not known)"))
    if any(r.nodes for r in a.rows):
        parts.append(_groups(a, "FX node", lambda r: r.nodes or "(no FX node known)"))
    return (*parts, _groups(a, "source line", _location), _blocks(a))


def _pools(a: DeviceAccount) -> Section:
    columns = (
        Column("reserved", Unit.BYTES, adds=True),
        Column("free", Unit.BYTES, "In no block", adds=True),
        Column("largest", Unit.BYTES, "The largest free range: what fits without a new segment"),
        Column("in pieces", Unit.FIGURE, "Free bytes that are not in the largest range"),
        Column("segments", Unit.COUNT, adds=True),
        Column("pool"),
    )
    rows: list[tuple[Cell, ...]] = [
        (p.reserved, p.free, p.largest_free, _pieces(p), p.segments, p.name) for p in a.pools
    ]
    return Section("", f"Pools {_when(a)}", tables=(Table(columns, rows),) if rows else ())


def _pieces(p: PoolShare) -> str | None:
    return f"{(p.free - p.largest_free) / p.free:.0%}" if p.free else None


def _peak_of_history(a: DeviceAccount, show: Show) -> tuple[Section, ...]:
    if a.peak is None:
        return ()
    notes, tables = _about(a.peak, show)
    parts = (_purposes(a.peak), *_of_snapshot(a.peak))
    title = f"The fullest instant of the history of {a.device}"
    return (Section("", title, notes, tables, tuple(p for p in parts if p.tables)),)


def _failed(a: DeviceAccount, f: Failure, device: str, show: Show) -> tuple[str, tuple[Note, ...]]:
    """Title and notes about the allocation that failed."""
    code = f.frame.code if f.frame is not None else ""
    notes = [Note(f"it did not fit: {words.why(a, f, show)}", Tone.ERROR)]
    if code:
        notes.insert(0, Note(code, Tone.STRONG))
    if f.doing:
        said = f"memprof was {f.doing}; a call that fails there is made again without"
        notes.append(Note(said, Tone.WARN))
    if f.count > 1 or f.earlier:
        notes.append(Note(_before(f), Tone.WARN))
    notes += [
        Note(f"{device}{_in_phase(a)}"),
        Note(f"{show(a.reserved)} ({a.reserved:,} B) reserved, {show(f.device_free)} left"),
    ]
    if f.outside:
        notes.append(
            Note(f"{show(f.outside)} outside of torch's allocator: CUDA, libraries, others")
        )
    notes += [Note(note, Tone.WARN) for note in a.notes]
    title = f"Out of memory on {a.device}: {words.asked(f, show)} asked for {words.asker(f)}"
    return title, tuple(notes)


def _before(f: Failure) -> str:
    here = f"failed {f.count:,} times here" if f.count > 1 else ""
    others = f"{f.earlier:,} other requests had failed before" if f.earlier else ""
    return "; ".join(text for text in (here, others) if text)


def _helps(f: Failure) -> Section:
    columns = (Column("", Unit.BYTES), Column("", fold=True), Column("", Unit.FRAME))
    rows = [(r.nbytes, r.change, r.frame) for r in f.reliefs]
    table = Table(columns, rows, least=len(rows), lines=True)
    return Section(
        "", "What would have helped, and how much at most", tables=(table,) if rows else ()
    )


def _about(a: DeviceAccount, show: Show) -> tuple[tuple[Note, ...], tuple[Table, ...]]:
    if a.snapshot:
        notes = [
            Note(f"Reserved when it was taken: {show(a.reserved)} ({a.reserved:,} B)"),
            Note(f"{show(a.allocated)} ({a.allocated:,} B) of it allocated"),
        ]
    else:
        reserved = f"{show(a.reserved)} ({a.reserved:,} B){_in_phase(a)}"
        notes = [
            Note(f"Peak reserved on {a.device}: {reserved}"),
            Note(f"{show(a.most_allocated)} allocated at most{_more_than_now(a, show)}"),
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


def _more_than_now(a: DeviceAccount, show: Show) -> str:
    gone = a.most_allocated - a.allocated if a.present else 0
    return f": {show(gone)} more than now, of which nobody took note" if gone > 0 else ""


def _in_phase(a: DeviceAccount) -> str:
    if a.phase == "optimizer":
        return f" in optimizer step {a.step}"
    return f" in the {a.phase} of step {a.step}" if a.phase else ""


def _purposes(a: DeviceAccount) -> Section:
    uses = {p.label for p in a.by_purpose()}
    parts = [(n, n, what) for what, n in a.parts() if n or what == "not explained"]
    rows = [row for row in parts if row[2] in uses]
    share = Column("share", Unit.SHARE, adds=True, whole=a.reserved)
    columns = (_BYTES, share, Column("what"))
    others = [row for row in parts if row[2] not in uses]
    foot = tuple(Foot(row) for row in (*others, (a.reserved, a.reserved, "total reserved")))
    table = Table(columns, rows, foot, least=len(rows), brief=_BRIEF)
    return Section("", f"What is reserved {_when(a)}", tables=(table,))


def _peak(peak: DevicePeak) -> Section:
    rows = [(n, n, what) for what, n in peak.parts]
    share = Column("share", Unit.SHARE, adds=True, whole=peak.reserved)
    columns = (_BYTES, share, Column("what"))
    others = [
        *((what, n) for what, n in ((EAGER, peak.eager), (ROUNDING, peak.rounding)) if n),
        (UNATTRIBUTED, peak.unattributed),
        (FREE, peak.free),
        ("total reserved", peak.reserved),
    ]
    foot = tuple(Foot((n, n, what)) for what, n in others)
    note = Note("compiled code at its own peak; parameters, state and tensors as they are now")
    table = Table(columns, rows, foot, least=len(rows), brief=_BRIEF)
    return Section("", "What was reserved at the peak", (note,), tables=(table,))


def _holders(a: DeviceAccount) -> Section:
    columns = (
        _BYTES,
        Column("tensors", Unit.COUNT, adds=True),
        Column("what"),
        Column("who has it"),
    )
    rows: list[tuple[Cell, ...]] = [(r.nbytes, r.count, r.what, r.holder or None) for r in a.rows]
    title = "Live now, largest first"
    tables = (Table(columns, rows, brief=_BRIEF // 2),) if rows else ()
    return Section("", title, tables=tables, name="who has what is live now", spare=2)


def _when(a: DeviceAccount) -> str:
    """The instant that the account is of."""
    if a.present:
        return "now"
    if a.snapshot:
        return "at the snapshot"
    return "at the peak" if a.failure is None else "at that moment"


def _outside(a: DeviceAccount) -> Section:
    rows = [(o.nbytes, o.what, f"{'estimate: ' * o.estimated}{o.source}") for o in a.outside]
    table = Table((_BYTES, Column("what"), Column("from", fold=True)), rows, least=len(rows))
    title = "Outside of torch's allocator"
    tables = (table,) if rows else ()
    # Its sum stands above.
    return Section("", title, tables=tables, name="what is outside of the allocator", spare=5)


def _groups(a: DeviceAccount, by: str, key: Callable[[AccountRow], str]) -> Section:
    found: dict[str, int] = {}
    for r in a.rows:
        found[key(r)] = found.get(key(r), 0) + r.nbytes
    share = Column("share", Unit.SHARE, adds=True, whole=a.live)
    rows = [(n, n, name) for name, n in sorted(found.items(), key=lambda item: -item[1])]
    table = Table((_BYTES, share, Column(by, Unit.PATH)), rows, brief=_BRIEF)
    return Section("", f"Live {_when(a)} by {by}", tables=(table,) if rows else ())


def _location(r: AccountRow) -> str:
    return _nowhere(r) if r.frame is None else f"{shorten_path(r.frame.file)}:{r.frame.line}"


def _nowhere(r: AccountRow) -> str:
    """What to say of a row without a line."""
    if r.holder:
        return r.holder
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
        eager = r.frame is not None and not r.waits
        code = "compiled" if r.compiled else "eager" if eager else "autograd"
        code = "" if r.frame is None and (r.holder or r.detail == BEFORE) else code
        rows.append((r.nbytes, r.count, r.what, code, r.frame or _nowhere(r), r.modules, r.nodes))
    title = f"Live {_when(a)}, largest first"
    return Section("", title, tables=(Table(columns, rows),) if rows else ())


def _host_reads(a: DeviceAccount) -> Section:
    count = sum(r.count for r in a.host_reads)
    times = "once" if count == 1 else f"{count:,} times"
    rows = [(r.count, r.nbytes, r.frame or _AUTOGRAD) for r in a.host_reads]
    columns = (Column("times", Unit.COUNT, adds=True), _BYTES, Column("source line", Unit.FRAME))
    title = f"The program looked at values {times}; kernels computed none"
    return Section("", title, tables=(Table(columns, rows),) if rows else ())
