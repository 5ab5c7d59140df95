"""When what a replayed forward saved is released by its backward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from captured import captured, forward

from memprof.profiler.dataflow.calls import GeneratedCall
from memprof.profiler.dataflow.replays import Ends
from memprof.profiler.model import (
    AllocationProgram,
    Category,
    Event,
    EventKind,
    Origin,
    Storage,
)


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


def ends(calls: list[GeneratedCall], starts: list[int], length: int) -> Ends:
    columns = SimpleNamespace(
        scopes=SimpleNamespace(start=np.asarray(starts), end=np.asarray(starts) + length),
        allocations=SimpleNamespace(start=np.zeros(0, np.int64)),
    )
    return Ends(cast(Any, columns), calls)


def test_activations_end_in_the_captured_backward() -> None:
    """GIVEN two forwards and their captured backward, which frees what the first saved at its
    fourth event of ten and what the second saved at the second WHEN it is asked when those end
    THEN there, and not when the same forward is called again."""
    one, two = forward(0), forward(1)
    b = captured(2, (0, 1), (1, 3))
    calls = [
        GeneratedCall(0, one, None, {}),
        GeneratedCall(1, two, None, {}),
        GeneratedCall(2, b, program({0: 4, 1: 2}, 10), {}),
        GeneratedCall(3, one, None, {}),
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
        GeneratedCall(0, f, None, {}),
        GeneratedCall(1, parts[0], program({0: 3}, 10), {}),
        GeneratedCall(2, parts[1], program({0: 3}, 10), {}),
    ]
    end = ends(calls, [0, 1000, 2000], 100).of(calls[0], (1,), Category.ACTIVATION)
    assert end is not None
    assert 2000 < end < 2100
