"""``memprof.profile("x.memprof")``: the file grows with the run and survives its end."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from in_threads import run_in_threads
from torch import nn

import memprof
import memprof.compile_backend.session.streaming
from memprof.compile_backend.session.runtime import RUNTIME, CallLog
from memprof.profiler.file.profile_file import encode_profile, read_profile
from memprof.profiler.model import Profile
from memprof.profiler.running_job import JobFile, Writer
from memprof.profiler.support.errors import ProfileNotWritableError, ProfileUnreadableError

pytestmark = pytest.mark.zero_kernels


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
    monkeypatch.setattr(memprof.compile_backend.session.streaming, "TICK_S", 0.005)
    monkeypatch.setattr(memprof.compile_backend.session.streaming, "FLUSH_S", 0.0)
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
import sys, time, torch, memprof
from memprof.compile_backend.session import streaming
streaming.TICK_S, streaming.FLUSH_S = 0.02, 0.1
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
        while len(read_profile(path).calls) < 1_000:
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
    # GIVEN 2,000 calls of a training loop, flushed far more often than by default: the fewer
    # calls in a chunk, the more bytes for each
    monkeypatch.setattr(memprof.compile_backend.session.streaming, "TICK_S", 0.02)
    monkeypatch.setattr(memprof.compile_backend.session.streaming, "FLUSH_S", math.inf)
    monkeypatch.setattr(memprof.compile_backend.session.streaming, "FLUSH_CALLS", 200)
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        run = step()
        for _ in range(10):
            run()  # type: ignore[operator]
        session.profile()
        before = path.stat().st_size
        for _ in range(1_000):
            run()  # type: ignore[operator]
    after = path.stat().st_size
    assert len(read_profile(path).calls) == 2_020
    a_call = (after - before) / 2_000
    print(f"{a_call:.1f} bytes a call")
    # THEN steady state costs far less than the 100 bytes a call that are allowed
    assert a_call <= 25


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.simgpu)])
def test_no_kind_of_step_leaves_an_object(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The log of calls is full from the first round on.
    monkeypatch.setattr(RUNTIME, "calls", CallLog(64))
    monkeypatch.setattr("memprof.compile_backend.session.profiling.LOG_CALLS", 64)
    model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.ReLU()).to(device), backend="memprof")
    x = torch.ones(2, 8, device=device)

    class Fault(Exception):
        pass

    def fail(_: torch.Tensor) -> None:
        raise Fault

    def replay() -> None:
        model(x).sum().backward()

    def fails_after_the_forward() -> None:
        with contextlib.suppress(Fault):
            fail(model(x))
        replay()

    def fails_in_the_backward() -> None:
        y = x.clone().requires_grad_()
        y.register_hook(fail)
        with contextlib.suppress(Fault):
            model(y).sum().backward()

    def evaluates_in_a_thread() -> None:
        run_in_threads(lambda: model(x).sum())

    kinds = [replay, fails_after_the_forward, fails_in_the_backward]
    # torch 2.13 keeps streams that a thread has entered, with mode="reduce-overhead" as well.
    if device == "cpu" or torch.__version__ < "2.12":
        kinds.append(evaluates_in_a_thread)
    steps = 200
    left = {}
    with memprof.profile(tmp_path / "run.memprof") as session:
        for step in kinds:
            before, rates = [0, 0], []
            for _ in range(4):
                for _ in range(steps):
                    step()
                session.profile()  # writes what was called
                gc.collect()
                now = [sys.getallocatedblocks(), len(gc.get_objects())]
                rates.append([(b - a) / steps for a, b in zip(before, now, strict=True)])
                before = now
            # What is left by each step is left in every round; a cache fills in one.
            left[step.__name__] = [min(column) for column in zip(*rates[1:], strict=True)]
    # A call in the log was four, of which each step makes one or more.
    assert all(blocks < 2 and objects < 0.2 for blocks, objects in left.values()), left


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
    assert caplog.text.count("cannot collect what is new (ZeroDivisionError") == 1
    assert "memprof failed to make this session's profile" in caplog.text
    assert not session.profile().complete
    assert not read_profile(path).complete
    assert session.path == str(path)


def test_a_transient_error_is_no_end_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a snapshot that failed once, half way through, as when a dictionary grew meanwhile
    real = RUNTIME.snapshot
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        run = step()
        run()  # type: ignore[operator]
        session.profile()

        def changed(session: object) -> Profile:
            monkeypatch.setattr(RUNTIME, "snapshot", real)
            raise RuntimeError("dictionary changed size during iteration")

        monkeypatch.setattr(RUNTIME, "snapshot", changed)
        run()  # type: ignore[operator]
        streamer = session._streamer
        assert streamer is not None
        streamer.flush()
        # THEN what it would have said is in memory meanwhile, and nothing was written
        assert len(session.profile().calls) == 4
        run()  # type: ignore[operator]
        # AND the next look writes it
        assert len(session.profile().calls) == 6
        assert len(read_profile(path).calls) == 6
        assert streamer._thread.is_alive()
        # AND the last look has more than one try
        monkeypatch.setattr(RUNTIME, "snapshot", changed)
    found = read_profile(path)
    assert (len(found.calls), found.calls.dropped, found.complete) == (6, 0, True)
    assert found == session.profile()
    assert caplog.text.count("cannot collect what is new (RuntimeError") == 1


def test_a_disk_that_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        run = step()
        run()  # type: ignore[operator]
        session.profile()
        real = os.write

        def full(fd: int, data: bytes) -> int:
            real(fd, bytes(data)[: len(data) // 2])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        for calls in (4, 6):
            run()  # type: ignore[operator]
            assert len(session.profile().calls) == calls
            assert len(read_profile(path).calls) == 2
        # WHEN there is room again THEN the file stays as it is, and the profile has every call
        monkeypatch.setattr(os, "write", real)
        run()  # type: ignore[operator]
        assert len(session.profile().calls) == 8
        assert len(read_profile(path).calls) == 2
    assert not read_profile(path).complete
    assert len(session.profile().calls) == 8
    assert caplog.text.count("cannot write the profile on (OSError") == 1


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
    with memprof.profile(tmp_path / "r{rank}.{local_rank}.{pid}.memprof") as session:
        pass
    assert session.path == str(tmp_path / f"r3.1.{os.getpid()}.memprof")
    found = read_profile(session.path).process
    assert found is not None
    assert (found.rank, found.local_rank, found.world_size, found.pid) == (3, 1, 4, os.getpid())
    assert caplog.text == ""
    # AND where ranks would overwrite each other's file, they are told
    with memprof.profile(tmp_path / "run.memprof"):
        pass
    assert "put {rank} into it" in caplog.text


def test_a_running_tracker_joins(tmp_path: Path) -> None:
    # GIVEN a tracker that runs, with an operation in the thread that calls compiled code
    path = tmp_path / "run.memprof"
    tracker = memprof.track(tmp_path, interval=0.05)
    try:
        with memprof.profile(path) as session:
            run = step()
            with tracker.track_operation("training step"):
                run()  # type: ignore[operator]
            memprof.checkpoint("after")
    finally:
        memprof.stop_tracking()
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


def test_two_processes_with_one_path_each_leave_their_profile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN what an earlier run of the program has left
    path = tmp_path / "run.memprof"
    path.write_bytes(b"old")
    program = (
        "import sys, memprof\n"
        "with memprof.profile(sys.argv[1]) as session:\n"
        "    print('begun', flush=True); input()\n"
        "print(session.path)\n"
    )
    pipe = subprocess.PIPE
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=pipe, stdout=pipe, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "begun\n"
    # WHEN another process profiles into the same path meanwhile
    with memprof.profile(path) as session:
        theirs = other.communicate("\n")[0].strip()
    # THEN there are two profiles, and the second one was told
    assert theirs == str(path)
    assert session.path == str(tmp_path / f"run.{os.getpid()}.memprof")
    pids = {read_profile(p).process.pid for p in (theirs, session.path)}  # type: ignore[union-attr]
    assert pids == {other.pid, os.getpid()}
    assert "another session writes it just now" in caplog.text
    assert "for several processes put {rank} or {pid} into it" in caplog.text


def test_one_process_replaces_what_it_wrote_itself(tmp_path: Path) -> None:
    path = tmp_path / "run.memprof"
    for _ in range(2):
        with memprof.profile(path) as session:
            pass
        session.save(path)
        assert session.path == str(path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.memprof"]


def test_a_child_does_not_hold_its_parents_file(tmp_path: Path) -> None:
    # GIVEN a child that outlives the session, as a worker of a data loader can
    path = tmp_path / "run.memprof"
    ends, wait = os.pipe()
    runs, begun = os.pipe()
    with memprof.profile(path):
        child = os.fork()
        if child == 0:
            try:
                os.close(wait)
                os.write(begun, b".")  # What is done at a fork has been done.
                os.read(ends, 1)
            finally:
                os._exit(0)
    os.read(runs, 1)
    try:
        # THEN the next session has the path
        with memprof.profile(path) as session:
            pass
        assert session.path == str(path)
    finally:
        os.close(wait)
        os.waitpid(child, 0)
        for end in (ends, runs, begun):
            os.close(end)


def test_a_file_that_is_deleted_is_said_at_once_and_nothing_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # GIVEN a session that somebody takes the file from, and one that has another in its place
    path, other = tmp_path / "run.memprof", tmp_path / "other.memprof"
    with memprof.profile(path) as session, memprof.profile(other) as replaced:
        run = step()
        run()  # type: ignore[operator]
        session.profile()
        path.unlink()
        (tmp_path / "new").write_text("not ours")
        os.replace(tmp_path / "new", other)
        # WHEN it is written on THEN the log says so, once, and the profile has every call
        for calls in (4, 6):
            run()  # type: ignore[operator]
            assert len(session.profile().calls) == calls
            assert len(replaced.profile().calls) == calls
            assert caplog.text.count("run.memprof: cannot write the profile on") == 1
            assert caplog.text.count("it was deleted, or replaced") == 2
    assert len(session.profile().calls) == 6
    session.save(path)
    assert len(read_profile(path).calls) == 6
    assert other.read_text() == "not ours"


def test_a_session_whose_file_is_gone_can_be_named(tmp_path: Path) -> None:
    # GIVEN a session that somebody took the file from when it had ended
    path = tmp_path / "run.memprof"
    with memprof.profile(path) as session:
        pass
    path.unlink()
    # THEN its data cannot be had, but a debugger or notebook can show what it is
    with pytest.raises(ProfileUnreadableError):
        session.profile()
    assert repr(session) == f"<memprof profile {path}: its file cannot be read>"


def test_a_live_view_reads_what_is_written(tmp_path: Path) -> None:
    with memprof.profile(tmp_path / "run.memprof") as session:
        watch = JobFile(str(session.path))
        now = watch.look()
        assert now.writer is Writer.ALIVE
        # THEN the process's memory is there without a single compiled call
        assert now.devices[-1].device == "host"
        assert now.devices[-1].reserved > 1 << 20
    assert watch.look().writer is Writer.ENDED


def test_an_allocator_that_does_not_count_costs_its_totals_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as torch.cuda.memory.CUDAPluggableAllocator, which RMM is used by."""

    def stats(device: int) -> dict[str, object]:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: True, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", stats, raising=False)
    session = RUNTIME.open_session(10)
    streamer = memprof.compile_backend.session.streaming.Streamer(
        RUNTIME, session, tmp_path / "x.memprof"
    )
    try:
        streamer.start()
        assert not streamer.failed
    finally:
        streamer.finish(lambda profile, threads: profile)
        RUNTIME.close_session()
    assert not streamer.failed
    found = read_profile(tmp_path / "x.memprof")
    assert found.complete
    assert found.totals == []
