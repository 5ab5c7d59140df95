"""Does a profile agree with itself? Its optional parts: process, data flow, tracker."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from .model import (
    DataFlowDevice,
    DeviceAccount,
    GraphPool,
    Growth,
    Lane,
    MemorySnapshot,
    OperationColumns,
    OperationSummary,
    Process,
    Span,
    TrackerRecord,
)
from .model.tracker import MAX_NAMES
from .validate_numbers import number_findings

Finding = tuple[str, str]
"""Path in the document, what is wrong there."""

LONGEST_PATH = 10_000
"""Characters of the names from the root of the tree of operations to one of them. Every operation
shows its path, so that long names above many would come to more than any memory holds."""
LONGEST_PATHS = MAX_NAMES * LONGEST_PATH
"""Characters that all paths together have beyond the operations' own names; those of a tracker's
places have no more."""


def account_findings(account: DeviceAccount, at: str) -> Iterator[Finding]:
    """What contradicts itself in the account of a device."""
    yield from number_findings(account, at)
    for i, row in enumerate(account.rows):
        if row.nbytes < 0 or row.count < 1:
            yield f"{at}.rows[{i}]", f"{row.count} blocks of {row.nbytes} bytes"
    total = account.explained + account.unexplained
    if total != account.reserved:
        yield f"{at}.reserved", f"{account.reserved} bytes, while its parts have {total}"
    if account.peak is not None:
        if account.peak.peak is not None:
            yield f"{at}.peak.peak", "an instant of an instant"
        else:
            yield from account_findings(account.peak, f"{at}.peak")


def pool_findings(pool: GraphPool, at: str) -> Iterator[Finding]:
    """What contradicts itself in a pool of CUDA graphs."""
    yield from number_findings(pool, at)
    grew = pool.grew_outside + sum(g.grew for g in pool.graphs)
    used = pool.other_shares + sum(s.nbytes for s in pool.shares)
    for what, total in (
        ("captures and what was between them", grew),
        ("users", used + pool.live_outside + pool.unused),
    ):
        if total != pool.reserved:
            yield f"{at}.reserved", f"{pool.reserved} bytes, while its {what} come to {total}"
    known = {g.number for g in pool.graphs}
    if len(known) != len(pool.graphs):
        yield f"{at}.graphs", "two graphs have one number"
    for i, share in enumerate(pool.shares):
        if share.nbytes < 0 or not share.graphs or not known.issuperset(share.graphs):
            yield f"{at}.shares[{i}]", f"{share.nbytes} bytes of graphs {list(share.graphs)}"
    for i, graph in enumerate(pool.graphs):
        had = graph.rounding + sum(r.nbytes for r in graph.at_peak)
        if had != graph.peak:
            yield f"{at}.graphs[{i}].peak", f"{graph.peak} bytes, while its blocks have {had}"


def growth_findings(growth: Growth, at: str) -> Iterator[Finding]:
    """What contradicts itself in what is said to grow."""
    yield from number_findings(growth, at)
    if growth.nbytes < 0 or growth.a_step < 0:
        yield at, f"{growth.nbytes} bytes, {growth.a_step} a step"
    if not 0 <= growth.since <= growth.steps:
        yield f"{at}.since", f"step {growth.since} of {growth.steps}"


def process_findings(process: Process) -> Iterator[Finding]:
    """What contradicts itself in a process's place in its job."""
    yield from number_findings(process, "$.process")
    if process.world_size < 1:
        yield "$.process.world_size", f"{process.world_size} processes; it is at least 1"
        return
    for name in ("rank", "local_rank"):
        value = getattr(process, name)
        if not 0 <= value < process.world_size:
            yield f"$.process.{name}", f"there is no rank {value} among {process.world_size}"


def device_findings(device: DataFlowDevice, at: str, graphs: Collection[int]) -> Iterator[Finding]:
    """What contradicts itself in the data flow of one device.

    Args:
        device: the columns.
        at: their path in the document.
        graphs: ids of the profile's graphs.
    """
    yield from number_findings(device, at)
    times = device.time_ns
    for j in range(1, len(times)):
        if times[j] <= times[j - 1]:
            yield f"{at}.time_ns[{j}]", f"{times[j]} after {times[j - 1]}; times ascend"
            break
    for category, column in device.bytes.items():
        where = f"{at}.bytes[{category.value!r}]"
        if len(column) != len(times):
            yield where, f"{len(column)} entries for {len(times)} times"
            return
        if column and min(column) < 0:
            yield where, f"{min(column)} is no number of bytes"
    named = [(f"live[{j}]", s) for j, s in enumerate(device.live)]
    named += [(f"leaks[{j}].storage", leak.storage) for j, leak in enumerate(device.leaks)]
    for name, storage in named:
        if storage.nbytes < 0:
            yield f"{at}.{name}.nbytes", f"{storage.nbytes} is no number of bytes"
        if storage.graph is not None and storage.graph not in graphs:
            yield f"{at}.{name}.graph", f"there is no graph {storage.graph}"
    if device.peak is None:
        return
    if not 0 <= device.peak < len(times):
        yield f"{at}.peak", f"there is no time {device.peak}, there are {len(times)}"
        return
    live = sum(storage.nbytes for storage in device.live)
    if live != device.bytes_at(device.peak):
        yield (
            f"{at}.live",
            f"adds up to {live:,} bytes, the columns to {device.bytes_at(device.peak):,}",
        )


def lane_findings(lane: Lane, at: str, lanes: int) -> Iterator[Finding]:
    """What contradicts itself in one of so many lanes."""
    if not 0 <= lane.thread < lanes:
        yield f"{at}.thread", f"there is no lane {lane.thread}, there are {lanes}"


def pause_findings(span: Span, at: str) -> Iterator[Finding]:
    """What contradicts itself in a pause of the tracker."""
    if span.end_ns < span.start_ns:
        yield at, "it ends before it starts"


def snapshots_findings(snapshots: Sequence[MemorySnapshot], at: str) -> Iterator[Finding]:
    """What contradicts itself in snapshots, given in order of time."""
    for i, snapshot in enumerate(snapshots):
        yield from number_findings(snapshot, f"{at}[{i}]")
        if i and snapshot.time_ns < snapshots[i - 1].time_ns:
            before = snapshots[i - 1].time_ns
            yield f"{at}[{i}].time_ns", f"{snapshot.time_ns} after {before}; times ascend"


class Paths:
    """How long the paths to operations are, which are added in order of their positions."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._above = 0

    def wrong(self, o: OperationSummary) -> str | None:
        """What is wrong with the place of ``o``, the next one, in the tree; None if nothing is."""
        if not -1 <= o.parent < len(self._lengths):
            return f"{o.parent} is no operation before this one"
        above = self._length_above(o)
        if above + len(o.name) + 1 > LONGEST_PATH:
            return f"the names from the root to it have more than {LONGEST_PATH:,} characters"
        if above and self._above + above > LONGEST_PATHS:
            return f"the names above all before it have some {LONGEST_PATHS:,} characters already"
        return None

    def add(self, o: OperationSummary) -> None:
        """Add the next operation."""
        above = self._length_above(o)
        self._above += above
        self._lengths.append(above + len(o.name) + 1)

    def _length_above(self, o: OperationSummary) -> int:
        return self._lengths[o.parent] if o.parent >= 0 else 0


def operations_findings(record: TrackerRecord, at: str) -> Iterator[Finding]:
    """What contradicts itself in the columns of single operations."""
    columns = record.operation_allocations
    lengths = {
        f.name: len(getattr(columns, f.name))
        for f in dataclasses.fields(OperationColumns)
        if f.name != "memory"
    }
    for device, memory in columns.memory.items():
        lengths |= {
            f"memory[{device!r}].{f.name}": len(getattr(memory, f.name))
            for f in dataclasses.fields(memory)
        }
    if len(set(lengths.values())) > 1:
        yield at, f"the columns differ in length: {lengths}"
        return
    yield from number_findings(columns, at)
    limits = (
        ("summary", 0, len(record.operation_summary)),
        ("lane", 0, len(record.metadata.lanes)),
        ("parent", -1, len(columns)),
    )
    for name, lowest, end in limits:
        column: list[int] = getattr(columns, name)
        if column and not (lowest <= min(column) and max(column) < end):
            i = next(i for i, n in enumerate(column) if not lowest <= n < end)
            yield f"{at}.{name}[{i}]", f"{column[i]} is not from {lowest} to {end - 1}"
