"""What the page is given of operations and calls: bars in rows, how calls ran."""

from __future__ import annotations

from itertools import pairwise

from browser.gantt_profiles import server, training_run
from framing import findings
from hypothesis import given, strategies as st
from profile_builder import training

from memprof.profiler.live.trees import CallMode, call_modes
from memprof.profiler.model import Lane, LaneKind, LedgerEntry, LedgerKind, Profile
from memprof.profiler.views.report.html.payload_gantt import Bar, gantt_payload, place

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=40)


def no_two_overlap(bars: list[Bar]) -> None:
    rows = {b.row for b in bars}
    assert rows == set(range(len(rows)))
    for row in rows:
        own = sorted((b for b in bars if b.row == row), key=lambda b: (b.start_ns, b.end_ns))
        for a, b in pairwise(own):
            assert a.end_ns <= b.start_ns


@given(SPANS)
def test_bars_of_a_row_never_overlap(spans: list[tuple[int, int]]) -> None:
    # A bar without width would be hidden by one that begins where it is: both have some.
    bars = [Bar(s, s + w + 1, "x", "operation", i) for i, (s, w) in enumerate(spans)]
    place(bars)
    no_two_overlap(bars)
    # and there are no more rows than bars at once.
    most = max((sum(b.start_ns <= a.start_ns < b.end_ns for b in bars) for a in bars), default=0)
    assert len({b.row for b in bars}) == most


def test_what_is_inside_stands_below() -> None:
    bars = [Bar(*t, "operation", 0) for t in ((2, 3, "c"), (0, 9, "a"), (1, 5, "b"), (6, 8, "d"))]
    place(bars)
    assert [(b.name, b.row) for b in bars] == [("a", 0), ("b", 1), ("c", 2), ("d", 1)]


def test_the_page_of_a_training_run() -> None:
    profile = training_run(steps=3)
    assert findings(profile) == []
    page = gantt_payload(profile)
    assert page is not None
    assert page["lanes"] == [
        {"name": "MainThread", "rows": [3, 9, 6]},
        {"name": "loader", "rows": [3]},
        {"name": "compilation", "rows": [3]},
    ]
    names, kinds = page["bars"]["name"], page["bars"]["kind"]
    bars = [(names["of"][n], kinds["of"][k]) for n, k in zip(names["at"], kinds["at"], strict=True)]
    assert bars[0] == ("step", "operation")
    assert bars[3:6] == [
        ("forward", "operation"),
        ("backward", "operation"),
        ("1/0 inference", "inference"),
    ]
    assert [b for b in bars[12:18] if b[0] == "0/0 forward"] == [
        ("0/0 forward", "warm-up"),
        ("0/0 forward", "recording"),
        ("0/0 forward", "forward replay"),
    ]


def test_a_server_has_as_many_rows_as_requests_at_once() -> None:
    page = gantt_payload(server(300))
    assert page is not None
    (lane,) = page["lanes"]
    assert lane["name"] == "tasks of MainThread"
    assert sum(lane["rows"]) == len(page["bars"]["start"]) == 1200
    assert 16 <= len(lane["rows"]) <= 20


def test_what_a_thread_runs_stands_above_its_tasks() -> None:
    # GIVEN a server whose thread runs compiled code
    profile = server(1)
    calls = training(1)
    profile.graphs = calls.graphs
    profile.calls = calls.calls
    assert profile.tracker is not None
    profile.tracker.metadata.lanes[0] = Lane(LaneKind.THREAD, "MainThread", 0, call_thread=0)
    page = gantt_payload(profile)
    assert page is not None
    assert [lane["name"] for lane in page["lanes"]] == ["MainThread", "tasks of MainThread"]


def test_nothing_and_parts() -> None:
    assert gantt_payload(Profile()) is None
    page = gantt_payload(training())
    assert page is not None
    # All calls are there, with the window from the first to the last.
    bars = page["bars"]
    assert len(bars["start"]) == 9
    assert page["calls"] == [bars["start"][0], bars["start"][8] + bars["duration"][8]]


# How calls ran


def test_calls_without_trees_just_ran() -> None:
    assert set(call_modes(training())) == {CallMode.RUN}


def test_more_calls_than_replays_are_not_called_replays() -> None:
    # GIVEN a function that replayed four times and was skipped again and again
    profile = training_run(steps=10)
    replay = profile.ledger[5]
    profile.ledger[5] = LedgerEntry(replay.time_ns, LedgerKind.REPLAY, 0, "replayed", 4)
    modes = call_modes(profile)
    assert modes[0::3][:2] == [CallMode.WARM_UP, CallMode.RECORD]
    assert set(modes[0::3][2:]) == {CallMode.REPLAY_OR_RUN}
    assert set(modes[1::3]) == {CallMode.RUN}


def test_without_a_common_clock_nothing_is_claimed() -> None:
    profile = training_run(steps=4)
    profile.perf_origin_ns = 0
    assert set(call_modes(profile)[0::3]) == {CallMode.REPLAY_OR_RUN}
    page = gantt_payload(profile)
    assert page is not None
    assert "compilation" not in [lane["name"] for lane in page["lanes"]]
