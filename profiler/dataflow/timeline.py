"""What happened to memory, in order of time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from .categories import Categories
from .columns import Bytes, EventColumns, Ints, frozen
from .graph import Graph
from .storages import CREATE, DESTROY, INCREMENT_VERSION, PREEXISTING, Storages


class Action(Enum):
    """What happens to a storage at an entry of the timeline."""

    PREEXISTING = 1
    """It was there before the profiler started."""
    CREATE = 2
    INCREMENT_VERSION = 3
    DESTROY = 4


@dataclass(slots=True)
class Timeline:
    """The timeline in columns, sorted by time, then action.

    Attributes:
        time: ns; -1 for what was there before.
        action: number of an ``Action``.
        key: row of the key table, -1 for a storage without a tensor.
        block: number of the storage without a tensor, -1 for one with.
        version: version that the entry ends or makes; see ``Action``. An increment
            names the version before it.
        storages: what ``key`` and ``block`` are rows of.
    """

    time: Ints
    action: Bytes
    key: Ints
    block: Ints
    version: Ints
    storages: Storages

    def __len__(self) -> int:
        return len(self.time)

    @property
    def storage(self) -> Ints:
        """Row of ``storages`` of each entry."""
        return np.where(self.key >= 0, self.key, self.block + np.int32(self.storages.keys))

    @property
    def size(self) -> Ints:
        """Bytes of each entry, never negative."""
        return np.asarray(self.storages.size[self.storage])

    @property
    def device(self) -> Ints:
        """Index in ``EventColumns.devices`` of each entry."""
        return np.asarray(self.storages.device[self.storage])


def build_timeline(
    columns: EventColumns, graph: Graph, categories: Categories, storages: Storages
) -> Timeline:
    """The timeline of a trace."""
    keys, allocations = columns.keys, columns.allocations
    entries = [storages.block_entries]

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
    entries.append(
        (
            np.full(n, -1),
            np.full(n, PREEXISTING, np.uint8),
            before.astype(np.int32),
            np.zeros(n, np.int32),
        )
    )

    # An edge has up to two entries, its own order kept: made or written, then released.
    last = np.diff(graph.first_value) - np.int32(1)
    allocates, frees = graph.allocates, graph.frees
    first = allocates | graph.mutated
    start = columns.leaves.start[graph.leaf]
    time = np.where(allocates, made_at[graph.edge_key], start[graph.edge_node])
    edge = np.concatenate([np.flatnonzero(first), np.flatnonzero(frees)])
    action = np.where(allocates, np.uint8(CREATE), np.uint8(INCREMENT_VERSION))[first]
    action = np.concatenate([action, np.full(int(frees.sum()), DESTROY, np.uint8)])
    when = np.concatenate([time[first], freed_at[graph.edge_key[frees]]])
    version = np.concatenate(
        [np.where(allocates, np.int32(0), graph.version)[first], last[graph.edge_key[frees]]]
    )
    order = np.argsort(edge * 2 + (action == DESTROY), kind="stable")
    entries.append((when[order], action[order], graph.edge_key[edge][order], version[order]))

    del edge, when, order, before
    time, action, subject, version = (np.concatenate(c) for c in zip(*entries, strict=True))
    del entries
    order = np.lexsort((action, time)).astype(np.int32)
    time, action, subject, version = time[order], action[order], subject[order], version[order]
    del order
    key = np.where(subject >= 0, subject, np.int32(-1))
    block = np.where(subject < 0, -1 - subject, np.int32(-1))
    del subject
    return Timeline(
        time=frozen(time),
        action=frozen(action, np.uint8),
        key=frozen(key),
        block=frozen(block),
        version=frozen(version),
        storages=storages,
    )
