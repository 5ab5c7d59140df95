"""When each of a step's operations begins and ends on the device, by what it waits for.

A stream does one thing after another; an event that was recorded holds up the streams that wait for
it; a graph's nodes begin when the graph does and those that they come after have ended. The host is
left out: it asks for everything at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memprof.simulated_cuda import control

from .work import Work


@dataclass(frozen=True, slots=True)
class Given:
    """Something that a stream was given.

    Attributes:
        kind: of ``control.Logged``.
        stream: number; 0 is the default stream.
        subject: an event, or a graph's node; 0 for none.
        work: what is to be done; None for events and the launch of a graph.
        nodes: of a graph's launch, how many that follow are its nodes.
    """

    kind: int
    stream: int
    subject: int
    work: Work | None
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """What streams were given in a step, in order.

    Attributes:
        after: nodes of graphs that a node comes after.
        launches: that the host made, a graph's as one.
        unknown: launches of which nothing is known but that they were.
    """

    given: list[Given]
    after: dict[int, list[int]]
    launches: int
    graphs: int
    unknown: int


def device_ns(
    given: Sequence[Given], durations: Sequence[float], after: Mapping[int, Sequence[int]]
) -> float:
    """Nanoseconds from the first begin to the last end of what streams were given.

    Args:
        durations: of each, in ns.
        after: nodes of graphs that a node comes after.
    """
    streams: defaultdict[int, float] = defaultdict(float)
    events: dict[int, float] = {}
    nodes: dict[int, float] = {}
    begin_of_graph, left = 0.0, 0
    for thing, duration in zip(given, durations, strict=True):
        stream = thing.stream
        if left:
            begin = max((nodes[n] for n in after.get(thing.subject, ())), default=begin_of_graph)
            nodes[thing.subject] = begin + duration
            streams[stream] = max(streams[stream], begin + duration)
            left -= 1
        elif thing.kind == control.EVENT:
            events[thing.subject] = streams[stream]
        elif thing.kind == control.WAIT:
            streams[stream] = max(streams[stream], events.get(thing.subject, 0.0))
        elif thing.kind == control.GRAPH:
            begin_of_graph, left = streams[stream] + duration, thing.nodes
            streams[stream] = begin_of_graph
        else:
            streams[stream] += duration
    return max(streams.values(), default=0.0)
