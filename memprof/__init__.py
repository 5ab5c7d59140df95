"""memprof: a torch.compile backend that makes compiled and CUDA-graph memory visible.

    model = torch.compile(model, backend="memprof")
    with memprof.profile("run.json.gz"):
        train(model)
    memprof.report()

``import memprof`` itself imports neither torch nor the backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .session import ProfilingSession, current_profile, profile, report

__all__ = ["ProfilingSession", "current_profile", "profile", "report"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import session

        return getattr(session, name)
    if name == "compiled_autograd":
        import importlib

        return importlib.import_module("memprof.compiled_autograd")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
