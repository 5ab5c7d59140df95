"""The rows of ``memprof fit``: for each GPU and combination of listed values, what fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from memprof.profiler.report.page import PLAIN, Page, Style
from memprof.simulated_cuda.gpus import Gpu

from .search import Line, Try, largest
from .tries import Tried, Tries
from .variables import Variable

BUDGET = "BUDGET"
BUDGET_SETTING = "torch._functorch.config.activation_memory_budget"

_COARSE, _FINE, _FINEST = 100, 10, 1
"""Steps in which a budget is looked for, in thousandths."""

_WHOLE = 1000

ENOUGH = 0.01
"""Share of the device's memory that may be to spare before the finest step is taken as well."""


@dataclass(slots=True)
class Row:
    """What was found on one GPU with one combination of listed values.

    Attributes:
        best: the try with the largest value of the range that fits, or without a range the only
            one, if it fits; else None.
        failed: the next larger one, which does not fit; None where the range's last value fits.
        tries: all of the row, in the order in which they ran.
    """

    gpu: Gpu
    values: dict[str, str]
    best: Tried | None = None
    failed: Tried | None = None
    tries: list[Tried] = field(default_factory=list)


@dataclass(slots=True)
class Budget:
    """What the activation memory budget buys: the row with the largest that fits, and every try,
    from the smallest budget to the largest."""

    row: Row
    curve: list[Tried]

    @property
    def monotonic(self) -> bool:
        """Whether more budget never needed less."""
        needs = [t.needed for t in self.curve if t.fits]
        return needs == sorted(needs)

    def recomputed(self, tried: Tried) -> float | None:
        """Operations beyond those of budget 1, as a share of these; None if nothing was counted."""
        whole = next((t.flops for t in self.curve if float(t.values[BUDGET]) == 1.0), None)
        if not whole or tried.flops is None:
            return None
        return (tried.flops - whole) / whole


def rows(
    variables: Sequence[Variable],
    gpus: Sequence[Gpu],
    tries: Tries,
    said: Callable[[Row, Tried], None],
) -> list[Row]:
    """Search each row; at most one variable is a range. ``said`` is told of each try as it ends.

    Raises: as ``Tries.run``.
    """
    varied = next((v for v in variables if v.is_range), None)
    lines: dict[tuple[str, ...], Line] = {}
    found = []
    for gpu, values in itertools.product(gpus, combinations(variables)):
        row = Row(gpu, values)
        found.append(row)

        def attempt(values: dict[str, str], row: Row = row) -> Tried:
            tried = tries.run(row.gpu, values)
            row.tries.append(tried)
            said(row, tried)
            return tried

        if varied is None:
            tried = attempt(values)
            row.best, row.failed = (tried, None) if tried.fits else (None, tried)
            continue
        by_index: dict[int, Tried] = {}

        def probe(index: int, row: Row = row, by_index: dict[int, Tried] = by_index) -> Try:
            tried = attempt({**row.values, varied.name: varied.values[index]}, row)
            by_index[index] = tried
            needed = tried.needed - tried.reserved + tried.allocated
            return Try(tried.fits, needed, tried.short)

        # What another GPU needed for the same is a good guess, and no more than that.
        same = tuple(values.values())
        count = len(varied.values)
        best, line = largest(
            count, gpu.memory, probe, second=_second(varied), guess=lines.get(same)
        )
        if line is not None:
            lines[same] = line
        row.best, row.failed = by_index.get(best), by_index.get(best + 1)
    return found


def _second(varied: Variable) -> int:
    """The index at which the slope is looked for: four times the first value, where that is one."""
    first, last = float(varied.values[0]), len(varied.values) - 1
    step = float(varied.values[1]) - first if last else 1.0
    return min(max(int(3 * first / step), 1), last)


def combinations(variables: Sequence[Variable]) -> list[dict[str, str]]:
    """Each value of each list with each of the others, the first variable's slowest."""
    lists = [v for v in variables if not v.is_range]
    names = [v.name for v in lists]
    return [
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(v.values for v in lists))
    ]


def budget_row(
    gpu: Gpu, values: dict[str, str], tries: Tries, said: Callable[[Row, Tried], None]
) -> Budget:
    """The curve over the budget from 0 to 1, and the largest budget that fits, to 0.01.

    The curve need not rise, so every tenth is run, and then by bisection what lies between the
    largest that fits and the next one; to 0.001 where 0.01 leaves more than ``ENOUGH`` to spare.

    Raises: as ``Tries.run``.
    """
    row = Row(gpu, values)
    known: dict[int, Tried] = {}

    def fits(thousandths: int) -> bool:
        if thousandths not in known:
            tried = tries.run(gpu, {**values, BUDGET: f"{thousandths / _WHOLE:g}"})
            known[thousandths] = tried
            row.tries.append(tried)
            said(row, tried)
        return known[thousandths].fits

    low = max((t for t in range(_WHOLE, -1, -_COARSE) if fits(t)), default=None)
    high = None if low == _WHOLE else 0
    if low is not None and low < _WHOLE:
        high = low + _COARSE
        for step in (_FINE, _FINEST):
            while high - low > step:
                middle = low + (high - low) // (2 * step) * step
                low, high = (middle, high) if fits(middle) else (low, middle)
            if gpu.memory - known[low].needed <= ENOUGH * gpu.memory:
                break
    row.best = known[low] if low is not None else None
    row.failed = known[high] if high is not None else None
    return Budget(row, [known[t] for t in sorted(known)])


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
