"""Preparation of a profile for the timeline: memory of each program that outlives its call, and its
key; the lifetimes of persistent memory; and the forwards that each backward takes from.

A *unit* is one program of one graph. A *key* names memory across units: the storage's
identity where it has one.

Note [A cache that is an argument]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
When a graph is compiled nothing tells a cache of keys and values from any other tensor that the
program hands in to be written to. What came of it does: the same memory is there for call after
call of graphs that write to such an input. So this is decided when a profile is read, for all
programs that have that memory: also for the one that made it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from memprof.profiler.model import (
    AllocationProgram,
    Category,
    GraphKind,
    GraphRecord,
    GraphValue,
    LiveStorage,
    Origin,
    Profile,
    Role,
    Storage,
)

from .live_set import Hold, LiveItem
from .pairing import forwards_of, pair

CALLS = 3
"""Least calls of a graph with the same written input for that input to count as state."""


def kept_inputs(profile: Profile) -> frozenset[int]:
    """Identities of storages that are state, of which their graph says that they are inputs."""
    graphs = {g.id: g for g in profile.graphs if any(map(_may_be_state, g.inputs))}
    if not graphs:
        return frozenset()
    calls = profile.calls
    calls_of: dict[int, list[int]] = defaultdict(list)
    first_calls: dict[tuple[int, int], int] = {}
    for k, call in enumerate(zip(calls.graph, calls.program, strict=True)):
        if call[0] in graphs:
            calls_of[call[0]].append(k)
            first_calls.setdefault(call, k)
    first: dict[int, tuple[int, int]] = {}
    for (id, program), begin in first_calls.items():
        graph = graphs[id]
        for s in graph.programs[program].storages if program >= 0 else ():
            written = any(_may_be_state(graph.inputs[i]) for i in s.inputs)
            if written and s.identity is not None and s.category is Category.INPUT:
                first.setdefault(s.identity, (id, begin))
    found = set()
    for identity, (id, begin) in first.items():
        released = profile.released.get(identity)
        end = len(calls) if released is None else released - calls.dropped
        if sum(begin <= k < end for k in calls_of[id]) >= CALLS:
            found.add(identity)
    return frozenset(found)


def _may_be_state(value: GraphValue) -> bool:
    return value.mutated and value.role is Role.USER_INPUT and value.category is Category.INPUT


_NONE = -1
Key = int | tuple[int, int] | tuple[str, int, str]

PERSISTENT = frozenset(
    {Category.PARAMETER, Category.PERSISTENT_STATE, Category.OPTIMIZER_STATE, Category.CONSTANT}
)

SAVED = frozenset({Category.ACTIVATION, Category.CHECKPOINTED_INPUT})
"""Categories of what a forward keeps for its backward."""


@dataclass(frozen=True, slots=True)
class HandedOn:
    """Outputs of a unit that the same other units, ``consumers``, have as inputs. Gradients
    accumulate: autograd adds what the producer makes when it is called again to what it made
    before."""

    consumers: frozenset[int]
    accumulates: bool
    items: dict[Key, LiveItem]


@dataclass(slots=True)
class PreparedProgram:
    """One program, prepared; all sizes are in bytes. A ``LiveItem`` is memory that outlives a call,
    which the unit made unless ``storage.at_entry``.

    Attributes:
        id: index in the list of units.
        graph, index, program: the program is ``graph.programs[index]``, but for what
            ``prepare_programs`` changes.
        saved_bytes: of a forward, all storages it returns for the backward, parameters included.
        given_bytes: of a backward, those it is given by a forward, by ``GraphValue.forward_graph``.
        input_keys: of each storage that is live at entry, by storage id.
        persistent: of these, what lives on by itself.
        saved: of a forward, what it leaves for its backward, persistent memory excluded.
        handed_on: outputs that other units are known to take.
        sources: input storages that another unit is known to have made, by storage id.
    """

    id: int
    graph: GraphRecord
    index: int
    program: AllocationProgram
    peak_at: int
    peak_bytes: int
    surviving: list[LiveStorage]
    input_keys: dict[int, Key]
    saved_bytes: int = 0
    given_bytes: Counter[int | None] = field(default_factory=Counter)
    persistent: dict[Key, LiveItem] = field(default_factory=dict)
    saved: dict[Key, LiveItem] = field(default_factory=dict)
    handed_on: list[HandedOn] = field(default_factory=list)
    sources: dict[int, tuple[Key, LiveItem]] = field(default_factory=dict)

    def carried(self, live: LiveStorage, hold: Hold) -> tuple[Key, LiveItem]:
        """Memory that outlives a call, by its key."""
        s = live.storage
        return _key(self.id, self.graph, s), LiveItem(s, self.graph.id, live.owner, live.line, hold)


def prepare_programs(profile: Profile, device: str | None = None) -> list[PreparedProgram]:
    """All programs of a profile, graph by graph, program by program. With ``device``, storages on
    other devices count no bytes: events and instants keep their numbers."""
    units: list[PreparedProgram] = []
    kept = kept_inputs(profile)

    def prepared(s: Storage) -> Storage:
        if s.identity in kept and s.category in (Category.INPUT, Category.OUTPUT):
            s = replace(s, category=Category.PERSISTENT_STATE)
        return s if device in (None, s.device) else replace(s, nbytes=0)

    for graph in profile.graphs:
        for index, program in enumerate(graph.programs):
            if device is not None or kept:
                storages = tuple(prepared(s) for s in program.storages)
                program = replace(program, storages=storages)
            units.append(_unit(len(units), graph, index, program))
    _link(units)
    return units


def given_by(
    backward: PreparedProgram, forward: PreparedProgram
) -> dict[int, tuple[Key, LiveItem]]:
    """Input storages of ``backward`` that ``forward`` returned, by storage id."""
    by_output = {o: live for live in forward.surviving for o in live.storage.outputs}
    out: dict[int, tuple[Key, LiveItem]] = {}
    for s in backward.program.storages:
        if s.origin is not Origin.INPUT:
            continue
        for i in s.inputs:
            value = backward.graph.inputs[i]
            o = value.forward_output
            if o in by_output and value.forward_graph in (None, forward.graph.id):
                out[s.id] = forward.carried(by_output[o], Hold.SAVED)
                break
    return out


def _key(unit: int, graph: GraphRecord, s: Storage) -> Key:
    if s.identity is not None:
        return s.identity
    if s.at_entry and s.category in PERSISTENT and s.name:
        # All programs of a graph have the same parameters.
        return ("persistent", graph.id, s.name)
    return (unit, s.id)


def _unit(id: int, graph: GraphRecord, index: int, program: AllocationProgram) -> PreparedProgram:
    surviving = program.surviving()
    inputs = [s for s in program.storages if s.at_entry]
    unit = PreparedProgram(
        id,
        graph,
        index,
        program,
        *program.peak(),
        surviving,
        input_keys={s.id: _key(id, graph, s) for s in inputs},
    )
    for live in surviving if graph.kind is GraphKind.FORWARD else ():
        s = live.storage
        roles = {graph.outputs[o].role for o in s.outputs}
        if Role.SAVED_FOR_BACKWARD in roles or s.category in SAVED:
            unit.saved_bytes += s.nbytes
            if not (s.at_entry and s.category in PERSISTENT):
                key, item = unit.carried(live, Hold.SAVED)
                unit.saved[key] = item
    for s in inputs:
        if _is_saved(graph, s):
            if graph.kind is GraphKind.BACKWARD:
                forwards = (graph.inputs[i].forward_graph for i in s.inputs)
                unit.given_bytes[next((f for f in forwards if f is not None), None)] += s.nbytes
        # What a forward gave its backward as a parameter may be a copy of it that the
        # forward made (a weight in another memory format), and lives no longer than that.
        elif s.category in PERSISTENT:
            key, item = unit.carried(LiveStorage(s, s.name, 0), Hold.PERSISTENT)
            unit.persistent[key] = item
    return unit


def _is_saved(graph: GraphRecord, s: Storage) -> bool:
    return any(
        graph.inputs[i].forward_output is not None
        or graph.inputs[i].role is Role.SAVED_FOR_BACKWARD
        for i in s.inputs
    )


def _link(units: list[PreparedProgram]) -> None:
    """Link units that make memory with the units that have it as an input."""
    makers: dict[int, tuple[PreparedProgram, LiveItem]] = {}
    for u in units:
        for live in u.surviving:
            identity = live.storage.identity
            if identity is not None and not live.storage.at_entry:
                makers.setdefault(identity, (u, u.carried(live, Hold.HANDED_ON)[1]))
    takers: dict[int, set[int]] = {}
    for u in units:
        for s in u.program.storages:
            if s.origin is not Origin.INPUT or s.identity is None or s.identity not in makers:
                continue
            maker, item = makers[s.identity]
            if maker is u:
                continue
            u.sources[s.id] = s.identity, item
            if s.category not in PERSISTENT and not _is_saved(u.graph, s):
                takers.setdefault(s.identity, set()).add(u.id)
    handed_on: dict[tuple[int, frozenset[int], bool], dict[Key, LiveItem]] = {}
    for identity, consumers in takers.items():
        maker, item = makers[identity]
        backward = maker.graph.kind is GraphKind.BACKWARD
        gradient = backward and item.storage.category is Category.GRADIENT
        handed_on.setdefault((maker.id, frozenset(consumers), gradient), {})[identity] = item
    for (id, group, gradient), items in handed_on.items():
        units[id].handed_on.append(HandedOn(group, gradient, items))


class Persistent:
    """The persistent memory of one call log. The set changes with few calls only: the first ones of
    each graph, and those at which something was released. The calls from one change to the next are
    an *epoch*, known by its first call: ``epochs`` has them all, and 0."""

    def __init__(
        self, profile: Profile, units: Sequence[PreparedProgram], unit_of_call: Sequence[int]
    ) -> None:
        never = len(unit_of_call) + 1
        found: dict[Key, tuple[LiveItem, int, int]] = {}
        seen: set[int] = {_NONE}
        for k, u in enumerate(unit_of_call):
            if u in seen:
                continue
            seen.add(u)
            for key, item in units[u].persistent.items():
                released = profile.released.get(key) if isinstance(key, int) else None
                end = never if released is None else released - profile.calls.dropped
                found.setdefault(key, (item, k, end))
        self._lives = {key: life for key, life in found.items() if life[1] < life[2]}
        """By key the item, the first call that has it, and the first that has it no more."""
        changes = Counter({0: 0})
        for item, begin, end in self._lives.values():
            changes[begin] += item.storage.nbytes
            changes[end] -= item.storage.nbytes
        self.epochs = sorted(changes)
        sums = accumulate(changes[epoch] for epoch in self.epochs)
        self._nbytes = dict(zip(self.epochs, sums, strict=True))

    def has(self, key: Key, epoch: int) -> bool:
        return key in self._lives and self._lives[key][1] <= epoch < self._lives[key][2]

    def items(self, epoch: int, without: Collection[Key] = ()) -> list[LiveItem]:
        """Persistent memory that exists in an epoch, less the keys ``without``, in order of first
        appearance."""
        there = (key for key in self._lives if key not in without and self.has(key, epoch))
        return [self._lives[key][0] for key in there]

    def nbytes(self, epoch: int, without: Collection[Key] = ()) -> int:
        """Bytes of ``items``, without looking at each."""
        less = (self._lives[k][0].storage.nbytes for k in without if self.has(k, epoch))
        return self._nbytes[epoch] - sum(less)


Forwards = tuple[int, ...]
"""Units of the forwards whose saved memory a call of a backward takes: one, unless it is captured;
one for each call, so that a unit can be there several times."""


class Pairing:
    """Forwards and backwards of one call log; a call's unit is -1 where it has no program.

    Attributes:
        partner: by call: of a backward the forwards that had none before it, of a forward the
            first of its backwards.
    """

    def __init__(
        self, profile: Profile, units: Sequence[PreparedProgram], unit_of_call: Sequence[int]
    ) -> None:
        self._units = units
        self._unit_of_call = unit_of_call
        graphs = {g.id: g for g in profile.graphs}
        self._graph_id = {g.id: g.graph_id for g in profile.graphs if g.kind is GraphKind.FORWARD}
        self._first_unit: dict[int | None, int] = {}
        for u in units:
            if u.graph.id in self._graph_id:
                self._first_unit.setdefault(u.graph.graph_id, u.id)
        self.partner: dict[int, tuple[int, ...]] = {}
        found = pair([graphs[g] for g in profile.calls.graph], self._saved, self._given)
        for forward in sorted(found):
            backward = found[forward][0][0]
            self.partner[forward] = (backward,)
            self.partner[backward] = (*self.partner.get(backward, ()), forward)

    def usual_forwards(self, unit: int) -> Forwards:
        """First program of each forward of a backward, for where the calls that it belongs to are
        not known; () for a unit that is no backward."""
        graph = self._units[unit].graph
        if graph.kind is not GraphKind.BACKWARD:
            return ()
        graph_ids = forwards_of(graph, self._graph_id)
        return tuple(self._first_unit[i] for i in graph_ids if i in self._first_unit)

    def _saved(self, call: int) -> int:
        unit = self._unit_of_call[call]
        return self._units[unit].saved_bytes if unit != _NONE else _NONE

    def _given(self, call: int, graph_id: int | None) -> int:
        unit = self._unit_of_call[call]
        if unit == _NONE:
            return _NONE
        return sum(
            nbytes
            for forward, nbytes in self._units[unit].given_bytes.items()
            if forward is None or self._graph_id.get(forward) == graph_id
        )
