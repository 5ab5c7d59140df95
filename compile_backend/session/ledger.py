"""The ledger as it is written: what was done or declined, why, how often; bounded."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping

from memprof.profiler.model import LedgerEntry, LedgerKind, TreeDetail
from memprof.profiler.support.counter import Counter
from memprof.profiler.support.process_hooks import ForkSafeLock

log = logging.getLogger("memprof")

MAX_ENTRIES = 10_000


_Detail = Callable[[], TreeDetail | None]

LedgerKey = tuple[LedgerKind, int | None, str]
"""(kind, graph, reason): what makes two entries the same."""


class Ledger:
    """Entries in order; a repeat of the same entry is counted, not repeated."""

    def __init__(self) -> None:
        self._entries: dict[LedgerKey, LedgerEntry] = {}
        self._counted: dict[LedgerKey, list[tuple[Counter, _Detail]]] = {}
        self._logged: set[str] = set()
        # A signal handler of this very thread may read it: the tracker's, at SIGTERM.
        self._lock = ForkSafeLock()

    def add(
        self, kind: LedgerKind, graph: int | None, reason: str, tree: TreeDetail | None = None
    ) -> None:
        """Write one entry, or count a repeat, which keeps the ``tree`` of the first; what is new
        where the ledger is full is left out."""
        key = (kind, graph, reason)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries[key] = dataclasses.replace(entry, count=entry.count + 1)
            elif len(self._entries) < MAX_ENTRIES:
                self._entries[key] = LedgerEntry(time.time_ns(), kind, graph, reason, tree=tree)

    def count(
        self,
        kind: LedgerKind,
        graph: int | None,
        reason: str,
        counter: Counter,
        tree: _Detail = lambda: None,
    ) -> None:
        """An entry whose count is ``counter``'s, and whose detail is ``tree()``, whenever the
        ledger is read: for what happens too often to write it down each time. It is none while
        the count is 0."""
        key = (kind, graph, reason)
        with self._lock:
            if key in self._entries or len(self._entries) < MAX_ENTRIES:
                new = LedgerEntry(time.time_ns(), kind, graph, reason, count=0)
                self._entries.setdefault(key, new)
                self._counted.setdefault(key, []).append((counter, tree))

    def _now(self) -> dict[LedgerKey, LedgerEntry]:
        """All entries with their counts as they are now; call it with the lock."""
        for key, counted in self._counted.items():
            self._entries[key] = dataclasses.replace(
                self._entries[key], count=sum(c.value for c, _ in counted), tree=counted[-1][1]()
            )
        return self._entries

    def fallback(self, graph: int | None, what: str, error: BaseException) -> None:
        """Count a failure of memprof at ``what``, after which the user's run goes on with the plain
        Inductor callable; log it the first time, in whatever graph, with its traceback."""
        self._warn_once(
            LedgerKind.FALLBACK,
            graph,
            f"{what}: {type(error).__name__}: {error}",
            f"memprof failed at {what}; your program runs on with plain Inductor code, without a "
            "memory profile of this graph. Please report this.",
            error,
        )

    def unknown(self, graph: int | None, what: str, error: BaseException) -> None:
        """Count a fact that could not be read; log it the first time, in one line."""
        why = f"{type(error).__name__}: {error}"
        self._warn_once(
            LedgerKind.FALLBACK,
            graph,
            f"{what} is unknown: {why}",
            f"memprof cannot read {what} of this version of torch ({why}); profiles are without "
            "it. Please report this.",
        )

    def not_stored(self, graph: int | None, what: str, why: str) -> None:
        """Count that ``what`` could not be kept beside Inductor's cache; log it the first time."""
        reason = f"{what}: {why}"
        self._warn_once(
            LedgerKind.NOT_STORED,
            graph,
            reason,
            f"memprof cannot store {reason}. This process's code and profile are whole; one that "
            "finds these graphs in Inductor's cache will compile them again.",
        )

    def _warn_once(
        self,
        kind: LedgerKind,
        graph: int | None,
        reason: str,
        text: str,
        error: BaseException | None = None,
    ) -> None:
        """Count ``reason``; log ``text`` if it is the first time, and not too many have been."""
        self.add(kind, graph, reason)
        with self._lock:
            if reason in self._logged or len(self._logged) >= MAX_ENTRIES:
                return
            self._logged.add(reason)
        log.warning("%s", text, exc_info=error)

    def counts(self) -> dict[LedgerKey, int]:
        """Count of each entry so far, for ``entries_since``."""
        with self._lock:
            return {key: entry.count for key, entry in self._now().items()}

    def entries_since(self, before: Mapping[LedgerKey, int]) -> list[LedgerEntry]:
        """Entries written after ``before`` was taken, in order of their first writing, whose time
        they keep; they count only the new times."""
        with self._lock:
            return [
                dataclasses.replace(entry, count=entry.count - before.get(key, 0))
                for key, entry in self._now().items()
                if entry.count > before.get(key, 0)
            ]
