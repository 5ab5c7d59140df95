"""What the ledger says about graph trees: which graphs replay, at what cost, and why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from .model import LedgerEntry, LedgerKind, TreeDetail

_EXPLAINED = (
    LedgerKind.RERECORD,
    LedgerKind.SKIP,
    LedgerKind.NOT_GRAPHED,
    LedgerKind.DEMOTION,
    LedgerKind.EVICTION,
    LedgerKind.INVALIDATED,
    LedgerKind.MOVED_OUT,
    LedgerKind.TREE_FAILURE,
)
"""Kinds whose reasons a person wants to read: everything but the way it should go."""


@dataclass(frozen=True, slots=True)
class TreeReason:
    """Why something did not go the straight way, and how often."""

    kind: LedgerKind
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class GraphedFunction:
    """One function in the trees of one device, all combinations of its sizes together.

    Attributes:
        device: e.g. ``cuda:0``.
        function: e.g. ``0/0 forward``.
        keys: number of combinations of integer inputs.
        warm_ups, recordings, replays, skips: how often; recordings include re-recordings.
        rerecordings: recordings where others exist at the same place and none fitted.
        marginal_bytes: by which recording it made the pool grow, all recordings together.
        reasons: what did not go the straight way, most frequent first.
    """

    device: str
    function: str
    keys: int
    warm_ups: int
    recordings: int
    rerecordings: int
    replays: int
    skips: int
    marginal_bytes: int
    reasons: tuple[TreeReason, ...]


def graphed_functions(ledger: Iterable[LedgerEntry]) -> list[GraphedFunction]:
    """The functions that the ledger's entries of trees are about, largest pool cost first."""
    grouped: dict[tuple[str, str], list[tuple[LedgerEntry, TreeDetail]]] = {}
    for e in ledger:
        if e.tree is not None:
            grouped.setdefault((e.tree.device, e.tree.function), []).append((e, e.tree))
    found = [_function(*where, entries) for where, entries in grouped.items()]
    return sorted(found, key=lambda f: (f.device, -f.marginal_bytes, f.function))


def _function(
    device: str, function: str, entries: list[tuple[LedgerEntry, TreeDetail]]
) -> GraphedFunction:
    counts: Counter[LedgerKind] = Counter()
    reasons: Counter[tuple[LedgerKind, str]] = Counter()
    for e, _ in entries:
        counts[e.kind] += e.count
        if e.kind in _EXPLAINED:
            reasons[e.kind, e.reason] += e.count
    recorded = (LedgerKind.RECORD, LedgerKind.RERECORD)
    return GraphedFunction(
        device,
        function,
        keys=len({tree.key for _, tree in entries}),
        warm_ups=counts[LedgerKind.WARM_UP],
        recordings=sum(counts[k] for k in recorded),
        rerecordings=counts[LedgerKind.RERECORD],
        replays=counts[LedgerKind.REPLAY],
        skips=counts[LedgerKind.SKIP],
        marginal_bytes=sum(tree.marginal for e, tree in entries if e.kind in recorded),
        reasons=tuple(TreeReason(k, r, n) for (k, r), n in reasons.most_common()),
    )


def pool_bytes(ledger: Iterable[LedgerEntry]) -> dict[str, int]:
    """The largest size that each device's pool is known to have had, in bytes."""
    largest: dict[str, int] = {}
    for e in ledger:
        if e.tree is not None and e.tree.pool_after >= 0:
            device = e.tree.device
            largest[device] = max(largest.get(device, 0), e.tree.pool_after)
    return largest
