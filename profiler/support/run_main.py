"""Runs a script or module as ``__main__``, as ``python`` would run it.

Whatever is to be on while it runs is turned on by ``before``, which is called last: once the search
path and ``sys.argv`` are the script's.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, TracebackType
from typing import Any


class CannotRun(Exception):
    """The script or module to run is not there, or cannot be read; the message says which."""


def run_main(arguments: list[str], before: Callable[[], object]) -> None:
    """Run ``SCRIPT ARGUMENT...`` or ``-m MODULE ARGUMENT...``, as after ``python``; ``before`` is
    called right before its first line.

    Raises:
        CannotRun: there is no such script or module, or none is named.
        BaseException: whatever the script raises.
    """
    spec: ModuleSpec | None
    if arguments in ([], ["-m"]):
        raise CannotRun("nothing to run: SCRIPT or -m MODULE is missing")
    if arguments[0] == "-m":
        name, rest = arguments[1], arguments[2:]
        if not _SAFE_PATH:
            sys.path[0] = os.getcwd()
        code, spec = _module(name)
        file = path = spec.origin or name
    else:
        path, rest = arguments[0], arguments[1:]
        file = os.path.abspath(path)
        code, spec = _script(path), None
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
    before()
    exec(code, main.__dict__)


def launch(arguments: list[str], before: Callable[[], object], file: str) -> None:
    """``run_main`` for a command that has replaced itself by the module ``file``. What cannot be
    run ends the process with status 2; tracebacks begin with the script's frames."""
    try:
        run_main(arguments, before)
    except SystemExit:
        raise
    except CannotRun as e:
        print(f"memprof run: {e}", file=sys.stderr)
        sys.exit(2)
    except BaseException:
        # The interpreter shows it and sets the exit status, that of Ctrl+C too.
        _show_without(file)
        raise


_SAFE_PATH = getattr(sys.flags, "safe_path", False)
"""``python -P``: no folder is put in front of the search path."""


def _script(path: str) -> CodeType:
    file = os.path.abspath(path)
    if not _SAFE_PATH:
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    try:
        with open(file, "rb") as opened:
            source = opened.read()
    except OSError as e:
        raise CannotRun(f"cannot open {path}: {e.strerror or e}") from e
    return compile(source, file, "exec", dont_inherit=True)


def _module(name: str) -> tuple[CodeType, ModuleSpec]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name = f"{name}.__main__"
            spec = importlib.util.find_spec(name)
    except (ImportError, ValueError) as e:
        raise CannotRun(f"cannot find module {name}: {e}") from e
    loader: Any = spec.loader if spec is not None else None
    code = loader.get_code(name) if loader is not None else None
    if spec is None or code is None:
        raise CannotRun(f"there is no module {name} that can be run")
    return code, spec


def _show_without(file: str) -> None:
    """Let tracebacks that nobody catches begin with the script's own frames."""
    ours = {__file__, "<frozen runpy>", runpy.__file__, file}
    hook = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename in ours:
            trace = trace.tb_next
        hook(kind, error.with_traceback(trace), trace)

    sys.excepthook = shown
