"""Context in which a storage was made: phase, optimizer step, module, compiled call.

Note [Ranges are found by time]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The ``with record_function(...)`` around an optimizer step is entered by a Python call that has
returned long before the step runs, and the profiler nests events by call: what runs in the range is
not below it. Steps are therefore matched by thread and time. Module calls and compiled calls nest.

Note [The module of a backward operator]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Autograd numbers its nodes as the forward makes them, and a forward operator's event carries the
next number. A backward node with number n therefore belongs to the last forward operator before it
with a number not above n. Numbers are counted per thread; forwards that run on several threads at
once can be mistaken for one another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .columns import FORWARD, NODE, Bytes, EventColumns, Ints, ScopeKind, at, frozen

PHASE_FORWARD, PHASE_BACKWARD, PHASE_OPTIMIZER = range(3)
NO_PHASE = 255
"""Phase of storages that were there before the trace."""


@dataclass(slots=True)
class Context:
    """One entry an allocation row; rows are those of the scope table, -1 is none."""

    phase: Bytes  # PHASE_FORWARD (or nothing in particular), PHASE_BACKWARD, PHASE_OPTIMIZER
    optimizer: Ints
    module: Ints  # the innermost; in the backward, that of the forward operator
    compiled: Ints  # the outermost compiled call


def find_context(columns: EventColumns) -> Context:
    """Phase, optimizer step, module, compiled call and step of every allocation row."""
    allocations, scopes, leaves = columns.allocations, columns.scopes, columns.leaves
    nearest_module = scopes.around(ScopeKind.MODULE)
    calls = (ScopeKind.COMPILED_CALL, ScopeKind.GENERATED_CODE)
    scope = allocations.scope
    module = nearest_module[scope]
    compiled = scopes.around(*calls, outermost=True)[scope]

    backward = leaves.backward[allocations.leaf] != FORWARD
    backward |= at(scopes.backward, scope, FORWARD) > FORWARD
    optimizer = _optimizer_steps(columns)
    inside = (module >= 0) & (at(scopes.start, module) >= at(scopes.start, optimizer))
    optimizer = np.where(backward | inside, np.int32(-1), optimizer)
    by_sequence = _module_of_backward(columns, nearest_module)[allocations.leaf]
    module = np.where(backward & (module < 0), by_sequence, module)

    phase = np.where(optimizer >= 0, np.uint8(PHASE_OPTIMIZER), backward.astype(np.uint8))
    row = np.int16 if len(scopes) < 1 << 15 else np.int32
    return Context(
        phase=frozen(phase, np.uint8),
        optimizer=frozen(optimizer, row),
        module=frozen(module, row),
        compiled=frozen(compiled, row),
    )


def _optimizer_steps(columns: EventColumns) -> Ints:
    """Of every allocation row: the optimizer step that runs on its thread at the time. One that
    runs a backward itself (a closure, as for LBFGS) is none: what it allocates is mostly not the
    optimizer's."""
    scopes, allocations, leaves = columns.scopes, columns.allocations, columns.leaves
    out = np.full(len(allocations), -1, np.int32)
    steps = np.flatnonzero(scopes.kind == ScopeKind.OPTIMIZER_STEP)
    thread = columns.thread_of(allocations.event)
    thread_of_step = columns.thread_of(scopes.event[steps])
    nodes = np.sort(leaves.start[leaves.backward == NODE])
    for t in np.unique(thread_of_step).tolist():
        here = np.flatnonzero(thread == t)
        here = here[np.argsort(allocations.start[here], kind="stable")]
        start = allocations.start[here]
        for step in steps[thread_of_step == t].tolist():  # an inner one, which is later, overrules
            begin, end = scopes.start[step], scopes.end[step]
            if np.ptp(np.searchsorted(nodes, [begin, end])) == 0:  # it runs no backward
                last = np.searchsorted(start, end, side="right")
                out[here[np.searchsorted(start, begin) : last]] = step
    return out


def _module_of_backward(columns: EventColumns, nearest_module: Ints) -> Ints:
    """Of every leaf in the backward: the module row of the forward operator."""
    leaves = columns.leaves
    out = np.full(len(leaves), -1, np.int32)
    forward = np.flatnonzero((leaves.backward == FORWARD) & (leaves.sequence >= 0))
    forward = forward[np.argsort(leaves.start[forward], kind="stable")]
    # A number that does not grow was recorded with gradients off, or is another thread's.
    sequence = leaves.sequence[forward]
    grows = sequence >= np.maximum.accumulate(sequence)
    forward, sequence = forward[grows], sequence[grows]
    wanted = np.flatnonzero(leaves.backward != FORWARD)
    # Outside a node the engine works on what the node before it has returned.
    latest = np.where(leaves.backward[wanted] == NODE, np.arange(len(wanted)), 0)
    number = leaves.sequence[wanted][np.maximum.accumulate(latest)]
    last = np.searchsorted(sequence, number, side="right") - 1
    ok = (number >= 0) & (last >= 0)
    out[wanted[ok]] = nearest_module[leaves.scope[forward[last[ok]]]]
    return out
