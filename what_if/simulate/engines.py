"""Serving engines of this process, whichever of those that are known it is."""

from __future__ import annotations

from . import jit_kernels, sglang, vllm
from .engine_memory import Serving


def follow_engines() -> None:
    """Follow engines that this process imports, and spare them their compilers of CUDA."""
    jit_kernels.stand_in()
    vllm.follow_workers()
    sglang.follow_runners()


def serving() -> Serving | None:
    """Memory of the last worker of this process; None where there is none."""
    return vllm.serving() or sglang.serving()
