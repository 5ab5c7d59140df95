"""The ledgers of all managers of this process, those that have gone included."""

from __future__ import annotations

import weakref
from collections import deque

from memprof.profiler.model import LedgerEntry
from memprof.profiler.support.process_hooks import ForkSafeLock

from ..call.manager import CUDAGraphTreeManager
from .ledger import TreeLedger

MAX_LEDGERS = 64


_ledgers: deque[tuple[TreeLedger, weakref.ref[CUDAGraphTreeManager]]] = deque(maxlen=MAX_LEDGERS)
# Re-entrant: a signal handler, or a finalizer that the collector calls, may come by inside.
_lock = ForkSafeLock()

EntryKey = tuple[object, ...]
"""Identity of an entry: its fields without times, counts and measurements."""


def remember(manager: CUDAGraphTreeManager) -> None:
    """Keep the ledger of ``manager``, also when it is gone; the last ``MAX_LEDGERS`` are kept."""
    with _lock:
        _ledgers.append((manager.ledger, weakref.ref(manager)))


def ledger_entries() -> dict[EntryKey, LedgerEntry]:
    """The entries of all managers, replays included, in order of time."""
    with _lock:
        ledgers = list(_ledgers)
    found: list[tuple[EntryKey, LedgerEntry]] = []
    for ledger, reference in ledgers:
        manager = reference()
        for e in ledger.entries(manager.nodes() if manager is not None else ()):
            tree = e.tree
            assert tree is not None
            where = (tree.device, tree.function, tree.key, tree.node, tree.parent)
            found.append(((id(ledger), e.kind, e.graph, e.reason, *where), e))
    return dict(sorted(found, key=lambda item: item[1].time_ns))


def forget_the_dead() -> None:
    with _lock:
        alive = [(ledger, ref) for ledger, ref in _ledgers if ref() is not None]
        _ledgers.clear()
        _ledgers.extend(alive)


def forget_all() -> None:
    """Start anew in a forked child."""
    _ledgers.clear()


def managers() -> list[CUDAGraphTreeManager]:
    with _lock:
        return [manager for _, ref in _ledgers if (manager := ref()) is not None]
