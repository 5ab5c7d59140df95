"""Every export has the same bytes at the same instant: those of the timeline."""

from __future__ import annotations

import io
import json
import pickle
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from profile_builder import training

from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Profile
from memprof.profiler.views.export.memory_viz import write_memory_viz
from memprof.profiler.views.export.perfetto import write_perfetto
from memprof.profiler.views.export.tables import to_pandas
from memprof.profiler.views.export.walk import AFTER, Walk
from profiler.live.test_timeline import profiles

from .test_export_memory_viz import addresses_are_sound

Instants = dict[tuple[int, int], int]


def instants(timeline: Timeline) -> Instants:
    """The timeline's live bytes at every instant, and after each call."""
    out: Instants = {}
    between = timeline.bytes_over_time()["between"]
    for k in range(len(timeline)):
        for i in range(len(timeline.changes(k)) + 1):
            out[k, i] = sum(item.nbytes for item in timeline.live_at(k, i))
        out[k, AFTER] = between[k]
    return out


def times(walk: Walk) -> dict[tuple[int, int], int]:
    return {(m.call, m.instant): m.time_ns for m in walk}


def written(writer: Any, profile: Profile) -> bytes:
    file = io.BytesIO()
    writer([profile] if writer is write_perfetto else profile, file)
    return file.getvalue()


def counters(trace: bytes) -> dict[int, dict[str, int]]:
    """Values of all counters after each time, ns."""
    now: dict[str, int] = {}
    out: dict[int, dict[str, int]] = {}
    for e in json.loads(trace)["traceEvents"]:
        if e["ph"] == "C":
            now[e["name"]] = e["args"]["bytes"]
            out[round(e["ts"] * 1000)] = dict(now)
    return out


@settings(max_examples=80)
@given(profiles())
def test_every_export_agrees_with_the_timeline_at_every_instant(profile: Profile) -> None:
    timeline = Timeline(profile, "cpu")
    expected = instants(timeline)
    peak = timeline.peak()
    assert peak is not None or not expected

    # the shared stream
    live, found, allocated = 0, {}, Counter[int]()
    for moment in Walk(timeline):
        live += sum(b.nbytes for b in moment.change.allocated)
        live -= sum(b.nbytes for b in moment.change.freed)
        found[moment.call, moment.instant] = live
        allocated.update(b.memory for b in moment.change.allocated)
        allocated.subtract(b.memory for b in moment.change.freed)
        assert min(allocated.values(), default=0) >= 0
    assert found == expected

    # Perfetto's counters
    at = times(Walk(timeline))
    assert list(at.values()) == sorted(at.values())
    base = min(profile.calls.start_ns, default=0)
    values: dict[str, int] = {}
    by_time = counters(written(write_perfetto, profile))
    for where, time in at.items():
        values = by_time.get(time - base, values)
        sums = [n for name, n in values.items() if name != "cpu live"]
        assert sum(sums) == values.get("cpu live", 0) == expected[where]

    # memory_viz's events and segments
    snapshot = pickle.loads(written(write_memory_viz, profile))
    addresses_are_sound(snapshot)
    live, by_us = 0, {}
    for e in snapshot["device_traces"][0] if snapshot["device_traces"] else ():
        live += {"alloc": 1, "free_completed": -1}.get(e["action"], 0) * e["size"]
        by_us[e["time_us"]] = live
    live = 0
    for where, time in at.items():
        live = by_us.get(time // 1000, live)
        assert live == expected[where]
    assert sum(s["requested_size"] for s in snapshot["segments"]) == live


@settings(max_examples=15)
@given(profiles())
def test_tables_agree_with_the_timeline(profile: Profile) -> None:
    pytest.importorskip("pandas")
    timeline = Timeline(profile, "cpu")
    expected = instants(timeline)
    frames = to_pandas(profile)
    tables = {name: frame.to_dict("records") for name, frame in frames.items()}
    live = 0
    found = dict(expected)
    rows = {}
    blocks = Counter[int]()
    for row in tables["events"]:
        live += row["delta_bytes"]
        blocks[row["block"]] += row["delta_bytes"]
        assert blocks[row["block"]] >= 0
        assert row["live_bytes"] == live
        assert abs(row["delta_bytes"]) == tables["blocks"][row["block"]]["nbytes"]
        rows[row["call"], row["instant"]] = live
    live = 0
    for where in expected:  # instants at which nothing changes have no rows
        live = found[where] = rows.get(where, live)
    assert found == expected
    assert [r["between_bytes"] for r in tables["calls"]] == [
        expected[k, AFTER] for k in range(len(timeline))
    ]


def test_categories_agree_with_the_attribution() -> None:
    # GIVEN an instant in the middle of a training step
    profile = training()
    timeline = Timeline(profile, "cpu")
    attribution = Attribution(profile)
    by_time = counters(written(write_perfetto, profile))
    for where, time in times(Walk(timeline)).items():
        if where[1] == AFTER or time not in by_time:
            continue
        # THEN each category has the bytes of the report's view of the same instant
        view = attribution.breakdown(timeline.live_at(*where), View.CATEGORY)
        expected = {f"cpu {p.key.replace('_', ' ')}": p.nbytes for p in view.parts}
        if view.unattributed:
            expected["cpu unknown"] = view.unattributed
        found = {n: v for n, v in by_time[time].items() if v and n != "cpu live"}
        assert found == expected


def test_a_parameter_is_one_block_through_all_calls() -> None:
    # GIVEN a parameter that three graphs have as an input, each in its own words
    moments = list(Walk(Timeline(training(), "cpu")))
    walk = Walk(Timeline(training(), "cpu"))
    memory = [b.memory for m in walk for b in m.change.allocated if b.item.storage.identity == 1]
    # THEN it comes to life once and never goes
    assert len(memory) == 1
    assert not [b for m in moments for b in m.change.freed if b.memory == memory[0]]


def test_overlapping_calls_do_not_run_backwards() -> None:
    # GIVEN two threads whose calls overlap
    profile = training()
    profile.calls.start_ns[:] = [0, 10, 20, 30, 40, 50, 60, 70, 80]
    profile.calls.end_ns[:] = [100, 90, 120, 130, 125, 200, 210, 220, 230]
    found = [m.time_ns for m in Walk(Timeline(profile, "cpu"))]
    assert found == sorted(found)


def test_no_calls() -> None:
    profile = Profile()
    assert list(Walk(Timeline(profile))) == []
    assert json.loads(written(write_perfetto, profile))["traceEvents"]
    assert pickle.loads(written(write_memory_viz, profile))["segments"] == []
