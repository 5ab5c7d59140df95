"""Columns made by hand, for traces that no machine here can record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch._C._profiler import RecordScope

from memprof.profiler.sources.trace import _torch_compat as compat


class TorchOp:
    def __init__(self, name: str, inputs: list[Any], scope: Any, sequence: int) -> None:
        self.name, self.inputs, self.scope, self.sequence_number = name, inputs, scope, sequence


class Allocation:
    def __init__(self, ptr: int, size: int, id: Any, allocation: Any, device: str) -> None:
        self.ptr, self.alloc_size, self.id, self.allocation_id = ptr, size, id, allocation
        self.device = torch.device(device)
        self.total_allocated, self.total_reserved = 1000, 4096


class PyCall:
    def __init__(self, module: Any = None, optimizer: Any = None) -> None:
        self.module, self.optimizer = module, optimizer


_CPU = torch.device("cpu")


@dataclass
class Tensor:
    id: int | None
    allocation_id: int | None
    storage_data_ptr: int | None
    device: torch.device = _CPU
    dtype: torch.dtype = torch.float32
    layout: torch.layout = torch.strided
    sizes: tuple[int, ...] = (4,)
    strides: tuple[int, ...] = (1,)


class Event:
    """An event as the profiler's tree has it."""

    clock = 0

    def __init__(
        self, payload: Any, *children: Event, name: str = "", start: int | None = None,
        thread: int = 1, length: int = 1000,
    ) -> None:  # fmt: skip
        Event.clock += 10
        self.start_time_ns = Event.clock if start is None else start
        self.end_time_ns = self.start_time_ns + length
        self.duration_time_ns = length
        self.start_tid = thread
        self.extra_fields = payload
        self.children = list(children)
        self.name = name or getattr(payload, "name", "")


def op(name: str, inputs: list[Any], *children: Event, sequence: int = -1, **kw: Any) -> Event:
    return Event(TorchOp(name, inputs, RecordScope.FUNCTION, sequence), *children, **kw)


def node(name: str, inputs: list[Any], *children: Event, sequence: int = -1, **kw: Any) -> Event:
    return Event(TorchOp(name, inputs, compat.BACKWARD_FUNCTION, sequence), *children, **kw)


def alloc(
    ptr: int, size: int, id: int | None = None, allocation: int | None = None,
    device: str = "cpu", **kw: Any,
) -> Event:  # fmt: skip
    return Event(Allocation(ptr, size, id, allocation, device), **kw)


class Result:
    """A profiler's result."""

    def __init__(self, *roots: Event) -> None:
        self.roots = list(roots)

    def experimental_event_tree(self) -> list[Event]:
        return self.roots


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the analysis take the classes of this module for the profiler's."""
    for cls in (TorchOp, Allocation, PyCall):
        monkeypatch.setattr(compat, cls.__name__, cls)
    monkeypatch.setattr(compat, "TensorMetadata", Tensor)
