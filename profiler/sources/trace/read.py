"""One pass over a profiler's event tree into columns.

Note [Reading an event tree]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Every attribute of an event is a call into C++ that makes a Python object, 0.1 to 0.8 µs each. So
each event is visited once, only what the analysis needs is read (`extra_fields`, whose type says
what the event is, in place of `typed`), and no wrapper outlives its visit.

* What follows from a name is kept by name. The scope of an operator is read only where its name
  has no schema: what the dispatcher calls always has scope FUNCTION.
* Sizes and strides are read only of storages that were not yet seen to be allocated.
* Below an entry into the compiler nothing is visited: it makes up to a hundred times as many events
  as the model. What it allocates for good shows up as storages that were there before.

Note [Sizes]
~~~~~~~~~~~~
Of a storage that was there before the profiler started, only tensors in it are seen. A tensor of
sizes n and strides s reaches over 1 + Σ (n-1)·s elements; and where it is one row of something
larger, max n·s guesses the whole. The larger of the two is taken, 0 for a tensor without elements.
torch takes max n·s alone: 0 bytes for an expanded scalar, too few for overlapping windows.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import torch

from memprof.profiler.support.process_hooks import collector_paused

from . import _torch_compat as compat
from .columns import (
    AMBIGUOUS,
    ENGINE,
    FORWARD,
    NODE,
    READ,
    WRITTEN,
    AllocationTable,
    EventColumns,
    Ints,
    KeyTable,
    LeafTable,
    ScopeKind,
    ScopeTable,
    frozen,
)

# What else than a ``ScopeKind`` the name of an operator event or Python call says about it.
_PLAIN, _ENGINE, _FUNCTION, _OTHER = -1, -2, -3, -4
_PREFIXES = (
    (compat.ENGINE_PREFIX, _ENGINE),
    (compat.COMPILED_FUNCTION, _FUNCTION),
    (compat.OPTIMIZER_STEP_PREFIX, ScopeKind.OPTIMIZER_STEP),
    (compat.COMPILED_CALL_PREFIX, ScopeKind.COMPILED_CALL),
)


def read_events(result: Any) -> EventColumns:
    """Columns of a finished profiler run.

    Args:
        result: what ``torch.profiler.profile`` was, or its ``_ProfilerResult``.

    Raises:
        TypeError, ValueError: see ``_torch_compat.kineto_result``.
    """
    kineto = compat.kineto_result(result)
    reader = _Reader()
    with collector_paused():  # millions of objects are made and no cycle
        roots = kineto.experimental_event_tree()
        for thread, events in groupby(roots, lambda e: _signed(e.start_tid)):
            reader.threads.append((reader.events, thread))
            reader.walk(events)
    return reader.columns(kineto)


def _signed(n: int) -> int:
    """An unsigned number of 64 bits (an address, a thread) as the columns hold it."""
    return n if n < 1 << 63 else n - (1 << 64)


Signature = tuple[Any, ...]
"""Kind of each argument of a call: ``TensorMetadata``, ``list``, a scalar type, or None."""
_Schemas = Callable[[str], tuple[Any, ...]]


def _match(schemas: _Schemas, name: str, signature: Signature) -> tuple[bool, tuple[int, ...]]:
    """Tells whether a call can be one of an operator, and its effect on each argument.

    The profiler records no overload, so the call is held against every overload's schema; in
    practice one remains. WRITTEN is what any of those that remain writes to.
    """
    found = [
        s
        for s in schemas(name)
        if len(s.arguments) == len(signature)
        and all(compat.accepts(a.type, o) for a, o in zip(s.arguments, signature, strict=True))
    ]
    if not found:
        return False, (AMBIGUOUS,) * len(signature)
    effects = []
    for overloads in zip(*(s.arguments for s in found), strict=True):
        written = any(a.alias_info is not None and a.alias_info.is_write for a in overloads)
        effects.append(WRITTEN if written else READ)
    return True, tuple(effects)


def _op_kind(schemas: _Schemas, name: str) -> int:
    for prefix, kind in _PREFIXES:
        if name.startswith(prefix):
            return kind
    return _PLAIN if schemas(name) else _OTHER


def _python_kind(name: str) -> int:
    if name.startswith(compat.MODULE_PREFIX):
        return ScopeKind.MODULE
    if name.endswith(compat.OPTIMIZER_FUNCTION):
        return ScopeKind.OPTIMIZER_STEP
    if compat.is_generated_code(name):
        return ScopeKind.GENERATED_CODE
    return ScopeKind.COMPILER if compat.is_compiler_frame(name) else _PLAIN


_Around = tuple[int, int, int, int]
"""Surroundings of an event: row of the leaf table, part of the backward, row of the scope table,
name of the innermost operator."""


def _append(rows: array[int], row: tuple[int, ...]) -> int:
    """Lay a row behind the others; returns its number."""
    number = len(rows) // len(row)
    rows.extend(row)
    return number


def _columns(rows: array[int], types: str) -> list[Ints]:
    """An array a column of rows laid end to end, each of its own numpy type."""
    table = np.asarray(rows, np.int64).reshape(-1, len(types))
    return [frozen(table[:, i].astype(kind)) for i, kind in enumerate(types)]


class _Reader:
    """State of the read: the tables of ``EventColumns`` while rows are added to them."""

    def __init__(self) -> None:
        # By the reader, as operators may be registered between two runs. A run of a million calls
        # asks for a few hundred matches.
        schemas = cache(compat.registered_schemas)
        self.match = cache(partial(_match, schemas))
        self.op_kind = cache(partial(_op_kind, schemas))
        self.python_kind = cache(_python_kind)
        self.events = 0
        self.names: dict[str, int] = {}
        self.devices: dict[Any, int] = {}
        self.threads: list[tuple[int, int]] = []

        # The key of each tensor's first storage, -1 for none; and of the few others by tensor and
        # allocation. A dictionary of all takes more than all columns of the key table.
        self.first = array("i")
        self.others: dict[tuple[int, int], int] = {}
        self.keys: list[array[int]] = [array(c) for c in "iiqhq"]  # size: from tensors
        self.allocated = bytearray()  # by key: an allocation or release was seen
        self.leaves = array("q")  # this and the tables below: rows laid end to end
        self.uses: list[array[int]] = [array(c) for c in "iB"]
        self.allocations = array("q")
        self.unnamed = array("q")  # addresses of allocations without a key
        self.scopes = array("q")
        self.gradients, self.parameters, self.states = array("i"), array("i"), array("i")
        self.function_inputs: list[int] = []
        self.skipped_ns = 0

    # -- the pass -------------------------------------------------------------------

    def walk(self, roots: Iterable[Any]) -> None:
        """Visit every event below ``roots`` once, parents first, children in order."""
        OP, ALLOC, PYCALL = compat.TorchOp, compat.Allocation, compat.PyCall
        todo: list[tuple[Iterator[Any], _Around]] = [(iter(roots), (-1, FORWARD, -1, -1))]
        while todo:
            events, around = todo[-1]
            for event in events:
                x = event.extra_fields
                type_ = type(x)
                below: _Around | None = around
                if type_ is ALLOC:
                    self.allocation(event, x, around)
                    below = None
                elif type_ is OP:
                    below = self.operator(event, x, around)
                elif type_ is PYCALL:
                    below = self.python_call(event, x, around)
                self.events += 1
                if below is not None and (children := event.children):
                    todo.append((iter(children), below))
                    break
            else:
                todo.pop()

    def allocation(self, event: Any, x: Any, around: _Around) -> None:
        """Note an allocation or a release."""
        start, key = event.start_time_ns, self.storage(x)
        if key >= 0:
            device = self.keys[3][key]
        else:
            device = self.device(x.device)
            self.unnamed.append(_signed(x.ptr))
        leaf, backward, scope, op = around
        if leaf < 0:
            leaf = self.leaf(start, -1, backward, scope, -1)
        row = (self.events, leaf, key, x.alloc_size, device, start, op, scope)
        _append(self.allocations, row)

    def operator(self, event: Any, x: Any, around: _Around) -> _Around:
        """Note an operator and its tensors; returns the surroundings of its children."""
        leaf, backward, scope, op = around
        name, storage = x.name, self.storage
        signature: list[Any] = []
        keys: list[Any] = []  # of each argument: one, or a list of them
        for value in x.inputs:
            type_ = type(value)
            if type_ is compat.TensorMetadata:
                key = storage(value)
                signature.append(type_ if key >= 0 else None)
                keys.append(key)
            elif type_ is list:
                some = [storage(v) for v in value if type(v) is compat.TensorMetadata]
                whole = len(some) == len(value) and -1 not in some
                signature.append(list if whole else tuple)
                keys.append(some)
            else:
                signature.append(None if value is None else type_)
                keys.append(-1)
        is_leaf, effects = self.match(name, tuple(signature))
        kind = self.op_kind(name)
        if kind == _PLAIN:
            op = self.name(name)
        elif kind == _ENGINE:
            backward = backward or ENGINE
        else:
            if x.scope == compat.BACKWARD_FUNCTION:
                is_leaf, backward = True, NODE
                if name == compat.ACCUMULATE_GRAD:
                    self.accumulate(event.children)
            elif kind > 0:
                scope = self.scope(kind, event, name, scope, backward)
            if kind == _FUNCTION and backward != NODE:
                self.function_inputs += [k for k in keys if type(k) is int and k >= 0]
        if leaf < 0 and is_leaf:
            at = event.start_time_ns
            leaf = self.leaf(at, self.name(name), backward, scope, x.sequence_number)
        if leaf >= 0:
            use_key, use_effect = self.uses
            for key, effect in zip(keys, effects, strict=True):
                if type(key) is list:
                    some = [k for k in key if k >= 0]
                    use_key.extend(some)
                    use_effect.extend([effect] * len(some))
                elif key >= 0:
                    use_key.append(key)
                    use_effect.append(effect)
        return leaf, backward, scope, op

    def python_call(self, event: Any, x: Any, around: _Around) -> _Around | None:
        """Note a Python call that matters; returns the surroundings of its children, None for the
        compiler, below which nothing is looked at."""
        try:
            name = event.name
        except UnicodeDecodeError:  # a name of any bytes, made by generated code
            return around
        kind = self.python_kind(name)
        if kind == _PLAIN:
            return around
        if x.module is not None:
            for _, parameter, gradient in x.module.parameters:
                self.member(parameter, self.parameters)
                self.member(gradient, self.gradients)
        if x.optimizer is not None:
            for parameter, gradient, state in x.optimizer.parameters:
                self.member(parameter, self.parameters)
                self.member(gradient, self.gradients)
                for _, t in state:
                    self.member(t, self.states)
        if kind == ScopeKind.OPTIMIZER_STEP:  # only shows the tensors: the step is not below it
            return around
        leaf, backward, scope, op = around
        identity = 0 if x.module is None else int(x.module.self_ptr)
        scope = self.scope(kind, event, name, scope, backward, identity)
        if kind == ScopeKind.COMPILER:
            self.skipped_ns += max(event.duration_time_ns, 0)
            return None
        return leaf, backward, scope, op

    def accumulate(self, below: list[Any]) -> None:
        """Note the gradient that an AccumulateGrad node takes or adds to."""
        x: Any = below[0].extra_fields if below else None
        if type(x) is compat.TorchOp and x.name in compat.ACCUMULATE_GRAD_OPS:
            inputs = x.inputs
            if inputs and type(inputs[0]) is compat.TensorMetadata:
                self.member(inputs[0], self.gradients)

    # -- rows of the tables ---------------------------------------------------------

    def storage(self, x: Any) -> int:
        """The key of the storage of a tensor or allocation, new if it is seen for the first time;
        -1 if the profiler cannot name it. Allocation ids are given out per (address, device), so
        the device need not be read to tell storages apart."""
        id, allocation = x.id, x.allocation_id
        if id is None or allocation is None:
            return -1
        first = self.first
        key = first[id] if id < len(first) else -1
        if key < 0 or self.keys[1][key] != allocation:
            known = self.others.get((id, allocation))
            key = self.new_storage(x) if known is None else known
        if key >= 0 and not self.allocated[key]:
            if type(x) is compat.Allocation:
                self.allocated[key] = 1
            else:
                size = self.keys[4]
                size[key] = max(size[key], _extent(x))
        return key

    def new_storage(self, x: Any) -> int:
        """A new row of the key table, -1 where ``x`` has no address."""
        ptr = x.ptr if type(x) is compat.Allocation else x.storage_data_ptr
        if ptr is None:
            return -1
        id, new = x.id, len(self.allocated)
        row = (id, x.allocation_id, _signed(ptr), self.device(x.device), 0)
        for column, value in zip(self.keys, row, strict=True):
            column.append(value)
        self.allocated.append(0)
        self.first.extend([-1] * (id + 1 - len(self.first)))
        if self.first[id] < 0:
            self.first[id] = new
        else:
            self.others[id, x.allocation_id] = new
        return new

    def member(self, t: Any, into: array[int]) -> None:
        """Note a tensor that a module or an optimizer shows."""
        if t is not None and (key := self.storage(t)) >= 0:
            into.append(key)

    def device(self, device: Any) -> int:
        """The number of a device, a new one where it is seen for the first time."""
        return self.devices.setdefault(device, len(self.devices))

    def name(self, name: str) -> int:
        """The number of a name, a new one where it is asked for the first time."""
        return self.names.setdefault(name, len(self.names))

    def leaf(self, start: int, name: int, backward: int, scope: int, sequence: int) -> int:
        """A new row of the leaf table."""
        used = len(self.uses[0])
        return _append(self.leaves, (start, name, backward, scope, sequence, used))

    def scope(
        self, kind: int, event: Any, name: str, parent: int, backward: int, identity: int = 0
    ) -> int:
        """A new row of the scope table, of the event that is visited."""
        start, end, number = event.start_time_ns, event.end_time_ns, self.name(name)
        row = (kind, number, parent, start, end, self.events, identity, backward)
        return _append(self.scopes, row)

    # -- result ---------------------------------------------------------------------

    def columns(self, kineto: Any) -> EventColumns:
        """The tables as they are now, read from ``kineto``."""
        columns = [*_columns(self.allocations, "iiiqhqii"), frozen(self.unnamed)]
        allocations = AllocationTable(*columns)
        return EventColumns(
            events=self.events,
            keys=self.key_table(allocations),
            leaves=LeafTable(*_columns(self.leaves, "qiBiqi")),
            use_key=frozen(self.uses[0]),
            use_effect=frozen(self.uses[1]),
            allocations=allocations,
            scopes=ScopeTable(*_columns(self.scopes, "BiiqqiqB")),
            names=list(self.names),
            threads=self.threads,
            devices=list(self.devices),
            gradients=frozen(self.gradients),
            parameters=frozen(self.parameters),
            optimizer_states=frozen(self.states),
            function_inputs=frozen(self.function_inputs, np.int64),
            skipped_ns=self.skipped_ns,
            kineto=kineto,
        )

    def key_table(self, allocations: AllocationTable) -> KeyTable:
        """The storages, their sizes and their order settled."""
        id, allocation, ptr, device, size = map(frozen, self.keys)
        size = size.copy()
        # The allocator's word beats a tensor's extent; of several, the first in time.
        known = np.flatnonzero(allocations.key >= 0).astype(np.int32)
        late_first = known[np.argsort(allocations.start[known], kind="stable")[::-1]]
        size[allocations.key[late_first]] = np.abs(allocations.size[late_first])

        names = [(d.type, -1 if d.index is None else d.index) for d in self.devices]
        device_rank = np.asarray([sorted(names).index(n) for n in names], np.int16)
        order = np.lexsort((device_rank[device], allocation, id))
        rank = np.empty(len(id), np.int32)
        rank[order] = np.arange(len(id), dtype=np.int32)
        tensor_index = frozen(np.unique(id, return_inverse=True)[1], np.int32)
        return KeyTable(id, allocation, ptr, device, frozen(size), frozen(rank), tensor_index)


def _extent(t: Any) -> int:
    """Bytes of storage that a strided tensor is known to need; see Note [Sizes]."""
    if t.layout is not torch.strided:
        return 0
    span, widest = 1, 1
    for n, stride in zip(t.sizes, t.strides, strict=False):
        if n == 0:
            return 0
        span += (n - 1) * stride
        widest = max(widest, n * stride)
    return max(span, widest) * int(t.dtype.itemsize)
