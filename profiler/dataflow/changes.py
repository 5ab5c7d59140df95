"""What happened to memory, in order of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .categories import Categories
from .columns import Bytes, EventColumns, Ints, frozen
from .graph import ALLOCATED, FREED, MUTATED, Graph
from .storages import Action, Storages


@dataclass(slots=True)
class Changes:
    """All changes in columns, sorted by time, then action.

    Attributes:
        time: ns; -1 for what was there before.
        action: number of an ``Action``.
        storage: row of ``storages``.
        version: version that the change ends or makes; see ``Action``. An increment
            names the version before it.
        storages: what ``storage`` names.
    """

    time: Ints
    action: Bytes
    storage: Ints
    version: Ints
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
    columns: EventColumns, graph: Graph, categories: Categories, storages: Storages
) -> Changes:
    """Everything that happened to the memory of a trace."""
    created, destroyed = storages.created, storages.destroyed
    blocks = np.arange(storages.keys, len(storages), dtype=np.int32)
    # Memory that was there before and is not to be counted changes nothing.
    counted = categories.present | (created[: storages.keys] >= 0)
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
    action = np.repeat(
        np.asarray(Action, np.uint8), [len(there), len(made), len(written), len(freed)]
    )
    version = np.zeros(len(storage), np.int32)
    version[action == Action.INCREMENT_VERSION] = graph.version[edge]
    version[action == Action.DESTROY] = last[freed]
    time = np.concatenate(
        [
            np.full(len(there), -1),
            storages.start[created[made]],
            np.clip(begun, storages.born[written], storages.died[written]),
            storages.start[destroyed[freed]],
        ]
    )
    # Stable: what is equal stays in order of blocks, then of the graph.
    order = np.lexsort((action, time)).astype(np.int32)
    return Changes(
        time=frozen(time[order]),
        action=frozen(action[order]),
        storage=frozen(storage[order]),
        version=frozen(version[order]),
        storages=storages,
    )


def _first_of_each(graph: Graph, edges: Ints) -> Ints:
    """Of edges of one storage the first, as they are given; in order of the graph."""
    _, first = np.unique(graph.edge_key[edges], return_index=True)
    return np.sort(edges[first])
