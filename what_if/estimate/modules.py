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

PREFIX = "memprof module "
"""Of the names of ranges; the path follows, with ``*`` for numbers."""


class ModuleRanges:
    """Ranges of the profiler, between ``begin`` and ``end``."""

    def __init__(self) -> None:
        self._open: list[tuple[torch.nn.Module, str, Any]] = []
        self._handles: list[Any] = []
        self._names: dict[tuple[int, int], str] = {}

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
            self._open.pop()[2].__exit__(None, None, None)

    def _enter(self, module: torch.nn.Module, inputs: object) -> None:
        path = type(module).__name__
        if self._open:
            parent, above, _ = self._open[-1]
            path = f"{above}.{self._name(parent, module)}"
        entered: Any = torch.autograd.profiler.record_function(PREFIX + path)
        entered.__enter__()
        self._open.append((module, path, entered))

    def _leave(self, module: torch.nn.Module, inputs: object, output: object) -> None:
        # A call that began before the hooks has no range.
        if self._open and self._open[-1][0] is module:
            self._open.pop()[2].__exit__(None, None, None)

    def _name(self, parent: torch.nn.Module, module: torch.nn.Module) -> str:
        key = id(parent), id(module)
        if key not in self._names:
            names = (name for name, child in parent.named_modules() if child is module)
            self._names[key] = re.sub(r"\d+", "*", next(names, type(module).__name__))
        return self._names[key]
