"""Programs in processes that are forked from one which has imported torch: that takes longer than
most of them run."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch._dynamo", "memprof"])


def run_forked(program: str | Path, *arguments: str, **environment: str) -> str:
    """Standard error of a program that must succeed: of a file, or of a text that has none.
    ``environment`` is what is read after torch was imported."""
    with tempfile.NamedTemporaryFile("r") as log:
        given = (program, arguments, environment, log.name)
        process = _SERVER.Process(target=_as_main, args=given)
        process.start()
        process.join()
        errors = log.read()
    assert process.exitcode == 0, errors
    return errors


def _as_main(
    program: str | Path, arguments: tuple[str, ...], environment: Mapping[str, str], log: str
) -> None:
    """Run a program as ``python -W ignore`` would, its standard error in a file."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    warnings.simplefilter("ignore")
    os.environ.update(environment)
    gc.freeze()  # Else each search for an object walks all of torch's.
    sys.argv = [str(program), *arguments]
    if isinstance(program, Path):
        sys.path.insert(0, str(program.parent))
        runpy.run_path(str(program), run_name="__main__")
    else:
        exec(program, vars(sys.modules["__main__"]))
    atexit._run_exitfuncs()
