"""Tables that are printed one line at a time, as their figures become known, and saved results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Lines:
    """A table in Markdown, its columns of fixed width so that it reads well in a terminal too.

    Args:
        columns: names and widths; a width below zero aligns to the left.
    """

    def __init__(self, *columns: tuple[str, int]) -> None:
        self._columns = columns

    def header(self) -> None:
        """Print the names."""
        self.row([name for name, _ in self._columns])
        dashes = ("-" * -w if w < 0 else "-" * (w - 1) + ":" for _, w in self._columns)
        print(f"| {' | '.join(dashes)} |", flush=True)

    def row(self, cells: Sequence[str]) -> None:
        """Print one line."""
        print(self.text(cells), flush=True)

    def text(self, cells: Sequence[str]) -> str:
        """One line; cells that are missing at its end are left out."""
        padded = (
            cell.ljust(-w) if w < 0 else cell.rjust(w)
            for cell, (_, w) in zip(cells, self._columns, strict=False)
        )
        return f"| {' | '.join(padded)} |"


def results(name: str) -> Path:
    """The file of a benchmark's saved results: beside the sources and not among them, since docs
    have a table of each."""
    return Path(__file__).resolve().parent.parent / "out" / "results" / name


def write_json(content: Any, path: Path) -> None:
    """Write results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new.replace(path)
