"""Hand-made parts of records."""

from __future__ import annotations

from memprof.profiler.model import MemorySnapshot, SnapshotKind, TrackedDevice


def snapshot(
    time_ns: int,
    highest: int = 0,
    kind: SnapshotKind = SnapshotKind.PERIODIC,
    name: str = "",
) -> MemorySnapshot:
    return MemorySnapshot(
        time_ns,
        kind,
        name,
        total_bytes=highest,
        devices={"cpu": TrackedDevice(tensor_bytes=highest, highest_bytes=highest)},
    )
