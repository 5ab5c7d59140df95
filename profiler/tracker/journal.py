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
came to that, reading the journal gives what the final file would have been, in state ``running``;
the next tracker in that folder does it and writes the final file (``recover``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from .._header import check_version
from .._json import to_json
from ..errors import ProfileForeignError, ProfileTruncatedError
from ..model import (
    SCHEMA_VERSION,
    MemorySnapshot,
    OperationSummary,
    OperatorRecord,
    Profile,
    TrackerMetadata,
    TrackerRecord,
)
from .document import with_tracker
from .rows import OperationRow, as_columns, without
from .thinning import operations_to_drop, thin_snapshots

__all__ = ["JOURNAL_SUFFIX", "Entry", "Journal", "decode_journal", "is_journal"]

JOURNAL_FORMAT = "memprof-tracker-journal"
JOURNAL_SUFFIX = ".journal"
REWRITE_AT = 4 << 20
_HEAD = f'{{"format":"{JOURNAL_FORMAT}"'.encode()


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
        host, pid: of the process that writes.
        started: when that process started, in the system's ticks since boot; a process with
            this pid that started at another time is another one. 0 if not known.
    """

    format: str = JOURNAL_FORMAT
    schema_version: int = SCHEMA_VERSION
    memprof: str = ""
    max_snapshots: int = 1_000
    max_operations: int = 20_000
    host: str = ""
    pid: int = 0
    started: int = 0


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
        self._header = to_json(header) + b"\n"
        self._everything = everything
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666)
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
        """Bytes in the file."""
        return self._size

    def append(self, entry: Entry) -> None:
        """Add a line; rewrite the file if it has become too long.

        Raises:
            OSError: the line is not, or not whole, in the file. Later ones can be appended.
        """
        line = to_json(entry) + b"\n"
        if self._size + len(line) > max(REWRITE_AT, 2 * self._rewritten):
            try:
                self._rewrite()
            except OSError:
                self._write(b"\n" + line)
                raise
        else:
            self._write(line if self._whole else b"\n" + line)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        self._whole = False
        while view:
            count = os.write(self._file, view)
            self._size += count
            view = view[count:]
        self._whole = True

    def _rewrite(self) -> None:
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o666)
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

    def close(self) -> None:
        """Let go of the file, which stays."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def remove(self) -> None:
        """Delete the file."""
        self.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_APPEND", 0) | getattr(os, "O_BINARY", 0)


def is_journal(data: bytes) -> bool:
    """Whether ``data`` begins like a journal."""
    return data.startswith(_HEAD)


def decode_header(data: bytes, path: str | None = None) -> Header:
    """The first line of a journal.

    Raises:
        ProfileForeignError: it is none.
        ProfileTruncatedError: there is not even a whole first line.
        ProfileVersionError, ProfileInvalidError: another schema version, or none.
    """
    if not is_journal(data):
        raise ProfileForeignError(path, "not a tracker's journal")
    line, newline, _ = data.partition(b"\n")
    if not newline:
        raise ProfileTruncatedError(path, "truncated: not even its first line is whole")
    try:
        plain = msgspec.json.decode(line)
        check_version(plain.get("schema_version"), plain.get("memprof"), path)
        return msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as e:
        raise ProfileForeignError(path, f"not a tracker's journal: {e}") from e


def decode_journal(data: bytes, path: str | None = None) -> Profile:
    """The profile, with ``tracker`` set, that a journal holds so far.

    Raises:
        ProfileForeignError, ProfileTruncatedError, ProfileVersionError, ProfileInvalidError:
            as ``decode_header``.
    """
    header = decode_header(data, path)
    fold = _Fold(header)
    entries = msgspec.json.Decoder(Entry)
    lines = data.split(b"\n")[1:]
    for i, line in enumerate(lines):
        if not line:
            continue
        try:
            fold.add(entries.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            if i < len(lines) - 1:
                fold.damaged += 1
    return with_tracker(Profile(memprof=header.memprof), fold.record())


class _Fold:
    """A record that entries are added to; as bounded as the tracker's own."""

    def __init__(self, header: Header) -> None:
        self.damaged = 0
        self._header = header
        self._metadata = TrackerMetadata()
        self._snapshots: list[MemorySnapshot] = []
        self._rows: dict[int, OperationRow] = {}
        self._summaries: dict[int, OperationSummary] = {}
        self._operators = OperatorRecord()

    def add(self, entry: Entry) -> None:
        if entry.metadata is not None:
            self._metadata = entry.metadata
        if entry.snapshot is not None:
            self._snapshots.append(entry.snapshot)
            if len(self._snapshots) > 2 * self._header.max_snapshots:
                self._thin_snapshots()
        for row in entry.operations:
            self._rows[row.number] = row
        if len(self._rows) > 2 * self._header.max_operations + 1:
            self._thin_rows()
        self._summaries.update(entry.summaries)
        if entry.pytorch_operations is not None:
            self._operators = entry.pytorch_operations

    def _thin_snapshots(self) -> None:
        self._snapshots.sort(key=lambda s: s.time_ns)
        self._snapshots = thin_snapshots(self._snapshots, self._header.max_snapshots)

    def _thin_rows(self) -> None:
        rows = sorted(self._rows.values(), key=lambda r: (r.start_ns, r.number))
        drop = operations_to_drop(rows, self._header.max_operations)
        self._rows = without(self._rows, {rows[i].number for i in drop})

    def record(self) -> TrackerRecord:
        self._thin_snapshots()
        self._thin_rows()
        m = self._metadata
        instants = [m.start_ns, m.end_ns, *(s.time_ns for s in self._snapshots[-1:])]
        m.end_ns = max(instants + [r.end_ns for r in self._rows.values()])
        m.snapshots_merged = sum(s.merged for s in self._snapshots)
        m.snapshots_taken = len(self._snapshots) + m.snapshots_merged
        m.operations_seen = max([m.operations_seen, *(n + 1 for n in self._rows)])
        m.operations_dropped = m.operations_seen - len(self._rows)
        if self.damaged:
            m.problems.append(f"{self.damaged} lines of the journal are damaged and left out")
        known = range(len(self._summaries))
        summaries = [self._summaries.get(i, OperationSummary("(lost)")) for i in known]
        rows = [r for r in self._rows.values() if r.summary < len(summaries)]
        return TrackerRecord(m, self._snapshots, as_columns(rows), summaries, self._operators)


def journals(folder: Path) -> Iterator[Path]:
    """The journals in ``folder``."""
    with contextlib.suppress(OSError):
        yield from sorted(folder.glob(f"memory_profile_*.json{JOURNAL_SUFFIX}"))
