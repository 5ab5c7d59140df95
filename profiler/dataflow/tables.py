"""Tables that grow while a trace is read, and the columns they become.

Note [Sizes]
~~~~~~~~~~~~
Of a storage that was there before the profiler started, only tensors in it are seen. A
tensor of sizes n and strides s reaches over 1 + Σ (n-1)·s elements; and where it is one
row of something larger, max n·s guesses the whole. The larger of the two is taken, 0 for
a tensor without elements. torch takes max n·s alone, so it gives 0 bytes to an expanded
scalar, too few to overlapping windows, and some to an empty tensor.

Note [Finding a storage]
~~~~~~~~~~~~~~~~~~~~~~~~
A tensor id and an allocation id name a storage: allocation ids are given out per
(address, device), so the device need not be read to tell storages apart. Tensor ids are
given out in order and few tensors ever change their storage, so a list by tensor id finds
nearly all: ``latest``. A dictionary of pairs would hold two Python numbers a storage, more
than all columns of the key table. The few that the list cannot hold are in ``others``.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import Any

import numpy as np

from . import _torch_compat as compat
from .columns import (
    NODE,
    AllocationTable,
    CachingTable,
    EventColumns,
    FailedAllocation,
    FunctionCall,
    KeyTable,
    LeafTable,
    ScopeTable,
    UseTable,
    frozen,
)

_SPARSE = 1 << 16
"""A tensor id so far beyond all others is not put into the list."""


def signed(n: int) -> int:
    """An unsigned number of 64 bits (an address, a thread) as the columns hold it."""
    return n if n < 1 << 63 else n - (1 << 64)


def _append(columns: list[array[int]], *row: int) -> int:
    """The number of the new row."""
    for column, value in zip(columns, row, strict=True):
        column.append(value)
    return len(columns[0]) - 1


class GrowingTables:
    """Everything that reading a trace leaves behind, a row at a time.

    The columns are open to the reader's loop, which appends to ``use`` and ``alloc`` itself.
    """

    def __init__(self) -> None:
        self.names: defaultdict[str, int] = defaultdict()  # numbered as they are asked for
        self.names.default_factory = self.names.__len__
        self.devices: dict[Any, int] = {}
        self.on_cpu: list[bool] = []
        self.threads: list[tuple[int, int]] = []

        # See Note [Finding a storage]; -1 where the list has none.
        self.latest = array("i")
        self.others: dict[tuple[int, int], int] = {}
        self.key_id, self.key_alloc, self.key_ptr, self.key_dev = (array(c) for c in "iiqh")
        self.key_size = array("q")  # from tensors
        self.allocated = bytearray()  # by key: an allocation or release was seen

        self.leaf: list[array[int]] = [array(c) for c in "iqiBiqi"]
        self.use: list[array[int]] = [array(c) for c in "iB"]
        self.alloc: list[array[int]] = [array(c) for c in "iiiqhqii"]
        self.unnamed = array("q")  # addresses of allocation rows without a key
        self.caching: list[array[int]] = [array(c) for c in "iqq"]
        self.scope: list[array[int]] = [array(c) for c in "BiiqqiqB"]
        self.gradients, self.parameters, self.states = array("i"), array("i"), array("i")
        self.calls: list[FunctionCall] = []
        self.oom: list[tuple[int, int, int, int]] = []  # number, time, operator, scope
        self.skipped_ns = 0

    # -- storages -------------------------------------------------------------------

    def find(self, id: int, allocation: int, ptr: int | None, device: Any) -> int:
        """The key of a storage, new if it is seen for the first time; -1 if it has no address."""
        latest = self.latest
        key = latest[id] if id < len(latest) else -1
        if key >= 0 and self.key_alloc[key] == allocation:
            return key
        known = self.others.get((id, allocation))
        if known is not None:
            return known
        if ptr is None:
            self.others[id, allocation] = -1
            return -1
        key = len(self.key_id)
        self.key_id.append(id)
        self.key_alloc.append(allocation)
        self.key_ptr.append(signed(ptr))
        self.key_dev.append(self.device(device))
        self.key_size.append(0)
        self.allocated.append(0)
        if id >= len(latest) + _SPARSE:
            self.others[id, allocation] = key
            return key
        while id >= len(latest):
            latest.append(-1)
        if latest[id] >= 0:  # the tensor has changed its storage
            self.others[id, self.key_alloc[latest[id]]] = latest[id]
        latest[id] = key
        return key

    def tensor(self, t: Any) -> int:
        """The key of a tensor, with its size noted; -1 if the profiler cannot name it."""
        id, allocation = t.id, t.allocation_id
        if id is None or allocation is None:
            return -1
        key = self.find(id, allocation, t.storage_data_ptr, t.device)
        if key >= 0 and not self.allocated[key]:
            size = self.extent(t)
            if size > self.key_size[key]:
                self.key_size[key] = size
        return key

    def extent(self, t: Any) -> int:
        """Bytes of storage that a strided tensor is known to need; see Note [Sizes]."""
        if t.layout is not compat.STRIDED:
            return 0
        span, widest = 1, 1
        for n, stride in zip(t.sizes, t.strides, strict=False):
            if n == 0:
                return 0
            span += (n - 1) * stride
            if n * stride > widest:
                widest = n * stride
        return (span if span > widest else widest) * int(t.dtype.itemsize)

    def member(self, t: Any, into: array[int]) -> None:
        """Note a tensor that a module or an optimizer shows."""
        if t is not None:
            key = self.tensor(t)
            if key >= 0:
                into.append(key)

    def device(self, device: Any) -> int:
        """The number of a device, a new one where it is seen for the first time."""
        found = self.devices.get(device)
        if found is None:
            found = self.devices[device] = len(self.devices)
            self.on_cpu.append(device.type == "cpu")
        return found

    # -- rows of the other tables ---------------------------------------------------

    def new_leaf(
        self, number: int, start: int, name: int, backward: int, scope: int, sequence: int
    ) -> int:
        """A row of the leaf table."""
        row = (number, start, name, backward, scope, sequence, len(self.use[0]))
        return _append(self.leaf, *row)

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
        """A row of the scope table."""
        start, end = event.start_time_ns, event.end_time_ns
        row = (kind, self.names[name], parent, start, end, number, identity, backward)
        return _append(self.scope, *row)

    def note_allocator(self, x: Any) -> None:
        """Note what a caching allocator holds after the latest allocation row."""
        _append(self.caching, len(self.alloc[0]) - 1, x.total_reserved, x.total_allocated)

    def note_function(self, event: Any, keys: list[Any], backward: int) -> None:
        """Note a compiled autograd function and its tensor arguments."""
        flat = tuple(k if isinstance(k, int) else -1 for k in keys)
        call = FunctionCall(event.start_time_ns, event.end_time_ns, backward == NODE, flat)
        self.calls.append(call)

    # -- result ---------------------------------------------------------------------

    def columns(self, events: int, skip_compiler: bool, kineto: Any) -> EventColumns:
        """The tables as they are now; ``events`` of ``kineto`` were visited."""
        allocations = AllocationTable(*(frozen(c) for c in (*self.alloc, self.unnamed)))
        devices = list(self.devices)
        return EventColumns(
            events=events,
            keys=self._key_table(allocations, devices),
            leaves=LeafTable(*(frozen(c) for c in self.leaf)),
            uses=UseTable(*(frozen(c) for c in self.use)),
            allocations=allocations,
            caching=CachingTable(*(frozen(c) for c in self.caching)),
            scopes=ScopeTable(*(frozen(c) for c in self.scope)),
            names=list(self.names),
            threads=self.threads,
            devices=devices,
            gradients=frozen(self.gradients),
            parameters=frozen(self.parameters),
            optimizer_states=frozen(self.states),
            function_calls=self.calls,
            out_of_memory=self._failures(kineto) if self.oom else [],
            skipped_ns=self.skipped_ns,
            skip_compiler=skip_compiler,
            kineto=kineto,
        )

    def _failures(self, kineto: Any) -> list[FailedAllocation]:
        # An event of the tree does not say on which device it failed.
        devices = compat.failed_devices(kineto)
        found = [FailedAllocation(n, at, devices.get(at), op, sc) for n, at, op, sc in self.oom]
        return sorted(found, key=lambda f: f.time)

    def _key_table(self, allocations: AllocationTable, devices: list[Any]) -> KeyTable:
        """The storages, their sizes and their order settled."""
        id, allocation, device = (frozen(c) for c in (self.key_id, self.key_alloc, self.key_dev))
        size = np.asarray(self.key_size, dtype=np.int64)
        # The allocator's word beats a tensor's extent; of several, the first in time.
        known = np.flatnonzero(allocations.key >= 0).astype(np.int32)
        late_first = known[np.argsort(allocations.start[known], kind="stable")[::-1]]
        size[allocations.key[late_first]] = np.abs(allocations.size[late_first])

        by_name = sorted(
            range(len(devices)),
            key=lambda i: (devices[i].type, -1 if devices[i].index is None else devices[i].index),
        )
        device_rank = np.empty(len(devices), np.int16)
        device_rank[by_name] = np.arange(len(devices))
        order = np.lexsort((device_rank[device], allocation, id))
        rank = np.empty(len(id), np.int32)
        rank[order] = np.arange(len(id), dtype=np.int32)
        return KeyTable(
            id=id,
            allocation=allocation,
            ptr=frozen(self.key_ptr),
            device=device,
            size=frozen(size),
            rank=frozen(rank),
            tensor_index=frozen(np.unique(id, return_inverse=True)[1], np.int32),
        )
