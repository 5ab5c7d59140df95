"""Compiled code in a trace: what memprof knows of it, put on the trace's own storages.

Note [Compiled code has no data flow]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A fused kernel is not an operator, so the profiler sees what a compiled graph allocates
but not what reads or writes it. torch's rules then mistake saved activations for inputs
or parameters. Three things are known all the same:

* The generated function is a Python call whose name holds its file, and memprof knows
  the graph of that file and, from observing it, the order and sizes of everything it
  allocates. Allocations of the trace inside the call are put against the ALLOC events of
  the graph's programs; if the sizes agree one by one they are the same. Where the trace
  has more (scratch memory that was not observed), the longest common order is taken.
* AOTAutograd's autograd function is an operator event and lists the tensors that go in,
  in the order of the graph's inputs, whose roles memprof knows.
* Without a memprof profile, or where nothing fits: memory released within the call is
  temporary; what outlives a forward is an activation; what outlives a backward and is
  not a gradient is autograd's detail.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from pathlib import PurePath

import numpy as np

from memprof.profiler.model import Category as ModelCategory
from memprof.profiler.model import EventKind, GraphKind, GraphRecord, Profile, Role
from memprof.profiler.model import Storage as ModelStorage

from . import _torch_compat as compat
from .categories import (
    ACTIVATION,
    AUTOGRAD_DETAIL,
    GRADIENT,
    INPUT,
    OPTIMIZER_STATE,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
)
from .columns import FORWARD, Bytes, EventColumns, Ints, ScopeKind
from .context import PHASE_BACKWARD, Context
from .storages import Storages

FROM_MODEL = {
    ModelCategory.PARAMETER: PARAMETER,
    ModelCategory.GRADIENT: GRADIENT,
    ModelCategory.ACTIVATION: ACTIVATION,
    ModelCategory.INPUT: INPUT,
    ModelCategory.TEMPORARY: TEMPORARY,
    ModelCategory.OPTIMIZER_STATE: OPTIMIZER_STATE,
    ModelCategory.AUTOGRAD_DETAIL: AUTOGRAD_DETAIL,
    # torch's seven have no word for these two: what a forward returns is one more
    # activation to whoever goes on with it, and a baked-in tensor is part of the model.
    ModelCategory.OUTPUT: ACTIVATION,
    ModelCategory.CONSTANT: PARAMETER,
    ModelCategory.UNKNOWN: UNKNOWN,
}

_NEAREST_CALL_NS = 50_000_000
"""How far a logged call may lie from a traced one and still be taken for it: the clocks
of the log and the trace are different ones, read at different times."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What memprof knows of an allocation in compiled code.

    Attributes:
        graph: the graph that made it.
        storage: the storage in the graph's program, None if it was not observed.
        buffer: name in the generated code, None for scratch memory.
        line: line of the generated code, 0 if unknown.
    """

    graph: GraphRecord
    storage: ModelStorage | None
    buffer: str | None
    line: int


@dataclass(slots=True)
class CompiledCalls:
    """What is known of compiled code in a trace.

    Attributes:
        given: category of each key of the trace, 0 where this says nothing.
        block: category of each storage (keys, then blocks) made in a compiled call.
        by_program: the category comes from an observed program, not from the phase.
        roles: names of graph inputs, by key.
        owner: by allocation row.
        calls: compiled calls in the trace.
        matched: of them, those whose allocations agree with an observed program.
        unmatched: why the others do not, with counts.
    """

    given: Bytes
    block: Bytes
    by_program: Bytes
    roles: dict[int, str] = field(default_factory=dict)
    owner: dict[int, Owner] = field(default_factory=dict)
    calls: int = 0
    matched: int = 0
    unmatched: dict[str, int] = field(default_factory=dict)


class _Programs:
    """The graphs of a profile, found by generated file."""

    def __init__(self, profile: Profile | None) -> None:
        self.graphs: dict[str, list[GraphRecord]] = {}
        self.calls: dict[int, Ints] = {}
        if profile is None:
            return
        for graph in profile.graphs:
            if graph.code_path:
                self.graphs.setdefault(PurePath(graph.code_path).stem, []).append(graph)
        # The call log counts from an arbitrary instant, traces from the epoch.
        offset = time.time_ns() - time.perf_counter_ns()
        graph_of = np.asarray(profile.calls.graph, np.int64)
        starts = np.asarray(profile.calls.start_ns, np.int64) + offset
        for id in np.unique(graph_of).tolist():
            self.calls[id] = np.sort(starts[graph_of == id])

    def candidates(self, module: str, start: int) -> list[GraphRecord]:
        """Graphs whose code is in this file, those called nearest to ``start`` first."""
        found = self.graphs.get(module, [])
        if len(found) < 2:
            return found

        def distance(graph: GraphRecord) -> int:
            calls = self.calls.get(graph.id)
            if calls is None or not len(calls):
                return _NEAREST_CALL_NS
            return min(int(np.abs(calls - start).min()), _NEAREST_CALL_NS)

        return sorted(found, key=distance)


def find_compiled(
    columns: EventColumns, context: Context, storages: Storages, profile: Profile | None
) -> CompiledCalls:
    """What is known of the compiled code of a trace.

    Args:
        columns, context, storages: the trace.
        profile: memprof's profile of the process that was traced, None without one.
    """
    keys = len(columns.keys)
    out = CompiledCalls(
        given=np.zeros(keys, np.uint8),
        block=np.zeros(len(storages), np.uint8),
        by_program=np.zeros(len(storages), np.uint8),
    )
    calls = np.unique(context.compiled)
    calls = calls[calls >= 0]
    out.calls = _count_calls(columns)
    _by_phase(columns, context, storages, out)
    programs = _Programs(profile)
    graph_of_call: dict[int, GraphRecord] = {}
    storage_of_row = _storage_rows(columns, storages)
    for scope, rows in _generated_calls(columns):
        name = columns.names[int(columns.scopes.name[scope])]
        candidates = programs.candidates(
            compat.generated_module(name), int(columns.scopes.start[scope])
        )
        reason = "no memprof profile was given" if profile is None else ""
        if not reason and not candidates:
            reason = "not compiled by memprof"
        if not reason:
            best = _best_match(columns.allocations.size[rows].tolist(), candidates)
            if best is None:
                reason = "no program observed, or none that fits"
                graph_of_call[scope] = candidates[0]
            else:
                graph, pairs, complete = best
                graph_of_call[scope] = graph
                out.matched += complete
                if not complete:
                    reason = "a program fits in part"
                _apply(pairs, rows, graph, context, storage_of_row, storages, out)
        if reason:
            out.unmatched[reason] = out.unmatched.get(reason, 0) + 1
    silent = out.calls - out.matched - sum(out.unmatched.values())
    if silent:
        # Replayed out of memory that was planned once, see docs/dataflow.md.
        out.unmatched["it allocates nothing"] = silent
    _inputs(columns, context, storages, graph_of_call, out)
    out.given[:] = out.block[:keys]
    return out


def _count_calls(columns: EventColumns) -> int:
    return int((columns.scopes.kind == ScopeKind.GENERATED_CODE).sum())


def _storage_rows(columns: EventColumns, storages: Storages) -> dict[int, int]:
    """The storage that each allocating row makes."""
    made = np.flatnonzero(storages.created >= 0)
    return dict(zip(storages.created[made].tolist(), made.tolist(), strict=True))


def _by_phase(
    columns: EventColumns, context: Context, storages: Storages, out: CompiledCalls
) -> None:
    """Categories by phase, for everything made in a compiled call."""
    made = np.flatnonzero(storages.created >= 0)
    row = storages.created[made]
    call = context.compiled[row]
    made, row, call = made[call >= 0], row[call >= 0], call[call >= 0]
    inside = storages.died[made] <= columns.scopes.end[call]
    backward = columns.scopes.backward[call] != FORWARD
    optimizer = context.optimizer[row] >= 0
    category = np.where(
        inside,
        TEMPORARY,
        np.where(optimizer, OPTIMIZER_STATE, np.where(backward, AUTOGRAD_DETAIL, ACTIVATION)),
    ).astype(np.uint8)
    gradient = np.zeros(int(columns.keys.tensor_index.max()) + 1 if storages.keys else 0, np.bool_)
    gradient[columns.keys.tensor_index[columns.gradients]] = True
    keyed = made < storages.keys
    is_gradient = np.zeros(len(made), np.bool_)
    is_gradient[keyed] = gradient[columns.keys.tensor_index[made[keyed]]]
    category[backward & ~inside & is_gradient] = GRADIENT
    out.block[made] = category


def _generated_calls(columns: EventColumns) -> Iterable[tuple[int, Ints]]:
    """Scope rows of generated functions, with the allocations inside, frees left out."""
    scopes, allocations = columns.scopes, columns.allocations
    outer: list[int] = []
    for kind, parent in zip(scopes.kind.tolist(), scopes.parent.tolist(), strict=True):
        around = outer[parent] if parent >= 0 else -1
        outer.append(len(outer) if around < 0 and kind == ScopeKind.GENERATED_CODE else around)
    call = np.asarray([*outer, -1], np.int64)[allocations.scope]
    rows = np.flatnonzero((call >= 0) & (allocations.size > 0))
    rows = rows[np.argsort(call[rows], kind="stable")]
    found, first = np.unique(call[rows], return_index=True)
    return zip(found.tolist(), np.split(rows, first[1:]) if len(found) else [], strict=True)


_Pairs = list[tuple[int, ModelStorage, str | None, int]]


def _best_match(
    sizes: list[int], candidates: list[GraphRecord]
) -> tuple[GraphRecord, _Pairs, bool] | None:
    """The program that explains the most of these allocations, in order.

    Returns:
        the graph, (position in ``sizes``, storage, buffer, line) of each allocation that
        is explained, and whether all are and the program is used up.
    """
    best: tuple[GraphRecord, _Pairs, bool] | None = None
    best_bytes = 0
    for graph in candidates:
        for program in graph.programs:
            events = [e for e in program.events if e.kind is EventKind.ALLOC]
            expected = [program.storages[e.storage].nbytes for e in events]
            if expected == sizes:
                blocks = [(0, 0, len(sizes))]
            else:
                matcher = SequenceMatcher(None, sizes, expected, autojunk=False)
                blocks = [(b.a, b.b, b.size) for b in matcher.get_matching_blocks()]
            # What the trace has besides is scratch memory that was not observed.
            complete = sum(n for _, _, n in blocks) == len(expected)
            pairs = [
                (
                    a + i,
                    program.storages[events[b + i].storage],
                    events[b + i].owner,
                    events[b + i].line,
                )
                for a, b, n in blocks
                for i in range(n)
            ]
            explained = sum(sizes[p[0]] for p in pairs)
            if expected == sizes:
                return graph, pairs, True
            if explained > best_bytes or (complete and best is None):
                best, best_bytes = (graph, pairs, complete), explained
    return best


_MADE_BY_CALLS = frozenset({ACTIVATION, GRADIENT, TEMPORARY, AUTOGRAD_DETAIL})


def _dies_in_backward(context: Context, storages: Storages, storage: int) -> bool:
    row = int(storages.destroyed[storage])
    return row >= 0 and int(context.phase[row]) == PHASE_BACKWARD


def _apply(
    pairs: _Pairs,
    rows: Ints,
    graph: GraphRecord,
    context: Context,
    storage_of_row: dict[int, int],
    storages: Storages,
    out: CompiledCalls,
) -> None:
    for position, storage, buffer, line in pairs:
        row = int(rows[position])
        out.owner[row] = Owner(graph, storage, buffer, line)
        which = storage_of_row.get(row)
        if which is None:
            continue
        category = FROM_MODEL[storage.category]
        if category not in _MADE_BY_CALLS:
            # A copy of an input in another layout, handed on in its place: it is what
            # the phase says, not the input.
            continue
        if category == GRADIENT and _dies_in_backward(context, storages, which):
            # Added to an older gradient, or copied into `.grad`.
            category = AUTOGRAD_DETAIL
        out.block[which] = category
        out.by_program[which] = 1


_ROLES = {
    Role.PARAMETER: PARAMETER,
    Role.BUFFER: PARAMETER,
    Role.CONSTANT: PARAMETER,
    Role.OPTIMIZER_STATE: OPTIMIZER_STATE,
    Role.PARAMETER_GRADIENT: GRADIENT,
    Role.USER_INPUT: INPUT,
}


def _inputs(
    columns: EventColumns,
    context: Context,
    storages: Storages,
    graph_of_call: dict[int, GraphRecord],
    out: CompiledCalls,
) -> None:
    """Roles of the tensors that go into compiled forwards."""
    if not len(columns.scopes):
        return
    members = set(columns.parameters.tolist()) | set(columns.optimizer_states.tolist())
    starts = columns.scopes.start
    calls = sorted(graph_of_call, key=lambda s: int(starts[s]))
    times = np.asarray([int(starts[s]) for s in calls], np.int64)
    for function in columns.function_calls:
        if function.backward:
            continue
        i = int(np.searchsorted(times, function.start))
        graph = graph_of_call[calls[i]] if i < len(calls) and times[i] <= function.end else None
        if graph is not None and graph.kind is GraphKind.BACKWARD:
            graph = None
        if graph is None or len(graph.inputs) != len(function.keys):
            roles: list[tuple[Role, str | None]] = [(Role.UNKNOWN, None)] * len(function.keys)
        else:
            roles = [(v.role, v.fqn) for v in graph.inputs]
        for key, (role, name) in zip(function.keys, roles, strict=True):
            if key < 0:
                continue
            before = storages.created[key] < 0
            category = _ROLES.get(role, UNKNOWN)
            if role is Role.UNKNOWN and key not in members:
                category = INPUT
            if category == INPUT and not before and not _made_as_input(context, storages, key):
                continue  # what an earlier part of the model made
            if not category or out.block[key]:
                continue
            out.block[key] = category
            out.by_program[key] = role is not Role.UNKNOWN
            if name:
                out.roles[key] = name


def _made_as_input(context: Context, storages: Storages, key: int) -> bool:
    """Whether a storage was made outside of modules, compiled code and the backward."""
    row = int(storages.created[key])
    return bool(context.module[row] < 0 and context.compiled[row] < 0 and context.phase[row] == 0)
