"""Record of a tracker: in memory, and in its file."""

from __future__ import annotations

import bisect
import dataclasses
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from memprof.profiler import model
from memprof.profiler.file.profile_file import encode_profile
from memprof.profiler.model import MemorySnapshot, SnapshotKind, TrackedDevice
from memprof.profiler.support.host import installed_version
from memprof.profiler.support.process_hooks import ForkSafeLock
from memprof.profiler.support.text import visible

from . import naming, record_file
from .operations import OperationLog
from .operators import OperatorTable
from .settings import TrackerSettings, toml_value
from .sources import device_memory
from .tensors import LiveTensors

log = logging.getLogger("memprof")

MAX_PROBLEMS = 100


class TrackerRecorder:
    """The record of one tracker, and whatever adds to it; ``lock`` is held while that changes."""

    def __init__(self, settings: TrackerSettings, clock: Callable[[], int]) -> None:
        self.settings = settings
        self.lock = ForkSafeLock()
        self.recording = False
        self.path: Path | None = None
        self.tensors = LiveTensors(settings.largest)
        self.operations = OperationLog(self.tensors, settings, clock, self.problem)
        self.operators = OperatorTable()
        self._clock = clock
        self._file: record_file.RecordFile | None = None
        self._write_again_ns = 0
        self._snapshots: list[model.MemorySnapshot] = []
        self._taken = 0
        self._metadata = model.TrackerMetadata()
        self._problems: dict[str, None] = {}

    # --- life -----------------------------------------------------------------------------

    def begin(self) -> None:
        now = self._clock()
        self._metadata = model.TrackerMetadata(
            perf_origin_ns=time.time_ns() - now,
            start_ns=now,
            host=platform.node(),
            pid=os.getpid(),
            command=tuple(sys.argv),
            torch=str(torch.__version__),
            memprof=installed_version(),
            python=platform.python_version(),
            interval_ns=round(self.settings.interval * 1e9),
            settings={k: toml_value(v) for k, v in dataclasses.asdict(self.settings).items()},
        )
        self.recording = True
        self._open()
        self._look()

    def _open(self) -> None:
        folder = Path(self.settings.output_dir).absolute()
        self.path = record_file.path_in(folder)
        try:
            self._file = record_file.create(self.path)
            self.path = self._file.path
        except OSError as e:
            self.problem(
                f"no file can be written in {folder}: {e.strerror or e}. The tracker keeps its "
                "record in memory and tries again at the end; give another output_dir"
            )

    def _look(self) -> None:
        self.tensors.watch()
        self.tensors.scan()
        self.operations.enabled = True

    def pause(self) -> None:
        """Take nothing in until ``resume``; operations that run are still ended."""
        now = self._clock()
        self._metadata.pauses.append(model.Span(now, now))
        self.operations.enabled = False
        self.tensors.unwatch()

    def resume(self) -> None:
        last = self._metadata.pauses[-1]
        self._metadata.pauses[-1] = model.Span(last.start_ns, self._clock())
        self._look()

    def let_go(self) -> None:
        """Take nothing more in; operations that run are still ended."""
        self.recording = self.operations.enabled = False
        self.tensors.unwatch()

    def finish(self, state: model.RunState, reason: str) -> None:
        self._metadata.state, self._metadata.reason = state, reason
        self.guard(self.write_file)

    def write_file(self) -> None:
        """Write the file, whole; where that is not possible it stays as far as it has come."""
        data = encode_profile(self.profile())
        assert self.path is not None
        try:
            if self._file is None or not self._file.write(data, sync=True):
                self.path = record_file.write_record(self.path, data)
        except OSError as e:
            why = f"cannot write the tracker's record {self.path}: {e.strerror or e}"
            if self._file is not None:
                why += ". It has what was written before"
            log.error("%s", visible(f"{why}."))
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def forked(self) -> None:
        """In a forked child: let go of everything that belongs to the parent."""
        self.tensors.lock = threading.RLock()
        self.let_go()
        self._close()

    def guard(self, action: Callable[..., object], *args: object) -> None:
        """``action(*args)``, with failures noted: they must not take the user's job down."""
        try:
            action(*args)
        except Exception as e:
            log.debug("the tracker failed", exc_info=True)
            self.problem(f"the tracker failed: {type(e).__name__}: {e}")

    def problem(self, text: str) -> None:
        """Note in the record, and log, what went wrong; each text once."""
        if text not in self._problems and len(self._problems) < MAX_PROBLEMS:
            self._problems[text] = None
            log.warning("Memory tracker: %s.", visible(text.rstrip(".")))

    # --- adding to it ---------------------------------------------------------------------

    def snapshot(self, kind: model.SnapshotKind, name: str = "") -> None:
        """Take a snapshot, and write the file if that is due."""
        running = self.operations.running()
        snapshot = take_snapshot(self.operations, kind, name)
        for operation in running:
            for device, memory in snapshot.devices.items():
                if memory.highest_bytes is not None:
                    operation.saw(device, memory.highest_bytes)
        with self.lock:
            if not self.recording:
                return
            self._taken += 1
            # A checkpoint can overtake a periodic snapshot that began before it.
            bisect.insort(self._snapshots, snapshot, key=lambda s: s.time_ns)
            self._snapshots = thinned(self._snapshots, self.settings.max_snapshots)
        if kind is not SnapshotKind.END:  # The whole file comes next.
            self._write_if_due()

    def _write_if_due(self) -> None:
        """Write what is known so far: Note [How often the file is written]."""
        begin = time.perf_counter_ns()
        if self._file is None or begin < self._write_again_ns:
            return
        data = encode_profile(model.Profile().with_tracker(self.record({})))
        try:
            with self.lock:
                if self.recording and self._file is not None:
                    self._file.write(data)
        except OSError as e:
            self.problem(
                f"cannot write {self.path}: {e.strerror or e}. The tracker keeps its record in "
                "memory and goes on trying"
            )
        now = time.perf_counter_ns()
        self._write_again_ns = now + record_file.REST * (now - begin)

    # --- asking ---------------------------------------------------------------------------

    def _current_metadata(self, call_threads: Mapping[int, int]) -> model.TrackerMetadata:
        known = self.operations.lanes
        lanes = [
            dataclasses.replace(lane, call_thread=call_threads.get(known.threads.get(i, -1)))
            for i, lane in enumerate(list(known.all))
        ]
        return dataclasses.replace(
            self._metadata,
            end_ns=self._clock(),
            lanes=lanes,
            pauses=list(self._metadata.pauses),
            snapshots_taken=self._taken,
            operations_seen=self.operations.seen,
            operations_dropped=self.operations.dropped,
            problems=list(self._problems),
        )

    def record(self, call_threads: Mapping[int, int]) -> model.TrackerRecord:
        with self.lock:
            self.operations.thin()
            # In this order: operations begin meanwhile, on new lanes and of new names.
            operations = self.operations.columns()
            summaries = self.operations.summaries()
            operators = self.operators.record()
            return model.TrackerRecord(
                self._current_metadata(call_threads),
                list(self._snapshots),
                operations,
                summaries,
                operators,
            )

    def profile(self) -> model.Profile:
        profile = model.Profile()
        threads: dict[int, int] = {}
        try:
            if (found := naming.compiled()) is not None:
                profile, threads = found
        except Exception as e:
            self.problem(f"what was compiled is left out: {type(e).__name__}: {e}")
        return profile.with_tracker(self.record(threads))


def thinned(snapshots: list[MemorySnapshot], limit: int) -> list[MemorySnapshot]:
    """The snapshots (in order of time) if there are at most ``limit``; else without every second
    periodic one of the older half, and where that is not enough without the oldest."""
    if len(snapshots) <= limit:
        return snapshots
    half = len(snapshots) // 2
    old = enumerate(snapshots[:half])
    kept = [s for i, s in old if i % 2 == 0 or s.kind is not SnapshotKind.PERIODIC]
    return [*kept, *snapshots[half:]][-limit:]


def take_snapshot(operations: OperationLog, kind: SnapshotKind, name: str) -> MemorySnapshot:
    """Readings of what ``operations`` look at now, and those that run."""
    at, live = operations.clock(), operations.tensors
    running = [operations.path(o.summary) for o in operations.running()]
    complete = live.look()
    live.recheck()
    largest = [operations.described(s) for s in live.largest()]
    resident = operations.process.resident()
    devices = _devices(operations, resident)
    nbytes, tensors = live.sums()
    return MemorySnapshot(
        time_ns=at,
        kind=kind,
        name=name,
        total_bytes=nbytes,
        total_tensors=tensors,
        resident_bytes=resident[0] if resident is not None else None,
        devices=devices,
        largest=tuple(largest),
        operations=tuple(dict.fromkeys(running)),
        complete=complete,
    )


def _devices(
    operations: OperationLog, resident: tuple[int, int] | None
) -> dict[str, TrackedDevice]:
    now, highest = resident if resident is not None else (None, None)
    live = operations.tensors
    nbytes, tensors = dict(live.nbytes), dict(live.tensors)
    found = {
        "cpu": TrackedDevice(
            reserved_bytes=now,
            peak_bytes=highest,
            total_bytes=operations.process.total,
            highest_bytes=now,
        ),
        **device_memory(),
    }
    for name, count in tensors.items():
        memory = found.get(name, TrackedDevice())
        found[name] = dataclasses.replace(memory, tensor_bytes=nbytes.get(name, 0), tensors=count)
    return {name: found[name] for name in ["cpu", *sorted(found.keys() - {"cpu"})]}
