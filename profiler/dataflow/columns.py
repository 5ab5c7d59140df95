"""The columns that one pass over a profiler's event tree leaves behind.

Four tables, one array a column. A row is named by its index; -1 is "none". Times are
nanoseconds since the epoch, as the profiler gives them, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]
"""Rows and counts are of 32 bits, times, addresses and sizes of 64."""
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]


FORWARD, ENGINE, NODE = 0, 1, 2
"""Part of the backward an event is in: none; the engine around a node; a node itself."""


class ScopeKind(IntEnum):
    """A range of a trace that says something about what is allocated inside it."""

    MODULE = 1
    """Call of an ``nn.Module``."""
    OPTIMIZER_STEP = 2
    PROFILER_STEP = 3
    """From one ``profile.step()`` to the next."""
    COMPILED_CALL = 4
    """One call of a compiled graph."""
    GENERATED_CODE = 5
    """The generated function inside it; the name says which file."""
    COMPILER = 6
    """The compiler at work; nothing below it is looked at."""
    RANGE = 7
    """A ``record_function`` of the user's."""


@dataclass(slots=True)
class KeyTable:
    """Storages. A storage is named by device, tensor id and allocation id.

    Attributes:
        id: the profiler's tensor id: storages that one tensor has had share it.
        allocation: number of the allocation.
        ptr: address.
        device: index in ``EventColumns.devices``.
        size: bytes; from the allocator where it was seen to allocate or free the
            storage, else the largest extent of the tensors seen in it, else 0.
        rank: position among all keys ordered by id, allocation and device.
        tensor_index: ``id`` renumbered from 0 without gaps.
    """

    id: Ints
    allocation: Ints
    ptr: Ints
    device: Ints
    size: Ints
    rank: Ints
    tensor_index: Ints

    def __len__(self) -> int:
        return len(self.id)


@dataclass(slots=True)
class LeafTable:
    """Events that become nodes of the data-flow graph, in order of the tree.

    A leaf is the outermost operator with a schema, a backward node of autograd, or an
    allocation or release outside both.

    Attributes:
        event: number of the event in the walk.
        start: ns.
        name: index in ``EventColumns.names``, -1 for an allocation.
        backward: FORWARD, ENGINE or NODE; a backward node is in NODE.
        scope: innermost row of the scope table around it.
        sequence: autograd sequence number, -1 if none.
    """

    event: Ints
    start: Ints
    name: Ints
    backward: Bytes
    scope: Ints
    sequence: Ints

    def __len__(self) -> int:
        return len(self.event)


_Table = TypeVar("_Table", "LeafTable", "AllocationTable")


@dataclass(slots=True)
class UseTable:
    """Tensors passed to operators at or below a leaf.

    Attributes:
        leaf, key: rows of those tables.
        effect: READ, WRITTEN or AMBIGUOUS of ``schema``.
    """

    leaf: Ints
    key: Ints
    effect: Bytes

    def __len__(self) -> int:
        return len(self.leaf)


@dataclass(slots=True)
class AllocationTable:
    """Allocations (positive ``size``) and releases (negative), in order of the tree.

    Attributes:
        event: number of the event in the walk.
        leaf: leaf that it is or lies in.
        key: its storage; -1 where the profiler knows no tensor for it.
        size: signed bytes.
        device: index in ``EventColumns.devices``.
        start: ns.
        op: innermost operator around it, index in ``EventColumns.names``.
        scope: innermost row of the scope table around it.
        reserved, allocated: what the caching allocator held afterwards, bytes; -1 on
            devices without one.
        unnamed_ptr: addresses of the rows without a key, in order; the others' are in the
            key table.
    """

    event: Ints
    leaf: Ints
    key: Ints
    size: Ints
    device: Ints
    start: Ints
    op: Ints
    scope: Ints
    reserved: Ints
    allocated: Ints
    unnamed_ptr: Ints

    def __len__(self) -> int:
        return len(self.event)


@dataclass(slots=True)
class ScopeTable:
    """Ranges of interest, a tree; parents come before children.

    Attributes:
        kind: a ``ScopeKind``.
        name: index in ``EventColumns.names``.
        parent: row, -1 at the top.
        start, end: ns.
        event: number of the event in the walk.
        identity: for a module, ``id()`` of it in the profiled process; else 0.
        backward: FORWARD, ENGINE or NODE.
    """

    kind: Bytes
    name: Ints
    parent: Ints
    start: Ints
    end: Ints
    event: Ints
    identity: Ints
    backward: Bytes

    def __len__(self) -> int:
        return len(self.kind)

    def around(self, *kinds: ScopeKind, outermost: bool = False) -> Ints:
        """Of every row the innermost, or outermost, row of these kinds that it is or lies in, -1
        where there is none. One entry more, -1, for what has no scope: its row is -1."""
        found: list[int] = []
        for kind, parent in zip(self.kind.tolist(), self.parent.tolist(), strict=True):
            above = found[parent] if parent >= 0 else -1
            own = kind in kinds and not (outermost and above >= 0)
            found.append(len(found) if own else above)
        return np.asarray([*found, -1], np.int32)


@dataclass(slots=True)
class FunctionCall:
    """The call of AOTAutograd's autograd function: a compiled forward or backward.

    Attributes:
        start, end: ns.
        backward: it is the backward of the function.
        keys: key of each tensor argument, in order; -1 for one without a storage.
    """

    start: int
    end: int
    backward: bool
    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that failed for want of memory.

    Attributes:
        event: number of the event in the walk.
        time: ns.
        device: ``torch.device`` that had no more, None if unknown.
        op: innermost operator around it, index in ``EventColumns.names``, -1 if none.
        scope: innermost row of the scope table around it.
    """

    event: int
    time: int
    device: Any
    op: int
    scope: int


@dataclass(slots=True)
class EventColumns:
    """Everything that the analysis reads of a profiler run.

    Attributes:
        events: events visited.
        keys, leaves, uses, allocations, scopes: the tables.
        names: operator, range and module names, without repetition.
        threads: (first event, the profiler's number of the thread) of each stretch of
            the walk that is of one thread.
        devices: ``torch.device`` objects.
        gradients, parameters, optimizer_states: keys that ``.grad``, a module or an
            optimizer names as such, in order of the trace, with repetitions.
        function_calls: calls of compiled autograd functions.
        out_of_memory: allocations that failed, in order of time.
        skipped_ns: time inside the compiler, which was not looked at.
        skip_compiler: whether it would have been left out: numbers of events depend on it.
        read: how many leaves, allocations, addresses and devices were read of the run;
            ``replays.py`` adds more behind them. None: all.
        kineto: the profiler's result, None for columns that were made by hand.
    """

    events: int
    keys: KeyTable
    leaves: LeafTable
    uses: UseTable
    allocations: AllocationTable
    scopes: ScopeTable
    names: list[str]
    threads: list[tuple[int, int]]
    devices: list[Any]
    gradients: Ints
    parameters: Ints
    optimizer_states: Ints
    function_calls: list[FunctionCall] = field(default_factory=list)
    out_of_memory: list[FailedAllocation] = field(default_factory=list)
    skipped_ns: int = 0
    skip_compiler: bool = True
    kineto: Any = None
    read: tuple[int, int, int, int] | None = None
    _again: Callable[[], UseTable] | None = field(default=None, repr=False, compare=False)

    @property
    def begin(self) -> int:
        """When the first event of interest began, ns; 0 without any."""
        starts = np.concatenate([self.leaves.start, self.scopes.start])
        return int(starts.min()) if len(starts) else 0

    def thread_of(self, events: Ints) -> Ints:
        """The thread of each event, given by number."""
        if not self.threads:
            return np.zeros(len(events), np.int64)
        first, thread = (np.asarray(c, np.int64) for c in zip(*self.threads, strict=True))
        return np.asarray(thread[np.searchsorted(first, events, side="right") - 1])

    def drop_uses(self) -> None:
        """Forget what only the data-flow graph is made from, while it is made; ``uses_are`` must
        follow."""
        uses = self.uses
        self.uses = UseTable(uses.leaf[:0].copy(), uses.key[:0].copy(), uses.effect[:0].copy())

    def uses_are(self, again: Callable[[], UseTable]) -> None:
        """Say how to have ``uses`` back, or what is as good for making a graph."""
        self._again = again

    def all_uses(self) -> UseTable:
        """``uses``, also after they were dropped: then one row for all that a leaf and what is
        below it did to a storage."""
        return self.uses if self._again is None else self._again()

    @property
    def lengths(self) -> tuple[int, int, int, int]:
        """Rows of leaves and allocations, addresses without a name, devices."""
        rows = self.allocations
        return len(self.leaves), len(rows), len(rows.unnamed_ptr), len(self.devices)

    def as_read(self) -> EventColumns:
        """The columns without what ``replays.py`` added to them, for another profile of the same
        run; the two share their arrays, and neither's additions become the other's."""
        leaves, allocations, addresses, devices = self.read or self.lengths
        return replace(
            self,
            leaves=_first(self.leaves, leaves),
            allocations=replace(
                _first(self.allocations, allocations),
                unnamed_ptr=self.allocations.unnamed_ptr[:addresses],
            ),
            devices=self.devices[:devices],
            read=None,
        )


def _first(table: _Table, n: int) -> _Table:
    """``n`` rows of a table."""
    return type(table)(*(getattr(table, f.name)[:n] for f in fields(table)))


def joined(table: _Table, more: _Table) -> _Table:
    """``table`` with the rows of another below its own."""
    columns = ((getattr(table, f.name), getattr(more, f.name)) for f in fields(table))
    return type(table)(*(frozen(np.concatenate([a, b.astype(a.dtype)])) for a, b in columns))


def frozen(values: Any, dtype: Any = None) -> npt.NDArray[Any]:
    """``values`` as a read-only array; an ``array.array`` is not copied."""
    out = np.asarray(values, dtype=dtype)
    out.flags.writeable = False
    return out


def at(column: Ints, rows: Ints, none: int = -1) -> Ints:
    """``column[rows]``, ``none`` where ``rows`` is -1."""
    if not len(column):
        return np.full(len(rows), none, column.dtype)
    return np.where(rows >= 0, column[rows], column.dtype.type(none))


def rows(values: Any) -> Ints:
    """``values`` as a read-only column of row numbers or counts."""
    return frozen(values, np.int32)
