"""Leaves out of a profile what contradicts itself, so that the rest can be shown.

Note [What a contradiction costs]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Views trust what they are given: indices that exist, columns of one length, releases of what is
live. What a file has besides is left out, the smallest part that has a meaning of its own:

* a program: calls of it have none, and the report counts them among those that were not observed;
* a graph's inputs, nodes, buffers or statements: all that is known of it but its name and its
  calls;
* a call, a ledger entry, a snapshot, a placement, a pool, a device of the data flow, an operation's
  place in the tree; the table of single operations, and the process.

Every part that was left out is named, with the reason, in ``Profile.left_out``. memprof writes no
such file: the tests of its producers hold that ``findings`` finds nothing.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from itertools import accumulate, compress
from typing import Any, TypeVar

from .model import (
    AllocationProgram,
    CallColumns,
    DataFlowColumns,
    DataFlowDevice,
    GraphRecord,
    Machine,
    OperationColumns,
    OperationSummary,
    OperatorRecord,
    Profile,
    TrackerMetadata,
    TrackerRecord,
)
from .validate import (
    calls_findings,
    entry_findings,
    graph_findings,
    placement_findings,
    program_findings,
    release_findings,
)
from .validate_numbers import LARGEST, number_findings
from .validate_parts import (
    Finding,
    Paths,
    account_findings,
    device_findings,
    growth_findings,
    lane_findings,
    operations_findings,
    pause_findings,
    pool_findings,
    process_findings,
    snapshots_findings,
)

LOST_PROGRAM = AllocationProgram((), (), ())
"""Stands where a program is lost, of which that was said already: others keep their positions."""

_T = TypeVar("_T")
_MOST = 50
_LONGEST = 400


class Notes:
    """What was left out, a line each; of very much the first, and how much more."""

    where = "$"
    """Path in the document of the first thing wrong that has one."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._more = 0

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, part: str, where: str, what: str) -> None:
        """Note a part.

        Args:
            part: which, in words.
            where: path in the document of what is wrong.
            what: in what way.
        """
        if not self:
            self.where = where
        self.line(f"{part}: {what} - at `{where}`")

    def line(self, text: str) -> None:
        """Note something in one's own words."""
        if len(self._lines) < _MOST:
            self._lines.append(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        else:
            self._more += 1

    def lines(self) -> list[str]:
        """All of it."""
        more = [f"{self._more:,} more part{'s' if self._more > 1 else ''}"] if self._more else []
        return [*self._lines, *more]


def repair(profile: Profile, notes: Notes) -> None:
    """Leave out of ``profile`` what contradicts itself; see Note [What a contradiction costs].

    Args:
        profile: changed in place, so that ``findings`` finds nothing in it.
        notes: get what was left out.
    """
    moved = _graphs(profile, notes)
    _calls(profile, moved, notes)
    graphs = {g.id for g in profile.graphs}
    kept = []
    for i, entry in enumerate(profile.ledger):
        if entry.graph is not None and entry.graph not in graphs:
            where = f"$.ledger[{i}].graph"
            notes.add("a ledger entry's graph", where, f"there is no graph {entry.graph}")
            entry = dataclasses.replace(entry, graph=None)
        if _sound("a ledger entry", entry_findings(entry, f"$.ledger[{i}]", graphs), notes):
            kept.append(entry)
    profile.ledger = kept
    _released(profile, notes)
    defaults = Profile(machine=Machine())
    for name in ("created_ns", "perf_origin_ns", "machine"):
        if not _sound(name, number_findings(getattr(profile, name), f"$.{name}"), notes):
            setattr(profile, name, getattr(defaults, name))
    process = profile.process
    if process is not None and not _sound("the process", process_findings(process), notes):
        profile.process = None
    if profile.dataflow is not None:
        profile.dataflow = _dataflow(profile.dataflow, graphs, notes)
    if profile.tracker is not None:
        _tracker(profile.tracker, notes)
    profile.growth = _those_sound("growth", profile.growth, "$.growth", growth_findings, notes)
    profile.accounts = _those_sound(
        "an account", profile.accounts, "$.accounts", account_findings, notes
    )
    profile.graph_pools = _those_sound(
        "a pool", profile.graph_pools, "$.graph_pools", pool_findings, notes
    )


def findings(profile: Profile) -> list[str]:
    """Everything in ``profile`` that contradicts itself, a line each; it stays as it is."""
    notes = Notes()
    # Not a deep copy of all: metadata can be nested as deep as anybody likes.
    graphs = [dataclasses.replace(graph) for graph in profile.graphs]
    tracker = copy.deepcopy(profile.tracker)
    repair(dataclasses.replace(profile, graphs=graphs, tracker=tracker), notes)
    return notes.lines()


def _sound(part: str, found: Iterable[Finding], notes: Notes) -> bool:
    """Whether nothing was found in a part; notes the first finding."""
    first = next(iter(found), None)
    if first is not None:
        notes.add(part, *first)
    return first is None


def _those_sound(
    part: str,
    items: Iterable[_T],
    at: str,
    check: Callable[[_T, str], Iterable[Finding]],
    notes: Notes,
) -> list[_T]:
    """The elements of the list at ``at`` in which ``check`` finds nothing."""
    return [x for i, x in enumerate(items) if _sound(part, check(x, f"{at}[{i}]"), notes)]


# Graphs and calls


def _graphs(profile: Profile, notes: Notes) -> dict[int, list[int]]:
    """Repairs the graphs; of those that have lost programs, the new position of each old one, -1
    for one that is lost."""
    kept: dict[int, GraphRecord] = {}
    places: list[int] = []
    for g, graph in enumerate(profile.graphs):
        at = f"$.graphs[{g}]"
        if not -LARGEST <= graph.id <= LARGEST:
            notes.add("a graph", f"{at}.id", "its id does not fit 64 bits")
        elif graph.id in kept:
            notes.add(
                f"the second graph {graph.id}, {graph.label}",
                f"{at}.id",
                f"graph id {graph.id} is used twice; ids are unique",
            )
        else:
            kept[graph.id] = graph
            places.append(g)
    bare: dict[int, GraphRecord] = {}
    moved: dict[int, list[int]] = {}
    for g, graph in zip(places, kept.values(), strict=True):
        at = f"$.graphs[{g}]"
        first = next(graph_findings(graph, at), None)
        if first is not None:
            notes.add(f"all of graph {graph.label} but its name", *first)
            moved[graph.id] = [-1] * len(graph.programs)
            graph = _bare(graph, first[1])
        else:
            position = _programs(graph, at, notes)
            if -1 in position:
                moved[graph.id] = position
        bare[graph.id] = graph
    inputs = {g.id: len(g.inputs) for g in bare.values()}
    for g, graph in zip(places, bare.values(), strict=True):
        at = f"$.graphs[{g}].placements"
        graph.placements = _those_sound(
            f"a placement of {graph.label}",
            graph.placements,
            at,
            lambda placement, at: placement_findings(placement, at, inputs),
            notes,
        )
    profile.graphs = list(bare.values())
    return moved


def _bare(graph: GraphRecord, reason: str) -> GraphRecord:
    number = graph.graph_id
    return GraphRecord(
        graph.id,
        graph.kind,
        graph.compile_id,
        number if number is None or -LARGEST <= number <= LARGEST else None,
        calls=graph.calls if 0 <= graph.calls <= LARGEST else 0,
        unobservable=f"what the file says of it contradicts itself: {reason}",
    )


def _programs(graph: GraphRecord, at: str, notes: Notes) -> list[int]:
    keys: set[tuple[int, ...]] = set()
    kept: list[AllocationProgram] = []
    position = []
    for p, program in enumerate(graph.programs):
        sound = program is not LOST_PROGRAM and _sound(
            f"a program of {graph.label}",
            program_findings(program, graph, f"{at}.programs[{p}]", keys),
            notes,
        )
        position.append(len(kept) if sound else -1)
        if sound:
            kept.append(program)
    graph.programs = kept
    return position


def _calls(profile: Profile, moved: dict[int, list[int]], notes: Notes) -> None:
    calls = profile.calls
    if moved:
        columns = zip(calls.graph, calls.program, strict=True)
        program = [moved[g][p] if g in moved and 0 <= p < len(moved[g]) else p for g, p in columns]
        calls = dataclasses.replace(calls, program=program)
    counts = {g.id: len(g.programs) for g in profile.graphs}
    first = next(calls_findings(calls, counts), None)
    profile.calls = calls
    if first is None:
        return
    dropped = calls.dropped if 0 <= calls.dropped <= LARGEST // 2 else 0
    columns_of = (calls.graph, calls.program, calls.start_ns, calls.end_ns, calls.thread)
    good = [
        g in counts
        and -1 <= p < counts[g]
        and -LARGEST <= start <= end <= LARGEST
        and 0 <= thread <= LARGEST
        for g, p, start, end, thread in zip(*columns_of, strict=True)
    ]
    left_out = len(good) - sum(good)
    if left_out or dropped != calls.dropped:
        what = "a call" if left_out == 1 else f"{left_out:,} calls"
        notes.add(what if left_out else "the number of earlier calls", *first)
    # What was released after so many calls was so after as many of those that are left.
    before = list(accumulate(good, initial=0))
    profile.released = {
        identity: dropped + before[n - calls.dropped]
        if calls.dropped <= n <= calls.dropped + len(good)
        else n
        for identity, n in profile.released.items()
    }
    graph, program, start, end, thread = (list(compress(c, good)) for c in columns_of)
    profile.calls = CallColumns(graph, program, start, end, thread, dropped)


def _released(profile: Profile, notes: Notes) -> None:
    kept = {}
    for identity, call in profile.released.items():
        found = release_findings(identity, call, profile.calls)
        if _sound("when memory was released", found, notes):
            kept[identity] = call
    profile.released = kept


# Optional parts


def _dataflow(found: DataFlowColumns, graphs: set[int], notes: Notes) -> DataFlowColumns:
    devices: dict[str, DataFlowDevice] = {}
    for i, device in enumerate(found.devices):
        at = f"$.dataflow.devices[{i}]"
        name = f"the data flow of {device.device}"
        if device.device in devices:
            notes.add(name, f"{at}.device", f"{device.device!r} is there twice")
            continue
        leaks = device.leaks
        storages = [*device.live, *(leak.storage for leak in leaks)]
        strangers = [s for s in storages if s.graph is not None and s.graph not in graphs]
        if strangers:
            notes.add(
                f"graphs of {len(strangers):,} storages in {name}",
                f"{at}.live",
                f"there is no graph {strangers[0].graph}",
            )
            known = [
                s if s.graph in graphs else dataclasses.replace(s, graph=None) for s in storages
            ]
            live, held = known[: len(device.live)], known[len(device.live) :]
            leaks = [dataclasses.replace(k, storage=s) for k, s in zip(leaks, held, strict=True)]
            device = dataclasses.replace(device, live=live, leaks=leaks)
        if _sound(name, device_findings(device, at, graphs), notes):
            devices[device.device] = device
    failures = _those_sound(
        "a failed allocation", found.failures, "$.dataflow.failures", number_findings, notes
    )
    return DataFlowColumns(list(devices.values()), failures)


def _tracker(record: TrackerRecord, notes: Notes) -> None:
    at = "$.tracker"
    _metadata(record.metadata, f"{at}.metadata", notes)
    kept = _those_sound("a snapshot", record.snapshots, f"{at}.snapshots", number_findings, notes)
    if not _sound("the order of snapshots", snapshots_findings(kept, f"{at}.snapshots"), notes):
        kept.sort(key=lambda s: s.time_ns)
    record.snapshots = kept
    _summary(record, f"{at}.operation_summary", notes)
    where = f"{at}.operation_allocations"
    if not _sound("the table of single operations", operations_findings(record, where), notes):
        record.operation_allocations = OperationColumns()
    where = f"{at}.pytorch_operations"
    if not _sound("PyTorch's operators", number_findings(record.pytorch_operations, where), notes):
        record.pytorch_operations = OperatorRecord()


def _metadata(metadata: TrackerMetadata, at: str, notes: Notes) -> None:
    default = TrackerMetadata()
    for field in dataclasses.fields(metadata):
        value: Any = getattr(metadata, field.name)
        if not _sound(
            f"the tracker's {field.name}", number_findings(value, f"{at}.{field.name}"), notes
        ):
            setattr(metadata, field.name, getattr(default, field.name))
    for i, lane in enumerate(metadata.lanes):
        found = lane_findings(lane, f"{at}.lanes[{i}]", len(metadata.lanes))
        if not _sound(f"the thread of lane {lane.name}", found, notes):
            metadata.lanes[i] = dataclasses.replace(lane, thread=i)
    metadata.pauses = _those_sound(
        "a pause of the tracker", metadata.pauses, f"{at}.pauses", pause_findings, notes
    )


def _summary(record: TrackerRecord, at: str, notes: Notes) -> None:
    """Operations stay where they are, since others refer to their positions."""
    summary = record.operation_summary
    for i, o in enumerate(summary):
        if not _sound("the figures of an operation", number_findings(o, f"{at}[{i}]"), notes):
            parent = o.parent if -1 <= o.parent < i else -1
            summary[i] = OperationSummary(o.name, parent)
    paths = Paths()
    for i, o in enumerate(summary):
        wrong = paths.wrong(o)
        if wrong is not None:
            notes.add("an operation's place in the tree", f"{at}[{i}].parent", wrong)
            name = o.name if len(o.name) < 1_000 else f"{o.name[:1_000]}…"
            o = summary[i] = dataclasses.replace(o, name=name, parent=-1)
        paths.add(o)
