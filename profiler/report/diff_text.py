"""``memprof diff`` for the terminal."""

from __future__ import annotations

from rich.text import Text

from ..diff import ProfileDiff, Quantity
from .page import PLAIN, Page, Style

__all__ = ["render_diff"]

_TITLES = {
    "peak": "peak of known live memory",
    "saved": "saved for the backward, a step",
    "allocated": "allocated, a step",
    "pool": "pool of graph trees",
}


def render_diff(diff: ProfileDiff, style: Style = PLAIN) -> str:
    """The comparison as text."""
    page = Page(style)
    before, after = diff.devices
    page.line(f"Memory on {before}" if before == after else f"Memory on {before} → {after}", "bold")
    page.line()
    table = page.table("", ">before", ">after", ">change", ">")
    for q in diff.quantities:
        color = "red" if q.change > 0 else "green" if q.change < 0 else ""
        table.add_row(
            _TITLES[q.name],
            page.bytes(q.before),
            page.bytes(q.after),
            signed(page, q.change),
            percent(q),
            style=color,
        )
    page.show(table)
    for q in diff.quantities:
        for view, changes in q.views.items():
            if not changes:
                continue
            page.section(f"{_TITLES[q.name]}: what changed, by {view}")
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


def signed(page: Page, n: int) -> str:
    """Bytes with a sign; nothing is ``0 B``."""
    return f"+{page.bytes(n)}" if n > 0 else f"-{page.bytes(-n)}" if n < 0 else page.bytes(0)


def percent(q: Quantity) -> str:
    """Growth in percent."""
    if not q.change:
        return "0.0 %"
    return "new" if not q.before else f"{100 * q.growth:+.1f} %"
