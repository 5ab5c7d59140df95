"""Sections of a page as elements, ``[tag, attributes, *children]``, that ``assets/page.js`` puts
into the document as nodes and texts, never as markup. Classes stand after dots: ``p.notice.error``.

Two tags are no elements: ``["table", data]`` is a table that can be sorted, ``["view", name]`` an
interactive view. A cell of a table is its text, or ``[key, *children]``, sorted by its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from memprof.profiler.views.report.columns import Unit, number_words
from memprof.profiler.views.report.format import format_bytes

Element = list[Any]
Plain = Mapping[str, Any]
"""A section, table or column as JSON values, see ``Section.plain``."""

LANE_HEAD = 20
LANE_ROW = 18
_MOST_LINES = 50
_LONGEST_PATH = 36
_NOTES = {"warn": "p.notice", "error": "p.notice.error"}
_BOXES = {"warn": "div.notice", "error": "div.notice.error"}


def report_elements(payload: dict[str, Any]) -> dict[str, Any]:
    """Returns the payload of ``payload.py`` with elements in place of its sections."""
    profiles = [_profile_elements(profile) for profile in payload["profiles"]]
    ranks = payload["ranks"] and {**payload["ranks"], "elements": _ranks(payload["ranks"])}
    return {**payload, "ranks": ranks, "profiles": profiles}


def _ranks(ranks: Plain) -> Element:
    """Element that compares the ranks; a rank that the page shows is a link to its part."""
    data, shown = ranks["section"], ranks["shown"]
    compared, *rest = data["parts"]
    (table,) = compared["tables"]
    who = table["columns"][0]["title"]  # a rank, or a run of no job
    sorted_table = sortable(table, data["title"])
    for row in sorted_table["rows"]:
        if row[0][0] in shown:
            row[0][1] = ["a", {"href": f"?rank={row[0][0]}"}, row[0][1]]
    left = f"The page has the reports of the {len(shown):,} {who}s with the highest peaks."
    return [
        "div.job",
        {},
        ["h2", {}, data["title"]],
        *section({**data, "parts": []}),
        _part({**compared, "tables": []}),
        ["table", sorted_table],
        *([["p.help", {}, left]] if len(table["rows"]) > len(shown) else []),
        *(_part(part) for part in rest),
        ["h2.whose", {"id": "whose"}, who[:1].upper() + who[1:]],
    ]


def _profile_elements(profile: dict[str, Any]) -> dict[str, Any]:
    devices = []
    for data in profile["devices"]:
        device = {k: v for k, v in data.items() if k not in ("figures", "sections")}
        name = data["device"]
        device["label"] = f"{name} · peak {format_bytes(profile['peaks'][name])}"
        device["elements"] = {
            "figures": [_figure(*figure) for figure in data["figures"]],
            **{f"{name}-of-device": section(s) for name, s in data["sections"].items()},
        }
        devices.append(device)
    of_device = set(profile["devices"][0]["sections"])
    shown = {
        **profile,
        "devices": devices,
        "gantt": profile["gantt"] and _gantt(profile["gantt"]),
        "elements": list(_page(profile, of_device)),
        "templates": {name: sortable(table) for name, table in profile["templates"].items()},
    }
    del shown["header"], shown["sections"]
    return shown


def _gantt(gantt: Plain) -> dict[str, Any]:
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
    entries: dict[str, list[Element]] = {}
    for entry in gantt["bars"]["legend"]:
        swatch = ["i.swatch", {"style": {"--swatch": f"var({entry['variable']})"}}]
        count = ["span.num.dim", {}, f"{entry['count']:,}"]
        item = ["li", {}, swatch, f"{entry['label']} ", count]
        entries.setdefault(entry["title"], []).append(item)
    legend = [
        ["ul.legend", {"aria-label": title}, ["li", {}, ["strong", {}, title]], *items]
        for title, items in entries.items()
    ]
    return {**gantt, "heads": heads, "rows": rows, "height": top, "legend": legend}


def _page(profile: Plain, of_device: set[str]) -> Iterator[Element]:
    """Versions and machine, what went wrong, the numbers that matter most, and the sections."""
    header = profile["header"]
    warnings = [note for note in header["notes"] if note[0] == "warn"]
    meta = [["span", {}, text] for tone, text in header["notes"] if tone != "warn"]
    yield [
        "div.summary",
        {},
        ["p.meta", {}, *meta],
        *section({**header, "notes": warnings}),
        ["dl.kpis", {"id": "figures"}],
    ]
    # What stands before the first comma names a section well enough for a list.
    links = [
        ["a", {"href": f"#{s['id']}"}, re.split("[,;]", s["title"])[0]] for s in profile["sections"]
    ]
    yield ["nav.contents", {"aria-label": "Contents"}, *links]
    yield ["fieldset.tabs", {"id": "devices", "aria-label": "Device"}]
    for data in profile["sections"]:
        if data["view"] == "live":
            attributes = {"id": "instant", "role": "region", "aria-label": "Chosen instant"}
            yield ["div.instant", attributes]
        if data["id"] in of_device:
            box = ["div", {"id": f"{data['id']}-of-device"}]
            yield ["section", {"id": data["id"]}, ["h2", {}, data["title"]], box]
        else:
            yield titled(data)


def _figure(label: str, value: str, note: str) -> Element:
    notes = [["span", {}, note]] if note else []
    return ["div.kpi", {}, ["dt", {}, label], ["dd", {}, ["strong.num", {}, value], *notes]]


def section(data: Plain) -> list[Element]:
    """Notes, the view, the tables and the parts of a section, without its title."""
    notes = [[_NOTES.get(tone, "p.help"), {}, text] for tone, text in data["notes"]]
    view = [["view", data["view"]]] if data["view"] else []
    tables = [t for table in data["tables"] for t in _table(table, data["title"])]
    return [*notes, *view, *tables, *(_part(part) for part in data["parts"])]


def _part(data: Plain) -> Element:
    box = _BOXES.get(data["tone"], "div.part")
    heading = "h3" if data["tone"] == "plain" else "strong"
    title = [[heading, {}, data["title"]]] if data["title"] else []
    return [box, {"id": data["id"] or None}, *title, *section(data)]


def titled(data: Plain, heading: str = "h2") -> Element:
    """A section of the page with its title."""
    title = [[heading, {}, data["title"]]] if data["title"] else []
    return ["section", {"id": data["id"] or None}, *title, *section(data)]


def _table(data: Plain, title: str) -> list[Element]:
    if data["lines"]:
        return _lines(data)
    if not data["rows"] and not data["foot"]:
        return [["p.empty", {}, data["empty"]]] if data["empty"] else []
    return [["table", sortable(data, title)]]


def sortable(data: Plain, title: str = "") -> dict[str, Any]:
    """Returns a table as ``assets/table.js`` takes it. Columns that stand below another one are
    parts of its cells; ``wide`` is the column that takes the room that is left."""
    columns = data["columns"]
    main = [i for i, c in enumerate(columns) if not c["below"]]
    ends = [*main[1:], len(columns)]
    below = {i: range(i + 1, end) for i, end in zip(main, ends, strict=True)}
    names = [i for i in main if not Unit(columns[i]["unit"]).is_number]
    folded = [i for i in main if columns[i]["fold"] or below[i]]
    wide = (folded or names or [-1])[0]
    name = names[0] if names else -1

    def row(cells: list[Any], depth: int) -> list[Any]:
        return [_cell(columns, cells, i, below[i], depth if i == name else 0) for i in main]

    def classes(i: int) -> str:
        if i == wide:
            return "wide"
        if Unit(columns[i]["unit"]).is_number:
            return "num"
        return "nowrap" if all(len(str(cells[i])) < 40 for cells in data["rows"]) else ""

    depth = data["depth"] or [0] * len(data["rows"])
    return {
        "title": data["caption"] or title,
        "captioned": bool(data["caption"]),
        "fit": not folded,
        "columns": [_heading(columns[i], classes(i)) for i in main],
        "rows": [row(cells, n) for cells, n in zip(data["rows"], depth, strict=True)],
        "foot": [row(cells, 0) for cells in data["foot"]],
    }


def _heading(column: Plain, classes: str) -> dict[str, Any]:
    title = column["title"]
    return {
        "title": title[:1].upper() + title[1:],
        "class": classes,
        "help": column["help"] or None,
        "sorted": Unit(column["unit"]) is not Unit.FIGURE,
    }


def _cell(columns: list[Plain], cells: list[Any], i: int, below: range, depth: int) -> Any:
    column, value = columns[i], cells[i]
    text = _words(column, value)
    children = _content(column, value, text)
    there = [k for k in below if cells[k] not in (None, "")]
    code = [["div.code", {}, cells[k][3]] for k in there if isinstance(cells[k], list)]
    small: list[Any] = []
    for k in there:
        swatch = [_swatch(cells[k])] if columns[k]["unit"] == Unit.CATEGORY else []
        small += [*([" · "] if small else []), *swatch, _words(columns[k], cells[k])]
    if small:
        is_code = any(columns[k]["unit"] == Unit.CODE for k in there)
        children += [*code[:1], ["div.dim.code" if is_code else "div.dim", {}, *small]]
    if depth:
        children = [["div", {"style": {"padding-left": f"{depth * 18}px"}}, *children]]
    if isinstance(value, (int, float)):
        return [value, *children]
    return text if children == [text] else [text, *children]


def _content(column: Plain, value: Any, text: str) -> list[Any]:
    """Bytes have all digits on hover, shares a bar; of a long path the end says most."""
    unit = Unit(column["unit"])
    if isinstance(value, list):
        code = [["span.code", {}, value[3]]] if value[3] else []
        return [*code, ["div.dim.code", {}, text]]
    if isinstance(value, str):
        if unit is Unit.CATEGORY:
            return [_swatch(value), text]
        if unit is Unit.PATH and len(text) > _LONGEST_PATH:
            return [["span.code", {"title": text}, f"…{text[1 - _LONGEST_PATH :]}"]]
        return [["span.code", {}, text]] if unit in (Unit.PATH, Unit.CODE) else [text]
    if value is None:
        return [text]
    if unit is Unit.SHARE:
        percent = min(100.0, 100 * value / (column["whole"] or 1))
        return [["span.bar", {"style": {"--bar": f"{percent:.4g}%"}}, text]]
    if unit in (Unit.BYTES, Unit.CHANGE):
        return [["span", {"title": format_bytes(value, exact=True)}, text]]
    return [text]


def _swatch(category: str) -> Element:
    return ["i.swatch", {"style": {"--swatch": f"var(--cat-{category.replace('_', '-')}, #0000)"}}]


def _words(column: Plain, value: Any) -> str:
    unit = Unit(column["unit"])
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"{value[0]}:{value[1]}"
    if isinstance(value, str):
        return value.replace("_", " ") if unit is Unit.CATEGORY else value
    return number_words(unit, value, column["whole"])


def _lines(data: Plain) -> list[Element]:
    """A table whose rows are items of a list."""
    caption = data["caption"]
    if not data["rows"]:
        text = data["empty"] or caption
        return [["p.help", {}, text]] if text else []
    items = [_item(data["columns"], row) for row in data["rows"][:_MOST_LINES]]
    left = len(data["rows"]) - _MOST_LINES
    if left > 0:
        items.append(["li", {}, f"and {left:,} more"])
    notes = ["ul.notes", {}, *items]
    if data["folded"]:
        return [["details", {}, ["summary", {}, caption], notes]]
    return [["p.help", {}, caption], notes] if caption else [notes]


def _item(columns: list[Plain], row: list[Any]) -> Element:
    parts = []
    for column, value in zip(columns, row, strict=True):
        unit = Unit(column["unit"])
        if value in (None, "") or (unit is Unit.TIMES and value == 1):
            continue
        text = _words(column, value)
        parts.append(f"{text} {column['title']}".strip() if unit.is_number else text)
    code = [["div.code", {}, v[3]] for v in row if isinstance(v, list) and v[3]]
    return ["li", {}, " · ".join(parts), *code[:1]]
