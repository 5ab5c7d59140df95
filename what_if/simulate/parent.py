"""Starts a script on the simulated device and makes a ``Simulation`` of what became of it."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

import msgspec

from memprof.profiler.model import DeviceAccount, WhyNot
from memprof.simulated_cuda.environment import simulated_environment
from memprof.simulated_cuda.gpus import Gpu
from memprof.simulated_cuda.torch_build import find_torch

from .changes import environment_of, settings_of
from .command_line import Command, Job
from .failures import CAUGHT, Failure
from .outside import estimates
from .processes import (
    COLLECT_S,
    END,
    FOLDER,
    REQUEST,
    ProcessOutcome,
    collect,
    outcomes,
    write_whole,
)
from .request import VARIABLE, Outcome, Request, Run
from .serving import refusal

_SCRIPTS: set[subprocess.Popen[bytes]] = set()
"""Scripts that threads of this process wait for."""


def standard_input(files: contextlib.ExitStack) -> int | IO[bytes] | None:
    """Input of a run: this process's standard input, a file from its beginning, opened in
    ``files``. Through a pipe it reads nothing, as the next run would: that the two differ would be
    worse."""
    with contextlib.suppress(OSError):  # it is closed
        mode = os.fstat(0).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return subprocess.DEVNULL
        if stat.S_ISREG(mode):  # Several that run at once each have a position of their own.
            return files.enter_context(open("/proc/self/fd/0", "rb"))
    return None


_GRACE_S = 60
"""Seconds for a script that took too long to say how far it came."""

_ASKED_TO_END = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end this process. The script's, in a session of its own, would go on: a closed
terminal tells it nothing. Where the program handles one, or ignores it (nohup), that stays."""

_CLEANERS = (b"multiprocessing.resource_tracker", b"torch_shm_manager")
"""Processes that remove from /dev/shm what others have left, once all these have ended."""

_OUTCOMES = msgspec.json.Decoder(Outcome)  # At import: ranks end in several threads.

AMPLE = 1 << 40
"""Bytes of the device on which a job that did not fit shows how much it takes."""


@dataclass(frozen=True, slots=True)
class Settings(Run):
    """Settings of a simulation.

    Attributes:
        job: None for a process alone.
        devices: that the process sees; as many as a host of the job has.
        timeout_s: seconds after which the script is ended, None for never.
        quiet: without the script's output and progress.
        output: a file for the script's output, without progress; None for standard error.
        until: text in a line of the script's output at which it has shown all that it takes; None
            where it ends by itself, or is left as ``Run`` says.
        directory: in which the script runs; None for this process's.
    """

    gpu: Gpu
    job: Job | None = None
    devices: int = 1
    timeout_s: float | None = None
    quiet: bool = False
    output: str | None = None
    until: str | None = None
    directory: str | None = None

    @property
    def rank(self) -> int:
        """Rank in the job; 0 without a job."""
        return self.job.rank if self.job is not None else 0


@dataclass(slots=True)
class Simulation:
    """Memory that a script takes on a device, of a job or alone.

    Attributes:
        fits: whether the script ran without running out of memory, and what is outside of the
            allocator has room too; None where it failed otherwise, used no device, or was not seen
            for long enough to tell, which ``outcome.undecided`` says.
        outcome: of the script; where the job did not fit, of a run on a device with ample memory.
        failed_at: the accounts of the run that did not fit.
    """

    gpu: Gpu
    fits: bool | None
    job: Job | None
    outcome: Outcome
    failed_at: list[DeviceAccount] = field(default_factory=list)

    @property
    def least(self) -> int:
        """Bytes without which it cannot run: what is allocated at most, and what is outside; of
        several processes all that they had."""
        if self.account is None or self.outcome.processes:
            return self.needed
        return self.account.most_allocated + self.account.outside_bytes

    @property
    def rank(self) -> int:
        """Rank in the job; 0 without a job."""
        return self.job.rank if self.job is not None else 0

    @property
    def account(self) -> DeviceAccount | None:
        """Account of the device with most reserved."""
        return self.outcome.accounts[0] if self.outcome.accounts else None

    @property
    def needed(self) -> int:
        """Bytes that the device must have: reserved, and outside of the allocator; of several
        processes, what all had at once."""
        own = self.account.needed if self.account is not None else 0
        return max([own, *self.outcome.used])


def simulate(command: Command, settings: Settings, environment: Mapping[str, str]) -> Simulation:
    """Run a script on a simulated device, and if it does not fit, again on an ample one;
    ``environment`` is the script's, before the simulation's own variables.

    Raises:
        memprof.simulated_cuda.errors.SimulationError: the device cannot be had here.
    """
    first = attempt(command, settings, environment)
    outcome = first.outcome
    if outcome.failure is None or not outcome.failure.out_of_memory:
        return first
    caught, last = outcome.failure.kind == CAUGHT, outcome.out_of_memory
    failed_at = outcome.accounts if last is None else [last]
    if limited(failed_at):
        return Simulation(settings.gpu, False, settings.job, outcome, failed_at)
    if not settings.quiet:
        print("memprof simulate: out of memory; again with ample memory", file=sys.stderr)
    ample = replace(settings, gpu=settings.gpu.with_memory(AMPLE))
    outcome = _run(command, ample, environment, total=settings.gpu.memory)
    found = Simulation(settings.gpu, False, settings.job, outcome, failed_at)
    again = outcome.failure
    if caught and (outcome.status if again is None else not again.out_of_memory):
        found.fits = None  # Something else fails: the process that was out of memory had gone on.
    for failure in (a.failure for a in failed_at):
        # Pieces are the reason only where all of it would fit in one: now that is known.
        if failure is not None and failure.why is WhyNot.PIECES and found.least > found.gpu.memory:
            failure.why = WhyNot.FULL
    return found


def limited(failed_at: list[DeviceAccount]) -> bool:
    """Tells whether a request failed at a limit that the program sets itself, which an ample device
    does not change: it says that it has as much memory as the GPU."""
    return any(a.failure is not None and a.failure.limit for a in failed_at)


def attempt(command: Command, settings: Settings, environment: Mapping[str, str]) -> Simulation:
    """Simulate once, never on an ample device; ``fits`` is None where it ran out of memory, and
    False where an engine says that its cache does not fit."""
    outcome = _run(command, settings, environment)
    found = Simulation(settings.gpu, None, settings.job, outcome)
    if outcome.refusal:
        found.fits = False
    elif found.account is not None and outcome.failure is None and outcome.status == 0:
        found.fits = found.needed <= settings.gpu.memory
        if found.fits and outcome.undecided:
            found.fits = None
    return found


def _run(
    command: Command,
    settings: Settings,
    environment: Mapping[str, str],
    total: int | None = None,
) -> Outcome:
    """Run a script and return its outcome, on a device with ``total`` bytes, by default those of
    the GPU."""
    torch = find_torch(command.interpreter)
    base = {**environment, **environment_of(settings.changes, environment)}
    variables = simulated_environment(
        settings.gpu, devices=settings.devices, torch=torch, base=base
    )
    job = settings.job
    if job is not None:
        variables.update(job.environment())
    with tempfile.TemporaryDirectory(prefix="memprof-simulate-") as folder:
        run = {f.name: getattr(settings, f.name) for f in fields(Run)}
        run["torch_config"] = (*settings.torch_config, *settings_of(settings.changes))
        request = Request(
            **run,
            folder=folder,
            outcome=os.path.join(folder, "outcome.json"),
            world_size=job.world_size if job is not None else None,
            rank=settings.rank,
            progress=settings.output is None and not settings.quiet,
            gpu=settings.gpu.key,
        )
        if total is not None:
            # A program that sizes its batch by what is free is to size it as it did before.
            variables["SIMGPU_REPORTED_BYTES"] = str(total)
        variables["SIMGPU_SHARED"] = os.path.join(folder, "devices")
        variables[FOLDER] = folder
        variables["SPT_NOENV"] = "1"  # Else setproctitle, of engines, writes over the environment.
        # That ``_CLEANERS`` have to clean is no news: processes of the run are killed.
        filters = [variables.get("PYTHONWARNINGS", ""), "ignore:resource_tracker:UserWarning"]
        variables["PYTHONWARNINGS"] = ",".join(filter(None, filters))
        children = [str(Path(__file__).with_name("children")), variables.get("PYTHONPATH", "")]
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, children))
        variables[VARIABLE] = os.path.join(folder, REQUEST)
        with open(variables[VARIABLE], "wb") as f:
            f.write(msgspec.json.encode(request))
        words = [command.interpreter, *command.options]
        words += ["-m", "memprof.what_if.simulate.launch", *command.program]
        status = _wait(words, variables, settings, folder)
        try:
            with open(request.outcome, "rb") as written:
                outcome = _OUTCOMES.decode(written.read())
        except FileNotFoundError:
            outcome = Outcome(failure=None if status is None else _died(status))
        _add_processes(outcome, folder, settings.devices)
        outcome.refusal = refusal((outcome.failure, *(p.failure for p in outcome.processes)))
        if status is None and outcome.failure is None:
            outcome.ended = f"it was ended after {settings.timeout_s:g} s (--timeout)"
            outcome.undecided = f"{outcome.ended}, before it had shown all that it takes"
        for account in outcome.accounts:
            account.total = settings.gpu.memory if total is None else total
        return outcome


def _add_processes(outcome: Outcome, folder: str, devices: int) -> None:
    """Add what the processes took that the script has started: Note [Accounts of several
    processes]."""
    with contextlib.suppress(FileNotFoundError):
        table = Path(folder, "devices").read_bytes()
        outcome.used = list(struct.unpack_from(f"{devices}Q", table))  # UseTable::most
    outcome.processes = outcomes(folder)
    everybody: list[Outcome | ProcessOutcome] = [outcome, *outcome.processes]
    for process in everybody:
        beside = ("context", "nccl") if process.grouped else ("context",)
        for account in process.accounts:
            account.outside[:0] = [estimates()[key] for key in beside]
            if outcome.processes and process.grouped:
                # The device's own table has all the others, and of NCCL nothing.
                nccl = estimates()["nccl"].nbytes
                outcome.used[int(account.device.removeprefix("cuda:"))] += nccl
    if not outcome.processes:
        return
    outcome.own = outcome.accounts
    fullest: dict[str, DeviceAccount] = {}
    for account in [*outcome.accounts, *(a for p in outcome.processes for a in p.accounts)]:
        other = fullest.setdefault(account.device, account)
        if account.reserved > other.reserved:
            fullest[account.device] = account
    outcome.accounts = sorted(fullest.values(), key=lambda account: -account.reserved)
    for started in outcome.processes:
        outcome.undecided = outcome.undecided or started.undecided
        if started.lost:
            outcome.undecided = outcome.undecided or (
                f"process {started.process}, which the script had started, ended without an "
                "account: what it took for what, and what it lacked, is not known"
            )
        if started.failure is not None and started.failure.out_of_memory:
            # Whatever the script made of it: it ran without what that process would have done.
            outcome.failure = started.failure
            outcome.out_of_memory = started.out_of_memory or outcome.out_of_memory
    failure = outcome.failure
    caught = [p for p in outcome.processes if p.out_of_memory is not None]
    if caught and (outcome.status if failure is None else not failure.out_of_memory):
        # Workers of engines say so in their log, and end, or wait until they are killed.
        message = f"process {caught[0].process} ran out of memory"
        failure = Failure(kind=CAUGHT, message=message, trace="", out_of_memory=True)
        outcome.failure, outcome.out_of_memory = failure, caught[0].out_of_memory
    last = outcome.out_of_memory
    if last is not None and failure is not None and failure.out_of_memory:
        outcome.undecided, outcome.accounts = "", outcome.accounts or [last]


def _wait(
    words: Sequence[str],
    variables: Mapping[str, str],
    settings: Settings,
    folder: str = "",
) -> int | None:
    """Exit status of the script's process, None if it took too long; ``folder`` is the run's."""
    with contextlib.ExitStack() as files:
        # What the script prints is no result of ours: it goes where messages go.
        output: Any = files.enter_context(open(os.devnull, "wb")) if settings.quiet else sys.stderr
        if settings.output is not None:
            output = files.enter_context(open(settings.output, "wb"))
        process = subprocess.Popen(
            words,
            env=dict(variables),
            stdin=standard_input(files),
            stdout=output if settings.until is None else subprocess.PIPE,
            stderr=output if settings.until is None else subprocess.STDOUT,
            start_new_session=True,
            cwd=settings.directory,
        )
        _SCRIPTS.add(process)
        if settings.until is not None:
            _read_until(process, settings.until, output, folder)
    with exits_on_signals():
        try:
            return process.wait(settings.timeout_s)
        except subprocess.TimeoutExpired:
            collect(folder, f"it was ended after {settings.timeout_s:g} s (--timeout)")
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(COLLECT_S + _GRACE_S)  # It has an account to write.
            return None
        finally:
            _end(process.pid, folder)
            process.wait()
            _SCRIPTS.discard(process)


def end_scripts() -> None:
    """End the scripts that other threads of this process wait for."""
    for process in tuple(_SCRIPTS):
        process.kill()


def _end(group: int, folder: str) -> None:
    """Kill what the script has started, which is of no use without it, also in sessions of its own;
    ``folder`` is the run's. ``_CLEANERS`` end by themselves."""
    of_run = f"{FOLDER}={folder}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            pid, command = int(process.name), (process / "cmdline").read_bytes()
            ours = os.getpgid(pid) == group or of_run in (process / "environ").read_bytes()
            if ours and not any(name in command for name in _CLEANERS):
                os.kill(pid, signal.SIGKILL)


def _read_until(process: subprocess.Popen[bytes], until: str, output: Any, folder: str) -> None:
    """Hand a process's output on to ``output``, and have the run end once ``until`` is in it, in a
    thread of its own, which goes on to the end of the output."""
    assert process.stdout is not None
    lines: IO[bytes] = process.stdout
    onward = os.dup(output.fileno())

    def read() -> None:
        waits = True
        for line in lines:
            with contextlib.suppress(OSError):
                os.write(onward, line)
            if waits and until.encode() in line:
                waits = False
                threading.Thread(target=end, daemon=True).start()
        os.close(onward)

    def end() -> None:
        ended = f"it was ready: {until!r}"
        collect(folder, ended)
        write_whole(Path(folder, END), ended.encode())
        time.sleep(_GRACE_S)  # for the script's own account
        with contextlib.suppress(ProcessLookupError):
            process.terminate()

    threading.Thread(target=read, daemon=True).start()


@contextlib.contextmanager
def exits_on_signals() -> Iterator[None]:
    """Raise ``SystemExit`` meanwhile where a signal asks this process to end, and has no handler
    yet."""
    before: dict[signal.Signals, Any] = {}
    # Of another thread than the main one signals cannot be handled.
    if threading.current_thread() is threading.main_thread():
        for number in _ASKED_TO_END:
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _raise_exit)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise_exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _died(status: int) -> Failure:
    if status < 0:
        message = f"the script's process died of {signal.Signals(-status).name}"
    else:
        message = f"the script left its process with exit status {status} by os._exit or exec"
    return Failure(kind="Died", message=message, trace="")
