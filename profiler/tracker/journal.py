"""What a tracker has on the disk while it runs: an append-only file beside the final one.

Note [The journal]
~~~~~~~~~~~~~~~~~~
One JSON object a line. The first names the format; each further one adds to the record: a
snapshot, ended operations with the changed summaries, operator statistics, metadata. A line is
handed to the system as soon as its snapshot is taken, so a process that is killed loses nothing
of it; a machine that loses power can lose more, since nothing is synced.

The end of the file can be a piece of a line (the process was killed, or the disk was full); it is
left out, and a later line after it is read again.

The journal grows past what is kept in memory, which thins out. When it is twice as long as what
would be written now, and ``REWRITE_AT`` bytes at least, it is written anew, whole or not at all.

At the end the tracker writes the final file and removes the journal. If the process never
came to that, reading the journal (``read_journal``) gives what the final file would have been, in
state ``running``; the next tracker in that folder does it and writes the final file (``recovery``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .._json import to_json
from ..claims import try_lock
from ..model import (
    SCHEMA_VERSION,
    MemorySnapshot,
    OperationSummary,
    OperatorRecord,
    TrackerMetadata,
)
from .rows import OperationRow
from .writer import Writer

JOURNAL_FORMAT = "memprof-tracker-journal"
JOURNAL_SUFFIX = ".journal"
REWRITE_AT = 4 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """One line: what it adds; what is None or empty adds nothing.

    Attributes:
        metadata: replaces the metadata before.
        snapshot: follows those before.
        operations: by their number; replaces what an earlier line said of the same.
        summaries: by position, likewise.
        pytorch_operations: replaces what was before.
    """

    metadata: TrackerMetadata | None = None
    snapshot: MemorySnapshot | None = None
    operations: list[OperationRow] = field(default_factory=list)
    summaries: dict[int, OperationSummary] = field(default_factory=dict)
    pytorch_operations: OperatorRecord | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """The first line.

    Attributes:
        format, schema_version, memprof: as in the final file.
        max_snapshots, max_operations: what a reader thins to.
        writer: the process that writes.
        locked: whether it holds a lock on the file for as long as it writes.
    """

    format: str = JOURNAL_FORMAT
    schema_version: int = SCHEMA_VERSION
    memprof: str = ""
    max_snapshots: int = 1_000
    max_operations: int = 20_000
    writer: Writer = field(default_factory=Writer)
    locked: bool = False


class Journal:
    """The journal of a running tracker.

    Args:
        path: of the journal; must not exist.
        header: its first line.
        everything: what is known now, as entries, for writing the file anew.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(
        self, path: Path, header: Header, everything: Callable[[], Iterable[Entry]]
    ) -> None:
        self.path = path
        self._everything = everything
        self._file, self._locked = _created(path)
        self._header = to_json(dataclasses.replace(header, locked=self._locked)) + b"\n"
        self._whole = True
        self._size = 0
        self._rewritten = 0
        try:
            self._write(self._header)
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    @property
    def size(self) -> int:
        """How many bytes are in the file."""
        return self._size

    def append(self, entry: Entry) -> None:
        """Add a line; rewrite the file if it has become too long.

        Raises:
            OSError: the line is not, or not whole, in the file. Later ones can be appended.
        """
        line = to_json(entry) + b"\n"
        if self._size + len(line) > max(REWRITE_AT, 2 * self._rewritten):
            try:
                if self._rewrite():
                    return
            except OSError:
                self._write(b"\n" + line)
                raise
        self._write(line if self._whole else b"\n" + line)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        self._whole = False
        while view:
            count = os.write(self._file, view)
            self._size += count
            view = view[count:]
        self._whole = True

    def _rewrite(self) -> bool:
        """Write the file anew; False if that is not to be, since the new one could not be locked
        (another process looked at it before we had its lock) and its header would say it is."""
        # A name that nobody can have prepared.
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}.tmp")
        file, locked = _created(temporary)
        if self._locked and not locked:
            self._rewritten = self._size
            os.close(file)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            return False
        former, former_size = self._file, self._size
        self._file, self._size = file, 0
        try:
            self._write(self._header)
            for entry in self._everything():
                self._write(to_json(entry) + b"\n")
            os.replace(temporary, self.path)
        except BaseException:
            self._file, self._size, self._whole = former, former_size, False
            # Not again at every line.
            self._rewritten = self._size
            os.close(file)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        os.close(former)
        self._rewritten = self._size
        return True

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def remove(self) -> None:
        """Let go of the file and delete it."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_APPEND", 0) | getattr(os, "O_BINARY", 0)


def _created(path: Path) -> tuple[int, bool]:
    """A descriptor of a new file, and whether it is locked."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
    return file, try_lock(file) is True
