"""Runs a script, folder or module with a tracker, as ``python`` would run it.

``memprof run`` replaces itself by ``python -m memprof.profiler.tracker.launch``, so that no frame
of the command line's is around the script: exit status, signals and Ctrl+C are the script's own.
Settings come in the environment, where the tracker reads them.
"""

from __future__ import annotations

import sys

from ..run_main import CannotRun, run_main, show_without
from .api import track

USAGE = "usage: python -m memprof.profiler.tracker.launch (SCRIPT | -m MODULE) [ARGUMENT ...]"


def launch(arguments: list[str]) -> None:
    """Run what ``arguments`` say as ``__main__``, with a tracker."""
    if not arguments or arguments == ["-m"]:
        print(USAGE, file=sys.stderr)
        sys.exit(2)
    try:
        # As an argument: who asks for a run with the tracker has decided, whatever a file says; and
        # the processes that the script starts have not.
        run_main(arguments, before=lambda: track(enabled=True))
    except SystemExit:
        raise
    except CannotRun as e:
        print(f"memprof run: {e}", file=sys.stderr)
        sys.exit(2)
    except BaseException:
        # The interpreter shows it and sets the exit status, that of Ctrl+C too.
        show_without(__file__)
        raise


if __name__ == "__main__":
    launch(sys.argv[1:])
