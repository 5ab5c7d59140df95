"""Follows the processes that a simulated script starts: a serving engine's, workers, ranks.

Note [Accounts of several processes]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Each process in which CUDA starts, forked before that or started anew
(``children/sitecustomize.py``), is followed like the script's own. In the run's folder it leaves
``PID.started`` as CUDA starts, and ``PID.process`` when the file ``COLLECT`` appears or when it
ends, each a ``ProcessOutcome``. A process that is killed leaves the first alone: that it was there
is known, and the moment at which an allocation failed, noted there at once, since engines kill
their workers for it. What it took is in the device's own table
(``simulated_cuda/src/core_users.cpp``), which all processes share and from which the total at any
instant is. ``PID.serves`` is of a serving engine's process that is ready, for which a script that
has come to its end does not wait; it waits for others.

Note [Steps of a process]
~~~~~~~~~~~~~~~~~~~~~~~~~
Where one process alone makes optimizer steps, and it is not the script's own, the run is left after
its steps as after the script's (Note [When a run is left]): it answers, and asks the script's to
end by the file ``END``. Each that makes one leaves ``PID.trains``. Where several do, they are ranks
of one job, or trials of which the next may take more: the run goes on until the script ends. So it
does where one ran out of memory and left ``PID.full``: what the script makes of that decides.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from memprof.profiler.model import DeviceAccount
from memprof.what_if._torch_compat import cuda_may_start_after_fork, on_cuda_start

from .engine_memory import Serving
from .engines import follow_engines, serving
from .failures import Failure, uncaught
from .followed import Followed, counted, grouped, name_among_all
from .leaving import BY_ITSELF, Leaving, steps_seen
from .vllm import ready

log = logging.getLogger("memprof")

FOLDER = "MEMPROF_SIMULATE_FOLDER"
"""Environment variable with the folder of the run, for processes that the script starts."""

COLLECT = "collect"
"""Name of the file in the folder that asks all processes for their outcomes."""

END = "end"
"""Name of the file that asks the script's own process to end; its text says why."""

REQUEST = "request.json"
"""Name of the file with the run's ``Request``."""

_TRAINS = ".trains"
_FULL = ".full"
_SERVES = ".serves"
_OF_ENGINES = "EngineCore"
"""Beginning of the name that vLLM gives the process of its engine."""
_COMPILES = "torch/_inductor/compile_worker"
"""Part of the name of the program in which Inductor compiles. It looks at the device, puts nothing
there, and is killed when the script ends, before it could say so."""
_PERIOD_S = 0.2
_PATIENCE_S = 5.0
"""Seconds for a main thread that computes to come out of it, before another thread answers."""

COLLECT_S = 300.0
"""Seconds in which processes that are alive must answer. On a busy machine it takes one half a
minute to look at a million objects."""


class ProcessOutcome(msgspec.Struct, kw_only=True):
    """Outcome of a process that the script had started.

    Attributes:
        process: its number.
        name: that multiprocessing has for it, or the beginning of its command line.
        accounts: one a device that it used, the one with most reserved first.
        out_of_memory: the account of the last moment at which an allocation failed.
        failure: the exception that ended it, None if none did.
        undecided: as of an ``Outcome``.
        lost: whether there is no account: it was killed, or memprof failed to make one.
        grouped: whether it was in a process group with others.
        serving: of a serving engine's worker.
    """

    process: int
    name: str = ""
    accounts: list[DeviceAccount] = []
    out_of_memory: DeviceAccount | None = None
    failure: Failure | None = None
    undecided: str = ""
    lost: bool = False
    grouped: bool = False
    serving: Serving | None = None


# At import: ranks end in threads of the parent, and threads that decode a type for the first time
# at once crash msgspec 0.22.
_OUTCOMES = msgspec.json.Decoder(ProcessOutcome)


def _wanted_steps(folder: Path) -> int | None:
    """Optimizer steps after which the run is to be left, if it was asked for some."""
    # ``Request`` imports this module, for what these processes answer.
    steps: int | None = msgspec.json.decode((folder / REQUEST).read_bytes())["steps"]
    return steps


def note_training(folder: str) -> None:
    """Note in the run's folder that this process makes optimizer steps."""
    Path(folder, f"{os.getpid()}{_TRAINS}").touch()


def follow(folder: str) -> None:
    """Follow this process, where torch has just been imported, and answer in ``folder`` if CUDA
    starts in it."""
    if _COMPILES in sys.argv[0]:
        return
    from memprof.simulated_cuda import control

    if control.simulated():
        from memprof.simulated_cuda.integers import compute_known

        compute_known()
    _Process(Path(folder)).begin()
    follow_forks(folder)
    follow_engines()


def follow_forks(folder: str) -> None:
    """Follow what is forked from this process before CUDA has started in it: later it cannot be
    used there."""

    def forked() -> None:
        if cuda_may_start_after_fork():
            _Process(Path(folder)).begin()

    os.register_at_fork(after_in_child=forked)


class _Process:
    """This process, which answers once: as it ends, or when it is asked to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = os.getpid()
        self._followed = Followed(self._after_step, time.monotonic(), self._note)
        self._leaving = Leaving(_wanted_steps(folder))
        self._started = self._answered = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        self._followed.begin()
        on_cuda_start(self._cuda_starts)

    def _cuda_starts(self) -> None:
        if os.getpid() != self._process:
            return
        self._started = True
        # A process of multiprocessing runs finalizers and no function of atexit.
        ends = functools.partial(self._answer, BY_ITSELF, ends=True)
        atexit.register(ends)
        multiprocessing.util.Finalize(None, ends, exitpriority=100)
        self._note()
        threading.Thread(target=self._wait, name="memprof-simulate", daemon=True).start()

    def _note(self, out_of_memory: DeviceAccount | None = None) -> None:
        """Note what is to be known of this process should it be killed."""
        lost = ProcessOutcome(
            process=self._process, name=_name(), out_of_memory=out_of_memory, lost=True
        )
        write_whole(_started_path(self._folder, self._process), msgspec.json.encode(lost))
        if out_of_memory is not None:
            (self._folder / f"{self._process}{_FULL}").touch()

    def _after_step(self, fewest: int, steps: int) -> None:
        if self._answered or os.getpid() != self._process:
            return
        note_training(str(self._folder))
        enough = self._leaving.after_step(fewest, steps, counted())
        alone = len(list(self._folder.glob(f"*{_TRAINS}"))) == 1
        if enough and alone and not list(self._folder.glob(f"*{_FULL}")):
            self._answer(steps_seen(steps))
            write_whole(self._folder / END, steps_seen(steps).encode())

    def _wait(self) -> None:
        from memprof.profiler.sources.allocator.draining import on_main_thread, wait_while_busy

        # With several ranks the engine's process has its workers in others. Not a process of the
        # script's with an engine inside, which may do anything.
        near = (multiprocessing.current_process(), multiprocessing.parent_process())
        engines = [p.pid for p in near if p is not None and p.name.startswith(_OF_ENGINES)]
        while not (self._folder / COLLECT).exists():
            if ready():
                for pid in engines:
                    (self._folder / f"{pid}{_SERVES}").touch()
            time.sleep(_PERIOD_S)
        ended = (self._folder / COLLECT).read_text()
        on_main_thread(functools.partial(self._answer, ended))
        wait_while_busy(_PATIENCE_S)
        self._answer(ended)

    def _answer(self, ended: str, ends: bool = False) -> None:
        # A fork of this process has its finalizers.
        if os.getpid() != self._process or not self._started:
            return
        # Another thread answers, or this one does and was asked again between two bytecodes.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._answered:
                self._answered = True
                answer = msgspec.json.encode(self._outcome(ended, ends))
                write_whole(_answer_path(self._folder, self._process), answer)
        finally:
            self._lock.release()

    def _outcome(self, ended: str, ends: bool) -> ProcessOutcome:
        # One that is asked may be handling an exception, and go on.
        outcome = ProcessOutcome(
            process=self._process,
            name=_name(),
            out_of_memory=self._followed.out_of_memory,
            failure=uncaught() if ends else None,
            undecided=self._followed.why_undecided(ended) or self._leaving.what_may_come(ended),
            grouped=grouped(),
            serving=serving(),
        )
        try:
            failed = outcome.failure is not None
            outcome.accounts = self._followed.accounts(ended, failed=failed)
        except Exception:
            log.exception("memprof could not make the account of process %d", self._process)
            outcome.lost = True
        name_among_all(outcome.accounts)
        return outcome


def _name() -> str:
    if multiprocessing.parent_process() is not None:
        return multiprocessing.current_process().name
    with contextlib.suppress(OSError):
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
        return " ".join(os.path.basename(word.decode(errors="replace")) for word in words[:3])
    return ""


def collect(folder: str, ended: str) -> None:
    """Ask every process of a run that is alive for its outcome, and wait until they have answered;
    ``ended`` says in words why they are asked. Who asks again waits no longer than the first."""
    of_run = Path(folder)
    if not (of_run / COLLECT).exists():
        write_whole(of_run / COLLECT, ended.encode())
    until = (of_run / COLLECT).stat().st_mtime + COLLECT_S
    while _silent(of_run) and time.time() < until:
        time.sleep(_PERIOD_S / 2)


def serves(folder: str, pid: int | None) -> bool:
    """Tells whether a process is a serving engine's own, and ready: it waits for requests, and ends
    with the script that made the engine."""
    return Path(folder, f"{pid}{_SERVES}").exists()


def write_whole(path: Path, content: bytes) -> None:
    """Make a file that is whole when it appears. Without the disk's word: it is read once, and gone
    with the run."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def _silent(folder: Path) -> list[int]:
    """Processes that live and have not answered."""
    silent = (pid for pid in _started(folder) if not _answer_path(folder, pid).exists())
    return [pid for pid in silent if _lives(pid)]


def _started(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.started"))


def _started_path(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.started"


def _answer_path(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.process"


def _lives(pid: int) -> bool:
    try:
        # A zombie can be signalled, and answers nothing any more.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    except OSError:
        return False
    return not state.startswith("Z")


def outcomes(folder: str) -> list[ProcessOutcome]:
    """Outcomes of the processes of a run, in order of their numbers; one that was killed is
    ``lost``."""
    found = []
    for pid in _started(Path(folder)):
        try:
            answer = _answer_path(Path(folder), pid).read_bytes()
        except FileNotFoundError:
            answer = _started_path(Path(folder), pid).read_bytes()
        found.append(_OUTCOMES.decode(answer))
    return found
