"""How a record stays bounded however long it runs: pure functions, no torch.

Note [Thinning]
~~~~~~~~~~~~~~~
Snapshots: when there are more than allowed, pairs of neighbours are merged, those first that lie
closest together for their age. What remains is dense at the end and sparser the further back,
and always covers the whole run. A merged snapshot is the later of the two and
keeps the higher ``highest_bytes``, so no peak that was seen is lost. Named checkpoints, the first
and the last snapshot are merged only when they alone are too many.

Operations: of the older half those that took the shortest go first; one that is still running
stays. ``operation_summary`` has counted all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from memprof.profiler.model import MemorySnapshot, SnapshotKind


def thin_snapshots(snapshots: Sequence[MemorySnapshot], limit: int) -> list[MemorySnapshot]:
    """``snapshots`` (in order of time) with at most ``limit`` left; the first and the last stay,
    whatever ``limit`` is.

    To be called when there are some more than ``limit``: the work is linear in their number.
    """
    kept, before = list(snapshots), -1
    # A pass that merges nothing is the last one.
    while len(kept) > limit and len(kept) != before:
        before = len(kept)
        kept = _merge_some(kept, before - limit)
    return kept


def _merge_some(snapshots: list[MemorySnapshot], excess: int) -> list[MemorySnapshot]:
    last = len(snapshots) - 1
    now = snapshots[last].time_ns
    candidates = []
    for i in range(1, last):
        s = snapshots[i]
        gap = snapshots[i + 1].time_ns - snapshots[i - 1].time_ns
        age = now - s.time_ns
        named = s.kind is not SnapshotKind.PERIODIC
        candidates.append((named, gap / (age + 1), i))
    candidates.sort()
    gone: set[int] = set()
    for _, _, i in candidates:
        if len(gone) == excess:
            break
        # Two neighbours in one pass would leave a hole twice as wide as intended.
        if i - 1 not in gone and i + 1 not in gone:
            gone.add(i)
    kept: list[MemorySnapshot] = []
    waiting: MemorySnapshot | None = None
    for i, s in enumerate(snapshots):
        if i in gone:
            waiting = s
        else:
            kept.append(_merge(waiting, s) if waiting is not None else s)
            waiting = None
    return kept


def _merge(earlier: MemorySnapshot, later: MemorySnapshot) -> MemorySnapshot:
    devices = dict(later.devices)
    for name, memory in earlier.devices.items():
        if name in devices:
            highest = max(
                (b for b in (memory.highest_bytes, devices[name].highest_bytes) if b is not None),
                default=None,
            )
            devices[name] = dataclasses.replace(devices[name], highest_bytes=highest)
    return dataclasses.replace(
        later,
        devices=devices,
        merged=later.merged + earlier.merged + 1,
        took_ns=max(later.took_ns, earlier.took_ns),
    )


class Invocation(Protocol):
    """What is asked of an operation's invocation."""

    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...


def operations_to_drop(operations: Sequence[Invocation], limit: int) -> set[int]:
    """Positions in ``operations`` (in order of start) to drop, so that ``limit`` are left.

    Running ones (``end_ns`` -1) stay; more may be left if they are many. Passes over plain
    numbers only: sorting 10 000 invocations by a key would hold the GIL for 50 ms.
    """
    excess = len(operations) - limit
    if excess <= 0:
        return set()
    ended = [i for i, o in enumerate(operations) if o.end_ns >= 0]
    older = ended[: max(excess, len(ended) // 2)]
    excess = min(excess, len(older))
    if not excess:
        return set()
    durations = [operations[i].end_ns - operations[i].start_ns for i in older]
    cutoff = sorted(durations)[excess - 1]
    drop = {i for i, d in zip(older, durations, strict=True) if d < cutoff}
    for i, d in zip(older, durations, strict=True):
        if len(drop) == excess:
            break
        if d == cutoff:
            drop.add(i)
    return drop
