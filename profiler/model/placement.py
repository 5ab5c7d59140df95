"""Where the memory of replayed code lies: addresses in a pool of graph trees or in an arena."""

from __future__ import annotations

from dataclasses import dataclass

from .category import Category
from .limits import Count, Int


@dataclass(frozen=True, slots=True)
class PlacedBlock:
    """A storage and where it lies while a replay runs.

    Attributes:
        address: of its first byte; in an arena, counted from the beginning of the graph's
            scratch memory.
        nbytes: that were asked for.
        begin, end: instants at which it is there, ``begin <= i < end``.
        category: what it is for.
        graph: id of the graph whose code made it or has it as an input.
        owner: name in that graph's code, None for scratch memory of a kernel.
        line: of that code, at which the owner got it; 0 for what is there at the beginning.
        inputs: graph inputs that point into it, where known.
        node: number of the earlier recording whose output it is, None for this one's own.
    """

    address: Count
    nbytes: Count
    begin: Int
    end: Int
    category: Category
    graph: Int
    owner: str | None = None
    line: Int = 0
    inputs: tuple[Int, ...] = ()
    node: Int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """One recording of a graph, or its plan in an arena: every replay uses these addresses.

    An *instant* is a number from 0 to ``len(lines)``: instant ``i`` is after the first ``i``
    allocations and releases.

    Attributes:
        pool: ``cuda:0`` for the pool of the graph trees on that device, ``cpu arena`` for the
            scratch memory of a graph in the arena.
        key: values of the graph's integer inputs.
        node: number of the recording, None in an arena.
        segments: (first address, bytes) of what the pool had from the system by then.
        lines: line of the generated code of each event, 0 where unknown.
        blocks: by address, then by ``begin``.
    """

    pool: str
    key: tuple[Int, ...]
    node: Int | None
    segments: tuple[tuple[Count, Count], ...]
    lines: tuple[Int, ...]
    blocks: tuple[PlacedBlock, ...]

    def live_at(self, instant: int) -> list[PlacedBlock]:
        """Blocks that are there at an instant, by address."""
        return [b for b in self.blocks if b.begin <= instant < b.end]
