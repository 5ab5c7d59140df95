"""Columns of the data-flow profile of a ``torch.profiler`` run, as a profile file keeps them.

``profiler/sources/trace`` computes them (and needs torch).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .category import Category
from .limits import Count, Int
from .provenance import SourceFrame

NO_EVENTS = (
    "no memory events, so its peak is not known: profile_memory=True makes them, and "
    "profile_all_threads=True drops them"
)
"""Note of a trace without events of the allocator, in words."""


@dataclass(frozen=True, slots=True)
class DataFlowStorage:
    """A storage at an instant at which it was live; what is None is unknown.

    Attributes:
        category: what it was for at that instant.
        op: operator that made it, None too if it was made before the trace began.
        module: path of the module whose call made it, ``""`` for the root.
        frame: innermost line of user code that made it.
        created_ns: clock of ``CallColumns``; None if it was there before the trace began.
        awaited: whether it is an activation that a backward waits for.
    """

    nbytes: Count
    category: Category
    op: str | None = None
    module: str | None = None
    frame: SourceFrame | None = None
    created_ns: Int | None = None
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class DataFlowDevice:
    """Live bytes of one device over time.

    Attributes:
        time_ns: ascending, one entry a distinct time, on the clock of ``CallColumns``; long traces
            may be coalesced, peaks kept.
        bytes: by category, live bytes from each time to the next; all columns are as long
            as ``time_ns``. A category that never has a byte has no column.
        peak: index in ``time_ns`` of the first time with the most bytes, None if empty.
        live: the storages live then, largest first; they add up to all bytes there.
    """

    device: str
    time_ns: list[Int] = field(default_factory=list)
    bytes: dict[Category, list[Count]] = field(default_factory=dict)
    peak: Int | None = None
    live: list[DataFlowStorage] = field(default_factory=list)

    def bytes_at(self, index: int) -> int:
        """Live bytes of all categories from ``time_ns[index]`` on."""
        return sum(column[index] for column in self.bytes.values())


@dataclass(frozen=True, slots=True)
class DataFlowColumns:
    """The data-flow profile of one ``torch.profiler`` run, eager and compiled code alike: devices
    by name, and what else a reader should know, a line each."""

    devices: list[DataFlowDevice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
