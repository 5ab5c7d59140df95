"""Functions that run in threads of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def run_in_threads(*functions: Callable[[], object]) -> None:
    """Run all at once, each in a new thread, and wait until the threads have gone, with what torch
    keeps for each."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        # Python's join() returns before the thread's C++ locals are destroyed, and torch's hold
        # Python objects: what autograd would carry to its own threads.
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            os.sched_yield()
