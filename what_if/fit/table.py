"""The rows of ``memprof fit``: for each GPU and combination of listed values, what fits.

Note [How the largest is found]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
It is assumed that what fits also fits with a smaller value. Bisection needs log2(n) tries, a minute
each. But what a step needs is nearly a straight line in the batch. So the next try is where the
line through the two largest values that fit reaches the device's memory, and the one after it is
the next larger value, which must fail: mostly four tries in all.

A *wanted* number of tokens in the cache of a serving engine may grow with the value (the share of
the memory that it may use) or fall (its longest request). So the largest that fits is found first;
where that holds too few tokens, and a smaller value enough, bisection goes on between the two.

The line is of what is allocated: what is reserved bends near the end, where the allocator gives
back what is free before it fails. A value that failed tells how much its request was short of: by
so much, along the line, the next try is below it, and by a twelfth of it at least where the line
comes from far below. Where a line misleads altogether (sizes are padded, graphs differ), a pair of
tries that did not halve what is left is followed by one in its middle: never more than three times
as many tries as bisection alone.

No value is reported that was not run: the largest fitted, and the next larger one was seen to fail.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType

from memprof.profiler.views.report.text_page import PLAIN, Page, Style
from memprof.simulated_cuda.gpus import Gpu
from memprof.what_if.simulate.parent import end_scripts, exits_on_signals

from .tries import ScriptFailed, Tried, Tries
from .variables import Variable

_BACK = 1 / 12
"""Step from a value that failed down to the next try, as a share of that value."""


Needed = Mapping[int, float]
"""Bytes that are needed, by index."""


def _slope(points: Needed) -> float:
    """Bytes an index, by the line through the last two."""
    a, b = sorted(points)[-2:]
    return (points[b] - points[a]) / (b - a)


def _reaches(points: Needed, memory: int) -> int:
    """The last index at which no more than ``memory`` is needed, by that line."""
    last, slope = max(points), _slope(points)
    index = last + (memory - points[last]) / slope if slope > 0 else math.inf
    return int(min(max(index, -1.0), 1e15))


def largest(
    count: int,
    memory: int,
    probe: Callable[[int], Tried],
    *,
    second: int = 3,
    guess: Needed | None = None,
) -> tuple[int, Needed]:
    """The largest of ``count`` indices from 0 that fits, -1 for none, and what those needed that
    fitted; see Note [How the largest is found].

    ``probe`` is called at most once for each index, for ``second`` after 0 has fitted; ``guess``
    has at least two that fitted in a similar search.
    """
    fits: dict[int, int] = {}
    low, high = -1, count
    widths: list[int] = []
    last: Tried | None = None
    while high - low > 1:
        middle = (low + high) // 2
        points = fits if len(fits) > 1 else guess
        widths.append(high - low)
        stuck = len(widths) > 2 and widths[-1] * 2 > widths[-3]
        if low == -1 and guess is None:
            index = 0
        elif stuck and high < count:
            index = middle
        elif points is None:
            index = second
        elif last is not None and not last.fits and _slope(points) > 0:
            # A line from far below is no better than a guess, whatever the request was short of.
            least = high * _BACK if 2 * low < high else 1
            index = max(high - math.ceil(max(last.short / _slope(points), least)), middle)
        elif _reaches(points, memory) >= high < count:
            index = middle
        else:  # at least the next one, where the line says that it is full
            index = _reaches(points, memory)
        index = min(max(index, low + 1), high - 1)
        last = probe(index)
        if last.fits:
            low = index
            fits[index] = last.needed - last.reserved + last.allocated
        else:
            high = index
    return low, fits


@dataclass(slots=True)
class Row:
    """Tries on one GPU with one combination of listed values, and the best of them.

    Attributes:
        best: the try with the largest value of the range that fits, or without a range the only
            one, if it fits; else None.
        failed: the next larger one, which does not fit; None where the range's last value fits.
        wanted: tokens that the cache of a serving engine must hold, else it does not count as
            fitting; None if nobody said.
    """

    gpu: Gpu
    values: dict[str, str]
    wanted: int | None = None
    best: Tried | None = None
    failed: Tried | None = None
    tries: list[Tried] = field(default_factory=list)

    def attempt(self, values: dict[str, str], tries: Tries, on_try: OnTry) -> Tried:
        """Run a try with ``values``, and pass it to ``on_try``."""
        tried = tries.run(self.gpu, values)
        self.tries.append(tried)
        on_try(self, tried)
        return tried

    def holds(self, tried: Tried) -> bool:
        """Tells whether a try fits, with the tokens that are wanted.

        Raises:
            ScriptFailed: nobody said how many tokens there are.
        """
        if not tried.fits or self.wanted is None:
            return tried.fits
        if tried.tokens is None:
            raise ScriptFailed("no serving engine that memprof knows said how many tokens it holds")
        return tried.tokens >= self.wanted

    def fastest(self, name: str) -> Tried | None:
        """The try that fits and makes most of the variable ``name`` a second, if times are
        known."""
        timed = [t for t in self.tries if t.step_ns and self.holds(t)]
        return max(timed, key=lambda t: per_second(t, name), default=None)


def per_second(tried: Tried, name: str) -> float:
    """Value of a variable, such as the samples of a step, by the seconds that a step takes."""
    return float(tried.values[name]) / (tried.step_ns or 1) * 1e9


OnTry = Callable[[Row, Tried], None]
"""Called with each try as it ends."""


def rows(
    variables: Sequence[Variable],
    gpus: Sequence[Gpu],
    tries: Tries,
    on_try: OnTry,
    wanted: int | None = None,
    *,
    throughput: bool = False,
) -> list[Row]:
    """Search each row; at most one variable is a range. ``wanted`` is that of ``Row``; with
    ``throughput`` the best is the fastest of those that were run and fit. Raises as ``Tries.run``,
    and ``ScriptFailed`` where tokens are wanted and nobody serves, or nobody can say what is
    fastest. With an executor of ``tries`` all rows are searched at once."""
    varied = next((v for v in variables if v.is_range), None)
    guesses: dict[tuple[str, ...], Needed] = {}

    def search(row: Row) -> None:
        if varied is None:
            tried = row.attempt(row.values, tries, on_try)
            row.best, row.failed = (tried, None) if row.holds(tried) else (None, tried)
            return
        by_index: dict[int, Tried] = {}

        def probe(index: int) -> Tried:
            varying = {**row.values, varied.name: varied.values[index]}
            if index not in by_index:
                by_index[index] = row.attempt(varying, tries, on_try)
            return by_index[index]

        # What another GPU needed for the same is a good guess, and no more than that.
        same = tuple(row.values.values())
        best, fits = largest(
            len(varied.values),
            row.gpu.memory,
            probe,
            second=_second(varied),
            guess=guesses.get(same),
        )
        if len(fits) > 1:
            guesses[same] = fits
        low = max((i for i, t in by_index.items() if row.holds(t)), default=-1)
        high = best + 1
        if low < best:
            high = best
        while 0 <= low < high - 1:
            middle = (low + high) // 2
            probe(middle)
            low, high = (middle, high) if row.holds(by_index[middle]) else (low, middle)
        row.best, row.failed = by_index.get(low), by_index.get(high)
        if throughput and row.best is not None:
            row.best = row.fastest(varied.name)
            if row.best is None:
                raise ScriptFailed(
                    f"the time of a step on {row.gpu.key} is not known: its speed must be among "
                    "those of docs/simulated-time.md, and the script must make three optimizer "
                    "steps"
                )

    pairs = itertools.product(gpus, combinations(variables))
    found = [Row(gpu, values, wanted) for gpu, values in pairs]
    if tries.executor is None:
        for row in found:
            search(row)
    else:
        _search_at_once(search, found)
    return found


def _search_at_once(search: Callable[[Row], None], rows: Sequence[Row]) -> None:
    """Search each row in a thread that waits for the executor; the first failure ends all."""
    with ThreadPoolExecutor(len(rows)) as threads:
        searches = [threads.submit(search, row) for row in rows]
        try:
            with exits_on_signals():
                for each in searches:
                    each.result()
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            end_scripts()
            raise


def _second(varied: Variable) -> int:
    """The index at which the slope is looked for: four times the first value, where that is one."""
    first, last = float(varied.values[0]), len(varied.values) - 1
    step = float(varied.values[1]) - first if last else 1.0
    return min(max(int(3 * first / step), 1), last)


def combinations(variables: Sequence[Variable]) -> list[dict[str, str]]:
    """Each value of each list with each of the others, the first variable's slowest."""
    pairs = ([(v.name, value) for value in v.values] for v in variables if not v.is_range)
    return list(map(dict, itertools.product(*pairs)))


_PARTS = 5
"""Most rows that say what the best try's memory is made of."""


def progress(row: Row, tried: Tried, show: Style = PLAIN) -> str:
    """A line about a try that has ended."""
    values = " ".join(f"{name}={value}" for name, value in tried.values.items())
    what = f"fits, needs {show.show(tried.needed)}" if tried.fits else "does not fit"
    on = f"{row.gpu.key}: " if not values else f"{values} on {row.gpu.key}: "
    return f"memprof fit: {on}{what} ({tried.seconds:.0f} s)"


def render(
    rows: Sequence[Row],
    variables: Sequence[Variable],
    made: int,
    style: Style = PLAIN,
    prices: Mapping[str, float] = MappingProxyType({}),
) -> str:
    """Rows as a table, and what the first one's best try is made of; ``prices`` are of an hour, by
    GPU."""
    page = Page(style)
    varied = next((v for v in variables if v.is_range), None)
    lists = [v.name for v in variables if not v.is_range]
    _verdict(page, rows, varied)
    page.line()
    names = [*lists, *([varied.name] if varied is not None else ["fits"])]
    tokens = [">tokens"] * any(t.tokens is not None for row in rows for t in row.tries)
    timed = any(row.best is not None and row.best.step_ns for row in rows)
    times = [">ms a step"] * timed
    if timed and varied is not None:
        times += [f">{varied.name}/s", *([f">$ per million {varied.name}"] if prices else [])]
    sizes = (">needs", ">to spare")
    table = page.table("gpu", *(f">{n}" for n in names), *tokens, *times, *sizes, "what limits")
    for row in rows:
        best = row.best
        shown = ["none" if varied is not None else "no", *("" for _ in [*tokens, *times]), "", ""]
        if best is not None:
            answer = best.values[varied.name] if varied is not None else "yes"
            spare = row.gpu.memory - best.needed
            held = [f"{best.tokens or 0:,}" for _ in tokens]
            if timed:
                held += _times(best, varied, prices)
                held += [""] * (len(times) + len(tokens) - len(held))
            shown = [answer, *held, page.bytes(best.needed), page.bytes(spare)]
        values = (row.values[name] for name in lists)
        table.add_row(row.gpu.key, *values, *shown, _limit(row, varied))
    page.show(table)
    _end(page, rows, made)
    return page.text()


def _times(best: Tried, varied: Variable | None, prices: Mapping[str, float]) -> list[str]:
    if not best.step_ns:
        return []
    shown = [f"{best.step_ns / 1e6:,.1f}"]
    if varied is not None:
        rate = per_second(best, varied.name)
        shown.append(f"{rate:,.0f}")
        price = prices.get(best.gpu)
        if price is not None and rate > 0:
            shown.append(f"{price / 3600 / rate * 1e6:,.2f}")
    return shown


def _verdict(page: Page, rows: Sequence[Row], varied: Variable | None) -> None:
    fitting = [row for row in rows if row.best is not None]
    if not fitting:
        page.line("Nothing fits", "bold red")
    elif len(rows) == 1 and varied is not None:
        (row,) = rows
        assert row.best is not None
        more = "" if row.failed is not None else ", the last of the range"
        fitting_values = (float(t.values[varied.name]) for t in row.tries if row.holds(t))
        best = float(row.best.values[varied.name])
        which = "largest" if best == max(fitting_values) else "fastest of those that were run"
        page.line(
            f"{varied.name} = {row.best.values[varied.name]} is the {which} that fits "
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
    if row.best is not None and row.best.wrong:
        return "wrong gradients"
    if row.failed is None:
        return "nothing within the range" if varied is not None else ""
    where = f"{varied.name}={row.failed.values[varied.name]}: " if varied is not None else ""
    return f"{where}{row.failed.limit or f'holds {row.failed.tokens:,} tokens'}"


def _end(page: Page, rows: Sequence[Row], made: int) -> None:
    shown = next((row.best for row in rows if row.best is not None), None)
    if shown is not None:
        values = ", ".join(f"{name} = {value}" for name, value in shown.values.items())
        page.section(f"What is reserved at the peak{' with ' if values else ''}{values}")
        table = page.table(">bytes", "what")
        parts = [part for part in shown.parts if part[1]]
        for what, nbytes in parts[:_PARTS]:
            table.add_row(page.bytes(nbytes), what)
        rest = sum(nbytes for _, nbytes in parts[_PARTS:])
        if rest:
            table.add_row(page.bytes(rest), f"{len(parts) - _PARTS} others")
        table.add_row(page.bytes(shown.reserved), "total reserved")
        page.show(table)
    for note in dict.fromkeys(note for row in rows for t in row.tries for note in t.notes):
        page.indented(note, 2)
    seconds = sum(t.seconds for row in rows for t in row.tries)
    page.line(
        f"{made} tries in {seconds:.0f} s. "
        "Each value was run on the simulated device, as far as `memprof simulate` runs a script."
    )
