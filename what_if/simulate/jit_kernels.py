"""Stands in for kernels that FlashInfer and SGLang compile with nvcc while they run.

On the simulated device kernels compute nothing, and what these take of its memory torch allocates
before it calls them. So a module of such kernels is an object whose functions do nothing. Seen with
FlashInfer 0.6.15 and apache-tvm-ffi 0.1.11.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from memprof.simulated_cuda import control
from memprof.simulated_cuda.after_import import after_import


class Kernels:
    """A module of compiled kernels, under any names."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _no_kernels(*args: Any, **kwargs: Any) -> Kernels:
    return Kernels()


def stand_in() -> None:
    """Have this process compile no such kernels; nothing where its device is not simulated."""
    if not control.simulated():
        return

    def loads(module: ModuleType) -> None:
        for name in ("load", "load_inline"):
            setattr(module, name, _no_kernels)

    def builds(module: ModuleType) -> None:
        if hasattr(module, "JitSpec"):
            module.JitSpec.build_and_load = _no_kernels

    after_import("tvm_ffi.cpp", loads)
    after_import("flashinfer.jit.core", builds)
