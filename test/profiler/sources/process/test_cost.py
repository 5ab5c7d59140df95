"""What a snapshot and an operation cost, counted."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from counting import lines_run

from memprof.profiler.model import SnapshotKind
from memprof.profiler.sources.process import operations
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.tracker import MemoryTracker

Begin = Callable[[], MemoryTracker]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    """Starts a tracker that knows every tensor there is; no collection comes in between."""
    started: list[MemoryTracker] = []

    def start() -> MemoryTracker:
        while started:
            started.pop().stop()
        started.append(MemoryTracker(TrackerSettings(output_dir=str(tmp_path))))
        started[0].start(thread=False)
        gc.collect()  # What there is now is old.
        return started[0]

    gc.collect()
    gc.disable()
    yield start
    gc.enable()
    while started:
        started.pop().stop()


def test_a_snapshot_costs_what_is_new_not_what_is_there(begin: Begin) -> None:
    def cost(there: int) -> int:
        """Of the costliest of four snapshots after the first, when 100 tensors are new and 100 are
        gone: one that ends a round of reading known sizes again reads fewer."""
        tensors = [torch.empty(16 + i % 64) for i in range(there)]
        objects = [{"a": [i]} for i in range(5 * there)]
        tracker = begin()
        lines = []
        for _ in range(5):
            tensors[:100] = [torch.empty(8) for _ in range(100)]
            lines.append(lines_run(lambda: tracker.snapshot(SnapshotKind.PERIODIC)))
        assert tracker.record().snapshots[-1].total_tensors >= there
        del objects
        return max(lines[1:])

    few, many = cost(2_000), cost(20_000)
    # Ten times of few if it were what is there.
    assert many < 2 * few


def test_an_operation_costs_the_same_however_many_there_were(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN that memory at its edges is read once
    monkeypatch.setattr(operations, "EVERY_NS", 1 << 62)
    tracker = begin()
    operation = tracker.track_operation("x")

    def thousand() -> int:
        def run() -> None:
            for _ in range(1_000):
                with operation:
                    pass

        return lines_run(run)

    first, *others = [thousand() for _ in range(4)]
    assert max(others) <= 1.1 * min(others)
    assert max(first, *others) < 1_000 * 200
