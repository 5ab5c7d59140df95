"""Contents of snapshots: names of compiled tensors, memory of the process."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import Category, MemorySnapshot, SnapshotKind
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.sources import ProcessMemory
from memprof.profiler.sources.process.tracker import MemoryTracker


def tracker(folder: Path, **settings: bool) -> MemoryTracker:
    found = MemoryTracker(TrackerSettings(output_dir=str(folder), largest=30, **settings))
    found.start(thread=False)
    return found


def now(found: MemoryTracker) -> MemorySnapshot:
    found.snapshot(SnapshotKind.PERIODIC)
    return found.record().snapshots[-1]


def test_compiled_tensors_have_names(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(320, 310), torch.nn.ReLU(), torch.nn.Linear(310, 300)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    found = tracker(tmp_path)
    compiled = torch.compile(model, backend="memprof")
    out = None
    for _ in range(4):
        out = compiled(torch.randn(500, 320))
        out.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert out is not None
    largest = {t.shape: t for t in now(found).largest}
    found.stop()
    # The output of a call that was not observed, by its graph's autograd function.
    output = largest[(500, 300)]
    assert output.category == Category.OUTPUT.value
    assert output.node is not None
    # Parameters by the storage that the graphs have seen.
    weight = next(
        t for t in found.record().snapshots[-1].largest if t.shape == (310, 320) and t.requires_grad
    )
    assert (weight.category, weight.graph is None) == (Category.PARAMETER.value, False)
    assert "0" in weight.name
    assert "weight" in weight.name
    # The file has what was compiled, and says in which of its threads operations ran.
    assert found.path is not None
    profile = read_profile(found.path)
    assert profile.tracker is not None
    assert {g.kind.value for g in profile.graphs} >= {"forward", "backward"}
    assert output.graph in {g.id for g in profile.graphs}
    assert len(profile.calls) >= 8
    start, end = profile.tracker.metadata.start_ns, profile.tracker.metadata.end_ns
    assert start <= profile.calls.start_ns[-1] <= end


def test_lanes_know_the_numbers_of_the_calls_threads(tmp_path: Path) -> None:
    import threading

    compiled = torch.compile(lambda x: x * 2 + 1, backend="memprof")
    compiled(torch.ones(3))
    found = tracker(tmp_path)

    def work() -> None:
        with found.track_operation("work"):
            compiled(torch.ones(3))

    with found.track_operation("main"):
        compiled(torch.ones(3))
    thread = threading.Thread(target=work, name="worker")
    thread.start()
    thread.join()
    found.stop()
    assert found.path is not None
    profile = read_profile(found.path)
    assert profile.tracker is not None
    lanes = profile.tracker.metadata.lanes
    columns = profile.tracker.operation_allocations
    for i, lane in enumerate(columns.lane):
        inside = [
            profile.calls.thread[c]
            for c in range(len(profile.calls))
            if columns.start_ns[i] <= profile.calls.start_ns[c] <= columns.end_ns[i]
        ]
        assert inside == [lanes[lane].call_thread]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_the_highest_is_not_that_of_the_process_that_started_this_one() -> None:
    # GIVEN a process that started another one while it was large
    mib = 1 << 20
    kept = mmap.mmap(-1, 400 * mib)
    for page in range(0, len(kept), mmap.PAGESIZE):
        kept[page] = 1
    memory = ProcessMemory()
    resident = memory.resident()
    assert resident is not None
    program = """if True:
        import mmap
        from memprof.profiler.sources.process.sources import ProcessMemory
        memory = ProcessMemory()
        _, first = memory.resident()
        kept = mmap.mmap(-1, 300 << 20)
        for page in range(0, len(kept), mmap.PAGESIZE):
            kept[page] = 1
        print(first, memory.resident()[1] - first)
        """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # THEN that one knows its own mark, below and beyond the other's
    first, more = map(int, done.stdout.split())
    assert first < resident[0] - 300 * mib
    assert more == pytest.approx(300 * mib, rel=0.1)
    kept.close()
