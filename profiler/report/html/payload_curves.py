"""Curves of the page: bytes over time, as many points as there are pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...model import Profile, TrackerRecord

MAX_POINTS = 2_000
"""Points of a curve in the page, more than it has pixels."""


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


def dataflow_curves(profile: Profile, start: int) -> dict[str, Any]:
    """Live bytes of each device of the data-flow profile by category; times since ``start``."""
    out = {}
    for d in profile.dataflow.devices if profile.dataflow else ():
        keep = thinned([d.bytes_at(i) for i in range(len(d.time_ns))])
        out[f"dataflow {d.device}"] = {
            "label": f"Memory of {d.device} over time by category",
            "time_ns": [d.time_ns[i] - start for i in keep],
            "peak": None if d.peak is None else d.time_ns[d.peak] - start,
            "stacked": True,
            "lines": [
                {"name": c.value, "values": [of[i] for i in keep]} for c, of in d.bytes.items()
            ],
        }
    return out


def tracker_curve(record: TrackerRecord | None, start: int) -> dict[str, Any]:
    """What the tracker's snapshots say of the whole process; times since ``start``."""
    snapshots = record.snapshots if record is not None else []
    lines: list[tuple[str, list[int | None]]] = [
        ("resident", [s.resident_bytes for s in snapshots]),
        ("live Python tensors", [s.total_bytes for s in snapshots]),
    ]
    for device in sorted({d for s in snapshots for d in s.devices} - {"cpu"}):
        found = [s.devices.get(device) for s in snapshots]
        lines += [
            (f"{device} allocated", [m.allocated_bytes if m else None for m in found]),
            (f"{device} reserved", [m.reserved_bytes if m else None for m in found]),
        ]
    lines = [(name, values) for name, values in lines if any(values)]
    if not lines:
        return {}
    keep = list(range(len(snapshots)))
    if len(keep) > MAX_POINTS:
        # They share their times: each curve has its part of the points.
        each = MAX_POINTS // len(lines)
        chosen = (i for _, values in lines for i in thinned([v or 0 for v in values], each))
        keep = sorted({0, keep[-1], *chosen})
    return {
        "tracker": {
            "label": "Memory of the process over time",
            "time_ns": [snapshots[i].time_ns - start for i in keep],
            "peak": None,
            "stacked": False,
            "lines": [{"name": n, "values": [values[i] for i in keep]} for n, values in lines],
        }
    }
