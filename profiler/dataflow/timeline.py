"""What happened to memory, in order of time.

Note [Storages without a tensor]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The profiler names a storage only if some operator later takes a tensor in it. The rest
(scratch memory of libraries, results nobody reads) is known by address: an entry for it
carries no key but the number of its *block*, one allocation and its release. Two
allocations at one address without a release between them are told as torch tells them, by
an increment of the version: the release was missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from .categories import Categories
from .columns import Bytes, EventColumns, Ints, frozen
from .graph import Graph


class Action(Enum):
    """What happens to a storage at an entry of the timeline."""

    PREEXISTING = 1
    """It was there before the profiler started."""
    CREATE = 2
    INCREMENT_VERSION = 3
    DESTROY = 4


PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = range(1, 5)


@dataclass(slots=True)
class Blocks:
    """Storages without a tensor.

    Attributes:
        created, destroyed: rows of the allocation table, -1 for what lies outside the
            trace.
        size: bytes.
        device: index in ``EventColumns.devices``.
    """

    created: Ints
    destroyed: Ints
    size: Ints
    device: Ints

    def __len__(self) -> int:
        return len(self.size)


@dataclass(slots=True)
class Timeline:
    """The timeline in columns, sorted by time, then action.

    Attributes:
        time: ns; -1 for what was there before.
        action: number of an ``Action``.
        key: row of the key table, -1 for a storage without a tensor.
        block: row of ``blocks``, -1 for a storage with a tensor.
        version: version that the entry ends or makes; see ``Action``. An increment
            names the version before it.
        size: bytes, never negative.
        device: index in ``EventColumns.devices``.
        blocks: storages without a tensor.
    """

    time: Ints
    action: Bytes
    key: Ints
    block: Ints
    version: Ints
    size: Ints
    device: Ints
    blocks: Blocks

    def __len__(self) -> int:
        return len(self.time)


def build_timeline(columns: EventColumns, graph: Graph, categories: Categories) -> Timeline:
    """The timeline of a trace."""
    keys, allocations = columns.keys, columns.allocations
    entries, blocks = _anonymous(columns)

    made_at = np.full(len(keys), np.iinfo(np.int64).min)
    freed_at = made_at.copy()
    known = np.flatnonzero(allocations.key >= 0)
    grows = known[allocations.size[known] > 0]
    shrinks = known[allocations.size[known] <= 0]
    made_at[allocations.key[grows]] = allocations.start[grows]
    freed_at[allocations.key[shrinks]] = allocations.start[shrinks]
    has_made = np.zeros(len(keys), np.bool_)
    has_made[allocations.key[grows]] = True

    by_rank = np.argsort(keys.rank)
    before = by_rank[(categories.present & ~has_made)[by_rank]]
    n = len(before)
    entries.append((np.full(n, -1), np.full(n, PREEXISTING), before, np.zeros(n, np.int64)))

    # An edge has up to two entries, its own order kept: made or written, then released.
    last = np.diff(graph.first_value) - 1
    allocates, frees = graph.allocates, graph.frees
    first = allocates | graph.mutated
    start = columns.leaves.start[graph.leaf]
    time = np.where(allocates, made_at[graph.edge_key], start[graph.edge_node])
    edge = np.concatenate([np.flatnonzero(first), np.flatnonzero(frees)])
    action = np.where(allocates, CREATE, INCREMENT_VERSION)[first]
    action = np.concatenate([action, np.full(int(frees.sum()), DESTROY)])
    when = np.concatenate([time[first], freed_at[graph.edge_key[frees]]])
    version = np.concatenate(
        [np.where(allocates, 0, graph.version)[first], last[graph.edge_key[frees]]]
    )
    order = np.argsort(edge * 2 + (action == DESTROY), kind="stable")
    entries.append((when[order], action[order], graph.edge_key[edge][order], version[order]))

    time, action, subject, version = (np.concatenate(c) for c in zip(*entries, strict=True))
    order = np.lexsort((action, time))
    time, action, subject, version = time[order], action[order], subject[order], version[order]
    key = np.where(subject >= 0, subject, -1)
    block = np.where(subject < 0, -1 - subject, -1)
    # Indexing with -1 reads the last row; `where` then drops it.
    size = np.where(key >= 0, _take(keys.size, key), _take(blocks.size, block))
    device = np.where(key >= 0, _take(keys.device, key), _take(blocks.device, block))
    return Timeline(
        time=frozen(time),
        action=frozen(action, np.uint8),
        key=frozen(key),
        block=frozen(block),
        version=frozen(version),
        size=frozen(size),
        device=frozen(device),
        blocks=blocks,
    )


def _take(column: Ints, rows: Ints) -> Ints:
    return column[rows] if len(column) else np.zeros(len(rows), np.int64)


def _anonymous(columns: EventColumns) -> tuple[list[tuple[Ints, Ints, Ints, Ints]], Blocks]:
    """Entries and blocks of storages without a tensor; entries name block b as -1 - b."""
    allocations = columns.allocations
    rows = np.flatnonzero(allocations.key < 0)
    created: list[int] = []
    destroyed: list[int] = []
    size: list[int] = []
    time: list[int] = []
    action: list[int] = []
    subject: list[int] = []
    live: dict[tuple[int, int], int] = {}
    device = allocations.device[rows].tolist()
    for row, at, n, t, d in zip(
        rows.tolist(),
        allocations.ptr[rows].tolist(),
        allocations.size[rows].tolist(),
        allocations.start[rows].tolist(),
        device,
        strict=True,
    ):
        time.append(t)
        if n > 0:
            action.append(INCREMENT_VERSION if (at, d) in live else CREATE)
            live[at, d] = len(size)
            subject.append(-1 - len(size))
            created.append(row)
            destroyed.append(-1)
            size.append(n)
            continue
        block = live.pop((at, d), None)
        action.append(DESTROY)
        if block is None:
            block = len(size)
            created.append(-1)
            destroyed.append(row)
            size.append(-n)
            time.append(-1)
            action.append(PREEXISTING)
            subject.append(-1 - block)
        else:
            destroyed[block] = row
        subject.append(-1 - block)
    which = np.where(np.asarray(created) >= 0, created, destroyed) if size else rows[:0]
    blocks = Blocks(
        frozen(created), frozen(destroyed), frozen(size), frozen(allocations.device[which])
    )
    entry = (frozen(time), frozen(action), frozen(subject), np.zeros(len(time), np.int64))
    return [entry], blocks
