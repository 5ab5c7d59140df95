"""Runs a script, folder or module while captures of CUDA graphs are watched.

``memprof run --graphs`` replaces itself by ``python -m memprof.graphs_launch``, for the same
reasons as ``profiler/tracker/launch.py``.
"""

from __future__ import annotations

import os
import sys
import time

from .profiler import run_main
from .profiler._text import visible
from .session import watch_graphs

USAGE = "usage: python -m memprof.graphs_launch FOLDER (SCRIPT | -m MODULE) [ARGUMENT ...]"


def launch(folder: str, arguments: list[str]) -> None:
    """Run what ``arguments`` say as ``__main__``, and leave a profile in ``folder``.

    The file is ``cuda_graphs_YYYYMMDD_HHMMSS.memprof`` in local time, or has a number behind that
    where another process writes one of that name.
    """
    name = time.strftime("cuda_graphs_%Y%m%d_%H%M%S.memprof", time.localtime())
    session = watch_graphs(os.path.join(folder, name))
    begun = False

    def begin() -> None:
        nonlocal begun
        session.__enter__()
        begun = True

    try:
        run_main.launch(arguments, begin, __file__)
    finally:
        if begun:
            session.__exit__(*sys.exc_info())
            print(visible(f"memprof run: CUDA graphs are in {session.path}"), file=sys.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[2:] == ["-m"]:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    launch(sys.argv[1], sys.argv[2:])
