"""The ledger as it is written: what was done or declined, why, how often; bounded."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time

from memprof.profiler.model import LedgerEntry, LedgerKind

log = logging.getLogger("memprof")

MAX_ENTRIES = 10_000


class Ledger:
    """Entries in order; a repeat of the same entry is counted, not repeated."""

    def __init__(self) -> None:
        self._entries: dict[tuple[LedgerKind, int | None, str], LedgerEntry] = {}
        self._lock = threading.Lock()
        self.dropped = 0

    def add(self, kind: LedgerKind, graph: int | None, reason: str) -> bool:
        """Write one entry; True if it is new, False if it is a repeat or the ledger is full."""
        key = (kind, graph, reason)
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                self._entries[key] = dataclasses.replace(known, count=known.count + 1)
                return False
            if len(self._entries) >= MAX_ENTRIES:
                self.dropped += 1
                return False
            self._entries[key] = LedgerEntry(time.time_ns(), kind, graph, reason)
            return True

    def fallback(self, graph: int | None, what: str, error: BaseException) -> None:
        """memprof failed at ``what``: log once with the reason, count every time.

        The user's run goes on with the plain Inductor callable.
        """
        reason = f"{what}: {type(error).__name__}: {error}"
        if self.add(LedgerKind.FALLBACK, graph, reason):
            log.warning(
                "memprof failed at %s; your program runs on with plain Inductor code, without a "
                "memory profile of this graph. Please report this.",
                what,
                exc_info=error,
            )

    def entries(self, since_ns: int = 0) -> list[LedgerEntry]:
        """Entries first written at or after ``since_ns`` (``time.time_ns()``), in order."""
        with self._lock:
            return [e for e in self._entries.values() if e.time_ns >= since_ns]
