"""``memprof.load``, and what its result and a session have in common."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from profile_builder import MIB, training
from profiler.views.test_ranks import larger
from rendering import render_diff

import memprof
from memprof.profiler.file.profile_file import write_profile, write_profiles
from memprof.profiler.model import Process, TrackerRecord
from memprof.profiler.sources.process.tracker import MemoryTracker
from memprof.profiler.support.errors import (
    ProfileError,
    ProfileNotWritableError,
    ProfileUnreadableError,
)
from memprof.profiler.verbs import report_text
from memprof.profiler.views.report import Style, html


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_profile(training(), tmp_path / "run.memprof")
    return tmp_path / "run.memprof"


def test_a_file_prints_its_report(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # libraries of other tests set it
    out = io.StringIO()
    memprof.load(path).report(file=out, full=True)
    whole = report_text([training()], Style())
    assert out.getvalue() == whole
    memprof.load(path).report(file=out)
    short = Style(top=5, short=True)
    assert out.getvalue() == whole + report_text([training()], short)
    with pytest.raises(ValueError, match="top is 0"):
        memprof.load(path).report(top=0)
    with pytest.raises(ValueError, match="no memory on 'cuda:7'; devices in it: cpu"):
        memprof.load(path).report(device="cuda:7")


def test_it_says_what_it_is(path: Path) -> None:
    found = memprof.load(path)
    assert repr(found) == f"<memprof profile {path}: 3 graphs, 9 calls>"
    assert found.profile() == training()
    assert "Peak of known live memory on cpu: 26.0 MiB" in found._repr_html_()


def test_parts_of_a_profile_say_what_they_are() -> None:
    profile = training()
    assert repr(profile) == "<Profile: 3 graphs, 9 calls>"
    assert repr(profile.graphs[1]) == "<GraphRecord 1: 0/0 backward, 3 calls>"
    profile.tracker, profile.complete = TrackerRecord(), False
    assert repr(profile) == "<Profile: 3 graphs, 9 calls, tracker, not complete>"
    assert repr(profile.tracker) == "<TrackerRecord: 0 snapshots, running>"
    assert repr(MemoryTracker()) == "<MemoryTracker: not started>"


def test_a_page_that_cannot_be_written_is_known_before_it_is_made(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "write_report", None)
    with pytest.raises(ProfileNotWritableError, match="the page cannot be written there"):
        memprof.load(path).to_html(tmp_path / "none" / "run.html")


def test_text_of_a_profile_is_no_markup_in_a_notebook(tmp_path: Path) -> None:
    profile = training()
    profile.graphs = [replace(g, compile_id="<script>") for g in profile.graphs]
    write_profile(profile, tmp_path / "p.memprof")
    shown = memprof.load(tmp_path / "p.memprof")._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


def test_pages_and_exports(path: Path, tmp_path: Path) -> None:
    found = memprof.load(path)
    found.to_html(tmp_path / "run.html")
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    found.export(tmp_path / "run.txt", "json")
    assert (tmp_path / "run.txt").stat().st_size
    with pytest.raises(ValueError, match="there is no format 'svg'; there are perfetto"):
        found.export(tmp_path / "x", "svg")
    assert not (tmp_path / "x").exists()


def test_what_grew(path: Path, tmp_path: Path) -> None:
    write_profile(larger(training(), 4 * MIB), tmp_path / "after.memprof")
    grown = memprof.load(path).diff(memprof.load(tmp_path / "after.memprof"))
    out = io.StringIO()
    grown.report(file=out)
    assert out.getvalue() == render_diff(grown.result)
    assert repr(grown).startswith("<memprof comparison: ")
    assert "+4.00 MiB" in repr(grown)
    assert grown._repr_html_().startswith("<pre")


def test_several_ranks(tmp_path: Path) -> None:
    ranks = [replace(training(), process=Process(n, n, 2)) for n in range(2)]
    write_profiles(ranks, tmp_path / "job.memprof")
    found = memprof.load(tmp_path / "job.memprof")
    assert repr(found) == f"<memprof profile {tmp_path / 'job.memprof'}: 2 ranks>"
    assert found.profiles() == ranks
    out = io.StringIO()
    found.report(file=out)
    assert out.getvalue().startswith("2 of 2 ranks")
    with pytest.raises(ProfileError, match="it holds 2 profiles, of ranks 0, 1"):
        found.profile()


def test_a_bad_path_is_noticed_at_once(tmp_path: Path) -> None:
    with pytest.raises(ProfileUnreadableError, match="No such file"):
        memprof.load(tmp_path / "no.memprof")


def test_names_that_are_there() -> None:
    assert memprof.__version__
    assert {"load", "profile", "report", "track"} <= {*dir(memprof)}
