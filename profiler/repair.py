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
such file: the tests of its producers hold that nothing is left out of theirs. What is of another
type than it should be, or a number beyond its limits, ``salvage.py`` has left out before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from itertools import accumulate, compress
from typing import TypeVar

from .model import (
    AllocationProgram,
    DataFlowColumns,
    DataFlowDevice,
    GraphRecord,
    OperationColumns,
    Profile,
    TrackerMetadata,
    TrackerRecord,
)
from .model.limits import LARGEST
from .validate import (
    Finding,
    Paths,
    account_findings,
    bad_calls,
    device_findings,
    graph_findings,
    growth_findings,
    operations_findings,
    placement_findings,
    pool_findings,
    process_findings,
    program_findings,
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
        profile: changed in place, so that a second look finds nothing in it.
        notes: get what was left out.
    """
    moved = _graphs(profile, notes)
    _calls(profile, moved, notes)
    graphs = {g.id for g in profile.graphs}
    for i, entry in enumerate(profile.ledger):
        if entry.graph is not None and entry.graph not in graphs:
            where = f"$.ledger[{i}].graph"
            notes.add("a ledger entry's graph", where, f"there is no graph {entry.graph}")
            profile.ledger[i] = dataclasses.replace(entry, graph=None)
    logged = len(profile.calls) + profile.calls.dropped
    for identity, call in [*profile.released.items()]:
        if not 0 <= call <= logged:
            said = f"released after call {call}, of {logged} calls"
            notes.add("when memory was released", f"$.released[{str(identity)!r}]", said)
            del profile.released[identity]
    process = profile.process
    if process and not _sound("the process", process_findings(process, "$.process"), notes):
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
        if graph.id in kept:
            said = f"graph id {graph.id} is used twice; ids are unique"
            notes.add(f"the second graph {graph.id}, {graph.label}", f"{at}.id", said)
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
    return GraphRecord(
        graph.id,
        graph.kind,
        graph.compile_id,
        graph.graph_id,
        calls=max(graph.calls, 0),
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
    profile.calls = calls
    bad = bad_calls(calls, {g.id: len(g.programs) for g in profile.graphs})
    dropped = calls.dropped if 0 <= calls.dropped <= LARGEST // 2 else 0
    if dropped != calls.dropped:
        notes.add("the number of earlier calls", "$.calls.dropped", f"{calls.dropped} is no count")
    if bad:
        notes.add("a call" if len(bad) == 1 else f"{len(bad):,} calls", *bad[min(bad)])
    elif dropped == calls.dropped:
        return
    good = [i not in bad for i in range(len(calls))]
    # What was released after so many calls was so after as many of those that are left.
    before = list(accumulate(good, initial=0))
    profile.released = {
        identity: dropped + before[n - calls.dropped]
        if calls.dropped <= n <= calls.dropped + len(good)
        else n
        for identity, n in profile.released.items()
    }
    profile.calls = calls.each(lambda column: list(compress(column, good)), dropped)


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
            said = f"there is no graph {strangers[0].graph}"
            notes.add(f"graphs of {len(strangers):,} storages in {name}", f"{at}.live", said)
            known = [
                s if s.graph in graphs else dataclasses.replace(s, graph=None) for s in storages
            ]
            live, held = known[: len(device.live)], known[len(device.live) :]
            leaks = [dataclasses.replace(k, storage=s) for k, s in zip(leaks, held, strict=True)]
            device = dataclasses.replace(device, live=live, leaks=leaks)
        if _sound(name, device_findings(device, at), notes):
            devices[device.device] = device
    return dataclasses.replace(found, devices=list(devices.values()))


def _tracker(record: TrackerRecord, notes: Notes) -> None:
    at = "$.tracker"
    _metadata(record.metadata, f"{at}.metadata", notes)
    order = snapshots_findings(record.snapshots, f"{at}.snapshots")
    if not _sound("the order of snapshots", order, notes):
        record.snapshots.sort(key=lambda s: s.time_ns)
    _summary(record, f"{at}.operation_summary", notes)
    where = f"{at}.operation_allocations"
    if not _sound("the table of single operations", operations_findings(record, where), notes):
        record.operation_allocations = OperationColumns()


def _metadata(metadata: TrackerMetadata, at: str, notes: Notes) -> None:
    lanes = len(metadata.lanes)
    for i, lane in enumerate(metadata.lanes):
        if not 0 <= lane.thread < lanes:
            said = f"there is no lane {lane.thread}, there are {lanes}"
            notes.add(f"the thread of lane {lane.name}", f"{at}.lanes[{i}].thread", said)
            metadata.lanes[i] = dataclasses.replace(lane, thread=i)
    for i, pause in enumerate(metadata.pauses):
        if pause.end_ns < pause.start_ns:
            notes.add("a pause of the tracker", f"{at}.pauses[{i}]", "it ends before it starts")
    metadata.pauses = [p for p in metadata.pauses if p.start_ns <= p.end_ns]


def _summary(record: TrackerRecord, at: str, notes: Notes) -> None:
    """Operations stay where they are, since others refer to their positions."""
    summary = record.operation_summary
    paths = Paths()
    for i, o in enumerate(summary):
        wrong = paths.wrong(o)
        if wrong is not None:
            notes.add("an operation's place in the tree", f"{at}[{i}].parent", wrong)
            name = o.name if len(o.name) < 1_000 else f"{o.name[:1_000]}…"
            o = summary[i] = dataclasses.replace(o, name=name, parent=-1)
        paths.add(o)
