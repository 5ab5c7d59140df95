"""Columns of tables: what their cells are, whatever draws them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from enum import Enum
from functools import partial
from typing import Any

from memprof.profiler.model import SourceFrame

from .format import format_bytes, format_ns, format_share, shorten_path

Show = Callable[[int], str]
"""Formatter of bytes in the text of a note: rounded, or with all digits."""

Cell = str | int | float | SourceFrame | None
"""A value in its column's unit; None where there is none."""

Row = tuple[Cell, ...]


class Unit(str, Enum):
    """Type of a column's cells, which decides how they are written and aligned."""

    TEXT = "text"
    CODE = "code"  # names and source text
    CATEGORY = "category"  # the value of a ``Category``, or other words joined by underscores
    PATH = "path"  # a file and a line, of which the end says most
    FRAME = "frame"  # a line of user code
    TIME = "time"  # nanoseconds since 1970, in UTC
    # Those from here on are numbers: aligned at the right and never cut.
    BYTES = "bytes"
    CHANGE = "change"  # bytes with a sign
    COUNT = "count"
    TIMES = "times"  # a count that goes without saying where it is 1, in a table of lines
    NS = "ns"
    SHARE = "share"  # a part of ``Column.whole``
    FIGURE = "figure"  # a number that is text already

    @property
    def is_number(self) -> bool:
        """Whether cells are aligned at the right and never cut."""
        return self in _NUMBERS


_NUMBERS = frozenset(list(Unit)[list(Unit).index(Unit.BYTES) :])


@dataclass(frozen=True, slots=True)
class Column:
    title: str  # its heading; in a table of lines, what stands after a number
    unit: Unit = Unit.TEXT  # of its cells
    help: str = ""  # a longer explanation
    adds: bool = False  # cells of rows that are not shown are added up
    whole: int = 0  # for shares, of how much
    # on a page these cells stand in smaller type below those of the column before
    below: bool = False
    # where there is no room for the text it goes on in the next line, else it is cut
    fold: bool = False


Text = partial(Column, unit=Unit.TEXT)
Code = partial(Column, unit=Unit.CODE)
Words = partial(Column, unit=Unit.CATEGORY)
Path = partial(Column, unit=Unit.PATH)
Frame = partial(Column, unit=Unit.FRAME)
Time = partial(Column, unit=Unit.TIME)
Bytes = partial(Column, unit=Unit.BYTES)
Change = partial(Column, unit=Unit.CHANGE)
Count = partial(Column, unit=Unit.COUNT)
Times = partial(Column, unit=Unit.TIMES)
Ns = partial(Column, unit=Unit.NS)
Share = partial(Column, unit=Unit.SHARE)
Figure = partial(Column, unit=Unit.FIGURE)


def number_words(unit: Unit, n: float, whole: int = 0, show: Show = format_bytes) -> str:
    """A number in words, the same at the terminal and on a page; ``whole`` as of a ``Column``."""
    match unit:
        case Unit.BYTES:
            return show(int(n))
        case Unit.CHANGE:
            return f"+{show(int(n))}" if n > 0 else show(int(n))
        case Unit.SHARE:
            return format_share(int(n), whole)
        case Unit.NS:
            return format_ns(n)
        case Unit.TIME:
            time = datetime.fromtimestamp(n / 1e9, tz=timezone.utc)
            return time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        case _:
            return f"{n:,}" if isinstance(n, int) else f"{n:g}"


def cell_words(
    column: Column,
    value: Cell,
    show: Show = format_bytes,
    fit: Callable[[str], str] = str,
) -> str:
    """A cell in words, the same at the terminal and on a page; ``fit`` shortens a path."""
    if value is None:
        return "-"
    if isinstance(value, SourceFrame):
        return fit(f"{shorten_path(value.file)}:{value.line}")
    if not isinstance(value, str):
        return number_words(column.unit, value, column.whole, show)
    if column.unit is Unit.PATH:
        return fit(value)
    return value.replace("_", " ") if column.unit is Unit.CATEGORY else value


def line_words(
    columns: Sequence[Column],
    row: Row,
    show: Show = format_bytes,
    fit: Callable[[str], str] = str,
) -> str:
    """A row of a table of lines; what has no value is left out."""
    cells = []
    for c, value in zip(columns, row, strict=True):
        if value is None or value == "" or (c.unit is Unit.TIMES and value == 1):
            continue
        text = cell_words(c, value, show, fit)
        cells.append(f"{text} {c.title}" if c.unit.is_number and c.title else text)
    return " · ".join(cells)


def alike(of: Callable[..., Column], *titles: str, **more: Any) -> tuple[Column, ...]:
    return tuple(of(title, **more) for title in titles)


BYTES = Bytes("bytes", adds=True)
BLOCKS = Count("blocks", adds=True)
CATEGORY = Words("category")
MODULE = Code("module")
LINE = Frame("source line")
TEXT = Text("", fold=True)
"""Sentences, each a line of its own."""


def share(whole: int) -> Column:
    return Share("share", adds=True, whole=whole)


def below(*columns: Column) -> tuple[Column, ...]:
    return tuple(replace(column, below=True) for column in columns)


ASKED_FOR = (
    Frame("asked for by"),
    *below(MODULE, Code("FX nodes of compiled code")),
)
"""Columns for the place in the code that asked for memory."""
