"""A tracker's file: whole at the end, and while it grows or when its process was killed."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from pathlib import Path

import jsonschema
import pytest
from framing import findings, framed, packed, records_of, split
from fuzz.hostile_tracker import BAD_ENTRIES

from memprof.profiler.file.frames import Kind
from memprof.profiler.file.profile_file import (
    decode_profile,
    encode_profile,
    profile_schema,
    read_profile,
)
from memprof.profiler.file.tracker_fold import Entry, as_columns
from memprof.profiler.model import (
    Lane,
    LaneKind,
    OperationSummary,
    Profile,
    RunState,
    SnapshotKind,
    Span,
    TrackerMetadata,
    TrackerRecord,
)
from memprof.profiler.model.tracker import MAX_DEVICES
from memprof.profiler.sources.process import journal as journal_module
from memprof.profiler.sources.process.journal import Journal
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.tracker import MemoryTracker
from memprof.profiler.support.errors import (
    ProfileError,
    ProfileInvalidError,
    ProfileNotWritableError,
    ProfileTruncatedError,
    ProfileVersionError,
)
from memprof.profiler.support.json_text import to_json
from memprof.profiler.support.writing import is_locked

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
        (["metadata"], 3, "metadata"),
        (["snapshots", 0, "kind"], "odd", "snapshots[0].kind"),
        (["snapshots", 0, "time_ns"], "x", "snapshots[0].time_ns"),
    ],
)
def test_other_types_are_refused(path: list[str | int], value: object, where: str) -> None:
    with pytest.raises(ProfileInvalidError, match=re.escape(f"at `$.tracker.{where}`")):
        decode_profile(changed(path, value))


# The file while it grows


def written(path: Path, entries: list[Entry]) -> Journal:
    journal = Journal(path, "0.1.0", lambda: entries)
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


def tracked(data: Path | bytes) -> TrackerRecord:
    found = decode_profile(data) if isinstance(data, bytes) else read_profile(data)
    assert found.tracker is not None
    assert findings(found) == []
    return found.tracker


def test_it_reads_as_the_whole_file_would(tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES).close()
    found = read_profile(tmp_path / "j")
    assert (found.complete, found.left_out) == (False, [])
    record, wanted = tracked(tmp_path / "j"), profile().tracker
    assert record.metadata.state is RunState.RUNNING
    assert record.metadata.snapshots_taken == 2
    assert wanted is not None
    assert record.snapshots == wanted.snapshots
    assert record.operation_allocations == wanted.operation_allocations
    assert record.operation_summary == wanted.operation_summary


def test_cut_anywhere_at_most_the_last_entry_is_lost(tmp_path: Path) -> None:
    entries = [Entry(metadata=METADATA), *(Entry(snapshot=snapshot(i)) for i in range(20))]
    written(tmp_path / "j", entries).close()
    data = (tmp_path / "j").read_bytes()
    frames = split(data)
    with pytest.raises(ProfileTruncatedError):
        decode_profile(data[: len(frames[0]) - 1])
    for cut in range(len(b"".join(frames[:2])), len(data), 7):
        found = decode_profile(data[:cut])
        whole = sum(len(b"".join(frames[:i])) <= cut for i in range(1, len(frames) + 1))
        assert found.tracker is not None
        assert len(found.tracker.snapshots) == whole - 2
        assert found.left_out == []


def test_a_damaged_entry_ends_what_is_read_and_is_said(tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES).close()
    frames = split((tmp_path / "j").read_bytes())
    found = decode_profile(b"".join([*frames[:3], frames[3][:-1] + b"x", *frames[4:]]))
    assert found.tracker is not None
    assert [s.time_ns for s in found.tracker.snapshots] == [10]
    # AND it counts as left out, for whoever must not judge a file that lacks something
    assert "checksum" in found.left_out[0]


@pytest.mark.parametrize("name", BAD_ENTRIES)
def test_an_entry_that_no_tracker_writes_costs_none_before_it(name: str, tmp_path: Path) -> None:
    written(tmp_path / "j", ENTRIES).close()
    records = records_of((tmp_path / "j").read_bytes())
    found = decode_profile(packed([*records, (Kind.TRACKER, BAD_ENTRIES[name]()), *records[1:]]))
    assert found.tracker is not None
    assert [s.time_ns for s in found.tracker.snapshots] == [10, 20]
    assert len(found.tracker.operation_allocations) == 2
    assert len(found.left_out) == 1
    assert "not what it should be" in found.left_out[0]


def test_a_snapshot_has_no_more_devices_than_a_machine(tmp_path: Path) -> None:
    # A device has five bytes of JSON and two hundred of memory.
    many = {"snapshot": {"time_ns": 15, "devices": {f"{i}": {} for i in range(MAX_DEVICES + 1)}}}
    written(tmp_path / "j", ENTRIES).close()
    records = records_of((tmp_path / "j").read_bytes())
    entry = (Kind.TRACKER, json.dumps(many).encode())
    assert [s.time_ns for s in tracked(packed([*records, entry])).snapshots] == [10, 20]


def test_a_lost_entry_costs_what_refers_to_it_its_name_alone(tmp_path: Path) -> None:
    # GIVEN that the entries with the lanes and the first place were lost
    operation = dataclasses.replace(row(0, 1, 2, summary=3), lane=2)
    summaries = {3: OperationSummary("kept", 9), 2: OperationSummary("b", 1)}
    written(tmp_path / "j", [Entry(operations=[operation]), Entry(summaries=summaries)]).close()
    record = tracked(tmp_path / "j")
    assert [s.name for s in record.operation_summary] == ["(lost)", "(lost)", "b", "kept"]
    assert [record.path(i) for i in range(4)] == ["(lost)", "(lost)", "(lost)/b", "kept"]
    assert record.operation_allocations.lane == [2]
    assert [lane.name for lane in record.metadata.lanes] == ["(lost)"] * 3


def test_what_a_reader_drops_of_whole_entries_is_said(tmp_path: Path) -> None:
    backwards = dataclasses.replace(METADATA, pauses=[Span(9, 5), Span(5, 9)])
    entries = [
        Entry(metadata=backwards),
        Entry(operations=[row(0, 1, 2, summary=3), row(1, 1, 2)]),
        Entry(summaries={0: OperationSummary("step")}),
    ]
    written(tmp_path / "j", entries).close()
    record = tracked(tmp_path / "j")
    assert (len(record.operation_allocations), len(record.metadata.pauses)) == (1, 1)
    assert read_profile(tmp_path / "j").left_out == [
        "1 operations, whose names are in no part of the file",
        "1 pauses of the tracker, which end before they start",
    ]


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
    record = tracked(tmp_path / "j")
    assert len(record.snapshots) == 1
    assert len(record.operation_allocations) == 2
    # AND what was written of the one that failed is not there any more
    assert read_profile(tmp_path / "j").left_out == []


def test_it_is_written_anew_when_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "REWRITE_AT", 10_000)
    kept: list[Entry] = []
    journal = Journal(tmp_path / "j", "", lambda: kept)
    sizes = []
    for i in range(2000):
        kept.append(Entry(snapshot=snapshot(i)))
        del kept[:-10]
        journal.append(kept[-1])
        sizes.append(journal.size)
    assert 5_000 < max(sizes) <= 10_000
    assert journal.size == (tmp_path / "j").stat().st_size
    # AND nobody else writes to the new one
    assert is_locked(str(tmp_path / "j"))
    journal.close()
    found = read_profile(tmp_path / "j")
    assert found.left_out == []
    assert found.tracker is not None
    assert found.tracker.snapshots[-1].time_ns == 1999
    assert sorted(p.name for p in tmp_path.iterdir()) == ["j"]


def test_it_goes_on_where_it_cannot_be_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "REWRITE_AT", 500)
    journal = Journal(tmp_path / "j", "", lambda: [Entry(snapshot=snapshot(99))])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    failed = 0
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        for i in range(10):
            try:
                journal.append(Entry(snapshot=snapshot(i)))
            except OSError:
                failed += 1
    assert 0 < failed < 10
    assert [p.name for p in tmp_path.iterdir()] == ["j"]
    assert [s.time_ns for s in tracked(tmp_path / "j").snapshots] == [*range(10)]
    assert read_profile(tmp_path / "j").left_out == []
    # AND it is written anew later
    for i in range(10, 40):
        journal.append(Entry(snapshot=snapshot(i)))
    assert len(tracked(tmp_path / "j").snapshots) < 20
    journal.close()


@pytest.mark.parametrize(
    ("stated", "snapshots", "operations"),
    [
        ({"max_snapshots": "30", "max_operations": "50"}, 30, 50),
        ({"max_snapshots": "0", "max_operations": "-5"}, 10, 0),
        ({"max_snapshots": "9" * 30, "max_operations": "9" * 5_000}, 500, 500),
        ({"max_snapshots": "many"}, 500, 500),
    ],
)
def test_a_reader_thins_as_the_tracker_does(
    stated: dict[str, str], snapshots: int, operations: int, tmp_path: Path
) -> None:
    entries = [
        Entry(snapshot=snapshot(i), operations=[row(i, i, i + 1)], summaries={}) for i in range(500)
    ]
    metadata = dataclasses.replace(METADATA, settings=stated)
    entries.append(Entry(metadata=metadata, summaries={0: OperationSummary("step", count=500)}))
    written(tmp_path / "j", entries).close()
    record = tracked(tmp_path / "j")
    assert (len(record.snapshots), record.metadata.snapshots_taken) == (snapshots, 500)
    assert len(record.operation_allocations) == operations
    assert record.metadata.operations_dropped == 500 - operations


def test_snapshots_that_overtook_each_other_are_in_order(tmp_path: Path) -> None:
    written(tmp_path / "j", [Entry(snapshot=snapshot(t)) for t in (30, 10, 20)]).close()
    assert [s.time_ns for s in tracked(tmp_path / "j").snapshots] == [10, 20, 30]


def test_kinds_of_snapshots_survive(tmp_path: Path) -> None:
    named = snapshot(5, kind=SnapshotKind.CHECKPOINT, name="epoch 1")
    written(tmp_path / "j", [Entry(snapshot=named)]).close()
    assert tracked(tmp_path / "j").snapshots == [named]


# Whose file it is


def test_two_trackers_in_one_second_get_two_names(tmp_path: Path) -> None:
    found = [journal_module.open_journal(tmp_path, "", list) for _ in range(3)]
    for journal in found:
        journal.close()
    names = sorted(j.path.name for j in found)
    assert len(set(names)) == 3
    assert all(n.startswith("memory_profile_2") and n.endswith(".memprof") for n in names)


@pytest.mark.parametrize("now", ["link", "dangling", "file", "nothing"])
def test_the_end_of_a_tracker_replaces_nothing(now: str, tmp_path: Path) -> None:
    # GIVEN something else at the name of a tracker that runs
    tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    tracker.start(thread=False)
    assert tracker.path is not None
    given, victim = tracker.path, tmp_path / "victim"
    given.unlink()
    if now == "file":
        given.write_bytes(b"precious")
    elif now != "nothing":
        given.symlink_to(victim)
    if now == "link":
        victim.write_bytes(b"precious")
    tracker.stop()
    # THEN the record gets another one
    beside = given.with_name(f"{given.stem}.{os.getpid()}.memprof")
    assert tracker.path == (given if now == "nothing" else beside)
    assert read_profile(tracker.path).complete
    assert now != "file" or given.read_bytes() == b"precious"
    assert victim.exists() == (now == "link")
    assert now != "link" or victim.read_bytes() == b"precious"


def test_the_end_puts_the_whole_file_in_the_place_of_the_growing_one(tmp_path: Path) -> None:
    journal = written(tmp_path / "j", ENTRIES)
    assert journal.finish(encode_profile(profile()))
    journal.close()
    assert read_profile(tmp_path / "j").complete
    assert not is_locked(str(tmp_path / "j"))
    assert [p.name for p in tmp_path.iterdir()] == ["j"]


def test_an_end_that_cannot_be_written_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = written(tmp_path / "j", ENTRIES)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(ProfileNotWritableError, match="No space left on device"):
            journal.finish(b"the end")
    journal.append(Entry(snapshot=snapshot(30)))
    journal.close()
    assert [s.time_ns for s in tracked(tmp_path / "j").snapshots] == [10, 20, 30]
    assert [p.name for p in tmp_path.iterdir()] == ["j"]


def test_writing_anew_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN links at every name that could be foreseen
    (tmp_path / "victim").write_bytes(b"precious")
    path = tmp_path / "memory_profile_1.memprof"
    (tmp_path / f".{path.name}.tmp").symlink_to(tmp_path / "victim")
    monkeypatch.setattr(journal_module, "REWRITE_AT", 500)
    journal = Journal(path, "", lambda: [Entry(snapshot=snapshot(9))])
    made: list[str] = []
    real = os.open

    def noted(name: object, flags: int, *mode: int) -> int:
        if str(name).endswith(".tmp"):
            made.append(os.path.basename(str(name)))
            assert flags & os.O_EXCL
        return real(name, flags, *mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", noted)
    for i in range(40):
        journal.append(Entry(snapshot=snapshot(i)))
    journal.close()
    assert len(set(made)) == len(made) > 1
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert stat.S_ISREG(path.lstat().st_mode)


def test_free_names_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "names_beside", lambda path: iter([path]))
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(ProfileError, match="all names beside it are taken"):
        journal_module.write_record(tmp_path / "x", b"data")
