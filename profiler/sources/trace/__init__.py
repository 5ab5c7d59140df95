"""The data-flow memory profile of a ``torch.profiler`` run.

``profile_memory`` makes it; docs/dataflow.md explains it.
"""

from __future__ import annotations

from .profile import DataFlowProfile as DataFlowProfile, profile_memory as profile_memory
from .to_model import data_flow_columns as data_flow_columns, data_flow_device as data_flow_device
