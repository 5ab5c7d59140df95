"""Leaves out of a profile what contradicts itself, so that the rest can be shown.

Note [What a contradiction costs]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Views trust what they are given, beyond its types: indices that exist, columns of one length,
releases of what is live. What a file has besides is left out, the smallest part that has a meaning
of its own:

* a program: calls of it have none, and the report counts them among those that were not observed;
* a graph's inputs, nodes, buffers or statements: all that is known of it but its name and its
  calls;
* a call, a ledger entry, a snapshot, a placement, a pool, a device of the data flow, an operation's
  place in the tree; the table of single operations, and the process.

Every part that was left out is named, with the reason, in ``Profile.left_out``. memprof writes no
such file. What is of another type than it should be ``decoding.py`` has left out before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from itertools import accumulate, compress, pairwise
from typing import TypeVar

from . import model
from .model.limits import LARGEST
from .model.tracker import MAX_NAMES

LOST_PROGRAM = model.AllocationProgram((), (), ())
"""Stands where a program is lost, of which that was said already: others keep their positions."""

LONGEST_PATH = 10_000
"""Characters of the names from the root of the tree of operations to one of them. Every operation
shows its path, so that long names above many would come to more than any memory holds."""
LONGEST_PATHS = MAX_NAMES * LONGEST_PATH
"""Characters that all paths together have beyond the operations' own names; those of a tracker's
places have no more."""

_MOST = 50
_LONGEST = 400

_T = TypeVar("_T")
_Finding = tuple[str, str]
"""Path in the document, what is wrong there. A check ends with the first that it yields: nobody
asks for another."""


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
        """Note which part is left out, the path of what is wrong, and in what way it is."""
        if not self:
            self.where = where
        self.line(f"{part}: {what} - at `{where}`")

    def line(self, text: str) -> None:
        if len(self._lines) < _MOST:
            self._lines.append(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
        else:
            self._more += 1

    def lines(self) -> list[str]:
        more = [f"{self._more:,} more part{'s' if self._more > 1 else ''}"] if self._more else []
        return [*self._lines, *more]


def repair(profile: model.Profile, notes: Notes) -> None:
    """Leave out of ``profile``, in place, what contradicts itself; a second look finds nothing."""

    def those_sound(
        part: str, items: list[_T], at: str, check: Callable[[_T, str], Iterator[_Finding]]
    ) -> list[_T]:
        return [x for i, x in enumerate(items) if _sound(part, check(x, f"{at}[{i}]"), notes)]

    moved = _graphs(profile, notes)
    inputs = {g.id: len(g.inputs) for g in profile.graphs}
    for g, graph in enumerate(profile.graphs):
        graph.placements = those_sound(
            f"a placement of {graph.label}",
            graph.placements,
            f"$.graphs[{g}].placements",
            lambda placement, at: _in_placement(placement, at, inputs),
        )
    _calls(profile, moved, notes)
    for i, entry in enumerate(profile.ledger):
        if entry.graph is not None and entry.graph not in inputs:
            where = f"$.ledger[{i}].graph"
            notes.add("a ledger entry's graph", where, f"there is no graph {entry.graph}")
            profile.ledger[i] = replace(entry, graph=None)
    logged = len(profile.calls) + profile.calls.dropped
    for identity, call in [*profile.released.items()]:
        if not 0 <= call <= logged:
            said = f"released after call {call}, of {logged} calls"
            notes.add("when memory was released", f"$.released[{str(identity)!r}]", said)
            del profile.released[identity]
    if profile.process and not _sound("the process", _in_process(profile.process), notes):
        profile.process = None
    if profile.dataflow is not None:
        profile.dataflow = _dataflow(profile.dataflow, inputs, notes)
    if profile.tracker is not None:
        _tracker(profile.tracker, notes)
    profile.growth = those_sound("growth", profile.growth, "$.growth", _in_growth)
    profile.accounts = those_sound("an account", profile.accounts, "$.accounts", _in_account)
    profile.graph_pools = those_sound(
        "a graph pool", profile.graph_pools, "$.graph_pools", _in_pool
    )


def _sound(part: str, found: Iterator[_Finding], notes: Notes) -> bool:
    """Notes the first finding."""
    first = next(found, None)
    if first is not None:
        notes.add(part, *first)
    return first is None


def _no(what: str, index: int, whole: str, count: int) -> str:
    return f"there is no {what} {index}, {whole} {count}"


# Graphs and calls


_Moved = dict[tuple[int, int], int]
"""By graph and position, where a program is now, -1 for one that is lost."""


def _graphs(profile: model.Profile, notes: Notes) -> _Moved:
    """Repairs the graphs but for placements."""
    kept: dict[int, model.GraphRecord] = {}
    moved: _Moved = {}
    for g, graph in enumerate(profile.graphs):
        at = f"$.graphs[{g}]"
        if graph.id in kept:
            said = f"graph id {graph.id} is used twice; ids are unique"
            notes.add(f"the second graph {graph.id}, {graph.label}", f"{at}.id", said)
            continue
        first = next(_in_graph(graph, at), None)
        if first is None:
            _programs(graph, at, moved, notes)
        else:
            notes.add(f"all of graph {graph.label} but its name", *first)
            moved |= {(graph.id, p): -1 for p in range(len(graph.programs))}
            graph = model.GraphRecord(
                *(graph.id, graph.kind, graph.compile_id, graph.graph_id),
                calls=max(graph.calls, 0),
                unobservable=f"what the file says of it contradicts itself: {first[1]}",
            )
        kept[graph.id] = graph
    profile.graphs = list(kept.values())
    return moved


def _in_graph(graph: model.GraphRecord, at: str) -> Iterator[_Finding]:
    """But for its programs and placements."""
    inputs = len(graph.inputs)
    for side, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        for i, value in enumerate(values):
            alias = value.alias_of_input
            if value.index != i:
                yield f"{at}.{side}[{i}].index", f"index {value.index} at position {i}"
            if alias is not None and not 0 <= alias < inputs:
                said = _no("input", alias, "the graph has", inputs)
                yield f"{at}.{side}[{i}].alias_of_input", said
    for what, named in (("nodes", graph.nodes), ("buffers", graph.buffers)):
        for key, made in named.items():
            if made.name != key:
                yield f"{at}.{what}[{key!r}].name", f"{made.name!r} stands under the key {key!r}"


def _programs(graph: model.GraphRecord, at: str, moved: _Moved, notes: Notes) -> None:
    keys: set[tuple[int, ...]] = set()
    kept: list[model.AllocationProgram] = []
    for p, program in enumerate(graph.programs):
        sound = program is not LOST_PROGRAM and _sound(
            f"a program of {graph.label}",
            _in_program(program, graph, f"{at}.programs[{p}]", keys),
            notes,
        )
        if not sound or len(kept) < p:
            moved[graph.id, p] = len(kept) if sound else -1
        if sound:
            kept.append(program)
    graph.programs = kept


def _in_program(
    program: model.AllocationProgram, graph: model.GraphRecord, at: str, keys: set[tuple[int, ...]]
) -> Iterator[_Finding]:
    """``keys``, of the programs before it, get its key."""
    if program.key in keys:
        yield f"{at}.key", f"two programs have the key {list(program.key)}"
    keys.add(program.key)
    storages = program.storages
    for i, s in enumerate(storages):
        if s.id != i:
            yield f"{at}.storages[{i}].id", f"id {s.id} at position {i}"
        yield from _in_indices("input", s.inputs, len(graph.inputs), f"{at}.storages[{i}]")
        yield from _in_indices("output", s.outputs, len(graph.outputs), f"{at}.storages[{i}]")
    live = {i for i, s in enumerate(storages) if s.at_entry}
    for i, e in enumerate(program.events):
        where = f"{at}.events[{i}]"
        if not 0 <= e.storage < len(storages):
            yield f"{where}.storage", _no("storage", e.storage, "the program has", len(storages))
        elif e.kind is model.EventKind.ALLOC:
            if storages[e.storage].at_entry:
                yield where, f"allocates storage {e.storage}, which was live before the call"
            elif e.storage in live:
                yield where, f"allocates storage {e.storage}, which is live already"
            live.add(e.storage)
        elif e.storage not in live:
            verb = "frees" if e.kind is model.EventKind.FREE else "reuses"
            yield where, f"{verb} storage {e.storage}, which is not live"
        elif e.kind is model.EventKind.FREE:
            live.remove(e.storage)


def _in_indices(what: str, indices: Iterable[int], count: int, at: str) -> Iterator[_Finding]:
    for k in indices:
        if not 0 <= k < count:
            yield f"{at}.{what}s", _no(what, k, "the graph has", count)


def _in_placement(
    placement: model.Placement, at: str, inputs: Mapping[int, int]
) -> Iterator[_Finding]:
    last = len(placement.lines) + 1
    for i, b in enumerate(placement.blocks):
        if not 0 <= b.begin <= b.end <= last:
            said = f"lives from instant {b.begin} to {b.end}; the placement has 0 to {last - 1}"
            yield f"{at}.blocks[{i}]", said
        # Its graph may be of an earlier session, see Attribution; its inputs are then not known.
        count = inputs.get(b.graph, max(b.inputs, default=0) + 1)
        yield from _in_indices("input", b.inputs, count, f"{at}.blocks[{i}]")


def _calls(profile: model.Profile, moved: _Moved, notes: Notes) -> None:
    calls = profile.calls
    if moved:
        columns = zip(calls.graph, calls.program, strict=True)
        calls = replace(calls, program=[moved.get(call, call[1]) for call in columns])
    bad = _bad_calls(calls, {g.id: len(g.programs) for g in profile.graphs})
    if bad:
        notes.add("a call" if len(bad) == 1 else f"{len(bad):,} calls", *bad[min(bad)])
    dropped = calls.dropped
    if not 0 <= dropped <= LARGEST // 2:
        notes.add("the number of earlier calls", "$.calls.dropped", f"{dropped} is no count")
        dropped = 0
    good = [i not in bad for i in range(len(calls))]
    # What was released after so many calls was so after as many of those that are left.
    before = list(accumulate(good, initial=0))
    for identity, n in profile.released.items():
        if calls.dropped <= n <= calls.dropped + len(good):
            profile.released[identity] = dropped + before[n - calls.dropped]
    profile.calls = calls.each(lambda column: list(compress(column, good)), dropped)


def _bad_calls(calls: model.CallColumns, programs: Mapping[int, int]) -> dict[int, _Finding]:
    """The calls that contradict the log or themselves, by position; ``programs``: how many a graph
    has."""
    found: dict[int, _Finding] = {}
    known = {(g, p) for g, count in programs.items() for p in range(-1, count)}
    columns = (calls.graph, calls.program, calls.start_ns, calls.end_ns, calls.thread)
    for i, (g, p, start, end, thread) in enumerate(zip(*columns, strict=True)):
        # The times are sums of what the file has, and of its numbers each alone fits.
        in_time = -LARGEST <= start <= end <= LARGEST
        if (g, p) in known and in_time and 0 <= thread <= LARGEST:
            continue
        if g not in programs:
            found[i] = f"$.calls.graph[{i}]", f"there is no graph {g}"
        elif (g, p) not in known:
            said = _no("program", p, f"graph {g} has", programs[g])
            found[i] = f"$.calls.program[{i}]", f"{said} (-1 stands for none)"
        elif start > end:
            said = f"the call ends at {end}, before it starts at {start}"
            found[i] = f"$.calls.end_ns[{i}]", said
        elif not in_time:
            found[i] = f"$.calls.end_ns[{i}]", "its times do not fit 64 bits"
        else:
            found[i] = f"$.calls.thread[{i}]", f"{thread} is no thread number"
    return found


# Other parts


def _in_process(process: model.Process) -> Iterator[_Finding]:
    for name, value in (("rank", process.rank), ("local_rank", process.local_rank)):
        if value >= process.world_size:
            yield f"$.process.{name}", f"there is no rank {value} among {process.world_size}"


def _in_account(account: model.DeviceAccount, at: str) -> Iterator[_Finding]:
    if account.peak is not None and account.peak.peak is not None:
        yield f"{at}.peak.peak", "an instant of an instant"
    total = account.explained + account.unexplained
    if total != account.reserved:
        yield f"{at}.reserved", f"{account.reserved} bytes, while its parts have {total}"
    if account.peak is not None:
        yield from _in_account(account.peak, f"{at}.peak")


def _in_pool(pool: model.GraphPool, at: str) -> Iterator[_Finding]:
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


def _in_growth(growth: model.Growth, at: str) -> Iterator[_Finding]:
    if not 0 <= growth.since <= growth.steps:
        yield f"{at}.since", f"step {growth.since} of {growth.steps}"


def _dataflow(
    found: model.DataFlowColumns, graphs: Iterable[int], notes: Notes
) -> model.DataFlowColumns:
    known = {None, *graphs}

    def of_known(storage: model.DataFlowStorage) -> model.DataFlowStorage:
        return storage if storage.graph in known else replace(storage, graph=None)

    devices: dict[str, model.DataFlowDevice] = {}
    for i, device in enumerate(found.devices):
        at = f"$.dataflow.devices[{i}]"
        name = f"the data flow of {device.device}"
        if device.device in devices:
            notes.add(name, f"{at}.device", f"{device.device!r} is there twice")
            continue
        storages = [*device.live, *(leak.storage for leak in device.leaks)]
        strangers = [s.graph for s in storages if s.graph not in known]
        if strangers:
            said = f"there is no graph {strangers[0]}"
            notes.add(f"graphs of {len(strangers):,} storages in {name}", f"{at}.live", said)
            leaks = [replace(leak, storage=of_known(leak.storage)) for leak in device.leaks]
            device = replace(device, live=[of_known(s) for s in device.live], leaks=leaks)
        if _sound(name, _in_flow(device, at), notes):
            devices[device.device] = device
    return replace(found, devices=list(devices.values()))


def _in_flow(device: model.DataFlowDevice, at: str) -> Iterator[_Finding]:
    times = device.time_ns
    for j, (before, time) in enumerate(pairwise(times), 1):
        if time <= before:
            yield f"{at}.time_ns[{j}]", f"{time} after {before}; times ascend"
    for category, column in device.bytes.items():
        if len(column) != len(times):
            said = f"{len(column)} entries for {len(times)} times"
            yield f"{at}.bytes[{category.value!r}]", said
    if device.peak is None:
        return
    if not 0 <= device.peak < len(times):
        yield f"{at}.peak", f"there is no time {device.peak}, there are {len(times)}"
    live, total = sum(storage.nbytes for storage in device.live), device.bytes_at(device.peak)
    if live != total:
        yield f"{at}.live", f"adds up to {live:,} bytes, the columns to {total:,}"


def _tracker(record: model.TrackerRecord, notes: Notes) -> None:
    at = "$.tracker"
    _metadata(record.metadata, f"{at}.metadata", notes)
    for i, (before, s) in enumerate(pairwise(record.snapshots), 1):
        if s.time_ns < before.time_ns:
            said = f"{s.time_ns} after {before.time_ns}; times ascend"
            notes.add("the order of snapshots", f"{at}.snapshots[{i}].time_ns", said)
            record.snapshots.sort(key=lambda s: s.time_ns)
            break
    _summary(record, f"{at}.operation_summary", notes)
    single = _in_operations(record, f"{at}.operation_allocations")
    if not _sound("the table of single operations", single, notes):
        record.operation_allocations = model.OperationColumns()


def _metadata(metadata: model.TrackerMetadata, at: str, notes: Notes) -> None:
    lanes = len(metadata.lanes)
    for i, lane in enumerate(metadata.lanes):
        if not 0 <= lane.thread < lanes:
            said = _no("lane", lane.thread, "there are", lanes)
            notes.add(f"the thread of lane {lane.name}", f"{at}.lanes[{i}].thread", said)
            metadata.lanes[i] = replace(lane, thread=i)
    for i, pause in enumerate(metadata.pauses):
        if pause.end_ns < pause.start_ns:
            notes.add("a pause of the tracker", f"{at}.pauses[{i}]", "it ends before it starts")
    metadata.pauses = [p for p in metadata.pauses if p.start_ns <= p.end_ns]


def _summary(record: model.TrackerRecord, at: str, notes: Notes) -> None:
    """Operations stay where they are, since others refer to their positions."""
    summary = record.operation_summary
    lengths: list[int] = []
    every = 0
    for i, o in enumerate(summary):
        above = lengths[o.parent] if 0 <= o.parent < i else 0
        wrong = ""
        if not -1 <= o.parent < i:
            wrong = f"{o.parent} is no operation before this one"
        elif above + len(o.name) + 1 > LONGEST_PATH:
            wrong = f"the names from the root to it have more than {LONGEST_PATH:,} characters"
        elif above and every + above > LONGEST_PATHS:
            wrong = f"the names above all before it have some {LONGEST_PATHS:,} characters already"
        if wrong:
            notes.add("an operation's place in the tree", f"{at}[{i}].parent", wrong)
            name = o.name if len(o.name) < 1_000 else f"{o.name[:1_000]}…"
            o, above = replace(o, name=name, parent=-1), 0
            summary[i] = o
        every += above
        lengths.append(above + len(o.name) + 1)


def _in_operations(record: model.TrackerRecord, at: str) -> Iterator[_Finding]:
    columns = record.operation_allocations
    lengths = {f.name: len(getattr(columns, f.name)) for f in fields(columns)}
    del lengths["memory"]
    for device, memory in columns.memory.items():
        lengths |= {
            f"memory[{device!r}].{f.name}": len(getattr(memory, f.name)) for f in fields(memory)
        }
    if len(set(lengths.values())) > 1:
        yield at, f"the columns differ in length: {lengths}"
    limits = (
        ("summary", 0, len(record.operation_summary)),
        ("lane", 0, len(record.metadata.lanes)),
        ("parent", -1, len(columns)),
    )
    for name, lowest, end in limits:
        for i, n in enumerate(getattr(columns, name)):
            if not lowest <= n < end:
                yield f"{at}.{name}[{i}]", f"{n} is not from {lowest} to {end - 1}"
