"""``memprof.profile("x.memprof")``: the file grows with the run and survives its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import memprof
import memprof.streaming
from memprof.compile_backend.runtime import RUNTIME
from memprof.profiler.errors import ProfileNotWritableError
from memprof.profiler.file import encode_profile, read_profile
from memprof.profiler.model import Profile


def step() -> object:
    torch.manual_seed(0)
    model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), backend="memprof")
    x = torch.ones(2, 8)

    def run() -> None:
        model(x).sum().backward()

    return run


def test_a_streamed_session_is_the_same_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a session that is streamed in many chunks, inside one that is not
    monkeypatch.setattr(memprof.streaming, "TICK_S", 0.005)
    monkeypatch.setattr(memprof.streaming, "FLUSH_S", 0.0)
    with memprof.profile() as plain, memprof.profile(tmp_path / "run.memprof") as streamed:
        run = step()
        for _ in range(300):
            run()  # type: ignore[operator]
        middle = streamed.profile()
    # THEN both have the same calls, graphs and ledger
    found = read_profile(tmp_path / "run.memprof")
    expected = plain.profile()
    assert len(found.calls) == 600
    assert found.calls == expected.calls
    assert found.graphs == expected.graphs
    assert found.ledger == expected.ledger
    assert found.complete
    # AND on the way the file was readable, and what it had was the beginning
    assert not middle.complete
    n = len(middle.calls)
    assert middle.calls.start_ns == expected.calls.start_ns[:n]
    assert n == 600
    # AND it is what is said of the session
    assert streamed.profile() == found
    assert encode_profile(streamed.profile()) == encode_profile(found)


KILLED = """
import sys, time, torch, memprof, memprof.streaming
memprof.streaming.TICK_S, memprof.streaming.FLUSH_S = 0.02, 0.1
compiled = torch.compile(lambda x: x.sin() + 1, backend="memprof")
with memprof.profile(sys.argv[1]):
    x = torch.ones(8)
    compiled(x)
    print("compiled", flush=True)
    while True:
        compiled(x)
"""


def test_a_killed_process_leaves_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "run.memprof"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "compiled\n"
        deadline = time.monotonic() + 60
        while len(read_profile(path).calls) < 1_000 and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = read_profile(path)
    assert len(found.calls) >= 1_000
    assert not found.complete
    assert found.graphs[0].calls == len(found.calls)
    assert found.graphs[0].programs


def test_bytes_a_call_of_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN 10,000 calls of a training loop, flushed far more often than by default
    monkeypatch.setattr(memprof.streaming, "TICK_S", 0.02)
    monkeypatch.setattr(memprof.streaming, "FLUSH_S", 0.05)
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        run = step()
        for _ in range(10):
            run()  # type: ignore[operator]
        session.profile()
        before = path.stat().st_size
        for _ in range(5_000):
            run()  # type: ignore[operator]
    after = path.stat().st_size
    start = time.perf_counter()
    found = read_profile(path)
    took = time.perf_counter() - start
    assert len(found.calls) == 10_020
    a_call = (after - before) / 10_000
    print(f"{a_call:.1f} bytes a call; {after:,} bytes read in {took * 1e3:.0f} ms")
    # THEN steady state costs far less than the 100 bytes a call that are allowed
    assert a_call <= 25


def test_a_full_disk_does_not_undo_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        run = step()
        run()  # type: ignore[operator]
        session.profile()
        size = path.stat().st_size
        real = os.write

        def full(fd: int, data: bytes) -> int:
            # Half of it fits.
            real(fd, bytes(data)[: len(data) // 2])
            raise OSError(28, "No space left on device")

        run()  # type: ignore[operator]
        monkeypatch.setattr(os, "write", full)
        assert len(session.profile().calls) == 4
        run()  # type: ignore[operator]
    monkeypatch.undo()
    # THEN it is logged once, the file ends after its last whole chunk, the session has it all
    assert caplog.text.count("No space left on device") == 1
    assert path.stat().st_size == size
    assert len(read_profile(path).calls) == 2
    assert len(session.profile().calls) == 6
    session.save(path)
    assert read_profile(path) == session.profile()


def test_memprof_failing_does_not_undo_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        run = step()
        run()  # type: ignore[operator]
        monkeypatch.setattr(RUNTIME, "snapshot", lambda session: 1 / 0)
    monkeypatch.undo()
    # THEN that is logged, and the file is an unfinished one
    assert "cannot write the profile on (ZeroDivisionError" in caplog.text
    assert "memprof failed to make this session's profile" in caplog.text
    assert not session.profile().complete
    assert not read_profile(path).complete
    assert session.path == str(path)


def test_an_unwritable_path_is_refused_before_the_training(tmp_path: Path) -> None:
    with (
        pytest.raises(ProfileNotWritableError, match="cannot be written"),
        memprof.profile(tmp_path / "missing" / "run.memprof"),
    ):
        raise AssertionError("not reached")
    # AND the session that did not begin is not left open
    with memprof.profile() as session:
        pass
    assert session.profile().graphs == []


def test_a_forked_child_does_not_write(tmp_path: Path) -> None:
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        run = step()
        run()  # type: ignore[operator]
        session.profile()
        size = path.stat().st_size
        child = os.fork()
        if child == 0:
            try:
                session.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert path.stat().st_size == size
    assert read_profile(path).complete


def test_placeholders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with memprof.profile(tmp_path / "r{rank}.{local_rank}.{pid}.json") as session:
        pass
    assert session.path == str(tmp_path / f"r3.1.{os.getpid()}.json")
    found = read_profile(session.path).process
    assert found is not None
    assert (found.rank, found.local_rank, found.world_size, found.pid) == (3, 1, 4, os.getpid())
    assert caplog.text == ""
    # AND where ranks would overwrite each other's file, they are told
    with memprof.profile(tmp_path / "run.json"):
        pass
    assert "put {rank} into it" in caplog.text


def test_strange_environments_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, world in (("x", "y"), ("5", "2"), ("-1", "0"), ("", "")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world)
        found: Profile = memprof.current_profile()
        assert found.process is not None
        assert 0 <= found.process.rank < found.process.world_size


@pytest.mark.parametrize("name", ["run.json.gz", "run.memprof"])
def test_a_running_tracker_joins(name: str, tmp_path: Path) -> None:
    # GIVEN a tracker that runs, with an operation in the thread that calls compiled code
    path = tmp_path / name
    tracker = memprof.initialize_memory_tracker(tmp_path, interval=0.05)
    try:
        with memprof.profile(path) as session:
            run = step()
            with tracker.track_operation("training step"):
                run()  # type: ignore[operator]
            memprof.memory_checkpoint("after")
    finally:
        memprof.stop_memory_tracker()
    # THEN its record is part of the profile, and its lanes are those of the calls
    found = read_profile(path)
    assert found == session.profile()
    assert found.tracker is not None
    assert [o.name for o in found.tracker.operation_summary] == ["training step"]
    assert "after" in [s.name for s in found.tracker.snapshots]
    (lane,) = found.tracker.metadata.lanes
    assert lane.call_thread == found.calls.thread[0] == 0
    # AND a profile that is taken without one has none
    with memprof.profile() as session:
        pass
    assert session.profile().tracker is None
