"""Operations: nesting, threads, tasks, decorators; the memory around them; names of tensors."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import mmap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from in_threads import run_in_threads

from memprof.profiler.model import (
    Lane,
    LaneKind,
    OperationColumns,
    SnapshotKind,
    TrackerRecord,
)
from memprof.profiler.sources.process import (
    operations as operations_module,
    places as places_module,
    sources as sources_module,
)
from memprof.profiler.sources.process.operations import Operation, OperationLog
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.tracker import MemoryTracker
from memprof.profiler.support import process_hooks


@pytest.fixture
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryTracker]:
    gc.collect()  # Cycles that other tests left are not to die inside an operation.
    found = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    found.start(thread=False)
    monkeypatch.setattr(operations_module, "EVERY_NS", 0)
    yield found
    found.stop()


def paths(record: TrackerRecord) -> list[str]:
    """``path of each invocation``, in order of start."""
    columns = record.operation_allocations
    return [record.path(i) for i in columns.summary]


def test_nested(tracker: MemoryTracker) -> None:
    for _ in range(2):
        with tracker.track_operation("step"):
            with tracker.track_operation("forward"):
                time.sleep(0.002)
            with tracker.track_operation("backward"):
                pass
    record = tracker.record()
    assert paths(record) == ["step", "step/forward", "step/backward"] * 2
    columns = record.operation_allocations
    assert columns.parent == [-1, 0, 0, -1, 3, 3]
    for i, parent in enumerate(columns.parent):
        if parent >= 0:
            assert columns.start_ns[parent] <= columns.start_ns[i]
            assert columns.end_ns[i] <= columns.end_ns[parent]
    forward = record.operation_summary[1]
    assert (forward.name, forward.parent, forward.count) == ("forward", 0, 2)
    assert forward.total_ns >= 4_000_000
    assert forward.mean_ns <= forward.max_ns <= forward.total_ns
    assert columns.lane == [0] * 6
    assert record.metadata.lanes[0] == Lane(LaneKind.THREAD, threading.current_thread().name, 0)


def test_a_record_has_the_lane_of_what_begins_meanwhile(
    tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an operation of a new thread that begins while a record is put together
    columns = tracker._recorder.operations.columns

    def run() -> None:
        with tracker.track_operation("x"):
            pass

    def late() -> OperationColumns:
        run_in_threads(run)
        return columns()

    monkeypatch.setattr(tracker._recorder.operations, "columns", late)
    record = tracker.record()
    assert record.operation_allocations.lane == [0]
    assert len(record.metadata.lanes) == 1
    assert record.metadata.operations_seen == 1


def test_recursion_is_a_tree(tracker: MemoryTracker) -> None:
    again = tracker.track_operation("f")

    def f(depth: int) -> None:
        with again:
            if depth:
                f(depth - 1)

    f(2)
    assert paths(tracker.record()) == ["f", "f/f", "f/f/f"]


def test_decorator(tracker: MemoryTracker) -> None:
    @tracker.track_operation("double")
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Twice.")
    assert tracker.record().operation_summary[0].count == 1


def test_generators_cannot_be_decorated(tracker: MemoryTracker) -> None:
    with pytest.raises(TypeError, match="is a generator"):

        @tracker.track_operation("g")
        def g() -> Iterator[int]:
            yield 1


@pytest.mark.parametrize("name", ["", None, 3])
def test_names_are_texts(tracker: MemoryTracker, name: object) -> None:
    with pytest.raises(ValueError, match="must be a text"):
        tracker.track_operation(name)  # type: ignore[arg-type]


def test_exceptions_pass_and_are_counted(tracker: MemoryTracker) -> None:
    with pytest.raises(KeyError), tracker.track_operation("a"), tracker.track_operation("b"):
        raise KeyError
    record = tracker.record()
    assert record.operation_allocations.failed == [True, True]
    assert [s.failed for s in record.operation_summary] == [1, 1]
    with tracker.track_operation("c"):
        pass
    assert paths(tracker.record()) == ["a", "a/b", "c"]


def test_threads_have_lanes_and_no_common_parent(tracker: MemoryTracker) -> None:
    all_inside = threading.Barrier(3)

    def work() -> None:
        with tracker.track_operation("work"):
            all_inside.wait()

    with tracker.track_operation("main"):
        threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    record = tracker.record()
    assert sorted(paths(record)) == ["main", "work", "work", "work"]
    assert sorted(record.operation_allocations.lane) == [0, 1, 2, 3]
    assert {lane.name for lane in record.metadata.lanes[1:]} == {f"worker {i}" for i in range(3)}


def test_lanes_of_threads_that_ended_are_used_again(tracker: MemoryTracker) -> None:
    identities = set()

    def work() -> None:
        threading.current_thread().name = "worker"
        with tracker.track_operation("w"):
            identities.add(threading.get_ident())

    for _ in range(20):
        run_in_threads(work)
    # Python may give a thread another identity while the one before is being cleaned up.
    assert len(tracker.record().metadata.lanes) == len(identities)


def test_tasks_take_turns_on_a_thread(tracker: MemoryTracker) -> None:
    @tracker.track_operation("request")
    async def request(i: int) -> None:
        await asyncio.sleep(0.01)
        with tracker.track_operation("inference"):
            await asyncio.sleep(0.01)

    async def serve() -> None:
        for _ in range(3):
            await asyncio.gather(*(request(i) for i in range(4)))

    asyncio.run(serve())
    record = tracker.record()
    columns = record.operation_allocations
    assert sorted(paths(record)) == ["request"] * 12 + ["request/inference"] * 12
    lanes = record.metadata.lanes
    # Lanes are places, not tasks: as many as ran at once.
    assert [lane.kind for lane in lanes] == [LaneKind.THREAD] + [LaneKind.TASK] * 4
    for i, parent in enumerate(columns.parent):
        if parent >= 0:
            assert columns.lane[i] == columns.lane[parent]
    # In one lane nothing overlaps but parents and children.
    for lane in range(1, 5):
        roots = [
            (columns.start_ns[i], columns.end_ns[i])
            for i in range(len(columns))
            if columns.lane[i] == lane and columns.parent[i] < 0
        ]
        roots.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(roots))


def test_a_task_belongs_to_what_started_it(tracker: MemoryTracker) -> None:
    async def child() -> None:
        with tracker.track_operation("child"):
            await asyncio.sleep(0)

    async def main() -> None:
        with tracker.track_operation("parent"):
            task = asyncio.create_task(child())
            await asyncio.sleep(0)
        await task

    asyncio.run(main())
    record = tracker.record()
    assert paths(record) == ["parent", "parent/child"]
    assert record.operation_allocations.lane == [1, 2]


def test_one_object_in_many_threads(tracker: MemoryTracker) -> None:
    shared = tracker.track_operation("shared")

    def work() -> None:
        for _ in range(200):
            with shared, tracker.track_operation("inner"):
                pass

    run_in_threads(*4 * [work])
    record = tracker.record()
    assert [(s.name, s.count) for s in record.operation_summary] == [
        ("shared", 800),
        ("inner", 800),
    ]
    assert -1 not in record.operation_allocations.end_ns


def test_left_in_another_context(tracker: MemoryTracker) -> None:
    # GIVEN a generator that a thread begins and another one ends
    def generator() -> Iterator[int]:
        with tracker.track_operation("g"):
            yield 1

    g = generator()
    next(g)
    run_in_threads(g.close)
    assert tracker.record().operation_allocations.end_ns[0] > 0


def test_bytes_and_tensors_before_and_after(tracker: MemoryTracker) -> None:
    with tracker.track_operation("make"):
        kept = [torch.empty(1000) for _ in range(5)]
    with tracker.track_operation("drop"):
        kept.clear()
    make, drop = tracker.record().operation_summary
    assert (make.tensor_bytes_delta, make.tensors_delta, make.tensors_measured) == (20_000, 5, 1)
    assert (drop.tensor_bytes_delta, drop.tensors_delta) == (-20_000, -5)
    columns = tracker.record().operation_allocations
    assert columns.tensor_bytes_after[0] - columns.tensor_bytes_before[0] == 20_000


def touched(nbytes: int) -> mmap.mmap:
    """So many resident bytes; not from malloc, which may hand out what is resident already."""
    memory = mmap.mmap(-1, nbytes)
    torch.frombuffer(memory, dtype=torch.uint8).fill_(1)
    return memory


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_peak_inside_on_the_cpu(tracker: MemoryTracker) -> None:
    mib = 1 << 20
    # GIVEN an operation that sets a new highest mark, whatever other tests have left it at,
    # and one that stays below it
    reading = tracker._recorder.operations.process.resident()
    assert reading is not None
    resident, highest = reading
    size = 400 * mib + highest - resident
    with tracker.track_operation("high"):
        touched(size).close()
    with tracker.track_operation("low"), tracker.track_operation("inner"):
        small = touched(100 * mib)
        tracker.snapshot(SnapshotKind.PERIODIC)
        small.close()
    cpu = tracker.record().operation_allocations.memory["cpu"]
    assert cpu.exact == [True, False, False]
    assert cpu.peak[0] - cpu.before[0] == pytest.approx(size, abs=20 * mib)
    # Not a new mark, but the snapshot saw it.
    assert cpu.peak[1] - cpu.before[1] >= 90 * mib
    assert cpu.after[0] - cpu.before[0] < 50 * mib


class Devices:
    """Allocators as a device would have them."""

    def __init__(self) -> None:
        self.now = self.mark = 0

    def read(self) -> dict[str, tuple[int, int]]:
        return {"cuda:0": (self.now, self.mark)}

    def use(self, nbytes: int) -> None:
        self.now += nbytes
        self.mark = max(self.mark, self.now)


def test_peaks_of_a_device(tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices()
    monkeypatch.setattr(sources_module, "allocated_and_highest", devices.read)
    tensors = tracker._recorder.tensors
    log = OperationLog(tensors, TrackerSettings(), tracker._recorder.operations.clock, pytest.fail)
    tracker._recorder.operations = log
    with tracker.track_operation("first"):
        with tracker.track_operation("inner"):
            devices.use(100)
        devices.use(-60)
    with tracker.track_operation("second"):
        devices.use(30)
    with tracker.track_operation("reaches the mark again"):
        devices.use(30)
    with tracker.track_operation("mark was reset inside"):
        devices.use(-50)
        devices.mark = devices.now
        devices.use(10)
        devices.use(-10)
    memory = tracker.record().operation_allocations.memory["cuda:0"]
    assert memory.before == [0, 0, 40, 70, 100]
    assert memory.after == [40, 100, 70, 100, 50]
    assert memory.peak == [100, 100, 70, 100, 100]
    assert memory.exact == [True, True, False, True, False]
    summary = tracker.record().operation_summary[0].devices["cuda:0"]
    assert (summary.total_delta, summary.max_peak, summary.measured) == (40, 100, 1)


class Clock:
    """A clock that only the program moves."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


def test_short_operations_have_figures_now_and_then(tmp_path: Path) -> None:
    # GIVEN operations that last, and between them many of a name that hardly do
    clock = Clock()
    tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)), clock=clock)
    tracker.start(thread=False)
    for _ in range(3):
        with tracker.track_operation("step"):
            for _ in range(100):
                with tracker.track_operation("short"):
                    clock.now += operations_module.EVERY_NS // 50
    # THEN all of the first have figures, of the others those of each so many ns
    record = tracker.record()
    tracker.stop()
    step, short = record.operation_summary
    assert (step.count, step.tensors_measured) == (3, 3)
    assert (short.count, short.tensors_measured) == (300, 6)
    # both sides or none
    columns = record.operation_allocations
    known = [n >= 0 for n in columns.tensors_before]
    assert sum(known) == 9
    assert [n >= 0 for n in columns.tensors_after] == known
    cpu = columns.memory["cpu"]
    assert [b >= 0 for b in cpu.before] == [b >= 0 for b in cpu.after] == known
    assert short.devices["cpu"].measured == 6


def test_a_snapshot_that_does_not_let_go_is_not_waited_for(
    tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "LOCK_WAIT_S", 0.001)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with tracker._recorder.tensors.lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    with tracker.track_operation("a"):
        pass
    release.set()
    thread.join()
    (a,) = tracker.record().operation_summary
    assert (a.count, a.tensors_measured) == (1, 0)


def test_where_the_largest_tensors_were_made(tracker: MemoryTracker) -> None:
    kept = [torch.empty(30_000_000)]
    with tracker.track_operation("step"):
        kept.append(torch.empty(20_000_000))
        with tracker.track_operation("forward"):
            kept.append(torch.empty(40_000_000))
    kept.append(torch.empty(10_000_000))
    tracker.snapshot()
    made = {t.nbytes // 4_000_000: t.operation for t in tracker.record().snapshots[-1].largest}
    assert {n: made[n] for n in (10, 20, 30, 40)} == {
        10: "", 20: "step", 30: "", 40: "step/forward"
    }  # fmt: skip


def test_where_it_cannot_be_known_it_is_not_said(
    tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations_module, "EVERY_NS", 1 << 62)
    with tracker.track_operation("a"):
        pass
    with tracker.track_operation("a"):
        kept = torch.empty(40_000_000)
        tracker.snapshot()
    assert tracker.record().snapshots[-1].largest[0].operation == ""
    del kept


def test_running_operations_are_in_snapshots_and_in_the_record(tracker: MemoryTracker) -> None:
    with tracker.track_operation("outer"), tracker.track_operation("inner"):
        tracker.snapshot()
        assert tracker.record().snapshots[-1].operations == ("outer", "outer/inner")
        assert tracker.record().operation_allocations.end_ns == [-1, -1]


def test_more_names_and_lanes_than_allowed(
    tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places_module, "MAX_NAMES", 5)
    monkeypatch.setattr(places_module, "MAX_LANES", 3)

    all_inside = threading.Barrier(9)

    def work(i: int) -> None:
        with tracker.track_operation(f"name {i}"):
            all_inside.wait()

    run_in_threads(*(functools.partial(work, i) for i in range(9)))
    record = tracker.record()
    assert len(record.operation_summary) == 6
    assert record.operation_summary[-1].name == places_module.OTHER
    assert sum(s.count for s in record.operation_summary) == 9
    assert len(record.metadata.lanes) == 3


def test_the_oldest_operations_that_have_ended_go_first(tmp_path: Path) -> None:
    tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path), max_operations=2))
    tracker.start(thread=False)
    with tracker.track_operation("running"):
        for i in range(5):
            with tracker.track_operation(str(i)):
                pass
        record = tracker.record()
    tracker.stop()
    assert paths(record) == ["running", "running/4"]


def test_no_operation_is_kept_alive(tracker: MemoryTracker) -> None:
    def operations() -> int:
        gc.collect()
        return sum(isinstance(o, Operation) for o in gc.get_objects())

    before = operations()  # of other tests' trackers
    for _ in range(10):
        with tracker.track_operation("a"):
            pass
    assert not tracker._recorder.operations.running()
    assert operations() == before + 10


def test_off_it_does_nothing(tmp_path: Path) -> None:
    tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    with tracker.track_operation("a"):
        pass
    tracker.checkpoint("x")
    tracker.scan()
    tracker.disable()
    with tracker.track_pytorch_ops():
        torch.ones(3).sum()
    tracker.stop()
    assert list(tmp_path.iterdir()) == []
    assert len(tracker.record().operation_allocations) == 0


def test_disabled_and_enabled_at_run_time(tracker: MemoryTracker) -> None:
    with tracker.track_operation("a"):
        tracker.disable()
        assert not tracker.enabled
    with tracker.track_operation("b"):
        tracker.checkpoint("lost")
        kept = torch.empty(1_000_000)
        gc.collect()
        tracker.enable()
    with tracker.track_operation("c"):
        tracker.checkpoint("kept")
    record = tracker.record()
    assert paths(record) == ["a", "c"]
    assert record.operation_allocations.end_ns[0] > 0
    assert [s.name for s in record.snapshots if s.name] == ["kept"]
    assert len(record.metadata.pauses) == 1
    assert record.metadata.pauses[0].end_ns > record.metadata.pauses[0].start_ns
    # What was made meanwhile is known.
    assert record.snapshots[-1].largest[0].nbytes >= 4_000_000
    del kept


def test_inside_compiled_code_it_neither_breaks_nor_records(tracker: MemoryTracker) -> None:
    @tracker.track_operation("inner")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.compile(backend="eager", fullgraph=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        with tracker.track_operation("in"):
            y = inner(x) + 1
        tracker.checkpoint("in")
        return y

    with tracker.track_operation("out"):
        assert f(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
    assert paths(tracker.record()) == ["out"]


def test_an_operation_that_was_open_at_a_fork_ends_in_the_child(tracker: MemoryTracker) -> None:
    # GIVEN a process forked while another thread, which the child lacks, held the log's lock
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with tracker._recorder.operations._lock:
            held.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    operation = tracker.track_operation("open")
    operation.__enter__()
    holder.start()
    held.wait(30)
    try:
        # WHEN the child leaves it
        process_hooks._free_locks()
        tracker.forked()
        child = threading.Thread(target=operation.__exit__, args=(None, None, None), daemon=True)
        child.start()
        child.join(10)
        # THEN it does not wait for the lock
        assert not child.is_alive()
    finally:
        release.set()
        holder.join()


def left(tracker: MemoryTracker) -> dict[str, list[tuple[int, tuple[int, ...], str]]]:
    """``by path of an operation, bytes, shape and maker of each tensor that it left alive``."""
    record = tracker.record()
    return {
        record.path(i): [(t.nbytes, t.shape, t.operation) for t in s.left]
        for i, s in enumerate(record.operation_summary)
    }


def test_what_an_operation_made_and_left_alive(tracker: MemoryTracker) -> None:
    before = torch.ones(5000)
    kept = []
    with tracker.track_operation("step"):
        with tracker.track_operation("forward"):
            kept.append(torch.ones(20, 30))
            gone = torch.ones(4000)
        del gone
        view = before[:10]
        kept.append(torch.ones(700))
        with tracker.track_operation("nothing"):
            pass
    assert left(tracker) == {
        "step": [(2800, (700,), "step"), (2400, (20, 30), "step/forward")],
        "step/forward": [(16000, (4000,), "step/forward"), (2400, (20, 30), "step/forward")],
        "step/nothing": [],
    }
    assert [s.left_bytes for s in tracker.record().operation_summary] == [5200, 18400, 0]
    del before, view, kept


def test_the_invocation_that_left_most_is_the_one_described(tracker: MemoryTracker) -> None:
    kept = []
    for size in (10, 300, 20):
        with tracker.track_operation("step"):
            kept.append(torch.ones(size))
    assert left(tracker) == {"step": [(1200, (300,), "step")]}
    # Memory whose address was another tensor's is new all the same.
    del kept[1]
    with tracker.track_operation("again"):
        kept.append(torch.ones(300))
    assert left(tracker)["again"] == [(1200, (300,), "again")]


def test_few_of_what_an_operation_left_are_described(tmp_path: Path) -> None:
    for largest, described in ((10, operations_module.MAX_LEFT), (1, 1), (0, 0)):
        tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path), largest=largest))
        tracker.start(thread=False)
        with tracker.track_operation("step"):
            kept = [torch.ones(100 + i) for i in range(20)]
        (step,) = tracker.record().operation_summary
        assert step.left_bytes == 4 * sum(map(len, kept))
        assert [t.shape for t in step.left] == [(119 - i,) for i in range(described)]
        tracker.stop()
        del kept


def test_what_cannot_be_described_leaves_the_operation_whole(
    tracker: MemoryTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(OperationLog, "described", fails)
    with tracker.track_operation("step"):
        kept = torch.ones(10)
    record = tracker.record()
    assert (record.operation_summary[0].count, record.operation_summary[0].left) == (1, ())
    assert record.operation_allocations.end_ns[0] > 0
    assert record.metadata.problems == ["the tracker failed: RuntimeError: no room"]
    del kept
