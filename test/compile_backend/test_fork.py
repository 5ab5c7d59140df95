"""A forked child: the threads of its parent are not there, and what they held is free."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

from memprof.compile_backend.session import profiler_callbacks
from memprof.compile_backend.session.runtime import RUNTIME
from memprof.cudagraph_trees.device import capture_lock as locks
from memprof.profiler.model import LedgerKind


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="torch calls CUDA, which bears no fork")
def test_locks_of_other_threads_are_free_in_a_child() -> None:
    # GIVEN a thread, as one that writes profiles, inside of every lock
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with (
            RUNTIME._lock,
            RUNTIME.ledger._lock,
            RUNTIME.identities._lock,
            profiler_callbacks._lock,
            locks.capturing(),
        ):
            inside.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    # WHEN the process forks
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(600)  # its end, should it wait for what never comes
            RUNTIME.graphs()
            RUNTIME.ledger.add(LedgerKind.RESET, None, "in a child")
            storage = torch.empty(4).untyped_storage()
            profiler_callbacks._find(RUNTIME.identities.identity(storage))
            del storage
            with locks.capturing():
                os._exit(0)
        finally:
            os._exit(1)
    # THEN the child can do all that its parent can
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert status == 0
