"""Sections for terminals: their content is made in ``sections/``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

from rich.text import Text

from .columns import Cell, Column, Unit, cell_words, line_words
from .section import EVERY, UNATTRIBUTED, Section, Table, Tone
from .text_page import PLAIN, Page, Style

SCREEN = 44
"""Lines that a short text has at most, if it can."""
_NAMES = 4
"""Most names of left-out sections in a text for which room is scarce."""
_DAY_NS = 86_400_000_000_000
_MORE = "More in the whole report (--full in the shell, full=True in Python)"
_STYLES = {Tone.STRONG: "bold", Tone.DIM: "dim", Tone.WARN: "yellow", Tone.ERROR: "red"}


def render(content: Iterable[Section], style: Style = PLAIN) -> str:
    """Sections as text, ending in a newline; a short one fits a screen, as far as it can."""
    sections = list(content)
    text = _render(sections, style)
    if style.short:
        for least in (EVERY, *sorted({n for s in sections for n in s.spares()}, reverse=True)):
            if text.count("\n") <= SCREEN:
                break
            text = _render(sections, style, _NAMES, least)
    return text


def _render(content: Iterable[Section], style: Style, most: int = EVERY, least: int = EVERY) -> str:
    """Sections as text, with at most ``most`` names of what is left out."""
    page = Page(style)
    left: dict[str, None] = {}
    for shown in content:
        if style.short:
            shown, names = shown.short(least)
            left |= dict.fromkeys(names)
        if shown:
            _section(page, shown)
    if left:
        rest = f" and {len(left) - most:,} more" if most < len(left) else ""
        page.line()
        page.line(f"{_MORE}: {', '.join([*left][:most])}{rest}", _STYLES[Tone.DIM])
    return page.text()


def _section(page: Page, s: Section, indent: int = 0) -> None:
    # A page begins without an empty line, and what has lines alone stays with what it belongs to.
    if not page.is_empty and not indent:
        page.line()
    if s.title:
        page.indented(s.title, indent, _STYLES.get(s.tone, "bold"))
        indent += 2
    for note in s.notes:
        page.indented(note.text, indent, _STYLES.get(note.tone, _STYLES.get(s.tone, "")))
    for i, table in enumerate(s.tables):
        if i and not table.lines and (table.rows or table.foot):
            page.line()
        _table(page, table, s.tone, indent)
    for part in filter(None, s.parts):
        brief = not part.parts and all(t.lines for t in part.tables)
        _section(page, part, max(indent, 2) if brief else 0)


def _table(page: Page, t: Table, tone: Tone, indent: int) -> None:
    if t.caption and not t.folded:
        page.indented(t.caption, indent, _STYLES.get(tone, ""))
        indent += 2
    if not t.rows and not t.foot:
        if t.empty:
            page.indented(t.empty, indent)
        return
    if t.lines:
        for row, _ in _shown(page, t):
            text = line_words(t.columns, row, page.bytes, page.path)
            page.indented(text, indent, _STYLES.get(tone, ""))
        return
    times = [i for i, c in enumerate(t.columns) if c.unit is Unit.TIME]
    dated = len({cast(int, row[i]) // _DAY_NS for row in t.rows for i in times}) > 1
    table = page.table(
        *(f"{'>' if c.unit.is_number else ''}{c.title}" for c in t.columns),
        fold=any(c.fold for c in t.columns),
    )
    name = _named(t)
    for row, depth in _shown(page, t):
        cells = [_cell(page, c, v, dated) for c, v in zip(t.columns, row, strict=True)]
        if depth:
            cells[name] = Text("  " * depth + cells[name].plain)
        table.add_row(*cells)
    for row in t.foot:
        cells = [_cell(page, c, v) for c, v in zip(t.columns, row, strict=True)]
        some = any(isinstance(v, int) and v for v in row)
        tone = Tone.PLAIN if UNATTRIBUTED not in row else Tone.WARN if some else Tone.DIM
        table.add_row(*cells, style=_STYLES.get(tone, ""))
    page.show(table)


def _shown(page: Page, t: Table) -> Iterator[tuple[tuple[Cell, ...], int]]:
    """Yields the rows that there is room for with their depths, and one more for all others."""
    limit = min(max(page.top, t.least), t.most)
    for i, row in enumerate(t.rows[:limit]):
        yield row, t.depth[i] if t.depth else 0
    if rest := t.rows[limit:]:
        out: list[Cell] = [
            sum(cast(int, row[k] or 0) for row in rest) if c.adds else ""
            for k, c in enumerate(t.columns)
        ]
        out[_named(t)] = f"{len(rest):,} {t.rest}"
        yield tuple(out), 0


def _named(t: Table) -> int:
    """Index of the column that names the rows: the first that is no number."""
    return next(i for i, c in enumerate(t.columns) if not c.unit.is_number)


def _cell(page: Page, c: Column, value: Cell, dated: bool = False) -> Text:
    change = value if c.unit is Unit.CHANGE and isinstance(value, int) else 0
    color = "red" if change > 0 else "green" if change < 0 else ""
    text = cell_words(c, value, page.bytes, page.path)
    if c.unit is Unit.TIME and not dated:
        text = text.rpartition(" ")[2]
    return Text(text, style=color)
