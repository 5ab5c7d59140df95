"""The raw material of a program: what was seen during one call, in order. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class At(NamedTuple):
    """Execution reached a statement. ``mark`` numbers these within the trace, from 1."""

    mark: int
    line: int


class Bound(NamedTuple):
    """A name was given a tensor (or a tuple holding it) in this storage."""

    name: str
    storage: int
    nbytes: int
    device: str


class Dropped(NamedTuple):
    """Names were deleted."""

    names: tuple[str, ...]


class Freed(NamedTuple):
    """The last reference to a storage went away."""

    storage: int


Report = At | Bound | Dropped | Freed


class AllocatorDelta(NamedTuple):
    """An allocator event: signed bytes, and the mark it happened under (0: before the first)."""

    mark: int
    nbytes: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class KnownStorage:
    """A storage that was live before the call.

    Attributes:
        storage: its identity.
        nbytes: its size in bytes.
        device: e.g. ``cpu``.
        name: of the first graph input in it, or of the constant.
        inputs: indices of all graph inputs in it; () for a constant of the graph.
    """

    storage: int
    nbytes: int
    device: str
    name: str
    inputs: tuple[int, ...] = ()


@dataclass(slots=True)
class Trace:
    """What was seen during one call.

    Attributes:
        key: the graph's symbolic sizes.
        entry: storages live at its beginning.
        reports: of the instrumented code and of storages dying, in order.
        allocator: the allocator's own events in order, None if they were not recorded.
        outputs: for each graph output the storage it lies in, None for what is no tensor.
        host_ns: duration in nanoseconds.
    """

    key: tuple[int, ...]
    entry: list[KnownStorage] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    allocator: list[AllocatorDelta] | None = None
    outputs: list[int | None] = field(default_factory=list)
    host_ns: int = 0
