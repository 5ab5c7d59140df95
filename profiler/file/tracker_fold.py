"""Entries that a tracker appends to its file, the record that they add up to, and the bounds of
both; no torch.

Note [Every entry stands alone]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A file may be anybody's. So an entry that cannot be part of a record is refused as it is read, by
its types. An entry that a full disk did not take is in no file, so a reference to something that is
in no entry is mended (an operation becomes a root, a lane is called lost). Every loop ends: numbers
are bounded, and a parent comes before its children.

Note [Thinning]
~~~~~~~~~~~~~~~
Snapshots: pairs of neighbours are merged, those first that lie closest together for their age, so
that what remains is dense at the end and sparser the further back. A merged snapshot is the later
of the two and keeps the higher ``highest_bytes``. Named checkpoints, the first and the last
snapshot are merged only when they alone are too many.

Operations: of the older half those that took the shortest go first; one that is still running
stays. ``operation_summary`` has counted all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from msgspec import Meta

from memprof.profiler import model
from memprof.profiler.model.limits import LARGEST, Count, Int
from memprof.profiler.model.tracker import (
    KEPT_OPERATIONS,
    KEPT_SNAPSHOTS,
    MAX_DEVICES,
    MAX_LANES,
    MAX_NAMES,
)

_MOST = (1 << 62) - 1
Place = Annotated[int, Meta(ge=0, le=MAX_NAMES)]
"""Position in the tree of operations."""


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One invocation, as a file that grows has it: ``parent`` is a ``number``, ``memory`` by device
    (before, after, peak, whether the peak is exact); the rest is as in ``OperationColumns``."""

    number: Annotated[int, Meta(ge=0, le=_MOST)]
    summary: Place
    lane: Annotated[int, Meta(ge=0, lt=2 * MAX_LANES)]
    parent: Annotated[int, Meta(ge=-1, le=_MOST)]
    start_ns: Count
    end_ns: Annotated[int, Meta(ge=-1, le=LARGEST)]
    tensor_bytes_before: Int = -1
    tensors_before: Int = -1
    tensor_bytes_after: Int = -1
    tensors_after: Int = -1
    memory: Annotated[dict[str, tuple[Int, Int, Int, bool]], Meta(max_length=MAX_DEVICES)] = field(
        default_factory=dict
    )
    failed: bool = False


_PLAIN = [f.name for f in fields(model.OperationColumns) if f.name not in ("parent", "memory")]
"""Columns of ``OperationColumns`` that are the same fields in ``OperationRow``."""


def without(rows: dict[int, OperationRow], gone: set[int]) -> dict[int, OperationRow]:
    """``rows`` by number without those in ``gone``; the parent of one whose own parent is gone
    is the nearest one that is not."""
    kept = {}
    for number, row in rows.items():
        if number in gone:
            continue
        parent = row.parent
        while parent in gone:
            parent = rows[parent].parent
        kept[number] = row if parent == row.parent else dataclasses.replace(row, parent=parent)
    return kept


def as_columns(rows: Iterable[OperationRow]) -> model.OperationColumns:
    """``rows``, in any order, as columns in order of start."""
    ordered = sorted(rows, key=lambda r: (r.start_ns, r.number))
    position = {r.number: i for i, r in enumerate(ordered)}
    columns = model.OperationColumns()
    for name in _PLAIN:
        getattr(columns, name).extend(getattr(r, name) for r in ordered)
    columns.parent.extend(position.get(r.parent, -1) for r in ordered)
    for device in dict.fromkeys(d for r in ordered for d in r.memory):
        figures = (r.memory.get(device, (-1, -1, -1, False)) for r in ordered)
        columns.memory[device] = model.MemoryColumns(*map(list, zip(*figures, strict=True)))
    return columns


@dataclass(frozen=True, slots=True)
class Entry:
    """An addition to a record; what is None or empty adds nothing. It replaces an earlier entry of
    the same operation (by number), summary (by position) or other part."""

    metadata: model.TrackerMetadata | None = None
    snapshot: model.MemorySnapshot | None = None
    operations: list[OperationRow] = field(default_factory=list)
    summaries: dict[Place, model.OperationSummary] = field(default_factory=dict)
    pytorch_operations: model.OperatorRecord | None = None


class TrackerFold:
    def __init__(self) -> None:
        self._metadata = model.TrackerMetadata()
        self._snapshots: list[model.MemorySnapshot] = []
        self._rows: dict[int, OperationRow] = {}
        self._summaries: dict[int, model.OperationSummary] = {}
        self._operators = model.OperatorRecord()

    def add(self, entry: Entry) -> None:
        """Add what an entry says; raises ``ValueError`` if it has what no tracker writes."""
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

    def record(self) -> tuple[model.TrackerRecord, list[str]]:
        """The record that the entries so far make up, as long as the tracker keeps it; and what of
        it had to be left out, a line each."""
        m, left_out = self._metadata, []
        self._snapshots.sort(key=lambda s: s.time_ns)
        snapshots = thin_snapshots(
            self._snapshots, _limit(m.settings.get("max_snapshots"), *KEPT_SNAPSHOTS)
        )
        ordered = sorted(self._rows.values(), key=lambda r: (r.start_ns, r.number))
        drop = operations_to_drop(
            ordered, _limit(m.settings.get("max_operations"), *KEPT_OPERATIONS)
        )
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
        return model.TrackerRecord(
            metadata, snapshots, as_columns(named), summaries, self._operators
        ), left_out

    def _tree(self) -> list[model.OperationSummary]:
        known = range(max(self._summaries, default=-1) + 1)
        found = [self._summaries.get(i, model.OperationSummary("(lost)")) for i in known]
        return [
            s if -1 <= s.parent < i else dataclasses.replace(s, parent=-1)
            for i, s in enumerate(found)
        ]


def _limit(stated: str | None, default: int, least: int, most: int) -> int:
    """The number that a file states for a setting, or the nearest one that this can have."""
    try:
        value = int(stated or "")
    except ValueError:
        return default
    return min(max(value, least), most)


def _lanes(lanes: list[model.Lane], needed: int) -> list[model.Lane]:
    lost = range(len(lanes), needed)
    found = lanes + [model.Lane(model.LaneKind.THREAD, "(lost)", i) for i in lost]
    return [
        lane if 0 <= lane.thread < len(found) else dataclasses.replace(lane, thread=i)
        for i, lane in enumerate(found)
    ]


def thin_snapshots(
    snapshots: Sequence[model.MemorySnapshot], limit: int
) -> list[model.MemorySnapshot]:
    """``snapshots`` (in order of time) with at most ``limit`` left, but for the first and the last.
    To be called when there are some more: the work is linear in their number."""
    kept, before = list(snapshots), -1
    # A pass that merges nothing is the last one.
    while len(kept) > limit and len(kept) != before:
        before = len(kept)
        kept = _merge_some(kept, before - limit)
    return kept


def _merge_some(snapshots: list[model.MemorySnapshot], excess: int) -> list[model.MemorySnapshot]:
    candidates = []
    for i in range(1, len(snapshots) - 1):
        s = snapshots[i]
        gap = snapshots[i + 1].time_ns - snapshots[i - 1].time_ns
        age = snapshots[-1].time_ns - s.time_ns
        candidates.append((s.kind is not model.SnapshotKind.PERIODIC, gap / (age + 1), i))
    gone: set[int] = set()
    for _, _, i in sorted(candidates):
        if len(gone) == excess:
            break
        # Two neighbours in one pass would leave a hole twice as wide as intended.
        if i - 1 not in gone and i + 1 not in gone:
            gone.add(i)
    return [
        _merge(snapshots[i - 1], s) if i - 1 in gone else s
        for i, s in enumerate(snapshots)
        if i not in gone
    ]


def _merge(earlier: model.MemorySnapshot, later: model.MemorySnapshot) -> model.MemorySnapshot:
    devices = dict(later.devices)
    for name, memory in earlier.devices.items():
        if name in devices:
            seen = (memory.highest_bytes, devices[name].highest_bytes)
            highest = max((b for b in seen if b is not None), default=None)
            devices[name] = dataclasses.replace(devices[name], highest_bytes=highest)
    return dataclasses.replace(
        later,
        devices=devices,
        children=max(later.children, earlier.children, key=sum),
        merged=later.merged + earlier.merged + 1,
        took_ns=max(later.took_ns, earlier.took_ns),
    )


def operations_to_drop(operations: Sequence[Any], limit: int) -> set[int]:
    """Positions in ``operations`` (in order of start) to drop, so that ``limit`` are left, and
    those that run (``end_ns`` -1). Passes over plain numbers only: sorting 10 000 invocations by a
    key would hold the GIL for 50 ms."""
    excess = len(operations) - limit
    if excess <= 0:
        return set()
    ended = [i for i, o in enumerate(operations) if o.end_ns >= 0]
    older = ended[: max(excess, len(ended) // 2)]
    durations = {i: operations[i].end_ns - operations[i].start_ns for i in older}
    return set(sorted(older, key=durations.__getitem__)[:excess])
