"""``memprof.profile()`` and ``memprof.report()``."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from memprof.profiler.file.profile_file import check_name, read_profile, write_profile
from memprof.profiler.model import (
    DataFlowColumns,
    DeviceAccount,
    LedgerKind,
    Process,
    Profile,
    StepRecord,
)
from memprof.profiler.sources.allocator.present import optimizer_state, present_accounts
from memprof.profiler.support.errors import ProfileError
from memprof.profiler.support.writing import check_writable
from memprof.profiler.verbs import Views

from .eager import EagerMemory, write_to
from .environment import process
from .runtime import RUNTIME, Session
from .streaming import LOG_CALLS, Streamer

if TYPE_CHECKING:
    from .steps import StepRecorder

log = logging.getLogger("memprof")

_Part = TypeVar("_Part")

DEFAULT_MAX_CALLS = 1_000_000


class ProfilingSession(Views):
    """Context manager: profile what compiled functions do inside it.

    A run-time tracker that runs in the process (``track``) is part of the
    profile by itself; a ``torch.profiler`` run is by ``session.add_dataflow(run)``.

    Args:
        path: where to write the profile, ``NAME.memprof``. It is written while the program
            runs, so that a job that is killed leaves what it did up to a few seconds before,
            and no call has to stay in memory. ``{rank}``, ``{local_rank}``, ``{host}`` and
            ``{pid}`` are filled in: each process of a job needs a file of its own. The file is
            made on entry, so that an unwritable folder is found before the training, not
            after. If writing fails later all the same, that is logged and not raised.
        max_calls: how many calls to keep one by one where there is no path; earlier ones are
            only counted. A file has them all.
        eager: follow the CUDA allocator as well, so that the profile has an account of every byte
            that was reserved at the peak, of eager and compiled code alike (``Profile.accounts``,
            there once the session has ended; docs/eager-memory.md). It slows a program down,
            since each allocation costs microseconds more. Where there can be no account (no CUDA,
            or somebody else records the allocator's history), the log and the ledger say why.
        graphs: watch captures of CUDA graphs, whoever makes them: see ``watch_graphs``.
        on_oom: where to write the report of the moment at which a CUDA device has no more memory,
            ``NAME.memprof``, caught or not: what was asked for and by whom, why it did not fit, and
            everything that was live (docs/out-of-memory.md). Of several, the last one stays. Its
            placeholders are those of ``path``.
        steps: where to write a line of JSON for each step while the program runs, e.g.
            ``steps.{rank}.jsonl``: its time, what allocators have, the peak by category, graphs
            recorded, replayed and fallen back (docs/step-record.md). Its placeholders are those of
            ``path``; where another session writes that file, the log names the one beside it.
        on_step: called with the ``StepRecord`` of each step, within a quarter of a second, in a
            thread of memprof's; with or without ``steps``. The session's end waits some seconds for
            it.

    Attributes:
        path: of the file, placeholders filled in; None if there is none. Where another process
            writes that file, it becomes the path of another one.

    Raises:
        ProfileNotWritableError: on entry, ``path`` or ``steps`` cannot be written, or ``on_oom`` is
            no name of a profile.
        RuntimeError: on entry, another session with ``eager`` or ``graphs`` is open.
        ValueError: ``max_calls`` is negative, or ``on_oom`` is ``path``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_calls: int = DEFAULT_MAX_CALLS,
        eager: bool = False,
        graphs: bool = False,
        on_oom: str | os.PathLike[str] | None = None,
        steps: str | os.PathLike[str] | None = None,
        on_step: Callable[[StepRecord], object] | None = None,
    ) -> None:
        if max_calls < 0:
            raise ValueError(f"max_calls is {max_calls}; it must be 0 or more")
        self.path = path
        self._max_calls = max_calls
        self._session: Session | None = None
        self._streamer: Streamer | None = None
        self._result: Profile | None = None
        self._dataflow: DataFlowColumns | None = None
        self._all = eager
        self._eager = EagerMemory(accounts=eager, graphs=graphs)
        self._on_oom = on_oom
        self._steps = steps
        self._on_step = on_step
        self._recorder: StepRecorder | None = None
        self._accounts: list[DeviceAccount] = []
        self._state: dict[str, int] = {}
        self._stop_reports: Callable[[], None] = lambda: None
        self._open = False

    def __enter__(self) -> ProfilingSession:
        if self._session is not None:
            raise RuntimeError(
                "this profiling session was entered before; call memprof.profile() again"
            )
        path = None if self.path is None else fill_path(self.path, process())
        if path is not None:
            check_name(path)
        oom = None if self._on_oom is None else fill_path(self._on_oom, process())
        if oom is not None:
            if path is not None and os.path.abspath(oom) == os.path.abspath(path):
                raise ValueError(f"on_oom is {oom}, which is the profile's own path; give another")
            check_name(oom)
            check_writable(oom, "the report")
        with contextlib.ExitStack() as undo:
            self._eager.begin()
            undo.callback(self._eager.cancel)
            self._session = RUNTIME.open_session(self._max_calls if path is None else LOG_CALLS)
            undo.callback(RUNTIME.close_session)
            if path is not None:
                self._streamer = Streamer(RUNTIME, self._session, path)
                self._streamer.start()
                self.path = self._streamer.path
                undo.callback(self._streamer.finish, self._join)
            if self._steps is not None or self._on_step is not None:
                from .steps import StepRecorder

                steps = None if self._steps is None else fill_path(self._steps, process())
                self._recorder = StepRecorder(RUNTIME, steps, self._on_step)
                self._recorder.start()
            if oom is not None:
                self._stop_reports = write_to(oom, self._session)
            undo.pop_all()
        self._open = True
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self._open:  # An ExitStack, or a notebook's cell, may end it again.
            return
        self._open = False
        self._stop_reports()
        if self._recorder is not None:
            _unless_it_fails(self._recorder.finish, "memprof failed to end the record of steps")
        try:
            self._eager.end(error)
            if self._eager.why_not:
                reason = f"no account of {self._eager.what}: {self._eager.why_not}"
                RUNTIME.ledger.add(LedgerKind.FALLBACK, None, reason)
            self._accounts = self._eager.accounts if self._all else _accounts_now()
            self._state = _unless_it_fails(optimizer_state, _NO_STATE) or {}
            if self._streamer is not None:
                self._streamer.finish(self._join)
            if self._streamer is None or self._streamer.failed:
                self._result = self._of_runtime()
        except Exception:
            # The training that ran inside has succeeded; a fault of ours must not undo that.
            log.exception("memprof failed to make this session's profile. Please report this.")
            self._result = self._result or Profile(complete=False)
        finally:
            RUNTIME.close_session()

    def step(self) -> None:
        """End a step here, for ``steps`` and ``on_step``; without them it does nothing. Where
        nobody calls it, optimizers and marks of steps end them."""
        if self._recorder is not None:
            self._recorder.end("call")

    def profile(self) -> Profile:
        """The profile: of the whole session once it has ended, of what is past before that.

        The calls of a session with a path are read back from its file. Accounts of devices
        (``eager=True``) are there once it has ended.

        Raises:
            RuntimeError: the session has not begun.
            ProfileError: the session's file is gone or damaged.
        """
        if self._result is not None:
            return self._result
        if self._session is None:
            raise RuntimeError("this session has not begun: use `with memprof.profile() as s:`")
        if self._streamer is not None:
            self._streamer.flush()
        if self._streamer is None or self._streamer.failed:
            return self._of_runtime()
        found = read_profile(self._streamer.path)
        if not found.complete:
            return self._join(found, self._streamer.threads)
        if self._dataflow is not None:
            found.dataflow = self._dataflow
        self._result = found
        return found

    def add_dataflow(
        self, run: Any, *, modules: Any = None, optimizers: Any = None
    ) -> DataFlowColumns:
        """Make the memory profile of a ``torch.profiler`` run part of this profile.

        Inside the block it goes into the file too; after it, into ``profile()`` and ``save``.

            with memprof.profile("run.memprof") as session:
                with torch.profiler.profile(
                    record_shapes=True, profile_memory=True, with_stack=True
                ) as prof:
                    train()
                session.add_dataflow(prof, modules=model)

        Args:
            run: a ``torch.profiler.profile`` that has ended, or what
                ``memprof.profiler.profile_memory`` made of one.
            modules, optimizers: as for ``profile_memory``; they give names to memory.

        Returns:
            What was added. A later call replaces it.

        Raises:
            RuntimeError: the session has not begun.
            ValueError: the run did not record what a memory profile needs.
        """
        from memprof.profiler.sources.trace import (
            DataFlowProfile,
            data_flow_columns,
            profile_memory,
        )

        so_far = self.profile()
        if not isinstance(run, DataFlowProfile):
            run = profile_memory(run, modules=modules, optimizers=optimizers)
        self._dataflow = data_flow_columns(run, so_far.perf_origin_ns)
        if self._result is not None:
            self._result.dataflow = self._dataflow
        return self._dataflow

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile, whole or not at all.

        Raises:
            ProfileNotWritableError: it cannot be written; nothing is left behind.
        """
        filled = fill_path(path, process())
        # To read back a long session takes a while.
        check_name(filled)
        check_writable(filled)
        write_profile(self.profile(), filled)

    def profiles(self) -> list[Profile]:
        return [self.profile()]

    def _name(self) -> str:
        return "" if self.path is None else os.fspath(self.path)

    def __repr__(self) -> str:
        if self._session is not None:
            try:
                return super().__repr__()
            except ProfileError:  # Its file is gone: ``profile()`` says so.
                return f"<memprof profile {self._name()}: its file cannot be read>"
        return f"<memprof profile {self._name()}: not begun>".replace("  ", " ")

    def _of_runtime(self) -> Profile:
        threads: dict[int, int] = {}
        return self._join(RUNTIME.profile(self._session, threads), threads)

    def _join(self, profile: Profile, threads: Mapping[int, int]) -> Profile:
        if self._dataflow is not None:
            profile.dataflow = self._dataflow
        _join_tracker(profile, threads)
        profile.graph_pools = self._eager.graph_pools
        profile.accounts = self._accounts
        profile.growth = self._eager.growth
        profile.optimizer_state = self._state
        return profile


profile = ProfilingSession


def watch_graphs(path: str | os.PathLike[str] | None = None) -> ProfilingSession:
    """Context manager: say what CUDA graphs hold that are captured inside it, by whomever.

    ``torch.cuda.graph``, ``make_graphed_callables``, ``mode="reduce-overhead"``, a serving engine:
    each capture gets its bytes, by line and module, what it shares with which other graphs of its
    pool, what of it stays, and what it costs (``Profile.graph_pools``, there once the session has
    ended; docs/cuda-graph-memory.md).

        with memprof.watch_graphs() as graphs:
            engine.capture_model()
        graphs.report()

    It is ``profile(path, graphs=True)``. Captures allocate some microseconds slower inside, replays
    are as they were.

    Args:
        path: where to write the profile, as for ``profile``.

    Raises:
        ProfileNotWritableError: on entry, ``path`` cannot be written.
        RuntimeError: on entry, another session with ``eager`` or ``graphs`` is open.
    """
    return ProfilingSession(path, graphs=True)


def _join_tracker(profile: Profile, threads: Mapping[int, int]) -> None:
    # One that runs has been imported; importing it would make one.
    api = sys.modules.get("memprof.profiler.sources.process.api")
    tracker = api.current_tracker() if api is not None else None
    if tracker is not None and tracker.started:
        problem = "The tracker's record does not join the profile"
        profile.tracker = _unless_it_fails(lambda: tracker.record(threads), problem)


def fill_path(path: str | os.PathLike[str], process: Process) -> str:
    """``path`` with ``{rank}``, ``{local_rank}``, ``{host}`` and ``{pid}`` filled in.

    Logs a warning where the processes of a job would overwrite each other's file.
    """
    text = filled = os.fspath(path)
    for name in ("rank", "local_rank", "host", "pid"):
        filled = filled.replace(f"{{{name}}}", str(getattr(process, name)))
    # Rank 0 alone may well have a file without a number: only its peers would collide with it.
    if process.rank > 0 and filled == text:
        log.warning(
            "%s: this is rank %d of %d; if other ranks write a profile too, each needs a path of "
            "its own: put {rank} into it.",
            text,
            process.rank,
            process.world_size,
        )
    return filled


def current_profile() -> Profile:
    """The profile of this process so far, without any ``with``: the last 65,536 calls."""
    threads: dict[int, int] = {}
    found = RUNTIME.profile(threads=threads)
    _join_tracker(found, threads)
    found.accounts = _accounts_now()
    found.optimizer_state = _unless_it_fails(optimizer_state, _NO_STATE) or {}
    return found


def _accounts_now() -> list[DeviceAccount]:
    return _unless_it_fails(present_accounts, "memprof failed to account for the device") or []


_NO_STATE = "memprof failed to look for the state of optimizers"


def _unless_it_fails(make: Callable[[], _Part], problem: str) -> _Part | None:
    """A part of a profile, which is of more use without it than not at all."""
    try:
        return make()
    except Exception as e:
        log.error("%s: %s: %s", problem, type(e).__name__, e)
        return None


class _SoFar(Views):
    """Views of the profile of this process so far."""

    def profiles(self) -> list[Profile]:
        return [current_profile()]


def report(
    html: str | os.PathLike[str] | None = None,
    *,
    full: bool = False,
    top: int | None = None,
    device: str | None = None,
    file: TextIO | None = None,
) -> None:
    """Print the report of this process so far.

    Args:
        html: write it as a page for the browser here, instead.
        full, top, device, file: as for ``Views.report``.

    Raises:
        ValueError: ``top`` is less than 1, or there is nothing on ``device``.
        ProfileNotWritableError: ``html`` cannot be written.
    """
    if html is not None:
        _SoFar().to_html(html, device=device)
    else:
        _SoFar().report(full=full, top=top, device=device, file=file)
