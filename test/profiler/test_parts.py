"""The optional parts of a profile: what is refused in them, what reports say of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from profile_builder import MIB, training
from test_file import put
from test_stream import full

from memprof.profiler.errors import ProfileInvalidError
from memprof.profiler.file import decode_profile, encode_profile, profile_schema
from memprof.profiler.model import (
    DeviceMemory,
    Lane,
    LaneKind,
    MemorySnapshot,
    OperationColumns,
    OperationSummary,
    Process,
    Profile,
    Span,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.report import Style, render_text, summarize
from memprof.profiler.report.parts import data_flow_peaks, tracker_summary


def everything() -> Profile:
    """``full`` of test_stream and a tracker's record."""
    profile = full()
    profile.tracker = TrackerRecord(
        TrackerMetadata(
            start_ns=5,
            end_ns=105,
            lanes=[Lane(LaneKind.THREAD, "MainThread", 0, 0)],
            pauses=[Span(10, 20)],
        ),
        [
            MemorySnapshot(10, total_bytes=3, devices={"cpu": DeviceMemory(highest_bytes=50)}),
            MemorySnapshot(20, total_bytes=7, resident_bytes=90),
        ],
        OperationColumns([0, 1], [0, 0], [-1, 0], [10, 11], [20, 12], [-1, -1], [-1, -1],
                         [-1, -1], [-1, -1], {}, [False, False]),
        [OperationSummary("step", -1, 1, 0, 10), OperationSummary("forward", 0, 1, 0, 1)],
    )  # fmt: skip
    return profile


@pytest.fixture
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(encode_profile(everything()))
    return found


def test_everything_comes_back(document: dict[str, Any]) -> None:
    assert decode_profile(json.dumps(document).encode()) == everything()
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(document, profile_schema())


@pytest.mark.parametrize(
    "field", ["released", "process", "perf_origin_ns", "tracker", "dataflow", "complete"]
)
def test_files_of_older_memprof_lack_the_parts(field: str, document: dict[str, Any]) -> None:
    del document[field]
    found = decode_profile(json.dumps(document).encode())
    assert getattr(found, field) == getattr(Profile(), field)


OPERATIONS = "tracker.operation_allocations"


@pytest.mark.parametrize(
    ("edit", "where", "says"),
    [
        (put("process.world_size", 0), "$.process.world_size", "0 processes"),
        (put("process.rank", 4), "$.process.rank", "there is no rank 4 among 4"),
        (put("process.local_rank", -1), "$.process.local_rank", "there is no rank -1"),
        (put("dataflow.devices.0.time_ns", [20, 10]), "$.dataflow.devices[0].time_ns[1]", "ascend"),
        (
            put("dataflow.devices.0.bytes.parameter", [4]),
            "$.dataflow.devices[0].bytes['parameter']",
            "1 entries for 2 times",
        ),
        (
            put("dataflow.devices.0.bytes.activation", [-1, 8]),
            "$.dataflow.devices[0].bytes['activation']",
            "-1 is no number of bytes",
        ),
        (put("dataflow.devices.0.peak", 2), "$.dataflow.devices[0].peak", "there is no time 2"),
        (
            put("dataflow.devices.0.live.0.nbytes", 9),
            "$.dataflow.devices[0].live",
            "adds up to 13 bytes, the columns to 12",
        ),
        (
            put("dataflow.devices.0.live.0.graph", 9),
            "$.dataflow.devices[0].live[0].graph",
            "there is no graph 9",
        ),
        (
            lambda d: d["dataflow"]["devices"].append(d["dataflow"]["devices"][0]),
            "$.dataflow.devices[1].device",
            "'cpu' is there twice",
        ),
        (
            put("tracker.metadata.lanes.0.thread", 1),
            "$.tracker.metadata.lanes[0].thread",
            "there is no lane 1",
        ),
        (
            put("tracker.metadata.pauses.0.end_ns", 1),
            "$.tracker.metadata.pauses[0]",
            "it ends before it starts",
        ),
        (put("tracker.snapshots.1.time_ns", 1), "$.tracker.snapshots[1].time_ns", "times ascend"),
        (
            put("tracker.operation_summary.0.parent", 0),
            "$.tracker.operation_summary[0].parent",
            "0 is no operation before this one",
        ),
        (put(f"{OPERATIONS}.failed", []), f"$.{OPERATIONS}", "the columns differ in length"),
        (put(f"{OPERATIONS}.summary.1", 2), f"$.{OPERATIONS}.summary[1]", "2 is not from 0 to 1"),
        (put(f"{OPERATIONS}.lane.0", -1), f"$.{OPERATIONS}.lane[0]", "-1 is not from 0 to 0"),
        (put(f"{OPERATIONS}.parent.0", 7), f"$.{OPERATIONS}.parent[0]", "7 is not from -1 to 1"),
    ],
)
def test_contradictions(
    document: dict[str, Any], edit: Callable[[dict[str, Any]], None], where: str, says: str
) -> None:
    edit(document)
    with pytest.raises(ProfileInvalidError) as e:
        decode_profile(json.dumps(document).encode(), "p.json")
    assert e.value.where == where
    assert says in str(e.value)


# Reports


def test_a_single_process_is_not_called_a_rank() -> None:
    profile = training()
    profile.process = Process(0, 0, 1, "host", 7)
    assert "rank" not in render_text(summarize(profile))


def test_rank_and_incompleteness_are_said_first() -> None:
    profile = everything()
    profile.complete = False
    lines = render_text(summarize(profile)).splitlines()
    assert lines[3] == "rank 2 of 4 (local rank 0, host host)"
    assert lines[4].startswith("incomplete: the process was killed or still runs")


def test_data_flow_in_a_report() -> None:
    text = render_text(summarize(everything()), Style(exact=True))
    at = text.index("Data flow on cpu, eager code included: peak 12 B, 10 ns into the ")
    rows = [line.split() for line in text[at:].splitlines()[3:6]]
    assert rows == [
        ["8", "B", "66.7", "%", "activation"],
        ["4", "B", "33.3", "%", "parameter"],
        ["12", "B", "100.0", "%", "total"],
    ]
    assert data_flow_peaks(training()) == []


def test_the_tracker_in_figures() -> None:
    found = tracker_summary(everything().tracker)
    assert found is not None
    assert (found.span_ns, found.snapshots, found.tensors, found.resident) == (100, 2, 7, 90)
    assert found.devices == {"cpu": 50}
    assert [(o.path, o.total_ns) for o in found.operations] == [("step", 10), ("step/forward", 1)]
    assert tracker_summary(None) is None


def test_reports_of_every_part_fit_in_json(tmp_path: Path) -> None:
    import msgspec

    summary = summarize(everything())
    found = json.loads(msgspec.json.encode(summary))
    assert found["process"]["rank"] == 2
    assert found["dataflow"][0]["nbytes"] == 12
    assert found["tracker"]["operations"][0]["path"] == "step"
    assert found["advice"][0]["nbytes"] == 8 * MIB
    assert dataclasses.is_dataclass(summary)
