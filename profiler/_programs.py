"""Programs prepared for the timeline: what of each outlives its call, under which name.

A *unit* is one program of one graph. A *key* names memory across units: the storage's
identity where it has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .kept_inputs import kept_inputs
from .live import Hold, LiveItem
from .model import (
    AllocationProgram,
    Category,
    GraphKind,
    GraphRecord,
    LiveStorage,
    Origin,
    Profile,
    Role,
    Storage,
)

Key = int | tuple[int, int] | tuple[str, int, str]

PERSISTENT = frozenset(
    {
        Category.PARAMETER,
        Category.PERSISTENT_STATE,
        Category.OPTIMIZER_STATE,
        Category.CONSTANT,
    }
)

SAVED = frozenset({Category.ACTIVATION, Category.CHECKPOINTED_INPUT})
"""What a forward keeps for its backward."""


@dataclass(frozen=True, slots=True)
class CarriedItem:
    """Memory that outlives a call, with the graph that explains it.

    Attributes:
        key: its name across units.
        storage, graph, owner, line, hold: as in ``LiveItem``.
        made: the unit that holds it has made it; it was no input.
    """

    key: Key
    storage: Storage
    graph: int
    owner: str | None
    line: int
    hold: Hold
    made: bool

    def live(self, count: int = 1) -> LiveItem:
        """So many copies of this memory."""
        return LiveItem(self.storage, self.graph, self.owner, self.line, self.hold, count)

    def as_input_of(self, storage: Storage) -> LiveItem:
        """This memory, seen as the input ``storage`` of another graph's call."""
        # A partner of other sizes explains where memory comes from, not how large it is.
        known = self.storage if self.storage.nbytes == storage.nbytes else storage
        return LiveItem(known, self.graph, self.owner, self.line, Hold.CALL)


@dataclass(frozen=True, slots=True)
class HandedOn:
    """Outputs of a unit that the same other units have as inputs.

    Attributes:
        consumers: these units.
        accumulates: gradients: autograd adds what the producer makes when it is called again
            to what it made before, which lives on.
        items: the outputs.
    """

    consumers: frozenset[int]
    accumulates: bool
    items: tuple[CarriedItem, ...]


@dataclass(slots=True)
class PreparedProgram:
    """One program, prepared.

    Attributes:
        id: index in the list of units.
        graph, index, program: the program is ``graph.programs[index]``, but for what
            ``prepare_programs`` changes.
        peak_at, peak_bytes: ``program.peak()``.
        exit_bytes: live when the call has returned.
        saved_bytes: of a forward, bytes of all storages it returns for the backward.
            Parameters included.
        given_bytes: of a backward, bytes of those it is given by a forward, by
            ``GraphValue.forward_graph``.
        input_keys: key of each storage that is live at entry, by storage id.
        persistent: of these, what lives on by itself.
        saved: of a forward, what it leaves for its backward, persistent memory excluded.
        shared: the part of ``saved`` that other units may hold or take too. The rest, nearly
            all of it, is the business of the forward and its backward alone, and need not be
            looked at one by one to be counted.
        private_bytes: bytes of that rest.
        handed_on: outputs that other units are known to take.
        sources: input storages that another unit is known to have made, by storage id.
    """

    id: int
    graph: GraphRecord
    index: int
    program: AllocationProgram
    peak_at: int
    peak_bytes: int
    exit_bytes: int
    saved_bytes: int
    given_bytes: dict[int | None, int]
    input_keys: dict[int, Key]
    persistent: dict[Key, CarriedItem]
    saved: dict[Key, CarriedItem]
    surviving: list[LiveStorage]
    shared: dict[Key, CarriedItem] = field(default_factory=dict)
    private_bytes: int = 0
    handed_on: tuple[HandedOn, ...] = ()
    sources: Mapping[int, CarriedItem] = field(default_factory=dict)


def prepare_programs(profile: Profile, device: str | None = None) -> list[PreparedProgram]:
    """All programs of a profile, prepared; graph by graph, program by program.

    Inputs that turn out to be state (``kept_inputs``) have that category. With ``device``, storages
    on other devices count no bytes: the order of events and the numbers of instants stay what they
    are.
    """
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


def partner_keys(backward: PreparedProgram, forward: PreparedProgram) -> dict[int, CarriedItem]:
    """Input storages of ``backward`` that ``forward`` returned, by storage id."""
    by_output = {o: live for live in forward.surviving for o in live.storage.outputs}
    out: dict[int, CarriedItem] = {}
    for s in backward.program.storages:
        if s.origin is not Origin.INPUT:
            continue
        for i in s.inputs:
            value = backward.graph.inputs[i]
            o = value.forward_output
            if value.forward_graph not in (None, forward.graph.id):
                continue
            if o is not None and o in by_output:
                out[s.id] = _carried(forward.id, forward.graph, by_output[o], Hold.SAVED)
                break
    return out


def _key(unit: int, graph: GraphRecord, s: Storage) -> Key:
    if s.identity is not None:
        return s.identity
    if s.at_entry and s.category in PERSISTENT and s.name:
        # All programs of a graph have the same parameters.
        return ("persistent", graph.id, s.name)
    return (unit, s.id)


def _carried(unit: int, graph: GraphRecord, live: LiveStorage, hold: Hold) -> CarriedItem:
    s = live.storage
    made = not s.at_entry
    return CarriedItem(_key(unit, graph, s), s, graph.id, live.owner, live.line, hold, made)


def _unit(id: int, graph: GraphRecord, index: int, program: AllocationProgram) -> PreparedProgram:
    peak_at, peak_bytes = program.peak()
    surviving = program.surviving()
    inputs = [s for s in program.storages if s.at_entry]
    saved: dict[Key, CarriedItem] = {}
    saved_bytes = 0
    if graph.kind is GraphKind.FORWARD:
        for live in surviving:
            s = live.storage
            roles = {graph.outputs[o].role for o in s.outputs}
            if Role.SAVED_FOR_BACKWARD in roles or s.category in SAVED:
                saved_bytes += s.nbytes
                if s.at_entry and s.category in PERSISTENT:
                    continue
                item = _carried(id, graph, live, Hold.SAVED)
                saved[item.key] = item
    given: dict[int | None, int] = {}
    if graph.kind is GraphKind.BACKWARD:
        for s in inputs:
            if _is_saved(graph, s):
                forward = next(
                    (f for i in s.inputs if (f := graph.inputs[i].forward_graph) is not None), None
                )
                given[forward] = given.get(forward, 0) + s.nbytes
    persistent = {}
    for s in inputs:
        # What a forward gave its backward as a parameter may be a copy of it that the
        # forward made (a weight in another memory format), and lives no longer than that.
        if s.category in PERSISTENT and not _is_saved(graph, s):
            item = _carried(id, graph, LiveStorage(s, s.name, 0), Hold.PERSISTENT)
            persistent[item.key] = item
    return PreparedProgram(
        id=id,
        graph=graph,
        index=index,
        program=program,
        peak_at=peak_at,
        peak_bytes=peak_bytes,
        exit_bytes=sum(live.storage.nbytes for live in surviving),
        saved_bytes=saved_bytes,
        given_bytes=given,
        input_keys={s.id: _key(id, graph, s) for s in inputs},
        persistent=persistent,
        saved=saved,
        surviving=surviving,
    )


def _is_saved(graph: GraphRecord, s: Storage) -> bool:
    return any(
        graph.inputs[i].forward_output is not None
        or graph.inputs[i].role is Role.SAVED_FOR_BACKWARD
        for i in s.inputs
    )


def _link(units: list[PreparedProgram]) -> None:
    """Find out which units make what others take."""
    makers: dict[int, tuple[PreparedProgram, LiveStorage]] = {}
    for u in units:
        for live in u.surviving:
            s = live.storage
            if s.identity is not None and not s.at_entry:
                makers.setdefault(s.identity, (u, live))
    takers: dict[int, set[int]] = {}
    for u in units:
        sources: dict[int, CarriedItem] = {}
        for s in u.program.storages:
            if s.origin is not Origin.INPUT or s.identity is None or s.identity not in makers:
                continue
            maker, live = makers[s.identity]
            if maker is u:
                continue
            sources[s.id] = _carried(maker.id, maker.graph, live, Hold.HANDED_ON)
            if s.category not in PERSISTENT and not _is_saved(u.graph, s):
                takers.setdefault(s.identity, set()).add(u.id)
        u.sources = sources
    handed_on: dict[tuple[int, frozenset[int], bool], list[CarriedItem]] = {}
    for identity, consumers in takers.items():
        maker, live = makers[identity]
        item = _carried(maker.id, maker.graph, live, Hold.HANDED_ON)
        gradient = (
            live.storage.category is Category.GRADIENT and maker.graph.kind is GraphKind.BACKWARD
        )
        handed_on.setdefault((maker.id, frozenset(consumers), gradient), []).append(item)
    for (id, group, gradient), items in handed_on.items():
        units[id].handed_on += (HandedOn(group, gradient, tuple(items)),)
    _share(units)


def _share(units: list[PreparedProgram]) -> None:
    """Tell apart what only one unit saves and what others hold or take too."""
    holders: dict[Key, set[int]] = {}
    for u in units:
        for key in u.saved:
            holders.setdefault(key, set()).add(u.id)
    taken: dict[Key, set[int | None]] = {}
    for u in units:
        # A backward takes what its own forward saved: it goes by the forward's graph_id.
        ours = u.graph.graph_id if u.graph.kind is GraphKind.BACKWARD else None
        for key in u.input_keys.values():
            taken.setdefault(key, set()).add(ours)
        for outputs in u.handed_on:
            for item in outputs.items:
                taken.setdefault(item.key, set()).add(None)
    for u in units:
        for key, item in u.saved.items():
            if item.made and len(holders[key]) == 1 and taken.get(key, set()) <= {u.graph.graph_id}:
                u.private_bytes += item.storage.nbytes
            else:
                u.shared[key] = item
