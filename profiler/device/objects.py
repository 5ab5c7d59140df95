"""Modules and optimizers of a running program, as they are made, and what their memory is for."""

from __future__ import annotations

import threading
import weakref

import torch

from . import known
from .known import Known, Look
from .written import Written


class Objects:
    """What a ``Watch`` is told of modules and optimizers.

    Attributes:
        has_optimizer: whether one was made.
    """

    def __init__(self) -> None:
        self.has_optimizer = False
        # As they are made: not even ``compat.existing`` is cheap enough to ask at each step.
        # By id: a module's own ``__hash__`` and ``__eq__`` may not work yet, or call two equal.
        self._modules: weakref.WeakValueDictionary[int, torch.nn.Module] = (
            weakref.WeakValueDictionary()
        )
        self._written = Written()
        self._lock = threading.RLock()
        self._looked = False

    def module_made(self, module: torch.nn.Module) -> None:
        """A module has got a parameter or a buffer."""
        self._modules[id(module)] = module

    def optimizer_made(self) -> None:
        """An optimizer is being made."""
        self.has_optimizer = True

    def look(self) -> None:
        """See what was written to since the last time."""
        with self._lock:  # ``draining`` looks from a thread of its own.
            self._looked = True
            self._written.look(self._alive())

    def look_once(self) -> None:
        """``look``, unless that was done before."""
        if not self._looked:
            self.look()

    def of_modules(self) -> Known:
        """Parameters, buffers and gradients of every module that was made."""
        self.look()
        return known.of_modules(self._alive(), self._written)

    def _alive(self) -> list[torch.nn.Module]:
        # ``values()`` walks a dictionary that the program's threads may add to meanwhile.
        return [m for ref in self._modules.valuerefs() if (m := ref()) is not None]

    def of_process(self) -> Look:
        """All that is known of modules and optimizers, by asking for those that there are."""
        modules, optimizers = known.modules_and_optimizers()
        for module in modules:
            self.module_made(module)
        self.has_optimizer |= bool(optimizers)
        self.look()
        return known.of_all(modules, optimizers, self._written)
