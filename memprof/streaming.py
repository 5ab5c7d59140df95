"""Writing a profile while the program runs: ``memprof.profile("run.memprof")``.

Note [When a stream is written]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Compiled calls append to the call log, streamed or not: the calling threads know nothing of the
stream. A thread of ours looks every ``TICK_S``, and writes a chunk when ``FLUSH_CALLS`` calls have
come together, or after ``FLUSH_S`` if anything has. So a killed process loses what it did in its
last ``FLUSH_S`` seconds.

The call log keeps ``LOG_CALLS`` calls meanwhile, which is what a program may make between two
looks (at 5 µs a call, the fastest there are, 50,000 in ``TICK_S``). Calls that are pushed out
before we saw them are counted as ``CallColumns.dropped``.

The thread holds the GIL while it collects (some µs a call) and not while it compresses and writes.
A child that the process forks has no such thread and never writes: the file is its parent's.
When writing fails (a full disk), the file is cut back to its last whole chunk, that is logged once,
and the rest of the session stays in memory, as in a session that is not streamed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

from memprof.compile_backend.call_log import CallRecord
from memprof.compile_backend.runtime import Runtime, Session
from memprof.profiler.file import create_for_streaming
from memprof.profiler.model import CallColumns, Profile
from memprof.profiler.stream import StreamEncoder

log = logging.getLogger("memprof")

TICK_S = 0.25
FLUSH_S = 5.0
FLUSH_CALLS = 16_384
LOG_CALLS = 262_144


Join = Callable[[Profile, Mapping[int, int]], Profile]
"""Adds to a profile what other parts of memprof know; given the numbers of threads in its calls, by
``threading.get_ident()``."""


class Streamer:
    """Writes one session into one file, from ``start`` to ``finish``.

    Attributes:
        failed: writing has failed; the file has what was written before.
        threads: numbers of threads in its calls, by ``threading.get_ident()``.
    """

    def __init__(self, runtime: Runtime, session: Session, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.failed = False
        self._runtime = runtime
        self._session = session
        self._encoder = StreamEncoder()
        self._fd = -1
        self._size = 0
        self._pid = os.getpid()
        self._last: CallRecord | None = None
        self._seen = 0
        self.threads: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memprof stream", daemon=True)

    def start(self) -> None:
        """Make the file, with one chunk, and go on in a thread.

        Raises:
            ProfileNotWritableError: the file cannot be made.
        """
        self._fd = create_for_streaming(self.path)
        self.flush()
        self._thread.start()

    def flush(self) -> None:
        """Write what is new; nothing after ``finish``."""
        if self._pid == os.getpid():
            with self._lock:
                self._write(lambda profile, threads: profile, end=False)

    def finish(self, join: Join) -> None:
        """Write the last chunk and close the file.

        Args:
            join: adds to the last snapshot what other parts of memprof know.
        """
        if self._pid != os.getpid():
            return
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._write(join, end=True)
            os.close(self._fd)
            self._fd = -1

    def _run(self) -> None:
        flushed, returned = time.monotonic(), self._runtime.returned()
        while not (self._stop.wait(TICK_S) or self.failed):
            # Counting is cheap, copying the log is not.
            new = self._runtime.returned() - returned
            if new >= FLUSH_CALLS or time.monotonic() - flushed >= FLUSH_S:
                returned += new
                self.flush()
                flushed = time.monotonic()

    def _new_calls(self) -> CallColumns:
        records = self._runtime.calls.after(self._last)
        if not records:
            return CallColumns()
        self._last = records[-1]
        since = self._session.since_perf_ns
        columns = [list(c) for c in zip(*(r for r in records if r[2] >= since), strict=True)]
        if not columns:
            return CallColumns()
        graph, program, start, end, idents = columns
        number = self.threads.setdefault
        thread = [number(ident, len(self.threads)) for ident in idents]
        self._seen += len(graph)
        return CallColumns(graph, program, start, end, thread)

    def _write(self, join: Join, *, end: bool) -> None:
        if self.failed or self._fd < 0:
            return
        try:
            # In this order: what is called is known by the time of the snapshot.
            calls = self._new_calls()
            profile = join(self._runtime.snapshot(self._session), self.threads)
            if end:
                dropped = max(0, sum(g.calls for g in profile.graphs) - self._seen)
                calls = dataclasses.replace(calls, dropped=dropped)
            data = memoryview(self._encoder.chunk(profile, calls, end=end))
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
            self._size += written
        except Exception as e:  # Whatever it is, the training goes on.
            self.failed = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            log.error(
                "%s: cannot write the profile on (%s: %s). It has what was written before; the "
                "rest stays in memory: session.save(PATH).",
                os.fspath(self.path),
                type(e).__name__,
                e,
            )
