"""Writing a profile while the program runs: ``memprof.profile("run.memprof")``.

Note [When a stream is written]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Compiled calls append to the call log, written or not: the calling threads know nothing of the
file. A thread of ours looks every ``TICK_S``, and writes a chunk when ``FLUSH_CALLS`` calls have
come together, or after ``FLUSH_S`` if anything has: so much a killed process loses. The call log
keeps ``LOG_CALLS`` calls meanwhile (a program makes 50,000 in ``TICK_S`` at most, at 5 µs each),
in 19 MiB; those that are pushed out before we saw them are counted as ``CallColumns.dropped``. The
thread holds the GIL while it collects (some µs a call) and not while it compresses and writes.

A chunk has totals, graphs, the ledger and calls, in this order. Accounts, growth, pools of graphs,
the optimizer's state, data flow and the tracker come with the last chunk: a process that is killed
leaves none of these. Nothing is synced: a machine that loses power may lose more.

Note [When a stream fails]
~~~~~~~~~~~~~~~~~~~~~~~~~~
*Collecting* a chunk can fail because the program goes on meanwhile. Nothing is written then and
nothing is lost: the encoder is as it was, and the next look says what this one would have said.

*Writing* can fail (a full disk, a file that somebody deleted). The file is cut back to what was
whole, and the stream ends there.

Then ``failed`` is true, and the session's profile comes from memory, with the last ``LOG_CALLS``
calls.

Either is logged once. What is not in the file by the session's end stays in memory.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from memprof.profiler.file.encoding import ProfileEncoder
from memprof.profiler.model import Profile
from memprof.profiler.sources.allocator.totals import device_totals
from memprof.profiler.support.host import resident_bytes
from memprof.profiler.support.process_hooks import on_fork
from memprof.profiler.support.writing import create_for_streaming, write_all

from .runtime import CallRecord, Runtime, Session, columns

log = logging.getLogger("memprof")

TICK_S = 0.25
FLUSH_S = 5.0
FLUSH_CALLS = 16_384
LOG_CALLS = 98_304
LAST_TRIES = 3
"""To collect the last chunk, as others may still run."""


Join = Callable[[Profile, Mapping[int, int]], Profile]
"""Adds to a profile what other parts of memprof know; given the numbers of threads in its calls, by
``threading.get_ident()``."""


WRITERS: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those who write a file from ``create_own``, of which a child lets go: the file and its lock are
the parent's alone."""


def create_own(path: str | os.PathLike[str], what: str = "a profile") -> tuple[int, str]:
    """As ``create_for_streaming``; the log says so where another session writes that path."""
    fd, own = create_for_streaming(path, what)
    if own != os.fspath(path):
        log.warning(
            "%s: another session writes it just now, so this one writes %s. Give each a path "
            "of its own; for several processes put {rank} or {pid} into it.",
            os.fspath(path),
            own,
        )
    return fd, own


class Streamer:
    """Writes one session into one file, from ``start`` to ``finish``.

    Attributes:
        path: another one than was given, after ``start``, where another session writes that one.
        failed: the file lacks something that was tried to write; it has what came before.
        threads: numbers of threads in its calls, by ``threading.get_ident()``.
    """

    def __init__(self, runtime: Runtime, session: Session, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.failed = False
        self._runtime = runtime
        self._session = session
        self._encoder = ProfileEncoder()
        self._fd = -1
        self._size = 0
        self._given_up = False
        self._logged: set[str] = set()
        self._pid = os.getpid()
        self._last: CallRecord | None = None
        self._seen = 0
        self.threads: dict[int, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memprof stream", daemon=True)

    def start(self) -> None:
        """Make the file, with one chunk, and go on in a thread; raises
        ``ProfileNotWritableError``."""
        self._fd, self.path = create_own(self.path)
        WRITERS.add(self)
        self.flush()
        self._thread.start()

    def flush(self) -> None:
        """Write what is new; nothing after ``finish``."""
        if self._pid == os.getpid():
            with self._lock:
                self._write(lambda profile, threads: profile, end=False)

    def finish(self, join: Join) -> None:
        """Write the last chunk, to which ``join`` adds what other parts of memprof know, and close
        the file."""
        if self._pid != os.getpid():
            return
        self._stop.set()
        self._thread.join()
        with self._lock:
            for _ in range(LAST_TRIES):
                if self._write(join, end=True):
                    break
            self.let_go()

    def let_go(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _run(self) -> None:
        flushed, returned = time.monotonic(), self._runtime.returned()
        while not (self._stop.wait(TICK_S) or self._given_up):
            # Counting is cheap, copying the log is not.
            new = self._runtime.returned() - returned
            if new >= FLUSH_CALLS or time.monotonic() - flushed >= FLUSH_S:
                returned += new
                self.flush()
                flushed = time.monotonic()

    def _write(self, join: Join, *, end: bool) -> bool:
        """False if what is new could not be collected; see Note [When a stream fails]."""
        if self._given_up or self._fd < 0:
            return True
        try:
            new = self._collect(join, end)
        except Exception as e:  # Whatever it is, the training goes on.
            self.failed = True
            self._log_once(e, "cannot collect what is new", "It is tried again")
            return False
        try:
            if not os.fstat(self._fd).st_nlink:
                raise FileNotFoundError(errno.ENOENT, "it was deleted, or replaced")
            os.lseek(self._fd, self._size, os.SEEK_SET)
            write_all(self._fd, new)
        except Exception as e:
            self.failed = self._given_up = True
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            remedy = "What is new stays in memory: session.save(PATH)"
            self._log_once(e, "cannot write the profile on", remedy)
            return True
        self._size += len(new)
        self.failed = False
        return True

    def _collect(self, join: Join, end: bool) -> bytes:
        """The next chunk. What it says is taken to be known only when it is complete."""
        # In this order: what is called is known by the time of the snapshot.
        records = self._runtime.calls.after(self._last)
        profile = self._runtime.snapshot(self._session)
        made = {g.id: g.calls for g in profile.graphs}
        new = sum(made.values()) - self._seen if end else 0
        calls = columns(records, made, self._session.since_perf_ns, new, self.threads)
        profile = join(profile, self.threads)
        profile.totals, profile.resident = device_totals(), resident_bytes()
        data = self._encoder.chunk(profile, calls, end=end)
        self._seen += len(calls)
        if records:
            self._last = records[-1]
        return data

    def _log_once(self, error: Exception, what: str, then: str) -> None:
        if what not in self._logged:
            self._logged.add(what)
            path, kind = os.fspath(self.path), type(error).__name__
            log.error("%s: %s (%s: %s). %s.", path, what, kind, error, then)


@on_fork
def _in_child() -> None:
    for writer in list(WRITERS):
        writer.let_go()
