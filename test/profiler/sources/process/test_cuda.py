"""The tracker on CUDA, simulated or real: allocator figures, peaks of operations, pools."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rendering import render_tracker_record

from memprof.profiler.model import SnapshotKind
from memprof.profiler.sources.process import operations
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.tracker import MemoryTracker
from memprof.profiler.views.report import Style

pytestmark = [
    pytest.mark.simgpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 1 << 20


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryTracker:
    found = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    found.start(thread=False)
    monkeypatch.setattr(operations, "EVERY_NS", 0)
    return found


def test_a_device_that_is_not_in_use_is_not_touched(tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import torch, memprof\n"
        "memprof.track(interval=0.05)\n"
        "memprof.checkpoint('x')\n"
        "with memprof.current_tracker().track_operation('x'): pass\n"
        "print(torch.cuda.is_initialized())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_allocator_figures_and_tensors(tracker: MemoryTracker) -> None:
    before = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    tracker.snapshot(SnapshotKind.PERIODIC)
    kept = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    tracker.snapshot(SnapshotKind.PERIODIC)
    first, second = (s.devices["cuda:0"] for s in tracker.record().snapshots[-2:])
    assert second.tensor_bytes - first.tensor_bytes == 256 * MIB
    assert second.tensors - first.tensors == 1
    assert first.allocated_bytes is not None
    assert second.allocated_bytes == first.allocated_bytes + 256 * MIB
    assert second.allocated_bytes == torch.cuda.memory_allocated()
    assert second.reserved_bytes == torch.cuda.memory_reserved()
    assert second.peak_bytes == torch.cuda.max_memory_allocated()
    assert second.total_bytes == torch.cuda.get_device_properties(0).total_memory
    assert second.highest_bytes == second.allocated_bytes
    # So large that no other test's leavings are larger.
    largest = tracker.record().snapshots[-1].largest[0]
    assert (largest.device, largest.nbytes) == ("cuda:0", 256 * MIB)
    tracker.stop()
    del before, kept


def test_peaks_of_operations(tracker: MemoryTracker) -> None:
    torch.empty(1, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    with tracker.track_operation("high"):
        big = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        del big
    with tracker.track_operation("low"):
        kept = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")
    mark = torch.cuda.max_memory_allocated()
    cuda = tracker.record().operation_allocations.memory["cuda:0"]
    assert cuda.exact == [True, False]
    assert cuda.peak[0] - cuda.before[0] == 64 * MIB
    assert (cuda.after[1] - cuda.before[1], cuda.peak[1]) == (16 * MIB, cuda.after[1])
    # The user's own mark is what it was.
    assert mark == cuda.peak[0]
    tracker.stop()
    del kept


def test_a_snapshot_where_there_is_no_more_memory(tracker: MemoryTracker) -> None:
    kept = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
    tracker.snapshot(SnapshotKind.PERIODIC)
    wanted = 1 << 44
    # GIVEN a program that catches the error and goes on
    with tracker.track_operation("step"), tracker.track_operation("forward"):
        for _ in range(3):  # as one does that tries smaller batches
            big = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(wanted, dtype=torch.uint8, device="cuda")
            del big
    record = tracker.record()
    (found,) = [s for s in record.snapshots if s.kind is SnapshotKind.OUT_OF_MEMORY]
    # THEN what was live then is known, once for attempts in a row
    assert found.name.startswith(f"cuda:0: {wanted:,} bytes asked for, ")
    assert found.operations == ("step", "step/forward")
    now = found.devices["cuda:0"].allocated_bytes
    assert now == torch.cuda.memory_allocated() + 32 * MIB
    # AND not after the tracker's end
    tracker.stop()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(wanted, dtype=torch.uint8, device="cuda")
    assert len(tracker.record().snapshots) == len(record.snapshots) + 1  # that of the end
    del kept


def test_what_an_operation_left_and_the_device_bytes_of_calls(tracker: MemoryTracker) -> None:
    x = torch.ones(1024, device="cuda")
    with (
        tracker.track_pytorch_ops(sequence=1000),
        tracker.track_operation("step"),
    ):
        kept = [x + 1, x * 2]
        gone = x.sin()
        del gone
    record = tracker.record()
    (step,) = record.operation_summary
    assert step.left_bytes == 2 * 4096
    assert [(t.device, t.nbytes, t.shape) for t in step.left] == [("cuda:0", 4096, (1024,))] * 2
    calls = [c for c in record.pytorch_operations.sequence if c.self_device_bytes]
    assert [(c.name, c.self_device_bytes) for c in calls] == [
        ("aten::add", 4096),
        ("aten::mul", 4096),
        ("aten::sin", 4096),
    ]
    assert "device bytes" in render_tracker_record(record, Style())
    tracker.stop()
    del kept
