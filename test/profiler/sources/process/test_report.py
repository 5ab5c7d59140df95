"""The report of a tracker's record."""

from __future__ import annotations

import json
from pathlib import Path

from expecttest import TestCase
from outputs import invoke
from rendering import render_tracker_record

from memprof.profiler.file.profile_file import encode_profile
from memprof.profiler.model import (
    Category,
    DeviceSummary,
    Lane,
    LaneKind,
    MemorySnapshot,
    OperationSummary,
    OperatorCall,
    OperatorRecord,
    OperatorStatistics,
    Profile,
    RunState,
    SnapshotKind,
    Span,
    TensorInfo,
    TrackedDevice,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.views.report import Style

MIB = 1 << 20
SECOND = 10**9


def taken(
    at: int, mib: int, kind: SnapshotKind = SnapshotKind.PERIODIC, name: str = ""
) -> MemorySnapshot:
    cuda = TrackedDevice(mib * MIB, mib, mib * MIB, 2 * mib * MIB, highest_bytes=mib * MIB)
    return MemorySnapshot(
        at * SECOND,
        kind,
        name,
        total_bytes=mib * MIB,
        total_tensors=mib,
        resident_bytes=500 * MIB,
        devices={"cpu": TrackedDevice(reserved_bytes=500 * MIB), "cuda:0": cuda},
        largest=(
            TensorInfo(
                (512, 1024), "torch.float32", "cuda:0", 2 * MIB, 1, True,
                "step/forward", "head.weight", 3, "primals_1", Category.PARAMETER,
            ),
        ),
        operations=("step",) if kind is SnapshotKind.PERIODIC else (),
    )  # fmt: skip


def full() -> TrackerRecord:
    return TrackerRecord(
        TrackerMetadata(
            perf_origin_ns=1_795_155_000 * SECOND,
            start_ns=0,
            end_ns=60 * SECOND,
            state=RunState.SIGNAL,
            reason="SIGTERM",
            host="node-3",
            pid=42,
            command=("/home/me/train.py", "--fast"),
            torch="2.13.0",
            memprof="0.1.0",
            python="3.11.7",
            interval_ns=5 * SECOND,
            lanes=[Lane(LaneKind.THREAD, "MainThread", 0)],
            pauses=[Span(10 * SECOND, 12 * SECOND)],
            snapshots_taken=14,
            operations_seen=30,
            problems=["cannot write x: No space left on device"],
        ),
        [
            taken(0, 1, SnapshotKind.START),
            taken(20, 30),
            taken(30, 90, SnapshotKind.CHECKPOINT, "epoch 1"),
            taken(50, 20),
            taken(60, 10, SnapshotKind.END),
        ],
        operation_summary=[
            OperationSummary(
                "step", -1, 10, 1, 10 * SECOND, 2 * SECOND, 4 * MIB, 4, 3,
                {
                    "cpu": DeviceSummary(MIB, MIB, MIB, 10),
                    "cuda:0": DeviceSummary(8 * MIB, MIB, 96 * MIB, 10),
                },
                5 * MIB,
                (
                    *[TensorInfo((1024, 512), "torch.float32", "cuda:0", 2 * MIB)] * 2,
                    TensorInfo((7,), "torch.int64", "cpu", 56, 2, operation="step/forward"),
                ),
            ),
            OperationSummary("forward", 0, 10, 0, 6 * SECOND, SECOND, 0, 0, 0, {}),
        ],
        pytorch_operations=OperatorRecord(
            [Span(0, 2 * SECOND)],
            [
                OperatorStatistics(
                    "aten::mm", 20, 4_000_000, 3_000_000, 0, 0, MIB, MIB, 0, 0,
                ),
                OperatorStatistics("aten::add", 5, 500_000, 500_000),
            ],
            [
                OperatorCall("aten::matmul", SECOND, 0, 5_000, 0, 0, ((4, 8), (8, 2))),
                OperatorCall("aten::mm", SECOND + 1_000, 1, 3_000, 32, 0, ((4, 8), (8, 2), ())),
                OperatorCall("aten::add", 2 * SECOND, 0, 500, -32),
            ],
        ),
    )  # fmt: skip


class TestReport(TestCase):
    maxDiff = None

    def test_text(self) -> None:
        self.assertExpectedInline(
            render_tracker_record(full(), Style(top=4)),
            """\
Memory tracker · process 42 on node-3 · train.py --fast
memprof 0.1.0 · torch 2.13.0 · Python 3.11.7
60.0 s from 2026-11-20 06:10:00 UTC, ended by a signal (SIGTERM)
14 snapshots, 9 of them no longer recorded, one every 5.00 s; 30 operations
disabled for 2.00 s, 10.0 s in
problem: cannot write x: No space left on device

Memory over time
  4 of 5 snapshots; * is the highest.
 after  snapshot              live tensors     bytes  resident    cuda:0  in operation
──────────────────────────────────────────────────────────────────────────────────────
  0 ns  start                            1  1.00 MiB   500 MiB  1.00 MiB  -
20.0 s  periodic                        30  30.0 MiB   500 MiB  30.0 MiB  step
30.0 s  checkpoint epoch 1 *            90  90.0 MiB   500 MiB  90.0 MiB  -
60.0 s  end                             10  10.0 MiB   500 MiB  10.0 MiB  -

Largest tensors, 30.0 s in: 90.0 MiB in live tensors
  88.0 MiB are in tensors that the snapshot does not describe.
   bytes  share  device  dtype    shape        what                               made in
──────────────────────────────────────────────────────────────────────────────────────────────
2.00 MiB  2.2 %  cuda:0  float32  [512, 1024]  head.weight, primals_1, parameter  step/forward

Operations
  Memory is allocated on cuda:0; figures are of as many times as `in N` says.
operation  times  failed   total    mean     max   tensors grew  memory grew  highest inside
────────────────────────────────────────────────────────────────────────────────────────────
step          10       1  10.0 s  1.00 s  2.00 s  4.00 MiB in 3     8.00 MiB        96.0 MiB
  forward     10       0  6.00 s  600 ms  1.00 s              -            -               -

  Largest tensors that it made and left alive, of the time that it left most
operation  left in all     bytes  device  dtype    shape            what                made in
────────────────────────────────────────────────────────────────────────────────────────────────────
step          5.00 MiB  4.00 MiB  cuda:0  float32  2 x [1024, 512]  -                   -
step          5.00 MiB      56 B  cpu     int64    [7]              2 tensors share it  step/forward

PyTorch operators in a window of 2.00 s
operator   calls  self CPU      CPU  CPU bytes
──────────────────────────────────────────────
aten::mm      20   3.00 ms  4.00 ms   1.00 MiB
aten::add      5    500 us   500 us        0 B

  The last 3 calls, in order; bytes are allocations less releases
operator        after      CPU  CPU bytes  shapes
────────────────────────────────────────────────────────
aten::matmul     0 ns  5.00 us        0 B  [4, 8] [8, 2]
  aten::mm    1.00 us  3.00 us      +32 B  [4, 8] [8, 2]
aten::add      1.00 s   500 ns      -32 B  -
""",
        )

    def test_an_empty_record(self) -> None:
        self.assertExpectedInline(
            render_tracker_record(TrackerRecord()),
            """\
Memory tracker · process 0 on  ·
memprof  · torch  · Python
0 ns from 1970-01-01 00:00:00 UTC, it has not ended: the process runs, or was killed
0 snapshots, one every 0 ns; 0 operations

Memory over time
  No snapshot was taken.

Operations
  No operation was tracked: put tracker.track_operation(name) around what you want to see.
""",
        )


def test_the_command_prints_it(tmp_path: Path) -> None:
    path = tmp_path / "memory_profile_1.memprof"
    path.write_bytes(encode_profile(Profile(tracker=full())))
    assert render_tracker_record(full()) in invoke("report", "--full", path).output
    whole = tmp_path / "whole.json"
    invoke("export", path, "-f", "json", "-o", whole)
    tracker = json.loads(whole.read_text())["tracker"]
    assert [c["name"] for c in tracker["pytorch_operations"]["sequence"]][-1] == "aten::add"
    assert [t["nbytes"] for t in tracker["operation_summary"][0]["left"]] == [2 * MIB, 2 * MIB, 56]
    titles = [s["title"] for s in json.loads(invoke("report", path, "--json").output)["sections"]]
    assert {"Memory over time", "Operations"} <= set(titles)


def test_ascii_and_narrow() -> None:
    text = render_tracker_record(full(), Style(ascii_only=True, width=80))
    assert text.isascii()
    assert render_tracker_record(full(), Style(color=True)) != render_tracker_record(full())
