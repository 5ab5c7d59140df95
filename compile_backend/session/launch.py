"""Runs a script, folder or module with a tracker, or while captures of CUDA graphs are watched.

``memprof run`` replaces itself by ``python -m memprof.compile_backend.session.launch``, so that no
frame of the command line's is around the script: exit status, signals and Ctrl+C are the script's
own. Settings come in the environment, where the tracker reads them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from memprof.profiler.support import run_main


def with_tracker(arguments: list[str]) -> None:
    """Run what ``arguments`` say as ``__main__``, with a tracker."""
    from memprof.profiler.sources.process.api import track

    # As an argument: who asks for a run with the tracker has decided, whatever a file says; and
    # the processes that the script starts have not.
    run_main.launch(arguments, lambda: track(enabled=True), __file__)


def watching_graphs(folder: str, arguments: list[str]) -> None:
    """Run what ``arguments`` say as ``__main__``, and leave a profile in ``folder``:
    ``cuda_graphs_YYYYMMDD_HHMMSS.memprof`` in local time, or with a number behind that where
    another process writes one of that name."""
    from memprof.profiler.support.text import visible

    from .profiling import watch_graphs

    name = time.strftime("cuda_graphs_%Y%m%d_%H%M%S.memprof", time.localtime())
    session = watch_graphs(os.path.join(folder, name))

    def print_path() -> None:
        print(visible(f"memprof run: CUDA graphs are in {session.path}"), file=sys.stderr)

    with contextlib.ExitStack() as written, contextlib.ExitStack() as inside:

        def begin() -> None:
            inside.enter_context(session)
            written.callback(print_path)

        run_main.launch(arguments, begin, __file__)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--graphs"] and len(sys.argv) > 2:
        watching_graphs(sys.argv[2], sys.argv[3:])
    else:
        with_tracker(sys.argv[1:])
