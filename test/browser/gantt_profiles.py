"""Profiles for the Gantt page: what a training job and an inference server leave behind."""

from __future__ import annotations

from profile_builder import MIB, training

from memprof.profiler.model import (
    CallColumns,
    Lane,
    LaneKind,
    LedgerEntry,
    LedgerKind,
    MemorySnapshot,
    Profile,
    SnapshotKind,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.model.tracker import (
    MemoryColumns,
    OperationColumns,
    OperationSummary,
    Span,
    TensorInfo,
    TrackedDevice,
)

MS = 1_000_000
ORIGIN = 1_700_000_000_000_000_000


class Operations:
    """Operations one by one, in order of their start."""

    def __init__(self, lanes: list[Lane]) -> None:
        self.columns = OperationColumns(memory={"cpu": MemoryColumns()})
        self.summaries: dict[tuple[str, int], int] = {}
        self.entries: list[OperationSummary] = []
        self.lanes = lanes

    def add(
        self,
        name: str,
        start: int,
        end: int,
        lane: int = 0,
        parent: int = -1,
        delta: int = 0,
        failed: bool = False,
    ) -> int:
        c = self.columns
        above = c.summary[parent] if parent >= 0 else -1
        summary = self.summaries.setdefault((name, above), len(self.entries))
        if summary == len(self.entries):
            self.entries.append(OperationSummary(name, above))
        old = self.entries[summary]
        took = max(0, end - start)
        self.entries[summary] = OperationSummary(
            name,
            above,
            old.count + 1,
            old.failed + failed,
            old.total_ns + took,
            max(old.max_ns, took),
            tensor_bytes_delta=old.tensor_bytes_delta + delta,
            tensors_measured=old.tensors_measured + 1,
        )
        for column, value in (
            (c.summary, summary),
            (c.lane, lane),
            (c.parent, parent),
            (c.start_ns, start),
            (c.end_ns, end),
            (c.tensor_bytes_before, 40 * MIB),
            (c.tensor_bytes_after, 40 * MIB + delta),
            (c.tensors_before, 10),
            (c.tensors_after, 12),
        ):
            column.append(value)
        c.failed.append(failed)
        m = c.memory["cpu"]
        m.before.append(400 * MIB)
        m.after.append(400 * MIB + delta)
        m.peak.append(420 * MIB)
        m.exact.append(False)
        return len(c) - 1

    def record(self, end: int, snapshots: list[MemorySnapshot]) -> TrackerRecord:
        return TrackerRecord(
            TrackerMetadata(
                perf_origin_ns=ORIGIN, start_ns=0, end_ns=end, lanes=self.lanes, interval_ns=MS
            ),
            snapshots,
            self.columns,
            self.entries,
        )


def training_run(steps: int = 12) -> Profile:
    """Steps of 10 ms: forward, backward and optimizer inside operations; another thread loads."""
    profile = training(steps)
    step = 10 * MS
    ops = Operations(
        [
            Lane(LaneKind.THREAD, "MainThread", 0, call_thread=0),
            Lane(LaneKind.THREAD, "loader", 1),
        ]
    )
    calls = CallColumns()
    for i in range(steps):
        at = 20 * MS + i * step
        ops.add("load batch", at - 3 * MS, at + 2 * MS, lane=1, delta=MIB)
        whole = ops.add("step", at, at + 9 * MS, delta=2 * MIB)
        ops.add("forward", at + MS // 2, at + 4 * MS, parent=whole, delta=8 * MIB)
        ops.add("backward", at + 4 * MS + 1, at + 8 * MS, parent=whole, delta=-8 * MIB)
        for graph, begin, end in ((0, 1.0, 3.8), (1, 4.5, 7.5), (2, 8.2, 8.8)):
            calls.graph.append(graph)
            calls.program.append(0)
            calls.start_ns.append(int(at + begin * MS))
            calls.end_ns.append(int(at + end * MS))
            calls.thread.append(0)
    profile.calls = calls
    end = 20 * MS + steps * step
    snapshots = [
        MemorySnapshot(
            t,
            total_tensors=40,
            resident_bytes=400 * MIB + (t // MS) * 20_000,
            devices={"cpu": TrackedDevice(14 * MIB + (t // MS % 7) * MIB, 40, 300 * MIB)},
            largest=(TensorInfo((1024, 1024), "torch.float32", "cpu", 4 * MIB, name="l1.weight"),),
        )
        for t in range(0, end, 7 * MS)
    ]
    snapshots.append(MemorySnapshot(end, SnapshotKind.CHECKPOINT, "epoch 1"))
    profile.tracker = ops.record(end, snapshots)
    profile.tracker.metadata.pauses.append(Span(12 * MS, 15 * MS))
    profile.perf_origin_ns = ORIGIN
    for graph in profile.graphs:
        graph.compile_ns = 4 * MS
    third = calls.start_ns[6] - 1
    profile.ledger = [
        LedgerEntry(ORIGIN + 8 * MS, LedgerKind.COMPILED, 0, "first compilation"),
        LedgerEntry(ORIGIN + 13 * MS, LedgerKind.COMPILED, 1, "first compilation"),
        LedgerEntry(ORIGIN + 18 * MS, LedgerKind.COMPILED, 2, "first compilation"),
        LedgerEntry(ORIGIN + calls.end_ns[0] - 9, LedgerKind.WARM_UP, 0, "first run"),
        LedgerEntry(ORIGIN + calls.end_ns[3] - 9, LedgerKind.RECORD, 0, "second run"),
        LedgerEntry(ORIGIN + third, LedgerKind.REPLAY, 0, "replayed", count=steps - 2),
        LedgerEntry(ORIGIN + third + MS, LedgerKind.SKIP, 2, "an input is on the CPU"),
    ]
    return profile


def server(requests: int = 5000, at_once: int = 8) -> Profile:
    """``4 * requests`` operations: each request is a task with three stages."""
    ops = Operations([Lane(LaneKind.THREAD, "MainThread", 0)])
    took = 8 * MS
    for i in range(requests):
        ops.lanes.append(Lane(LaneKind.TASK, f"Task-{i}", 0))
        start = i * took // at_once + (i * 7919) % MS
        end = start + took - MS + (i * 104_729) % MS
        outer = ops.add(f"POST /{('embed', 'rank', 'chat')[i % 3]}", start, end, i + 1, delta=4096)
        third = (end - start) // 3
        for n, name in enumerate(("tokenize", "model", "encode")):
            ops.add(
                name,
                start + n * third,
                start + (n + 1) * third - 1000,
                i + 1,
                outer,
                delta=(n == 1) * MIB,
                failed=i % 211 == 0 and n == 2,
            )
    end = max(ops.columns.end_ns)
    snapshots = [
        MemorySnapshot(
            end * k // 200,
            resident_bytes=(900 + k // 3) * MIB,
            devices={"cpu": TrackedDevice((600 + k % 9) * MIB, 300, 800 * MIB)},
        )
        for k in range(201)
    ]
    return Profile(tracker=ops.record(end, snapshots), perf_origin_ns=ORIGIN)
