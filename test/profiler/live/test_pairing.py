"""Which calls of forwards a call of a backward belongs to."""

from __future__ import annotations

from captured import captured, forward

from memprof.profiler.live.pairing import pair
from memprof.profiler.model import GraphKind, GraphRecord


def paired(*graphs: GraphRecord) -> dict[int, list[tuple[int, int]]]:
    """By number of a forward's call: number of its backward's, how many later calls it is of."""
    return pair(graphs)


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


def test_a_backward_belongs_to_the_forward_that_saved_what_it_is_given() -> None:
    f, g = forward(0), forward(1)
    b = GraphRecord(2, GraphKind.BACKWARD, "0/0", 0)
    saved = {0: 100, 1: 200, 4: 100, 5: 300, 6: 100}
    given = {2: 100, 3: 200, 8: 200, 9: 1}
    # Two forwards of other sizes wait: the later one has to go on waiting.
    found = pair([f, f, b, b], saved.__getitem__, lambda call, _: given[call])
    assert found == {0: [(2, 0)], 1: [(3, 0)]}
    # A captured backward of two calls is given what both saved; and where no call saved as much
    # as it is given, the latest is it.
    both = captured(3, (0, 1), (0, 1))
    calls = [None, None, None, None, f, f, f, g, both, b]
    found = pair(calls, lambda call: saved.get(call, -1), lambda call, _: given[call])
    assert found == {6: [(8, 0)], 4: [(8, 1)], 5: [(9, 0)]}
