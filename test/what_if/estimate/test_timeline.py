"""When operations of a step end, against times by hand."""

from __future__ import annotations

from memprof.simulated_cuda import control
from memprof.what_if.estimate.timeline import Given, device_ns
from memprof.what_if.estimate.work import OTHER, Work

WORK = Work(OTHER)


def kernel(stream: int, node: int = 0) -> Given:
    return Given(control.KERNEL, stream, node, WORK)


def test_one_stream_does_one_thing_after_another() -> None:
    assert device_ns([kernel(1), kernel(1)], [3.0, 4.0], {}) == 7


def test_streams_run_at_once() -> None:
    assert device_ns([kernel(1), kernel(2)], [3.0, 4.0], {}) == 4


def test_a_stream_waits_for_what_was_before_an_event() -> None:
    given = [
        kernel(1),  # 0 to 3
        Given(control.EVENT, 1, 77, None),
        kernel(1),  # 3 to 8
        kernel(2),  # 0 to 1
        Given(control.WAIT, 2, 77, None),
        kernel(2),  # 3 to 13
    ]
    assert device_ns(given, [3, 0, 5, 1, 0, 10], {}) == 13


def test_an_event_that_was_never_recorded_holds_up_nothing() -> None:
    assert device_ns([Given(control.WAIT, 1, 5, None), kernel(1)], [0, 2], {}) == 2


def test_nodes_of_a_graph_wait_for_their_own() -> None:
    # GIVEN a diamond: 11, then 12 and 13 at once, then 14, behind one kernel and before another
    given = [
        kernel(1),
        Given(control.GRAPH, 1, 0, None, nodes=4),
        *(kernel(1, node) for node in (11, 12, 13, 14)),
        kernel(1),
    ]
    after = {12: [11], 13: [11], 14: [12, 13]}
    assert device_ns(given, [100, 0, 1, 2, 5, 1, 10], after) == 100 + 1 + 5 + 1 + 10
