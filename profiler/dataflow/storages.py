"""When each storage of a trace was made and released.

Note [Storages without a tensor]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The profiler names a storage only if some operator later takes a tensor in it. The rest
(scratch memory of libraries, results nobody reads) is known by address: a change of it
carries no key but the number of its *block*, one allocation and its release. They are put
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

import numpy as np

from .columns import EventColumns, Ints, frozen

PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = range(1, 5)
"""Numbers of ``changes.Action``."""

Changed = tuple[Ints, Ints, Ints]
"""Time, action and subject of changes; their version is 0."""


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
        block_changes: what happened to blocks; block b is named -1 - b.
    """

    keys: int
    created: Ints
    destroyed: Ints
    size: Ints
    device: Ints
    block_ptr: Ints
    start: Ints
    block_changes: Changed

    def __len__(self) -> int:
        return len(self.size)

    @property
    def born(self) -> Ints:
        """When each was made, ns; the smallest integer for before the trace."""
        return self._times(self.created, np.iinfo(np.int64).min)

    @property
    def died(self) -> Ints:
        """When each was released, ns; the largest integer for after the trace."""
        return self._times(self.destroyed, np.iinfo(np.int64).max)

    def _times(self, rows: Ints, outside: int) -> Ints:
        times = np.full(len(rows), outside)
        known = rows >= 0
        times[known] = self.start[rows[known]]
        return times

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
    block_created, block_destroyed, block_size, block_ptr, changes = _blocks(columns)
    created = np.concatenate([np.full(n, -1, np.int32), block_created])
    destroyed = np.concatenate([np.full(n, -1, np.int32), block_destroyed])
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
    seen = np.where(block_created >= 0, block_created, block_destroyed)
    if len(seen):
        size = np.concatenate([size, block_size])
        device = np.concatenate([device, allocations.device[seen]])
    return Storages(
        keys=n,
        created=frozen(created),
        destroyed=frozen(destroyed),
        size=frozen(size),
        device=frozen(device),
        block_ptr=block_ptr,
        start=allocations.start,
        block_changes=changes,
    )


def _blocks(columns: EventColumns) -> tuple[Ints, Ints, Ints, Ints, Changed]:
    """Storages without a tensor: rows that make and release them, sizes, addresses, changes."""
    allocations = columns.allocations
    rows = np.flatnonzero(allocations.key < 0)
    order = np.argsort(allocations.start[rows], kind="stable")
    rows = rows[order]
    created, destroyed, size, ptr, time, action, subject = (array(c) for c in "iiqqqBi")
    live: dict[tuple[int, int], int] = {}
    for row, at, n, t, d in zip(
        *(
            c.data
            for c in (
                rows,
                allocations.unnamed_ptr[order],
                allocations.size[rows],
                allocations.start[rows],
                allocations.device[rows],
            )
        ),
        strict=True,
    ):
        block = live.pop((at, d), None)
        if block is not None or n < 0:
            if block is None:
                block = len(size)
                created.append(-1)
                destroyed.append(row)
                size.append(-n)
                ptr.append(at)
                time.append(-1)
                action.append(PREEXISTING)
                subject.append(-1 - block)
            else:
                destroyed[block] = row
            time.append(t)
            action.append(DESTROY)
            subject.append(-1 - block)
        if n > 0:
            live[at, d] = len(size)
            time.append(t)
            action.append(CREATE)
            subject.append(-1 - len(size))
            created.append(row)
            destroyed.append(-1)
            size.append(n)
            ptr.append(at)
    changes = (frozen(time), frozen(action), frozen(subject))
    return frozen(created), frozen(destroyed), frozen(size), frozen(ptr), changes
