"""Analysis of memory profiles.

Two families of names. The data model and its analysis (``memprof.profiler.model``,
``.timeline``, ``.attribution``, ``.file``, ``.report``) need no torch. The data-flow
profile of a ``torch.profiler`` run does: ``torch_names`` has its names and torch's own. It is
imported when one of them is used, so that ``import memprof.profiler`` stays free of torch.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .torch_names import *

__all__ = [
    "Action",
    "Category",
    "CategoryDict",
    "CategoryElement",
    "DataFlowEdge",
    "DataFlowGraph",
    "DataFlowNode",
    "DataFlowProfile",
    "Key",
    "MemoryProfile",
    "MemoryProfileTimeline",
    "OpTree",
    "SchemaMatcher",
    "SizeMap",
    "TensorKey",
    "data_flow_device",
    "export_timeline",
    "extract_gradients",
    "extract_parameters",
    "get_scopes",
    "profile_memory",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import torch_names

    value = getattr(torch_names, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
