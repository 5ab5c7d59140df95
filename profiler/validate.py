"""Does a profile agree with itself? What types cannot say: indices that must exist, columns
of one length, events in an order that memory allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from .model import (
    AllocationProgram,
    CallColumns,
    DataFlowDevice,
    DeviceAccount,
    EventKind,
    GraphPool,
    GraphRecord,
    GraphValue,
    Growth,
    MemorySnapshot,
    OperationColumns,
    OperationSummary,
    Placement,
    Process,
    TrackerRecord,
)
from .model.limits import LARGEST
from .model.tracker import MAX_NAMES

Finding = tuple[str, str]
"""Path in the document, what is wrong there."""

LONGEST_PATH = 10_000
"""Characters of the names from the root of the tree of operations to one of them. Every operation
shows its path, so that long names above many would come to more than any memory holds."""
LONGEST_PATHS = MAX_NAMES * LONGEST_PATH
"""Characters that all paths together have beyond the operations' own names; those of a tracker's
places have no more."""


# Graphs and calls


def graph_findings(graph: GraphRecord, at: str) -> Iterator[Finding]:
    """What contradicts itself in a graph but for its programs and placements."""
    yield from _values(graph.inputs, f"{at}.inputs", len(graph.inputs))
    yield from _values(graph.outputs, f"{at}.outputs", len(graph.inputs))
    for what, named in (("nodes", graph.nodes), ("buffers", graph.buffers)):
        for key, value in named.items():
            if value.name != key:
                yield f"{at}.{what}[{key!r}].name", f"{value.name!r} stands under the key {key!r}"


def _values(values: tuple[GraphValue, ...], at: str, inputs: int) -> Iterator[Finding]:
    for i, value in enumerate(values):
        if value.index != i:
            yield f"{at}[{i}].index", f"index {value.index} at position {i}"
        if value.alias_of_input is not None and not 0 <= value.alias_of_input < inputs:
            said = f"there is no input {value.alias_of_input}, the graph has {inputs}"
            yield f"{at}[{i}].alias_of_input", said


def program_findings(
    program: AllocationProgram, graph: GraphRecord, at: str, keys: set[tuple[int, ...]]
) -> Iterator[Finding]:
    """What contradicts itself in a program.

    Args:
        program, graph: the program and what it is of.
        at: its path in the document.
        keys: of the graph's programs before this one; gets its key.
    """
    if program.key in keys:
        yield f"{at}.key", f"two programs have the key {list(program.key)}"
    keys.add(program.key)
    inputs: set[int] = set()
    for i, s in enumerate(program.storages):
        if s.id != i:
            yield f"{at}.storages[{i}].id", f"id {s.id} at position {i}"
        for name, indices, count in (
            ("inputs", s.inputs, len(graph.inputs)),
            ("outputs", s.outputs, len(graph.outputs)),
        ):
            for k in indices:
                if not 0 <= k < count:
                    said = f"there is no {name[:-1]} {k}, the graph has {count}"
                    yield f"{at}.storages[{i}].{name}", said
        if s.at_entry:
            inputs.add(i)
    live = set(inputs)
    for i, e in enumerate(program.events):
        where = f"{at}.events[{i}]"
        if not 0 <= e.storage < len(program.storages):
            said = f"there is no storage {e.storage}, the program has {len(program.storages)}"
            yield f"{where}.storage", said
            return  # What is live is no longer known.
        if e.kind is EventKind.ALLOC:
            if e.storage in inputs:
                yield where, f"allocates storage {e.storage}, which was live before the call"
            elif e.storage in live:
                yield where, f"allocates storage {e.storage}, which is live already"
            live.add(e.storage)
        else:
            if e.storage not in live:
                verb = "frees" if e.kind is EventKind.FREE else "reuses"
                yield where, f"{verb} storage {e.storage}, which is not live"
            if e.kind is EventKind.FREE:
                live.discard(e.storage)


def placement_findings(
    placement: Placement, at: str, inputs: Mapping[int, int]
) -> Iterator[Finding]:
    """What contradicts itself in a placement.

    Args:
        placement: the placement.
        at: its path in the document.
        inputs: number of inputs of each graph of the profile.
    """
    last = len(placement.lines) + 1
    for i, b in enumerate(placement.blocks):
        if not 0 <= b.begin <= b.end <= last:
            said = f"lives from instant {b.begin} to {b.end}; the placement has 0 to {last - 1}"
            yield f"{at}.blocks[{i}]", said
        # Its graph may be of an earlier session, see Attribution; its inputs are then not known.
        count = inputs.get(b.graph, max(b.inputs, default=0) + 1)
        for k in b.inputs:
            if not 0 <= k < count:
                yield f"{at}.blocks[{i}].inputs", f"there is no input {k}, the graph has {count}"


def bad_calls(calls: CallColumns, programs: Mapping[int, int]) -> dict[int, Finding]:
    """The calls of a log that contradict it or themselves, by position, each with what is wrong.

    Args:
        calls: the log, whose columns have one length.
        programs: number of programs of each graph of the profile.
    """
    found: dict[int, Finding] = {}
    # A log has millions of calls and few distinct pairs: look at the pairs first.
    bad = {
        (g, p)
        for g, p in set(zip(calls.graph, calls.program, strict=True))
        if g not in programs or not -1 <= p < programs[g]
    }
    for i, (g, p) in enumerate(zip(calls.graph, calls.program, strict=True)) if bad else ():
        if (g, p) in bad and g not in programs:
            found[i] = f"$.calls.graph[{i}]", f"there is no graph {g}"
        elif (g, p) in bad:
            found[i] = (
                f"$.calls.program[{i}]",
                f"there is no program {p}, graph {g} has {programs[g]} (-1 stands for none)",
            )
    times = calls.start_ns, calls.end_ns
    # They are sums of what the file has, and of its numbers each alone fits.
    beyond = calls.start_ns and (min(map(min, times)) < -LARGEST or max(map(max, times)) > LARGEST)
    if beyond or any(map(int.__gt__, *times)):
        for i, (start, end) in enumerate(zip(*times, strict=True)):
            if start > end:
                said = f"the call ends at {end}, before it starts at {start}"
            elif not -LARGEST <= start <= end <= LARGEST:
                said = "its times do not fit 64 bits"
            else:
                continue
            found.setdefault(i, (f"$.calls.end_ns[{i}]", said))
    if calls.thread and not 0 <= min(calls.thread) <= max(calls.thread) <= LARGEST:
        for i, t in enumerate(calls.thread):
            if not 0 <= t <= LARGEST:
                found.setdefault(i, (f"$.calls.thread[{i}]", f"{t} is no thread number"))
    return found


# Accounts, pools, growth


def account_findings(account: DeviceAccount, at: str) -> Iterator[Finding]:
    """What contradicts itself in the account of a device."""
    if account.peak is not None and account.peak.peak is not None:
        yield f"{at}.peak.peak", "an instant of an instant"
        return
    total = account.explained + account.unexplained
    if total != account.reserved:
        yield f"{at}.reserved", f"{account.reserved} bytes, while its parts have {total}"
    if account.peak is not None:
        yield from account_findings(account.peak, f"{at}.peak")


def pool_findings(pool: GraphPool, at: str) -> Iterator[Finding]:
    """What contradicts itself in a pool of CUDA graphs."""
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
        if not share.graphs or not known.issuperset(share.graphs):
            yield f"{at}.shares[{i}]", f"{share.nbytes} bytes of graphs {list(share.graphs)}"
    for i, graph in enumerate(pool.graphs):
        had = graph.rounding + sum(r.nbytes for r in graph.at_peak)
        if had != graph.peak:
            yield f"{at}.graphs[{i}].peak", f"{graph.peak} bytes, while its blocks have {had}"


def growth_findings(growth: Growth, at: str) -> Iterator[Finding]:
    """What contradicts itself in what is said to grow."""
    if not 0 <= growth.since <= growth.steps:
        yield f"{at}.since", f"step {growth.since} of {growth.steps}"


# Process, data flow, tracker


def process_findings(process: Process, at: str) -> Iterator[Finding]:
    """What contradicts itself in a process's place in its job."""
    for name, value in (("rank", process.rank), ("local_rank", process.local_rank)):
        if value >= process.world_size:
            yield f"{at}.{name}", f"there is no rank {value} among {process.world_size}"


def device_findings(device: DataFlowDevice, at: str) -> Iterator[Finding]:
    """What contradicts itself in the data flow of one device."""
    times = device.time_ns
    for j in range(1, len(times)):
        if times[j] <= times[j - 1]:
            yield f"{at}.time_ns[{j}]", f"{times[j]} after {times[j - 1]}; times ascend"
            break
    for category, column in device.bytes.items():
        if len(column) != len(times):
            said = f"{len(column)} entries for {len(times)} times"
            yield f"{at}.bytes[{category.value!r}]", said
            return
    if device.peak is None:
        return
    if not 0 <= device.peak < len(times):
        yield f"{at}.peak", f"there is no time {device.peak}, there are {len(times)}"
        return
    live = sum(storage.nbytes for storage in device.live)
    if live != device.bytes_at(device.peak):
        said = f"adds up to {live:,} bytes, the columns to {device.bytes_at(device.peak):,}"
        yield f"{at}.live", said


def snapshots_findings(snapshots: Sequence[MemorySnapshot], at: str) -> Iterator[Finding]:
    """What contradicts itself in the order of snapshots."""
    for i in range(1, len(snapshots)):
        before, time = snapshots[i - 1].time_ns, snapshots[i].time_ns
        if time < before:
            yield f"{at}[{i}].time_ns", f"{time} after {before}; times ascend"


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
    limits = (
        ("summary", 0, len(record.operation_summary)),
        ("lane", 0, len(record.metadata.lanes)),
        ("parent", -1, len(columns)),
    )
    for name, lowest, end in limits:
        for i, n in enumerate(getattr(columns, name)):
            if not lowest <= n < end:
                yield f"{at}.{name}[{i}]", f"{n} is not from {lowest} to {end - 1}"
