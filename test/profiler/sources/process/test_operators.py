"""Operator statistics: counts, times and bytes, added up over windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import OperatorStatistics, TrackerRecord
from memprof.profiler.sources.process import operators as operators_module, record_file
from memprof.profiler.sources.process.operators import as_shapes, is_operator
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.tracker import MemoryTracker


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryTracker]:
    monkeypatch.setattr(record_file, "REST", 0)
    found = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    found.start(thread=False)
    yield found
    found.stop()


def by_name(tracker: MemoryTracker) -> dict[str, OperatorStatistics]:
    return {s.name: s for s in tracker.record().pytorch_operations.operators}


def test_counts_bytes_and_times(tracker: MemoryTracker) -> None:
    a, b = torch.ones(4, 8), torch.ones(8, 16)
    for _ in range(2):
        with tracker.track_pytorch_ops():
            for _ in range(3):
                a @ b
            torch.ones(2, 8) @ b
    mm = by_name(tracker)["aten::mm"]
    assert mm.count == 8
    assert mm.self_cpu_bytes == 6 * 4 * 16 * 4 + 2 * 2 * 16 * 4
    assert mm.cpu_ns >= mm.self_cpu_ns > 0
    record = tracker.record().pytorch_operations
    assert len(record.windows) == 2
    times = [s.self_cpu_ns for s in record.operators]
    assert times == sorted(times, reverse=True)


def test_backward_is_seen(tracker: MemoryTracker) -> None:
    w = torch.ones(8, 8, requires_grad=True)
    with tracker.track_pytorch_ops():
        (w @ w).sum().backward()
    found = by_name(tracker)
    assert found["aten::mm"].count == 3
    assert not [n for n in found if "autograd::engine" in n or n == "[memory]"]


def test_without_memory(tracker: MemoryTracker) -> None:
    with tracker.track_pytorch_ops(memory=False):
        torch.ones(3).sum()
    found = by_name(tracker)["aten::sum"]
    assert (found.count, found.cpu_bytes) == (1, 0)


def test_an_exception_passes(tracker: MemoryTracker) -> None:
    with pytest.raises(RuntimeError), tracker.track_pytorch_ops():
        torch.ones(3) @ torch.ones(4)
    assert by_name(tracker)["aten::ones"].count == 2


def test_beside_another_profiler_it_measures_nothing_and_says_so(tracker: MemoryTracker) -> None:
    with torch.profiler.profile() as users, tracker.track_pytorch_ops():
        torch.ones(3).sum()
    assert any(e.key == "aten::sum" for e in users.key_averages())
    with tracker.track_pytorch_ops(), tracker.track_pytorch_ops():
        torch.ones(3).sum()
    assert by_name(tracker)["aten::sum"].count == 1
    (said,) = tracker.record().metadata.problems
    assert said == "track_pytorch_ops: another profiler is on, so nothing was measured"


def test_many_operators_stay_bounded(
    tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators_module, "MAX_OPERATORS", 3)
    with tracker.track_pytorch_ops():
        for i in range(1, 60):
            torch.ones(i).sum()
    found = by_name(tracker)
    assert len(found) <= 4
    assert operators_module.OTHER in found


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("aten::mm", True),
        ("mylib::op", True),
        ("triton_poi_fused_0", True),
        ("[memory]", False),
        ("autograd::engine::evaluate_function: MmBackward0", False),
        ("Torch-Compiled Region: 0/0", False),
        ("ProfilerStep#3", False),
    ],
)
def test_what_is_an_operator(name: str, is_one: bool) -> None:
    assert is_operator(name) is is_one


def test_shapes_of_lists_of_tensors() -> None:
    assert as_shapes([[2, 3], [], [[1], [2]]]) == ((2, 3), (), ())
    assert as_shapes(None) == ()


def so_far(tracker: MemoryTracker) -> TrackerRecord:
    """What a reader of its file finds now."""
    assert tracker.path is not None
    found = read_profile(tracker.path).tracker
    assert found is not None
    return found


def test_the_record_can_be_read_while_a_window_is_added(
    tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a signal's handler does, which runs between two instructions of this thread.
    is_one = operators_module.is_operator

    def interrupted(name: str) -> bool:
        tracker.record()
        return is_one(name)

    monkeypatch.setattr(operators_module, "is_operator", interrupted)
    with tracker.track_pytorch_ops():
        torch.ones(3).sum()
    assert "aten::sum" in by_name(tracker)


def test_windows_reach_the_file_when_old_ones_are_no_longer_kept(
    tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators_module, "MAX_WINDOWS", 1)
    for count in (1, 2):
        with tracker.track_pytorch_ops():
            torch.ones(3).sum()
        tracker.checkpoint("now")
        found = so_far(tracker)
        (total,) = [s.count for s in found.pytorch_operations.operators if s.name == "aten::sum"]
        assert total == count
        assert found.pytorch_operations == tracker.record().pytorch_operations


def test_the_order_of_calls_with_their_bytes(tracker: MemoryTracker) -> None:
    a, b = torch.ones(4, 8), torch.ones(8, 16)
    with tracker.track_pytorch_ops(sequence=100):
        c = torch.relu(a @ b)
    record = tracker.record().pytorch_operations
    sequence = record.sequence
    assert [s.name for s in sequence if not s.depth] == ["aten::matmul", "aten::relu"]
    (mm,) = [s for s in sequence if s.name == "aten::mm"]
    assert (mm.depth, mm.self_cpu_bytes, mm.shapes) == (1, 4 * 16 * 4, ((4, 8), (8, 16)))
    starts = [s.start_ns for s in sequence]
    assert starts == sorted(starts)
    # Torch's clock is the processor's counter set beside ours once: they part by some 10 µs.
    window, apart_ns = record.windows[0], 1_000_000
    assert window.start_ns - apart_ns <= starts[0] <= window.end_ns + apart_ns
    # What the sums count stands in the sequence, each call once.
    assert {s.name: s.count for s in record.operators} == Counter(s.name for s in sequence)
    assert sum(s.self_cpu_bytes for s in record.operators) == sum(
        s.self_cpu_bytes for s in sequence
    )
    del c


def test_the_last_calls_of_all_windows_are_kept(tracker: MemoryTracker) -> None:
    x = torch.ones(3)
    with tracker.track_pytorch_ops(sequence=3):
        x.sin()
    with tracker.track_pytorch_ops(sequence=3):
        x.cos()
        x.tan()
        x.exp()
    with tracker.track_pytorch_ops():
        x.sum()
    names = [s.name for s in tracker.record().pytorch_operations.sequence]
    assert names == ["aten::cos", "aten::tan", "aten::exp"]
    with tracker.track_pytorch_ops(sequence=2):
        x.sin()
    names = [s.name for s in tracker.record().pytorch_operations.sequence]
    assert names == ["aten::exp", "aten::sin"]
    tracker.checkpoint("now")
    assert so_far(tracker).pytorch_operations == tracker.record().pytorch_operations


@pytest.mark.parametrize("wrong", [-1, operators_module.MAX_SEQUENCE + 1])
def test_so_many_calls_cannot_be_kept(tracker: MemoryTracker, wrong: int) -> None:
    with pytest.raises(ValueError, match=f"sequence={wrong}: 0 to 10,000 calls"):
        tracker.track_pytorch_ops(sequence=wrong)
