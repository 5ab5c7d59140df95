"""Invocations of operations one by one, and as columns; no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Annotated

from msgspec import Meta

from memprof.profiler.model import MemoryColumns, OperationColumns
from memprof.profiler.model.limits import LARGEST, Count, Int
from memprof.profiler.model.tracker import MAX_DEVICES, MAX_LANES, MAX_NAMES

_MOST = (1 << 62) - 1
Place = Annotated[int, Meta(ge=0, le=MAX_NAMES)]
"""In the tree of operations."""


@dataclass(frozen=True, slots=True)
class OperationRow:
    """One invocation, as a file that grows has it.

    Attributes:
        number: of the invocation, in order of start.
        summary, lane: as in ``OperationColumns``.
        parent: number of the invocation around it, -1 if there is none.
        start_ns, end_ns, tensor_bytes_before, tensors_before, tensor_bytes_after,
            tensors_after, failed: as in ``OperationColumns``.
        memory: by device: before, after, peak, and whether the peak is exact.
    """

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


_PLAIN = [f.name for f in fields(OperationColumns) if f.name not in ("parent", "memory")]
"""Columns that rows have as they are."""


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


def as_columns(rows: Iterable[OperationRow]) -> OperationColumns:
    """``rows``, in any order, as columns in order of start."""
    ordered = sorted(rows, key=lambda r: (r.start_ns, r.number))
    position = {r.number: i for i, r in enumerate(ordered)}
    columns = OperationColumns()
    for name in _PLAIN:
        getattr(columns, name).extend(getattr(r, name) for r in ordered)
    columns.parent.extend(position.get(r.parent, -1) for r in ordered)
    for device in dict.fromkeys(d for r in ordered for d in r.memory):
        figures = (r.memory.get(device, (-1, -1, -1, False)) for r in ordered)
        columns.memory[device] = MemoryColumns(*map(list, zip(*figures, strict=True)))
    return columns
