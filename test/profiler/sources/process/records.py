"""Hand-made parts of records."""

from __future__ import annotations

from memprof.profiler.file.tracker_fold import OperationRow
from memprof.profiler.model import MemorySnapshot, SnapshotKind, TrackedDevice


def snapshot(
    time_ns: int,
    highest: int = 0,
    kind: SnapshotKind = SnapshotKind.PERIODIC,
    name: str = "",
    merged: int = 0,
) -> MemorySnapshot:
    return MemorySnapshot(
        time_ns,
        kind,
        name,
        total_bytes=highest,
        devices={"cpu": TrackedDevice(tensor_bytes=highest, highest_bytes=highest)},
        merged=merged,
    )


def row(number: int, start: int, end: int, parent: int = -1, summary: int = 0) -> OperationRow:
    return OperationRow(number, summary, 0, parent, start, end, memory={"cpu": (1, 2, 3, True)})
