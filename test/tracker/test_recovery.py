"""What killed trackers left behind, in folders that anybody may write."""

from __future__ import annotations

import dataclasses
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fuzz.hostile_tracker import BAD_LINES

from memprof.profiler.errors import ProfileError
from memprof.profiler.file import decode_profile, read_profile
from memprof.profiler.model import Lane, LaneKind, OperationSummary, SnapshotKind, TrackerMetadata
from memprof.profiler.tracker import files, read_journal, recovery
from memprof.profiler.tracker import journal as journal_module
from memprof.profiler.tracker.journal import Entry, Header, Journal
from memprof.profiler.tracker.recovery import recover
from memprof.profiler.tracker.settings import TrackerSettings
from memprof.profiler.tracker.tracker import MemoryTracker
from memprof.profiler.tracker.writer import Writer, started, this_process

from .records import row, snapshot

NAME = "memory_profile_1.memprof"
ENTRIES = [
    Entry(metadata=TrackerMetadata(lanes=[Lane(LaneKind.THREAD, "main", 0)], end_ns=40)),
    Entry(snapshot=snapshot(10), operations=[row(0, 10, 30), row(1, 12, 20, 0, 1)]),
    Entry(snapshot=snapshot(20, highest=7)),
    Entry(summaries={0: OperationSummary("step"), 1: OperationSummary("forward", 0)}),
]


def dead_process() -> Writer:
    """A process of this machine that has ended."""
    pid = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=-1)
    return dataclasses.replace(this_process(), pid=int(pid.stdout), started=0)


@pytest.fixture(scope="module")
def dead() -> Header:
    return Header(memprof="0.1.0", writer=dead_process())


def left(folder: Path, header: Header, name: str = NAME) -> Path:
    """A journal that nobody writes any more."""
    path = folder / f"{name}.journal"
    journal = Journal(path, header, list)
    for entry in ENTRIES:
        journal.append(entry)
    journal.close()
    return path


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# Whose journal it is


def test_what_a_killed_process_left_becomes_a_file(tmp_path: Path, dead: Header) -> None:
    left(tmp_path, dead)
    assert recover(tmp_path) == [tmp_path / NAME]
    assert names(tmp_path) == [NAME]
    found = read_profile(tmp_path / NAME)
    assert found.tracker is not None
    assert found.complete is False
    assert len(found.tracker.snapshots) == 2


HERE = this_process()
PARENT = dataclasses.replace(HERE, pid=os.getppid(), started=started(os.getppid()))


@pytest.mark.parametrize(
    "writer",
    [
        HERE,
        PARENT,
        dataclasses.replace(PARENT, started=0),
        dataclasses.replace(HERE, pid=0),
        Writer(HERE.host, "another start of this machine", HERE.namespace, 2_000_000_000, 1),
        Writer("elsewhere", "", 0, 2_000_000_000, 1),
        Writer(),
    ],
)
def test_what_may_still_be_written_is_left_alone(tmp_path: Path, writer: Writer) -> None:
    path = left(tmp_path, Header(writer=writer))
    assert recover(tmp_path) == []
    assert names(tmp_path) == [path.name]


@pytest.mark.skipif(not started(os.getpid()), reason="needs /proc")
def test_a_process_number_that_is_used_again(tmp_path: Path) -> None:
    left(tmp_path, Header(writer=dataclasses.replace(PARENT, started=PARENT.started - 1)))
    assert len(recover(tmp_path)) == 1


def test_a_journal_that_is_locked_is_being_written(tmp_path: Path, dead: Header) -> None:
    # GIVEN a process that lives though its number says that it does not
    journal = Journal(tmp_path / f"{NAME}.journal", dead, list)
    assert recover(tmp_path) == []
    journal.close()
    assert recover(tmp_path) == [tmp_path / NAME]


def test_a_journal_of_another_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the number of no process here, in a namespace that is another one
    writer = dataclasses.replace(HERE, namespace=HERE.namespace + 1, pid=2_000_000_000)
    path = left(tmp_path, Header(writer=writer))
    # THEN the lock decides: it was had, and nobody has it now
    monkeypatch.setattr(recovery, "left_behind", lambda *_: False)
    assert recover(tmp_path) == []
    monkeypatch.undo()
    header = msgspec.json.decode(path.read_bytes().split(b"\n")[0], type=Header)
    assert header.locked
    assert len(recover(tmp_path)) == 1
    # AND where it could not be had nobody knows
    monkeypatch.setattr(journal_module, "try_lock", lambda fd: None)
    left(tmp_path, Header(writer=writer), "memory_profile_2.memprof")
    assert recover(tmp_path) == []


TRACKED = """
import memprof
memprof.track(interval=60)
print("tracked", flush=True)
input()
"""


def test_a_live_tracker_in_another_namespace_keeps_its_journal(tmp_path: Path) -> None:
    # GIVEN a container in this folder, with the same host name
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode:
        pytest.skip("no PID namespaces here")
    pipe = subprocess.PIPE
    container = subprocess.Popen(
        [*unshare, sys.executable, "-c", TRACKED],
        cwd=tmp_path,
        stdin=pipe,
        stdout=pipe,
        text=True,
    )
    try:
        assert container.stdout is not None
        assert container.stdout.readline() == "tracked\n"
        (journal,) = names(tmp_path)
        header = read_journal.decode_header(
            (tmp_path / journal).read_bytes().split(b"\n")[0] + b"\n"
        )
        assert header.writer.host == HERE.host
        assert header.writer.namespace != HERE.namespace
        # WHEN a tracker starts here
        assert recover(tmp_path) == []
        assert names(tmp_path) == [journal]
    finally:
        container.communicate("\n")
    # THEN the other one has its record
    (name,) = names(tmp_path)
    assert name == journal.removesuffix(".journal")
    assert read_profile(tmp_path / name).complete


# What it says


def test_damaged_journals_are_left_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, dead: Header
) -> None:
    (tmp_path / "memory_profile_0.memprof.journal").write_bytes(b"hello\x1b[31m\n")
    left(tmp_path, dead)
    # THEN one that is damaged does not keep the next one from being recovered
    assert recover(tmp_path) == [tmp_path / NAME]
    assert "not a tracker's journal" in caplog.text
    assert "\x1b" not in caplog.text


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")


HOSTILE = {
    "no room": b'{"max_snapshots":0,"max_operations":-5}',
    "room for one": b'{"max_snapshots":1,"max_operations":1}',
    "endless room": b'{"max_snapshots":9223372036854775807,"max_operations":9223372036854775807}',
}


@pytest.mark.parametrize("limits", HOSTILE)
def test_limits_that_no_tracker_has(limits: str, tmp_path: Path, dead: Header) -> None:
    path = left(tmp_path, dead)
    first, *rest = lines(path)
    header = {**msgspec.json.decode(first), **msgspec.json.decode(HOSTILE[limits])}
    more = [
        msgspec.json.encode(Entry(snapshot=snapshot(i), operations=[row(i, i, i + 1)]))
        for i in range(100, 160)
    ]
    path.write_bytes(b"\n".join([msgspec.json.encode(header), *rest[:-1], *more, b""]))
    # THEN it ends, with what the settings allow
    assert recover(tmp_path) == [tmp_path / NAME]
    record = read_profile(tmp_path / NAME).tracker
    assert record is not None
    assert len(record.snapshots) == (62 if limits == "endless room" else 10)
    assert record.metadata.snapshots_taken == 62


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_that_no_tracker_writes_costs_no_other(
    line: str, tmp_path: Path, dead: Header
) -> None:
    path = left(tmp_path, dead)
    head, rest = lines(path)[0], lines(path)[1:]
    path.write_bytes(b"\n".join([head, BAD_LINES[line](), *rest]))
    assert recover(tmp_path) == [tmp_path / NAME]
    found = read_profile(tmp_path / NAME)
    record = found.tracker
    assert record is not None
    assert [s.time_ns for s in record.snapshots] == [10, 20]
    assert len(record.operation_allocations) == 2
    assert record.metadata.problems == ["1 lines of the journal are damaged and left out"]
    assert found.left_out == record.metadata.problems


def test_a_lost_line_costs_what_refers_to_it_its_name_alone(tmp_path: Path, dead: Header) -> None:
    # GIVEN that the lines with the lanes and the first place were lost
    journal = Journal(tmp_path / f"{NAME}.journal", dead, list)
    journal.append(Entry(operations=[dataclasses.replace(row(0, 1, 2, summary=3), lane=2)]))
    journal.append(Entry(summaries={3: OperationSummary("kept", 9), 2: OperationSummary("b", 1)}))
    journal.close()
    recover(tmp_path)
    record = read_profile(tmp_path / NAME).tracker
    assert record is not None
    assert [s.name for s in record.operation_summary] == ["(lost)", "(lost)", "b", "kept"]
    assert [record.path(i) for i in range(4)] == ["(lost)", "(lost)", "(lost)/b", "kept"]
    assert record.operation_allocations.lane == [2]
    assert [lane.name for lane in record.metadata.lanes] == ["(lost)"] * 3


def test_a_record_that_could_not_be_read_keeps_its_journal(
    tmp_path: Path, dead: Header, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN an encoder that writes what nobody reads
    path = left(tmp_path, dead)
    monkeypatch.setattr(recovery, "encode_profile", lambda profile: b"\x93mpf")
    assert recover(tmp_path) == []
    assert names(tmp_path) == [path.name]
    assert "stays as it is" in caplog.text


@pytest.mark.parametrize(
    "error", [IndexError, RecursionError, OverflowError, UnicodeDecodeError, MemoryError]
)
def test_one_journal_does_not_stop_the_others(
    error: type[Exception], tmp_path: Path, dead: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(tmp_path, dead, "memory_profile_1.memprof")
    left(tmp_path, dead, "memory_profile_2.memprof")
    real, calls = recovery.read_journal, []

    def once(file: object, **more: object) -> object:
        calls.append(file)
        if len(calls) == 1:
            raise error(*(("utf-8", b"", 0, 1, "x") if error is UnicodeDecodeError else ("x",)))
        return real(file, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(recovery, "read_journal", once)
    assert recover(tmp_path) == [tmp_path / "memory_profile_2.memprof"]
    assert names(tmp_path) == ["memory_profile_1.memprof.journal", "memory_profile_2.memprof"]


def test_no_more_is_read_than_a_start_can_bear(
    tmp_path: Path, dead: Header, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [left(tmp_path, dead, f"memory_profile_{i}.memprof") for i in range(1, 5)]
    size = paths[0].stat().st_size
    monkeypatch.setattr(recovery, "MAX_BYTES", 2 * size)
    monkeypatch.setattr(recovery, "MAX_JOURNALS", 3)
    assert len(recover(tmp_path)) == 2
    assert "are too much to read now; `memprof report` reads it" in caplog.text
    assert len(recover(tmp_path)) == 2


def test_journals_that_are_not_recovered_do_not_keep_others_from_it(
    tmp_path: Path, dead: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN journals of another host, or from before this one was started again
    elsewhere = Header(writer=Writer("elsewhere", "another start", 1, 2_000_000_000, 1))
    for i in range(1, 5):
        left(tmp_path, elsewhere, f"memory_profile_{i}.memprof")
    (tmp_path / "memory_profile_5.memprof.journal").symlink_to(tmp_path / "nowhere")
    left(tmp_path, dead, "memory_profile_6.memprof")
    left(tmp_path, dead, "memory_profile_7.memprof")
    monkeypatch.setattr(recovery, "MAX_JOURNALS", 1)
    # THEN only those count that are read
    assert recover(tmp_path) == [tmp_path / "memory_profile_6.memprof"]
    # AND no start looks at names without end
    monkeypatch.setattr(recovery, "MAX_LOOKED", 5)
    assert recover(tmp_path) == []
    monkeypatch.undo()
    assert recover(tmp_path) == [tmp_path / "memory_profile_7.memprof"]


@pytest.mark.parametrize("change", ["replaced", "linked"])
def test_what_a_journal_is_may_change_until_it_is_locked(
    change: str, tmp_path: Path, dead: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a writer that puts a shorter journal in the place of this one as it is being opened
    path = left(tmp_path, dead)
    real = recovery.try_lock

    def locked(fd: int) -> bool | None:
        if change == "linked":
            os.link(path, tmp_path / "another name")
        else:
            path.with_suffix(".new").write_bytes(path.read_bytes())
            path.with_suffix(".new").rename(path)
        return real(fd)

    monkeypatch.setattr(recovery, "try_lock", locked)
    assert recover(tmp_path) == []
    assert path.exists()
    assert not (tmp_path / NAME).exists()


def test_no_more_figures_are_kept_than_a_start_can_bear(
    tmp_path: Path, dead: Header, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = left(tmp_path, dead)
    monkeypatch.setattr(recovery, "MAX_FIGURES", 5)
    assert recover(tmp_path) == []
    assert "ProfileTooLargeError: more than 5 figures" in caplog.text
    monkeypatch.undo()
    # A snapshot for each device that has five bytes of JSON and two hundred of memory.
    many = {f"{i}": {} for i in range(read_journal.MAX_DEVICES + 1)}
    line = msgspec.json.encode({"snapshot": {"time_ns": 15, "devices": many}})
    head, rest = lines(path)[0], lines(path)[1:]
    path.write_bytes(b"\n".join([head, line, *rest]))
    recover(tmp_path)
    record = read_profile(tmp_path / NAME).tracker
    assert record is not None
    assert [s.time_ns for s in record.snapshots] == [10, 20]


# Whose file it is


def test_links_pipes_and_files_of_others_are_not_looked_at(
    tmp_path: Path, dead: Header, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    target = left(elsewhere, dead)
    content = target.read_bytes()
    (folder / "memory_profile_1.memprof.journal").symlink_to(target)
    os.link(target, folder / "memory_profile_2.memprof.journal")
    os.mkfifo(folder / "memory_profile_3.memprof.journal")
    (folder / "memory_profile_4.memprof.journal").mkdir()
    (folder / "memory_profile_5.memprof.journal").symlink_to("/dev/zero")
    before = names(folder)
    assert recover(folder) == []
    assert names(folder) == before
    assert target.read_bytes() == content
    # AND one of another user's
    left(folder, dead, "memory_profile_6.memprof")
    if hasattr(os, "geteuid"):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert recover(folder) == []
        monkeypatch.undo()
    assert recover(folder) == [folder / "memory_profile_6.memprof"]


@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_nothing_is_replaced_and_no_link_followed(kind: str, tmp_path: Path, dead: Header) -> None:
    # GIVEN that something has the final name
    victim = tmp_path / "victim"
    if kind != "dangling":
        victim.write_bytes(b"precious")
    path = left(tmp_path, dead)
    if kind == "file":
        (tmp_path / NAME).write_bytes(b"finished")
    else:
        (tmp_path / NAME).symlink_to(victim)
    # THEN the record gets another one
    (final,) = recover(tmp_path)
    assert final == tmp_path / f"memory_profile_1.{os.getpid()}.memprof"
    assert read_profile(final).tracker is not None
    assert not path.exists()
    if kind == "file":
        assert (tmp_path / NAME).read_bytes() == b"finished"
    assert victim.exists() == (kind != "dangling")
    assert kind == "dangling" or victim.read_bytes() == b"precious"


def test_the_end_of_a_tracker_replaces_nothing(tmp_path: Path) -> None:
    # GIVEN a link at the final name of a tracker that runs
    tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    tracker.start(thread=False)
    assert tracker.path is not None
    given = tracker.path
    (tmp_path / "victim").write_bytes(b"precious")
    given.symlink_to(tmp_path / "victim")
    tracker.stop()
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert tracker.path == given.with_name(f"{given.stem}.{os.getpid()}.memprof")
    assert read_profile(tracker.path).complete


def test_writing_anew_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN links at every name that could be foreseen
    (tmp_path / "victim").write_bytes(b"precious")
    path = tmp_path / f"{NAME}.journal"
    (tmp_path / f".{path.name}.tmp").symlink_to(tmp_path / "victim")
    monkeypatch.setattr(journal_module, "REWRITE_AT", 500)
    journal = Journal(path, Header(), lambda: [Entry(snapshot=snapshot(9))])
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


def test_what_was_being_written_anew_when_it_was_killed_is_removed(
    tmp_path: Path, dead: Header
) -> None:
    path = left(tmp_path, dead)
    unfinished = tmp_path / f".{path.name}.0123456789abcdef.tmp"
    unfinished.write_bytes(path.read_bytes()[:-20])
    live = Journal(tmp_path / f".{path.name}.00000000.tmp", dead, list)
    assert recover(tmp_path) == [tmp_path / NAME]
    assert names(tmp_path) == sorted([NAME, live.path.name])
    live.close()


def test_names_that_no_tracker_gives_are_not_looked_at(tmp_path: Path, dead: Header) -> None:
    left(tmp_path, dead, "memory_profile_\x1b[31m.memprof")
    assert recover(tmp_path) == []
    assert recover(tmp_path / "nowhere") == []


def test_a_journal_from_before_writers_were_known_is_read_and_left(tmp_path: Path) -> None:
    path = left(tmp_path, Header())
    head, rest = lines(path)[0], lines(path)[1:]
    old = {**msgspec.json.decode(head), "host": HERE.host, "pid": 2_000_000_000, "started": 1}
    del old["writer"], old["locked"]
    path.write_bytes(b"\n".join([msgspec.json.encode(old), *rest]))
    assert recover(tmp_path) == []
    assert decode_profile(path.read_bytes()).tracker is not None


def test_free_names_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "names_beside", lambda path: iter([path]))
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(ProfileError, match="all names beside it are taken"):
        files.write_record(tmp_path / "x", b"data")


def test_kinds_of_snapshots_survive(tmp_path: Path, dead: Header) -> None:
    journal = Journal(tmp_path / f"{NAME}.journal", dead, list)
    journal.append(Entry(snapshot=snapshot(5, kind=SnapshotKind.CHECKPOINT, name="epoch 1")))
    journal.close()
    recover(tmp_path)
    record = read_profile(tmp_path / NAME).tracker
    assert record is not None
    assert [(s.kind, s.name) for s in record.snapshots] == [(SnapshotKind.CHECKPOINT, "epoch 1")]
