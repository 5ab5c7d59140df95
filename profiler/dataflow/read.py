"""One pass over a profiler's event tree into columns.

Note [Sizes]
~~~~~~~~~~~~
Of a storage that was there before the profiler started, only tensors in it are seen. A
tensor of sizes n and strides s reaches over 1 + Σ (n-1)·s elements; and where it is one
row of something larger, max n·s guesses the whole. The larger of the two is taken, 0 for
a tensor without elements. torch takes max n·s alone, so it gives 0 bytes to an expanded
scalar, too few to overlapping windows, and some to an empty tensor.

Note [Reading an event tree]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Every attribute of an event is a call into C++ that makes a Python object, 0.1 to 0.8 µs
each: merely visiting a tree costs about 1 µs an event. So each event is visited once,
only what the analysis needs is read, and no wrapper outlives its visit.

* `extra_fields` gives the payload, and its type says what the event is; `typed` would
  make a tuple and an enumeration value as well.
* A name decides what an event can be, so what follows from a name is kept by name.
* The scope of an operator is read only where its name has no schema: what the dispatcher
  calls always has scope FUNCTION.
* Sizes and strides are read only of storages that were not yet seen to be allocated.
* A tensor id and an allocation id name a storage: allocation ids are given out per
  (address, device), so the device need not be read to tell storages apart.
* Below an entry into the compiler nothing is visited: it makes up to a hundred times as
  many events as the model. What it allocates for good shows up as storages that were
  there before, and `skipped_ns` says how long it ran.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import numpy as np

from . import _torch_compat as compat
from .columns import (
    ENGINE,
    FORWARD,
    NODE,
    AllocationTable,
    EventColumns,
    FunctionCall,
    KeyTable,
    LeafTable,
    ScopeKind,
    ScopeTable,
    UseTable,
    frozen,
    rows,
)
from .schema import SchemaCache

# What the name of an operator event or Python call says about it.
(
    _OPERATOR,
    _ENGINE,
    _ACCUMULATE,
    _FUNCTION,
    _RANGE,
    _OPTIMIZER_STEP,
    _PROFILER_STEP,
    _COMPILED_CALL,
) = range(8)
_SCOPES = {
    _ACCUMULATE: ScopeKind.RANGE,
    _RANGE: ScopeKind.RANGE,
    _OPTIMIZER_STEP: ScopeKind.OPTIMIZER_STEP,
    _PROFILER_STEP: ScopeKind.PROFILER_STEP,
    _COMPILED_CALL: ScopeKind.COMPILED_CALL,
}
_PLAIN, _MODULE, _OPTIMIZER, _GENERATED, _COMPILER = range(5)


def read_events(result: Any, *, skip_compiler: bool = True) -> EventColumns:
    """Columns of a finished profiler run.

    Args:
        result: what ``torch.profiler.profile`` was, or its ``_ProfilerResult``.
        skip_compiler: do not look below entries into the compiler.

    Raises:
        TypeError, ValueError: see ``_torch_compat.event_tree``.
    """
    reader = _Reader(skip_compiler)
    with _collector_paused():
        for thread, roots in groupby(compat.event_tree(result), lambda e: _signed(e.start_tid)):
            reader.threads.append((reader.events, thread))
            reader.walk(roots)
    columns = reader.columns()
    columns.kineto = compat.kineto_result(result)
    return columns


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection inside: the pass makes millions of objects and no cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _signed(n: int) -> int:
    """An unsigned number of 64 bits (an address, a thread) as the columns hold it."""
    return n if n < 1 << 63 else n - (1 << 64)


class _Names:
    """Strings numbered from 0."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.index.setdefault(name, len(self.index))


class _Reader:
    def __init__(self, skip_compiler: bool) -> None:
        self.skip_compiler = skip_compiler
        self.names = _Names()
        self.devices: dict[Any, int] = {}
        self.on_cpu: list[bool] = []
        self.op_kinds: dict[str, int] = {}
        self.python_kinds: dict[str, int] = {}
        self.schemas = SchemaCache()
        self.events = 0
        self.threads: list[tuple[int, int]] = []

        self.key_of: dict[int, int] = {}  # by id << 32 | allocation
        self.key_id, self.key_alloc, self.key_ptr, self.key_dev = (array(c) for c in "iiqi")
        self.key_size = array("q")  # from tensors
        self.allocated = bytearray()  # by key: an allocation or release was seen

        self.leaf: list[array[int]] = [array(c) for c in "iqiBiq"]
        self.use: list[array[int]] = [array(c) for c in "iiB"]
        self.alloc: list[array[int]] = [array(c) for c in "iiiqqiqii"]
        # Row, reserved, allocated: of devices with a caching allocator.
        self.caching: list[array[int]] = [array(c) for c in "iqq"]
        self.scope: list[array[int]] = [array("q") for _ in range(9)]
        self.gradients, self.parameters, self.states = array("q"), array("q"), array("q")
        self.calls: list[FunctionCall] = []
        self.oom: list[int] = []
        self.skipped_ns = 0
        self.itemsize: dict[Any, int] = {}

    # -- storages -------------------------------------------------------------------

    def new_key(self, id: int, allocation: int, ptr: int | None, device: Any) -> int:
        """Number a storage seen for the first time; -1 if it has no address."""
        if ptr is None:
            key = -1
        else:
            key = len(self.key_id)
            self.key_id.append(id)
            self.key_alloc.append(allocation)
            self.key_ptr.append(_signed(ptr))
            self.key_dev.append(self.device(device))
            self.key_size.append(0)
            self.allocated.append(0)
        self.key_of[id << 32 | allocation] = key
        return key

    def tensor(self, t: Any) -> int:
        """The key of a tensor, with its size noted; -1 if the profiler cannot name it."""
        id, allocation = t.id, t.allocation_id
        if id is None or allocation is None:
            return -1
        key = self.key_of.get(id << 32 | allocation)
        if key is None:
            key = self.new_key(id, allocation, t.storage_data_ptr, t.device)
        if key >= 0 and not self.allocated[key]:
            self.note_size(key, t)
        return key

    def note_size(self, key: int, t: Any) -> None:
        size = self.extent(t)
        if size > self.key_size[key]:
            self.key_size[key] = size

    def extent(self, t: Any) -> int:
        """Bytes of storage that a strided tensor is known to need; see Note [Sizes]."""
        if t.layout is not compat.STRIDED:
            return 0
        dtype = t.dtype
        itemsize = self.itemsize.get(dtype)
        if itemsize is None:
            itemsize = self.itemsize[dtype] = int(dtype.itemsize)
        span, widest = 1, 1
        for n, stride in zip(t.sizes, t.strides, strict=False):
            if n == 0:
                return 0
            span += (n - 1) * stride
            if n * stride > widest:
                widest = n * stride
        return (span if span > widest else widest) * itemsize

    # -- the pass -------------------------------------------------------------------

    def walk(self, roots: Iterable[Any]) -> None:
        """Visit every event below ``roots`` once, parents first, children in order."""
        # Everything used at each event is a local: this loop is most of the analysis.
        OP, ALLOC, PYCALL = compat.TorchOp, compat.Allocation, compat.PyCall
        METADATA, BACKWARD = compat.TensorMetadata, compat.BACKWARD_FUNCTION
        key_of, allocated, key_dev = self.key_of, self.allocated, self.key_dev
        tensor, match, python_kind = self.tensor, self.schemas.match, self.python_kind
        new_leaf, on_cpu, python_kinds = self.new_leaf, self.on_cpu, self.python_kinds
        kinds, names = self.op_kinds, self.names
        use_leaf, use_key, use_effect = (c.append for c in self.use)
        (al_event, al_leaf, al_key, al_ptr, al_size, al_dev, al_start, al_op, al_scope) = (
            c.append for c in self.alloc
        )

        stack: list[tuple[Iterator[Any], int, int, int, int]] = []
        events = iter(roots)
        # The context of the events being visited: the leaf they are below, what part of
        # the backward they are in, the scope row and the operator around them.
        leaf, backward, scope, op = -1, FORWARD, -1, -1
        key: Any  # a number, or a list of them, or None while a storage is new
        number = self.events - 1
        while True:
            for event in events:
                number += 1
                x = event.extra_fields
                type_ = type(x)
                if type_ is ALLOC:
                    start, ptr, size = event.start_time_ns, x.ptr, x.alloc_size
                    id, allocation = x.id, x.allocation_id
                    key = -1
                    if id is not None and allocation is not None:
                        key = key_of.get(id << 32 | allocation)
                        if key is None:
                            key = self.new_key(id, allocation, ptr, x.device)
                    if key >= 0:
                        allocated[key] = 1
                        device = key_dev[key]
                    else:
                        device = self.device(x.device)
                    al_event(number)
                    al_leaf(leaf if leaf >= 0 else new_leaf(number, start, -1, backward, scope, -1))
                    al_key(key)
                    al_ptr(ptr if ptr < 1 << 63 else _signed(ptr))
                    al_size(size)
                    al_dev(device)
                    al_start(start)
                    al_op(op)
                    al_scope(scope)
                    if not on_cpu[device]:
                        self.note_allocator(x)
                    continue

                below, back, inside, around = leaf, backward, scope, op
                if type_ is OP:
                    name = x.name
                    signature: list[object] = []
                    keys: list[Any] = []
                    for value in x.inputs:
                        t = type(value)
                        if t is METADATA:
                            id = value.id
                            key = None
                            if id is not None:
                                key = key_of.get(id << 32 | (value.allocation_id or 0))
                            if key is None or key < 0 or not allocated[key]:
                                key = tensor(value)
                            signature.append(METADATA if key >= 0 else None)
                            keys.append(key)
                        elif t is list:
                            some = [tensor(v) for v in value if type(v) is METADATA]
                            whole = len(some) == len(value) and -1 not in some
                            signature.append(list if whole else tuple)
                            keys.append(some)
                        else:
                            signature.append(None if value is None else t)
                            keys.append(-1)
                    is_leaf, effects = match(name, tuple(signature))
                    children = event.children
                    kind = kinds.get(name)
                    if kind is None:
                        kind = self.op_kind(name)
                    if kind == _OPERATOR:
                        around = names(name)
                    elif kind == _ENGINE:
                        back = back or ENGINE
                    else:
                        if x.scope == BACKWARD:
                            is_leaf, back = True, NODE
                            if kind == _ACCUMULATE and children:
                                self.accumulate(children[0])
                        elif kind != _FUNCTION:
                            inside = self.new_scope(_SCOPES[kind], event, number, name, scope, back)
                        if kind == _FUNCTION:
                            self.note_function(event, x, number, keys, inside, back)
                    if leaf < 0 and is_leaf:
                        below = new_leaf(
                            number,
                            event.start_time_ns,
                            names(name),
                            back,
                            inside,
                            x.sequence_number,
                        )
                    if below >= 0:
                        for key, effect in zip(keys, effects, strict=True):
                            if type(key) is list:
                                for one in key:
                                    if one >= 0:
                                        use_leaf(below)
                                        use_key(one)
                                        use_effect(effect)
                            elif key >= 0:
                                use_leaf(below)
                                use_key(key)
                                use_effect(effect)
                else:
                    if type_ is PYCALL:
                        try:
                            name = event.name
                        except UnicodeDecodeError:  # a name of any bytes, made by generated code
                            name = ""
                        kind = python_kinds.get(name)
                        if kind is None:
                            kind = python_kind(name)
                        if kind != _PLAIN:
                            if kind == _COMPILER:
                                self.new_scope(ScopeKind.COMPILER, event, number, name, scope, back)
                                self.skipped_ns += max(event.duration_time_ns, 0)
                                continue
                            inside = self.enter_python(kind, event, x, number, name, scope, back)
                    elif type_ is compat.OutOfMemory:
                        self.oom.append(event.start_time_ns)
                    children = event.children

                if children:
                    stack.append((events, leaf, backward, scope, op))
                    events = iter(children)
                    leaf, backward, scope, op = below, back, inside, around
                    break
            else:
                if not stack:
                    break
                events, leaf, backward, scope, op = stack.pop()
        self.events = number + 1

    # -- what is rare ---------------------------------------------------------------

    def device(self, device: Any) -> int:
        """Number a device."""
        found = self.devices.get(device)
        if found is None:
            found = self.devices[device] = len(self.devices)
            self.on_cpu.append(device.type == "cpu")
        return found

    def op_kind(self, name: str) -> int:
        """Classify an operator event by its name."""
        if name == compat.ACCUMULATE_GRAD:
            kind = _ACCUMULATE
        elif name.startswith(compat.ENGINE_PREFIX):
            kind = _ENGINE
        elif name.startswith(compat.COMPILED_FUNCTION):
            kind = _FUNCTION
        elif name.startswith(compat.OPTIMIZER_STEP_PREFIX):
            kind = _OPTIMIZER_STEP
        elif name.startswith(compat.PROFILER_STEP_PREFIX):
            kind = _PROFILER_STEP
        elif name.startswith(compat.COMPILED_CALL_PREFIX):
            kind = _COMPILED_CALL
        else:
            kind = _OPERATOR if self.schemas.schemas(name) else _RANGE
        self.op_kinds[name] = kind
        return kind

    def python_kind(self, name: str) -> int:
        """Classify a Python call by its name."""
        if name.startswith(compat.MODULE_PREFIX):
            kind = _MODULE
        elif name.endswith(compat.OPTIMIZER_FUNCTION):
            kind = _OPTIMIZER
        elif compat.is_generated_code(name):
            kind = _GENERATED
        elif self.skip_compiler and compat.is_compiler_frame(name):
            kind = _COMPILER
        else:
            kind = _PLAIN
        self.python_kinds[name] = kind
        return kind

    def enter_python(
        self, kind: int, event: Any, x: Any, number: int, name: str, scope: int, backward: int
    ) -> int:
        """Note the tensors of a module or optimizer call; the scope for what is below it."""
        identity = 0
        if x.module is not None:
            identity = int(x.module.self_ptr)
            for _, parameter, gradient in x.module.parameters:
                self.member(parameter, self.parameters)
                self.member(gradient, self.gradients)
        if x.optimizer is not None:
            for parameter, gradient, state in x.optimizer.parameters:
                self.member(parameter, self.parameters)
                self.member(gradient, self.gradients)
                for _, t in state:
                    self.member(t, self.states)
        if kind == _OPTIMIZER:  # a call that only shows the tensors: step is not below it
            return scope
        found = ScopeKind.MODULE if kind == _MODULE else ScopeKind.GENERATED_CODE
        return self.new_scope(found, event, number, name, scope, backward, identity)

    def member(self, t: Any, into: array[int]) -> None:
        if t is not None:
            key = self.tensor(t)
            if key >= 0:
                into.append(key)

    def accumulate(self, first: Any) -> None:
        """Note the gradient that an AccumulateGrad node takes or adds to."""
        x = first.extra_fields
        if type(x) is compat.TorchOp and x.name in compat.ACCUMULATE_GRAD_OPS:
            inputs = x.inputs
            if inputs and type(inputs[0]) is compat.TensorMetadata:
                self.member(inputs[0], self.gradients)

    def note_allocator(self, x: Any) -> None:
        """Note what a caching allocator holds after the latest allocation row."""
        values = (len(self.alloc[0]) - 1, x.total_reserved, x.total_allocated)
        for column, value in zip(self.caching, values, strict=True):
            column.append(value)

    def note_function(
        self, event: Any, x: Any, number: int, keys: list[Any], scope: int, backward: int
    ) -> None:
        """Note a compiled autograd function and its tensor arguments."""
        flat = [k if isinstance(k, int) else -1 for k in keys]
        sizes = [self.extent(v) if type(v) is compat.TensorMetadata else 0 for v in x.inputs]
        self.calls.append(
            FunctionCall(
                name=x.name,
                event=number,
                scope=scope,
                start=event.start_time_ns,
                end=event.end_time_ns,
                backward=backward == NODE,
                keys=tuple(flat),
                sizes=tuple(sizes),
            )
        )

    def new_leaf(
        self, number: int, start: int, name: int, backward: int, scope: int, sequence: int
    ) -> int:
        row = len(self.leaf[0])
        for column, value in zip(
            self.leaf, (number, start, name, backward, scope, sequence), strict=True
        ):
            column.append(value)
        return row

    def new_scope(
        self,
        kind: int,
        event: Any,
        number: int,
        name: str,
        parent: int,
        backward: int,
        identity: int = 0,
    ) -> int:
        row = len(self.scope[0])
        values = (
            kind, self.names(name), parent, event.start_time_ns, event.end_time_ns,
            number, identity, backward, _signed(event.start_tid),
        )  # fmt: skip
        for column, value in zip(self.scope, values, strict=True):
            column.append(value)
        return row

    # -- result ---------------------------------------------------------------------

    def columns(self) -> EventColumns:
        """What the pass found."""
        self.key_of.clear()
        leaves = LeafTable(*(frozen(c) for c in self.leaf))
        scope = [frozen(c) for c in self.scope]
        for column, dtype in ((0, np.uint8), (7, np.uint8)):
            scope[column] = frozen(scope[column], dtype)
        n = len(self.alloc[0])
        told = rows(self.caching[0])
        allocator = []
        for known in self.caching[1:]:
            column_ = np.broadcast_to(np.int64(-1), (n,))
            if len(told):
                column_ = np.full(n, -1, np.int64)
                column_[told] = known
            allocator.append(frozen(column_))
        allocations = AllocationTable(*(frozen(c) for c in self.alloc), *allocator)
        devices = list(self.devices)
        return EventColumns(
            events=self.events,
            keys=self.key_table(allocations, devices),
            leaves=leaves,
            uses=UseTable(*(frozen(c) for c in self.use)),
            allocations=allocations,
            scopes=ScopeTable(*scope),
            names=list(self.names.index),
            threads=self.threads,
            devices=devices,
            gradients=rows(self.gradients),
            parameters=rows(self.parameters),
            optimizer_states=rows(self.states),
            function_calls=self.calls,
            out_of_memory=self.oom,
            skipped_ns=self.skipped_ns,
        )

    def key_table(self, allocations: AllocationTable, devices: list[Any]) -> KeyTable:
        """The storages, their sizes and their order settled."""
        id, allocation, device = (frozen(c) for c in (self.key_id, self.key_alloc, self.key_dev))
        size = np.array(self.key_size, dtype=np.int64)
        # The allocator's word beats a tensor's extent; of several, the first in time.
        known = np.flatnonzero(allocations.key >= 0)
        late_first = known[np.argsort(allocations.start[known], kind="stable")[::-1]]
        size[allocations.key[late_first]] = np.abs(allocations.size[late_first])

        by_name = sorted(
            range(len(devices)),
            key=lambda i: (devices[i].type, -1 if devices[i].index is None else devices[i].index),
        )
        device_rank = np.empty(len(devices), np.int32)
        device_rank[by_name] = np.arange(len(devices))
        order = np.lexsort((device_rank[device], allocation, id)) if len(id) else id
        rank = np.empty(len(id), np.int32)
        rank[order] = np.arange(len(id))
        return KeyTable(
            id=id,
            allocation=allocation,
            ptr=frozen(self.key_ptr),
            device=device,
            size=frozen(size),
            rank=frozen(rank),
            tensor_index=rows(np.unique(id, return_inverse=True)[1] if len(id) else id),
        )
