"""Analysis of memory profiles.

Two families of names. The data model and its analysis (``memprof.profiler.model``,
``.timeline``, ``.attribution``, ``.file``, ``.report``) need no torch. The data-flow
profile of a ``torch.profiler`` run, under the names of torch's own
``torch.profiler._memory_profiler``, does; it is imported when one of its names is used,
so that ``import memprof.profiler`` stays free of torch.
"""
# ruff: noqa: F403, F405

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataflow import *
    from .dataflow.vocabulary import *

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
    "PeakReport",
    "Rule",
    "SchemaMatcher",
    "SizeMap",
    "TensorKey",
    "export_timeline",
    "extract_gradients",
    "extract_parameters",
    "get_scopes",
    "peak_report",
    "profile_memory",
    "timeline_to_pandas",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import dataflow
    from .dataflow import vocabulary

    value = getattr(dataflow if name in dataflow.__all__ else vocabulary, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
