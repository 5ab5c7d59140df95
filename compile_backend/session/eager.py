"""The allocator's side of a session: ``memprof.profile(eager=True)``, ``watch_graphs()``, and
``on_oom=PATH``: the report of the moment at which a device has no more memory.

Note [One file, the last failure]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The file is written anew for each report, so that it has the failure that came last: the one that
ends a program. What failed before is counted in it, and in the log with its line.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable

import torch

from memprof.profiler.file.profile_file import write_profile
from memprof.profiler.model import DeviceAccount, GraphPool, Growth
from memprof.profiler.sources.allocator.allocator_session import AllocatorSession
from memprof.profiler.sources.allocator.graph_watch import GraphWatch
from memprof.profiler.sources.allocator.out_of_memory import REPORTS
from memprof.profiler.support.process_hooks import ForkSafeLock

from .profiler_callbacks import report_out_of_memory
from .runtime import RUNTIME, Session

log = logging.getLogger("memprof")

_lock = ForkSafeLock()
_current: EagerMemory | None = None
"""Holder of the allocator's history, of which a process has one."""


class EagerMemory:
    """Follows the devices of this process from ``begin`` to ``end``, after which the lists are
    there, what has most first; or ``why_not`` says in words why they are empty. With ``accounts``
    it says what all is for that is reserved, with ``graphs`` what CUDA graphs hold; with neither it
    does nothing."""

    def __init__(self, *, accounts: bool, graphs: bool) -> None:
        self.what = "the device's memory" if accounts else "CUDA graphs"
        self.accounts: list[DeviceAccount] = []
        self.graph_pools: list[GraphPool] = []
        self.growth: list[Growth] = []
        self.why_not = ""
        self._accounts = accounts
        self._wanted = accounts or graphs
        self._watch = AllocatorSession(guest=True, phases=accounts)
        self._graphs = GraphWatch(self._watch) if graphs else None
        self._process = os.getpid()
        self._began_ns = 0
        self._undo = contextlib.ExitStack()

    def begin(self) -> None:
        """Follow from here on, or from where CUDA starts; raises ``RuntimeError`` if another
        session does."""
        global _current
        if not self._wanted:
            return
        with _lock:
            if _current is not None and _current._process == os.getpid():
                raise RuntimeError(
                    "a session with eager=True or graphs=True (watch_graphs) is open in this "
                    "process: there is one allocator, and one history of it. End that one first, "
                    "ask it for both, or leave these out here"
                )
            _current = self
        self._began_ns = time.perf_counter_ns()
        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            self.why_not = "this build of torch has no CUDA"
            return
        try:
            self._undo.callback(self._watch.uninstall)
            self._watch.install()
            if self._graphs is not None:
                self._undo.callback(self._graphs.uninstall)
                self._graphs.install()
            self._undo.callback(REPORTS.follow(self._watch))
        except Exception as e:
            self._watch.fail(e)

    def end(self, error: object) -> None:
        """Fill the lists and leave torch as it was; the program leaves by ``error``."""
        if not self._wanted or self._process != os.getpid():
            return
        try:
            if not self.why_not:
                self._describe(error)
        except Exception as e:
            if not self._watch.why_not:
                self._watch.fail(e)
            self.why_not = self._watch.why_not
        finally:
            self.cancel()
        if self.why_not:
            log.warning("There is no account of %s: %s.", self.what, self.why_not)

    def cancel(self) -> None:
        global _current
        try:
            self._undo.close()
        except Exception as e:
            self._watch.fail(e)
        with _lock:
            _current = None if _current is self else _current

    def _describe(self, error: object) -> None:
        if self._graphs is not None:
            self.graph_pools = self._graphs.pools()
        if self._accounts:
            # First: to describe the account is to be through.
            try:
                self.growth = self._watch.growth()
            except Exception as e:
                log.error("memprof failed to look for growth: %s: %s", type(e).__name__, e)
            self.accounts = self._watch.accounts(cut_off=error is not None)
        for account in self.accounts:
            account.elapsed_ns = time.perf_counter_ns() - self._began_ns
            account.ended = "the session ended" if error is None else f"by {type(error).__name__}"
        if not self._watch.started:
            self.why_not = "CUDA was not started inside the session"
        elif self._accounts and not self.accounts:
            self.why_not = "nothing was reserved on any device"
        elif not self._accounts and not self.graph_pools:
            self.why_not = "nothing was captured, and no pool was made"


def write_to(path: str, session: Session) -> Callable[[], None]:
    """Write the report of each failure, with compiled calls of ``session``, to ``path`` from now
    on; what is returned ends that."""
    process = os.getpid()

    def write(account: DeviceAccount) -> str:
        if os.getpid() != process:
            return ""
        profile = RUNTIME.profile(session)
        profile.accounts = [account]
        write_profile(profile, path)
        return path

    report_out_of_memory()
    return REPORTS.keep_with(write)
