"""The report page's optional parts: advice, addresses, data flow, tracker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...advice import Finding
from ...model import (
    DataFlowDevice,
    DeviceAccount,
    Origin,
    PlacedBlock,
    Placement,
    Profile,
    Storage,
    TrackerRecord,
)
from ..summary import Summary
from .payload_live import Sites, Strings

__all__ = [
    "MAX_POINTS",
    "account_payload",
    "dataflow_payload",
    "finding_payload",
    "placement_payload",
    "thinned",
    "tracker_payload",
]

MAX_POINTS = 2_000
"""Points of a curve in the page, more than it has pixels."""
MAX_LIVE = 300
"""Storages of a data-flow peak in the page, the largest."""


def finding_payload(finding: Finding, sites: Sites) -> dict[str, Any]:
    """A finding, its frames by number."""
    return {
        **dataclasses.asdict(finding),
        "kind": finding.kind.value,
        "evidence": [
            {**dataclasses.asdict(e), "frame": sites.frame(e.frame)} for e in finding.evidence
        ],
    }


def placement_payload(
    graph: int, placement: Placement, sites: Sites, strings: Strings
) -> dict[str, Any]:
    """Where a graph's replays have their memory; each block with its site."""
    return {
        "graph": graph,
        "pool": placement.pool,
        "key": list(placement.key),
        "node": placement.node,
        "segments": [list(s) for s in placement.segments],
        "lines": list(placement.lines),
        "blocks": {
            **{
                name: [getattr(b, name) for b in placement.blocks]
                for name in ("address", "nbytes", "begin", "end", "node")
            },
            "owner": [strings(b.owner) for b in placement.blocks],
            "site": [_site(b, placement, sites) for b in placement.blocks],
        },
    }


def _site(b: PlacedBlock, placement: Placement, sites: Sites) -> int:
    # What attribution asks of a storage: where it came in, if no code made it.
    origin = Origin.BUFFER if b.line else Origin.INPUT
    device = placement.pool.partition(" ")[0]
    name = b.owner or ""
    storage = Storage(0, b.nbytes, device, origin, name, b.category, inputs=b.inputs)
    return sites.of(b.graph, storage, b.owner, b.line)


def thinned(totals: Sequence[int], points: int = MAX_POINTS) -> list[int]:
    """Which entries of a curve to keep, in order: all of a short one; of a long one the first,
    the last, and the first highest and first lowest of each of ``points / 2`` equal stretches.
    """
    n = len(totals)
    if n <= points:
        return list(range(n))
    keep = {0, n - 1}
    stretches = points // 2
    for i in range(stretches):
        stretch = range(i * n // stretches, (i + 1) * n // stretches)
        keep.add(max(stretch, key=totals.__getitem__))
        keep.add(min(stretch, key=totals.__getitem__))
    return sorted(keep)


def account_payload(account: DeviceAccount, sites: Sites) -> dict[str, Any]:
    """What was reserved on a device: by what it is for, and the largest rows."""
    simulated = ", simulated: kernels computed nothing" if account.simulated else ""
    return {
        "device": account.device,
        "reserved": account.reserved,
        "help": f"{account.name or account.device}{simulated}. Everything that torch's allocator "
        "had from the device at its fullest; the rows add up to it.",
        "parts": [[what, n] for what, n in account.parts() if n],
        "rows": [
            {
                "nbytes": r.nbytes,
                "count": r.count,
                "what": r.what,
                "modules": r.modules,
                "frame": sites.frame(r.frame),
                "nodes": r.nodes,
                "code": "" if r.frame is not None else "no Python was running: autograd",
            }
            for r in account.rows[:MAX_LIVE]
        ],
        "smaller": [len(account.rows[MAX_LIVE:]), sum(r.nbytes for r in account.rows[MAX_LIVE:])],
    }


def dataflow_payload(profile: Profile, start: int, sites: Sites) -> list[dict[str, Any]] | None:
    """The data-flow profile, None if there is none; times since ``start``."""
    if profile.dataflow is None:
        return None
    return [_dataflow_device(d, start, sites) for d in profile.dataflow.devices]


def _dataflow_device(d: DataFlowDevice, start: int, sites: Sites) -> dict[str, Any]:
    totals = [d.bytes_at(i) for i in range(len(d.time_ns))]
    keep = thinned(totals)
    live = sorted(d.live, key=lambda s: -s.nbytes)
    return {
        "device": d.device,
        "entries": len(totals),
        "time_ns": [d.time_ns[i] - start for i in keep],
        "bytes": {c.value: [column[i] for i in keep] for c, column in d.bytes.items()},
        "peak": None if d.peak is None else [d.time_ns[d.peak] - start, totals[d.peak]],
        "live": [
            {
                "nbytes": s.nbytes,
                "category": s.category.value,
                "op": s.op,
                "module": s.module,
                "frame": sites.frame(s.frame),
                "graph": s.graph,
            }
            for s in live[:MAX_LIVE]
        ],
        "smaller": [len(live[MAX_LIVE:]), sum(s.nbytes for s in live[MAX_LIVE:])],
    }


def tracker_payload(
    record: TrackerRecord | None, summary: Summary, start: int
) -> dict[str, Any] | None:
    """What the run-time tracker recorded, None if it did not run; times since ``start``."""
    if record is None or summary.tracker is None:
        return None
    snapshots = record.snapshots
    curves: list[tuple[str, list[int | None]]] = [
        ("resident", [s.resident_bytes for s in snapshots]),
        ("live Python tensors", [s.total_bytes for s in snapshots]),
    ]
    for device in sorted({d for s in snapshots for d in s.devices} - {"cpu"}):
        found = [s.devices.get(device) for s in snapshots]
        curves += [
            (f"{device} allocated", [m.allocated_bytes if m else None for m in found]),
            (f"{device} reserved", [m.reserved_bytes if m else None for m in found]),
        ]
    curves = [(name, values) for name, values in curves if any(values)]
    keep = list(range(len(snapshots)))
    if len(keep) > MAX_POINTS:
        # They share their times: each curve has its part of the points.
        each = MAX_POINTS // max(len(curves), 1)
        chosen = (i for _, values in curves for i in thinned([v or 0 for v in values], each))
        keep = sorted({0, keep[-1], *chosen})
    return {
        "summary": dataclasses.asdict(summary.tracker),
        "time_ns": [snapshots[i].time_ns - start for i in keep],
        "curves": [{"name": name, "values": [values[i] for i in keep]} for name, values in curves],
        "sources": [dataclasses.asdict(s) for s in record.metadata.sources],
    }
