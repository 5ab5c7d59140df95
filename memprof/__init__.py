"""memprof: a torch.compile backend that makes compiled and CUDA-graph memory visible.

    model = torch.compile(model, backend="memprof")
    with memprof.profile("run.json.gz"):
        train(model)
    memprof.report()

    tracker = memprof.initialize_memory_tracker(interval=5.0)  # docs/tracker.md

``import memprof`` itself imports neither torch nor the backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .profiler.tracker.api import (
        get_memory_tracker,
        initialize_memory_tracker,
        memory_checkpoint,
        stop_memory_tracker,
    )
    from .session import ProfilingSession, current_profile, profile, report

__all__ = [
    "ProfilingSession",
    "current_profile",
    "get_memory_tracker",
    "initialize_memory_tracker",
    "memory_checkpoint",
    "profile",
    "report",
    "stop_memory_tracker",
]

_OF_TRACKER = {
    "get_memory_tracker",
    "initialize_memory_tracker",
    "memory_checkpoint",
    "stop_memory_tracker",
}


def __getattr__(name: str) -> Any:
    if name in _OF_TRACKER:
        from .profiler.tracker import api

        return getattr(api, name)
    if name in __all__:
        from . import session

        return getattr(session, name)
    if name == "compiled_autograd":
        import importlib

        return importlib.import_module("memprof.compiled_autograd")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "compiled_autograd"])
