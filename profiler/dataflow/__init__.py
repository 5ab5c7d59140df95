"""The data-flow memory profile of a ``torch.profiler`` run.

``profile_memory`` is the way in; ``vocabulary`` holds the names of torch's own
``torch.profiler._memory_profiler``. docs/dataflow.md explains both.
"""

from __future__ import annotations

from .corrections import ALL_RULES, Rule
from .export import export_timeline, timeline_to_pandas
from .profile import DataFlowProfile, profile_memory
from .to_model import PeakReport, data_flow_columns, peak_report

__all__ = [
    "ALL_RULES",
    "DataFlowProfile",
    "PeakReport",
    "Rule",
    "data_flow_columns",
    "export_timeline",
    "peak_report",
    "profile_memory",
    "timeline_to_pandas",
]
