"""The journal, the final file, and what is left when a process was killed."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import jsonschema
import pytest
from framing import framed

from memprof.profiler._json import to_json
from memprof.profiler.claims import locked_by_another
from memprof.profiler.errors import (
    ProfileForeignError,
    ProfileTruncatedError,
    ProfileVersionError,
)
from memprof.profiler.file import decode_profile, encode_profile, profile_schema, read_profile
from memprof.profiler.model import (
    Lane,
    LaneKind,
    OperationSummary,
    Profile,
    RunState,
    Span,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.repair import findings
from memprof.profiler.tracker import files
from memprof.profiler.tracker import journal as journal_module
from memprof.profiler.tracker.journal import Entry, Header, Journal
from memprof.profiler.tracker.read_journal import decode_journal
from memprof.profiler.tracker.rows import as_columns

from .records import row, snapshot

METADATA = TrackerMetadata(
    perf_origin_ns=1000, start_ns=5, end_ns=90, lanes=[Lane(LaneKind.THREAD, "main", 0)]
)


def profile() -> Profile:
    record = TrackerRecord(
        metadata=METADATA,
        snapshots=[snapshot(10), snapshot(20, highest=7)],
        operation_allocations=as_columns([row(0, 10, 30), row(1, 12, 20, parent=0, summary=1)]),
        operation_summary=[OperationSummary("step", count=1), OperationSummary("forward", 0)],
    )
    return Profile(created_ns=3, memprof="0.1.0", tracker=record)


# The final file


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "memory_profile_1.memprof"
    path.write_bytes(encode_profile(profile()))
    found = read_profile(path)
    assert found.tracker == profile().tracker
    assert (found.created_ns, found.memprof, found.complete) == (3, "0.1.0", True)


def test_the_schema_takes_what_is_written() -> None:
    document = json.loads(to_json(profile()))
    jsonschema.validate(document, profile_schema())
    document["tracker"]["snapshots"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, profile_schema())


def test_a_file_of_memprof_0_1_0_is_refused_by_name() -> None:
    with pytest.raises(ProfileVersionError, match=r"written by memprof 0\.1\.0"):
        decode_profile(b'{"format":"memprof-tracker","schema_version":1,"created_ns":0}')


def changed(path: list[str | int], value: object) -> bytes:
    document = json.loads(to_json(profile()))
    place = document["tracker"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return framed(document)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (["snapshots", 0, "kind"], "odd", "$.tracker.snapshots[0].kind"),
        (["snapshots", 0, "time_ns"], "x", "$.tracker.snapshots[0].time_ns"),
        (["metadata", "lanes", 0, "thread"], 3, "$.tracker.metadata.lanes[0].thread"),
        (
            ["operation_allocations", "summary"],
            [0, 9],
            "$.tracker.operation_allocations.summary[1]",
        ),
        (["operation_allocations", "lane"], [0], "$.tracker.operation_allocations"),
        (["operation_summary", 1, "parent"], 1, "$.tracker.operation_summary[1].parent"),
    ],
)
def test_contradictions_are_left_out(path: list[str | int], value: object, where: str) -> None:
    found = decode_profile(changed(path, value))
    assert f"at `{where}`" in found.left_out[0]
    assert findings(found) == []
    # AND the rest of the record is there
    assert found.tracker is not None
    whole = profile().tracker
    assert whole is not None
    kept = [
        name
        for name in ("metadata", "snapshots", "operation_allocations", "operation_summary")
        if getattr(found.tracker, name) == getattr(whole, name)
    ]
    assert len(kept) >= 3


def test_a_part_of_another_type_costs_itself() -> None:
    found = decode_profile(changed(["metadata"], 3))
    assert found.tracker is not None
    assert len(found.tracker.snapshots) == 2
    assert found.left_out[0].startswith("metadata: ")
    assert "at `$.tracker.metadata`" in found.left_out[0]


# The journal


def written(path: Path, entries: list[Entry], header: Header | None = None) -> Journal:
    journal = Journal(path, header or Header(memprof="0.1.0"), lambda: entries)
    for entry in entries:
        journal.append(entry)
    return journal


ENTRIES = [
    Entry(metadata=METADATA),
    Entry(snapshot=snapshot(10), operations=[row(0, 10, -1)]),
    Entry(snapshot=snapshot(20, highest=7)),
    Entry(
        operations=[row(1, 12, 20, parent=0, summary=1), row(0, 10, 30)],
        summaries={0: OperationSummary("step", count=1), 1: OperationSummary("forward", 0)},
    ),
]


def test_a_journal_reads_as_the_file_would_have(tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES).close()
    found = read_profile(tmp_path / "j").tracker
    assert found is not None
    assert found.metadata.state is RunState.RUNNING
    assert found.metadata.snapshots_taken == 2
    wanted = profile().tracker
    assert wanted is not None
    assert found.snapshots == wanted.snapshots
    assert found.operation_allocations == wanted.operation_allocations
    assert found.operation_summary == wanted.operation_summary


def test_the_final_path_reads_its_journal_while_there_is_no_file(tmp_path: Path) -> None:
    written(tmp_path / "memory_profile_1.memprof.journal", ENTRIES).close()
    found = read_profile(tmp_path / "memory_profile_1.memprof")
    assert found.complete is False
    assert found.tracker is not None


def test_cut_anywhere_at_most_the_last_line_is_lost(tmp_path: Path) -> None:
    entries = [Entry(metadata=METADATA), *(Entry(snapshot=snapshot(i)) for i in range(20))]
    written(tmp_path / "j", entries).close()
    data = (tmp_path / "j").read_bytes()
    first = data.index(b"\n") + 1
    with pytest.raises(ProfileTruncatedError):
        decode_journal(data[: first - 1])
    for cut in range(first, len(data), 7):
        record = decode_journal(data[:cut]).tracker
        assert record is not None
        whole = data[:cut].count(b'"snapshot":{') - (not data[:cut].endswith(b"}\n"))
        assert len(record.snapshots) >= whole
        assert record.metadata.problems == []


def test_a_damaged_line_is_left_out_and_said(tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES).close()
    lines = (tmp_path / "j").read_bytes().split(b"\n")
    lines[2] = lines[2][:30]
    found = decode_journal(b"\n".join(lines))
    record = found.tracker
    assert record is not None
    assert [s.time_ns for s in record.snapshots] == [20]
    assert record.metadata.problems == ["1 lines of the journal are damaged and left out"]
    # AND it counts as left out, for whoever must not judge a file that lacks something
    assert found.left_out == record.metadata.problems


def test_what_a_reader_drops_of_whole_lines_is_said(tmp_path: Path) -> None:
    backwards = dataclasses.replace(METADATA, pauses=[Span(9, 5), Span(5, 9)])
    entries = [
        Entry(metadata=backwards),
        Entry(operations=[row(0, 1, 2, summary=3), row(1, 1, 2)]),
        Entry(summaries={0: OperationSummary("step")}),
    ]
    written(tmp_path / "j", entries).close()
    found = read_profile(tmp_path / "j")
    assert found.tracker is not None
    assert (len(found.tracker.operation_allocations), len(found.tracker.metadata.pauses)) == (1, 1)
    assert found.left_out == [
        "1 operations, whose names are in no line of the journal",
        "1 pauses of the tracker, which end before they start",
    ]
    # AND a journal that lacks nothing says nothing
    written(tmp_path / "k", ENTRIES).close()
    assert read_profile(tmp_path / "k").left_out == []


def test_writing_goes_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written(tmp_path / "j", ENTRIES[:2])
    real = os.write

    def half(file: int, data: bytes) -> int:
        if len(data) > 40:
            return real(file, bytes(data)[:40])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space"):
        journal.append(ENTRIES[2])
    monkeypatch.setattr(os, "write", real)
    journal.append(ENTRIES[3])
    journal.close()
    record = read_profile(tmp_path / "j").tracker
    assert record is not None
    assert len(record.snapshots) == 1
    assert len(record.operation_allocations) == 2
    assert record.metadata.problems == ["1 lines of the journal are damaged and left out"]


def test_it_is_written_anew_when_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "REWRITE_AT", 10_000)
    kept: list[Entry] = []
    journal = Journal(tmp_path / "j", Header(), lambda: kept)
    sizes = []
    for i in range(2000):
        kept.append(Entry(snapshot=snapshot(i)))
        del kept[:-10]
        journal.append(kept[-1])
        sizes.append(journal.size)
    journal.close()
    assert 5_000 < max(sizes) <= 10_000
    assert journal.size == (tmp_path / "j").stat().st_size
    record = read_profile(tmp_path / "j").tracker
    assert record is not None
    assert record.snapshots[-1].time_ns == 1999
    assert sorted(p.name for p in tmp_path.iterdir()) == ["j"]


def test_a_new_file_that_cannot_be_locked_takes_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a journal whose header says that it is locked
    monkeypatch.setattr(journal_module, "REWRITE_AT", 500)
    journal = Journal(tmp_path / "j", Header(), lambda: [Entry(snapshot=snapshot(9))])
    # WHEN somebody looks at the next one before its writer has the lock
    with monkeypatch.context() as patched:
        patched.setattr(journal_module, "try_lock", lambda fd: False)
        for i in range(10):
            journal.append(Entry(snapshot=snapshot(i)))
    # THEN the old one goes on, with every line
    assert [p.name for p in tmp_path.iterdir()] == ["j"]
    record = read_profile(tmp_path / "j").tracker
    assert record is not None
    assert [s.time_ns for s in record.snapshots] == [*range(10)]
    # AND it is written anew later, in a file that is locked
    for i in range(10, 40):
        journal.append(Entry(snapshot=snapshot(i)))
    record = read_profile(tmp_path / "j").tracker
    assert record is not None
    assert len(record.snapshots) < 20
    assert locked_by_another(str(tmp_path / "j"))
    journal.close()


def test_a_reader_thins_as_the_tracker_does(tmp_path: Path) -> None:
    entries = [
        Entry(snapshot=snapshot(i), operations=[row(i, i, i + 1)], summaries={}) for i in range(500)
    ]
    entries.append(Entry(metadata=METADATA, summaries={0: OperationSummary("step", count=500)}))
    written(tmp_path / "j", entries, Header(max_snapshots=30, max_operations=50)).close()
    record = read_profile(tmp_path / "j").tracker
    assert record is not None
    assert (len(record.snapshots), record.metadata.snapshots_taken) == (30, 500)
    assert (len(record.operation_allocations), record.metadata.operations_dropped) == (50, 450)


def test_snapshots_that_overtook_each_other_are_in_order(tmp_path: Path) -> None:
    written(tmp_path / "j", [Entry(snapshot=snapshot(t)) for t in (30, 10, 20)]).close()
    record = read_profile(tmp_path / "j").tracker
    assert record is not None
    assert [s.time_ns for s in record.snapshots] == [10, 20, 30]


def test_foreign_files_and_versions(tmp_path: Path) -> None:
    with pytest.raises(ProfileForeignError):
        decode_profile(b'{"format":"memprof-tracker-journals"}\n{}')
    journal = Journal(tmp_path / "j", Header(schema_version=9), list)
    journal.close()
    with pytest.raises(ProfileVersionError):
        read_profile(tmp_path / "j")


# Names


def test_two_trackers_in_one_second_get_two_names(tmp_path: Path) -> None:
    found = [files.open_journal(tmp_path, Header(), list) for _ in range(3)]
    for _, journal in found:
        journal.close()
    names = sorted(p.name for p, _ in found)
    assert len(set(names)) == 3
    assert all(n.startswith("memory_profile_2") and n.endswith(".memprof") for n in names)
