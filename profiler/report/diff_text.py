"""``memprof diff`` for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ..diff import ProfileDiff, Quantity
from .page import PLAIN, Page, Style

__all__ = ["render_diff"]

_TITLES = {
    "peak": "peak of known live memory",
    "saved": "saved for the backward, a step",
    "allocated": "allocated, a step",
    "pool": "pool of graph trees",
    "tracker peak": "most allocated",
    "tracker reserved": "most reserved",
    "tracker tensors": "most in Python tensors",
    "tracker end": "allocated at the end",
    "data-flow peak": "peak of the data flow",
    "reserved": "all that was reserved",
}


def render_diff(diff: ProfileDiff, style: Style = PLAIN) -> str:
    """The comparison as text."""
    page = Page(style)
    before, after = diff.devices
    if before or after:
        both = before if before == after else f"{before} → {after}"
        page.line(f"Memory on {both}", "bold")
        page.line()
    _quantities(page, [(_title(q), q) for q in diff.quantities])
    if diff.operations:
        page.section("Operations")
        rows = [q for q in diff.operations if q.change]
        rows.sort(key=lambda q: (-abs(q.change), q.label))
        if rows:
            _quantities(page, [(q.label, q) for q in rows[: page.top]])
        same = len(diff.operations) - len(rows)
        page.line(f"{max(0, len(rows) - page.top)} smaller changes, {same} figures without any")
    for note in diff.notes:
        page.line(f"not compared: {note}", "yellow")
    for q in diff.quantities:
        for view, changes in q.views.items():
            if not changes:
                continue
            page.section(f"{_title(q)}: what changed, by {view}")
            table = page.table(">change", ">before", ">after", view)
            for c in changes[: page.top]:
                table.add_row(
                    signed(page, c.change),
                    page.bytes(c.before),
                    page.bytes(c.after),
                    Text(c.key),
                )
            if rest := changes[page.top :]:
                n = sum(c.change for c in rest)
                table.add_row(signed(page, n), "", "", f"{len(rest)} smaller changes")
            page.show(table)
    return page.text()


def _quantities(page: Page, rows: Sequence[tuple[str, Quantity]]) -> None:
    table = page.table("", ">before", ">after", ">change", ">")
    for title, q in rows:
        color = "red" if q.change > 0 else "green" if q.change < 0 else ""
        table.add_row(
            Text(title),
            _amount(page, q.before),
            _amount(page, q.after),
            signed(page, q.change),
            percent(q),
            style=color,
        )
    page.show(table)


def _title(q: Quantity) -> str:
    name = _TITLES[q.name]
    if q.device == "cpu" and q.name == "tracker peak":
        name = "most resident"  # the process's, which is what the tracker knows of the CPU
    return f"{name}, {q.device}" if q.device else name


def _amount(page: Page, n: int) -> str:
    return page.bytes(n) if n >= 0 else f"-{page.bytes(-n)}"


def signed(page: Page, n: int) -> str:
    """Bytes with a sign; nothing is ``0 B``."""
    return f"+{page.bytes(n)}" if n > 0 else f"-{page.bytes(-n)}" if n < 0 else page.bytes(0)


def percent(q: Quantity) -> str:
    """Growth in percent."""
    if not q.change:
        return "0.0 %"
    return "new" if not q.before else f"{100 * q.growth:+.1f} %"
