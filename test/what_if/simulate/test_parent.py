"""The process that a script runs in, from outside, and what is made of what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from outputs import checked

from memprof.profiler.model import AllocationFailure, DeviceAccount, WhyNot
from memprof.profiler.support.json_text import to_json
from memprof.simulated_cuda.gpus import find_gpu
from memprof.what_if.simulate import parent
from memprof.what_if.simulate.command_line import Command
from memprof.what_if.simulate.parent import Settings, Simulation
from memprof.what_if.simulate.processes import FOLDER, _lives
from memprof.what_if.simulate.request import Failure as ScriptFailure, Outcome
from memprof.what_if.simulate.result import render, result_of

GIB = 1 << 30
MIB = 1 << 20

WAITING = """
import os
import sys
from memprof.what_if.simulate import parent
from memprof.simulated_cuda.gpus import find_gpu
script = "import os, time; os.write(2, b'%d ' % os.getpid()); time.sleep(300)"
parent._wait([sys.executable, "-c", script], os.environ, parent.Settings(gpu=find_gpu()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_script_ends_with_its_parent(number: signal.Signals) -> None:
    """Also where its terminal is closed, of which it hears nothing itself."""
    words = [sys.executable, "-c", WAITING]
    with subprocess.Popen(words, stderr=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stderr is not None
        script = b""
        while not script.endswith(b" "):
            script += parent.stderr.read(1)
        parent.send_signal(number)
        assert parent.wait(60) != 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(script), 0)


LEAVES = """
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.shared_memory import SharedMemory

memory = SharedMemory(create=True, size=4096)
sleep = "import time; time.sleep(600)"
other = subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
with open(sys.argv[1], "w") as f:
    f.write(f"{other.pid} {memory.name}")
os._exit(0)
"""


def test_nothing_is_left_of_a_run(tmp_path: Path) -> None:
    """No process in a session of its own, and nothing in /dev/shm of those that were killed."""
    (tmp_path / "script.py").write_text(LEAVES)
    words = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "left")]
    variables = {**os.environ, FOLDER: str(tmp_path)}
    assert parent._wait(words, variables, Settings(gpu=find_gpu()), str(tmp_path)) == 0
    process, name = (tmp_path / "left").read_text().split()
    for _ in range(1200):
        if not _lives(int(process)) and not Path("/dev/shm", name).exists():
            break
        time.sleep(0.05)
    assert not _lives(int(process))
    assert not Path("/dev/shm", name).exists()


def simulated(monkeypatch: pytest.MonkeyPatch, *outcomes: Outcome) -> Simulation:
    """Of a script whose runs end so, one after the other."""
    runs = iter(outcomes)
    monkeypatch.setattr(parent, "_run", lambda *args, **kwargs: next(runs))
    return parent.simulate(Command("python", (), ("t.py",)), Settings(find_gpu("rtx-4090")), {})


def ended(reserved: int, allocated: int, steps: int = 3, **more: str) -> Outcome:
    account = DeviceAccount(
        "cuda:0", reserved=reserved, most_allocated=allocated, steps=steps, ended="it ended"
    )
    return Outcome(accounts=[account], ended=f"{steps} optimizer steps", **more)


@pytest.mark.parametrize("allocated", [55 * GIB, 23 * GIB])
def test_fragmentation_is_the_reason_only_where_all_of_it_would_fit(
    monkeypatch: pytest.MonkeyPatch, allocated: int
) -> None:
    # GIVEN a request for which there is room in pieces, of a run that needs so much at once
    failure = AllocationFailure(
        wanted=112 * MIB,
        requested=112 * MIB,
        why=WhyNot.PIECES,
        device_free=44 * MIB,
        free=81 * MIB,
        largest_free=60 * MIB,
    )
    full = ScriptFailure(kind="OutOfMemoryError", message="", trace="", out_of_memory=True)
    moment = DeviceAccount("cuda:0", total=24 * GIB, reserved=23 * GIB, failure=failure)
    first = Outcome(failure=full, out_of_memory=moment)
    # WHEN the run on an ample device has shown that
    found = simulated(monkeypatch, first, ended(58 * GIB, allocated))
    # THEN pieces are the reason only if the bytes would fit in one
    (text, *more) = render([found]).splitlines()
    assert text == "Does not fit NVIDIA GeForce RTX 4090 (23.6 GiB): needs 58.0 GiB, " + (
        "3 optimizer steps seen"
    )
    fragmented = allocated < 24 * GIB
    assert failure.why is (WhyNot.PIECES if fragmented else WhyNot.FULL)
    assert ("fragmentation" in " ".join(more)) is fragmented
    assert any("memprof fit --try" in line and "--vary" in line for line in more)


def test_too_little_is_neither_yes_nor_no(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "the script ended: one optimizer step was seen"
    found = simulated(monkeypatch, ended(5 * GIB, 4 * GIB, steps=1, undecided=why))
    assert found.fits is None
    first, second, *_ = render([found]).splitlines()
    assert first.endswith("needs 5.00 GiB so far, 1 optimizer step seen")
    assert first.startswith("Undecided for NVIDIA GeForce RTX 4090")
    assert second.strip() == why
    data = checked("simulate", to_json(result_of([found])))
    assert data["fits"] is None
    assert data["ranks"][0]["undecided"] == why
    # What was seen does not fit already.
    assert simulated(monkeypatch, ended(25 * GIB, 4 * GIB, steps=1, undecided=why)).fits is False
    # One rank of several is enough.
    fits = simulated(monkeypatch, ended(5 * GIB, 4 * GIB))
    assert fits.fits is True
    fits.outcome.accounts[0].reserved += GIB
    assert result_of([fits, found]).fits is None
    assert render([fits, found]).startswith("Undecided")


def test_the_verdict_says_that_it_is_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = simulated(monkeypatch, ended(5 * GIB, 4 * GIB))
    first = render([found], limit=4 * GIB).splitlines()[0]
    assert "needs 5.00 GiB, more than 4.00 GiB of --fail-above" in first
    assert "--fail-above" not in render([found], limit=6 * GIB)


READS = """
import os, sys
from memprof.what_if.simulate.parent import Settings, _wait
from memprof.simulated_cuda.gpus import find_gpu
for _ in range(2):
    script = "import sys; print(len(sys.stdin.buffer.read()), file=sys.stderr)"
    _wait([sys.executable, "-c", script], os.environ, Settings(gpu=find_gpu()))
"""


def test_each_run_reads_the_same(tmp_path: Path) -> None:
    """A file from its beginning, and nothing through a pipe, be it one that nobody closes."""
    (tmp_path / "input").write_bytes(b"0123456789")
    with (tmp_path / "input").open("rb") as file:
        words = [sys.executable, "-c", READS]
        done = subprocess.run(words, stdin=file, stderr=subprocess.PIPE, check=True)
    assert done.stderr.split() == [b"10", b"10"]
    reading, writing = os.pipe()
    done = subprocess.run(words, stdin=reading, stderr=subprocess.PIPE, check=True)
    assert done.stderr.split() == [b"0", b"0"]
    os.close(reading)
    os.close(writing)


THREADS = """
import sys, threading, msgspec
from memprof.what_if.simulate import parent
from memprof.what_if.simulate.request import Outcome
data = msgspec.json.encode(Outcome())
sys.setswitchinterval(1e-6)
together = threading.Barrier(4)
def decode():
    together.wait()
    parent._OUTCOMES.decode(data)
threads = [threading.Thread(target=decode) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_ranks_that_end_at_once_are_read_in_several_threads() -> None:
    # (of three processes at least one died of SIGSEGV where the decoder was made in the threads)
    for _ in range(3):
        assert subprocess.run([sys.executable, "-c", THREADS]).returncode == 0
