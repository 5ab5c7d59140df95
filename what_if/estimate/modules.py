"""Which module launched something: ranges of the profiler around each call of a module.

Global hooks of ``torch.nn`` name them while a step is followed. Compiled code has no calls of
modules, and Dynamo would compile it anew for the hooks: a program with any has no time by module.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
from torch.nn.modules import module as hooks

from . import _torch_compat


class ModuleRanges:
    """Ranges of the profiler, between ``begin`` and ``end``."""

    def __init__(self) -> None:
        self._open: list[tuple[torch.nn.Module, Any]] = []
        self._handles: list[Any] = []
        self._paths: dict[int, str] = {}

    def begin(self) -> None:
        """Begin, unless something was compiled."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is None or not dynamo.counters["stats"]["unique_graphs"]:
            self._handles = [
                hooks.register_module_forward_pre_hook(self._enter),
                hooks.register_module_forward_hook(self._leave, always_call=True),
            ]

    def end(self) -> None:
        """End; calls that are under way lose their ranges."""
        for handle in self._handles:
            handle.remove()
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        path = self._path(module)
        self._open.append((module, _torch_compat.enter_range(_torch_compat.OF_MODULE + path)))

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        # A call that began before the hooks has no range.
        if self._open and self._open[-1][0] is module:
            self._open.pop()[1].__exit__(None, None, None)

    def _path(self, module: torch.nn.Module) -> str:
        path = self._paths.get(id(module))
        if path is None:
            path = type(module).__name__
            if self._open:
                above = self._open[-1][0]
                names = (name for name, child in above.named_modules() if child is module)
                own = re.sub(r"\d+", "*", next(names, path))
                # Wrappers such as checkpointing's keep the module under a name of theirs.
                parts = [part for part in own.split(".") if not part.startswith("_")]
                path = ".".join((self._paths[id(above)], *parts))
            self._paths[id(module)] = path  # Also of a call alone, to compute it again.
        return path
