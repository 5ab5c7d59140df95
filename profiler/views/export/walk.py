"""The live memory of one device as a stream of changes, call by call.

Note [Times of events]
~~~~~~~~~~~~~~~~~~~~~~
A profile knows when a call began and ended, and the order of what happened inside, not when. So the
``n`` events of a call are spread evenly over it: instant ``i`` is at
``start + (end - start) * i / (n + 1)``, and what the call leaves behind is there from ``end``.
Calls come in order of return (Note [What is live between calls]); where calls of several threads
overlap, the part of one before the end of the one that returned before it has no width. So times
never run backwards, and the bytes of an instant are those of ``Timeline.live_at``.

Note [The same memory under two descriptions]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A parameter is an input of the forward, of the backward and of the optimizer, and each program has a
``Storage`` of its own for it. Between two states of the timeline, memory is the same where identity
and size are, else where graph and storage are. A *block* is memory in that sense: it stays where it
is, and in its first description, until nothing describes it any longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from memprof.profiler.live.devices import devices_of
from memprof.profiler.live.live_set import LiveItem
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Profile, Storage

AFTER = -1
"""The instant at which a call is over and its arguments and results are dropped."""


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """Live memory as one description has it."""

    number: int  # of the description, from 0 in order of first appearance in a walk
    memory: int  # number of the memory, which its descriptions and its copies share
    item: LiveItem  # the description; its ``count`` says nothing here, a block stands for one

    @property
    def nbytes(self) -> int:
        return self.item.storage.nbytes


class BlockChange(NamedTuple):
    """The blocks that are gone after a moment, and those that are new. With ``reuse`` these are one
    of each and the same memory, which changes owner and stays where it is."""

    freed: tuple[LiveBlock, ...] = ()
    allocated: tuple[LiveBlock, ...] = ()
    reuse: bool = False


class Moment(NamedTuple):
    """A change of the live set and its place in the call log."""

    time_ns: int  # clock of ``CallColumns``; never less than that of the moment before
    call: int  # index in the call log
    instant: int  # of the call's program, or ``AFTER``
    change: BlockChange  # what happens


def walks(profile: Profile) -> dict[str, Walk]:
    """The changes of each device on which programs have memory, by its name."""
    return {device: Walk(Timeline(profile, device)) for device in devices_of(profile)}


class Walk:
    """Changes of the live memory of one device.

    The first moment allocates everything that is live when the first call begins. From then on
    the sum of all deltas is the bytes of ``timeline.live_at(call, instant)`` after the moment of
    each instant, and those carried between calls after each ``AFTER``.

    Attributes:
        blocks: every description that has occurred so far, by number.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.blocks: list[LiveBlock] = []
        self._block_of: dict[LiveItem, LiveBlock] = {}
        self._memories: dict[tuple[int, int | Storage], int] = {}
        self._inside: dict[int, list[BlockChange]] = {}
        """By kind of call the changes of its events, and then of its end."""
        self._between: dict[tuple[int, int], BlockChange] = {}

    def __iter__(self) -> Iterator[Moment]:
        previous = -1
        for call, start, width in self._spans():
            kind = self.timeline.kind(call)
            if kind not in self._inside:
                self._inside[kind] = self._look_inside(call)
            inside = self._inside[kind]
            if (previous, kind) not in self._between:
                live = self.timeline
                before = live.live_after(call - 1) if call else ()
                entry = live.live_at(call, 0)
                self._between[previous, kind] = self._difference(before, entry)
            yield Moment(start, call, 0, self._between[previous, kind])
            n = len(inside)
            for i, change in enumerate(inside[:-1], 1):
                yield Moment(start + width * i // n, call, i, change)
            yield Moment(start + width, call, AFTER, inside[-1])
            previous = kind

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        """Yields each call's index, the time from which it is shown, and for how long; ns."""
        calls = self.timeline.profile.calls
        before = 0
        for call, (began, ended) in enumerate(zip(calls.start_ns, calls.end_ns, strict=True)):
            start = max(began, before)
            before = max(ended, start)
            yield call, start, before - start

    def _look_inside(self, call: int) -> list[BlockChange]:
        timeline = self.timeline
        events = []
        for before, then in timeline.changes(call):
            freed = (self._block(before),) if before is not None and before.nbytes else ()
            allocated = (self._block(then),) if then is not None and then.nbytes else ()
            events.append(BlockChange(freed, allocated, reuse=bool(freed and allocated)))
        leaving = timeline.live_at(call, len(events))
        return [*events, self._difference(leaving, timeline.live_after(call))]

    def _block(self, item: LiveItem) -> LiveBlock:
        if item.count != 1:
            item = replace(item, count=1)
        found = self._block_of.get(item)
        if found is None:
            s = item.storage
            memory = (item.graph, s) if s.identity is None else (s.identity, s.nbytes)
            number = self._memories.setdefault(memory, len(self._memories))
            found = self._block_of[item] = LiveBlock(len(self.blocks), number, item)
            self.blocks.append(found)
        return found

    def _difference(self, before: Sequence[LiveItem], after: Sequence[LiveItem]) -> BlockChange:
        """Blocks to free and to allocate to get from one live set to another."""
        # Nearly all of it is persistent memory, which is one object in all live sets.
        same = {id(item) for item in before}.intersection(map(id, after))
        left: dict[int, list[LiveBlock]] = {}
        for item in before:
            if item.nbytes and id(item) not in same:
                block = self._block(item)
                left.setdefault(block.memory, []).extend([block] * item.count)
        allocated: list[LiveBlock] = []
        for item in after:
            if item.nbytes and id(item) not in same:
                block = self._block(item)
                known = left.get(block.memory, [])
                kept = min(len(known), item.count)
                del known[len(known) - kept :]
                allocated += [block] * (item.count - kept)
        return BlockChange(tuple(b for blocks in left.values() for b in blocks), tuple(allocated))
