"""Stands in for kernels that FlashInfer and SGLang compile with nvcc or CuTe while they run.

On the simulated device kernels compute nothing, and what these take of its memory torch allocates
before it calls them. So a module of such kernels is an object whose functions do nothing. Seen with
FlashInfer 0.6.15, apache-tvm-ffi 0.1.11 and nvidia-cutlass-dsl 4.8.0.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from memprof.simulated_cuda import control
from memprof.simulated_cuda.after_import import after_import


class Kernels:
    """A module of compiled kernels, under any names, or one of them. The class takes the place of
    functions that compile: of CuTe's ``compile``, too, which may be indexed with options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Compile nothing."""

    def __class_getitem__(cls, options: Any) -> type[Kernels]:
        return cls

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Compute nothing."""


def stand_in() -> None:
    """Have this process compile no such kernels; nothing where its device is not simulated."""
    if not control.simulated():
        return

    def loads(module: ModuleType) -> None:
        for name in ("load", "load_inline"):
            setattr(module, name, Kernels)

    def builds(module: ModuleType) -> None:
        if hasattr(module, "JitSpec"):
            module.JitSpec.build_and_load = Kernels

    def compiles(module: ModuleType) -> None:
        module.compile = Kernels  # type: ignore[attr-defined]

    after_import("tvm_ffi.cpp", loads)
    after_import("flashinfer.jit.core", builds)
    after_import("cutlass.cute", compiles)
