"""The ledger: everything memprof did or declined to do, with the reason in words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LedgerKind(str, Enum):
    """Kind of a ledger entry."""

    COMPILED = "compiled"
    CACHE_HIT = "cache_hit"
    RECOMPILED = "recompiled"
    """Compiled again, past a cache, because the cached artifact had no provenance."""
    OBSERVED = "observed"
    NOT_OBSERVED = "not_observed"
    FALLBACK = "fallback"
    """memprof failed inside and the plain Inductor callable runs in its place."""
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One line of the ledger.

    Attributes:
        time_ns: ``time.time_ns()`` when it happened.
        kind: what happened.
        graph: ``GraphRecord.id`` it concerns, None if none.
        reason: why, in words.
        count: how often the same thing happened; repeats are counted, not repeated.
    """

    time_ns: int
    kind: LedgerKind
    graph: int | None
    reason: str
    count: int = 1
