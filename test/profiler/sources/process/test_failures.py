"""What can go wrong around a tracker: a clear message, and the job goes on."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from in_threads import run_in_threads

import memprof
from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import Profile, SnapshotKind
from memprof.profiler.sources.process import (
    record_file,
    recorder as recorder_module,
    sources as sources_module,
)
from memprof.profiler.sources.process.operations import CURRENT
from memprof.profiler.sources.process.settings import SettingsError, TrackerSettings
from memprof.profiler.sources.process.tracker import MemoryTracker

from .processes import files, record, run


@pytest.fixture(autouse=True)
def stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("MEMPROF_"):
            monkeypatch.delenv(name)
    yield
    memprof.stop_tracking()


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "memprof"]


def test_a_folder_that_is_not_there(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    tracker = memprof.track(tmp_path / "nowhere", interval=60)
    with tracker.track_operation("work"):
        memprof.checkpoint("one")
    memprof.stop_tracking()
    first, last = messages(caplog)
    assert f"no file can be written in {tmp_path / 'nowhere'}: No such file or directory" in first
    assert "give another output_dir" in first
    assert "cannot write the tracker's record" in last
    assert tracker.record().operation_summary[0].count == 1


def test_a_folder_that_appears_later(tmp_path: Path) -> None:
    tracker = memprof.track(tmp_path / "later", interval=60)
    (tmp_path / "later").mkdir()
    memprof.stop_tracking()
    assert files(tmp_path / "later") == [tracker.path.name if tracker.path else None]


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A tmpfs, where we may mount one."""
    mount = ["mount", "-t", "tmpfs", "-o", options, "memprof-test", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except OSError:
        pytest.skip("no mount here")
    if done.returncode:
        pytest.skip("a file system can be mounted by root only")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_full_from_some_time_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    monkeypatch.setattr(record_file, "REST", 0)
    with mounted(folder, "size=128k"):
        tracker = memprof.track(folder, interval=60)
        memprof.checkpoint("before")
        with contextlib.suppress(OSError):
            (folder / "filler").write_bytes(b"x" * (1 << 20))
        for i in range(200):
            memprof.checkpoint(f"number {i}")
        assert len(tracker.record().snapshots) == 202
        (name,) = files(folder)
        # What reached the disk can be read; space comes back, and it goes on.
        found = read_profile(folder / name).tracker
        assert found is not None
        assert [s.name for s in found.snapshots] == ["", "before"]
        memprof.stop_tracking()
        assert files(folder) == [name]
        (folder / "filler").unlink()
        assert read_profile(folder / name).tracker is not None
    said = messages(caplog)
    assert len(said) == 2, said
    assert "No space left on device. The tracker keeps its record in memory" in said[0]
    assert "No space left on device. It has what was written before" in said[1]


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    program = """
        import resource
        from memprof.profiler.sources.process import record_file
        record_file.REST = 0
        tracker = memprof.track(interval=60)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, resource.RLIM_INFINITY))
        for i in range(100):
            memprof.checkpoint(str(i))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(len(tracker.record().snapshots))
        """
    done = run(program, tmp_path)
    assert (done.returncode, done.stdout) == (0, "101\n")
    assert done.stderr.count("File too large") == 1
    # The limit was gone at the end: nothing is lost.
    assert record(tmp_path).metadata.snapshots_taken == 102


def test_wrong_toml(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MEMPROF_LARGEST", "3")
    (tmp_path / "memprof.toml").write_text("[memprof]\nintervall = 1\n")
    tracker = memprof.track(interval=30)
    assert tracker.enabled
    assert tracker.settings.interval == 30
    (said,) = messages(caplog)
    assert f"{tmp_path / 'memprof.toml'}: [memprof]: there is no setting 'intervall'" in said
    assert "did you mean interval?" in said
    assert said.endswith("The tracker takes no setting from files and variables")
    assert tracker.settings.largest == 10


def test_wrong_arguments_are_the_callers_mistake() -> None:
    with pytest.raises(SettingsError, match=r"interval is -1: Expected `float` >= 0\.01"):
        memprof.track(interval=-1)
    assert not memprof.current_tracker().enabled


def test_a_second_tracker(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    first = memprof.track(tmp_path, interval=60)
    second = memprof.track(tmp_path, interval=5)
    assert second is first
    assert memprof.current_tracker() is first
    assert f"runs in this process already, into {first.path}" in messages(caplog)[0]
    memprof.stop_tracking()
    # WHEN it has stopped THEN it can start again, with settings and a file of its own
    path = first.path
    again = memprof.track(tmp_path, interval=30)
    assert (again.enabled, again.settings.interval) == (True, 30)
    assert again.path != path
    assert len(again.record().snapshots) == 1


def test_what_was_named_before_it_started_is_tracked_then(tmp_path: Path) -> None:
    @memprof.current_tracker().track_operation("early")
    def early() -> None:
        pass

    early()
    for count in (1, 2):
        tracker = memprof.track(tmp_path, interval=60)
        for _ in range(count):
            early()
        memprof.stop_tracking()
        assert [s.count for s in tracker.record().operation_summary] == [count]


def test_made_disabled_it_starts_when_enabled(tmp_path: Path) -> None:
    tracker = memprof.track(tmp_path, enabled=False, interval=60)
    assert not tracker.enabled
    memprof.stop_tracking()
    assert files(tmp_path) == []
    tracker.enable()
    assert tracker.enabled
    assert len(files(tmp_path)) == 1
    memprof.stop_tracking()
    assert record(tmp_path).metadata.settings["enabled"] == "true"


@pytest.mark.parametrize("interval", [0.01, 1_000_000.0])
def test_the_extreme_intervals_can_be_waited(interval: float, tmp_path: Path) -> None:
    tracker = memprof.track(tmp_path, interval=interval)
    memprof.stop_tracking()
    assert tracker.record().metadata.problems == []


def test_a_tracker_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(recorder_module.TrackerRecorder, "_open", broken)
    tracker = memprof.track(tmp_path)
    with tracker.track_operation("work"):
        memprof.checkpoint("x")
    assert not tracker.started
    assert messages(caplog) == [
        "The memory tracker cannot start, and stays off: ZeroDivisionError: inside"
    ]
    memprof.stop_tracking()
    monkeypatch.undo()
    assert memprof.track(tmp_path, interval=60).started


def test_a_thread_that_dies_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise OverflowError("timeout value is too large")

    monkeypatch.setattr(MemoryTracker, "_take_snapshots", broken)
    tracker = memprof.track(tmp_path)
    assert tracker._thread is not None
    tracker._thread.join(60)
    memprof.stop_tracking()
    assert "the tracker failed: OverflowError" in messages(caplog)[0]
    assert len(record(tmp_path).metadata.problems) == 1


def test_a_tracker_that_fails_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    tracker.start(thread=False)

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr(recorder_module, "take_snapshot", broken)
    for _ in range(3):
        tracker.checkpoint("x")
    tracker.stop()
    assert [m for m in messages(caplog) if "ZeroDivisionError: inside" in m] == messages(caplog)
    assert len(messages(caplog)) == 1
    found = record(tmp_path)
    assert found.metadata.problems == ["the tracker failed: ZeroDivisionError: inside"]
    assert [s.kind for s in found.snapshots] == [SnapshotKind.START]


@pytest.mark.parametrize(
    ("edge", "place"),
    [
        *itertools.product(
            ["begin", "end"],
            ["tensors.look", "devices.allocated_and_highest", "process.resident"],
        ),
        ("begin", "lanes.take"),
        ("end", "log._has_ended"),
    ],
)
def test_an_edge_that_fails_leaves_the_users_code_alone(
    edge: str, place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tracker = MemoryTracker(TrackerSettings(output_dir=str(tmp_path)))
    tracker.start(thread=False)
    log = tracker._recorder.operations
    owner, _, name = place.partition(".")
    parts = {n: getattr(log, n) for n in ("tensors", "process")}
    parts["devices"] = sources_module
    parts["lanes"] = log.lanes

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside")

    with tracker.track_operation("outer"):
        tracked = tracker.track_operation("inner")
        with monkeypatch.context() as patched:
            if edge == "begin":
                patched.setattr(parts.get(owner, log), name, broken)
            tracked.__enter__()
        with monkeypatch.context() as patched:
            if edge == "end":
                patched.setattr(parts.get(owner, log), name, broken)
            tracked.__exit__(None, None, None)
        # THEN the operation around it is the current one again
        current = CURRENT.get()
        assert current is not None
        assert current.name == "outer"
    assert CURRENT.get() is None
    found = tracker.record()
    tracker.stop()
    # AND the failure is said
    assert found.metadata.problems == ["the tracker failed: ZeroDivisionError: inside"]
    # AND figures are unknown where they are, never made up
    for operation in found.operation_summary:
        if operation.name == "inner" and place.endswith(("highest", "resident")):
            assert operation.devices == {}
        if operation.name == "inner" and place == "tensors.look":
            assert operation.tensors_measured == 0


def test_a_namer_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    from memprof.profiler.sources.process import naming

    def broken(_: object) -> None:
        raise KeyError("who")

    monkeypatch.setattr(naming, "_registered", None)
    naming.register(broken, lambda: (Profile(), {}))
    kept = torch.ones(10)
    tracker = memprof.track(tmp_path, interval=60)
    memprof.checkpoint("one")
    del kept
    assert [s.name for s in tracker.record().snapshots] == ["", "one"]
    assert any("naming a tensor failed: KeyError" in m for m in messages(caplog))


def test_snapshots_of_several_threads_at_once(tmp_path: Path) -> None:
    tracker = memprof.track(tmp_path, interval=0.01)
    run_in_threads(*4 * [lambda: [memprof.checkpoint("x") for _ in range(30)]])
    memprof.stop_tracking()
    found = record(tmp_path)
    assert sum(s.name == "x" for s in found.snapshots) == 120
    assert len(found.snapshots) == tracker.record().metadata.snapshots_taken
    assert found.metadata.problems == []
