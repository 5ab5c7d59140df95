"""memprof: a torch.compile backend that makes compiled and CUDA-graph memory visible.

    model = torch.compile(model, backend="memprof")
    with memprof.profile("run.memprof"):
        train(model)
    memprof.report()
    memprof.load("run.memprof").to_html("run.html")

    with memprof.watch_graphs() as graphs:  # anyone's CUDA graphs: docs/cuda-graph-memory.md
        engine.capture_model()
    graphs.report()

    tracker = memprof.track(interval=5.0)  # of the whole process: docs/tracker.md

``import memprof`` itself imports neither torch nor the backend.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .other_memprof import REPAIR, other_memprof

if TYPE_CHECKING:
    from .compile_backend.session.profiling import (
        ProfilingSession,
        current_profile,
        profile,
        report,
        watch_graphs,
    )
    from .profiler.sources.process.api import (
        checkpoint,
        current_tracker,
        stop_tracking,
        track,
    )
    from .profiler.support.thread_activity import name_graphs
    from .profiler.verbs import LoadedProfile, load

__all__ = [
    "LoadedProfile",
    "ProfilingSession",
    "checkpoint",
    "current_profile",
    "current_tracker",
    "load",
    "name_graphs",
    "profile",
    "report",
    "stop_tracking",
    "track",
    "watch_graphs",
]

if _other := other_memprof():
    from warnings import warn

    warn(f"{_other}: {REPAIR}", stacklevel=2)

_HOME = {
    **dict.fromkeys(("LoadedProfile", "load"), "profiler.verbs"),
    **dict.fromkeys(
        ("ProfilingSession", "current_profile", "profile", "report", "watch_graphs"),
        "compile_backend.session.profiling",
    ),
    "name_graphs": "profiler.support.thread_activity",
    **dict.fromkeys(
        ("checkpoint", "current_tracker", "stop_tracking", "track"), "profiler.sources.process.api"
    ),
}


def __getattr__(name: str) -> Any:
    if name == "compiled_autograd":
        return import_module("memprof.compiled_autograd")
    if name == "__version__":
        from memprof.profiler.support.host import installed_version

        return installed_version()
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"memprof.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "compiled_autograd"])
