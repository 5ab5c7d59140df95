"""When each storage of a trace was made and released, and what else happened to it.

Note [Storages without a tensor]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The profiler names a storage only if some operator later takes a tensor in it. The rest (scratch
memory of libraries, results nobody reads) is known by address: one allocation and its release are
a *block*. They are put together in order of time, not of the tree: with Python tracing the main
thread is below one frame, so all of it comes before the backward's thread, which may have released
what it made. Where an address is allocated a second time the release was missed (the garbage
collector may run inside the compiler), and the first block ends there.

Note [One life a storage]
~~~~~~~~~~~~~~~~~~~~~~~~~
A trace can contradict itself: one storage allocated twice, released in two operators, released
before it is allocated, written to before or after. To everything that
counts bytes a storage has one life, from its first allocation in time to its last release, if that
comes later, and what is done to it lies within: otherwise one view would count it twice and another
once.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from ._torch_compat import CREATE, DESTROY, INCREMENT_VERSION, PREEXISTING
from .columns import Bools, Bytes, EventColumns, Ints, at, frozen
from .graph import ALLOCATED, FREED, MUTATED, Graph

_BEFORE, _AFTER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(slots=True)
class Storages:
    """Every storage of a trace: first those of the key table, then the blocks."""

    keys: int  # how many have a key; a later row ``r`` is block ``r - keys``
    created: Ints  # row of the allocation table, -1 before the trace
    destroyed: Ints  # row of the allocation table, -1 after the trace
    size: Ints
    device: Ints  # index in ``EventColumns.devices``
    start: Ints  # of each row of the allocation table, ns

    def __len__(self) -> int:
        return len(self.size)

    @property
    def born(self) -> Ints:
        """When each was made, ns; the smallest integer for before the trace."""
        return at(self.start, self.created, _BEFORE)

    @property
    def died(self) -> Ints:
        """When each was released, ns; the largest integer for after the trace."""
        return at(self.start, self.destroyed, _AFTER)


def lifetimes(columns: EventColumns) -> Storages:
    """When each storage was made and released."""
    allocations, keys = columns.allocations, columns.keys
    n = len(keys)
    created, destroyed = (np.concatenate([np.full(n, -1, np.int32), c]) for c in _blocks(columns))
    # See Note [One life a storage]; the last of several assignments counts.
    known = np.flatnonzero(allocations.key >= 0)
    known = known[np.argsort(allocations.start[known], kind="stable")]
    grows, shrinks = known[allocations.size[known] > 0], known[allocations.size[known] < 0]
    created[allocations.key[grows[::-1]]] = grows[::-1]
    destroyed[allocations.key[shrinks]] = shrinks
    if len(allocations):
        made, gone = created[:n], destroyed[:n]
        gone[(made >= 0) & (gone >= 0) & (allocations.start[gone] < allocations.start[made])] = -1
    seen = np.where(created[n:] >= 0, created[n:], destroyed[n:])
    size = np.concatenate([keys.size, np.abs(allocations.size[seen])])
    device = np.concatenate([keys.device, allocations.device[seen]])
    return Storages(
        keys=n,
        created=frozen(created),
        destroyed=frozen(destroyed),
        size=frozen(size),
        device=frozen(device),
        start=allocations.start,
    )


def _blocks(columns: EventColumns) -> tuple[array[int], array[int]]:
    """Allocation rows that make and release each storage without a tensor, -1 if none does."""
    allocations = columns.allocations
    rows = np.flatnonzero(allocations.key < 0)
    order = np.argsort(allocations.start[rows], kind="stable")
    rows = rows[order]
    of_rows = (allocations.unnamed_ptr[order], allocations.size[rows], allocations.device[rows])
    created, destroyed = array("i"), array("i")
    live: dict[tuple[int, int], int] = {}
    for row, ptr, size, device in zip(rows.data, *(c.data for c in of_rows), strict=True):
        block = live.pop((ptr, device), None)
        if block is not None:
            destroyed[block] = row
        elif size < 0:
            created.append(-1)
            destroyed.append(row)
        if size > 0:
            live[ptr, device] = len(created)
            created.append(row)
            destroyed.append(-1)
    return created, destroyed


@dataclass(slots=True)
class Changes:
    """All changes in columns, sorted by time, then action."""

    time: Ints  # ns; -1 for what was there before
    action: Bytes  # PREEXISTING, CREATE, INCREMENT_VERSION or DESTROY
    storage: Ints  # row of ``storages``
    version: Ints  # that the change ends or makes; an increment names the version before it
    storages: Storages

    def __len__(self) -> int:
        return len(self.time)

    @property
    def key(self) -> Ints:
        """Row of the key table, -1 for a storage without a tensor."""
        return np.where(self.storage < self.storages.keys, self.storage, np.int32(-1))

    @property
    def size(self) -> Ints:
        """Bytes of each change, never negative."""
        return np.asarray(self.storages.size[self.storage])

    @property
    def device(self) -> Ints:
        """Index in ``EventColumns.devices`` of each change."""
        return np.asarray(self.storages.device[self.storage])


def find_changes(
    columns: EventColumns, graph: Graph, counted: Bools, storages: Storages
) -> Changes:
    """Everything that happened to the memory of a trace; ``counted`` are storages of the key table
    that were there before and take part."""
    created, destroyed = storages.created, storages.destroyed
    blocks = np.arange(storages.keys, len(storages), dtype=np.int32)
    counted = counted | (created[: storages.keys] >= 0)
    by_rank = np.argsort(columns.keys.rank).astype(np.int32)
    there = np.concatenate([blocks, by_rank[counted[by_rank]]])

    def edges(chosen: Ints) -> Ints:
        found = np.flatnonzero(chosen)
        return found[counted[graph.edge_key[found]]]

    # A storage is made once and released once, see Note [One life a storage].
    made = _first_of_each(graph, edges(graph.flags & ALLOCATED))
    freed = _first_of_each(graph, edges(graph.flags & FREED)[::-1])
    made, freed = graph.edge_key[made], graph.edge_key[freed]
    made = np.concatenate([blocks[created[blocks] >= 0], made])
    freed = np.concatenate([blocks[np.argsort(destroyed[blocks])], freed])
    freed = freed[destroyed[freed] >= 0]
    last = np.zeros(len(storages), np.int32)
    last[: storages.keys] = np.diff(graph.first_value) - 1
    edge = edges((graph.flags & (MUTATED | ALLOCATED)) == MUTATED)
    written = graph.edge_key[edge]
    node = np.searchsorted(graph.bounds, edge, side="right") - 1
    begun = columns.leaves.start[graph.leaf[node]]

    there = there[created[there] < 0]
    storage = np.concatenate([there, made, written, freed])
    actions = np.asarray([PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY], np.uint8)
    action = np.repeat(actions, [len(there), len(made), len(written), len(freed)])
    version = np.zeros(len(storage), np.int32)
    version[action == INCREMENT_VERSION] = graph.version[edge]
    version[action == DESTROY] = last[freed]
    begun = np.clip(begun, storages.born[written], storages.died[written])
    start = storages.start
    time = np.concatenate(
        [np.full(len(there), -1), start[created[made]], begun, start[destroyed[freed]]]
    )
    # Stable: what is equal stays in order of blocks, then of the graph.
    order = np.lexsort((action, time)).astype(np.int32)
    time, action, storage, version = (frozen(c[order]) for c in (time, action, storage, version))
    return Changes(time, action, storage, version, storages)


def _first_of_each(graph: Graph, edges: Ints) -> Ints:
    """First edge of each storage, of edges as they are given; in order of the graph."""
    _, first = np.unique(graph.edge_key[edges], return_index=True)
    return np.sort(edges[first])
