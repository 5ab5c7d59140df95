"""Files open where they are meant to be opened."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from memprof.profiler import DataFlowProfile, export, peak_report, profile_memory
from memprof.profiler.dataflow.export import chrome_trace
from memprof.profiler.dataflow.over_time import COLORS, LABELS, by_category

from .models import profile_training, profiled
from .perfetto_wasm import query


@pytest.fixture(scope="module")
def profile() -> DataFlowProfile:
    prof, case, opt = profile_training("transformer", "adam", 2, warmup=1)
    return profile_memory(prof, modules=case.model, optimizers=opt)


def test_json_and_compressed_json_hold_the_same(profile: DataFlowProfile, tmp_path: Path) -> None:
    export(profile, tmp_path / "a.json", "cpu")
    export(profile, tmp_path / "a.json.gz", "cpu")
    export(profile, tmp_path / "a.raw.json.gz", "cpu")
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
        export(profile, tmp_path / "a.csv", "cpu")


def test_parquet_opens_with_pyarrow(profile: DataFlowProfile, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    export(profile, tmp_path / "a.parquet", "cpu")
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
    export(profile, tmp_path / "a.trace.json", "cpu")
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


def test_the_picture_is_drawn_by_a_browser(profile: DataFlowProfile, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on PATH")
    imaging = pytest.importorskip("PIL.Image", reason="reading the screenshot needs pillow")
    export(profile, tmp_path / "a.html", "cpu")
    shot = tmp_path / "a.png"
    subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={tmp_path / 'browser'}", "--window-size=1300,1600",
            f"--screenshot={shot}", (tmp_path / "a.html").as_uri(),
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    image = imaging.open(shot).convert("RGB")
    # THEN each category of the profile covers ground, in its color, in the picture
    counts: dict[tuple[int, int, int], int] = {}
    for n, color in image.getcolors(1 << 24):
        counts[color] = n
    drawn = by_category(profile, "cpu").bytes.max(axis=0)
    largest = int(by_category(profile, "cpu").bytes.sum(axis=1).max())
    for color, label, most in zip(COLORS, LABELS, drawn.tolist(), strict=True):
        rgb = tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))
        if most > 0.05 * largest:
            assert counts.get(rgb, 0) > 400, label


def test_the_page_loads_nothing_and_tells_the_peak(
    profile: DataFlowProfile, tmp_path: Path
) -> None:
    export(profile, tmp_path / "a.html", "cpu")
    text = (tmp_path / "a.html").read_text()
    assert not re.search(r"<script|https?://|src=|@import", text)
    assert "0.layers.0.self_attn" in text
    assert "aten::" in text


def test_counters_open_in_perfettos_trace_processor(
    profile: DataFlowProfile, tmp_path: Path
) -> None:
    export(profile, tmp_path / "a.trace.json", "cpu")
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
