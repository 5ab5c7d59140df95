"""Standard input for a script that is run several times: each run gets all of it."""

from __future__ import annotations

import contextlib
import os
import select
import stat
import threading
from collections.abc import Iterator

_CHUNK = 1 << 16
_PERIOD_S = 0.1
"""Between two looks whether the run has ended, while nothing comes in."""


class StandardInput:
    """Of this process, for one run after the other.

    A file is read from where it stood each time. What comes in through a pipe is kept, so that the
    second run finds what the first has read; it is read ahead of the script, as it comes. Anything
    else is handed on as it is.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._from = descriptor
        self._start: int | None = None
        self._kept = bytearray()
        self._ended = False
        self._is_pipe = False
        with contextlib.suppress(OSError):  # it is closed
            mode = os.fstat(descriptor).st_mode
            self._is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
            if stat.S_ISREG(mode):
                self._start = os.lseek(descriptor, 0, os.SEEK_CUR)

    @contextlib.contextmanager
    def for_one_run(self) -> Iterator[int | None]:
        """A file descriptor that a process which is started inside reads from, or None where that
        is this process's own."""
        if self._start is not None:
            os.lseek(self._from, self._start, os.SEEK_SET)
        if not self._is_pipe:
            yield None
            return
        reading, writing = os.pipe()
        has_ended = threading.Event()
        # A daemon, since something that the run has left behind may hold the pipe and not read it.
        feeder = threading.Thread(target=self._feed, args=(writing, has_ended), daemon=True)
        feeder.start()
        try:
            yield reading
        finally:
            has_ended.set()
            os.close(reading)
            feeder.join(2 * _PERIOD_S)

    def _feed(self, to: int, has_ended: threading.Event) -> None:
        sent = 0
        with contextlib.suppress(BrokenPipeError):
            while not has_ended.is_set():
                if sent < len(self._kept):
                    sent += os.write(to, self._kept[sent : sent + _CHUNK])
                elif self._ended:
                    break
                elif select.select([self._from], [], [], _PERIOD_S)[0]:
                    came = os.read(self._from, _CHUNK)
                    self._kept += came
                    self._ended = not came
        os.close(to)
