"""Figures of each operator call of a finished ``torch.profiler`` window; no torch.

Note [Figures of operator calls]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The same figures as ``torch.profiler``'s ``key_averages()``, from its raw events: torch makes a
Python object with forty attributes of each event first, which takes some 50 µs, 160 µs with
shapes and memory. Here an event takes some 10 µs.

* An event is inside another of its thread if its interval is; what is *self* excludes the events
  directly inside.
* An event that is the only one inside another of its name is the same call, recorded twice.
* Bytes are those of all allocations and releases between its start and its end, of any thread.
* Device time is that of the kernels it and what is inside it launched.
* An asynchronous event (it ends on another thread) has no inside, and nothing is its own.

One difference: ``key_averages()`` lists device kernels as entries beside the operators that
launched them; ours are operators only.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

Shapes = tuple[tuple[int, ...], ...]


class HostEvent(NamedTuple):
    """What ran on the host, operators and what surrounds them.

    Attributes:
        shapes: of its inputs.
        kernels_ns: device time of the kernels that it launched itself.
        asynchronous: whether it ended on another thread.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int
    shapes: Shapes = ()
    kernels_ns: int = 0
    asynchronous: bool = False


class MemoryEvent(NamedTuple):
    """An allocation, or, with negative bytes, a release."""

    time_ns: int
    nbytes: int
    on_host: bool


class Figures(NamedTuple):
    """What one call took, what is inside it included; ``self_``: excluded."""

    cpu_ns: int
    self_cpu_ns: int
    device_ns: int
    self_device_ns: int
    cpu_bytes: int
    self_cpu_bytes: int
    device_bytes: int
    self_device_bytes: int


def calls(
    events: Sequence[HostEvent], memory: Sequence[MemoryEvent]
) -> Iterator[tuple[HostEvent, Figures]]:
    """Each call with its figures, in order of thread and start, asynchronous ones last; see
    Note [Figures of operator calls].

    Args:
        events: in any order.
        memory: in order of time.
    """
    nested = sorted(
        (e for e in events if not e.asynchronous), key=lambda e: (e.thread, e.start_ns, -e.end_ns)
    )
    around, inside = _nesting(nested)
    call = _calls_recorded_twice(nested, around, inside)
    taken = _Bytes(memory)
    totals = [[e.end_ns - e.start_ns, 0, *taken.between(e.start_ns, e.end_ns)] for e in nested]
    own = [list(t) for t in totals]
    for i in reversed(range(len(nested))):  # what is inside comes after what it is inside of
        totals[call[i]][1] += nested[i].kernels_ns
        own[call[i]][1] += nested[i].kernels_ns
        if call[i] == i and around[i] >= 0:
            outer = call[around[i]]
            totals[outer][1] += totals[i][1]
            for k in (0, 2, 3):
                own[outer][k] -= totals[i][k]
    for i, event in enumerate(nested):
        if call[i] == i:
            (cpu, device, host_bytes, device_bytes), mine = totals[i], own[i]
            yield (
                event,
                Figures(
                    *(cpu, mine[0], device, mine[1]),
                    *(host_bytes, mine[2], device_bytes, mine[3]),
                ),
            )
    for event in events:
        if event.asynchronous:
            host_bytes, device_bytes = taken.between(event.start_ns, event.end_ns)
            took = event.end_ns - event.start_ns
            yield event, Figures(took, 0, 0, 0, host_bytes, 0, device_bytes, 0)


def _nesting(events: list[HostEvent]) -> tuple[list[int], list[int]]:
    """Of each event the position of the one directly around it, -1 if there is none, and how
    many are directly inside."""
    around, inside = [-1] * len(events), [0] * len(events)
    open_: list[int] = []
    thread = None
    for i, event in enumerate(events):
        if event.thread != thread:
            thread = event.thread
            open_.clear()
        while open_:
            end_ns = events[open_[-1]].end_ns
            if event.start_ns < end_ns and event.end_ns <= end_ns:
                around[i] = open_[-1]
                inside[open_[-1]] += 1
                break
            open_.pop()
        open_.append(i)
    return around, inside


def _calls_recorded_twice(
    events: list[HostEvent], around: list[int], inside: list[int]
) -> list[int]:
    """Of each event the position of the one that stands for its call."""
    call = list(range(len(events)))
    for i, event in enumerate(events):
        outer = around[i]
        if outer >= 0 and inside[outer] == 1 and events[outer].name == event.name:
            call[i] = call[outer]
    return call


class _Bytes:
    """Sums of allocations between two instants."""

    def __init__(self, memory: Sequence[MemoryEvent]) -> None:
        self._times = [m.time_ns for m in memory]
        self._host = list(accumulate((m.nbytes if m.on_host else 0 for m in memory), initial=0))
        self._device = list(accumulate((0 if m.on_host else m.nbytes for m in memory), initial=0))

    def between(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Bytes on the host and on devices, both ends included."""
        first = bisect_left(self._times, start_ns)
        last = bisect_right(self._times, end_ns, first)
        return self._host[last] - self._host[first], self._device[last] - self._device[first]
