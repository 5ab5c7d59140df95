"""Compiled code in a trace: what memprof knows of it, put on the trace's own storages.

Note [Compiled code has no data flow]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A fused kernel is not an operator, so the profiler sees what a compiled graph allocates but not what
reads or writes it; torch's rules then mistake saved activations for inputs or parameters. Known is:

* which program a call ran, and which of its allocations is which (``calls.py``);
* which tensors go in: AOTAutograd's autograd function is an operator event and lists them in the
  order of the graph's inputs, whose roles memprof knows;
* without a memprof profile, or where nothing fits, the phase: memory released within the call is
  temporary; what outlives a forward is an activation; what outlives a backward and is not a
  gradient is autograd's detail.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from memprof.profiler.model import EventKind, GraphKind, GraphRecord, NodeProvenance, Role, Storage

from .calls import GeneratedCall
from .categories import (
    ACTIVATION,
    AUTOGRAD_DETAIL,
    GRADIENT,
    INPUT,
    NUMBER_OF,
    OPTIMIZER_STATE,
    PARAMETER,
    TEMPORARY,
    UNKNOWN,
)
from .columns import FORWARD, Bytes, EventColumns
from .context import PHASE_BACKWARD, Context
from .storages import Storages


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of an allocation in compiled code, as memprof knows it."""

    graph: GraphRecord  # that made it
    storage: Storage  # in the graph's program
    buffer: str | None  # name in the generated code, None for scratch memory
    line: int  # of the generated code, 0 if unknown
    since: int  # ns; from when on, until the next owner's

    @property
    def node(self) -> NodeProvenance | None:
        """The FX node whose value is in it."""
        name = self.buffer or self.graph.buffer_of_line(self.line)
        buffer = self.graph.buffers.get(name or "")
        if buffer is None:
            return None
        # Nodes are in graph order: without a primary one, the buffer holds the last's value.
        primary = buffer.primary or (buffer.nodes[-1] if buffer.nodes else "")
        return self.graph.nodes.get(primary)


@dataclass(slots=True)
class CompiledCalls:
    """Categories and owners of the memory of compiled code in a trace."""

    category: Bytes  # of each storage (keys, then blocks), 0 where this says nothing
    by_program: Bytes  # the category comes from an observed program, not from the phase
    owners: dict[int, list[Owner]] = field(default_factory=dict)
    """By allocation row, in order of time: a buffer that takes over another's memory (``reuse``)
    owns it from then on."""
    calls: int = 0  # in the trace
    matched: int = 0  # of them, whose allocations agree with a program
    unmatched: Counter[str] = field(default_factory=Counter)  # why the others do not agree


def find_compiled(
    columns: EventColumns, context: Context, storages: Storages, calls: list[GeneratedCall]
) -> CompiledCalls:
    """Categories and owners of a trace's compiled code, from its ``calls`` of generated code."""
    reasons = Counter(call.why for call in calls)
    out = CompiledCalls(
        category=_by_phase(columns, context, storages),
        by_program=np.zeros(len(storages), np.uint8),
        calls=len(calls),
        matched=reasons.pop("", 0),
        unmatched=reasons,
    )
    made = np.flatnonzero(storages.created >= 0)
    storage_of_row = dict(zip(storages.created[made].tolist(), made.tolist(), strict=True))
    for call in calls:
        if call.program is not None:
            _apply(columns, call, context, storage_of_row, storages, out)
    _inputs(columns, context, storages, calls, out)
    return out


def _by_phase(columns: EventColumns, context: Context, storages: Storages) -> Bytes:
    """Categories by phase, for everything made in a compiled call."""
    made = np.flatnonzero(storages.created >= 0)
    made = made[context.compiled[storages.created[made]] >= 0]
    row = storages.created[made]
    call = context.compiled[row]
    inside = storages.died[made] <= columns.scopes.end[call]
    backward = columns.scopes.backward[call] != FORWARD
    optimizer = context.optimizer[row] >= 0
    outside = np.where(backward, np.uint8(AUTOGRAD_DETAIL), np.uint8(ACTIVATION))
    outside[optimizer] = OPTIMIZER_STATE
    # What ``.grad`` was seen to name; a block has no tensor.
    index = columns.keys.tensor_index
    named = np.zeros(len(storages), np.bool_)
    named[: storages.keys] = np.isin(index, index[columns.gradients])
    outside[backward & named[made]] = GRADIENT
    out = np.zeros(len(storages), np.uint8)
    out[made] = np.where(inside, np.uint8(TEMPORARY), outside)
    return out


_MADE_BY_CALLS = frozenset({ACTIVATION, GRADIENT, TEMPORARY, AUTOGRAD_DETAIL})


def _apply(
    columns: EventColumns,
    call: GeneratedCall,
    context: Context,
    storage_of_row: dict[int, int],
    storages: Storages,
    out: CompiledCalls,
) -> None:
    """Owners and categories of what a call allocates."""
    graph, program = call.graph, call.program
    assert graph is not None
    assert program is not None
    owners: dict[int, list[Owner]] = {}  # by storage of the program
    for event, row in call.rows.items():
        made = program.events[event]
        storage = program.storages[made.storage]
        born = int(columns.allocations.start[row])
        out.owners[row] = [Owner(graph, storage, made.owner, made.line, born)]
        owners[made.storage] = out.owners[row]
        which = storage_of_row.get(row)
        if which is None:
            continue
        category = NUMBER_OF[storage.category]
        if category not in _MADE_BY_CALLS:
            # A copy of an input in another layout, handed on in its place: it is what
            # the phase says, not the input.
            continue
        end = int(storages.destroyed[which])
        if category == GRADIENT and end >= 0 and context.phase[end] == PHASE_BACKWARD:
            # Added to an older gradient, or copied into `.grad`.
            category = AUTOGRAD_DETAIL
        out.category[which] = category
        out.by_program[which] = 1
    for e, time in zip(program.events, call.times(columns).tolist(), strict=True):
        if e.kind is EventKind.REUSE and e.storage in owners:
            owner = Owner(graph, program.storages[e.storage], e.owner, e.line, time)
            owners[e.storage].append(owner)


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
    calls: list[GeneratedCall],
    out: CompiledCalls,
) -> None:
    """Roles of the tensors that go into compiled forwards."""
    if not len(columns.scopes):
        return
    members = set(columns.parameters.tolist()) | set(columns.optimizer_states.tolist())
    starts = columns.scopes.start
    calls = [c for c in calls if c.graph is not None]
    times = np.asarray([int(starts[c.scope]) for c in calls], np.int64)
    for function in columns.function_calls:
        if function.backward:
            continue
        i = int(np.searchsorted(times, function.start))
        graph = calls[i].graph if i < len(calls) and times[i] <= function.end else None
        roles = [Role.UNKNOWN] * len(function.keys)
        if graph is not None and graph.kind is not GraphKind.BACKWARD:
            known = [v.role for v in graph.inputs]
            roles = known if len(known) == len(roles) else roles
        for key, role in zip(function.keys, roles, strict=True):
            if key < 0:
                continue
            before = storages.created[key] < 0
            category = _ROLES.get(role, UNKNOWN)
            if role is Role.UNKNOWN and key not in members:
                category = INPUT
            if category == INPUT and not before and not _made_as_input(context, storages, key):
                continue  # what an earlier part of the model made
            if not category or out.category[key]:
                continue
            out.category[key] = category
            out.by_program[key] = role is not Role.UNKNOWN


def _made_as_input(context: Context, storages: Storages, key: int) -> bool:
    """Tells whether a storage was made outside of modules, compiled code and the backward."""
    row = int(storages.created[key])
    return bool(context.module[row] < 0 and context.compiled[row] < 0 and context.phase[row] == 0)
