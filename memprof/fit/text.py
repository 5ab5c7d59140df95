"""What ``memprof fit`` prints."""

from __future__ import annotations

from collections.abc import Sequence

from memprof.profiler.report.page import PLAIN, Page, Style

from .store import Tried
from .table import BUDGET, ENOUGH, Budget, Row
from .variables import Variable

_PARTS = 5
"""Rows of what the best is made of."""


def progress(row: Row, tried: Tried, show: Style = PLAIN) -> str:
    """A line about a try that has ended."""
    values = " ".join(f"{name}={value}" for name, value in tried.values.items())
    what = f"fits, needs {show.show(tried.needed)}" if tried.fits else "does not fit"
    on = f"{row.gpu.key}: " if not values else f"{values} on {row.gpu.key}: "
    return f"memprof fit: {on}{what} ({tried.seconds:.0f} s)"


def render(
    rows: Sequence[Row], variables: Sequence[Variable], made: int, known: int, style: Style = PLAIN
) -> str:
    """Rows as a table, and what the first one's best try is made of."""
    page = Page(style)
    varied = next((v for v in variables if v.is_range), None)
    lists = [v.name for v in variables if not v.is_range]
    _verdict(page, rows, varied)
    page.line()
    names = [*lists, *([varied.name] if varied is not None else ["fits"])]
    table = page.table("gpu", *(f">{n}" for n in names), ">needs", ">to spare", "what limits")
    for row in rows:
        best = row.best
        if varied is not None:
            answer = best.values[varied.name] if best is not None else "none"
        else:
            answer = "yes" if best is not None else "no"
        shown = [page.bytes(best.needed), page.bytes(row.gpu.memory - best.needed)] if best else []
        table.add_row(
            row.gpu.key,
            *(row.values[name] for name in lists),
            answer,
            *(shown or ["", ""]),
            _limit(row, varied),
        )
    page.show(table)
    _end(page, rows, made, known)
    return page.text()


def _verdict(page: Page, rows: Sequence[Row], varied: Variable | None) -> None:
    fitting = [row for row in rows if row.best is not None]
    if not fitting:
        page.line("Nothing fits", "bold red")
    elif len(rows) == 1 and varied is not None:
        (row,) = rows
        assert row.best is not None
        more = "" if row.failed is not None else ", the last of the range"
        page.line(
            f"{varied.name} = {row.best.values[varied.name]} is the largest that fits "
            f"{row.gpu.name} ({page.bytes(row.gpu.memory)}){more}",
            "bold",
        )
    else:
        gpus = {row.gpu.key: row.gpu for row in fitting}
        least = min(gpus.values(), key=lambda gpu: gpu.memory)
        page.line(f"{len(fitting)} of {len(rows)} fit", "bold")
        if len({row.gpu.key for row in rows}) > 1:
            page.line(f"  smallest GPU: {least.name} ({page.bytes(least.memory)})")


def _limit(row: Row, varied: Variable | None) -> str:
    if row.failed is None:
        return "nothing within the range" if varied is not None else ""
    where = f"{varied.name}={row.failed.values[varied.name]}: " if varied is not None else ""
    return f"{where}{row.failed.limit}"


def _end(page: Page, rows: Sequence[Row], made: int, known: int) -> None:
    shown = next((row for row in rows if row.best is not None), None)
    if shown is not None and shown.best is not None:
        values = ", ".join(f"{name} = {value}" for name, value in shown.best.values.items())
        page.section(f"What is reserved at the peak{' with ' if values else ''}{values}")
        table = page.table(">bytes", "what")
        parts = [part for part in shown.best.parts if part[1]]
        for what, nbytes in parts[:_PARTS]:
            table.add_row(page.bytes(nbytes), what)
        rest = sum(nbytes for _, nbytes in parts[_PARTS:])
        if rest:
            table.add_row(page.bytes(rest), f"{len(parts) - _PARTS} others")
        table.add_row(page.bytes(shown.best.reserved), "total reserved")
        page.show(table)
    notes = dict.fromkeys(note for row in rows for t in row.tries for note in t.notes)
    for note in notes:
        page.indented(note, 2)
    seconds = sum(t.seconds for row in rows for t in row.tries)
    page.line(
        f"{made} tries, {known} known from the file before; {seconds:.0f} s. "
        "Each value was run on the simulated device, as far as `memprof simulate` runs a script."
    )


def render_budget(found: Budget, made: int, known: int, style: Style = PLAIN) -> str:
    """The curve of the budget, and the setting that fits."""
    page = Page(style)
    best, gpu = found.row.best, found.row.gpu
    if best is None:
        page.line(f"No activation memory budget fits {gpu.name}", "bold red")
    else:
        more = found.recomputed(best)
        price = "" if more is None else f": recomputes {100 * more:.1f} % more"
        page.line(
            f"activation_memory_budget = {best.values[BUDGET]} fits {gpu.name} "
            f"({page.bytes(gpu.memory)}) with {page.bytes(gpu.memory - best.needed)} to "
            f"spare{price}",
            "bold",
        )
        after = found.row.failed
        if after is not None and gpu.memory - best.needed > ENOUGH * gpu.memory:
            page.line(f"  nearer comes none: the next, {after.values[BUDGET]}, does not fit")
    words = "needs never fall with more budget" if found.monotonic else "it is not monotonic"
    if not any(t.flops for t in found.curve) and len({t.needed for t in found.curve}) == 1:
        words = (
            "the budget changes nothing: nothing was seen that torch.compile compiles for training"
        )
    page.line(f"  {words}")
    page.line()
    table = page.table(">budget", ">needs", ">reserved", ">recomputed", "")
    for tried in found.curve:
        share = found.recomputed(tried)
        table.add_row(
            tried.values[BUDGET],
            page.bytes(tried.needed),
            page.bytes(tried.reserved),
            "" if share is None else f"{100 * share:.1f} %",
            "" if tried.fits else f"does not fit: {tried.limit}",
        )
    page.show(table)
    _end(page, [found.row], made, known)
    return page.text()
