"""Which module launched something: ranges of the profiler around each call of a module.

Global hooks of ``torch.nn`` name them while a step is followed. Dynamo would trace the hooks, or
compile anew for them: in a program with compiled code they are left out, and only that code's own
lines name modules (``compiled_lines.py``).
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import Any

import torch
from torch.nn.modules import module as hooks

from memprof.profiler.sources.allocator.owners import classes_called
from memprof.profiler.sources.allocator.where import MODULE_IN_MODULE

from . import _torch_compat


class _OpenCalls(threading.local):
    """Calls that are under way in a thread, each with its range."""

    def __init__(self) -> None:
        self.open: list[tuple[torch.nn.Module, Any]] = []


class ModuleRanges:
    """Ranges of the profiler, between ``begin`` and ``end``.

    Attributes:
        whole: whether none was cut short because something was compiled.
    """

    def __init__(self) -> None:
        self.whole = False
        self._calls = _OpenCalls()
        self._handles: list[Any] = []
        self._classes: weakref.WeakKeyDictionary[torch.nn.Module, tuple[str, ...]] = (
            weakref.WeakKeyDictionary()
        )

    def begin(self) -> None:
        """Begin; calls have none where something was compiled."""
        self.whole = True
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None or not dynamo.counters["stats"]["unique_graphs"]:
            self._handles = [
                hooks.register_module_forward_pre_hook(self._enter),
                hooks.register_module_forward_hook(self._leave, always_call=True),
            ]
            _torch_compat.before_compilations(self._compiling)

    def end(self) -> None:
        """End; calls of this thread that are under way lose their ranges."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        while self._calls.open:
            self._calls.open.pop()[1].__exit__(None, None, None)

    def _compiling(self) -> None:
        if self._handles:
            self.whole = False
            self.end()

    # The hooks are called where a compiled module begins, too: Dynamo skips them, and must not
    # compile what they call.
    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        compiler = _torch_compat.set_eval_frame(None)
        try:
            modules = MODULE_IN_MODULE.join(self._called(module))
            entered = _torch_compat.enter_range(_torch_compat.OF_MODULE + modules)
            self._calls.open.append((module, entered))
        except Exception:  # A program's call is worth more than its module.
            self.whole = False
        finally:
            _torch_compat.set_eval_frame(compiler)

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        # A call that began before the hooks has no range.
        if self._calls.open and self._calls.open[-1][0] is module:
            self._calls.open.pop()[1].__exit__(None, None, None)

    def _called(self, module: torch.nn.Module) -> tuple[str, ...]:
        classes = self._classes.get(module)
        if classes is None:
            above = self._classes[self._calls.open[-1][0]] if self._calls.open else ()
            classes = classes_called(module, above)
            self._classes[module] = classes  # Also of a call alone, to compute it again.
        return classes
