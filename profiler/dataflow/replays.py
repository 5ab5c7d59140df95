"""Replayed calls: what they use of a pool joins the timeline.

Note [Replayed calls in a trace]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A CUDA graph allocates nothing when it runs. A trace shows such calls without allocations, and
tensors that they return as if they had been there before. But memprof has the program that runs in
them. So for every traced call of a graph that memprof's ledger says is replayed, the allocations of
its program that the trace lacks are added to the trace, as allocations without a tensor. From there
on they are like others.

* What is live counts, as everywhere in this profile, not what is reserved.
* Times of what dies within the call come from the program (Note [A call and its program]).
* What leaves a call lives on. In a pool of CUDA graphs a tensor does not own its memory: what a
  forward saves ends where its backward releases it, and everything else when the same graph runs
  again.
* A storage of the trace that was "there before" and lies in memory that was added this way is
  the same memory, and is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

from memprof.profiler.model import Category, EventKind, LedgerKind, Profile
from memprof.profiler.pairing import captured_by, pair
from memprof.profiler.process_hooks import ReplayMemory

from .calls import GeneratedCall
from .columns import FORWARD, Bools, EventColumns, joined

ADDED_PTR = -(1 << 62)
"""Addresses of added rows, which nobody knows, count down from here; no real one is there."""

_REPLAYING = frozenset((LedgerKind.RECORD, LedgerKind.RERECORD, LedgerKind.REPLAY))


class _Block(NamedTuple):
    """A block to be added, of an event of its call's program."""

    call: GeneratedCall
    event: int
    nbytes: int
    device: int
    born: int
    died: int | None  # None after the end of the trace


def join_replays(
    columns: EventColumns,
    calls: list[GeneratedCall],
    profile: Profile,
    memory: Sequence[ReplayMemory],
) -> tuple[EventColumns, Bools]:
    """Add the memory of replayed calls to a trace, and to ``calls``.

    Args:
        columns: the trace.
        calls: its calls of generated code.
        profile: memprof's profile of the process.
        memory: of pools.

    Returns:
        The trace with more leaves and allocations; and storages of the key table that are memory
        of replays and now counted as such.
    """
    since: dict[int, int] = {}
    for entry in profile.ledger:
        if entry.kind in _REPLAYING and entry.tree is not None and entry.graph is not None:
            since[entry.graph] = min(entry.time_ns, since.get(entry.graph, entry.time_ns))
    starts = columns.scopes.start
    replays = [
        c
        for c in calls
        if c.graph is not None
        and c.graph.id in since
        and since[c.graph.id] <= int(starts[c.scope])
        and c.missing
    ]
    if not replays:
        return columns, np.zeros(len(columns.keys), np.bool_)
    columns = replace(columns, devices=[*columns.devices], as_read=columns)
    ends = Ends(columns, calls)
    blocks = [block for call in replays for block in _blocks(call, columns, ends)]
    if blocks:
        _append(columns, blocks)
    for call in replays:
        call.replayed, call.why = True, ""
    return columns, _inside(columns, memory)


def _blocks(call: GeneratedCall, columns: EventColumns, ends: Ends) -> Iterator[_Block]:
    """Yields what a replayed call did not allocate; devices that the trace lacks are added to
    it.
    """
    program = call.program
    assert program is not None
    times = call.times(columns).tolist()
    freed = {e.storage: times[i] for i, e in enumerate(program.events) if e.kind is EventKind.FREE}
    for event in call.missing:
        storage = program.storages[program.events[event].storage]
        device = torch.device(storage.device)
        if device not in columns.devices:
            columns.devices.append(device)
        died: int | None = freed.get(storage.id)
        if died is None:
            died = ends.of(call, storage.outputs, storage.category)
        number = columns.devices.index(device)
        yield _Block(call, event, storage.nbytes, number, times[event], died)


def _append(columns: EventColumns, blocks: list[_Block]) -> None:
    """Add rows for blocks, by time, to the trace and to the blocks' calls."""
    rows = sorted(
        (time, releases, i)
        for i, b in enumerate(blocks)
        for releases, time in ((False, b.born), (True, b.died))
        if time is not None
    )
    scopes, leaves = columns.scopes, columns.leaves
    new_leaves, allocations = [], []
    row_of = {}
    for n, (time, releases, i) in enumerate(rows):
        block = blocks[i]
        scope, size = block.call.scope, block.nbytes
        event = scopes.event[scope]
        # What a call makes is made in its part of the backward. What ends by a rule ends in none:
        # that the next backward overwrites a gradient does not make it a detail.
        backward = scopes.backward[scope]
        if releases:
            backward, scope, size = FORWARD, -1, -size
        else:
            row_of[i] = len(columns.allocations) + n
        new_leaves.append((-1, time, -1, backward, scope, -1, len(columns.uses)))
        row = (event, len(leaves) + n, -1, size, block.device, time, -1, scope, ADDED_PTR - i)
        allocations.append(row)
    columns.leaves = joined(leaves, new_leaves)
    columns.allocations = joined(columns.allocations, allocations)
    for i, block in enumerate(blocks):
        block.call.rows[block.event] = row_of[i]


def _inside(columns: EventColumns, memory: Sequence[ReplayMemory]) -> Bools:
    """Storages without an allocation in the trace that lie in memory that was added."""
    keys, allocations = columns.keys, columns.allocations
    inside = np.zeros(len(keys), np.bool_)
    devices = [str(d) for d in columns.devices]
    for m in memory:
        if m.device not in devices:
            continue
        here = keys.device == devices.index(m.device)
        for first, end in m.ranges:
            inside |= here & (keys.ptr >= first) & (keys.ptr < end)
    inside[allocations.key[(allocations.key >= 0) & (allocations.size > 0)]] = False
    return inside


_ITS_OWN = -1

SavedValue = tuple[int, int, int]
"""What a forward saved, as its backward is given it: id of the forward's record, -1 where that
shares the ``graph_id``; output; how many of that output the backward is given before this one,
where the forward was called several times."""


class Ends:
    """Times at which what a replay returns is over."""

    def __init__(self, columns: EventColumns, calls: list[GeneratedCall]) -> None:
        self._scopes, self._calls = columns.scopes, calls
        self._position = {c.scope: i for i, c in enumerate(calls)}
        self._backward = pair([c.graph for c in calls])
        self._releases = cache(lambda call: _releases(calls[call], columns))
        self._next: dict[int, int | None] = {}
        """By scope: start of the next call of the same graph."""
        following: dict[int, int] = {}
        for call in reversed(calls):
            if call.graph is not None:
                self._next[call.scope] = following.get(call.graph.id)
                following[call.graph.id] = int(columns.scopes.start[call.scope])

    def of(self, call: GeneratedCall, outputs: tuple[int, ...], category: Category) -> int | None:
        """ns; None if it is not within the trace."""
        found = self._backward.get(self._position[call.scope], ())
        if category is not Category.ACTIVATION or not found:
            return self._next.get(call.scope)
        released: list[int] = []
        # Of several graphs that one backward was cut into, the last to be given it releases it.
        for i, nth in found:
            backward, ends = self._calls[i].graph, self._releases(i)
            captured = backward is not None and captured_by(backward) is not None
            graph = call.graph.id if captured and call.graph is not None else _ITS_OWN
            ours = [ends[k] for o in outputs if (k := (graph, o, nth)) in ends]
            released += [min(ours)] if ours else []
        return max(released or [int(self._scopes.end[self._calls[i].scope]) for i, _ in found])


def _releases(backward: GeneratedCall, columns: EventColumns) -> dict[SavedValue, int]:
    """When a call of a backward releases what it was given, ns."""
    graph, program = backward.graph, backward.program
    if graph is None or program is None:
        return {}
    freed: dict[int, int] = {}
    for event, at in zip(program.events, backward.times(columns).tolist(), strict=True):
        if event.kind is EventKind.FREE:
            freed.setdefault(event.storage, at)
    saved: dict[int, SavedValue] = {}
    given: Counter[tuple[int, int]] = Counter()
    for value in graph.inputs:
        if value.forward_output is None:
            continue
        of = _ITS_OWN if value.forward_graph is None else value.forward_graph
        key = of, value.forward_output
        saved[value.index] = (*key, given[key])
        given[key] += 1
    out: dict[SavedValue, int] = {}
    for storage in program.storages:
        for i in storage.inputs if storage.id in freed else ():
            # A graph whose metadata could not be had has programs, and no inputs.
            if (value_of := saved.get(i)) is not None:
                out[value_of] = min(freed[storage.id], out.get(value_of, freed[storage.id]))
    return out
