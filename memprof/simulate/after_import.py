"""Doing something right after a module has been imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

__all__ = ["after_import"]


def after_import(name: str, do: Callable[[ModuleType], object]) -> None:
    """Call ``do`` with a module once it is imported; at once if it has been."""
    module = sys.modules.get(name)
    if module is not None:
        do(module)
    else:
        sys.meta_path.insert(0, _Finder(name, do))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as the others would, and wraps the execution of its code."""

    def __init__(self, name: str, do: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._do = do

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._do(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
