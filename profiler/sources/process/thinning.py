"""Bound of a tracker's snapshots; no torch.

Note [Thinning]
~~~~~~~~~~~~~~~
Pairs of neighbours are merged, those first that lie closest together for their age, so that what
remains is dense at the end and sparser the further back. A merged snapshot is the later of the two
and keeps the higher ``highest_bytes``. Named checkpoints, the first and the last snapshot are
merged only when they alone are too many.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from memprof.profiler import model


def thin_snapshots(
    snapshots: Sequence[model.MemorySnapshot], limit: int
) -> list[model.MemorySnapshot]:
    """``snapshots`` (in order of time) with at most ``limit`` left, but for the first and the last.
    To be called when there are some more: the work is linear in their number."""
    kept, before = list(snapshots), -1
    # A pass that merges nothing is the last one.
    while len(kept) > limit and len(kept) != before:
        before = len(kept)
        kept = _merge_some(kept, before - limit)
    return kept


def _merge_some(snapshots: list[model.MemorySnapshot], excess: int) -> list[model.MemorySnapshot]:
    candidates = []
    for i in range(1, len(snapshots) - 1):
        s = snapshots[i]
        gap = snapshots[i + 1].time_ns - snapshots[i - 1].time_ns
        age = snapshots[-1].time_ns - s.time_ns
        candidates.append((s.kind is not model.SnapshotKind.PERIODIC, gap / (age + 1), i))
    gone: set[int] = set()
    for _, _, i in sorted(candidates):
        if len(gone) == excess:
            break
        # Two neighbours in one pass would leave a hole twice as wide as intended.
        if i - 1 not in gone and i + 1 not in gone:
            gone.add(i)
    return [
        _merge(snapshots[i - 1], s) if i - 1 in gone else s
        for i, s in enumerate(snapshots)
        if i not in gone
    ]


def _merge(earlier: model.MemorySnapshot, later: model.MemorySnapshot) -> model.MemorySnapshot:
    devices = dict(later.devices)
    for name, memory in earlier.devices.items():
        if name in devices:
            seen = (memory.highest_bytes, devices[name].highest_bytes)
            highest = max((b for b in seen if b is not None), default=None)
            devices[name] = dataclasses.replace(devices[name], highest_bytes=highest)
    return dataclasses.replace(
        later,
        devices=devices,
        merged=later.merged + earlier.merged + 1,
        took_ns=max(later.took_ns, earlier.took_ns),
    )
