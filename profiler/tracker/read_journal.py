"""Reading a journal: the record that a tracker had when the last line was written; no torch.

Note [Journals are not trusted]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A tracker reads the journals in its folder when it starts, inside somebody's training, and the
folder can be anybody's (``/tmp``). Whatever a journal says:

* memory is bounded by what a tracker keeps, with the settings' own bounds, and by ``MAX_LINE``;
  a line is let go of before the next one is read;
* every loop ends: limits are bounds of the settings, a parent comes before its children;
* the record is one that validation accepts. A line that cannot be part of such a record is
  left out and counted; a reference to something that is not there is mended (an operation
  becomes a root, a lane is called lost), since one damaged line must not cost the others.

What is left out stands in ``Profile.left_out``, as of any other file: a comparison must not take
what is missing for memory that was saved.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from memprof.profiler.model.tracker import MAX_LANES, MAX_NAMES

from .._header import check_version
from ..errors import (
    ProfileForeignError,
    ProfileInvalidError,
    ProfileTooLargeError,
    ProfileTruncatedError,
)
from ..model import (
    Lane,
    LaneKind,
    MemorySnapshot,
    OperationSummary,
    OperatorRecord,
    Profile,
    TrackerMetadata,
    TrackerRecord,
)
from ..validate_numbers import number_findings
from .journal import JOURNAL_FORMAT, Entry, Header
from .rows import OperationRow, as_columns, without
from .settings import within_bounds
from .thinning import operations_to_drop, thin_snapshots

MAX_LINE = 4 << 20
"""Bytes of a line. 500 operations, the most that a tracker puts into one, have some 100 KiB, the
10,000 largest tensors some 2 MiB."""
MAX_DEVICES = 1_000
_MAX_HEADER = 64 << 10
_HEAD = f'{{"format":"{JOURNAL_FORMAT}"'.encode()
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)
_INSTANTS = range(1 << 63)
_MAX_LANES = 2 * MAX_LANES


def is_journal(data: bytes) -> bool:
    """Whether ``data`` begins like a journal."""
    return data.startswith(_HEAD)


def decode_header(line: bytes, path: str | None = None) -> Header:
    """The first line of a journal.

    Raises:
        ProfileForeignError: it is none.
        ProfileTruncatedError: it is not whole.
        ProfileVersionError, ProfileInvalidError: another schema version, or none.
    """
    if not is_journal(line):
        raise ProfileForeignError(path, "not a tracker's journal")
    if not line.endswith(b"\n"):
        raise ProfileTruncatedError(path, "truncated: not even its first line is whole")
    try:
        plain = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        version, written_by = (
            msgspec.json.decode(plain[name]) if name in plain else None
            for name in ("schema_version", "memprof")
        )
        check_version(version, written_by, path)
        return msgspec.json.decode(line, type=Header)
    except _BAD_JSON as e:
        raise ProfileForeignError(path, f"not a tracker's journal: {e}") from e


def decode_journal(data: bytes, path: str | None = None) -> Profile:
    """The profile, with ``tracker`` set, that a journal holds so far.

    Raises:
        ProfileForeignError, ProfileTruncatedError, ProfileVersionError, ProfileInvalidError:
            as ``decode_header``.
    """
    return read_journal(io.BytesIO(data), path)


def read_journal(file: BinaryIO, path: str | None = None, *, most: float = float("inf")) -> Profile:
    """The same from an open file, a line at a time.

    Args:
        file: at its beginning.
        path: to name in errors.
        most: figures that may be read (a device or a tensor of a snapshot, an operation): one is
            10 bytes of JSON at least and some 250 of memory.

    Raises:
        ProfileTooLargeError: there are more figures.
        ProfileForeignError, ProfileTruncatedError, ProfileVersionError, ProfileInvalidError:
            as ``decode_header``.
        OSError: it cannot be read.
    """
    header = decode_header(file.readline(_MAX_HEADER), path)
    fold = _Fold(header)
    entries = msgspec.json.Decoder(Entry)
    for line in _lines(file):
        if line == b"\n":
            continue
        try:
            if line is None:
                raise OverflowError
            fold.add(entries.decode(line))
        except _BAD_JSON:
            # The last one was cut off when the process was killed.
            fold.damaged += line is None or line.endswith(b"\n")
        if fold.figures > most:
            raise ProfileTooLargeError(path, f"more than {most:,} figures")
    try:
        record = fold.record()
    except (OverflowError, ValueError) as e:
        raise ProfileInvalidError(path, f"not a valid journal: {e}") from e
    return Profile(memprof=header.memprof, left_out=fold.left_out).with_tracker(record)


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """The lines, None for one that is too long."""
    while line := file.readline(MAX_LINE):
        if len(line) < MAX_LINE or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE)
        yield None


class _Fold:
    """A record that entries are added to; see Note [Journals are not trusted]."""

    def __init__(self, header: Header) -> None:
        self.damaged = 0
        self.left_out: list[str] = []  # known once the record is
        self.figures = 0  # that were read, whether or not they are kept
        self._max_snapshots = within_bounds("max_snapshots", header.max_snapshots)
        self._max_operations = within_bounds("max_operations", header.max_operations)
        self._metadata = TrackerMetadata()
        self._snapshots: list[MemorySnapshot] = []
        self._rows: dict[int, OperationRow] = {}
        self._summaries: dict[int, OperationSummary] = {}
        self._operators = OperatorRecord()

    def add(self, entry: Entry) -> None:
        """Add what a line says.

        Raises:
            OverflowError: nothing of it, since a figure is none that a tracker writes.
        """
        rows, places = entry.operations, entry.summaries
        if entry.snapshot is not None:
            self.figures += 1 + len(entry.snapshot.devices) + len(entry.snapshot.largest)
        self.figures += sum(1 + len(row.memory) for row in rows)
        self.figures += sum(1 + len(s.devices) for s in places.values())
        fine = (
            (
                entry.snapshot is None
                or (
                    entry.snapshot.time_ns in _INSTANTS
                    and len(entry.snapshot.devices) <= MAX_DEVICES
                )
            )
            and (entry.metadata is None or len(entry.metadata.lanes) <= _MAX_LANES)
            and all(0 <= i <= MAX_NAMES for i in places)
            and all(len(s.devices) <= MAX_DEVICES for s in places.values())
            and all(_possible(row) for row in rows)
            and next(number_findings(entry, ""), None) is None
        )
        if not fine:
            raise OverflowError
        if entry.metadata is not None:
            self._metadata = entry.metadata
        if entry.snapshot is not None:
            self._snapshots.append(entry.snapshot)
            if len(self._snapshots) > 2 * self._max_snapshots:
                self._thin_snapshots()
        for row in rows:
            self._rows[row.number] = row
        if len(self._rows) > 2 * self._max_operations + 1:
            self._thin_rows()
        self._summaries.update(places)
        if entry.pytorch_operations is not None:
            self._operators = entry.pytorch_operations

    def _thin_snapshots(self) -> None:
        self._snapshots.sort(key=lambda s: s.time_ns)
        self._snapshots = thin_snapshots(self._snapshots, self._max_snapshots)

    def _thin_rows(self) -> None:
        rows = sorted(self._rows.values(), key=lambda r: (r.start_ns, r.number))
        drop = operations_to_drop(rows, self._max_operations)
        self._rows = without(self._rows, {rows[i].number for i in drop})

    def record(self) -> TrackerRecord:
        """The record that the lines so far make up."""
        self._thin_snapshots()
        self._thin_rows()
        m = self._metadata
        instants = [m.start_ns, m.end_ns, *(s.time_ns for s in self._snapshots[-1:])]
        m.end_ns = max(instants + [r.end_ns for r in self._rows.values()])
        m.snapshots_merged = min(sum(s.merged for s in self._snapshots), 1 << 62)
        m.snapshots_taken = len(self._snapshots) + m.snapshots_merged
        m.operations_seen = max([m.operations_seen, *(n + 1 for n in self._rows)])
        m.operations_dropped = m.operations_seen - len(self._rows)
        pauses = [p for p in m.pauses if p.start_ns <= p.end_ns]
        summaries = self._tree()
        rows = [r for r in self._rows.values() if r.summary < len(summaries)]
        m.lanes = _lanes(m.lanes, max((r.lane for r in rows), default=-1) + 1)
        if self.damaged:
            damaged = f"{self.damaged} lines of the journal are damaged and left out"
            m.problems.append(damaged)
            self.left_out.append(damaged)
        if nameless := len(self._rows) - len(rows):
            self.left_out.append(
                f"{nameless} operations, whose names are in no line of the journal"
            )
        if backwards := len(m.pauses) - len(pauses):
            self.left_out.append(f"{backwards} pauses of the tracker, which end before they start")
        m.pauses = pauses
        return TrackerRecord(m, self._snapshots, as_columns(rows), summaries, self._operators)

    def _tree(self) -> list[OperationSummary]:
        known = range(max(self._summaries, default=-1) + 1)
        found = [self._summaries.get(i, OperationSummary("(lost)")) for i in known]
        return [
            s if -1 <= s.parent < i else dataclasses.replace(s, parent=-1)
            for i, s in enumerate(found)
        ]


def _possible(row: OperationRow) -> bool:
    # A parent begins before its children, and numbers are given in order of beginning.
    return (
        -1 <= row.parent < row.number < 1 << 62
        and 0 <= row.summary <= MAX_NAMES
        and 0 <= row.lane < _MAX_LANES
        and row.start_ns in _INSTANTS
        and (row.end_ns == -1 or row.end_ns in _INSTANTS)
        and len(row.memory) <= MAX_DEVICES
    )


def _lanes(lanes: list[Lane], needed: int) -> list[Lane]:
    """``lanes``, as many as are needed, each on a thread that is there."""
    found = lanes + [Lane(LaneKind.THREAD, "(lost)", i) for i in range(len(lanes), needed)]
    return [
        lane if 0 <= lane.thread < len(found) else dataclasses.replace(lane, thread=i)
        for i, lane in enumerate(found)
    ]
