"""Profiles that have everything a profile can have, small, as seeds for mutations."""

from __future__ import annotations

from dataclasses import replace

from profile_builder import MIB, training

from memprof.profiler.model import (
    AllocationFailure,
    Category,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowStorage,
    DeviceAccount,
    DeviceSummary,
    FailedRequest,
    Growth,
    GrowthSource,
    Held,
    HostRead,
    Lane,
    LaneKind,
    LedgerEntry,
    LedgerKind,
    MemoryColumns,
    MemorySnapshot,
    OperationColumns,
    OperationSummary,
    OperatorRecord,
    OperatorStatistics,
    Outside,
    PoolShare,
    Process,
    Profile,
    RunState,
    SnapshotKind,
    SourceFrame,
    Span,
    TensorInfo,
    TrackedDevice,
    TrackerMetadata,
    TrackerRecord,
    TreeDetail,
    WhyNot,
)


def everything(rank: int = 0, world: int = 1) -> Profile:
    """A training step with graph trees, data flow, failures, a tracker, an account."""
    profile = training()
    profile.options = {"graphs": "on"}
    profile.released = {1: 4, 8: 9}
    profile.process = Process(rank, rank, world, "host", 77 + rank)
    profile.perf_origin_ns = 1_700_000_000_000_000_000
    start = profile.perf_origin_ns
    tree = TreeDetail("cuda:0", "0/0 forward", (), 1, None, 1, 2_000, 0, MIB, MIB)
    reason = "input name: primals_1. data pointer changed from 1 to 2"
    profile.ledger += [
        LedgerEntry(start, LedgerKind.RECORD, 0, "first", 1, tree),
        LedgerEntry(start + 5, LedgerKind.REPLAY, 0, "", 3, tree),
        LedgerEntry(start + 6, LedgerKind.RERECORD, 0, f"static inputs moved\n{reason}", 2, tree),
        LedgerEntry(start + 7, LedgerKind.TREE_FAILURE, 1, "CUDA out of memory", 1, tree),
        LedgerEntry(start + 8, LedgerKind.NOT_OBSERVED, 2, "max_programs", 2),
        LedgerEntry(start + 9, LedgerKind.FALLBACK, None, "an error", 1),
    ]
    frame = SourceFrame("train.py", 12, "step", "loss.backward()")
    profile.dataflow = DataFlowColumns(
        [
            DataFlowDevice(
                "cpu", [10, 20, 30],
                {Category.PARAMETER: [4, 4, 4], Category.ACTIVATION: [0, 8, 0]}, 1,
                [DataFlowStorage(8, Category.ACTIVATION, "aten::mm", "l1", frame, 15),
                 DataFlowStorage(4, Category.PARAMETER)],
            ),
            DataFlowDevice("cuda:0"),
        ],
    )  # fmt: skip
    profile.tracker = _tracker()
    profile.accounts = [_account(frame), _failed(frame)]
    part = Held(Category.ACTIVATION, 3 * MIB, 3, "Net > Block", frame, "mm")
    profile.growth = [
        Growth(
            GrowthSource.ALLOCATOR, "cuda:1", 3 * MIB, MIB, "optimizer step", 1, 12,
            "debug[...], global of train.py", frame, (part,),
        )
    ]  # fmt: skip
    return profile


def _account(frame: SourceFrame) -> DeviceAccount:
    """With something in every field."""
    return DeviceAccount(
        "cuda:0", "NVIDIA H100", 80 * MIB, True, 20 * MIB, 9 * MIB, 9 * MIB, 2, "backward",
        [
            Held(Category.ACTIVATION, 6 * MIB, 3, "Net > Block", frame, "mm (aten.mm)", True),
            Held(Category.PARAMETER, 2 * MIB, 1, detail="all-gathered by FSDP"),
        ],
        512, MIB,
        [
            PoolShare("general", 16 * MIB, 9 * MIB - 512, 2, 5 * MIB),
            PoolShare("private 0,1", 4 * MIB, MIB, 1, MIB),
        ],
        MIB,
        [Outside("CUDA context", 512 * MIB, True, "measured elsewhere")],
        [FailedRequest(7 * MIB, "Net", frame, 2)],
        [HostRead(frame, 3, 12), HostRead(None, 1, 4)],
        3, 5_000_000_000, "3 optimizer steps", ["a note"],
    )  # fmt: skip


def _failed(frame: SourceFrame) -> DeviceAccount:
    """The same of a failed allocation."""
    account = _account(frame)
    account.device = "cuda:1"
    account.rows[1] = replace(account.rows[1], holder="w, local of train (train.py:3)")
    account.failure = AllocationFailure(
        2 * MIB, MIB, WhyNot.PIECES, MIB, 64 * MIB, 44 * MIB, 3 * MIB, MIB, 1, 2, frame, "Net > A",
        "mm", "0/0 forward", "MmBackward0", frame, "recording 0/0 forward", "MainThread",
        1_700_000_000_000_000_000, 2, 3,
    )  # fmt: skip
    return account


def _tracker() -> TrackerRecord:
    memory = {
        "cpu": TrackedDevice(10, 2, 100, 200, 300, 400, 250),
        "cuda:0": TrackedDevice(5, 1, 50, 60, 70, 80, 55),
    }
    tensors = (
        TensorInfo((2, 3), "torch.float32", "cpu", 24, 2, True, "step/forward", "l1.weight"),
        TensorInfo(
            (), "torch.int64", "cuda:0", 8, graph=0, node="mm", category=Category.ACTIVATION
        ),
    )
    return TrackerRecord(
        TrackerMetadata(
            1_700_000_000_000_000_000, 5, 105, RunState.EXCEPTION, "MemoryError: none", "host", 7,
            ("train.py", "--x"), "2.13", "0.1", "3.11", 10**9, {"interval": "1"},
            [Lane(LaneKind.THREAD, "MainThread", 0, 0), Lane(LaneKind.TASK, "task", 0)],
            [Span(10, 20)], 5, 4, 1, ["a problem"],
        ),
        [
            MemorySnapshot(10, SnapshotKind.START, "", 3, 2, 90, memory, tensors, ("step",), True),
            MemorySnapshot(20, SnapshotKind.CHECKPOINT, "here", 7, 3, complete=False),
        ],
        OperationColumns(
            [0, 1, 1], [0, 0, 1], [-1, 0, -1], [10, 11, 12], [20, 12, -1], [-1, 4, 5], [-1, 5, -1],
            [-1, 1, 2], [-1, 2, -1],
            {"cpu": MemoryColumns([1, -1, 3], [2, -1, -1], [3, -1, -1], [True, False, False])},
            [False, True, False],
        ),
        [
            OperationSummary("step", -1, 1, 0, 10, 10, 5, 1, 1,
                             {"cpu": DeviceSummary(1, 1, 9, 1)}),
            OperationSummary("forward", 0, 2, 1, 1, 1),
        ],
        OperatorRecord(
            [Span(30, 40)],
            [OperatorStatistics("aten::mm", 3, 9, 8, 7, 6, 5, 4, 3, 2)],
        ),
    )  # fmt: skip
