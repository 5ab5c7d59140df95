"""The file of a tracker that runs: a profile that grows by a frame for each entry.

Note [The journal]
~~~~~~~~~~~~~~~~~~
The file is a profile from its first bytes on: whoever reads it has the record so far, in state
``running``. A frame is handed to the system as soon as its snapshot is taken, so a process that is
killed loses nothing of it. One that cannot be written whole is taken back: whoever reads the file
reads it up to the first that is not whole.

The file grows past what is kept in memory, which thins out. When it is twice as long as what
would be written now, and ``REWRITE_AT`` bytes at least, it is written anew, whole or not at all.
So it is, for the last time, at the end. A name that the file has lost meanwhile to something else
is not taken back.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from memprof.profiler.file.frames import Kind, pack
from memprof.profiler.file.tracker_fold import Entry
from memprof.profiler.model import FORMAT, SCHEMA_VERSION
from memprof.profiler.support.errors import ProfileExistsError
from memprof.profiler.support.json_text import to_json
from memprof.profiler.support.writing import names_beside, refused, try_lock, write_all, write_whole

REWRITE_AT = 4 << 20


class Journal:
    """The file of a running tracker, which must not exist; locked, see Note [Files that are being
    written]. ``everything`` is what is known now, for writing the file anew.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path, memprof: str, everything: Callable[[], Iterable[Entry]]) -> None:
        self.path = path
        self.size = 0
        self._header = to_json(
            {"format": FORMAT, "schema_version": SCHEMA_VERSION, "memprof": memprof}
        )
        self._everything = everything
        self._process = secrets.randbits(32)
        self._number = 0
        self._rewritten = 0
        self._file = _created(path)
        try:
            self._write(self._frame(Kind.HEADER, self._header))
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def append(self, entry: Entry) -> None:
        """Add an entry; rewrite the file if it has become too long.

        Raises:
            OSError: the entry is not, or not whole, in the file. Later ones can be appended.
        """
        frame = self._frame(Kind.TRACKER, to_json(entry))
        if self.size + len(frame) <= max(REWRITE_AT, 2 * self._rewritten):
            self._write_next(frame)
            return
        try:
            self._replace(self._write_everything)
        except OSError:
            self._write_next(frame)
            raise
        finally:
            self._rewritten = self.size  # also where it failed: not again at every entry

    def finish(self, data: bytes) -> bool:
        """Write the file anew for the last time, of ``data``. False, and nothing is written, if its
        name is something else's by now, or nothing's.

        Raises:
            ProfileNotWritableError: the operating system refuses; what was there is unchanged.
        """
        try:
            ours = os.path.samestat(os.lstat(self.path), os.fstat(self._file))
        except FileNotFoundError:
            return False
        if ours:
            try:
                self._replace(lambda: self._write(data))
            except OSError as e:
                raise refused(self.path, f"the tracker's record ({len(data):,} bytes)", e) from e
        return ours

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _frame(self, kind: Kind, payload: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return pack(kind, self._process, number, payload)

    def _write_next(self, frame: bytes) -> None:
        """Write the frame that was made last, or none of it."""
        try:
            self._write(frame)
        except OSError:
            self._number -= 1
            os.ftruncate(self._file, self.size)
            raise

    def _write(self, data: bytes) -> None:
        write_all(self._file, data)
        self.size += len(data)

    def _write_everything(self) -> None:
        self._number = 0
        self._write(self._frame(Kind.HEADER, self._header))
        for entry in self._everything():
            self._write(self._frame(Kind.TRACKER, to_json(entry)))

    def _replace(self, write: Callable[[], None]) -> None:
        """Put a new file in the place of this one, which stays what it is if that fails."""
        former = self._file, self.size, self._number
        # A name that nobody can have prepared.
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
        self._file, self.size = _created(temporary), 0
        try:
            write()
            os.fsync(self._file)
            os.replace(temporary, self.path)
        except BaseException:
            os.close(self._file)
            self._file, self.size, self._number = former
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        os.close(former[0])


_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_APPEND", 0) | getattr(os, "O_BINARY", 0)


def _created(path: Path) -> int:
    """A descriptor of a new file, locked where the file system has locks."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
    try_lock(file)
    return file


def names(folder: Path) -> Iterator[Path]:
    """Names for a file in ``folder``, best first: with the local time, then with the process's
    number, then with a count."""
    first = folder / time.strftime("memory_profile_%Y%m%d_%H%M%S.memprof")
    yield first
    yield from map(Path, names_beside(str(first)))


def open_journal(folder: Path, memprof: str, everything: Callable[[], list[Entry]]) -> Journal:
    """The file of a tracker that starts, at a path that nothing has."""
    for path in names(folder):
        with contextlib.suppress(FileExistsError):
            return Journal(path, memprof, everything)
    raise FileExistsError(f"a hundred trackers started in {folder} within this second")


def write_record(path: Path, data: bytes) -> Path:
    """Write a tracker's final file at a name that nothing else has, ``path`` if it is free. Returns
    it.

    Raises:
        ProfileNotWritableError: it cannot be written.
    """
    for name in (str(path), *names_beside(str(path))):
        with contextlib.suppress(ProfileExistsError):
            write_whole(name, data, "the tracker's record", new=True)
            return Path(name)
    raise ProfileExistsError(path, "it and all names beside it are taken")
