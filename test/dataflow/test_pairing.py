"""Which calls of forwards a call of a backward belongs to, and when it releases what they saved."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from memprof.profiler.dataflow.calls import GeneratedCall
from memprof.profiler.dataflow.pairing import pair
from memprof.profiler.dataflow.replays import _Ends
from memprof.profiler.model import (
    AllocationProgram,
    Category,
    Event,
    EventKind,
    GraphKind,
    GraphRecord,
    GraphValue,
    Origin,
    Role,
    Storage,
)


def forward(id: int, graph_id: int | None = None) -> GraphRecord:
    return GraphRecord(id, GraphKind.FORWARD, f"{id}/0", id if graph_id is None else graph_id)


def captured(id: int, *saved: tuple[int, int], capture: str = "!0", frame: int = 0) -> GraphRecord:
    """A captured backward that is given outputs of forwards, by id of the record."""
    inputs = tuple(
        GraphValue(
            i,
            f"saved_{i}",
            Role.SAVED_FOR_BACKWARD,
            Category.ACTIVATION,
            forward_output=output,
            forward_graph=graph,
        )
        for i, (graph, output) in enumerate(saved)
    )
    return GraphRecord(id, GraphKind.BACKWARD, f"{capture}/{frame}", 90 + id, inputs=inputs)


def paired(*graphs: GraphRecord) -> dict[int, list[tuple[int, int]]]:
    """By number of a forward's call: number of its backward's, how many later calls it is of."""
    calls = [GeneratedCall(i, graph, None, [], []) for i, graph in enumerate(graphs)]
    return {f: [(b.scope, nth) for b, nth in found] for f, found in pair(calls).items()}


def test_by_graph_id() -> None:
    f = forward(0, 7)
    b = GraphRecord(1, GraphKind.BACKWARD, "0/0", 7)
    assert paired(f, b, f, f, b, b) == {0: [(1, 0)], 3: [(4, 0)], 2: [(5, 0)]}


def test_a_captured_backward_has_several_forwards() -> None:
    one, two = forward(0), forward(1)
    b = captured(2, (0, 1), (0, 2), (1, 3))
    assert paired(one, two, b, one, two, b) == {
        0: [(2, 0)],
        1: [(2, 0)],
        3: [(5, 0)],
        4: [(5, 0)],
    }


def test_a_forward_called_twice_before_its_captured_backward() -> None:
    f = forward(0)
    b = captured(1, (0, 1), (0, 2), (0, 1), (0, 2))
    # The later call comes first in the backward.
    assert paired(f, f, b, f, f, b) == {
        1: [(2, 0)],
        0: [(2, 1)],
        4: [(5, 0)],
        3: [(5, 1)],
    }


def test_a_captured_backward_that_dynamo_has_cut() -> None:
    f = forward(0)
    first, rest = captured(1, (0, 1)), captured(2, (0, 2), frame=1)
    both = [(1, 0), (2, 0)]
    again = [(4, 0), (5, 0)]
    assert paired(f, first, rest, f, first, rest) == {0: both, 3: again}
    # Accumulation: two forwards, two backwards.
    assert paired(f, f, first, rest, first, rest) == {1: [(2, 0), (3, 0)], 0: [(4, 0), (5, 0)]}


def test_forwards_that_are_not_in_the_trace() -> None:
    assert paired(captured(1, (5, 0)), GraphRecord(2, GraphKind.BACKWARD, "0/0", 3)) == {}


def program(frees: dict[int, int], events: int) -> AllocationProgram:
    """Of a backward that frees input i at event ``frees[i]``."""
    storages = tuple(
        Storage(i, 8, "cpu", Origin.INPUT, Category.ACTIVATION, f"saved_{i}", inputs=(i,))
        for i in frees
    )
    at = {event: i for i, event in frees.items()}
    return AllocationProgram(
        key=(),
        storages=storages,
        events=tuple(
            Event(EventKind.FREE, at[i], i) if i in at else Event(EventKind.REUSE, 0, i)
            for i in range(events)
        ),
    )


def ends(calls: list[GeneratedCall], starts: list[int], length: int) -> _Ends:
    columns = SimpleNamespace(
        scopes=SimpleNamespace(start=np.asarray(starts), end=np.asarray(starts) + length),
        allocations=SimpleNamespace(start=np.zeros(0, np.int64)),
    )
    return _Ends(cast(Any, columns), calls)


def test_activations_end_in_the_captured_backward() -> None:
    """GIVEN two forwards and their captured backward, which frees what the first saved at its
    fourth event of ten and what the second saved at the second WHEN it is asked when those end
    THEN there, and not when the same forward is called again."""
    one, two = forward(0), forward(1)
    b = captured(2, (0, 1), (1, 3))
    calls = [
        GeneratedCall(0, one, None, [], []),
        GeneratedCall(1, two, None, [], []),
        GeneratedCall(2, b, program({0: 4, 1: 2}, 10), [], []),
        GeneratedCall(3, one, None, [], []),
    ]
    found = ends(calls, [0, 1000, 2000, 9000], 110)
    first = found.of(calls[0], (1,), Category.ACTIVATION)
    second = found.of(calls[1], (3,), Category.ACTIVATION)
    assert first is not None
    assert second is not None
    assert 2000 < second < first < 2110
    # What it is not given, it cannot release: at its end.
    assert found.of(calls[0], (7,), Category.ACTIVATION) == 2110
    # An output of the user is memory until the graph runs again.
    assert found.of(calls[0], (1,), Category.OUTPUT) == 9000
    assert found.of(calls[3], (1,), Category.ACTIVATION) is None


def test_the_last_part_of_a_cut_backward_releases() -> None:
    f = forward(0)
    parts = captured(1, (0, 1)), captured(2, (0, 1), frame=1)
    calls = [
        GeneratedCall(0, f, None, [], []),
        GeneratedCall(1, parts[0], program({0: 3}, 10), [], []),
        GeneratedCall(2, parts[1], program({0: 3}, 10), [], []),
    ]
    end = ends(calls, [0, 1000, 2000], 100).of(calls[0], (1,), Category.ACTIVATION)
    assert end is not None
    assert 2000 < end < 2100
