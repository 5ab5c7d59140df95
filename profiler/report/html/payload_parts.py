"""The report page's optional parts: advice, addresses, data flow, tracker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ...advice import Finding
from ...model import (
    DataFlowDevice,
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
    keep = thinned([s.resident_bytes or s.total_bytes for s in record.snapshots])
    snapshots = [record.snapshots[i] for i in keep]
    devices = sorted({d for s in snapshots for d in s.devices})
    curves: list[dict[str, Any]] = [
        {"name": "resident", "values": [s.resident_bytes for s in snapshots]},
        {"name": "live Python tensors", "values": [s.total_bytes for s in snapshots]},
    ]
    for device in devices:
        found = [s.devices.get(device) for s in snapshots]
        if device != "cpu":
            curves += [
                {"name": f"{device} {name}", "values": values}
                for name, values in (
                    ("allocated", [m.allocated_bytes if m else None for m in found]),
                    ("reserved", [m.reserved_bytes if m else None for m in found]),
                )
            ]
    return {
        "summary": dataclasses.asdict(summary.tracker),
        "time_ns": [s.time_ns - start for s in snapshots],
        "checkpoints": [
            [s.time_ns - start, s.name] for s in record.snapshots if s.kind.value == "checkpoint"
        ],
        "curves": [c for c in curves if any(v for v in c["values"])],
        "sources": [dataclasses.asdict(s) for s in record.metadata.sources],
    }
