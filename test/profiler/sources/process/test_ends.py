"""However a process ends: the file is there, and the end is what it would have been without."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from memprof.compile_backend.session import launch
from memprof.profiler.file.profile_file import read_profile
from memprof.profiler.model import RunState, SnapshotKind

from . import processes
from .processes import end, files, record, run, start, wait_for_line, wait_until

LOOP = """
tracker = memprof.track(interval=0.05)
kept = torch.ones(1000)
for i in range(1_000_000):
    with tracker.track_operation("turn"):
        if i == 1:
            print("ready", flush=True)
        time.sleep(0.01)
"""


def test_normal_exit(tmp_path: Path) -> None:
    done = run("memprof.track()\nmemprof.checkpoint('one')", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    found = record(tmp_path)
    assert (found.metadata.state, found.metadata.reason) == (RunState.EXIT, "the interpreter ended")
    assert [(s.kind, s.name) for s in found.snapshots] == [
        (SnapshotKind.START, ""),
        (SnapshotKind.CHECKPOINT, "one"),
        (SnapshotKind.END, ""),
    ]
    assert files(tmp_path) == [n for n in files(tmp_path) if n.endswith(".memprof")]


def test_uncaught_exception(tmp_path: Path) -> None:
    done = run("memprof.track()\n{}['missing']", tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'missing'\n")
    found = record(tmp_path).metadata
    assert (found.state, found.reason) == (RunState.EXCEPTION, "KeyError: 'missing'")


def test_sigterm(tmp_path: Path) -> None:
    program = """
        tracker = memprof.track(interval=0.05)
        with tracker.track_operation("turn"):
            time.sleep(0.2)
        with tracker.track_operation("turn"):
            print("ready", flush=True)
            time.sleep(60)
        """
    process = start(program, tmp_path)
    wait_for_line(process, "ready")
    wait_until(lambda: len(files(tmp_path)) == 1)
    assert end(process) == (-signal.SIGTERM, "")
    found = record(tmp_path)
    assert (found.metadata.state, found.metadata.reason) == (RunState.SIGNAL, "SIGTERM")
    assert found.snapshots[-1].kind is SnapshotKind.END
    assert found.metadata.snapshots_taken == len(found.snapshots)
    assert found.operation_allocations.end_ns[-1] == -1  # it was in the middle of one


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 15)", "memprof.stop_tracking()"])
def test_a_signal_while_the_file_is_written(tmp_path: Path, end: str) -> None:
    program = f"""
        tracker = memprof.track()
        write = tracker._recorder.write_file
        def signalled():
            os.kill(os.getpid(), 15)
            time.sleep(0.05)
            write()
        tracker._recorder.write_file = signalled
        {end}
        time.sleep(600)
        """
    done = run(program, tmp_path)
    assert done.returncode == -15, done.stderr
    (name,) = files(tmp_path)
    assert name.endswith(".memprof")


def test_a_signal_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    program = """
        from memprof.profiler.sources.process import record_file
        record_file.REST = 0
        memprof.track(interval=60)
        write_all = record_file.write_all
        def signalled(file, data):
            record_file.write_all = write_all
            write_all(file, data)
            os.kill(os.getpid(), 15)
            time.sleep(600)
        record_file.write_all = signalled
        memprof.checkpoint("one")
        """
    done = run(program, tmp_path)
    assert (done.returncode, done.stderr) == (-15, "")
    found = record(tmp_path)
    assert (found.metadata.state, found.metadata.reason) == (RunState.SIGNAL, "SIGTERM")
    assert sorted(os.listdir(tmp_path)) == [*files(tmp_path), "program.py"]


def test_ctrl_c_stays_a_keyboard_interrupt(tmp_path: Path) -> None:
    process = start(LOOP, tmp_path)
    wait_for_line(process, "ready")
    status, err = end(process, signal.SIGINT)
    assert status == -signal.SIGINT
    assert err.endswith("KeyboardInterrupt\n")
    assert record(tmp_path).metadata.reason == "KeyboardInterrupt"


@pytest.mark.parametrize("order", ["before", "after"])
def test_the_users_own_handler_decides(tmp_path: Path, order: str) -> None:
    own = "signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))\n"
    begin = "tracker = memprof.track(interval=60)\n"
    program = "stop = []\n" + (own + begin if order == "before" else begin + own)
    program += """
print("ready", flush=True)
while not stop:
    time.sleep(0.01)
memprof.checkpoint("saving")
sys.exit(3)
"""
    process = start(program, tmp_path)
    wait_for_line(process, "ready")
    assert end(process) == (3, "")
    found = record(tmp_path)
    # The tracker went on while the handler's owner was saving.
    names = [s.name for s in found.snapshots if s.kind is SnapshotKind.CHECKPOINT]
    assert names == (["SIGTERM", "saving"] if order == "before" else ["saving"])
    assert found.metadata.state is RunState.EXIT


def test_an_ignored_signal_stays_ignored(tmp_path: Path) -> None:
    program = """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        memprof.track()
        os.kill(os.getpid(), signal.SIGTERM)
        print("alive")
        """
    assert run(program, tmp_path).stdout == "alive\n"


def test_stopping_puts_handlers_back(tmp_path: Path) -> None:
    program = """
        hook, handler = sys.excepthook, signal.getsignal(signal.SIGTERM)
        memprof.track()
        assert sys.excepthook != hook and signal.getsignal(signal.SIGTERM) != handler
        memprof.stop_tracking()
        assert sys.excepthook == hook and signal.getsignal(signal.SIGTERM) == handler
        memprof.stop_tracking()
        """
    assert run(program, tmp_path).stderr == ""
    assert record(tmp_path).metadata.state is RunState.STOPPED


def test_sigkill_leaves_all_but_the_last_snapshot(tmp_path: Path) -> None:
    program = """
        from memprof.profiler.sources.process import record_file
        record_file.REST = 0
        write = record_file.RecordFile.write
        def told(self, data):
            print("taken", flush=True)
            return write(self, data)
        record_file.RecordFile.write = told
        """
    process = start(program + LOOP.replace("\n", "\n        "), tmp_path)
    assert process.stdout is not None
    taken = 0
    for line in process.stdout:
        taken += line == "taken\n"
        if taken == 12:
            break
    process.kill()
    taken += process.communicate()[0].count("taken")
    (name,) = files(tmp_path)
    # THEN its file is a profile that ends too early
    found = read_profile(tmp_path / name)
    assert found.complete is False
    assert found.tracker is not None
    assert found.tracker.metadata.state is RunState.RUNNING
    assert len(found.tracker.snapshots) >= taken - 1
    assert {s.name for s in found.tracker.operation_summary} == {"turn"}
    # AND the next tracker there has one of its own, and leaves this one as it is
    before = (tmp_path / name).read_bytes()
    run("memprof.track()", tmp_path)
    assert len(files(tmp_path)) == 2
    assert (tmp_path / name).read_bytes() == before


def test_forked_workers_are_not_tracked_and_unharmed(tmp_path: Path) -> None:
    program = """
        tracker = memprof.track(interval=0.02)
        lock = threading.Lock()
        def child():
            # Everything can be called, nothing is recorded, and SIGTERM is the default again.
            assert not memprof.current_tracker().enabled
            with memprof.current_tracker().track_operation("child"):
                with tracker.track_operation("x"):
                    memprof.checkpoint("child")
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
            torch.ones(10).sum()
        pids = []
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                try:
                    child()
                    os._exit(0)
                except BaseException:
                    import traceback; traceback.print_exc()
                    os._exit(1)
            pids.append(pid)
            time.sleep(0.03)
        print([os.waitpid(pid, 0)[1] for pid in pids])
        memprof.checkpoint("parent")
        """
    done = run(program, tmp_path)
    assert done.stdout == "[0, 0, 0, 0]\n", done.stderr
    assert done.stderr.count("whose memory is tracked; this one's is not") == 4
    assert len(files(tmp_path)) == 1
    found = record(tmp_path)
    assert [s.name for s in found.snapshots if s.name] == ["parent"]
    assert found.operation_summary == []


def test_a_forked_worker_can_have_its_own(tmp_path: Path) -> None:
    program = """
        memprof.track(interval=60)
        pid = os.fork()
        if pid == 0:
            tracker = memprof.track(interval=60)
            with tracker.track_operation("child"):
                pass
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(os.getpid())
        """
    done = run(program, tmp_path)
    assert done.returncode == 0, done.stderr
    parent = int(done.stdout)
    found = [record(tmp_path, i) for i in range(2)]
    assert [len(files(tmp_path)), done.stderr] == [2, ""]
    child = next(r for r in found if r.metadata.pid != parent)
    assert [s.name for s in child.operation_summary] == ["child"]


def test_dataloader_workers(tmp_path: Path) -> None:
    program = """
        memprof.track(interval=0.02)
        data = torch.utils.data.DataLoader(torch.arange(64.0), batch_size=8, num_workers=2)
        print(sum(b.sum().item() for b in data))
        """
    done = run(program, tmp_path)
    assert (done.returncode, done.stdout) == (0, "2016.0\n"), done.stderr
    assert len(files(tmp_path)) == 1


def test_memprof_run(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, atexit, pickle, torch\n"
        "class A: pass\n"
        "kept = torch.ones(1000)\n"
        "atexit.register(lambda: print(pickle.loads(pickle.dumps(A)) is A))\n"
        "print(__name__, sys.argv[1:], __file__)\n"
        "sys.exit(4)\n"
    )
    own = ["-m", "memprof", "run", "--interval", "0.5"]
    process = start("", tmp_path, *own, "script.py", "-x", "--interval", "9")
    out, err = process.communicate()
    assert out == f"__main__ ['-x', '--interval', '9'] {tmp_path}/script.py\nTrue\n", err
    assert process.returncode == 4
    found = record(tmp_path).metadata
    assert (found.interval_ns, found.command) == (
        500_000_000,
        ("script.py", "-x", "--interval", "9"),
    )


def test_memprof_run_of_a_module_and_what_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("import torch\n1 / 0\n")
    process = start("", tmp_path, "-m", "memprof", "run", "-m", "package")
    _, err = process.communicate()
    assert process.returncode == 1
    assert "ZeroDivisionError" in err
    assert "launch.py" not in err
    assert record(tmp_path).metadata.reason == "ZeroDivisionError: division by zero"
    process = start("", tmp_path, "-m", "memprof", "run", "nowhere.py")
    _, err = process.communicate()
    assert process.returncode == 2
    assert "No such file" in err
    assert processes.files(tmp_path)


def test_what_names_nothing_to_run_is_refused_before_a_tracker_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    nothing, nowhere = "nothing to run", "there is no module nowhere that can be run"
    for arguments, says in (([], nothing), (["-m"], nothing), (["-m", "nowhere"], nowhere)):
        for run_it in (launch.with_tracker, partial(launch.watching_graphs, str(tmp_path))):
            with pytest.raises(SystemExit) as e:
                run_it(arguments)
            assert e.value.code == 2
            assert f"memprof run: {says}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
