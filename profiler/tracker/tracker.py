"""The tracker: a thread that takes snapshots, what they are put into, and how it ends."""

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
from importlib import metadata
from pathlib import Path

import torch

from memprof.profiler._text import visible
from memprof.profiler.errors import ProfileError
from memprof.profiler.file import encode_profile
from memprof.profiler.model import (
    MemorySnapshot,
    Profile,
    RunState,
    SnapshotKind,
    Span,
    TrackerMetadata,
    TrackerRecord,
)

from . import files, naming, out_of_memory
from .journal import Entry, Header, Journal
from .operations import OperationLog
from .operators import OperatorTable, OperatorWindow
from .pace import Pace
from .recovery import recover
from .rows import as_columns
from .settings import TrackerSettings
from .snapshots import take_snapshot
from .sources import Sources, described
from .tensors import LiveTensors
from .thinning import thin_snapshots
from .tracked_operation import TrackedOperation
from .writer import this_process

log = logging.getLogger("memprof")

MAX_PROBLEMS = 100
_ROWS = 500
"""Operations in one line of the journal: its JSON is written in one piece."""
_METADATA_EVERY_NS = 60_000_000_000
_OUT_OF_MEMORY_EVERY_NS = 1_000_000_000
"""A program that tries smaller and smaller batches fails many times in a row."""


class MemoryTracker:
    """Tracks the memory of this process while it runs; see ``docs/tracker.md``.

    Made by ``track``. Before ``start`` and after ``stop`` it does nothing;
    its methods can be called all the same, so instrumented code need not ask.
    """

    def __init__(
        self,
        settings: TrackerSettings | None = None,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._on_start: Callable[[MemoryTracker], None] | None = None
        """Called when it starts, from the thread that starts it."""
        self._on_end: Callable[[], None] | None = None
        """Called when its file is written."""
        self._ending = False
        """Whether it is just ending: its file is not written yet."""
        self._on_use: Callable[[], None] | None = None
        """Called, once, when it is used for the first time without having been started."""
        self._successor: MemoryTracker | None = None
        """The tracker after this one, which takes operations that were named through this one."""
        self.path: Path | None = None
        """The file that is written at the end; None where the tracker has not started."""
        self._clock = clock
        self._state: RunState | None = None
        self._paused = False
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._journal: Journal | None = None
        self._snapshots: list[MemorySnapshot] = []
        self._taken = 0
        self._metadata = TrackerMetadata()
        self._metadata_at = self._lanes_written = 0
        self._operators = OperatorTable()
        self._operators_written = 0
        self._problems: dict[str, None] = {}
        self._cost_ns = 0
        self._compiled = False
        self._call_threads: dict[int, int] = {}
        self._out_of_memory_next = 0
        self._configure(settings or TrackerSettings())

    def _configure(self, settings: TrackerSettings) -> None:
        """Exchange the settings of a tracker that has not started.

        Raises:
            RuntimeError: it has.
        """
        if self._state is not None:
            raise RuntimeError("a tracker that has started keeps its settings")
        self.settings = settings
        self._sources = Sources(LiveTensors(settings.largest), scanned=settings.scan_at_start)
        self._log = OperationLog(
            self._sources,
            settings.max_operations,
            settings.operation_share,
            self._clock,
            self._problem,
        )

    # --- life -----------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether it was started and has not stopped."""
        return self._state is RunState.RUNNING

    @property
    def _fresh(self) -> bool:
        """Whether it was never started."""
        return self._state is None

    @property
    def enabled(self) -> bool:
        """Whether it records now; set by ``enable`` and ``disable``."""
        return self.started and not self._paused

    def start(self, *, parent_pid: int | None = None, thread: bool = True) -> None:
        """Begin to track; never raises. What fails is logged, and the tracker stays off.

        Args:
            parent_pid: of the tracked process that this one was forked from.
            thread: False takes no periodic snapshots; for tests, which call ``snapshot``.
        """
        try:
            self._start(parent_pid, thread)
        except Exception as e:
            why = f"{type(e).__name__}: {e}"
            log.error("The memory tracker cannot start, and stays off: %s", visible(why))
            log.debug("why", exc_info=True)
            self._state = RunState.STOPPED
            self._log.enabled = False
            self._sources.tensors.unwatch()

    def _start(self, parent_pid: int | None, thread: bool) -> None:
        with self._lock:
            if self._state is not None:
                return
            self._state = RunState.RUNNING
            now = self._clock()
            self._metadata = TrackerMetadata(
                perf_origin_ns=time.time_ns() - now,
                start_ns=now,
                host=platform.node(),
                pid=os.getpid(),
                parent_pid=parent_pid,
                command=tuple(sys.argv),
                torch=str(torch.__version__),
                memprof=_own_version(),
                python=platform.python_version(),
                interval_ns=round(self.settings.interval * 1e9),
                settings=self.settings.as_text(),
                lanes=self._log.lanes.all,
            )
            if self.settings.cpu_allocator:
                self._sources.no_cpu_count = why = self._sources.cpu_count.start()
                if why:
                    self._problem(f"cpu_allocator: {why}")
            self._open()
            self._begin_looking()
            self._log.enabled = True
        if self._on_start is not None:
            self._on_start(self)
        self.snapshot(SnapshotKind.START)
        if thread:
            self._thread = threading.Thread(target=self._run, name="memprof-tracker", daemon=True)
            self._thread.start()

    def _open(self) -> None:
        folder = Path(self.settings.output_dir).absolute()
        header = Header(
            memprof=self._metadata.memprof,
            max_snapshots=self.settings.max_snapshots,
            max_operations=self.settings.max_operations,
            writer=this_process(),
        )
        self._guard(lambda: recover(folder))
        try:
            self.path, self._journal = files.open_journal(folder, header, self._everything)
            self._write(Entry(metadata=self._current_metadata()))
        except OSError as e:
            self.path = next(files.names(folder))
            self._problem(
                f"no file can be written in {folder}: {e.strerror or e}. The tracker keeps its "
                "record in memory and tries again at the end; give another output_dir"
            )

    def _begin_looking(self) -> None:
        self._sources.tensors.watch()
        if self.settings.scan_at_start:
            self._sources.tensors.scan()

    def enable(self) -> None:
        """Record again after ``disable``; start if the tracker was made disabled."""
        with self._lock:
            if self._state is None:
                self._configure(dataclasses.replace(self.settings, enabled=True))
                self.start()
            elif self.started and self._paused:
                self._paused = False
                last = self._metadata.pauses[-1]
                self._metadata.pauses[-1] = Span(last.start_ns, self._clock())
                self._log.enabled = True
                self._begin_looking()
                self._wake.set()

    def disable(self) -> None:
        """Record nothing until ``enable``; operations that run are still ended."""
        with self._lock:
            if self.started and not self._paused:
                self._paused = True
                now = self._clock()
                self._metadata.pauses.append(Span(now, now))
                self._log.enabled = False
                self._sources.tensors.unwatch()

    def stop(self) -> None:
        """Take a last snapshot and write the file. Later calls do nothing."""
        self._finish(RunState.STOPPED, "stop_tracking()")

    def _finish(self, state: RunState, reason: str) -> None:
        """End in this state; never raises. What cannot be written is logged."""
        with self._lock:
            if not self.started or self._ending:
                return
            self._ending = True
        try:
            self._end(state, reason)
        finally:
            self._ending = False
        if self._on_end is not None:
            self._on_end()

    def _end(self, state: RunState, reason: str) -> None:
        with self._lock:
            if not self._paused:
                self._guard(lambda: self.snapshot(SnapshotKind.END))
            self._state = state
            self._log.enabled = False
            out_of_memory.listen(None)
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            # It may wait for a lock that this thread holds, if a signal brought us here.
            thread.join(timeout=2)
        self._guard(self._sources.tensors.unwatch)
        self._guard(self._sources.cpu_count.stop)
        self._metadata.state, self._metadata.reason = state, reason
        self._guard(self._write_file)
        self._sources.process.close()

    def _write_file(self) -> None:
        profile = self.profile()
        assert self.path is not None
        try:
            # Usually its own name, which the journal has kept free of other trackers'.
            self.path = files.write_record(self.path, encode_profile(profile))
        except ProfileError as e:
            where = ""
            if self._journal is not None:
                self._write(Entry(metadata=self._current_metadata()))
                where = f" What was recorded is in {self._journal.path}."
                self._journal.close()
            log.error("%s", visible(f"{e}.{where}"))
            return
        if self._journal is not None:
            self._journal.remove()

    def _forked(self) -> None:
        """In a forked child: let go of everything that belongs to the parent."""
        self._state = RunState.STOPPED
        self._log.forked()
        self._lock = threading.RLock()
        self._sources.tensors.lock = threading.RLock()
        self._sources.tensors.unwatch()
        self._thread = None
        if self._journal is not None:
            self._journal.close()
            self._journal = None
        self._sources.process.close()

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        self._guard(self._take_snapshots)

    def _take_snapshots(self) -> None:
        interval = self._metadata.interval_ns
        due = self._clock() + interval
        while self.started:
            self._wake.wait(max(due - self._clock(), 0) / 1e9)
            self._wake.clear()
            if self._clock() < due:
                continue
            if self.enabled:
                self._guard(lambda: self.snapshot(SnapshotKind.PERIODIC))
            # What is late is not made up for: no bursts after the process was stopped.
            due += interval * max(1, -(-(self._clock() - due) // interval))

    def _guard(self, action: Callable[[], object]) -> None:
        """``action``, with failures noted: the tracker must not take the user's job down."""
        try:
            action()
        except Exception as e:
            log.debug("the tracker failed", exc_info=True)
            self._problem(f"the tracker failed: {type(e).__name__}: {e}")

    def _problem(self, text: str) -> None:
        """Note in the record, and log, what went wrong; each text once."""
        if text not in self._problems and len(self._problems) < MAX_PROBLEMS:
            self._problems[text] = None
            log.warning("Memory tracker: %s.", visible(text.rstrip(".")))

    # --- recording ------------------------------------------------------------------------

    def snapshot(self, kind: SnapshotKind = SnapshotKind.PERIODIC, name: str = "") -> None:
        """Take a snapshot now, keep it and hand it to the journal."""
        cpu = time.thread_time_ns()
        out_of_memory.listen(self._out_of_memory)
        pace = Pace() if kind is SnapshotKind.PERIODIC else None
        running = self._log.running()
        snapshot = take_snapshot(
            self._sources,
            kind,
            name,
            operation=self._log.made_in(),
            running=dict.fromkeys(self._log.path(o.summary) for o in running),
            path=self._log.path,
            report=self._problem,
            pause=pace,
            clock=self._clock,
        )
        if pace is not None:
            pace.rest()
        for operation in running:
            for device, memory in snapshot.devices.items():
                if memory.highest_bytes is not None:
                    operation.saw(device, memory.highest_bytes)
        now = snapshot.time_ns
        with self._lock:
            if not self.started:
                return
            self._taken += 1
            # A checkpoint can overtake a periodic snapshot that began before it.
            bisect.insort(self._snapshots, snapshot, key=lambda s: s.time_ns)
            limit = self.settings.max_snapshots
            if len(self._snapshots) > limit + limit // 8:
                self._snapshots = thin_snapshots(self._snapshots, limit)
            operators = None
            if self._operators.added != self._operators_written:
                self._operators_written = self._operators.added
                operators = self._operators.record()
            meta = None
            lanes = len(self._log.lanes.all)
            if lanes != self._lanes_written or now - self._metadata_at > _METADATA_EVERY_NS:
                self._metadata_at, self._lanes_written = now, lanes
                meta = self._current_metadata()
            unfinished = [o.row() for o in running[:_ROWS]]
            self._write(Entry(meta, snapshot, unfinished, pytorch_operations=operators))
        self._write_operations(pace)
        self._cost_ns += time.thread_time_ns() - cpu

    def _out_of_memory(self, device: str, wanted: int, free: int) -> None:
        """A device has no more memory: take a snapshot before everything is let go of."""
        now = self._clock()
        if self.enabled and now >= self._out_of_memory_next:
            self._out_of_memory_next = now + _OUT_OF_MEMORY_EVERY_NS
            name = f"{device}: {wanted:,} bytes asked for, {free:,} free"
            self._guard(lambda: self.snapshot(SnapshotKind.OUT_OF_MEMORY, name))

    def _write_operations(self, pace: Pace | None) -> None:
        while True:
            with self._lock:
                rows, summaries = self._log.news(_ROWS)
                if not rows and not summaries:
                    break
                self._write(Entry(operations=rows, summaries=summaries))
            if pace is not None:
                pace.rest()
        self._log.thin()

    def _write(self, entry: Entry) -> None:
        if self._journal is None:
            return
        try:
            self._journal.append(entry)
        except OSError as e:
            self._problem(
                f"cannot write {self._journal.path}: {e.strerror or e}. The tracker keeps its "
                "record in memory and goes on trying"
            )

    def _everything(self) -> list[Entry]:
        rows, s = self._log.rows(), list(enumerate(self._log.summaries()))
        return [
            Entry(metadata=self._current_metadata()),
            *(Entry(snapshot=s) for s in self._snapshots),
            *(Entry(operations=rows[i : i + _ROWS]) for i in range(0, len(rows), _ROWS)),
            *(Entry(summaries=dict(s[i : i + _ROWS])) for i in range(0, len(s), _ROWS)),
            Entry(pytorch_operations=self._operators.record()),
        ]

    # --- what users call ------------------------------------------------------------------

    def checkpoint(self, name: str) -> None:
        """Take a snapshot named ``name`` now."""
        if torch.compiler.is_compiling():
            return
        self._used()
        if self.enabled:
            self._guard(lambda: self.snapshot(SnapshotKind.CHECKPOINT, str(name)))

    def track_operation(self, name: str) -> TrackedOperation:
        """Context manager and decorator: what runs inside is operation ``name``."""
        return TrackedOperation(self._operation_log, name)

    def _used(self) -> None:
        if self._on_use is not None:
            start, self._on_use = self._on_use, None
            start()

    def _operation_log(self) -> OperationLog | None:
        if self._state is RunState.RUNNING:
            return self._log
        self._used()
        if self.started:
            return self._log
        return self._successor._operation_log() if self._successor is not None else None

    def track_pytorch_ops(self, *, shapes: bool = True, memory: bool = True) -> OperatorWindow:
        """Context manager: statistics of the operators that run inside.

        Args:
            shapes: also by input shapes.
            memory: also the bytes they allocate, and the highest sum of them.
        """
        return OperatorWindow(self._operator_table, self._problem, shapes, memory)

    def _operator_table(self) -> OperatorTable | None:
        self._used()
        if self.enabled:
            return self._operators
        return self._successor._operator_table() if self._successor is not None else None

    def scan(self) -> None:
        """Look through all Python objects for tensors: after ``gc.freeze()``, or where the
        collector is off. It takes 40 ms a million objects and holds the GIL meanwhile."""
        if self.enabled:
            self._sources.tensors.scan()

    # --- the record -----------------------------------------------------------------------

    def _current_metadata(self, call_threads: Mapping[int, int] | None = None) -> TrackerMetadata:
        m = self._metadata
        threads = self._call_threads if call_threads is None else call_threads
        merged = sum(s.merged for s in self._snapshots)
        lanes = [
            dataclasses.replace(lane, call_thread=threads.get(self._log.lanes.threads.get(i, -1)))
            for i, lane in enumerate(list(self._log.lanes.all))
        ]
        return dataclasses.replace(
            m,
            end_ns=self._clock(),
            lanes=lanes,
            pauses=list(m.pauses),
            sources=described(self._sources, compiled=self._compiled),
            snapshots_taken=self._taken,
            snapshots_merged=merged,
            operations_seen=self._log.seen,
            operations_dropped=self._log.dropped,
            cost_ns=self._cost_ns + self._log.cost_ns,
            problems=list(self._problems),
        )

    def record(self, call_threads: Mapping[int, int] | None = None) -> TrackerRecord:
        """What has been recorded so far.

        Args:
            call_threads: numbers of threads in the profile that the record joins, by
                ``threading.get_ident()``; by default those of the last ``profile()``.
        """
        with self._lock:
            self._snapshots = thin_snapshots(self._snapshots, self.settings.max_snapshots)
            return TrackerRecord(
                self._current_metadata(call_threads),
                list(self._snapshots),
                as_columns(self._log.rows()),
                self._log.summaries(),
                self._operators.record(),
            )

    def profile(self) -> Profile:
        """The record so far, in the profile of what memprof compiled meanwhile."""
        found = None
        try:
            found = naming.compiled()
        except Exception as e:
            self._problem(f"what was compiled is left out: {type(e).__name__}: {e}")
        if found is not None:
            self._compiled, self._call_threads = True, found[1]
        return (found[0] if found is not None else Profile()).with_tracker(self.record())


def _own_version() -> str:
    try:
        return metadata.version("memprof")
    except metadata.PackageNotFoundError:
        return "unknown"
