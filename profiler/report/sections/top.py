"""What a running job does now: one frame of a live view."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ...model import Growth
from ...running_job import Present, Writer
from ..columns import BYTES, CATEGORY, TEXT, Cell, Column, Unit, alike, share
from ..failure import place
from ..format import format_ns
from ..section import EVERY, Note, Section, Show, Table, Tone, of_rows

_MOST_GROWTH = 3


def of_present(found: Sequence[Present], show: Show) -> Iterator[Section]:
    """One process in detail, or several side by side with what is to be said of each."""
    if len(found) > 1:
        yield _side_by_side(found)
        for p in found:
            if p.grows:
                yield _grows(p.grows, show, f"Memory grows in {_name(p)}")
        return
    for p in found:
        yield Section("", _name(p), (Note(_state(p), _tone(p)),))
        yield _devices(p)
        yield _compiled(p, show)
        if p.grows:
            yield _grows(p.grows, show, "Memory grows")
        columns = (Column("", Unit.BYTES), Column(""), TEXT)
        yield of_rows("What to change", columns, p.findings, least=EVERY, lines=True)


def _name(p: Present) -> str:
    of = p.process
    rank = f"rank {of.rank} of {of.world_size}" if of.world_size > 1 else ""
    who = f"process {of.pid}" + (f" on {of.host}" if of.host else "") if of.pid else ""
    return " · ".join(text for text in (os.path.basename(p.path), rank, who) if text)


def _state(p: Present) -> str:
    age = "" if p.age_ns is None else f"{format_ns(p.age_ns)} ago"
    if p.writer is Writer.ENDED:
        said = f"ended{', ' * bool(age)}{age}"
    elif p.writer is Writer.DIED:
        said = f"died: nobody writes its file, which has no end; the last is from {age or '?'}"
    elif p.stalled:
        said = f"stalled? nothing new since {age.removesuffix(' ago')}"
    else:
        said = f"running; written {age}" if age else "running"
    if p.writer is Writer.UNKNOWN:
        said += "; whether it still runs cannot be told from here"
    rate = f"{p.rate:.3g} {p.steps}/s" if p.rate is not None else ""
    calls = f"{p.calls:,} calls of compiled code" if p.calls else ""
    return " · ".join(text for text in (said, rate, calls) if text)


def _tone(p: Present) -> Tone:
    if p.writer is Writer.DIED:
        return Tone.ERROR
    return Tone.WARN if p.stalled else Tone.PLAIN


_MEMORY = alike(Unit.BYTES, "reserved", "allocated", "most reserved", "most allocated")


def _devices(p: Present) -> Section:
    since = Column("since watched", Unit.CHANGE)
    columns = (Column("device"), *_MEMORY, Column("of", Unit.BYTES), since)
    rows = [
        (
            *(d.device, d.reserved, d.allocated or None, d.most_reserved, d.most_allocated or None),
            *(d.total or None, p.since.get(d.device, 0)),
        )
        for d in p.devices
    ]
    none = "The file says nothing of devices yet."
    return Section("", "", tables=(Table(columns, rows, least=EVERY, empty=none),))


def _compiled(p: Present, show: Show) -> Section:
    if p.peak is None:
        return Section("", "")
    rows = [(n, n, name) for name, n in p.categories]
    title = f"Peak of compiled code on {p.peak_device}: {show(p.peak)}"
    return of_rows(title, (BYTES, share(p.peak), CATEGORY), rows, rest="smaller")


def _grows(found: Sequence[Growth], show: Show, title: str) -> Section:
    rows = [
        (
            f"{show(g.a_step)} per {g.step}, {show(g.nbytes)} by now: "
            + (g.holder or place(g.frame) or "unknown"),
        )
        for g in found
    ]
    return of_rows(title, (TEXT,), rows, most=_MOST_GROWTH, lines=True, tone=Tone.WARN)


def _side_by_side(found: Sequence[Present]) -> Section:
    columns = (
        Column("rank", Unit.COUNT),
        Column("pid", Unit.FIGURE),
        Column("state"),
        Column("age", Unit.NS),
        Column("steps/s", Unit.FIGURE),
        Column("device"),
        *_MEMORY,
    )
    rows: list[tuple[Cell, ...]] = []
    for p in sorted(found, key=lambda p: (p.process.rank, p.process.pid, p.path)):
        d = p.devices[0] if p.devices else None
        state = "stalled?" if p.stalled else p.writer.value
        rate = f"{p.rate:.3g}" if p.rate is not None else None
        memory: tuple[Cell, ...] = ("-", None, None, None, None)
        if d is not None:
            memory = (d.device, d.reserved, d.allocated, d.most_reserved, d.most_allocated)
        pid = str(p.process.pid) if p.process.pid else None
        rows.append((p.process.rank, pid, state, p.age_ns, rate, *memory))
    return Section("", f"{len(rows):,} processes", tables=(Table(columns, rows, least=EVERY),))
