"""Answers of the timeline: live sets, reasons why storages are live, bytes of calls."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from memprof.profiler.model import Storage


class Hold(str, Enum):
    """Why a storage is live; see Note [What is live between calls] in timeline.py."""

    CALL = "call"
    """The storage belongs to the call at hand: an input, or made by it."""
    PERSISTENT = "persistent"
    SAVED = "saved"
    HANDED_ON = "handed_on"


@dataclass(frozen=True, slots=True)
class Instant:
    """A point in time, by index in the call log and instant of that call's program, and the bytes
    known to be live then."""

    call: int
    instant: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class LiveItem:
    """A live storage, as some program knows it, or ``count`` alike: several calls of one program
    may hold one each.

    Attributes:
        graph: id of the graph whose record explains it: the one that made it where that
            is known, else the one that has it as an input.
        owner: name in that graph's code that owns it, None for internal memory.
        line: of that graph's code at which the owner got it, 0 for an input.
    """

    storage: Storage
    graph: int
    owner: str | None
    line: int
    hold: Hold
    count: int = 1

    @property
    def nbytes(self) -> int:
        """Bytes of all copies together."""
        return self.storage.nbytes * self.count


@dataclass(frozen=True, slots=True)
class UnobservedCalls:
    """Calls of one graph whose inside is not known; only carried memory is counted there."""

    graph: int
    calls: int
    reason: str
