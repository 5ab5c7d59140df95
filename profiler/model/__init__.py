"""memprof's data model: plain data, no torch, no I/O."""

from .category import Category
from .dataflow import DataFlowColumns, DataFlowDevice, DataFlowStorage
from .graph import GraphKind, GraphRecord, GraphValue, Role, Statement, StatementKind
from .ledger import LedgerEntry, LedgerKind, TreeDetail
from .process import Process
from .profile import FORMAT, SCHEMA_VERSION, CallColumns, Machine, Profile
from .program import AllocationProgram, Event, EventKind, LiveStorage, Origin, Storage
from .provenance import BufferProvenance, Evidence, NodeProvenance, SourceFrame

__all__ = [
    "FORMAT",
    "SCHEMA_VERSION",
    "AllocationProgram",
    "BufferProvenance",
    "CallColumns",
    "Category",
    "DataFlowColumns",
    "DataFlowDevice",
    "DataFlowStorage",
    "Event",
    "EventKind",
    "Evidence",
    "GraphKind",
    "GraphRecord",
    "GraphValue",
    "LedgerEntry",
    "LedgerKind",
    "LiveStorage",
    "Machine",
    "NodeProvenance",
    "Origin",
    "Process",
    "Profile",
    "Role",
    "SourceFrame",
    "Statement",
    "StatementKind",
    "Storage",
    "TreeDetail",
]
