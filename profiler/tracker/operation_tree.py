"""The tree of operations: each place in it (a name below a parent) with the sums of its
invocations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from memprof.profiler.model import DeviceSummary, OperationSummary
from memprof.profiler.model.tracker import MAX_NAMES, path_of

OTHER = "(other operations)"

Counted = tuple[int, int]
"""Bytes and number of live tensors, -1 where they were not counted."""


class OperationTree:
    """Places are numbered in the order in which they were first seen; to be used by one thread
    at a time."""

    def __init__(self) -> None:
        self._sums: list[OperationSummary] = []
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
            self._sums.append(OperationSummary(name, parent))
            self._changed.add(found)
        return found

    def add(
        self,
        place: int,
        took_ns: int,
        failed: bool,
        before: Counted,
        after: Counted,
        memory: Mapping[str, Sequence[int]],
    ) -> None:
        """Count an invocation that has ended.

        Args:
            place: its number.
            took_ns: how long it lasted.
            failed: whether an exception left it.
            before, after: tensors at its edges.
            memory: by device bytes before, after and highest seen, and maybe more.
        """
        sums = self._sums[place]
        self._changed.add(place)
        sums.min_ns = min(sums.min_ns, took_ns) if sums.count else took_ns
        sums.max_ns = max(sums.max_ns, took_ns)
        sums.total_ns += took_ns
        sums.count += 1
        sums.failed += failed
        if before[0] >= 0 and after[0] >= 0:
            sums.tensor_bytes_delta += after[0] - before[0]
            sums.tensors_delta += after[1] - before[1]
            sums.tensors_measured += 1
        for device, figures in memory.items():
            delta, peak = figures[1] - figures[0], figures[2]
            known = sums.devices.get(device)
            if known is None:
                sums.devices[device] = DeviceSummary(delta, delta, peak, 1)
                continue
            known.total_delta += delta
            known.max_delta = max(known.max_delta, delta)
            known.max_peak = max(known.max_peak, peak)
            known.measured += 1

    def path(self, place: int) -> str:
        """Names from the root to a place, joined by ``/``; "" for -1."""
        return path_of(self._sums, place)

    def summaries(self) -> list[OperationSummary]:
        """All places as they are now, by number."""
        return [_copy(s) for s in self._sums]

    def changed(self, limit: int) -> dict[int, OperationSummary]:
        """At most ``limit`` of the places that changed since they were last returned."""
        found = {i: _copy(self._sums[i]) for i in sorted(self._changed)[:limit]}
        self._changed.difference_update(found)
        return found


def _copy(sums: OperationSummary) -> OperationSummary:
    devices = {name: dataclasses.replace(d) for name, d in sums.devices.items()}
    return dataclasses.replace(sums, devices=devices)
