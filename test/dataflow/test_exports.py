"""Files open where they are meant to be opened."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from browser.fixtures import open_file

from memprof.profiler import DataFlowProfile, export_timeline, peak_report, profile_memory
from memprof.profiler.dataflow.export import chrome_trace
from memprof.profiler.dataflow.over_time import COLORS, LABELS, by_category
from memprof.profiler.dataflow.vocabulary import MemoryProfile, MemoryProfileTimeline
from memprof.profiler.errors import ProfileNotWritableError

from .models import profile_training, profiled
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


@pytest.mark.parametrize("name", ["a.json.gz", "a.html", "a.parquet"])
def test_what_cannot_be_written_is_said(
    profile: DataFlowProfile, tmp_path: Path, name: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(ProfileNotWritableError, match="cannot write the timeline"):
        export_timeline(profile, tmp_path / "nowhere" / name, "cpu")


def test_parquet_opens_with_pyarrow(profile: DataFlowProfile, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    export_timeline(profile, tmp_path / "a.parquet", "cpu")
    table = pq.read_table(tmp_path / "a.parquet").to_pydict()
    assert len(table["time_ns"]) == len(profile.timeline)
    # THEN bytes by category, computed from the file alone, are the peak's
    report = peak_report(profile, "cpu")
    live: dict[str, int] = dict.fromkeys({*table["category"], *table["category_after"]}, 0)
    rows = zip(
        table["time_ns"], table["action"], table["bytes"],
        table["category"], table["category_after"], strict=True,
    )  # fmt: skip
    for time, action, size, category, after in rows:
        if time > report.time:
            break
        if action == "destroy":
            live[category] -= size
        elif action == "increment_version":
            live[category] -= size
            live[after] += size
        else:
            live[category] += size
    assert {k: v for k, v in live.items() if v} == {s.name: s.bytes for s in report.categories}
    assert {"0.layers.0.linear1", "0.layers.1.norm2"} <= set(table["module"])
    assert "0.layers.0.self_attn.in_proj_weight" in set(table["name"])


def test_counters_follow_the_trace_event_format(profile: DataFlowProfile, tmp_path: Path) -> None:
    export_timeline(profile, tmp_path / "a.trace.json", "cpu")
    trace = json.loads((tmp_path / "a.trace.json").read_bytes())
    counters = [e for e in trace["traceEvents"] if e["ph"] == "C"]
    table = by_category(profile, "cpu")
    assert len(counters) == len(table.time)
    assert [e["ts"] for e in counters] == sorted(e["ts"] for e in counters)
    assert {e["name"] for e in counters} == {"memory cpu"}
    assert [list(e["args"].values()) for e in counters] == table.bytes.tolist()
    assert {tuple(e["args"]) for e in counters} == {LABELS}


def test_counters_lie_over_torchs_own_trace(tmp_path: Path) -> None:
    with profiled() as prof:
        kept = torch.ones(1 << 16) + 1
    prof.export_chrome_trace(str(tmp_path / "torch.json"))
    theirs = json.loads((tmp_path / "torch.json").read_bytes())
    ours = chrome_trace(profile_memory(prof), base_ns=int(theirs["baseTimeNanoseconds"]))
    add = next(e for e in theirs["traceEvents"] if e.get("name") == "aten::add")
    counter = next(
        e
        for e in ours["traceEvents"]
        if e["ph"] == "C" and sum(e["args"].values()) >= 2 * kept.nbytes
    )
    assert add["ts"] <= counter["ts"] <= add["ts"] + add["dur"]


_COUNT = """async ([image, colors]) => {
  const picture = new Image();
  picture.src = "data:image/png;base64," + image;
  await picture.decode();
  const canvas = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  canvas.drawImage(picture, 0, 0);
  const pixels = new Uint32Array(
    canvas.getImageData(0, 0, picture.width, picture.height).data.buffer);
  const counts = new Map();
  for (const p of pixels) counts.set(p, (counts.get(p) ?? 0) + 1);
  // Pixels are RGBA, the first byte lowest.
  return colors.map(([r, g, b]) => counts.get(((255 << 24) | (b << 16) | (g << 8) | r) >>> 0) ?? 0);
}"""


def test_the_picture_is_drawn_by_a_browser(
    profile: DataFlowProfile, page: Page, tmp_path: Path
) -> None:
    export_timeline(profile, tmp_path / "a.html", "cpu")
    open_file(page, tmp_path / "a.html")
    image = base64.b64encode(page.screenshot(full_page=True)).decode()
    # THEN each category of the profile covers ground, in its color, in the picture
    rgb = [[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in COLORS]
    counts = page.evaluate(_COUNT, [image, rgb])
    table = by_category(profile, "cpu").bytes
    drawn, largest = table.max(axis=0), int(table.sum(axis=1).max())
    for label, most, pixels in zip(LABELS, drawn.tolist(), counts, strict=True):
        if most > 0.05 * largest:
            assert pixels > 400, label
    # and what is said at the peak is on the page.
    box = page.locator("svg[aria-label='memory over time']").bounding_box()
    assert box is not None
    assert box["width"] > 800
    assert "Peak" in page.inner_text("body")


def test_the_page_loads_nothing_and_tells_the_peak(
    profile: DataFlowProfile, tmp_path: Path
) -> None:
    export_timeline(profile, tmp_path / "a.html", "cpu")
    text = (tmp_path / "a.html").read_text()
    assert not re.search(r"<script|https?://|src=|@import", text)
    assert "0.layers.0.self_attn" in text
    assert "aten::" in text


def test_counters_open_in_perfettos_trace_processor(
    profile: DataFlowProfile, tmp_path: Path
) -> None:
    export_timeline(profile, tmp_path / "a.trace.json", "cpu")
    rows = query(
        (tmp_path / "a.trace.json").read_bytes(),
        "select t.name, count(*), max(c.value) from counter c join counter_track t "
        "on c.track_id = t.id group by t.name order by t.name",
        tmp_path,
    )
    table = by_category(profile, "cpu")
    most = table.bytes.max(axis=0).tolist()
    assert [(name, n, int(value)) for name, n, value in rows] == sorted(
        (f"memory cpu {label}", len(table.time), most[i]) for i, label in enumerate(LABELS)
    )
