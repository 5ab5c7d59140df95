"""Marks: instants between two events of the allocator's history, and what was known at each.

Note [Few marks]
~~~~~~~~~~~~~~~~
A run has a few marks a step, and is explained at its end, when blocks are asked about that still
live, lived long or are of the peak. So when the history has been followed past marks, those that no
such block refers to go (``thin``). Of a row that goes one of each phase stays, so that a phase
which lay between two blocks still does; and what was known at any is known at the last of these, as
far as it is about such blocks: each was there during the whole row, or not at all.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from memprof.profiler.model import Purpose, SourceFrame

from .replay import Block, Replay

AT_LEAST = 1_000
"""Marks that a run must have for some to go."""


class Phase(str, Enum):
    """What runs from a mark to the next."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(slots=True)
class Mark:
    """An instant between two events of the allocator's history.

    Attributes:
        phase: what runs from here on.
        step: optimizer steps that have ended.
        known: purposes of storages, by the address of their first byte, as far as looked for.
        line: of the program that waits in ``backward()`` from here on; None if not known.
        checkpointed: addresses of what is handed to a checkpointed function here.
        batch: bytes of each tensor of a batch that a DataLoader returns here.
        often: addresses of what was written to often, as far as looked for.
        clears: whether cuBLAS's workspaces, and nothing else, are given back here.
        backwards: that have begun, that of this mark included.
    """

    phase: Phase
    step: int
    known: dict[int, Purpose] = field(default_factory=dict)
    line: SourceFrame | None = None
    checkpointed: frozenset[int] = frozenset()
    batch: frozenset[int] = frozenset()
    often: frozenset[int] = frozenset()
    clears: bool = False
    backwards: int = 0


def line_that_waits(marks: Sequence[Mark], number: int) -> SourceFrame | None:
    """The line in whose ``backward()`` something was asked for after the mark with this number,
    None if in none."""
    mark = marks[number]
    return mark.line if mark.phase is Phase.BACKWARD else None


class Marks:
    """All marks of a run so far, of all its devices.

    Attributes:
        all: in order of time; a mark's number is its index. The first one is the beginning.
        counts: by device, for each mark how many blocks had been asked for, and let go of.
        lock: held while a mark is set: a DataLoader may be read by a thread of its own.
    """

    def __init__(self) -> None:
        self.all = [Mark(Phase.FORWARD, 0)]
        self.counts: dict[int, list[tuple[int, int]]] = {}
        self.lock: Any = threading.RLock()
        self._due = AT_LEAST

    def begin(self, device: int, counts: tuple[int, int]) -> list[tuple[int, int]]:
        """Count on a device from now on; what it has counted is that of all marks so far."""
        with self.lock:
            return self.counts.setdefault(device, [counts] * len(self.all))

    def add(self, mark: Mark, counts: dict[int, tuple[int, int]]) -> None:
        """Set a mark; call it with ``lock`` held."""
        before = self.all[-1]
        begins = mark.phase is Phase.BACKWARD and before.phase is not Phase.BACKWARD
        mark.backwards = before.backwards + begins
        for device, so_far in self.counts.items():
            so_far.append(counts[device])
        self.all.append(mark)

    def thin(self, replays: Iterable[Replay]) -> None:
        """Let go of what nobody can ask for any more; see Note [Few marks]. Numbers in ``replays``,
        all that follow these marks, and in their blocks become those that the marks have then."""
        replays = list(replays)
        with self.lock:
            passed = min(r.mark for r in replays)
            if passed < self._due:
                return
            blocks = {id(b): b for r in replays for b in (*r.live, *r.peak.blocks, *r.gone)}
            stay = {0, *(r.peak.mark for r in replays), *(r.mark for r in replays)}
            for b in blocks.values():
                stay.add(b.mark)
                if b.freed_after is not None:
                    stay.add(b.freed_after)
            kept: list[tuple[int, Mark]] = []
            rows = itertools.groupby(range(len(self.all)), lambda i: i >= passed or i in stay)
            is_asked_for = _in_any_of(blocks.values())
            known: dict[int, Purpose] = {}
            for stays, row in rows:
                numbered = [(i, self.all[i]) for i in row]
                kept += numbered if stays else _of_each_phase(numbered, is_asked_for)
                if not stays:  # Most often it is what it was: kept once.
                    last = kept[-1][1]
                    known = last.known = known if last.known == known else last.known
            self.all[:] = [mark for _, mark in kept]
            for counts in self.counts.values():
                counts[:] = [counts[i] for i, _ in kept]
            new = {i: n for n, (i, _) in enumerate(kept)}
            for b in blocks.values():
                b.mark = new[b.mark]
                if b.freed_after is not None:
                    b.freed_after = new[b.freed_after]
            for r in replays:
                r.mark, r.peak.mark = new[r.mark], new[r.peak.mark]
            self._due = max(AT_LEAST, 2 * len(self.all))


def _of_each_phase(
    row: Sequence[tuple[int, Mark]], is_asked_for: Callable[[int], bool]
) -> list[tuple[int, Mark]]:
    """One mark of each phase of a row that goes, and on the last of them what was known at any."""
    first: dict[Phase, tuple[int, Mark]] = {}
    known: dict[int, Purpose] = {}
    for i, mark in row:
        first.setdefault(mark.phase, (i, mark))
        for address, purpose in mark.known.items():
            if purpose is Purpose.PERSISTENT_STATE:
                known[address] = purpose
            else:
                known.setdefault(address, purpose)
    none = frozenset[int]()
    kept = [
        (i, replace(mark, known={}, often=none, checkpointed=none, batch=none))
        for i, mark in first.values()
    ]
    last = kept[-1][1]
    last.known = {a: p for a, p in known.items() if is_asked_for(a)}
    last.often = frozenset(a for _, m in row for a in m.often if is_asked_for(a))
    last.checkpointed = frozenset(a for _, m in row for a in m.checkpointed if is_asked_for(a))
    last.batch = next((m.batch for _, m in reversed(row) if m.batch), none)
    return kept


def _in_any_of(blocks: Iterable[Block]) -> Callable[[int], bool]:
    """Says whether an address may lie in one of these blocks."""
    ordered = sorted(blocks, key=lambda b: b.address)
    starts = [b.address for b in ordered]
    # Of some that are the peak's and some that live, one may lie within another.
    ends = list(itertools.accumulate((b.address + b.size for b in ordered), max))

    def may_lie_in(address: int) -> bool:
        at = bisect.bisect_right(starts, address) - 1
        return at >= 0 and address < ends[at]

    return may_lie_in
