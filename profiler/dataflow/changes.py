"""What happened to memory, in order of time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from .categories import Categories
from .columns import Bytes, EventColumns, Ints, frozen
from .graph import ALLOCATED, FREED, MUTATED, Graph
from .storages import CREATE, DESTROY, INCREMENT_VERSION, PREEXISTING, Storages


class Action(Enum):
    """What a change does to a storage."""

    PREEXISTING = 1
    """It was there before the profiler started."""
    CREATE = 2
    INCREMENT_VERSION = 3
    DESTROY = 4


@dataclass(slots=True)
class Changes:
    """All changes in columns, sorted by time, then action.

    Attributes:
        time: ns; -1 for what was there before.
        action: number of an ``Action``, which are torch's.
        subject: row of the key table, or ``-1 - b`` for block ``b``.
        version: version that the change ends or makes; see ``Action``. An increment
            names the version before it.
        storages: what ``subject`` names.
    """

    time: Ints
    action: Bytes
    subject: Ints
    version: Ints
    storages: Storages

    def __len__(self) -> int:
        return len(self.time)

    @property
    def key(self) -> Ints:
        """Row of the key table, -1 for a storage without a tensor."""
        return np.maximum(self.subject, np.int32(-1))

    @property
    def block(self) -> Ints:
        """Number of the storage without a tensor, -1 for one with."""
        return np.maximum(np.int32(-1) - self.subject, np.int32(-1))

    @property
    def storage(self) -> Ints:
        """Row of ``storages`` of each change."""
        of_block = np.int32(self.storages.keys - 1) - self.subject
        return np.where(self.subject >= 0, self.subject, of_block)

    @property
    def size(self) -> Ints:
        """Bytes of each change, never negative."""
        return np.asarray(self.storages.size[self.storage])

    @property
    def device(self) -> Ints:
        """Index in ``EventColumns.devices`` of each change."""
        return np.asarray(self.storages.device[self.storage])


def find_changes(
    columns: EventColumns, graph: Graph, categories: Categories, storages: Storages
) -> Changes:
    """Everything that happened to the memory of a trace."""
    start, flags = columns.allocations.start, graph.flags
    by_rank = np.argsort(columns.keys.rank).astype(np.int32)
    created = storages.created[: storages.keys]
    before = by_rank[(categories.present & (created < 0))[by_rank]]
    del by_rank
    # An edge has up to two changes, its own order kept: made or written, then released. A storage
    # is made once and released once, see Note [One life a storage].
    written = np.flatnonzero(((flags & MUTATED) != 0) & ((flags & ALLOCATED) == 0))
    made = _first_of_each(graph, np.flatnonzero(flags & ALLOCATED))
    first = np.sort(np.concatenate([written, made])).astype(np.int32)
    frees = _first_of_each(graph, np.flatnonzero(flags & FREED)[::-1]).astype(np.int32)
    frees = frees[storages.destroyed[graph.edge_key[frees]] >= 0]
    del written, made
    # Memory that was there before and is not to be counted changes nothing, either.
    counted = categories.present | (created >= 0)
    if not counted.all():
        first = first[counted[graph.edge_key[first]]]
        frees = frees[counted[graph.edge_key[frees]]]
    del counted

    blocks, preexisting, ends = np.cumsum(
        [len(storages.block_changes[0]), len(before), len(first)]
    ).tolist()
    n = ends + len(frees)
    time, action = np.empty(n, np.int64), np.empty(n, np.uint8)
    subject, version = np.empty(n, np.int32), np.zeros(n, np.int32)
    for column, values in zip((time, action, subject), storages.block_changes, strict=True):
        column[:blocks] = values
    time[blocks:preexisting] = -1
    action[blocks:preexisting] = PREEXISTING
    subject[blocks:preexisting] = before

    key, makes = graph.edge_key[first], (flags[first] & ALLOCATED) != 0
    subject[preexisting:ends] = key
    action[preexisting:ends] = np.where(makes, np.uint8(CREATE), np.uint8(INCREMENT_VERSION))
    version[preexisting:ends] = np.maximum(graph.version[first], 0)
    node = np.searchsorted(graph.bounds, first, side="right") - 1
    time[preexisting:ends] = np.where(
        makes,
        start[created[key]] if len(start) else 0,
        np.clip(columns.leaves.start[graph.leaf[node]], storages.born[key], storages.died[key]),
    )
    del node, makes
    key = graph.edge_key[frees]
    subject[ends:] = key
    action[ends:] = DESTROY
    version[ends:] = graph.first_value[key + 1] - graph.first_value[key] - 1
    time[ends:] = start[storages.destroyed[key]]
    del key

    position = np.arange(n, dtype=np.int64) - preexisting
    position[preexisting:ends], position[ends:] = first, frees
    position[preexisting:] *= 2
    position[ends:] += 1
    del first, frees, before
    order = np.lexsort((position, action, time)).astype(np.int32)
    del position
    time = time[order]
    action = action[order]
    subject = subject[order]
    version = version[order]
    return Changes(
        time=frozen(time),
        action=frozen(action, np.uint8),
        subject=frozen(subject),
        version=frozen(version),
        storages=storages,
    )


def _first_of_each(graph: Graph, edges: Ints) -> Ints:
    """Of edges of one storage the first, as they are given; in order of the graph."""
    _, first = np.unique(graph.edge_key[edges], return_index=True)
    return np.sort(edges[first])
