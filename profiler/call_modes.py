"""How each call ran: as a graph's replay, as its recording, or plainly.

Note [What the ledger tells of single calls]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The call log says when a compiled function was called, not by which way it ran: one more field
would cost every replay. The ledger has the first time of everything that graph trees did, and
counts repeats. So a call during which a warm-up, a recording or a skip was first written down is
that; one that began before its graph's first recording ran plainly; and the calls after it are the
replays that the ledger has counted. Where there are more of them than it has counted, some were
repeated skips or warm-ups and nothing tells which: these are ``REPLAY_OR_RUN``."""

from __future__ import annotations

from bisect import bisect_left
from enum import Enum

from .model import LedgerKind, Profile


class CallMode(str, Enum):
    """How a call ran."""

    RUN = "run"
    WARM_UP = "warm-up"
    RECORD = "recording"
    REPLAY = "replay"
    REPLAY_OR_RUN = "replay or run"


_TOLD = {
    LedgerKind.WARM_UP: CallMode.WARM_UP,
    LedgerKind.RECORD: CallMode.RECORD,
    LedgerKind.RERECORD: CallMode.RECORD,
    LedgerKind.SKIP: CallMode.RUN,
}


def call_modes(profile: Profile) -> list[CallMode]:
    """One entry a call of the log, see Note [What the ledger tells of single calls]."""
    calls = profile.calls
    modes = [CallMode.RUN] * len(calls)
    replays: dict[int, int] = {}
    told: dict[int, list[tuple[int, CallMode]]] = {}
    recorded: dict[int, int] = {}
    for e in profile.ledger:
        if e.graph is None:
            continue
        time = e.time_ns - profile.perf_origin_ns
        if e.kind is LedgerKind.REPLAY:
            replays[e.graph] = replays.get(e.graph, 0) + e.count
        elif e.kind in _TOLD:
            told.setdefault(e.graph, []).append((time, _TOLD[e.kind]))
            if _TOLD[e.kind] is CallMode.RECORD:
                recorded[e.graph] = min(time, recorded.get(e.graph, time))
    if not replays:
        return modes
    for entries in told.values():
        entries.sort(key=lambda entry: entry[0])
    found: dict[int, list[int]] = {}
    for k, (graph, start, end) in enumerate(
        zip(calls.graph, calls.start_ns, calls.end_ns, strict=True)
    ):
        if graph not in replays:
            continue
        entries = told.get(graph, [])
        at = bisect_left(entries, start, key=lambda entry: entry[0])
        if profile.perf_origin_ns and at < len(entries) and entries[at][0] <= end:
            modes[k] = entries[at][1]
        elif not profile.perf_origin_ns or start >= recorded.get(graph, start):
            found.setdefault(graph, []).append(k)
    for graph, indices in found.items():
        certain = bool(profile.perf_origin_ns) and len(indices) <= replays[graph]
        mode = CallMode.REPLAY if certain else CallMode.REPLAY_OR_RUN
        for k in indices:
            modes[k] = mode
    return modes
