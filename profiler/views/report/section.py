"""Content of a view, before it is text, JSON or a page: sections of notes and typed tables.

Note [One description of each view]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A section is built once, from a profile (``sections/``, a module a subject); renderers know nothing
of memory: ``text.py`` writes it for terminals, ``html/elements.py`` for pages, and ``plain`` gives
JSON values. They decide what the medium does: how many rows there is room for, colours, sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from memprof.profiler.model import SourceFrame

from .columns import Cell, Column, Row, Show as Show
from .format import shorten_path

EVERY = 1 << 30
"""Value of ``Table.least`` for all rows, however short the page."""

UNATTRIBUTED = "unattributed"
"""The row of a foot for what has no name: it stands out, and the more if there is any."""


class Tone(str, Enum):
    """Weight of a text, as its colour and brightness show it."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence or a fact on a line of its own."""

    text: str
    tone: Tone = Tone.PLAIN
    detail: bool = False  # left out of a short text


@dataclass(frozen=True, slots=True)
class Table:
    columns: tuple[Column, ...]  # of each row
    rows: Sequence[Row] = ()  # in the order that matters most
    foot: Sequence[Row] = ()  # below them, e.g. the remainder and the total
    caption: str = ""  # what the table is, "" where its section's title says so
    depth: Sequence[int] = ()  # of rows that are a tree in preorder, how far each is indented
    least: int = 1  # so many rows are shown however short the text is meant to be
    most: int = EVERY  # so many at most, however long
    rest: str = "more"  # what rows that are not shown are called after their number
    empty: str = ""  # said where there are no rows
    lines: bool = False  # each row is a line or a list item, not a row under headings
    folded: bool = False  # on a page, shown when it is asked for
    detail: bool = False  # left out of a short text
    brief: int = EVERY  # so many rows at most in a short text

    def plain(self) -> dict[str, Any]:
        """The table as JSON values."""
        of_column = ("title", "unit", "help", "whole", "below", "fold")
        same = ("caption", "rest", "empty", "lines", "folded")
        return {
            "columns": [{name: getattr(c, name) for name in of_column} for c in self.columns],
            "rows": [[_plain(cell) for cell in row] for row in self.rows],
            "foot": [[_plain(cell) for cell in row] for row in self.foot],
            "depth": list(self.depth),
            **{name: getattr(self, name) for name in same},
        }


@dataclass(frozen=True, slots=True)
class Section:
    """Part of a view on one subject: notes, tables and further sections."""

    id: str  # its name in addresses, "" where nothing leads to it
    title: str  # a line, "" for none
    notes: tuple[Note, ...] = ()  # before the tables
    tables: tuple[Table, ...] = ()  # those without rows say why, or are left out
    parts: tuple[Section, ...] = ()  # sections below this one; those that say nothing are left out
    tone: Tone = Tone.PLAIN  # of all of it
    view: str = ""  # an interactive view that a page draws first, by the name it has there
    detail: bool = False  # left out of a short text, which names it at its end
    name: str = ""  # how it is named there, "" for not at all
    # left out of a short text that would not fit a screen, those with the highest number first; 0
    # never is
    spare: int = 0

    def __bool__(self) -> bool:
        return bool(self.notes or self.tables or any(self.parts) or self.view)

    def spares(self) -> set[int]:
        """Every ``spare`` above 0, of this section and those below it."""
        return {self.spare, *(n for part in self.parts for n in part.spares())} - {0}

    def short(self, least: int = EVERY) -> tuple[Section, list[str]]:
        """The section without details and without parts whose ``spare`` is at least ``least``, and
        the names of those left out; ``NOTHING`` if no more is left."""
        if self.detail or self.spare >= least:
            return NOTHING, [self.name] if self and self.name else []
        shorter = [part.short(least) for part in self.parts]
        kept = replace(
            self,
            notes=tuple(n for n in self.notes if not n.detail),
            tables=tuple(
                replace(t, least=min(t.least, t.brief), most=min(t.most, t.brief))
                for t in self.tables
                if not t.detail
            ),
            parts=tuple(part for part, _ in shorter if part),
        )
        names = [name for _, left in shorter for name in left]
        shown = (len(kept.notes), len(kept.tables))
        if self.name and shown != (len(self.notes), len(self.tables)):
            names.insert(0, self.name)
        return kept or NOTHING, names

    def plain(self) -> dict[str, Any]:
        """The section as JSON values."""
        return {
            "id": self.id,
            "title": self.title,
            "notes": [[n.tone.value, n.text] for n in self.notes],
            "tables": [t.plain() for t in self.tables],
            "parts": [p.plain() for p in self.parts if p],
            "tone": self.tone.value,
            "view": self.view,
        }


NOTHING = Section("", "")


def of_rows(
    title: str,
    columns: tuple[Column, ...],
    rows: Sequence[Row],
    *notes: Note,
    tone: Tone = Tone.PLAIN,
    **more: Any,
) -> Section:
    """A section of one table, without which there is nothing to say; ``more`` as of ``Table``."""
    table = Table(columns, rows, **more)
    return Section("", title, notes, (table,) if rows else (), tone=tone)


def _plain(cell: Cell) -> Any:
    if isinstance(cell, SourceFrame):
        return [shorten_path(cell.file), cell.line, cell.function, cell.code.strip()]
    return cell
