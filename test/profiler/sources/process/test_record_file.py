"""A tracker's file: whole at the end, and at any time before."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from framing import decode_profile

from memprof.profiler.file.profile_file import (
    encode_profile,
    read_profile,
)
from memprof.profiler.model import (
    Profile,
    SnapshotKind,
)
from memprof.profiler.sources.process import record_file
from memprof.profiler.sources.process.record_file import RecordFile
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.tracker import MemoryTracker
from memprof.profiler.support.errors import ProfileInvalidError
from memprof.profiler.support.writing import is_locked


def test_a_file_of_memprof_0_1_0_is_refused_by_name() -> None:
    with pytest.raises(ProfileInvalidError, match=r"a file of memprof 0\.1\.0"):
        decode_profile(b'{"format":"memprof-tracker","schema_version":1,"created_ns":0}')


# The file of a tracker that runs


def test_it_is_whole_and_locked_however_often_it_is_written(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "j")
    for i in range(3):
        data = encode_profile(Profile(created_ns=i))
        assert file.write(data, sync=i == 2)
        assert (tmp_path / "j").read_bytes() == data
        assert is_locked(str(tmp_path / "j"))
        assert [p.name for p in tmp_path.iterdir()] == ["j"]
    file.close()
    assert not is_locked(str(tmp_path / "j"))


def test_writing_goes_on_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RecordFile(tmp_path / "j")
    assert file.write(b"before")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            file.write(b"lost")
    assert [p.name for p in tmp_path.iterdir()] == ["j"]
    assert (tmp_path / "j").read_bytes() == b"before"
    assert file.write(b"after")
    assert (tmp_path / "j").read_bytes() == b"after"
    file.close()


def test_a_large_record_is_not_written_with_each_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(RecordFile, "write", lambda self, data, **_: not written.append(len(data)))
    for rest, most in ((0, 11), (10**6, 1)):
        written.clear()
        monkeypatch.setattr(record_file, "REST", rest)
        tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
        tracker.start(thread=False)
        for _ in range(10):
            tracker.snapshot(SnapshotKind.PERIODIC)
        assert len(written) == most
        tracker.stop()


def test_a_write_within_a_write_is_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a signal's handler that writes, before the file of the write around it is there or after
    for step in ("write_all", "replace"):
        file = RecordFile(tmp_path / step)
        owner = os if step == "replace" else record_file
        real = getattr(owner, step)

        def interrupted(
            *args: object, step: str = step, real: Callable[..., object] = real
        ) -> None:
            real(*args)
            monkeypatch.undo()
            assert file.write(b"inner", sync=True)  # noqa: B023

        monkeypatch.setattr(owner, step, interrupted)
        with contextlib.suppress(FileNotFoundError):
            file.write(b"outer")
        # THEN its record stands, no other file is left, and the file can be written again
        assert (tmp_path / step).read_bytes() == b"inner"
        assert file.write(b"after")
        assert is_locked(str(tmp_path / step))
        file.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["replace", "write_all"]


def test_who_may_read_the_file_may_read_the_next(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "j")
    for mode in (0o600, 0o640):
        file.path.chmod(mode)
        for sync in (False, True):
            assert file.write(b"data", sync=sync)
            assert stat.S_IMODE(file.path.stat().st_mode) == mode
    file.close()


def test_time_by_the_clock_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a slow disk
    written: list[str] = []
    monkeypatch.setattr(
        RecordFile, "write", lambda *_, **__: not written.append("") and not sleep()
    )

    def sleep() -> None:
        time.sleep(0.2)

    tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    tracker.start(thread=False)
    # WHEN a hundred times the processor's time, not a hundred times 0.2 s, have passed
    time.sleep(0.5)
    tracker.checkpoint("x")
    # THEN nothing is written
    assert len(written) == 1
    tracker.stop()


# Whose file it is


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


def test_writing_anew_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN links at every name that could be foreseen
    (tmp_path / "victim").write_bytes(b"precious")
    path = tmp_path / "memory_profile_1.memprof"
    (tmp_path / f".{path.name}.tmp").symlink_to(tmp_path / "victim")
    file = RecordFile(path)
    made: list[str] = []
    real = os.open

    def noted(name: object, flags: int, *mode: int) -> int:
        if str(name).endswith(".tmp"):
            made.append(os.path.basename(str(name)))
            assert flags & os.O_EXCL
        return real(name, flags, *mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", noted)
    for _ in range(4):
        file.write(b"data")
    file.close()
    assert len(set(made)) == len(made) == 4
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert stat.S_ISREG(path.lstat().st_mode)


def test_free_names_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "names_beside", lambda path: iter([path]))
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(FileExistsError, match="all names beside it are taken"):
        record_file.write_record(tmp_path / "x", b"data")
