"""When each storage of a trace was made and released.

Note [Storages without a tensor]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The profiler names a storage only if some operator later takes a tensor in it. The rest
(scratch memory of libraries, results nobody reads) is known by address: a change of it
carries no key; one allocation and its release are a *block*. They are put
together in order of time, not of the tree: with Python tracing the main thread is below one
frame, so all of it comes before the backward's thread, which may have released what it made.
Where an address is allocated a second time the release was missed (the garbage collector may
run inside the compiler), and the first block ends there.

Note [One life a storage]
~~~~~~~~~~~~~~~~~~~~~~~~~
A trace can contradict itself: one storage allocated twice, released in two operators, released
before it is allocated, written to before or after. ``Graph.problems`` says so. To everything that
counts bytes a storage has one life, from its first allocation in time to its last release, if that
comes later, and what is done to it lies within: otherwise one view would count it twice and another
once.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from .columns import EventColumns, Ints, at, frozen


class Action(IntEnum):
    """What a change does to a storage; the numbers are torch's."""

    PREEXISTING = 1
    """It was there before the profiler started."""
    CREATE = 2
    INCREMENT_VERSION = 3
    DESTROY = 4


@dataclass(slots=True)
class Storages:
    """Every storage of a trace: first those of the key table, then the blocks.

    Attributes:
        keys: how many have a key; a later row ``r`` is block ``r - keys``.
        created, destroyed: rows of the allocation table, -1 outside the trace.
        size: bytes.
        device: index in ``EventColumns.devices``.
        block_ptr: address of each block.
        start: of each row of the allocation table, ns.
    """

    keys: int
    created: Ints
    destroyed: Ints
    size: Ints
    device: Ints
    block_ptr: Ints
    start: Ints

    def __len__(self) -> int:
        return len(self.size)

    @property
    def born(self) -> Ints:
        """When each was made, ns; the smallest integer for before the trace."""
        return at(self.start, self.created, np.iinfo(np.int64).min)

    @property
    def died(self) -> Ints:
        """When each was released, ns; the largest integer for after the trace."""
        return at(self.start, self.destroyed, np.iinfo(np.int64).max)

    def life(self, storage: int) -> tuple[int, int]:
        """``born`` and ``died`` of one storage."""
        limits = np.iinfo(np.int64)
        made, gone = int(self.created[storage]), int(self.destroyed[storage])
        return (
            int(self.start[made]) if made >= 0 else limits.min,
            int(self.start[gone]) if gone >= 0 else limits.max,
        )


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
    size, device = keys.size, keys.device
    seen = np.where(created[n:] >= 0, created[n:], destroyed[n:])
    if len(seen):
        size = np.concatenate([size, np.abs(allocations.size[seen])])
        device = np.concatenate([device, allocations.device[seen]])
    unnamed = np.flatnonzero(allocations.key < 0)
    return Storages(
        keys=n,
        created=frozen(created),
        destroyed=frozen(destroyed),
        size=frozen(size),
        device=frozen(device),
        block_ptr=frozen(allocations.unnamed_ptr[np.searchsorted(unnamed, seen)]),
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
