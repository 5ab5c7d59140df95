"""Replayed calls: what they use of a pool or arena joins the timeline.

Note [Replayed calls in a trace]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A CUDA graph, and compiled CPU code in the arena, allocate nothing when they run: the memory
was there. A trace shows such calls without allocations, and tensors that they return as if
they had been there before it began. But memprof knows what runs in them: the program that was
observed says which buffers are live from which statement to which, each as much as if it had
been allocated. So for every traced call of a graph that memprof's ledger says is replayed, the
allocations of its program that the trace lacks are added to the trace, as allocations without
a tensor. From there on they are like others: matched with the program, owned by an FX node,
given a category and put on the timeline.

* What is live counts, as everywhere in this profile, not what is reserved: an idle pool is no
  part of the timeline. ``DataFlowDevice.replay_reserved`` says how much pools and arenas hold.
* Times of what dies within the call come from the program (Note [A call and its program]).
* What leaves a call lives on. In the arena it is a lease whose beginning and end are known
  exactly. In a pool of CUDA graphs a tensor does not own its memory; there, what a forward saves
  ends where its backward releases it, and everything else when the same graph runs again,
  which is when the pool's memory is written anew.
* A storage of the trace that was "there before" and lies in memory that was added this way is
  the same memory, and is left out.

A call is not replayed, however few allocations it has, if the ledger does not say so.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter

import numpy as np

from memprof.profiler.model import Category, EventKind, LedgerKind, Origin, Profile
from memprof.profiler.pairing import captured_by, pair
from memprof.profiler.process_hooks import SCRATCH, Lease, ReplayMemory

from . import _torch_compat as compat
from .calls import NEAREST_CALL_NS, GeneratedCall
from .columns import FORWARD, AllocationTable, Bools, EventColumns, LeafTable, joined

ADDED_PTR = -(1 << 62)
"""Where the address of an added row is not known, it counts down from here; no real one is
there."""

_REPLAYING = frozenset((LedgerKind.RECORD, LedgerKind.RERECORD, LedgerKind.REPLAY))


@dataclass(slots=True)
class _Block:
    """A block to be added.

    Attributes:
        call, event: whose it is, and the event of the program that makes it.
        nbytes, device: of it.
        born, died: ns; None outside the trace.
        address: of a lease, 0 if unknown.
    """

    call: GeneratedCall
    event: int
    nbytes: int
    device: int
    born: int
    died: int | None
    address: int = 0


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
        memory: of pools and arenas.

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
    devices = {str(d): i for i, d in enumerate(columns.devices)}
    leases = _Leases(memory)
    ends = Ends(columns, calls)
    blocks: list[_Block] = []
    for call in replays:
        program, graph = call.program, call.graph
        assert program is not None
        assert graph is not None
        times = call.times(columns)
        freed = {e.storage: i for i, e in enumerate(program.events) if e.kind is EventKind.FREE}
        for event in call.missing:
            storage = program.storages[program.events[event].storage]
            if storage.origin is Origin.INTERNAL and storage.device == "cpu":
                continue  # the arena has none of it: other threads, other scratch memory
            device = devices.get(storage.device)
            if device is None:  # nothing in the trace is on it
                device = devices[storage.device] = len(columns.devices)
                columns.devices.append(compat.device(storage.device))
            born = int(times[event])
            died: int | None
            address = 0
            if storage.id in freed:
                died = int(times[freed[storage.id]])
            else:
                lease = leases.take(f"{graph.label}: {storage.name}", storage.nbytes, born)
                if lease is not None:
                    born, died, address = lease.born_ns, lease.died_ns, lease.address
                else:
                    died = ends.of(call, storage.outputs, storage.category)
            blocks.append(_Block(call, event, storage.nbytes, device, born, died, address))
        call.replayed, call.why = True, ""
    _append(columns, blocks)
    return columns, _inside(columns, memory, leases)


class _Leases:
    """Leases by label, each to be taken once."""

    def __init__(self, memory: Sequence[ReplayMemory]) -> None:
        self.free: dict[tuple[str, int], list[Lease]] = {}  # each by birth
        self.taken: set[tuple[int, int]] = set()
        """First address and address after the last."""
        for lease in (x for m in memory for x in m.leases):
            self.free.setdefault((lease.label, lease.nbytes), []).append(lease)
        for found in self.free.values():
            found.sort(key=attrgetter("born_ns"))

    def take(self, label: str, nbytes: int, born: int) -> Lease | None:
        """The lease that began nearest to ``born``."""
        found = self.free.get((label, nbytes))
        if not found:
            return None
        at = bisect_left(found, born, key=attrgetter("born_ns"))
        if at == len(found) or (at and born - found[at - 1].born_ns < found[at].born_ns - born):
            at -= 1
        if abs(found[at].born_ns - born) > NEAREST_CALL_NS:
            return None
        nearest = found.pop(at)
        self.taken.add((nearest.address, nearest.address + nearest.nbytes))
        return nearest


def _append(columns: EventColumns, blocks: list[_Block]) -> None:
    """Add rows for blocks, by time, to the trace and to the blocks' calls."""
    leaves, first, scopes = columns.leaves, len(columns.allocations), columns.scopes
    # Of each row: when, whether it releases, which block.
    order = sorted(
        (time, releases, i)
        for i, b in enumerate(blocks)
        for releases, time in ((False, b.born), (True, b.died))
        if time is not None
    )
    of = [blocks[i] for _, _, i in order]
    n = len(of)
    start = np.asarray([time for time, _, _ in order], np.int64)
    releases = np.asarray([r for _, r, _ in order], np.bool_)
    scope = np.asarray([b.call.scope for b in of], np.int32)
    size = np.asarray([b.nbytes for b in of], np.int64)
    address = [b.address or ADDED_PTR - i for b, (_, _, i) in zip(of, order, strict=True)]
    none = np.full(n, -1, np.int32)
    # What a call makes is made in its part of the backward. A lease that is over was released
    # somewhere: in the part that the last operator before belongs to. What ends by a rule
    # ends in none: that the next backward overwrites a gradient does not make it a detail.
    backward = scopes.backward[scope]
    by_start = np.argsort(leaves.start, kind="stable")
    before = np.searchsorted(leaves.start[by_start], start) - 1
    seen = np.asarray([b.address != 0 for b in of], np.bool_) & (before >= 0)
    part = leaves.backward[by_start[before]] if len(leaves) else np.uint8(FORWARD)
    backward[releases] = np.where(seen, part, np.uint8(FORWARD))[releases]
    event = scopes.event[scope]
    scope[releases] = -1
    first_use = np.full(n, len(columns.uses))
    new = LeafTable(none, start, none, backward, scope, none, first_use)  # of no event
    size = np.where(releases, -size, size)
    device = np.asarray([b.device for b in of])
    leaf = len(leaves) + np.arange(n, dtype=np.int32)
    unnamed = np.asarray(address, np.int64)
    columns.leaves = joined(leaves, new)
    columns.allocations = joined(
        columns.allocations,
        AllocationTable(event, leaf, none, size, device, start, none, scope, unnamed),
    )
    made = {i: first + row for row, (_, releases, i) in enumerate(order) if not releases}
    for i, block in enumerate(blocks):
        block.call.rows.append(made[i])
        block.call.events.append(block.event)


def _inside(columns: EventColumns, memory: Sequence[ReplayMemory], leases: _Leases) -> Bools:
    """Storages without an allocation in the trace that lie in memory that was added."""
    keys, allocations = columns.keys, columns.allocations
    out = np.ones(len(keys), np.bool_)
    made = (allocations.key >= 0) & (allocations.size > 0)
    out[allocations.key[made]] = False
    inside = np.zeros(len(keys), np.bool_)
    for m in memory:
        device = [i for i, d in enumerate(columns.devices) if str(d) == m.device]
        if not device:
            continue
        here = keys.device == device[0]
        ranges = set(m.ranges)
        if m.leases:  # one that began before the trace was not added
            scratch = {(x.address, x.address + x.nbytes) for x in m.leases if x.label == SCRATCH}
            ranges = leases.taken | scratch
        for first, end in ranges:
            inside |= here & (keys.ptr >= first) & (keys.ptr < end)
    return out & inside


_ITS_OWN = -1

SavedValue = tuple[int, int, int]
"""What a forward saved, as its backward is given it: id of the forward's record, -1 where that
shares the ``graph_id``; output; how many of that output the backward is given before this one,
where the forward was called several times."""


class Ends:
    """When what a replay returns is over, where no lease says it."""

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
    times = backward.times(columns).tolist()
    freed = {
        e.storage: times[i]
        for i, e in reversed([*enumerate(program.events)])
        if e.kind is EventKind.FREE
    }
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
