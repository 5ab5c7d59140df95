"""The allocation program of one compiled call: storages and what happens to them, in order.

A program is observed once and then stands for every later call of the same graph with
the same sizes: generated code allocates and releases the same bytes at the same lines.

An *instant* of a program is a number from 0 to ``len(events)``: instant ``i`` is the state
after the first ``i`` events. Instant 0 is the entry of the call, with its inputs live.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from .category import Category
from .limits import Count, Int


class Origin(str, Enum):
    """Origin of a storage."""

    INPUT = "input"
    """A storage that was live when the call began and is reachable from its arguments."""
    BUFFER = "buffer"
    """A named buffer of the generated code."""
    EXTERNAL = "external"
    """A storage that was live when the call began and is held by something other than its
    arguments: a tensor constant of the graph, or memory that an operator keeps for itself."""
    INTERNAL = "internal"
    """Scratch memory that a kernel allocated for itself; it has no name, only a line."""


class EventKind(str, Enum):
    """Kind of an event in the life of a storage."""

    ALLOC = "alloc"
    FREE = "free"
    REUSE = "reuse"
    """The storage passes from one buffer name to another; no bytes change."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One block of memory seen by a program.

    Attributes:
        id: index in ``AllocationProgram.storages``.
        nbytes: that the allocator handed out.
        name: graph input name, first buffer name, or "" for internal memory.
        category: what it is for, see Note [How a category is decided].
        identity: number that names this storage in the whole process, for storages that
            outlive a call (inputs and outputs); the same number in two programs is the
            same memory. None for what lives and dies inside.
        inputs, outputs: indices of the graph inputs and outputs that point into it.
    """

    id: Int
    nbytes: Count
    device: str
    origin: Origin
    name: str
    category: Category
    identity: Int | None = None
    inputs: tuple[Int, ...] = ()
    outputs: tuple[Int, ...] = ()

    @property
    def at_entry(self) -> bool:
        """Whether the storage was live before the call began."""
        return self.origin is Origin.INPUT or self.origin is Origin.EXTERNAL


@dataclass(frozen=True, slots=True)
class Event:
    """One step of a program.

    Attributes:
        storage: index in ``AllocationProgram.storages``.
        line: of the generated code, from 1; 0 before its first statement.
        owner: name of the buffer that owns the storage from here on, or None for
            internal memory and for FREE.
    """

    kind: EventKind
    storage: Int
    line: Count
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class LiveStorage:
    """A storage at an instant, with the buffer that owns it then."""

    storage: Storage
    owner: str | None
    line: Int


@dataclass(frozen=True, slots=True)
class AllocationProgram:
    """Allocations and frees of one call of one graph.

    Attributes:
        key: values of the graph's symbolic sizes: of its integer inputs, in input order, then
            of dimensions of its tensors that none of these gives; () where there are none.
            Programs of one graph differ in their key.
        storages: ``storages[i].id == i``.
        events: in order of time.
        internal_observed: whether scratch memory inside kernels was measured; False when
            another profiler was running at the time.
        kept_bytes: bytes that kernels allocated in the observed call and did not give back,
            such as workspaces and packed weights. Later calls find them in place, so they
            are in no storage of this program.
        host_ns: duration of the observed call, observation included.
    """

    key: tuple[Int, ...]
    storages: tuple[Storage, ...]
    events: tuple[Event, ...]
    internal_observed: bool = True
    kept_bytes: Int = 0
    host_ns: Int = 0

    @property
    def entry_bytes(self) -> int:
        """Bytes live at instant 0: inputs, and what the graph holds elsewhere."""
        return sum(s.nbytes for s in self.storages if s.at_entry)

    @property
    def allocated_bytes(self) -> int:
        """Bytes that the call allocates, all allocations added up."""
        allocs = (e for e in self.events if e.kind is EventKind.ALLOC)
        return sum(self.storages[e.storage].nbytes for e in allocs)

    def deltas(self) -> list[int]:
        """Signed byte change of each event."""
        sign = {EventKind.ALLOC: 1, EventKind.FREE: -1, EventKind.REUSE: 0}
        return [sign[e.kind] * self.storages[e.storage].nbytes for e in self.events]

    def peak(self) -> tuple[int, int]:
        """``(instant, bytes)`` of the first instant with the most live bytes, inputs included."""
        live = list(accumulate(self.deltas(), initial=self.entry_bytes))
        most = max(live)
        return live.index(most), most

    def live_at(self, instant: int) -> list[LiveStorage]:
        """Storages live at ``instant``, in the order in which they came to life.

        Raises:
            IndexError: ``instant`` is not in ``0 .. len(events)``.
        """
        if not 0 <= instant <= len(self.events):
            raise IndexError(
                f"instant {instant} is outside this program, which has 0 to {len(self.events)}"
            )
        live = {s.id: LiveStorage(s, s.name or None, 0) for s in self.storages if s.at_entry}
        for e in self.events[:instant]:
            if e.kind is EventKind.FREE:
                live.pop(e.storage, None)
            else:
                live[e.storage] = LiveStorage(self.storages[e.storage], e.owner, e.line)
        return list(live.values())

    def surviving(self) -> list[LiveStorage]:
        """Storages live when the call has returned."""
        return self.live_at(len(self.events))
