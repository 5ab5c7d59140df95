"""A day of a tracker, with a clock that runs fast: memory and file stay bounded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import SnapshotKind
from memprof.profiler.sources.process import record_file
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.tracker import MemoryTracker

DAY_NS = 24 * 3600 * 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def few_objects() -> Iterator[None]:
    """The objects that other tests have left are out of the collector's way, which runs often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("few_objects")
def test_24_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a tracker that takes a snapshot every 15 s (every 5 s is the same, and takes 12 s
    # here), with room for 200 of them and 500 operations, and a program that makes tensors and
    # operations, with a checkpoint in the early morning
    monkeypatch.setattr(record_file, "REST", 1_000)
    clock = Clock()
    settings = TrackerSettings(
        output_dir=str(tmp_path),
        interval=15.0,
        max_snapshots=200,
        max_operations=500,
    )
    tracker = MemoryTracker(settings, clock=clock)
    tracker.start(thread=False)
    kept: list[torch.Tensor] = []
    sizes: list[int] = []
    memory: list[int] = []  # objects that the collector knows
    step_ns = 15 * 10**9
    count = DAY_NS // step_ns
    peak_at = count // 5
    for i in range(count):
        clock.now += step_ns
        with tracker.track_operation("request"), tracker.track_operation("model"):
            kept.append(torch.empty(10))
        del kept[:-50]
        if i == peak_at:
            tracker.checkpoint("peak")
        tracker.snapshot(SnapshotKind.PERIODIC)
        if i % (count // 24) == 0:  # every hour
            gc.collect()
            sizes.append(sum(p.stat().st_size for p in tmp_path.iterdir()))
            memory.append(len(gc.get_objects()))
    tracker.stop()
    record = tracker.record()
    # THEN nothing has grown since the sixth hour
    assert max(memory[6:]) <= max(memory[:6]) + 3_000, memory
    assert max(sizes) <= 2_000_000
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size <= 1_000_000
    # AND the record covers the whole day, dense at the end, with everything counted
    found = read_profile(path).tracker
    assert found is not None
    assert len(found.snapshots) <= 200
    assert found.metadata.snapshots_taken == count + 3
    assert (found.snapshots[0].time_ns, found.snapshots[-1].time_ns) == (0, DAY_NS)
    assert sum(s.time_ns > DAY_NS * 0.9 for s in found.snapshots) >= 20
    assert [s.name for s in found.snapshots if s.name] == ["peak"]
    assert [s.count for s in found.operation_summary] == [count, count]
    assert len(found.operation_allocations) <= 500 + 500 // 8 + 8
    assert found.metadata.operations_seen == 2 * count
    assert found.metadata.operations_dropped == 2 * count - len(found.operation_allocations)
    assert found.metadata.problems == []
    assert record.metadata.end_ns == DAY_NS
