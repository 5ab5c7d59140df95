"""Marks: instants between two events of the allocator's history, and what was known at each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from memprof.profiler.model import Category, SourceFrame


class Phase(str, Enum):
    """Phase of training that runs from a mark to the next."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(slots=True)
class Mark:
    """An instant between two events of the allocator's history.

    Attributes:
        phase: what runs from here on.
        step: optimizer steps that have ended.
        categories: of storages, by the address of their first byte, as far as looked for.
        line: of the program that waits in ``backward()`` from here on; None if not known.
        checkpointed: addresses of what is handed to a checkpointed function here.
        owners: classes of modules whose storages are, by address, as far as looked for.
        written_often: addresses of what was written to often, as far as looked for.
        clears: whether cuBLAS's workspaces, and nothing else, are given back here.
        cut: whether what ran until here has raised.
        backwards: that have begun, that of this mark included.
        counts: blocks that had been asked for, and let go of, by device.
    """

    phase: Phase
    step: int
    categories: dict[int, Category] = field(default_factory=dict)
    line: SourceFrame | None = None
    checkpointed: frozenset[int] = frozenset()
    written_often: frozenset[int] = frozenset()
    owners: dict[int, str] = field(default_factory=dict)
    clears: bool = False
    cut: bool = False
    backwards: int = 0
    counts: dict[int, tuple[int, int]] = field(default_factory=dict)

    def forget(self) -> None:
        """Let go of what is noted in blocks by now: marks stay, a few a step."""
        self.categories = self.owners = self.counts = _NOTHING
        self.written_often = self.checkpointed = frozenset()


_NOTHING: dict[int, Any] = {}


def line_that_waits(marks: Sequence[Mark], number: int) -> SourceFrame | None:
    """Line whose ``backward()`` made a request after the mark of this number; else None."""
    mark = marks[number]
    return mark.line if mark.phase is Phase.BACKWARD else None
