"""What the report page knows: a profile as plain data. No torch, no HTML.

Note [What the page gets and what it works out]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The page shows the live set of any instant of any call, and there are millions of instants, so
live sets are not in the payload. What they are made of is, each once (``payload_live.py``): for
every distinct *step* of the timeline what is live when such a call begins and what is between it
and the next, for every program its events. The page replays events. Everything that takes
knowledge to decide is decided here: a storage's place in each view is a number in ``sites``, so the
page adds up and never attributes.

Text is interned (``strings``), columns are lists of numbers. Bytes are bytes, times nanoseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...attribution import Attribution, View
from ...devices import timelines
from ...model import Category, Profile
from ...ranks import compare_ranks, ranks_of
from ...trees import RecordedNode, recorded_nodes
from ..summary import (
    SavedActivation,
    Summary,
    coverage,
    graph_rows,
    saved_activations,
    summarize,
)
from .payload_live import Sites, Strings, live_payload
from .payload_parts import (
    account_payload,
    dataflow_payload,
    finding_payload,
    placement_payload,
    tracker_payload,
)

__all__ = ["MAX_RANKS", "ranks_payload", "report_payload"]

MAX_LEDGER = 5_000
"""Entries of the ledger in the page, the latest; ``memprof ledger`` prints all."""

MAX_RANKS = 16
"""Ranks in one page with all their views: of more, those with the highest peaks. The comparison
has all."""


def ranks_payload(
    profiles: Sequence[Profile], device: str | None = None, source: str = ""
) -> dict[str, Any]:
    """The page's payload: one report a process, and how they compare.

    Args:
        profiles: one a process, at least one.
        device: which one the page shows first; by default as in ``summarize``.
        source: name of the file that they come from.

    Raises:
        ValueError: no program of one of them uses ``device``.
    """
    if len(profiles) == 1:
        return {"ranks": None, "profiles": [report_payload(profiles[0], device, source)]}
    compared = compare_ranks(profiles, device)
    numbers = ranks_of(profiles)
    highest = sorted(compared.rows, key=lambda r: (-r.peak, r.rank))[:MAX_RANKS]
    shown = sorted(r.rank for r in highest)
    return {
        "ranks": {
            **dataclasses.asdict(compared),
            "imbalance": [
                {**dataclasses.asdict(i), "excess": i.excess} for i in compared.imbalance
            ],
            "shown": shown,
        },
        "profiles": [report_payload(profiles[numbers.index(r)], device, source) for r in shown],
    }


def report_payload(profile: Profile, device: str | None = None, source: str = "") -> dict[str, Any]:
    """Everything the report page says about ``profile``, as JSON values.

    Args:
        profile: a valid one.
        device: which one the page shows first; by default as in ``summarize``.
        source: name of the file that it comes from, for the header.

    Raises:
        ValueError: no program uses ``device``.
    """
    strings = Strings()
    attribution = Attribution(profile)
    found = timelines(profile)
    summary = summarize(profile, device, found, attribution)
    sites = Sites(attribution, strings)
    names = [summary.device, *sorted(d for d in summary.device_peaks if d != summary.device)]
    devices = []
    for name in names:
        timeline = found[name]
        saved = saved_activations(timeline, attribution)
        devices.append(
            {
                "device": name,
                **live_payload(timeline, sites, strings),
                "saved": [_saved(a, sites, strings) for a in saved],
                "table": [dataclasses.asdict(row) for row in graph_rows(timeline)],
                "coverage": dataclasses.asdict(coverage(timeline, attribution)),
            }
        )
    start = min(profile.calls.start_ns, default=0) or _first_time(profile)
    return {
        "header": _header(summary, source),
        "out_of_memory": [
            {**dataclasses.asdict(e), "frame": sites.frame(e.frame)} for e in summary.out_of_memory
        ],
        "advice": [finding_payload(f, sites) for f in summary.advice],
        "accounts": [account_payload(a, sites) for a in profile.accounts],
        "dataflow": dataflow_payload(profile, start, sites),
        "tracker": tracker_payload(profile.tracker, summary, start),
        "categories": [c.value for c in Category],
        "views": [v.value for v in View],
        "devices": devices,
        "graphs": _graphs(profile, strings),
        "placements": [
            placement_payload(g.id, p, sites, strings) for g in profile.graphs for p in g.placements
        ],
        "sites": sites.columns(),
        "frames": sites.frames,
        "ledger": _ledger(profile, strings),
        "trees": [_node(n) for n in recorded_nodes(profile.ledger)],
        "functions": [
            {**dataclasses.asdict(f), "reasons": [dataclasses.asdict(r) for r in f.reasons]}
            for f in summary.trees
        ],
        "pools": summary.pools,
        "unobserved": [dataclasses.asdict(u) for u in summary.unobserved],
        "kept_bytes": summary.kept_bytes,
        "without_scratch": summary.without_scratch,
        "strings": strings.all,  # last: everything above adds to it
    }


def _first_time(profile: Profile) -> int:
    """Where the clock of the page begins if no compiled call was logged."""
    dataflow = profile.dataflow.devices if profile.dataflow else []
    snapshots = profile.tracker.snapshots if profile.tracker else []
    times = [d.time_ns[0] for d in dataflow if d.time_ns] + [s.time_ns for s in snapshots]
    return min(times, default=0)


def _header(s: Summary, source: str) -> dict[str, Any]:
    return {
        "process": dataclasses.asdict(s.process) if s.process else None,
        "complete": s.complete,
        "left_out": s.left_out,
        "source": source,
        "memprof": s.memprof,
        "torch": s.torch,
        "python": s.python,
        "machine": dataclasses.asdict(s.machine),
        "created_ns": s.created_ns,
        "options": s.options,
        "graphs": s.graphs,
        "calls": s.calls,
        "dropped_calls": s.dropped_calls,
        "unobserved_calls": s.unobserved_calls,
        "span_ns": s.span_ns,
        "peaks": s.device_peaks,
    }


def _graphs(profile: Profile, strings: Strings) -> list[dict[str, Any]]:
    """Labels, and the text of the lines of generated code at which programs do something."""
    out = []
    for g in profile.graphs:
        used = {e.line for p in g.programs for e in p.events}
        used |= {b.line for p in g.placements for b in p.blocks}
        out.append(
            {
                "id": g.id,
                "label": g.label,
                "kind": g.kind.value,
                "statements": {
                    str(s.line): strings(s.text[:200]) for s in g.statements if s.line in used
                },
            }
        )
    return out


def _saved(a: SavedActivation, sites: Sites, strings: Strings) -> dict[str, Any]:
    return {
        "nbytes": a.nbytes,
        "lifetime": a.lifetime_calls,
        "cost": a.cost,
        "graph": a.graph,
        "node": a.node,
        "op": a.op,
        "module": a.module,
        "frame": sites.frame(a.frame),
    }


def _ledger(profile: Profile, strings: Strings) -> dict[str, Any]:
    entries = profile.ledger[-MAX_LEDGER:]
    labels = {g.id: g.label for g in profile.graphs}
    return {
        "left_out": len(profile.ledger) - len(entries),
        "time_ms": [e.time_ns // 1_000_000 for e in entries],
        "kind": [strings(e.kind.value) for e in entries],
        "graph": [
            strings(labels[e.graph] if e.graph is not None else e.tree.function if e.tree else "")
            for e in entries
        ],
        "reason": [strings(e.reason) for e in entries],
        "count": [e.count for e in entries],
    }


def _node(n: RecordedNode) -> dict[str, Any]:
    return {
        "device": n.device,
        "node": n.node,
        "parent": n.parent,
        "function": n.function,
        "key": list(n.key),
        "graph": n.graph,
        "replays": n.replays,
        "marginal": n.marginal_bytes,
        "rerecorded": n.rerecorded,
        "reason": n.reason,
        "evicted": n.evicted,
        "record_ns": n.record_ns,
        "step": n.step,
    }
