"""A profile file that grows, read as it grows: what is new is read, and no more.

Note [What a file says of its writer]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A running process appends to its file every few seconds if anything is new, so the age of what is
there says when it last did something; that it lives says its lock on the file (``claims.py``), and
an end says the last frame. Without an end and without a lock it has died. Where the file system has
no locks the process is asked for by its number, on its own host only; else nobody can tell, and
that is what is said.
"""

from __future__ import annotations

import os
import platform
from enum import Enum

from . import claims
from .decoding import Document
from .errors import ProfileError, ProfileForeignError
from .frames import MAGIC, Frame, frames, whole_frames
from .model import Profile
from .reading import Budget, read_from
from .repair import repair

KEEP_CALLS = 100_000
"""Of the call log, the latest: what a view of the present looks at."""


class Writer(str, Enum):
    """Whether a file is still written."""

    ALIVE = "alive"
    ENDED = "ended"
    """The session came to its end."""
    DIED = "died"
    """It did not, and nobody writes the file."""
    UNKNOWN = "unknown"


class Followed:
    """One profile file that may grow."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: tuple[int, int] | None = None
        self._read = 0
        self._process = 0
        self._document: Document | None = None
        self._profile: Profile | None = None

    def profile(self) -> Profile:
        """The profile as far as it is in the file. The same object as long as nothing is new.

        Raises:
            ProfileError: the file cannot be read, holds no profile, or profiles of several
                processes.
        """
        new = self._new()
        if any(f.process != self._process for f in new) and self._document is not None:
            # Another job writes to the same name: it has begun anew.
            self._forget()
            new = self._new()
        for frame in new:
            self._add(frame)
            self._profile = None
        if self._document is None:
            raise ProfileForeignError(self.path, "not a memprof profile, or not one yet")
        if self._profile is None:
            found = self._document.profile()
            repair(found, self._document.left_out)
            self._profile = found
        return self._profile

    def writer(self) -> Writer:
        """Whether the process lives that writes it; see Note [What a file says of its writer]."""
        found = self._profile
        if found is None or found.complete:
            return Writer.ENDED if found is not None else Writer.UNKNOWN
        locked = claims.is_locked(self.path)
        if locked is not None:
            return Writer.ALIVE if locked else Writer.DIED
        who = found.process
        pid, host = (who.pid, who.host) if who is not None else (0, "")
        if found.tracker is not None:
            pid, host = found.tracker.metadata.pid, found.tracker.metadata.host
        if not pid or host != platform.node():
            return Writer.UNKNOWN
        return Writer.ALIVE if os.path.exists(f"/proc/{pid}") else Writer.DIED

    def _forget(self) -> None:
        self._read, self._document, self._profile = 0, None, None

    def _new(self) -> list[Frame]:
        """Whole frames that were not there before; all of a file that is another one by now."""
        data, begin, file = read_from(self.path, self._read, self._file)
        if file != self._file or begin < self._read or (begin and not MAGIC.startswith(data[:4])):
            # Written anew: a tracker's, at its end and when it has become long.
            self._forget()
            data, _, self._file = read_from(self.path, 0, None)
        end = whole_frames(data)
        self._read += end
        found = frames(data[:end], Budget(end, self.path))
        return [frame for frame in found if isinstance(frame, Frame)]

    def _add(self, frame: Frame) -> None:
        if self._document is None:
            self._process = frame.process
            self._document = Document(self.path, KEEP_CALLS)
        elif frame.process != self._process:
            raise ProfileError(
                self.path, "it holds several profiles (memprof merge), of jobs that have ended"
            )
        self._document.add(frame, None)
