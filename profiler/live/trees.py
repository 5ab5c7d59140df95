"""Graph trees by the ledger: graphs that replay, at what cost, and reasons why others do not.

Note [What the ledger tells of single calls]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The call log says when a compiled function was called, not by which way it ran: one more field
would cost every replay. The ledger has the first time of everything that graph trees did, and
counts repeats. So a call during which a warm-up, a recording or a skip was first written down is
that; one that began before its graph's first recording ran plainly; and the calls after it are
replays. Where there are more of them than the ledger has counted, some were repeated skips or
warm-ups and nothing tells which: these are ``REPLAY_OR_RUN``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter

from memprof.profiler.model import (
    GraphRecord,
    GraphValue,
    LedgerEntry,
    LedgerKind,
    Profile,
    TreeCause,
    TreeDetail,
)

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
"""Kinds of ledger entries whose reasons a person wants to read: all but the usual ones."""

_RECORDED = (LedgerKind.RECORD, LedgerKind.RERECORD)

_SHOWN = 5
"""Number of inputs to blame that a reason names."""


@dataclass(frozen=True, slots=True)
class TreeReason:
    """A reason for anything but a plain replay, such as a skip, and how often it held."""

    kind: LedgerKind
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class GraphedFunction:
    """One function, e.g. ``0/0 forward``, in the trees of one device.

    Attributes:
        keys: number of combinations of integer inputs, which are counted together.
        recordings: ``rerecordings`` included, which exist at the same place and did not fit.
        marginal_bytes: of the pool when it was largest, those by which its warm-ups and recordings
            had made it grow. Pools that were gone by then are in none.
        reasons: reasons for anything but a plain replay, most frequent first.
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


def has_moved(entry: LedgerEntry) -> bool:
    return entry.tree is not None and entry.tree.cause is TreeCause.MOVED


def inputs_to_blame(entry: LedgerEntry, graph: GraphRecord | None) -> list[GraphValue]:
    if graph is None or entry.tree is None:
        return []
    return [graph.inputs[i] for i in entry.tree.inputs if 0 <= i < len(graph.inputs)]


def short_reason(entry: LedgerEntry, graph: GraphRecord | None) -> str:
    """Reason of a ledger entry, on one line and with the user's names for the inputs to blame where
    inputs moved."""
    if not has_moved(entry):
        return entry.reason
    shown = [v.label for v in inputs_to_blame(entry, graph)]
    what = entry.reason.partition("\n")[0]
    if not shown:
        return what
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{what.rstrip('.')}: {', '.join(shown[:_SHOWN])}{more}"


def graphed_functions(
    ledger: Sequence[LedgerEntry], graphs: Iterable[GraphRecord] = ()
) -> list[GraphedFunction]:
    """The functions that the ledger's entries of trees are about, largest pool cost first.

    ``graphs`` give inputs that moved the names that users have for them.
    """
    by_id: dict[int | None, GraphRecord] = {g.id: g for g in graphs}
    grouped: dict[tuple[str, str], list[tuple[LedgerEntry, TreeDetail]]] = {}
    for e in ledger:
        if e.tree is not None:
            grouped.setdefault((e.tree.device, e.tree.function), []).append((e, e.tree))
    grown = {device: _grown(steps) for device, steps in _sizes(ledger).items()}
    found = [
        _function(device, name, entries, by_id, grown.get(device, Counter())[name])
        for (device, name), entries in grouped.items()
    ]
    return sorted(found, key=lambda f: (f.device, -f.marginal_bytes, f.function))


def _function(
    device: str,
    function: str,
    entries: list[tuple[LedgerEntry, TreeDetail]],
    graphs: dict[int | None, GraphRecord],
    grown: int,
) -> GraphedFunction:
    counts: Counter[LedgerKind] = Counter()
    reasons: Counter[tuple[LedgerKind, TreeCause | None, str]] = Counter()
    for e, tree in entries:
        counts[e.kind] += e.count
        if e.kind in _EXPLAINED:
            reasons[e.kind, tree.cause, short_reason(e, graphs.get(e.graph))] += e.count
    return GraphedFunction(
        device,
        function,
        keys=len({tree.key for _, tree in entries}),
        warm_ups=counts[LedgerKind.WARM_UP],
        recordings=sum(counts[k] for k in _RECORDED),
        rerecordings=counts[LedgerKind.RERECORD],
        replays=counts[LedgerKind.REPLAY],
        skips=counts[LedgerKind.SKIP],
        marginal_bytes=grown,
        reasons=tuple(sorted(_together(reasons), key=lambda r: -r.count)),
    )


def _together(reasons: Counter[tuple[LedgerKind, TreeCause | None, str]]) -> Iterator[TreeReason]:
    """Yields reasons, one for all outputs with the same reason: a backward may have hundreds."""
    grouped: dict[tuple[LedgerKind, str], list[tuple[str, int]]] = {}
    for (kind, cause, reason), count in reasons.items():
        of_outputs = cause in (TreeCause.HELD, TreeCause.HELD_GRADIENT)
        # What follows "output 7 is".
        reason_text = reason.split(" ", 3)[-1] if of_outputs else reason
        grouped.setdefault((kind, reason_text), []).append((reason, count))
    for (kind, reason_text), members in grouped.items():
        times = sum(count for _, count in members)
        together = f"{len(members)} outputs are {reason_text.replace(' its ', ' their ')}"
        yield TreeReason(kind, together if len(members) > 1 else members[0][0], times)


def pool_growth(entry: LedgerEntry) -> int:
    """Bytes by which the warm-up or recording of an entry made the pool grow, 0 for others. A
    recording often finds all it needs in what the warm-up left: without warm-ups a pool would seem
    to come from nowhere."""
    tree = entry.tree
    if tree is None:
        return 0
    if entry.kind is LedgerKind.WARM_UP and tree.pool_before >= 0:
        return max(tree.pool_after - tree.pool_before, 0)
    return tree.marginal if entry.kind in _RECORDED else 0


def pool_bytes(ledger: Iterable[LedgerEntry]) -> dict[str, int]:
    """The largest size that each device's pool is known to have had, in bytes."""
    return {device: max(after for after, *_ in steps) for device, steps in _sizes(ledger).items()}


def _sizes(ledger: Iterable[LedgerEntry]) -> dict[str, list[tuple[int, int, str]]]:
    """Sizes of the pool by device, in order of time: bytes of the pool, bytes by which it had just
    grown, and the function that it grew for."""
    found: dict[str, list[tuple[int, int, str]]] = {}
    for e in sorted(ledger, key=lambda e: e.time_ns):
        if e.tree is not None and e.tree.pool_after >= 0:
            step = e.tree.pool_after, pool_growth(e), e.tree.function
            found.setdefault(e.tree.device, []).append(step)
    return found


def _grown(steps: list[tuple[int, int, str]]) -> Counter[str]:
    """Bytes, by function, that its warm-ups and recordings had added to a pool when the pool was
    largest. What the pool has lost meanwhile, and all that an earlier pool had, is taken from the
    functions that asked first."""
    found: Counter[str] = Counter()
    last = max(range(len(steps)), key=lambda i: steps[i][0])
    for after, grown, function in steps[: last + 1]:
        gone = found.total() + grown - after
        for name in [*found] if gone > 0 else ():
            taken = min(found[name], gone)
            found[name] -= taken
            gone -= taken
        found[function] += min(grown, after)
    return found


REST = "(outputs still held)"
"""Name of a pool's bytes that no warm-up or recording has asked for: outputs."""


def pool_rest(functions: Sequence[GraphedFunction], pools: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each device's largest pool beyond those of the functions, never below 0."""
    return {
        device: nbytes - sum(f.marginal_bytes for f in functions if f.device == device)
        for device, nbytes in pools.items()
    }


class CallMode(str, Enum):
    RUN = "run"
    WARM_UP = "warm-up"
    RECORD = "recording"
    REPLAY = "replay"
    REPLAY_OR_RUN = "replay or run"


_MODES = {
    LedgerKind.WARM_UP: CallMode.WARM_UP,
    LedgerKind.RECORD: CallMode.RECORD,
    LedgerKind.RERECORD: CallMode.RECORD,
    LedgerKind.SKIP: CallMode.RUN,
}


def call_modes(profile: Profile) -> list[CallMode]:
    """One entry a call of the log, see Note [What the ledger tells of single calls]."""
    calls, origin = profile.calls, profile.perf_origin_ns
    modes = [CallMode.RUN] * len(calls)
    replays: Counter[int] = Counter()
    by_graph: dict[int, list[tuple[int, CallMode]]] = {}
    for e in profile.ledger:
        if e.graph is None:
            continue
        if e.kind is LedgerKind.REPLAY:
            replays[e.graph] += e.count
        elif e.kind in _MODES:
            by_graph.setdefault(e.graph, []).append((e.time_ns - origin, _MODES[e.kind]))
    if not replays:
        return modes
    for entries in by_graph.values():
        entries.sort(key=itemgetter(0))
    recorded = {
        graph: next((time for time, mode in entries if mode is CallMode.RECORD), -math.inf)
        for graph, entries in by_graph.items()
    }
    found: dict[int, list[int]] = {}
    columns = zip(calls.graph, calls.start_ns, calls.end_ns, strict=True)
    for k, (graph, start, end) in enumerate(columns):
        if graph not in replays:
            continue
        entries = by_graph.get(graph, [])
        at = bisect_left(entries, start, key=itemgetter(0))
        if origin and at < len(entries) and entries[at][0] <= end:
            modes[k] = entries[at][1]
        elif not origin or start >= recorded.get(graph, -math.inf):
            found.setdefault(graph, []).append(k)
    for graph, indices in found.items():
        certain = origin and len(indices) <= replays[graph]
        for k in indices:
            modes[k] = CallMode.REPLAY if certain else CallMode.REPLAY_OR_RUN
    return modes
