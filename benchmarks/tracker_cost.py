"""What the run-time tracker costs: a snapshot, an operation, and a training step beside the same
untracked.

* A snapshot with 100 000 live tensors and 1 000 000 other Python objects: how long it takes, and
  how long it holds the GIL at a stretch, measured in two ways. From outside: a second thread wakes
  every 0.2 ms, and the longest that it overslept while snapshots were taken stands beside the same
  without. ``sys.setswitchinterval`` is 10 s meanwhile, so that only what the tracker does gives
  the GIL away. From inside, for machines that are busy: the most CPU time that the tracker's
  thread used from one of its pauses to the next.
* A training loop with steps of 10 ms or more, snapshots every second: blocks of steps with the
  tracker on and off in turns; the ratio of median step times in each round, the median over
  rounds, and the same for a control block that is off too. CPU time is the whole process's, the
  tracker's thread included; it suffers less than the clock from other work on the machine. The
  tracker's share of it (its thread, and the edges of operations at the price measured apart)
  hardly depends on that at all.

    python benchmarks/tracker_cost.py [--quick] [--save]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from memprof.profiler.model import SnapshotKind
from memprof.profiler.tracker.pace import Pace
from memprof.profiler.tracker.settings import TrackerSettings
from memprof.profiler.tracker.tracker import MemoryTracker

RESULTS = Path(__file__).parent / "results" / "tracker_cost.json"


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


def watched(action: Any, seconds: float) -> tuple[float, int]:
    """The longest oversleep in ms while ``action`` runs again and again, and its count."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)
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
        sys.setswitchinterval(interval)
        ticker.join()
    return ticker.longest / 1e6, count


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
    churn: list[Any] = []

    def snapshot() -> None:
        # Something new every time, as a real program has.
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
    idle, _ = watched(lambda: None, seconds)
    stretch, count = watched(snapshot, seconds)
    again, _ = watched(lambda: None, seconds)
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
        "gil_stretch_cpu_ms": inside,
        "gil_stretch_without_snapshots_ms": max(idle, again),
        "start_with_full_scan_ms": started * 1e3,
        "gc_get_objects_ms": full * 1e3,
    }


def thread_time(tracker: MemoryTracker) -> float:
    """CPU time of the tracker's thread so far, s."""
    thread = tracker._thread
    assert thread is not None
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def training_ratio(
    folder: str, rounds: int, block_s: float, operation_us: float
) -> dict[str, float]:
    """A training loop with the tracker on and off in turns."""
    torch.manual_seed(0)
    layers = [m for _ in range(8) for m in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(256, 512)
    tracker = MemoryTracker(TrackerSettings(output_dir=folder, interval=1.0))

    def step() -> None:
        with tracker.track_operation("step"):
            optimizer.zero_grad()
            with tracker.track_operation("forward"):
                loss = model(x).square().mean()
            with tracker.track_operation("backward"):
                loss.backward()
            with tracker.track_operation("optimizer"):
                optimizer.step()

    def block() -> tuple[list[float], float]:
        times = []
        cpu = time.process_time()
        end = time.perf_counter() + block_s
        while time.perf_counter() < end:
            before = time.perf_counter()
            step()
            times.append((time.perf_counter() - before) * 1e3)
        return times, (time.process_time() - cpu) / len(times)

    block()
    tracker.start()
    tracker.disable()
    kinds = ("off", "on", "control")
    medians: dict[str, list[float]] = {k: [] for k in kinds}
    means: dict[str, list[float]] = {k: [] for k in kinds}
    cpus: dict[str, list[float]] = {k: [] for k in kinds}
    on_cpu = thread_cpu = 0.0
    seen = 0
    for i in range(rounds):
        for k in kinds[i % 3 :] + kinds[: i % 3]:
            if k == "on":
                tracker.enable()
            began = (
                time.process_time(),
                thread_time(tracker),
                tracker.record().metadata.operations_seen,
            )
            times, cpu = block()
            if k == "on":
                on_cpu += time.process_time() - began[0]
                thread_cpu += thread_time(tracker) - began[1]
                seen += tracker.record().metadata.operations_seen - began[2]
            tracker.disable()
            cpus[k].append(cpu)
            medians[k].append(statistics.median(times))
            means[k].append(statistics.fmean(times))
    tracker.stop()
    taken = tracker.record().metadata.snapshots_taken

    def share() -> float:
        """CPU time of the tracker's thread and of operations, as a part of the process's while
        it was on."""
        edges = seen * operation_us / 1e6
        return (thread_cpu + edges) / on_cpu

    def ratio(figures: dict[str, list[float]], k: str) -> float:
        return statistics.median(a / b for a, b in zip(figures[k], figures["off"], strict=True))

    return {
        "step_ms": statistics.median(medians["off"]),
        "snapshots": taken,
        "on_over_off": ratio(medians, "on"),
        "control_over_off": ratio(medians, "control"),
        "on_over_off_of_means": ratio(means, "on"),
        "control_over_off_of_means": ratio(means, "control"),
        "tracker_share_of_cpu_time": share(),
        "on_over_off_of_cpu_time": ratio(cpus, "on"),
        "control_over_off_of_cpu_time": ratio(cpus, "control"),
    }


def operation_cost(folder: str) -> dict[str, float]:
    """One ``with tracker.track_operation(...)`` around nothing, µs."""
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
    tracker.stop()
    return {"operation_on_cpu_us": on, "operation_off_cpu_us": off}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--save", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    quick = arguments.quick
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        operation = operation_cost(folder)
        each = operation["operation_on_cpu_us"]
        found = {
            "machine": platform.platform(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "snapshot": snapshot_cost(folder, 2 if quick else 10),
            "operation": operation,
            "training": training_ratio(folder, 3 if quick else 12, 2 if quick else 5, each),
        }
    print(json.dumps(found, indent=1))
    if arguments.save:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
