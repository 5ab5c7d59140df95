"""Runs a script, folder or module with a tracker, as ``python`` would run it.

``memprof run`` replaces itself by ``python -m memprof.profiler.tracker.launch``, so that no frame
of the command line's is around the script: exit status, signals and Ctrl+C are the script's own.
Settings come in the environment, where the tracker reads them.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import runpy
import sys
import types
import zipimport
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, TracebackType
from typing import Any, NoReturn

from .api import initialize_memory_tracker

USAGE = "usage: python -m memprof.profiler.tracker.launch (SCRIPT | -m MODULE) [ARGUMENT ...]"


def launch(arguments: list[str]) -> None:
    """Run what ``arguments`` say as ``__main__``, with a tracker."""
    if not arguments or arguments == ["-m"]:
        _fail(USAGE)
    try:
        _run(arguments)
    except SystemExit:
        raise
    except BaseException:
        # The interpreter shows it and sets the exit status, that of Ctrl+C too.
        _show_without_this_file()
        raise


def _run(arguments: list[str]) -> None:
    spec: ModuleSpec | None
    if arguments[0] == "-m":
        name, rest = arguments[1], arguments[2:]
        if not _SAFE_PATH:
            sys.path[0] = os.getcwd()
        code, spec, path = _module(name)
        file = path
    else:
        path, rest = arguments[0], arguments[1:]
        code, spec, file = _script(path)
    sys.argv = [path, *rest]
    # Not runpy.run_path(), which empties the module again when it returns: functions that the
    # script registered with atexit, and whatever is pickled by name, need it until the end.
    main = types.ModuleType("__main__")
    main.__dict__.update(
        __file__=file,
        __spec__=spec,
        __loader__=spec.loader if spec is not None else SourceFileLoader("__main__", file),
        __package__=spec.parent if spec is not None else None,
        __builtins__=__builtins__,
    )
    sys.modules["__main__"] = main
    # As an argument: who asks for a run with the tracker has decided, whatever a file says; and the
    # processes that the script starts have not.
    initialize_memory_tracker(enabled=True)
    exec(code, main.__dict__)


_SAFE_PATH = getattr(sys.flags, "safe_path", False)
"""``python -P``: no folder is put in front of the search path."""


def _script(path: str) -> tuple[CodeType, ModuleSpec | None, str]:
    """Code, spec and ``__file__`` of a script, or of a folder or zip file with ``__main__.py``."""
    file = os.path.abspath(path)
    if pkgutil.get_importer(file) is not None:
        sys.path[0 : not _SAFE_PATH] = [file]
        spec = PathFinder.find_spec("__main__", [file])
        code = _code(spec)
        if spec is None or code is None:
            _fail(f"memprof run: cannot find __main__.py in {path}")
        return code, spec, spec.origin or file
    if not _SAFE_PATH:
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    try:
        with open(file, "rb") as opened:
            source = opened.read()
    except OSError as e:
        _fail(f"memprof run: cannot open {path}: {e.strerror or e}")
    return compile(source, file, "exec", dont_inherit=True), None, file


def _module(name: str) -> tuple[CodeType, ModuleSpec, str]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as e:
        _fail(f"memprof run: cannot find module {name}: {e}")
    code = _code(spec)
    if spec is None or code is None:
        _fail(f"memprof run: there is no module {name} that can be run")
    return code, spec, spec.origin or name


def _code(spec: ModuleSpec | None) -> CodeType | None:
    loader: Any = spec.loader if spec is not None else None
    if spec is None or not isinstance(loader, (InspectLoader, zipimport.zipimporter)):
        return None
    return loader.get_code(spec.name)


def _show_without_this_file() -> None:
    """Let tracebacks begin with the script's own frames."""
    hook = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = shown


_OURS = (__file__, "<frozen runpy>", runpy.__file__)


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    launch(sys.argv[1:])
