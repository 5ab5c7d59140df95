"""Functions that run in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_in_threads(*functions: Callable[[], object]) -> None:
    """Run all at once, each in a new thread, and wait until they have returned."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
