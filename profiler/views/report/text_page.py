"""A page of text under construction, with tables of fixed width, and what a stream can show of it.

Whatever is put on a page passes ``visible``, see Note [What may reach a terminal]: those who write
here need not think of it, and styles come from the page alone."""

from __future__ import annotations

import io
import os
import shutil
from dataclasses import dataclass
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memprof.profiler.model import SourceFrame
from memprof.profiler.support.text import visible

from .format import fit_path, format_bytes, shorten_path

DEFAULT_WIDTH = 100
"""Characters a line where nobody says."""

_MIN_COLUMN = 12
_ASCII_BOX = Box("    \n    \n -- \n    \n    \n -- \n    \n    \n", ascii=True)
_ASCII = str.maketrans({"…": "~", "·": "|"})


@dataclass(frozen=True, slots=True)
class Style:
    """Layout of a text: width, colour, characters, digits, rows."""

    top: int = 10  # rows in each table, at least 1; the rest is added up in one more row
    # characters a line, at least 80 (100 with ``exact``): less is taken as that. Tables of many
    # numbers are wider: no number is cut.
    width: int = DEFAULT_WIDTH
    color: bool = False  # with ANSI escape sequences
    ascii_only: bool = False  # no character beyond ASCII, for terminals and locales without UTF-8
    exact: bool = False  # bytes with all digits
    # without details, so that a report fits a screen; it ends with what was left out
    short: bool = False

    def show(self, n: int) -> str:
        return format_bytes(n, self.exact)


PLAIN = Style()
"""Style of text for anything but a terminal: 100 characters a line, no colour."""


def style_of(out: TextIO) -> Style:
    """Style of text for ``out``: as wide as COLUMNS says, else as the terminal, else 100; colour on
    terminals unless NO_COLOR is set; ASCII where UTF-8 does not pass."""
    terminal = bool(getattr(out, "isatty", bool)())
    width = os.environ.get("COLUMNS", "")
    columns = int(width) if width.isdecimal() else 0
    if terminal and not columns:
        columns = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns
    return Style(
        width=columns or DEFAULT_WIDTH,
        color=terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        ascii_only=printable("·…─", out) != "·…─",
    )


def printable(text: str, out: TextIO) -> str:
    """``text`` with what ``out`` cannot encode as escapes: paths and code may hold anything."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


class _Table(Table):
    """One whose cells are plain text: no markup of a profile's making, no control characters."""

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        super().add_row(*map(_cell, cells), **more)


def _cell(cell: RenderableType | None) -> Text | None:
    if cell is None:
        return None
    style = cell.style if isinstance(cell, Text) else ""
    return Text(visible(str(cell)), style=style)


class Page:
    """Text under construction."""

    def __init__(self, style: Style) -> None:
        self.width = max(style.width, 100 if style.exact else 80)
        self.exact = style.exact
        self.top = max(style.top, 1)
        self._ascii = style.ascii_only
        self._box = _ASCII_BOX if style.ascii_only else SIMPLE_HEAD
        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=self.width,
            force_terminal=style.color,
            color_system="standard" if style.color else None,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
            _environ={},  # the caller has decided on colour and width, not the environment
        )

    @property
    def is_empty(self) -> bool:
        return not self._out.tell()

    def bytes(self, n: int) -> str:
        return format_bytes(n, self.exact)

    def line(self, text: str = "", style: str = "") -> None:
        self._console.print(Text(visible(text), style=style), soft_wrap=False)

    def indented(self, text: str, by: int, style: str = "") -> None:
        """Print a paragraph, folded and indented by ``by`` characters."""
        self._console.print(Padding(Text(visible(text), style=style), (0, 0, 0, by)))

    def section(self, title: str) -> None:
        self.line()
        self.line(title, style="bold")

    def table(self, *columns: str, fold: bool = False) -> Table:
        """An empty table; ``>name`` is a column of numbers: right-aligned and never cut. Text that
        does not fit is cut; with ``fold``, that of the last column is folded."""
        table = _Table(box=self._box, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        for i, name in enumerate(columns):
            folds = fold and i == len(columns) - 1
            table.add_column(
                Text(visible(name.lstrip(">"))),
                justify="right" if name.startswith(">") else "left",
                no_wrap=not folds,
                overflow="fold" if folds else "ellipsis",
                header_style="dim",
            )
        return table

    def show(self, table: Table) -> None:
        gap = 2  # a space of padding and one for the box's divider
        widths = [max(cell_len(str(text)) for text in (c.header, *c.cells)) for c in table.columns]
        texts = [i for i, c in enumerate(table.columns) if c.justify == "left"]
        gaps = gap * (len(widths) - 1)
        for i in reversed(texts):
            excess = sum(widths) + gaps - self.width
            if excess > 0:
                widths[i] = max(widths[i] - excess, min(widths[i], _MIN_COLUMN))
        for column, width in zip(table.columns, widths, strict=True):
            column.width = width
        self._console.width = max(self.width, sum(widths) + gaps)
        self._console.print(table)
        self._console.width = self.width

    def text(self) -> str:
        text = self._out.getvalue()
        if self._ascii:
            text = text.translate(_ASCII).encode("ascii", "backslashreplace").decode()
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    def location(self, frame: SourceFrame) -> str:
        return self.path(f"{shorten_path(frame.file)}:{frame.line}")

    def path(self, path: str) -> str:
        return fit_path(path, self.width * 2 // 5)
