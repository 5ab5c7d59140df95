"""What the run-time tracker costs: a snapshot, an operation, and a training step beside the same
untracked.

* A snapshot with 100 000 live tensors and 1 000 000 other Python objects: how long it takes, and
  how long it holds the GIL at a stretch, measured in two ways. From outside: a second thread wakes
  every 0.2 ms, and the longest that it overslept while snapshots were taken stands beside the same
  without. ``sys.setswitchinterval`` is 10 s meanwhile, so that only what the tracker does gives
  the GIL away. From inside, for machines that are busy: the most CPU time that the tracker's
  thread used from one of its pauses to the next.
  Collections of Python's garbage collector hold the GIL with the tracker or without; the longest
  stands beside.
* A training loop with steps of 10 ms or more, snapshots every second, twice: alone, and with four
  tracked operations in each step. Blocks of two seconds with the tracker off and on in turns; each
  block with it on is compared with the mean of the two around it, which takes out drift, and as a
  control each block with it off is compared in the same way with its own neighbours of that kind.
  Of the ratios the median, and the interval that holds it in 95 % of resamplings. Medians of a
  block's steps do not feel the few steps in which a snapshot was taken, means feel them and
  whatever else the machine did. CPU time is the whole process's, the tracker's thread included.

    python benchmarks/tracker_cost.py [--quick] [--save]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import platform
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lines import results, write_json

from memprof.profiler.model import SnapshotKind
from memprof.profiler.tracker.ration import Pace
from memprof.profiler.tracker.settings import TrackerSettings
from memprof.profiler.tracker.tracker import MemoryTracker

RESULTS = results("tracker_cost.json")


class Ticker(threading.Thread):
    """Wakes every 0.2 ms and notes the longest it overslept, in ns."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0
        self.ticks = 0
        self.running = True

    def run(self) -> None:
        clock = time.perf_counter_ns
        while self.running:
            before = clock()
            time.sleep(0.0002)
            late = clock() - before - 200_000
            self.longest = max(self.longest, late)
            self.ticks += 1


class Collections:
    """The longest collection of Python's garbage collector, ns."""

    def __init__(self) -> None:
        self.longest = 0
        self._began = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        now = time.perf_counter_ns()
        if phase == "start":
            self._began = now
        else:
            self.longest = max(self.longest, now - self._began)


def watched(action: Any, seconds: float) -> tuple[float, int, float]:
    """While ``action`` runs again and again: the longest oversleep in ms, how often it ran, and
    the longest collection in ms."""
    switching = sys.getswitchinterval()
    sys.setswitchinterval(10)
    collections = Collections()
    gc.callbacks.append(collections)
    ticker = Ticker()
    ticker.start()
    end = time.perf_counter() + seconds
    count = 0
    try:
        while time.perf_counter() < end:
            action()
            count += 1
            time.sleep(0.002)
    finally:
        ticker.running = False
        sys.setswitchinterval(switching)
        ticker.join()
        gc.callbacks.remove(collections)
    return ticker.longest / 1e6, count, collections.longest / 1e6


def cpu_stretch(snapshot: Callable[[], None], count: int = 30) -> float:
    """The most CPU time from one pause of a snapshot to the next, ms."""
    longest = 0
    last = 0
    rest = Pace.rest

    def noted(self: Pace) -> None:
        nonlocal longest, last
        longest = max(longest, time.thread_time_ns() - last)
        rest(self)
        last = time.thread_time_ns()

    Pace.rest = noted  # type: ignore[method-assign]
    try:
        for _ in range(count):
            last = time.thread_time_ns()
            snapshot()
            longest = max(longest, time.thread_time_ns() - last)
    finally:
        Pace.rest = rest  # type: ignore[method-assign]
    return longest / 1e6


def snapshot_cost(folder: str, seconds: float) -> dict[str, float]:
    """A snapshot in a process with many tensors and objects."""
    objects = [{"a": [i]} for i in range(500_000)]
    tensors = [torch.empty(16 + i % 64) for i in range(100_000)]
    gc.collect()
    tracker = MemoryTracker(TrackerSettings(output_dir=folder, max_snapshots=100))
    begin = time.perf_counter()
    tracker.start(thread=False)
    started = time.perf_counter() - begin
    churn: deque[list[torch.Tensor]] = deque(maxlen=20)

    def snapshot() -> None:
        # Something new every time, and something that goes, as a real program has.
        churn.append([torch.empty(8) for _ in range(100)])
        tracker.snapshot(SnapshotKind.PERIODIC)

    # A collection of a heap of this size holds the GIL for half a second, tracker or not: the
    # old objects stay, and the collector does not look at them.
    gc.freeze()
    took = []
    for _ in range(30):
        snapshot()
        took.append(tracker.record().snapshots[-1].took_ns / 1e6)
    inside = cpu_stretch(snapshot)
    idle, _, _ = watched(lambda: None, seconds)
    stretch, count, collection = watched(snapshot, seconds)
    again, _, _ = watched(lambda: None, seconds)
    gc.unfreeze()
    before = time.perf_counter()
    everything = len(gc.get_objects())
    full = time.perf_counter() - before
    record = tracker.record()
    assert record.snapshots[-1].total_tensors >= 100_000
    # A change that concerns all of them: half of the tensors die at once.
    del tensors[::2]
    tracker.snapshot(SnapshotKind.PERIODIC)
    deaths = tracker.record().snapshots[-1].took_ns / 1e6
    tracker.stop()
    del objects
    return {
        "tensors": record.snapshots[-1].total_tensors,
        "python_objects": everything,
        "snapshot_median_ms": statistics.median(took),
        "snapshot_longest_ms": max(took),
        "snapshot_after_50000_deaths_ms": deaths,
        "snapshots_watched": count,
        "gil_stretch_ms": stretch,
        "longest_collection_meanwhile_ms": collection,
        "gil_stretch_cpu_ms": inside,
        "gil_stretch_without_snapshots_ms": max(idle, again),
        "start_with_full_scan_ms": started * 1e3,
        "gc_get_objects_ms": full * 1e3,
    }


Around = Callable[[str], contextlib.AbstractContextManager[object]]


def training_step(around: Around) -> Callable[[], None]:
    """A step of 40 ms or so, one thread, with ``around`` around its three parts and all of it."""
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(256, 512)

    def step() -> None:
        with around("step"):
            optimizer.zero_grad()
            with around("forward"):
                loss = model(x).square().mean()
            with around("backward"):
                loss.backward()
            with around("optimizer"):
                optimizer.step()

    return step


def training_ratio(
    folder: str, blocks: int, block_s: float, operations: bool
) -> dict[str, float | list[float]]:
    """A training loop with the tracker off and on in turns.

    Args:
        blocks: with the tracker on; one more is without.
        block_s: length of each, s.
        operations: whether four operations are tracked in each step.
    """
    tracker = MemoryTracker(TrackerSettings(output_dir=folder, interval=1.0))
    step = training_step(tracker.track_operation if operations else contextlib.nullcontext)

    def block() -> dict[str, float]:
        for _ in range(3):
            step()  # the caches after a look through all objects
        times = []
        cpu = time.process_time()
        end = time.perf_counter() + block_s
        while time.perf_counter() < end:
            before = time.perf_counter()
            step()
            times.append((time.perf_counter() - before) * 1e3)
        return {
            "medians": statistics.median(times),
            "means": statistics.fmean(times),
            "cpu": (time.process_time() - cpu) * 1e3 / len(times),
        }

    block()
    tracker.start()
    tracker.disable()
    off, on = [block()], []
    for _ in range(blocks):
        tracker.enable()
        on.append(block())
        tracker.disable()
        off.append(block())
    tracker.stop()
    found: dict[str, float | list[float]] = {
        "step_ms": statistics.median(b["medians"] for b in off),
        "snapshots": tracker.record().metadata.snapshots_taken,
    }
    for kind in ("medians", "means", "cpu"):
        a, b = [f[kind] for f in off], [f[kind] for f in on]
        ratios = [2 * b[i] / (a[i] + a[i + 1]) for i in range(len(b))]
        control = [2 * a[i] / (a[i - 1] + a[i + 1]) for i in range(1, len(a) - 1)]
        for name, values in (("on_over_off", ratios), ("control", control)):
            found[f"{name}_of_{kind}"] = statistics.median(values)
            found[f"{name}_of_{kind}_95"] = interval(values)
    return found


def interval(values: list[float]) -> list[float]:
    """Where the median of ``values`` lies in 95 % of resamplings."""
    dice = random.Random(0)
    medians = sorted(statistics.median(dice.choices(values, k=len(values))) for _ in range(2000))
    return [medians[50], medians[-51]]


def operation_cost(folder: str, steps: int) -> dict[str, float]:
    """One ``with tracker.track_operation(...)`` around nothing, µs: of CPU time in a loop of
    them, and by the clock in ``steps`` training steps, beside ``record_function``."""
    tracker = MemoryTracker(TrackerSettings(output_dir=folder))

    def once(n: int = 20_000) -> float:
        operation = tracker.track_operation("nothing")
        before = time.thread_time()
        for _ in range(n):
            with operation:
                pass
        return (time.thread_time() - before) / n * 1e6

    off = once()
    tracker.start()
    once()
    on = min(once() for _ in range(3))
    kinds: dict[str, Around] = {
        "operation_between_kernels_us": tracker.track_operation,
        "record_function_between_kernels_us": torch.profiler.record_function,
    }
    cold = {name: between_kernels(around, steps) for name, around in kinds.items()}
    tracker.stop()
    return {"operation_on_cpu_us": on, "operation_off_cpu_us": off, **cold}


def between_kernels(around: Around, steps: int) -> float:
    """One ``with around(...)`` around nothing, µs, in between the parts of a training step, whose
    kernels leave nothing of it in the processor's caches."""
    took: list[int] = []

    @contextlib.contextmanager
    def after(_: str) -> Iterator[None]:
        yield
        before = time.perf_counter_ns()
        with around("nothing"):
            pass
        took.append(time.perf_counter_ns() - before)

    step = training_step(after)
    for _ in range(steps):
        step()
    return statistics.median(took[len(took) // 10 :]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--save", action="store_true", help=f"write out/results/{RESULTS.name}")
    arguments = parser.parse_args()
    quick = arguments.quick
    torch.set_num_threads(1)
    found: dict[str, Any] = {
        "machine": platform.platform(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    print(json.dumps(found), flush=True)
    blocks = 5 if quick else 60
    with tempfile.TemporaryDirectory() as folder:
        parts: dict[str, Callable[[], Any]] = {
            "snapshot": lambda: snapshot_cost(folder, 2 if quick else 10),
            "operation": lambda: operation_cost(folder, 20 if quick else 200),
            "training": lambda: training_ratio(folder, blocks, 2, operations=False),
            "training_with_operations": lambda: training_ratio(folder, blocks, 2, operations=True),
        }
        for name, measure in parts.items():
            found[name] = measure()
            print(json.dumps({name: found[name]}, indent=1), flush=True)
    if arguments.save:
        write_json(found, RESULTS)


if __name__ == "__main__":
    main()
