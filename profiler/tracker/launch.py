"""Runs a script, folder or module with a tracker, as ``python`` would run it.

``memprof run`` replaces itself by ``python -m memprof.profiler.tracker.launch``, so that no frame
of the command line's is around the script: exit status, signals and Ctrl+C are the script's own.
Settings come in the environment, where the tracker reads them.
"""

from __future__ import annotations

import sys

from .. import run_main
from .api import track

USAGE = "usage: python -m memprof.profiler.tracker.launch (SCRIPT | -m MODULE) [ARGUMENT ...]"


def launch(arguments: list[str]) -> None:
    """Run what ``arguments`` say as ``__main__``, with a tracker."""
    if not arguments or arguments == ["-m"]:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    # As an argument: who asks for a run with the tracker has decided, whatever a file says; and
    # the processes that the script starts have not.
    run_main.launch(arguments, lambda: track(enabled=True), __file__)


if __name__ == "__main__":
    launch(sys.argv[1:])
