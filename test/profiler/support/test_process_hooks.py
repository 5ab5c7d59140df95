"""The registry for reset and fork."""

from __future__ import annotations

import os
import signal

import pytest

from memprof.profiler.support import process_hooks


def test_what_stands_on_others_is_reset_before_these(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(process_hooks, "_on_reset", [])
    process_hooks.on_reset(lambda: called.append("first"))

    @process_hooks.on_reset
    def second() -> None:
        called.append("second")

    process_hooks.reset()
    assert called == ["second", "first"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_thread_that_forks_inside_of_a_lock_still_has_it_in_the_child() -> None:
    # GIVEN a lock that the forking thread has; what another thread has is in test_fork.py
    lock = process_hooks.ForkSafeLock()
    with lock:
        child = os.fork()
        if child == 0:
            signal.alarm(600)
    if child == 0:
        # It was given back, once: it is free, and cannot be given back again.
        free = not lock._lock._is_owned()
        os._exit(0 if free else 1)
    assert os.waitpid(child, 0)[1] == 0
