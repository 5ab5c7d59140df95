"""The tree of operations: each place in it (a name below a parent) with the sums of its
invocations."""

from __future__ import annotations

from typing import Protocol

from memprof.profiler.model import DeviceSummary, OperationSummary
from memprof.profiler.model.tracker import MAX_NAMES, path_of

OTHER = "(other operations)"


class Ended(Protocol):
    """What is asked of an invocation that has ended. ``tensors_before`` and ``tensors_after``:
    bytes and number, -1 where they were not counted; ``memory``: by device bytes before, after,
    highest seen, and two more figures."""

    @property
    def summary(self) -> int: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def failed(self) -> bool: ...
    @property
    def tensors_before(self) -> tuple[int, int]: ...
    @property
    def tensors_after(self) -> tuple[int, int]: ...
    @property
    def memory(self) -> dict[str, list[int]]: ...


class OperationTree:
    """Places are numbered in the order in which they were first seen; to be used by one thread
    at a time."""

    def __init__(self) -> None:
        self._sums: list[_Sums] = []
        self._by_place: dict[tuple[int, str], int] = {}
        self._changed: set[int] = set()

    def place(self, parent: int, name: str) -> int:
        """The number of ``name`` below place ``parent``, -1 for the root."""
        found = self._by_place.get((parent, name))
        if found is None and len(self._sums) >= MAX_NAMES:
            parent, name = -1, OTHER
            found = self._by_place.get((parent, name))
        if found is None:
            found = self._by_place[parent, name] = len(self._sums)
            self._sums.append(_Sums(name, parent))
            self._changed.add(found)
        return found

    def add(self, invocation: Ended) -> None:
        """Count an invocation that has ended at its place."""
        self._sums[invocation.summary].add(invocation)
        self._changed.add(invocation.summary)

    def path(self, place: int) -> str:
        """Names from the root to a place, joined by ``/``; "" for -1."""
        return path_of(self._sums, place)

    def summaries(self) -> list[OperationSummary]:
        """All places, by number."""
        return [s.summary() for s in self._sums]

    def changed(self, limit: int) -> dict[int, OperationSummary]:
        """At most ``limit`` of the places that changed since they were last returned."""
        found = {i: self._sums[i].summary() for i in sorted(self._changed)[:limit]}
        self._changed.difference_update(found)
        return found


class _Sums:
    """What adds up to an ``OperationSummary``."""

    __slots__ = (
        "count",
        "devices",
        "failed",
        "max_ns",
        "measured",
        "min_ns",
        "name",
        "nbytes",
        "parent",
        "tensors",
        "total_ns",
    )

    def __init__(self, name: str, parent: int) -> None:
        self.name = name
        self.parent = parent
        self.count = self.failed = self.total_ns = self.max_ns = self.min_ns = 0
        self.nbytes = self.tensors = self.measured = 0
        # device: [total delta, highest delta, highest peak, measured]
        self.devices: dict[str, list[int]] = {}

    def add(self, o: Ended) -> None:
        """Add an invocation that has ended."""
        took = o.end_ns - o.start_ns
        self.min_ns = min(self.min_ns, took) if self.count else took
        self.max_ns = max(self.max_ns, took)
        self.total_ns += took
        self.count += 1
        self.failed += o.failed
        if o.tensors_before[0] >= 0 and o.tensors_after[0] >= 0:
            self.nbytes += o.tensors_after[0] - o.tensors_before[0]
            self.tensors += o.tensors_after[1] - o.tensors_before[1]
            self.measured += 1
        for device, (before, after, peak, _, _) in o.memory.items():
            delta = after - before
            sums = self.devices.get(device)
            if sums is None:
                self.devices[device] = [delta, delta, peak, 1]
                continue
            sums[0] += delta
            sums[1] = max(sums[1], delta)
            sums[2] = max(sums[2], peak)
            sums[3] += 1

    def summary(self) -> OperationSummary:
        """As it is written."""
        return OperationSummary(
            name=self.name,
            parent=self.parent,
            count=self.count,
            failed=self.failed,
            total_ns=self.total_ns,
            max_ns=self.max_ns,
            min_ns=self.min_ns,
            tensor_bytes_delta=self.nbytes,
            tensors_delta=self.tensors,
            tensors_measured=self.measured,
            devices={name: DeviceSummary(*sums) for name, sums in self.devices.items()},
        )
