"""Follows the processes that a simulated script starts: a serving engine's, workers, ranks.

Note [Accounts of several processes]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Each process in which CUDA starts, forked before that or started anew
(``children/sitecustomize.py``), is followed like the script's own. In the run's folder it leaves
``PID.started`` as CUDA starts, and ``PID.process``, a ``ProcessOutcome``, when the file ``COLLECT``
appears or when it ends. A process that is killed leaves the first alone: that it was there is
known, and what it took is in the device's own table (``simulated_cuda/src/core_users.cpp``), which
all processes share and from which the total at any instant is.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import multiprocessing
import multiprocessing.util
import os
import threading
import time
from pathlib import Path
from types import ModuleType

import msgspec

from memprof.profiler.model import DeviceAccount
from memprof.simulated_cuda.after_import import after_import
from memprof.what_if._torch_compat import cuda_may_start_after_fork, on_cuda_start

from .failures import Failure, uncaught
from .leaving import BY_ITSELF, why_undecided
from .vllm import Serving, follow_workers, serving

log = logging.getLogger("memprof")

FOLDER = "MEMPROF_SIMULATE_FOLDER"
"""Environment variable with the folder of the run, for processes that the script starts."""

COLLECT = "collect"
"""Name of the file in the folder that asks all processes for their outcomes."""

END = "end"
"""Name of the file that asks the script's own process to end; its text says why."""

_PERIOD_S = 0.2
_PATIENCE_S = 5.0
"""Seconds for a main thread to come out of what it waits for, before another thread answers."""

COLLECT_S = 60.0
"""Seconds in which processes that are alive must answer."""


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
        serving: of a serving engine's worker.
    """

    process: int
    name: str = ""
    accounts: list[DeviceAccount] = []
    out_of_memory: DeviceAccount | None = None
    failure: Failure | None = None
    undecided: str = ""
    lost: bool = False
    serving: Serving | None = None


def follow(folder: str) -> None:
    """Follow this process once torch is imported, and answer in ``folder`` if CUDA starts in it."""

    def torch_is_there(torch: ModuleType) -> None:
        from memprof.simulated_cuda import control

        if control.simulated():
            from memprof.simulated_cuda.integers import compute_known

            compute_known()
        _Followed(Path(folder)).begin()
        follow_forks(folder)
        follow_workers()

    after_import("torch", torch_is_there)


def follow_forks(folder: str) -> None:
    """Follow what is forked from this process before CUDA has started in it: later it cannot be
    used there."""

    def forked() -> None:
        if cuda_may_start_after_fork():
            _Followed(Path(folder)).begin()

    os.register_at_fork(after_in_child=forked)


class _Followed:
    """Follows this process from the time that torch has been imported."""

    def __init__(self, folder: Path) -> None:
        from memprof.profiler.sources.allocator.allocator_session import AllocatorSession

        self._folder = folder
        self._process = os.getpid()
        self._began = time.monotonic()
        self._out_of_memory: DeviceAccount | None = None
        self._watch = AllocatorSession(on_step=lambda fewest, most: None)
        self._started = self._answered = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        from memprof.profiler.sources.allocator.out_of_memory import REPORTS

        self._watch.install()
        REPORTS.follow(self._watch)
        REPORTS.keep_with(self._keep)
        REPORTS.start()
        on_cuda_start(self._cuda_starts)

    def _cuda_starts(self) -> None:
        if os.getpid() != self._process:
            return
        self._started = True
        # A process of multiprocessing runs finalizers and no function of atexit.
        atexit.register(self._answer, BY_ITSELF)
        multiprocessing.util.Finalize(None, self._answer, (BY_ITSELF,), exitpriority=100)
        (self._folder / f"{self._process}.started").touch()
        threading.Thread(target=self._wait, name="memprof-simulate", daemon=True).start()

    def _keep(self, account: DeviceAccount) -> str:
        self._out_of_memory = account
        return ""

    def _wait(self) -> None:
        from memprof.profiler.sources.allocator.draining import on_main_thread

        while not (self._folder / COLLECT).exists():
            time.sleep(_PERIOD_S)
        ended = (self._folder / COLLECT).read_text()
        on_main_thread(functools.partial(self._answer, ended))
        time.sleep(_PATIENCE_S)
        self._answer(ended)

    def _answer(self, ended: str) -> None:
        # A fork of this process has its finalizers.
        if os.getpid() != self._process or not self._started:
            return
        # Another thread answers, or this one does and was asked again between two bytecodes.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._answered:
                self._answered = True
                self._write(self._outcome(ended))
        finally:
            self._lock.release()

    def _outcome(self, ended: str) -> ProcessOutcome:
        outcome = ProcessOutcome(
            process=self._process,
            name=_name(),
            out_of_memory=self._out_of_memory,
            failure=uncaught() if ended == BY_ITSELF else None,
            serving=serving(),
        )
        watch = self._watch
        outcome.undecided = why_undecided(
            ended,
            watch.fewest_steps,
            watch.steps,
            watch.backwards,
            watch.objects.has_optimizer,
        )
        try:
            cut_off = ended != BY_ITSELF or outcome.failure is not None
            outcome.accounts = watch.accounts(cut_off=cut_off)
        except Exception:
            log.exception("memprof could not make the account of process %d", self._process)
            outcome.lost = True
        for account in outcome.accounts:
            account.simulated = True
            account.elapsed_ns = int((time.monotonic() - self._began) * 1e9)
            account.ended = ended
        return outcome

    def _write(self, outcome: ProcessOutcome) -> None:
        path = self._folder / f"{self._process}.process"
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(msgspec.json.encode(outcome))
        unfinished.replace(path)


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
    place = Path(folder)
    if not (place / COLLECT).exists():
        leave_text(place / COLLECT, ended)
    until = (place / COLLECT).stat().st_mtime + COLLECT_S
    while _silent(place) and time.time() < until:
        time.sleep(_PERIOD_S / 2)


def leave_text(path: Path, text: str) -> None:
    """Make a file that is whole when it appears."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    unfinished.write_text(text)
    unfinished.replace(path)


def _silent(folder: Path) -> list[int]:
    """Processes that live and have not answered."""
    return [pid for pid in _started(folder) if not _answer_of(folder, pid) and _lives(pid)]


def _started(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("*.started"))


def _answer_of(folder: Path, pid: int) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        return (folder / f"{pid}.process").read_bytes()
    return b""


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
        answer = _answer_of(Path(folder), pid)
        if answer:
            found.append(msgspec.json.decode(answer, type=ProcessOutcome))
        else:
            found.append(ProcessOutcome(process=pid, lost=True))
    return found
