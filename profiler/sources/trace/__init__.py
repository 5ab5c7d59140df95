"""The data-flow memory profile of a ``torch.profiler`` run.

``profile_memory`` makes it; docs/dataflow.md explains it.
"""

from __future__ import annotations

from .corrections import ALL_RULES, Rule
from .profile import DataFlowProfile, profile_memory
from .to_model import PeakReport, data_flow_columns, peak_report

__all__ = [
    "ALL_RULES",
    "DataFlowProfile",
    "PeakReport",
    "Rule",
    "data_flow_columns",
    "peak_report",
    "profile_memory",
]
