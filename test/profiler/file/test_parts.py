"""The optional parts of a profile: what is refused in them, what reports say of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from framing import decode_profile, framed
from profile_builder import MIB, training
from rendering import render_text

from memprof.profiler.file.profile_file import profile_schema
from memprof.profiler.model import (
    AllocationFailure,
    DeviceAccount,
    Lane,
    LaneKind,
    MemorySnapshot,
    OperationColumns,
    OperationSummary,
    Process,
    Profile,
    Span,
    TrackedDevice,
    TrackerMetadata,
    TrackerRecord,
    WhyNot,
)
from memprof.profiler.support.errors import ProfileInvalidError
from memprof.profiler.support.json_text import to_json
from memprof.profiler.views.compare.ranks import compare_ranks
from memprof.profiler.views.report import Style, summarize
from memprof.profiler.views.report.html.payload import report_payload
from memprof.profiler.views.report.parts import data_flow_peaks

from .test_file import put
from .test_frames import full


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
            MemorySnapshot(10, total_bytes=3, devices={"cpu": TrackedDevice(highest_bytes=50)}),
            MemorySnapshot(20, total_bytes=7, resident_bytes=90),
        ],
        OperationColumns([0, 1], [0, 0], [-1, 0], [10, 11], [20, 12], [-1, -1], [-1, -1],
                         [-1, -1], [-1, -1], {}, [False, False]),
        [OperationSummary("step", -1, 1, 0, 10), OperationSummary("forward", 0, 1, 0, 1)],
    )  # fmt: skip
    return profile


@pytest.fixture
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(everything()))
    return found


def test_everything_comes_back(document: dict[str, Any]) -> None:
    assert decode_profile(framed(document)) == everything()
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(document, profile_schema())


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (put("process.world_size", 0), "Expected `int` >= 1 - at `$.process.world_size`"),
        (put("process.local_rank", -1), "Expected `int` >= 0 - at `$.process.local_rank`"),
        (
            put("dataflow.devices.0.bytes.activation", [-1, 8]),
            "Expected `int` >= 0 - at `$.dataflow.devices[0].bytes[...][0]`",
        ),
        (
            put("tracker.snapshots.0.total_bytes", "many"),
            "Expected `int`, got `str` - at `$.tracker.snapshots[0].total_bytes`",
        ),
    ],
)
def test_what_the_types_do_not_allow_is_named_by_its_path(
    document: dict[str, Any], edit: Callable[[dict[str, Any]], None], says: str
) -> None:
    edit(document)
    with pytest.raises(ProfileInvalidError) as e:
        decode_profile(framed(document), "p.memprof")
    assert says in str(e.value)


def test_graphs_of_the_data_flow_need_not_be_there(document: dict[str, Any]) -> None:
    # They come later in a file, which can end before.
    put("dataflow.devices.0.live.0.graph", 9)(document)
    found = decode_profile(framed(document))
    assert found.left_out == []
    assert "aten::mm" in render_text(summarize(found))


# Reports


def test_every_report_says_what_was_left_out() -> None:
    profile = everything()
    profile.left_out = [f"part {n}: a reason - at `$.x[{n}]`" for n in range(12)]
    text = render_text(summarize(profile))
    assert "left out, since the file is damaged: 12 parts" in text
    assert "    part 9: a reason - at `$.x[9]`\n    2 more: report --json\n" in text
    assert summarize(profile).figures()["left_out"] == profile.left_out
    left_out = report_payload(profile)["header"].parts[0]
    assert [row[0] for row in left_out.tables[0].rows] == profile.left_out
    other = dataclasses.replace(training(), process=Process(1, 0, 4))
    assert compare_ranks([profile, other]).warnings[1] == (
        "rank 2: left out: part 0: a reason - at `$.x[0]` and 11 parts more"
    )
    assert "left out" not in render_text(summarize(everything()))


def test_a_rank_that_ran_out_of_memory_is_named() -> None:
    profile = everything()
    profile.accounts.append(DeviceAccount("cuda:0", failure=AllocationFailure(1, 1, WhyNot.FULL)))
    other = dataclasses.replace(training(), process=Process(1, 0, 4))
    (warning,) = [w for w in compare_ranks([profile, other]).warnings if "out of memory" in w]
    assert warning == "rank 2 ran out of memory"


def test_a_single_process_is_not_called_a_rank() -> None:
    profile = training()
    profile.process = Process(0, 0, 1, "host", 7)
    assert "rank" not in render_text(summarize(profile))


def test_rank_and_incompleteness_are_said_first() -> None:
    profile = everything()
    profile.complete = False
    lines = render_text(summarize(profile)).splitlines()
    assert lines[3] == "rank 2 of 4 (local rank 0, host host, process 77)"
    assert lines[-1 + next(n for n, line in enumerate(lines) if not line)].startswith(
        "incomplete: the process was killed or still runs"
    )


def test_data_flow_in_a_report() -> None:
    text = render_text(summarize(everything()), Style(exact=True))
    at = text.index("Data flow on cpu, eager code included: peak 12 B, 10 ns into the ")
    rows = [line.split() for line in text[at:].splitlines()[5:8]]
    assert rows == [
        ["8", "B", "66.7", "%", "activation"],
        ["4", "B", "33.3", "%", "parameter"],
        ["12", "B", "100.0", "%", "total"],
    ]
    assert data_flow_peaks(training()) == []


def test_reports_of_every_part_fit_in_json(tmp_path: Path) -> None:
    import msgspec

    summary = summarize(everything())
    found = json.loads(msgspec.json.encode(summary.figures()))
    assert found["process"]["rank"] == 2
    assert found["dataflow"][0]["nbytes"] == 12
    assert found["advice"][0]["nbytes"] == 8 * MIB
    assert dataclasses.is_dataclass(summary)
