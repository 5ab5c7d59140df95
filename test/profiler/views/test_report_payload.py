"""The report page's payload; what the page makes of it ``test_report_page.py`` compares."""

from __future__ import annotations

import pytest
from profile_builder import MIB, ProgramBuilder, calls, training

from memprof.profiler.model import (
    GraphKind,
    GraphRecord,
    LedgerEntry,
    LedgerKind,
    MemorySnapshot,
    Process,
    Profile,
    TrackerRecord,
)
from memprof.profiler.views.report import summarize
from memprof.profiler.views.report.html.payload import ranks_payload, report_payload
from memprof.profiler.views.report.sections import MAX_LEDGER


def test_alike_calls_are_one_step() -> None:
    # GIVEN nine calls of three kinds, of which the first round differs from later ones
    device = report_payload(training())["device"]
    assert device["calls"]["step"] == [0, 1, 2, 3, 4, 2, 3, 4, 2]
    assert device["peak"] == [4, 1, 26 * MIB]


def test_the_page_is_about_the_device_that_is_asked_for() -> None:
    profile = training()
    extra = GraphRecord(3, GraphKind.INFERENCE, "2/0", None, ("cuda:0",))
    builder = ProgramBuilder(device="cuda:0").alloc("buf0", 5 * MIB, 3).free("buf0", 4)
    extra.programs = [builder.build()]
    profile.graphs.append(extra)
    profile.calls = calls((0, 0), (3, 0), (1, 0), (2, 0))
    assert report_payload(profile)["device"]["peak"] == [1, 1, 5 * MIB]
    summary = summarize(profile, "cpu")
    assert summary.peak is not None
    assert report_payload(profile, "cpu")["device"]["peak"][2] == summary.peak.nbytes
    with pytest.raises(ValueError, match="devices in it: cpu, cuda:0"):
        report_payload(profile, "cuda:1")


def test_calls_without_a_program_are_said() -> None:
    profile = training()
    profile.calls = calls((0, 0), (1, -1), (2, 0))
    (graphs,) = (s for s in report_payload(profile)["sections"] if s.id == "graphs")
    (missing,) = graphs.tables[1].rows
    assert missing == (1, "0/0 backward", "no program was observed for the sizes of these calls")


def test_of_several_ranks_the_page_has_the_highest() -> None:
    profiles = []
    for rank in range(4):
        profile = training(2 if rank == 2 else 1)  # one step has a lower peak
        profile.process = Process(rank, rank, 4, "node", rank)
        profiles.append(profile)
    payload = ranks_payload(profiles[::-1])
    assert payload["ranks"]["shown"] == 2
    table = payload["ranks"]["section"].parts[0].tables[0]
    assert [row[0] for row in table.rows] == [0, 1, 2, 3]
    notes = [note.text for note in payload["profile"]["header"].notes]
    assert any(text.startswith("rank 2 of 4") for text in notes)
    assert ranks_payload(profiles[:1])["ranks"] is None


def test_snapshots_that_say_nothing_of_bytes_have_no_curve() -> None:
    profile = Profile(tracker=TrackerRecord(snapshots=[MemorySnapshot(0), MemorySnapshot(1)]))
    assert report_payload(profile)["curves"] == {}


def test_the_ledger_keeps_the_latest_entries() -> None:
    profile = training()
    profile.ledger = [
        LedgerEntry(k * 1_000_000, LedgerKind.COMPILED, 0, f"number {k}")
        for k in range(MAX_LEDGER + 3)
    ]
    payload = report_payload(profile)
    (ledger,) = (s for s in payload["sections"] if s.id == "ledger")
    assert any(n.text.startswith("3 earlier entries are left out here") for n in ledger.notes)
    rows = ledger.tables[0].rows
    assert (rows[0][0], rows[-1][-1]) == (3_000_000, f"number {MAX_LEDGER + 2}")
