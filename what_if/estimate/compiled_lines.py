"""Which module compiled code launches something for: ranges of the profiler around its lines.

Note [Modules of compiled code]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor's generated code makes no calls of modules, but torch knows for each of its lines the
program's own frames that led to the last FX node in it, whether it was compiled now or came from a
cache, of a forward or of its backward (of partitions by ``keep_lines_of_partitions``). Python's
trace function, set while such code runs and only while something is followed, tells when a line
begins. What was fused from several modules counts as the last's. Instrumented copies, which
memprof's backend runs while it observes, and C++ wrappers have no such lines.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from memprof.profiler.sources.allocator._torch_compat import frames_of_generated
from memprof.profiler.sources.allocator.where import MODULE_IN_MODULE, modules_in

from . import _torch_compat


class CompiledLines:
    """Ranges around the lines of generated code.

    Attributes:
        on: whether something is followed now.
    """

    def __init__(self) -> None:
        self.on = False

    def install(self) -> None:
        """Follow all code that is loaded from now on."""
        _torch_compat.after_loads_of_generated(self._loaded)

    def _loaded(self, module: ModuleType) -> None:
        runner = getattr(module, "runner", None)
        if runner is not None:
            # Whoever captures them calls partitions by themselves.
            runner.partitions = [self._followed(p, module) for p in runner.partitions]
            vars(module).update({p.__name__: p for p in runner.partitions})
        vars(module)["call"] = self._followed(vars(module)["call"], module)

    def _followed(self, function: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.on:
                return function(*args, **kwargs)
            lines = _Lines(module.__file__ or "")
            before = sys.gettrace()
            sys.settrace(lines.called)
            try:
                return function(*args, **kwargs)
            finally:
                sys.settrace(before)
                lines.leave()

        return call


class _Lines:
    """Trace function of one call of a file's generated code."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._modules = ""
        self._range: Any = None

    def called(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._act if frame.f_code.co_filename == self._file else None

    def leave(self) -> None:
        """Leave the range that is open."""
        entered, self._range, self._modules = self._range, None, ""
        if entered is not None:
            entered.__exit__(None, None, None)

    def _act(self, frame: FrameType, event: str, argument: object) -> Any:
        try:
            self._at(frame.f_lineno, event)
        except Exception:  # It would end the program: code without ranges has no modules.
            return None
        return self._act

    def _at(self, line: int, event: str) -> None:
        modules = _modules_at(self._file, line) if event == "line" else ""
        if modules != self._modules:
            self.leave()
            if modules:
                self._range = _torch_compat.enter_range(_torch_compat.OF_MODULE + modules)
                self._modules = modules


@functools.lru_cache(maxsize=8192)
def _modules_at(file: str, line: int) -> str:
    """The modules, as of ``Where.module_path``, of a line of generated code; empty if none is
    known."""
    return MODULE_IN_MODULE.join(modules_in(frames_of_generated(file, line)))
