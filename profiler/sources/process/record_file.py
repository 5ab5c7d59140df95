"""The file of a tracker, which is written anew with all that is known, whole or not at all.

Note [How often the file is written]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
With a snapshot, unless the last writing was less than ``REST`` times as long ago as it took: so it
takes a hundredth of a core, and of a slow disk's time, at most, and a small record is written with
each snapshot. A process that is killed has lost what came since. A name that the file has lost
meanwhile to something else is not taken back.

The thread that takes the snapshot writes it, so that it is there when the next line crashes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from memprof.profiler.support.writing import (
    create_locked,
    names_beside,
    take_over,
    write_all,
)

REST = 100
"""Least time between two writings while the tracker runs, in times of one."""


class RecordFile:
    """The file of a running tracker, which must not exist; locked, see Note [Files that are being
    written].

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = create_locked(path)
        self._there = os.fstat(self._file)
        self._temporary: Path | None = None

    def write(self, data: bytes, *, sync: bool = False) -> bool:
        """Write the file anew, with ``sync`` so that it is on the disk before it takes its place.
        False, and nothing is written, if its name is something else's by now, or nothing's.

        Raises:
            OSError: the operating system refuses; what was there is unchanged.
        """
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return False
        # A signal's handler may come by within ``_replace``, before its file is there and after.
        ours = any(os.path.samestat(found, s) for s in (self._there, os.fstat(self._file)))
        if ours:
            self._replace(data, sync, found)
        return ours

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _replace(self, data: bytes, sync: bool, before: os.stat_result) -> None:
        interrupted = self._temporary
        if interrupted is not None:  # This is a signal's handler, and will be the last.
            _removed(interrupted)
        # A name that nobody can have prepared.
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
        self._temporary = temporary
        # At once: a child that is forked meanwhile closes it, and lets go of its lock.
        former, self._file = self._file, create_locked(temporary, 0o600)
        mine = self._file
        try:
            if os.chmod in os.supports_fd:
                take_over(mine, before)
            write_all(mine, data)
            if sync:
                os.fsync(mine)
            os.replace(temporary, self.path)
            self._there = os.fstat(mine)
        except BaseException:
            os.close(mine)
            if self._file == mine:
                self._file = former
            _removed(temporary)
            raise
        finally:
            self._temporary = interrupted
        if interrupted is None:  # Else what was interrupted still uses it.
            os.close(former)


def _removed(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def path_in(folder: Path) -> Path:
    """Path for a file in ``folder``, with the local time."""
    return folder / time.strftime("memory_profile_%Y%m%d_%H%M%S.memprof")


def create(path: Path) -> RecordFile:
    """A tracker's file at a name that nothing has, ``path`` or one beside it.

    Raises:
        OSError: it cannot be made.
    """
    for name in (path, *map(Path, names_beside(str(path)))):
        with contextlib.suppress(FileExistsError):
            return RecordFile(name)
    raise FileExistsError(f"{path} and all names beside it are taken")


def write_record(path: Path, data: bytes) -> Path:
    """Write a tracker's final file at a name that nothing else has, ``path`` if it is free. Returns
    it.

    Raises:
        OSError: the operating system refuses; nothing is left there.
    """
    file = create(path)
    try:
        file.write(data, sync=True)
    except OSError:
        _removed(file.path)
        raise
    finally:
        file.close()
    return file.path
