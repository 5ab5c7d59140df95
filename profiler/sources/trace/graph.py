"""The data-flow graph: which leaf operator reads, writes, makes and releases which version.

Note [Versions]
~~~~~~~~~~~~~~~
A storage starts at version 0 and every node that writes to it makes the next one. A node is a leaf
and all that happens below it; towards one storage it is one *edge*:

* released and not allocated: it reads the version there is, and ends it;
* allocated and not released: it makes version 0;
* allocated and released: the storage is an intermediate of the node;
* neither: it reads the version there is; where one operator writes to it for certain, or
  none is known to only read it, it makes the next version.

Edges are sorted by (node, storage). The version before an edge is then the number of earlier edges
of the same storage that write. A (storage, version) pair is a *value*; values are numbered so that
those of one storage are neighbours: ``first_value[key] + version``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import (
    AMBIGUOUS,
    NODE,
    READ,
    WRITTEN,
    Bools,
    Bytes,
    EventColumns,
    Ints,
    differs,
    frozen,
)

FREED, ALLOCATED, MUTATED = 8, 16, 64
"""Flags of an edge, besides READ, WRITTEN and AMBIGUOUS. MUTATED follows from the others: it writes
to a storage that lives on."""
_EFFECT_BITS = 6
"""Bits of an edge's flags in a sort key; all but MUTATED fit."""


@dataclass(slots=True)
class Graph:
    """The data-flow graph in columns."""

    leaf: Ints  # of each node; nodes are in order of their start
    backward: Bools  # the node runs in the backward pass
    edge_key: Ints  # storage of each edge; edges are sorted by node, then key rank
    flags: Bytes  # what the edge is made of
    version: Ints  # before the edge, -1 for an allocation
    bounds: Ints  # node ``n`` has the edges ``bounds[n]`` to ``bounds[n + 1]``
    first_value: Ints  # value of version 0 of each key, and the total at the end
    value_key: Ints  # storage of each value

    def __len__(self) -> int:
        return len(self.leaf)

    @property
    def mutated(self) -> Bools:
        """Edges that write to a storage that lives on."""
        return np.asarray((self.flags & MUTATED) != 0)

    @property
    def edge_node(self) -> Ints:
        """The node that each edge belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.bounds))

    @property
    def value_version(self) -> Ints:
        """The version of its storage that each value is."""
        values = np.arange(len(self.value_key), dtype=np.int32)
        values -= self.first_value[self.value_key]
        return values

    @property
    def in_value(self) -> Ints:
        """Value that each edge reads, -1 for an allocation."""
        first = self.first_value[self.edge_key]
        return np.where(self.version < 0, np.int32(-1), first + self.version)

    @property
    def out_value(self) -> Ints:
        """Value that each edge makes, -1 if none."""
        first = self.first_value[self.edge_key]
        made = np.where(self.version < 0, first, first + self.version + np.int32(1))
        makes = np.where(self.version < 0, (self.flags & FREED) == 0, self.mutated)
        return np.where(makes, made, np.int32(-1))

    @property
    def intermediate(self) -> Bools:
        """Edges whose storage lives only in their node."""
        return np.asarray((self.flags & (ALLOCATED | FREED)) == ALLOCATED | FREED)


def build_graph(columns: EventColumns) -> Graph:
    """The data-flow graph of a trace, which may contradict itself."""
    leaves, keys = columns.leaves, columns.keys
    order = np.argsort(leaves.start, kind="stable").astype(np.int32)
    node_of = np.empty(len(leaves), np.int32)
    node_of[order] = np.arange(len(leaves), dtype=np.int32)
    edge_node, edge_key, flags = _edges(columns, node_of)
    allocates, frees = (flags & ALLOCATED) != 0, (flags & FREED) != 0
    uses_of = flags & (READ | WRITTEN | AMBIGUOUS)
    mutated = ((uses_of & WRITTEN) != 0) | (uses_of == AMBIGUOUS)
    mutated &= ~frees
    flags[mutated] |= MUTATED
    bumps = mutated & ~allocates

    # The version before an edge: how many edges of its key have written so far.
    by_key = np.argsort(edge_key, kind="stable")
    sorted_bumps = bumps[by_key]
    written = np.cumsum(sorted_bumps, dtype=np.int32) - sorted_bumps
    firsts = np.flatnonzero(differs(edge_key[by_key]))
    written -= np.repeat(written[firsts], np.diff(np.append(firsts, len(by_key))))
    version = np.empty(len(edge_key), np.int32)
    version[by_key] = written
    del by_key, sorted_bumps, written

    count = np.bincount(edge_key[bumps], minlength=len(keys)) + 1
    first_value = np.concatenate([[0], np.cumsum(count)]).astype(np.int32)
    value_key = np.repeat(np.arange(len(keys), dtype=np.int32), count)
    return Graph(
        leaf=frozen(order),
        backward=frozen(leaves.backward[order] == NODE),
        edge_key=frozen(edge_key),
        flags=frozen(flags),
        version=frozen(np.where(allocates, np.int32(-1), version)),
        bounds=frozen(
            np.searchsorted(edge_node, np.arange(len(leaves) + 1, dtype=np.int32)), np.int32
        ),
        first_value=frozen(first_value),
        value_key=frozen(value_key),
    )


def _edges(columns: EventColumns, node_of: Ints) -> tuple[Ints, Ints, Bytes]:
    """Node, key and flags of every edge, sorted by node and key rank."""
    uses, allocations, keys = columns.use_key, columns.allocations, columns.keys
    named = np.flatnonzero((allocations.key >= 0) & (allocations.size != 0)).astype(np.int32)
    # Node, key and what happens in one number, so that sorting it in place puts together
    # what belongs together.
    n = max(len(keys), 1)
    count = np.diff(columns.leaves.first_use, append=len(uses))
    packed = np.empty(len(uses) + len(named), np.int64)
    of_uses, of_named = packed[: len(uses)], packed[len(uses) :]
    of_uses[:] = np.repeat(node_of, count)
    of_named[:] = node_of[allocations.leaf[named]]
    packed *= n
    of_uses += keys.rank[uses]
    of_named += keys.rank[allocations.key[named]]
    packed <<= _EFFECT_BITS
    of_uses |= columns.use_effect
    of_named |= np.where(allocations.size[named] > 0, np.uint8(ALLOCATED), np.uint8(FREED))
    del named, of_uses, of_named
    packed.sort()
    effect = packed.astype(np.uint8) & np.uint8((1 << _EFFECT_BITS) - 1)
    packed >>= _EFFECT_BITS
    starts = np.flatnonzero(differs(packed))
    flags = np.bitwise_or.reduceat(effect, starts)
    packed = packed[starts]
    del starts, effect
    by_rank = np.empty(len(keys), np.int32)
    by_rank[keys.rank] = np.arange(len(keys), dtype=np.int32)
    node, key = (packed // n).astype(np.int32), by_rank[packed % n]
    return node, key, flags
