"""The record of a session's steps while it runs: ``memprof.profile(steps="s.jsonl")``.

Note [What ends a step]
~~~~~~~~~~~~~~~~~~~~~~~
``session.step()``; else ``step()`` of an optimizer; else
``torch.compiler.cudagraph_mark_step_begin()``, whose first call ends none. What comes first in this
list counts from its first time on, and what comes after it no more. A compiled optimizer tells
nobody: mark its steps.

An optimizer ends a step if it has stepped at the last end or since, or if the one that ended the
last is gone: two that take turns end one step a round, and a new one that takes the place of the
old ends its own, while the old one lives from its second step on.

Note [Who pays for a step]
~~~~~~~~~~~~~~~~~~~~~~~~~~
The thread that ends a step notes the time and the counters of allocators and graph trees, for some
5 µs of its time. A thread of ours makes the record of it, within ``TICK_S``: it finds the
calls of the step in the call log, and what was live in them, which it works out once for each
sequence of calls. It also writes the file and tells who listens. What fails is logged once, and
nothing of it reaches the program; a file that cannot be written ends there, and so does who listens
and raises. The end of a session waits ``JOIN_S`` for that thread: if who listens takes longer, he
is told of no more steps, the file gets the rest when he returns, and the log says so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import os
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from memprof.cudagraph_trees._torch_compat import on_step_mark
from memprof.cudagraph_trees.explain.ledger import graphs_so_far
from memprof.cudagraph_trees.replay import native
from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.devices import timelines
from memprof.profiler.model import StepEnd, StepRecord
from memprof.profiler.sources.allocator.totals import (
    Counters,
    counters_of,
    device_counters,
    device_totals,
    devices_in_use,
)
from memprof.profiler.support.counter import Counter
from memprof.profiler.support.writing import write_all

from .environment import process
from .runtime import CallRecord, Runtime, columns
from .streaming import LOG_CALLS, TICK_S, WRITERS, create_own

log = logging.getLogger("memprof")

JOIN_S = 5.0
_ORDER: tuple[StepEnd, ...] = ("session", "mark", "optimizer", "call")
_SEQUENCES = 1_024
"""Sequences of calls of which is kept what was live in them: 1 KiB each, however long."""

_Note = tuple[StepEnd, int, int, list[tuple[int, Counters]], tuple[str, str, str]]
"""(what ended the step, ``time.time_ns()``, ``time.perf_counter_ns()``, allocators, graph trees)"""


class StepRecorder:
    """Notes steps from ``start`` to ``finish``.

    Args:
        path: of the file, None if there is none; after ``start`` that of another one, where another
            session writes that.
    """

    def __init__(
        self, runtime: Runtime, path: str | None, on_step: Callable[[StepRecord], object] | None
    ) -> None:
        self.path = path
        self._runtime = runtime
        self._on_step = on_step
        self._file: IO[bytes] | None = None
        self._pid = os.getpid()
        self._rank = process().rank
        self._notes: deque[_Note] = deque()
        # Looked up ahead of a step's end: devices, and how to ask for their counters in C++.
        self._devices: Sequence[int] = ()
        self._counters: Callable[[int], Counters] = counters_of
        self._ends: StepEnd = "session"
        self._marks = itertools.count()
        # Those that have stepped at the last end or since, and the one that ended it.
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._ender: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self._logged: set[str] = set()
        # What the last record that was made ended with.
        self._steps = 0
        self._ended_ns = time.perf_counter_ns()
        self._graphs = tuple(map(Counter.number_in, graphs_so_far()))
        self._last = next(reversed(runtime.calls.after()), None)
        # Calls of the step that has not ended: a server without any end would not stop.
        self._calls: deque[CallRecord] = deque(maxlen=LOG_CALLS)
        self._peaks: dict[bytes, dict[str, dict[str, int]]] = {}
        self._untold: deque[StepRecord] = deque()
        self._undo = contextlib.ExitStack()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memprof steps", daemon=True)

    def start(self) -> None:
        """Make the file and go on in a thread; raises ``ProfileNotWritableError``."""
        if self.path is not None:
            fd, self.path = create_own(self.path, "the record of steps")
            self._file = os.fdopen(fd, "wb", buffering=0)
            WRITERS.add(self)
        self._try("find the devices in use", self._find_devices)
        self._undo.callback(register_optimizer_step_post_hook(self._optimizer_stepped).remove)
        self._undo.callback(on_step_mark(self._marked))
        self._thread.start()

    def finish(self) -> None:
        """End the last step if nothing else does, write what is left, and close the file."""
        self._undo.close()
        if self._pid != os.getpid():
            return
        if self._ends in _ORDER[:2]:
            self._note("session")
        self._stop.set()
        if threading.current_thread() is self._thread:  # ``on_step`` ends the session.
            self._write()
            self.let_go()
            return
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            self._on_step = None
            what = "on_step, or the disk, takes longer, and the last steps may be missing"
            log.error("memprof waited %g s for the record of steps: %s.", JOIN_S, what)

    def let_go(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    # ---- in the threads of the program

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling() and self._counts("optimizer"):
            self._try("tell whose step ends", lambda: self._take_turn(optimizer))

    def _take_turn(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer in self._stepped or self._ender() is None:
            self._stepped.clear()
            self._ender = weakref.ref(optimizer)
            self.end("optimizer")
        self._stepped.add(optimizer)

    def _marked(self) -> None:
        if next(self._marks):
            self.end("mark")

    def _counts(self, by: StepEnd) -> bool:
        return _ORDER.index(by) >= _ORDER.index(self._ends) and self._pid == os.getpid()

    def end(self, by: StepEnd) -> None:
        """End a step, unless what ends steps is something else."""
        if self._counts(by):
            self._ends = by
            self._note(by)

    def _note(self, by: StepEnd) -> None:
        self._try("note a step", lambda: self._notes.append(self._note_now(by)))

    def _note_now(self, by: StepEnd) -> _Note:
        devices = device_counters(self._counters, self._devices)
        return by, time.time_ns(), time.perf_counter_ns(), devices, graphs_so_far()

    # ---- in our thread

    def _run(self) -> None:
        try:
            while not self._stop.wait(TICK_S):
                self._work()
            self._work()
        finally:
            self.let_go()

    def _work(self) -> None:
        self._try("find the devices in use", self._find_devices)
        self._write()
        while self._on_step is not None and self._untold:
            step = self._untold.popleft()
            if not self._try("tell of a step", functools.partial(self._on_step, step)):
                self._on_step = None

    def _find_devices(self) -> None:
        self._devices = devices_in_use()
        if self._devices and (built := native.load(or_build=False)) is not None:
            self._counters = built.counters

    def _write(self) -> None:
        """Record the steps that have ended, and write them."""
        steps: list[StepRecord] = []
        self._try("record a step", lambda: steps.extend(self._records()))
        lines = b"".join(msgspec.json.encode(step) + b"\n" for step in steps)
        if (file := self._file) is not None and not self._try(
            f"write {self.path}", lambda: write_all(file.fileno(), lines)
        ):
            self.let_go()
        if self._on_step is not None:
            self._untold += steps

    def _records(self) -> Iterator[StepRecord]:
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        if calls := self._runtime.calls.after(self._last):
            self._last = calls[-1]
        self._calls += calls
        for by, time_ns, perf_ns, devices, graphs in notes:
            calls = []
            while self._calls and self._calls[0][3] <= perf_ns:
                calls.append(self._calls.popleft())
            key = tuple((call[0], call[1]) for call in calls)
            peak: dict[str, dict[str, int]] = {}
            self._try("say what was live", lambda: peak.update(self._peak(key)))  # noqa: B023
            counts = tuple(map(Counter.number_in, graphs))
            recorded, replayed, fallen_back = map(int.__sub__, counts, self._graphs)
            self._steps += 1
            yield StepRecord(
                step=self._steps,
                time_ns=time_ns,
                duration_ns=max(0, perf_ns - self._ended_ns),
                ended_by=by,
                rank=self._rank,
                devices=device_totals(devices),
                peak=peak,
                recorded=recorded,
                replayed=replayed,
                fallen_back=fallen_back,
            )
            self._ended_ns, self._graphs = perf_ns, counts

    def _peak(self, calls: tuple[tuple[int, int], ...]) -> dict[str, dict[str, int]]:
        if not calls:
            return {}
        key = hashlib.sha256(array("q", itertools.chain.from_iterable(calls))).digest()
        found = self._peaks.pop(key, None)
        if found is None:
            found = self._known_peak(calls)
        if found:  # A warm-up was not observed, and its program may become known.
            self._peaks[key] = found  # The one that was used last is the last to go.
        if len(self._peaks) > _SEQUENCES:
            del self._peaks[next(iter(self._peaks))]
        return found

    def _known_peak(self, calls: tuple[tuple[int, int], ...]) -> dict[str, dict[str, int]]:
        """The most known bytes at an instant of calls, by device and category; of each call the
        graph and the program."""
        profile = self._runtime.snapshot()
        records = ((graph, program, at, at, 0) for at, (graph, program) in enumerate(calls))
        profile.calls = columns(records, [g.id for g in profile.graphs])
        attribution = Attribution(profile)
        found: dict[str, dict[str, int]] = {}
        for device, timeline in timelines(profile).items():
            live = attribution.breakdown(timeline.at_peak(), View.CATEGORY)
            parts = {share.key: share.nbytes for share in live.parts}
            if live.unattributed:
                parts["unknown"] = live.unattributed
            if parts:
                found[device] = parts
        return found

    def _try(self, what: str, do: Callable[[], object]) -> bool:
        """Do it; tells whether that went well, and the log the first time that it did not."""
        try:
            do()
        except Exception as e:
            if what not in self._logged:
                self._logged.add(what)
                log.error("memprof failed to %s: %s: %s.", what, type(e).__name__, e)
            return False
        return True
