"""Runs a script, folder or module with a tracker, as ``python`` would run it.

``memprof run`` replaces itself by ``python -m memprof.profiler.tracker.launch``, so that no frame
of the command line's is around the script: exit status, signals and Ctrl+C are the script's own.
Settings come in the environment, where the tracker reads them.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types
from importlib.abc import InspectLoader
from types import CodeType, TracebackType
from typing import NoReturn

from .api import initialize_memory_tracker

USAGE = "usage: python -m memprof.profiler.tracker.launch (SCRIPT | -m MODULE) [ARGUMENT ...]"


def launch(arguments: list[str]) -> None:
    """Run what ``arguments`` say as ``__main__``, with a tracker."""
    if not arguments or arguments == ["-m"]:
        _fail(USAGE)
    if arguments[0] == "-m":
        name, rest = arguments[1], arguments[2:]
        sys.path[0] = os.getcwd()
        code, spec, path = _module(name)
    else:
        path, rest = arguments[0], arguments[1:]
        code, spec = _script(path), None
    sys.argv = [path, *rest]
    # Not runpy.run_path(), which empties the module again when it returns: functions that the
    # script registered with atexit, and whatever is pickled by name, need it until the end.
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=path,
        __spec__=spec,
        __package__=spec.parent if spec is not None else None,
        __builtins__=__builtins__,
    )
    sys.modules["__main__"] = main
    initialize_memory_tracker()
    try:
        exec(code, main.__dict__)
    except Exception as e:
        # As the interpreter would have shown it, without this file.
        trace = _below_here(e.__traceback__)
        sys.excepthook(type(e), e.with_traceback(trace), trace)
        sys.exit(1)


def _script(path: str) -> CodeType:
    target = path
    if os.path.isdir(path):
        sys.path[0] = path
        target = os.path.join(path, "__main__.py")
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(path))
    try:
        with open(target, "rb") as file:
            source = file.read()
    except OSError as e:
        _fail(f"memprof run: cannot open {target}: {e.strerror or e}")
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as e:
        sys.excepthook(type(e), e, None)
        sys.exit(1)


def _module(name: str) -> tuple[CodeType, importlib.machinery.ModuleSpec, str]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as e:
        _fail(f"memprof run: cannot find module {name}: {e}")
    loader = spec.loader if spec is not None else None
    code = loader.get_code(name) if isinstance(loader, InspectLoader) else None
    if spec is None or code is None:
        _fail(f"memprof run: there is no module {name} that can be run")
    return code, spec, spec.origin or name


def _below_here(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    launch(sys.argv[1:])
