"""Files open where they are meant to be opened."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from browser.fixtures import open_file
from torch.profiler import _memory_profiler as memory_profiler

from memprof.profiler import (
    DataFlowProfile,
    MemoryProfile,
    MemoryProfileTimeline,
    export_timeline,
    profile_memory,
)
from memprof.profiler.sources.trace.to_model import by_category, data_flow_columns
from memprof.profiler.support.errors import ProfileNotWritableError

from .models import at_peak, profile_training, profiled
from .perfetto_wasm import query

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def profile() -> DataFlowProfile:
    prof, case, opt = profile_training("transformer", "adam", 2, warmup=1)
    return profile_memory(prof, modules=case.model, optimizers=opt)


def test_json_and_compressed_json_hold_the_same(profile: DataFlowProfile, tmp_path: Path) -> None:
    export_timeline(profile, tmp_path / "a.json", "cpu")
    export_timeline(profile, tmp_path / "a.json.gz", "cpu")
    export_timeline(profile, tmp_path / "a.raw.json.gz", "cpu")
    times, sizes = json.loads((tmp_path / "a.json").read_bytes())
    assert json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes())) == [times, sizes]
    assert len(times) == len(sizes)
    # THEN the changes add up to the last point
    raw = json.loads(gzip.decompress((tmp_path / "a.raw.json.gz").read_bytes()))
    assert sum(n for _, _, n, _ in raw) == sum(sizes[-1])


def test_an_unknown_ending_is_refused(profile: DataFlowProfile, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"'.*a.csv' ends in no known format; there are \.raw\.json"
    ):
        export_timeline(profile, tmp_path / "a.csv", "cpu")


@pytest.mark.parametrize("kind", ["", "_raw", "_html"])
def test_under_torchs_names_too_files_are_written_whole_or_not_at_all(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with profiled() as prof:
        torch.ones(64).sum()
    timeline = MemoryProfileTimeline(MemoryProfile(prof.profiler.kineto_results))
    path = tmp_path / "timeline"
    write = getattr(timeline, f"export_memory_timeline{kind}")
    write(path, "cpu")
    before = path.read_bytes()
    assert len(before) > 10

    # WHEN the disk is full
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ProfileNotWritableError, match="No space left"):
        write(path, "cpu")
    # THEN what was there is as it was, and nothing is beside it
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.json.gz", "a.html"])
def test_what_cannot_be_written_is_said(
    profile: DataFlowProfile, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ProfileNotWritableError, match="cannot write"):
        export_timeline(profile, tmp_path / "nowhere" / name, "cpu")


def test_counters_follow_the_trace_event_format(profile: DataFlowProfile, tmp_path: Path) -> None:
    export_timeline(profile, tmp_path / "a.trace.json", "cpu")
    trace = json.loads((tmp_path / "a.trace.json").read_bytes())
    # GIVEN the bytes of each category after every change
    (cpu,) = data_flow_columns(profile, profile.columns.begin, points=sys.maxsize).devices
    assert len(cpu.time_ns) == len(by_category(profile, "cpu").time)
    for category, column in cpu.bytes.items():
        found = [
            (e["ts"], e["args"]["bytes"])
            for e in trace["traceEvents"]
            if e["name"] == f"data flow cpu {category.label}"
        ]
        assert [ts for ts, _ in found] == sorted(ts for ts, _ in found)
        # THEN each change of it, and no other, is in the file
        before = [0, *column]
        assert [n for _, n in found] == [
            n for n, last in zip(column, before, strict=False) if n != last
        ]


def test_counters_have_the_clock_of_torchs_own_trace(tmp_path: Path) -> None:
    with profiled() as prof:
        kept = torch.ones(1 << 16) + 1
    prof.export_chrome_trace(str(tmp_path / "torch.json"))
    theirs = json.loads((tmp_path / "torch.json").read_bytes())
    export_timeline(profile_memory(prof), tmp_path / "a.trace.json", "cpu")
    ours = json.loads((tmp_path / "a.trace.json").read_bytes())
    add = next(e for e in theirs["traceEvents"] if e.get("name") == "aten::add")
    counter = next(
        e
        for e in ours["traceEvents"]
        if e["name"] == "data flow cpu live" and e["args"]["bytes"] >= 2 * kept.nbytes
    )
    later = (ours["baseTimeNanoseconds"] - int(theirs["baseTimeNanoseconds"])) / 1000
    assert add["ts"] <= counter["ts"] + later <= add["ts"] + add["dur"]


def test_the_page_of_a_trace_shows_its_peak_in_a_browser(
    profile: DataFlowProfile, page: Page, tmp_path: Path
) -> None:
    export_timeline(profile, tmp_path / "a.html", "cpu")
    open_file(page, tmp_path / "a.html")
    text = page.inner_text("body")
    for share in at_peak(profile, "cpu").parts:
        assert share.key.replace("_", " ") in text
    assert "aten::" in text
    assert "0.layers.0" in text


def test_counters_open_in_perfettos_trace_processor(
    profile: DataFlowProfile, tmp_path: Path
) -> None:
    export_timeline(profile, tmp_path / "a.trace.json", "cpu")
    rows = query(
        (tmp_path / "a.trace.json").read_bytes(),
        "select t.name, max(c.value) from counter c join counter_track t "
        "on c.track_id = t.id group by t.name order by t.name",
        tmp_path,
    )
    (cpu,) = data_flow_columns(profile, points=sys.maxsize).devices
    most = {f"data flow cpu {c.label} bytes": max(column) for c, column in cpu.bytes.items()}
    most["data flow cpu live bytes"] = at_peak(profile, "cpu").total
    assert {name: int(value) for name, value in rows} == most


def test_the_docs_say_which_number_is_which() -> None:
    text = (Path(__file__).parents[4] / "docs/dataflow.md").read_text()
    part = text.partition("## What is in the exported files")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d) \| (\d) \| ([a-z ]+) \|$", part, re.MULTILINE)
    theirs = memory_profiler._CATEGORY_TO_INDEX
    names = {c.name.lower().replace("_", " ") if c else "unknown": i for c, i in theirs.items()}
    assert {name: (int(raw), int(column)) for raw, column, name in rows} == {
        name: (i, i + 1) for name, i in names.items()
    }
    actions = re.findall(r"^\| (\d) \| [^|]+ \|$", part, re.MULTILINE)
    assert list(map(int, actions)) == list(memory_profiler._ACTION_TO_INDEX.values())
    for name in ("_CATEGORY_TO_COLORS", "_CATEGORY_TO_INDEX", "_ACTION_TO_INDEX", "_Storage"):
        assert hasattr(memory_profiler, name)
        assert f"`{name}`" in text
