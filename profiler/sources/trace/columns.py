"""The columns that one pass over a profiler's event tree leaves behind.

Tables of one array a column. A row is named by its index; -1 is "none". Times are nanoseconds
since the epoch, as the profiler gives them, sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]
"""Rows and counts are of 32 bits, times, addresses and sizes of 64."""
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]


FORWARD, ENGINE, NODE = 0, 1, 2
"""Part of the backward an event is in: none; the engine around a node; a node itself."""

READ, WRITTEN, AMBIGUOUS = 1, 2, 4
"""What a call does to an argument. AMBIGUOUS: no schema matched, it may be either."""


class ScopeKind(IntEnum):
    """A range of a trace that says something about what is allocated inside it."""

    MODULE = 1
    """Call of an ``nn.Module``."""
    OPTIMIZER_STEP = 2
    COMPILED_CALL = 3
    """One call of a compiled graph."""
    GENERATED_CODE = 4
    """The generated function inside it; the name says which file."""
    COMPILER = 5
    """The compiler at work; nothing below it is looked at."""


@dataclass(slots=True)
class ColumnTable:
    """Columns of equal length."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))


@dataclass(slots=True)
class KeyTable(ColumnTable):
    """Storages. A storage is named by device, tensor id and allocation id."""

    id: Ints  # the profiler's tensor id: storages that one tensor has had share it
    allocation: Ints  # number of the allocation
    ptr: Ints  # address
    device: Ints  # index in ``EventColumns.devices``
    size: Ints
    """Bytes; from the allocator where it was seen to allocate or free the storage, else the
    largest extent of the tensors seen in it, else 0."""
    rank: Ints  # position among all keys ordered by id, allocation and device
    tensor_index: Ints  # ``id`` renumbered from 0 without gaps


@dataclass(slots=True)
class LeafTable(ColumnTable):
    """Events that become nodes of the data-flow graph, in order of the tree.

    A leaf is the outermost operator with a schema, a backward node of autograd, or an
    allocation or release outside both.
    """

    start: Ints
    name: Ints  # index in ``EventColumns.names``, -1 for an allocation
    backward: Bytes  # FORWARD, ENGINE or NODE; a backward node is in NODE
    scope: Ints  # innermost row of the scope table around it
    sequence: Ints  # autograd sequence number
    first_use: Ints  # in ``EventColumns.use_key``; its uses end where those of the next leaf begin


@dataclass(slots=True)
class AllocationTable(ColumnTable):
    """Allocations and releases, in order of the tree."""

    event: Ints  # number of the event in the walk
    leaf: Ints  # that it is or lies in
    key: Ints  # its storage; -1 where the profiler knows no tensor for it
    size: Ints  # bytes, negative for a release
    device: Ints  # index in ``EventColumns.devices``
    start: Ints
    op: Ints  # innermost operator around it, index in ``EventColumns.names``
    scope: Ints  # innermost row of the scope table around it
    unnamed_ptr: Ints  # addresses of the rows without a key, in order


@dataclass(slots=True)
class ScopeTable(ColumnTable):
    """Ranges of interest, a tree; parents come before children."""

    kind: Bytes  # a ``ScopeKind``
    name: Ints  # index in ``EventColumns.names``
    parent: Ints
    start: Ints
    end: Ints
    event: Ints  # number of the event in the walk
    identity: Ints  # for a module, ``id()`` of it in the profiled process; else 0
    backward: Bytes  # FORWARD, ENGINE or NODE

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
class EventColumns:
    """Everything that the analysis reads of a profiler run."""

    events: int  # visited
    keys: KeyTable
    leaves: LeafTable
    use_key: Ints
    """Storages of the tensors passed to operators at or below a leaf, leaf by leaf."""
    use_effect: Bytes  # of each READ, WRITTEN or AMBIGUOUS
    allocations: AllocationTable
    scopes: ScopeTable
    names: list[str]  # of operators, ranges and modules, without repetition
    threads: list[tuple[int, int]]
    """(first event, the profiler's number of the thread) of each stretch of the walk that is of
    one thread."""
    devices: list[Any]  # ``torch.device`` objects
    gradients: Ints
    """Keys that ``.grad`` names; ``parameters`` and ``optimizer_states`` are those that a module
    or an optimizer names; in order of the trace, with repetitions."""
    parameters: Ints
    optimizer_states: Ints
    function_inputs: Ints
    """Keys of the tensors that AOTAutograd's function was called with in forwards."""
    skipped_ns: int  # time inside the compiler, which was not looked at
    kineto: Any  # the profiler's result

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


def frozen(values: Any, dtype: Any = None) -> npt.NDArray[Any]:
    """``values`` as a read-only array; an ``array.array`` is not copied."""
    out = np.asarray(values, dtype=dtype)
    out.flags.writeable = False
    return out


def differs(values: Ints) -> Bools:
    """Mask of the values that differ from the one before; True for the first of all."""
    out = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=out[1:])
    return out


def at(column: Ints, rows: Ints, none: int = -1) -> Ints:
    """``column[rows]``, ``none`` where ``rows`` is -1."""
    if not len(column):
        return np.full(len(rows), none, column.dtype)
    return np.where(rows >= 0, column[rows], column.dtype.type(none))
