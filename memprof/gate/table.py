"""The table of gated tests, a row as each ends: several processes may write to it."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.profiler.report.format import format_bytes

_COLUMNS = ("test", "GPU", "reserved", "limit", "allocated", "baseline", "change", "")


@dataclass(frozen=True, slots=True)
class Row:
    """One test; bytes.

    Attributes:
        test: its node ID.
        gpu: key of the data sheet.
        reserved, allocated: the most at any time.
        limit: of what is reserved, None for none.
        baseline: of what is allocated, None for none.
        passed: whether it kept to what it may take.
    """

    test: str
    gpu: str
    reserved: int
    allocated: int
    limit: int | None
    baseline: int | None
    passed: bool

    def markdown(self) -> str:
        """The row of a table in Markdown."""
        change = ""
        if self.baseline:
            change = f"{100 * (self.allocated - self.baseline) / self.baseline:+.2f} %"
        cells = (
            f"`{self.test}`".replace("|", "\\|"),
            self.gpu,
            format_bytes(self.reserved),
            _bytes(self.limit),
            format_bytes(self.allocated),
            _bytes(self.baseline),
            change,
            "" if self.passed else "**failed**",
        )
        return f"| {' | '.join(cells)} |\n"


def _bytes(nbytes: int | None) -> str:
    return "" if nbytes is None else format_bytes(nbytes)


def begin(path: str) -> None:
    """Write the head of a table, over what was there."""
    rules = ["---", "---", *["--:"] * 5, "---"]
    with open(path, "w") as f:
        f.write(f"| {' | '.join(_COLUMNS)} |\n| {' | '.join(rules)} |\n")


def add(path: str, row: Row) -> None:
    """Add a row, in one piece."""
    with open(path, "a") as f:
        f.write(row.markdown())
