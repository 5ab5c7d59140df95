"""Runs a script in this process, on whatever device is there, and writes an ``Outcome``.

``python -m memprof.what_if.simulate.launch (SCRIPT | -m MODULE) [ARGUMENT ...]`` with a ``Request``
in the environment. Nothing of torch is imported before the script does: what a script sets in
``os.environ`` first must count.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from memprof.profiler.model import Profile
from memprof.profiler.support.run_main import CannotRun, run_main
from memprof.simulated_cuda import control
from memprof.simulated_cuda.after_import import after_import
from memprof.what_if._torch_compat import fake_votes, keep_lines_of_partitions

from .changes import (
    change_of,
    is_idle,
    parse_setting,
    put_settings,
    unused_settings,
)
from .checkpointed import Checkpointed
from .engines import follow_engines, serving
from .failures import Failure, failure_of
from .followed import Followed, counted, grouped, name_among_all
from .leaving import BY_ITSELF, STILL, Leaving, steps_seen
from .messages import Messages
from .partitions import DRAWN_ANEW, count_partitions
from .pretend import HostReads, parse_pretence
from .processes import END, collect, follow_forks, note_training, serves, write_whole
from .ranks import fake_groups, fake_reductions, refuse_symmetric_memory
from .request import VARIABLE, Outcome, Request
from .vllm import follow_alone, ready, starts

_OURS = (__file__, run_main.__code__.co_filename)
"""Files whose frames are not the script's."""

_PERIOD = 0.2
"""Seconds between two looks at how far the program is."""

_MAX_CALLS = 1_000_000
"""Calls of compiled code that the log keeps."""

_PATIENCE = 20.0
"""Seconds for a main thread that computes to come out of it, before another ends the run."""

_LINE_PERIOD = 10.0
"""Seconds without news after which progress is printed all the same."""


def launch(arguments: list[str]) -> None:
    with open(os.environ.pop(VARIABLE), "rb") as f:
        request = msgspec.json.decode(f.read(), type=Request)
    run = _Run(request)
    status, failure = 0, None
    try:
        try:
            run_main(arguments, before=run.begin)
        except SystemExit as e:
            if e.code or run.is_child:
                raise
        for thread in threading.enumerate():  # as Python does at its end
            if not thread.daemon and thread is not threading.current_thread():
                thread.join()
        while others := [
            process
            for process in multiprocessing.active_children()
            if not process.daemon and not serves(request.folder, process.pid)
        ]:
            others[0].join(_PERIOD)
    except BaseException as e:
        if run.is_child:  # of a fork: it ends as it would have, and its parent goes on.
            raise
        if isinstance(e, SystemExit):
            status = int(e.code) if isinstance(e.code, int) else int(e.code is not None)
            found = failure_of(e, _OURS)
            failure = found if status and found.out_of_memory else None
            if status and not isinstance(e.code, int):
                print(e.code, file=sys.stderr)
        elif isinstance(e, CannotRun):
            failure, status = Failure(kind="CannotRun", message=str(e), trace=""), 2
        else:
            failure, status = failure_of(e, _OURS), 1
    if run.is_child:
        sys.exit(status)
    run.finish(BY_ITSELF if failure is None else "the script failed", failure, status)


def _has_cuda() -> bool:
    """Tells whether CUDA has started in this process."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)  # None while torch is being imported
    return cuda is not None and bool(cuda.is_initialized())


class _Run:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._process = os.getpid()
        self._began = time.monotonic()
        self._followed: Followed | None = None
        self._session: Any = None
        self._reads = HostReads(list(map(parse_pretence, request.pretend)))
        self._messages = Messages(request.heard)
        self._settings = list(map(parse_setting, request.torch_config))
        self._partitions: Counter[str] | None = None
        self._changed: dict[str, str] = {}
        self._leaving = Leaving(request.steps)
        self._times: Any = None
        self._of_thread: Failure | None = None
        self._finishing = False
        self._stderr = os.dup(2)

    @property
    def is_child(self) -> bool:
        """Tells whether this process was forked from the script's."""
        return os.getpid() != self._process

    def begin(self) -> None:
        signal.signal(signal.SIGTERM, self._terminated)
        threading.excepthook = functools.partial(self._thread_died, threading.excepthook)
        self._make_changes()  # Before the allocator's settings are looked at.
        after_import("torch", self._torch_is_there)
        after_import("torch._inductor.codegen.wrapper", keep_lines_of_partitions)
        put_settings(self._settings)
        if self._request.count_flops:
            self._partitions = count_partitions()
        if self._request.world_size is not None:
            rank, size = self._request.rank, self._request.world_size
            fake = functools.partial(fake_groups, rank=rank, world_size=size)
            after_import("torch.distributed.distributed_c10d", fake)
            after_import("torch.nn.parallel.distributed", fake_reductions)
            after_import("torch.distributed.pipelining.stage", fake_votes)
            after_import("torch.distributed._symmetric_memory", refuse_symmetric_memory)
            follow_alone()

        def backend_is_there(runtime: Any) -> None:
            self._session = runtime.RUNTIME.open_session(_MAX_CALLS)

        after_import("memprof.compile_backend.session.runtime", backend_is_there)
        threading.Thread(target=self._look, name="memprof-simulate", daemon=True).start()

    def _make_changes(self) -> None:
        """Make the changes that are no settings of torch; ``put_settings`` makes those."""
        classes = {
            text: blocks
            for text in self._request.changes
            if (blocks := change_of(text).blocks) is not None
        }
        if classes:
            Checkpointed(classes, self._changed.__setitem__).install()

    def finish(self, ended: str, failure: Failure | None = None, status: int = 0) -> NoReturn:
        """Write the outcome and leave the process, without the script's own end: stopped in a step
        it must not go on to save what it has."""
        self._finishing = True
        with contextlib.suppress(OSError):
            collect(self._request.folder, ended)
        failure = failure or self._of_thread
        outcome = Outcome(ended=ended, failure=failure, status=status)
        describe, dynamo = self._describe, sys.modules.get("torch._dynamo")
        if dynamo is not None:  # which may be compiling the frames that are called from a step
            describe = dynamo.disable(describe)
        try:
            describe(outcome)
        except Exception:
            outcome.failure = failure or Failure(
                kind="InternalError",
                message="memprof could not make the account of this run",
                trace=traceback.format_exc(),
            )
        write_whole(Path(self._request.outcome), msgspec.json.encode(outcome))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)

    def _describe(self, outcome: Outcome) -> None:
        followed = self._followed
        if followed is None:
            return
        outcome.out_of_memory = followed.out_of_memory
        outcome.grouped = grouped()
        from memprof.profiler.sources.allocator.totals import counters

        found = counters()
        outcome.accounts = followed.accounts(outcome.ended, failed=False)
        if outcome.failure is None:
            grows = self._leaving.what_may_come(outcome.ended)
            outcome.undecided = followed.why_undecided(outcome.ended) or grows
        if outcome.accounts:
            outcome.accounts[0].host_reads = self._reads.rows()
            outcome.counters = found[outcome.accounts[0].device]
        name_among_all(outcome.accounts)
        if control.simulated():
            outcome.uncovered = control.uncovered()
        outcome.notes = [
            *self._reads.misfits,
            *self._reads.unused(),
            *self._messages.notes,
            *self._reads.depends_on(),
            *unused_settings(self._settings),
        ]
        if self._times is not None:
            outcome.time = self._times.time
            outcome.notes += self._times.notes
        outcome.sent = self._messages.sent
        outcome.unanswered = self._messages.unanswered
        outcome.serving = serving()
        outcome.changed = [f"{text}: {shown}" for text, shown in self._changed.items()]
        if self._partitions is not None:
            outcome.flops = self._partitions["flops"]
            outcome.notes += [DRAWN_ANEW] if self._partitions["drawn_anew"] else []
            for text in self._request.changes:
                if is_idle(text, self._changed, self._partitions["graphs"]):
                    outcome.idle.append(text)
        outcome.profile = self._profile()

    def _profile(self) -> Profile:
        if self._session is not None:
            runtime: Any = sys.modules["memprof.compile_backend.session.runtime"]
            recorded: Profile = runtime.RUNTIME.profile(self._session)
            return recorded
        from memprof.compile_backend.session.environment import new_profile

        return new_profile()

    def _thread_died(self, say: Callable[[Any], Any], args: Any) -> None:
        """A thread of the script's did not catch an exception, which Python says and no more: the
        script may end as if nothing had been."""
        found = failure_of(args.exc_value or args.exc_type(), _OURS)
        if found.out_of_memory:
            self._of_thread = found
        say(args)

    def _terminated(self, number: int, frame: object) -> None:
        """Handle SIGTERM: end the run, as ``memprof simulate`` has waited long enough."""
        if self.is_child:
            sys.exit(128 + number)
        self._finish_once("it was ended")

    def _torch_is_there(self, torch: ModuleType) -> None:
        self._followed = Followed(self._after_step, self._began)
        self._followed.begin()
        follow_forks(self._request.folder)
        follow_engines()
        if control.simulated():
            from memprof.simulated_cuda.integers import compute_known
            from memprof.what_if.estimate.steps import StepTimes

            from .experts import balance_experts

            times_at = self._request.steps if self._request.until_still else None
            self._times = StepTimes(self._request.gpu, times_at)
            (balance_experts if self._request.balanced_experts else compute_known)()
            self._reads.install()
            if self._request.world_size is not None:
                self._messages.install()
                self._times.follow_collectives(self._request.link, self._request.network)
            control.on_host_read(self._reads.note)

    def _after_step(self, fewest: int, steps: int) -> None:
        if self.is_child:
            return
        note_training(self._request.folder)
        enough = self._leaving.after_step(fewest, steps, counted())
        if self._times is not None:
            self._times.after_step(steps, last=enough)
        if enough:
            self.finish(steps_seen(steps))

    def _look(self) -> None:
        """Print progress, and end the run when it is asked to end, or the peak has stood still."""
        last = time.monotonic()
        shown: tuple[int, int] | None = None
        end = os.path.join(self._request.folder, END)
        rank = "" if self._request.world_size is None else f"rank {self._request.rank}, "
        while not self._finishing:
            time.sleep(_PERIOD)
            if os.path.exists(end):
                with open(end) as f:
                    self._leave(f.read())
            if self._followed is None or not _has_cuda():
                continue
            allocator = self._followed.allocator
            memory = counted()
            asked, steps = allocator.requests, allocator.steps
            news, now = (steps, memory.reserved), time.monotonic()
            if self._request.progress and now - last >= (_LINE_PERIOD if news == shown else 1.0):
                shown, last = news, now
                line = (
                    f"memprof simulate: {rank}{now - self._began:5.0f} s, step {steps}, "
                    f"{allocator.backwards:,} backwards, "
                    f"{memory.reserved / 2**30:.2f} GiB reserved\n"
                )
                # To what standard error was at the beginning, whatever the script made of it.
                with contextlib.suppress(OSError):
                    os.write(self._stderr, line.encode())
            seen = (ready(), steps, memory.reserved, memory.allocated)
            if (
                self._request.until_still
                and not starts()
                and self._leaving.stands_still(seen, asked, allocator.trains)
            ):
                self._leave(f"{STILL} for {asked - self._leaving.asked:,} allocations")

    def _leave(self, ended: str) -> None:
        """End the run from another thread than the main one."""
        from memprof.profiler.sources.allocator.draining import on_main_thread, wait_while_busy

        on_main_thread(functools.partial(self._finish_once, ended))
        wait_while_busy(_PATIENCE)
        self._finish_once(ended)

    def _finish_once(self, ended: str) -> None:
        if not self._finishing:  # Else the run's end is being described.
            self.finish(ended)


if __name__ == "__main__":
    launch(sys.argv[1:])
