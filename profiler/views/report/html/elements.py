"""Sections of a page as elements, ``[tag, attributes, *children]``, that ``assets/page.js`` puts
into the document as nodes and texts, never as markup. Classes stand after dots: ``p.notice.error``.

Two tags are no elements: ``["table", data]`` is a table that can be sorted, ``["view", name]`` an
interactive view. A cell of a table is its text, or ``[key, *children]``, sorted by its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from memprof.profiler.model import SourceFrame
from memprof.profiler.views.report.columns import Cell, Column, Row, Unit, cell_words, line_words
from memprof.profiler.views.report.format import format_bytes
from memprof.profiler.views.report.section import Section, Table, Tone

from .payload_gantt import KINDS

Element = list[Any]

LANE_HEAD = 20
LANE_ROW = 18
_MOST_LINES = 50
_LONGEST_PATH = 36
_NOTES = {Tone.WARN: "p.notice", Tone.ERROR: "p.notice.error"}
_BOXES = {Tone.WARN: "div.notice", Tone.ERROR: "div.notice.error"}


def report_elements(payload: dict[str, Any]) -> dict[str, Any]:
    """Returns the payload of ``payload.py`` with elements in place of its sections."""
    ranks = payload["ranks"] and _ranks(**payload["ranks"])
    return {"ranks": ranks, "profile": profile_elements(payload["profile"])}


def _ranks(section: Section, shown: int) -> Element:
    """Element that compares the ranks, above the report of one of them."""
    who = section.parts[0].tables[0].columns[0].title.capitalize()  # a rank, or a run of no job
    heading = ["h2.whose", {}, f"{who} {shown}"]
    return ["div.job", {}, ["h2", {}, section.title], *_content(section), heading]


def profile_elements(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **profile,
        "header": None,
        "sections": None,
        "gantt": profile["gantt"] and _gantt(profile["gantt"]),
        "elements": list(_page(profile)),
        "templates": {name: sortable(table) for name, table in profile["templates"].items()},
    }


def _gantt(gantt: Mapping[str, Any]) -> dict[str, Any]:
    """The bars of the page with the places of their lanes and rows, in pixels from the top; a row
    has the bars from ``first`` to ``end``. The legend has its elements."""
    heads, rows = [], []
    top = first = 0
    for lane in gantt["lanes"]:
        heads.append({"text": f"{lane['name']}  {sum(lane['rows']):,}", "top": top})
        top += LANE_HEAD
        for n in lane["rows"]:
            rows.append({"top": top, "first": first, "end": first + n})
            top += LANE_ROW
            first += n
    items = []
    for kind in (kind for kind in KINDS if kind in gantt["kinds"]):
        swatch = ["i.swatch", {"style": {"--swatch": f"var(--bar-{kind.replace(' ', '-')})"}}]
        count = ["span.num.dim", {}, f"{gantt['kinds'][kind]:,}"]
        items.append(["li", {}, swatch, f"{kind} ", count])
    legend = ["ul.legend", {"aria-label": "Kinds of bars"}, *items]
    return {**gantt, "heads": heads, "rows": rows, "height": top, "legend": legend}


def _page(profile: Mapping[str, Any]) -> Iterator[Element]:
    """Versions and machine, what went wrong, and the sections."""
    header, sections = profile["header"], profile["sections"]
    warnings = tuple(note for note in header.notes if note.tone is Tone.WARN)
    meta = [["span", {}, note.text] for note in header.notes if note.tone is not Tone.WARN]
    yield ["div.summary", {}, ["p.meta", {}, *meta], *_content(replace(header, notes=warnings))]
    # What stands before the first mark names a section well enough for a list.
    links = [
        ["a", {"href": f"#{s.id}"}, re.split("[,;:]", s.title)[0]] for s in sections if s.title
    ]
    yield ["nav.contents", {"aria-label": "Contents"}, *links]
    for section in sections:
        if section.view == "live":
            attributes = {"id": "instant", "role": "region", "aria-label": "Chosen instant"}
            yield ["div.instant", attributes]
        title = [["h2", {}, section.title]] if section.title else []
        yield ["section", {"id": section.id or None}, *title, *_content(section)]


def _content(section: Section) -> list[Element]:
    """Notes, the view, the tables and the parts of a section, without its title."""
    notes = [[_NOTES.get(note.tone, "p.help"), {}, note.text] for note in section.notes]
    view = [["view", section.view]] if section.view else []
    tables = [t for table in section.tables for t in _table(table, section.title)]
    return [*notes, *view, *tables, *(_part(part) for part in section.parts if part)]


def _part(part: Section) -> Element:
    heading = "h3" if part.tone is Tone.PLAIN else "strong"
    title = [[heading, {}, part.title]] if part.title else []
    box = _BOXES.get(part.tone, "div.part")
    return [box, {"id": part.id or None}, *title, *_content(part)]


def _table(table: Table, title: str) -> list[Element]:
    if table.lines:
        return _lines(table)
    if not table.rows and not table.foot:
        return [["p.empty", {}, table.empty]] if table.empty else []
    return [["table", sortable(table, title)]]


def sortable(table: Table, title: str = "") -> dict[str, Any]:
    """Returns a table as ``assets/table.js`` takes it. Columns that stand below another one are
    parts of its cells; ``wide`` is the column that takes the room that is left."""
    columns = table.columns
    main = [i for i, c in enumerate(columns) if not c.below]
    ends = [*main[1:], len(columns)]
    below = {i: range(i + 1, end) for i, end in zip(main, ends, strict=True)}
    names = [i for i in main if not columns[i].unit.is_number]
    folded = [i for i in main if columns[i].fold or below[i]]
    wide = (folded or names or [-1])[0]
    name = names[0] if names else -1

    def row(cells: Row, depth: int) -> list[Any]:
        return [_cell(columns, cells, i, below[i], depth if i == name else 0) for i in main]

    def classes(i: int) -> str:
        if i == wide:
            return "wide"
        if columns[i].unit.is_number:
            return "num"
        short = all(len(cell_words(columns[i], cells[i])) < 40 for cells in table.rows)
        return "nowrap" if short else ""

    depth = table.depth or [0] * len(table.rows)
    return {
        "title": table.caption or title,
        "captioned": bool(table.caption),
        "fit": not folded,
        "columns": [
            {
                "title": columns[i].title[:1].upper() + columns[i].title[1:],
                "class": classes(i),
                "help": columns[i].help or None,
                "sorted": columns[i].unit is not Unit.FIGURE,
            }
            for i in main
        ],
        "rows": [row(cells, n) for cells, n in zip(table.rows, depth, strict=True)],
        "foot": [row(cells, 0) for cells in table.foot],
    }


def _cell(columns: tuple[Column, ...], cells: Row, i: int, below: range, depth: int) -> Any:
    value = cells[i]
    text = cell_words(columns[i], value)
    children = _styled(columns[i], value, text)
    there = [k for k in below if cells[k] not in (None, "")]
    small: list[Any] = []
    for k in there:
        swatch = [_swatch(str(cells[k]))] if columns[k].unit is Unit.CATEGORY else []
        small += [*([" · "] if small else []), *swatch, cell_words(columns[k], cells[k])]
    if small:
        is_code = any(columns[k].unit is Unit.CODE for k in there)
        children += _code([cells[k] for k in there])
        children.append(["div.dim.code" if is_code else "div.dim", {}, *small])
    if depth:
        children = [["div", {"style": {"padding-left": f"{depth * 18}px"}}, *children]]
    if isinstance(value, (int, float)):
        return [value, *children]
    return text if children == [text] else [text, *children]


def _styled(column: Column, value: Cell, text: str) -> list[Any]:
    """Bytes have all digits on hover, shares a bar; of a long path the end says most."""
    unit = column.unit
    if isinstance(value, SourceFrame):
        return [*_code([value]), ["div.dim.code", {}, text]]
    if isinstance(value, str):
        if unit is Unit.CATEGORY:
            return [_swatch(value), text]
        if unit is Unit.PATH and len(text) > _LONGEST_PATH:
            return [["span.code", {"title": text}, f"…{text[1 - _LONGEST_PATH :]}"]]
        return [["span.code", {}, text]] if unit in (Unit.PATH, Unit.CODE) else [text]
    if value is not None and unit is Unit.SHARE:
        percent = min(100.0, 100 * value / (column.whole or 1))
        return [["span.bar", {"style": {"--bar": f"{percent:.4g}%"}}, text]]
    if value is not None and unit in (Unit.BYTES, Unit.CHANGE):
        return [["span", {"title": format_bytes(int(value), exact=True)}, text]]
    return [text]


def _code(cells: list[Cell]) -> list[Element]:
    """The code of the first line of a program among cells, if it is known."""
    lines = (cell.code.strip() for cell in cells if isinstance(cell, SourceFrame))
    return [["div.code", {}, line] for line in lines if line][:1]


def category_color(category: str) -> str:
    """Variable of ``assets/base.css`` for the colour of a category."""
    return f"--cat-{category.replace('_', '-')}"


def _swatch(category: str) -> Element:
    return ["i.swatch", {"style": {"--swatch": f"var({category_color(category)}, #0000)"}}]


def _lines(table: Table) -> list[Element]:
    """A table whose rows are items of a list."""
    if not table.rows:
        text = table.empty or table.caption
        return [["p.help", {}, text]] if text else []
    items = [
        ["li", {}, line_words(table.columns, row), *_code(list(row))]
        for row in table.rows[:_MOST_LINES]
    ]
    left = len(table.rows) - _MOST_LINES
    if left > 0:
        items.append(["li", {}, f"and {left:,} more"])
    notes = ["ul.notes", {}, *items]
    if table.folded:
        return [["details", {}, ["summary", {}, table.caption], notes]]
    return [["p.help", {}, table.caption], notes] if table.caption else [notes]
