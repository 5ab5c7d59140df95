"""What a tracker's file says piece by piece while it grows, and the record that it adds up to; no
torch.

Note [Every entry stands alone]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A file may be anybody's, and any part of it may be damaged. So an entry that cannot be part of a
record is refused as it is read, by its types, and a reference to something that is in no entry is
mended (an operation becomes a root, a lane is called lost): one that is damaged must not cost the
others. Every loop ends: numbers are bounded, and a parent comes before its children.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from ..model import (
    Lane,
    LaneKind,
    MemorySnapshot,
    OperationSummary,
    OperatorRecord,
    TrackerMetadata,
    TrackerRecord,
)
from .rows import OperationRow, Place, as_columns, without
from .settings import room
from .thinning import operations_to_drop, thin_snapshots


@dataclass(frozen=True, slots=True)
class Entry:
    """What is added to a record; what is None or empty adds nothing.

    Attributes:
        metadata: replaces the metadata before.
        snapshot: of any time.
        operations: by their number; replaces what an earlier entry said of the same.
        summaries: by position, likewise.
        pytorch_operations: replaces what was before.
    """

    metadata: TrackerMetadata | None = None
    snapshot: MemorySnapshot | None = None
    operations: list[OperationRow] = field(default_factory=list)
    summaries: dict[Place, OperationSummary] = field(default_factory=dict)
    pytorch_operations: OperatorRecord | None = None


class TrackerFold:
    """A record that entries are added to; see Note [Every entry stands alone]."""

    def __init__(self) -> None:
        self._metadata = TrackerMetadata()
        self._snapshots: list[MemorySnapshot] = []
        self._rows: dict[int, OperationRow] = {}
        self._summaries: dict[int, OperationSummary] = {}
        self._operators = OperatorRecord()

    def add(self, entry: Entry) -> None:
        """Add what an entry says.

        Raises:
            ValueError: nothing of it, since it has what no tracker writes.
        """
        # Numbers are given in order of beginning.
        if any(row.parent >= row.number for row in entry.operations):
            raise ValueError("an operation inside a later one")
        if entry.metadata is not None:
            self._metadata = entry.metadata
        if entry.snapshot is not None:
            self._snapshots.append(entry.snapshot)
        self._rows.update((row.number, row) for row in entry.operations)
        self._summaries.update(entry.summaries)
        if entry.pytorch_operations is not None:
            self._operators = entry.pytorch_operations

    def record(self) -> tuple[TrackerRecord, list[str]]:
        """The record that the entries so far make up, as long as the tracker keeps it; and what of
        it had to be left out, a line each."""
        m, left_out = self._metadata, []
        self._snapshots.sort(key=lambda s: s.time_ns)
        snapshots = thin_snapshots(self._snapshots, room("max_snapshots", m.settings))
        ordered = sorted(self._rows.values(), key=lambda r: (r.start_ns, r.number))
        drop = operations_to_drop(ordered, room("max_operations", m.settings))
        rows = without(self._rows, {ordered[i].number for i in drop})
        summaries = self._tree()
        named = [r for r in rows.values() if r.summary < len(summaries)]
        if nameless := len(rows) - len(named):
            left_out.append(f"{nameless} operations, whose names are in no part of the file")
        pauses = [p for p in m.pauses if p.start_ns <= p.end_ns]
        if backwards := len(m.pauses) - len(pauses):
            left_out.append(f"{backwards} pauses of the tracker, which end before they start")
        merged = min(sum(s.merged for s in snapshots), 1 << 62)
        seen = max([m.operations_seen, *(n + 1 for n in self._rows)])
        metadata = dataclasses.replace(
            m,
            end_ns=max(
                [m.start_ns, m.end_ns, *(s.time_ns for s in snapshots[-1:])]
                + [r.end_ns for r in rows.values()]
            ),
            snapshots_merged=merged,
            snapshots_taken=len(snapshots) + merged,
            operations_seen=seen,
            operations_dropped=seen - len(rows),
            pauses=pauses,
            lanes=_lanes(m.lanes, max((r.lane for r in named), default=-1) + 1),
        )
        return TrackerRecord(
            metadata, snapshots, as_columns(named), summaries, self._operators
        ), left_out

    def _tree(self) -> list[OperationSummary]:
        known = range(max(self._summaries, default=-1) + 1)
        found = [self._summaries.get(i, OperationSummary("(lost)")) for i in known]
        return [
            s if -1 <= s.parent < i else dataclasses.replace(s, parent=-1)
            for i, s in enumerate(found)
        ]


def _lanes(lanes: list[Lane], needed: int) -> list[Lane]:
    """``lanes``, as many as are needed, each on a thread that is there."""
    found = lanes + [Lane(LaneKind.THREAD, "(lost)", i) for i in range(len(lanes), needed)]
    return [
        lane if 0 <= lane.thread < len(found) else dataclasses.replace(lane, thread=i)
        for i, lane in enumerate(found)
    ]
