"""Torch's names for what one event of a trace says: storages, gradients, scopes, schemas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from . import _torch_compat as compat
from .schema import WRITTEN, SchemaCache


@dataclass(frozen=True)
class Key:
    """Memory on a device that the profiler knows no tensor in; torch's name."""

    device: Any


@dataclass(frozen=True)
class Storage:
    """An address and the number of the allocation, which alone identifies it."""

    ptr: int = field(compare=False)
    allocation_id: int

    def __repr__(self) -> str:
        return f"{hex(self.ptr):>18} ({self.allocation_id})"


@dataclass(frozen=True)
class TensorKey(Key):
    """A storage that has held a tensor, in the profiler's numbering."""

    id: int
    storage: Storage

    def __repr__(self) -> str:
        return f"id={self.id}: {self.storage!r:<24} ({self.device})"

    def __lt__(self, other: TensorKey) -> bool:
        return self._as_sortable < other._as_sortable

    @property
    def _as_sortable(self) -> tuple[int, int, str, int]:
        index = self.device.index
        return self.id, self.storage.allocation_id, self.device.type, -1 if index is None else index

    @staticmethod
    def _make(id: Any, ptr: Any, allocation: Any, device: Any) -> TensorKey | None:
        if id is None or ptr is None or allocation is None:
            return None
        return TensorKey(device, int(id), Storage(int(ptr), int(allocation)))

    @classmethod
    def from_allocation(cls, alloc: Any) -> TensorKey | None:
        """The storage of an allocation event; None if the profiler knows no tensor in it."""
        return cls._make(alloc.id, alloc.ptr, alloc.allocation_id, alloc.device)

    @classmethod
    def from_tensor(cls, t: Any) -> TensorKey | None:
        """The storage of a recorded tensor; None if it has none."""
        if t is None:
            return None
        return cls._make(t.id, t.storage_data_ptr, t.allocation_id, t.device)


def _tensors(node: Any) -> Iterator[tuple[TensorKey | None, TensorKey | None]]:
    """(parameter, gradient) pairs that one event tells of."""
    x = node.extra_fields
    if type(x) is compat.TorchOp:
        if node.name != compat.ACCUMULATE_GRAD or x.scope != compat.BACKWARD_FUNCTION:
            return
        children = node.children
        first: Any = children[0].extra_fields if children else None
        if (
            type(first) is compat.TorchOp
            and first.name in compat.ACCUMULATE_GRAD_OPS
            and first.inputs
            and type(first.inputs[0]) is compat.TensorMetadata
        ):
            yield None, TensorKey.from_tensor(first.inputs[0])
    elif type(x) is compat.PyCall:
        pairs: list[tuple[Any, Any]] = []
        if x.module is not None:
            pairs += [(p, g) for _, p, g in x.module.parameters]
        if x.optimizer is not None:
            pairs += [(p, g) for p, g, _ in x.optimizer.parameters]
        for p, g in pairs:
            yield TensorKey.from_tensor(p), TensorKey.from_tensor(g)


def extract_parameters(node: Any) -> Iterator[TensorKey]:
    """Parameters that a module or optimizer call names."""
    return (p for p, _ in _tensors(node) if p is not None)


def extract_gradients(node: Any) -> Iterator[tuple[TensorKey | None, TensorKey]]:
    """(parameter if known, gradient) that an event names."""
    return ((p, g) for p, g in _tensors(node) if g is not None)


def get_scopes(event: Any) -> tuple[Any, ...]:
    """``RecordScope`` of the operator events from ``event`` outwards."""
    scopes = []
    while event:
        x = event.extra_fields
        if type(x) is compat.TorchOp:
            scopes.append(x.scope)
        event = event.parent
    return tuple(scopes)


class SchemaMatcher:
    """Overloads that a recorded operator call can have been."""

    _cache = SchemaCache()

    @staticmethod
    def _signature(t: Any) -> tuple[object, ...]:
        def observed(value: Any) -> object:
            if type(value) is compat.TensorMetadata:
                return None if TensorKey.from_tensor(value) is None else compat.TensorMetadata
            if type(value) is list:
                named = (
                    type(v) is compat.TensorMetadata and TensorKey.from_tensor(v) for v in value
                )
                return list if all(named) else tuple
            return None if value is None else type(value)

        return tuple(observed(v) for v in t.inputs)

    @classmethod
    def match_schemas(cls, t: Any) -> tuple[Any, ...]:
        """Schemas of the overloads that fit the recorded arguments."""
        return cls._cache.matching(t.name, cls._signature(t))

    @classmethod
    def inputs_are_mutable(cls, t: Any) -> tuple[bool | None, ...]:
        """Whether each argument may be written to; None if no schema fits."""
        match = cls._cache.match(t.name, cls._signature(t))
        if not match.is_operator:
            return (None,) * len(t.inputs)
        return tuple(bool(m & WRITTEN) for m in match.mutability)

    @classmethod
    def lookup_schemas(cls, name: str) -> tuple[Any, ...] | None:
        """Every overload of an operator; None if there is no such operator."""
        return cls._cache.schemas(name) or None
