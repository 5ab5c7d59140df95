"""When each storage of a trace was made and released.

Note [Storages without a tensor]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The profiler names a storage only if some operator later takes a tensor in it. The rest
(scratch memory of libraries, results nobody reads) is known by address: an entry for it
carries no key but the number of its *block*, one allocation and its release. Two
allocations at one address without a release between them are told as torch tells them, by
an increment of the version: the release was missed.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from .columns import EventColumns, Ints, frozen

PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = range(1, 5)
"""Numbers of ``timeline.Action``."""

Entries = tuple[Ints, Ints, Ints, Ints]
"""Time, action, subject and version of entries of a timeline."""


@dataclass(slots=True)
class Storages:
    """Every storage of a trace: first those of the key table, then the blocks.

    Attributes:
        keys: how many have a key; a later row ``r`` is block ``r - keys``.
        created, destroyed: rows of the allocation table, -1 outside the trace.
        born, died: ns; the smallest and largest integer outside the trace.
        size: bytes.
        device: index in ``EventColumns.devices``.
        block_entries: what the timeline says of blocks; block b is named -1 - b.
    """

    keys: int
    created: Ints
    destroyed: Ints
    born: Ints
    died: Ints
    size: Ints
    device: Ints
    block_entries: Entries

    def __len__(self) -> int:
        return len(self.size)


def lifetimes(columns: EventColumns) -> Storages:
    """When each storage was made and released."""
    allocations, keys = columns.allocations, columns.keys
    n = len(keys)
    block_created, block_destroyed, block_size, entries = _blocks(columns)
    created = np.concatenate([np.full(n, -1, np.int32), block_created])
    destroyed = np.concatenate([np.full(n, -1, np.int32), block_destroyed])
    known = np.flatnonzero(allocations.key >= 0)
    grows, shrinks = known[allocations.size[known] > 0], known[allocations.size[known] < 0]
    created[allocations.key[grows]] = grows
    destroyed[allocations.key[shrinks]] = shrinks
    limits = np.iinfo(np.int64)
    born = np.full(len(created), limits.min)
    died = np.full(len(created), limits.max)
    born[created >= 0] = allocations.start[created[created >= 0]]
    died[destroyed >= 0] = allocations.start[destroyed[destroyed >= 0]]
    seen = np.where(block_created >= 0, block_created, block_destroyed)
    return Storages(
        keys=n,
        created=frozen(created),
        destroyed=frozen(destroyed),
        born=frozen(born),
        died=frozen(died),
        size=frozen(np.concatenate([keys.size, block_size])),
        device=frozen(np.concatenate([keys.device, allocations.device[seen]])),
        block_entries=entries,
    )


def _blocks(columns: EventColumns) -> tuple[Ints, Ints, Ints, Entries]:
    """Storages without a tensor: rows that make and release them, sizes, entries."""
    allocations = columns.allocations
    rows = np.flatnonzero(allocations.key < 0)
    created, destroyed, size, time, action, subject = (array(c) for c in "iiqqBi")
    live: dict[tuple[int, int], int] = {}
    for row, at, n, t, d in zip(
        *(
            c.data
            for c in (
                rows,
                allocations.ptr[rows],
                allocations.size[rows],
                allocations.start[rows],
                allocations.device[rows],
            )
        ),
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
    entries = (frozen(time), frozen(action), frozen(subject), np.zeros(len(time), np.int32))
    return frozen(created), frozen(destroyed), frozen(size), entries
