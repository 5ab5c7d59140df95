"""Which tensors of modules are written to, by looking at torch's counter of writes now and then."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from . import _torch_compat as compat

WRITES = 2
"""Looks that must have found a tensor written to."""


class Written:
    """Compares what modules have with what they had at the last look.

    A tensor counts as written to where at two looks it had a higher ``_version`` than at the look
    before. One write is what a checkpoint that is loaded does. Modules are told apart by identity;
    they are not kept.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, modules: Iterable[torch.nn.Module]) -> None:
        """Take down the counters of these modules' own tensors."""
        self._seen = {i: seen for i, seen in self._seen.items() if seen.module() is not None}
        for module in modules:
            seen = self._of(module)
            if seen is None:
                seen = self._seen[id(module)] = _Seen(weakref.ref(module))
            seen.look(module)

    def was(self, module: torch.nn.Module, name: str) -> bool:
        """Whether a module's own parameter or buffer was seen to be written to."""
        seen = self._of(module)
        return seen is not None and seen.rises.get(name, 0) >= WRITES

    def anything(self, module: torch.nn.Module) -> bool:
        """Whether a parameter of a module, or of one in it, was seen to be written to."""
        return any(
            self.was(inner, name)
            for inner in module.modules()
            for name in inner.__dict__.get("_parameters", {})
        )

    def _of(self, module: torch.nn.Module) -> _Seen | None:
        seen = self._seen.get(id(module))
        return seen if seen is not None and seen.module() is module else None


class _Seen:
    """What a module's own tensors were at the last look, by name."""

    def __init__(self, module: weakref.ref[torch.nn.Module]) -> None:
        self.module = module
        self.counters: dict[str, tuple[int, int]] = {}
        self.rises: dict[str, int] = {}

    def look(self, module: torch.nn.Module) -> None:
        for kind in ("_parameters", "_buffers"):
            for name, tensor in list(module.__dict__.get(kind, {}).items()):
                now = compat.writes_to(tensor) if isinstance(tensor, torch.Tensor) else None
                if now is None:
                    continue
                before = self.counters.get(name)
                if before is not None and before[0] == id(tensor) and before[1] < now:
                    self.rises[name] = self.rises.get(name, 0) + 1
                elif before is not None and before[0] != id(tensor):
                    self.rises.pop(name, None)  # Moved to another device, or replaced.
                self.counters[name] = (id(tensor), now)
