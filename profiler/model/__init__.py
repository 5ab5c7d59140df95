"""memprof's data model: plain data, no torch, no I/O."""

from .category import Category
from .graph import GraphKind, GraphRecord, GraphValue, Role, Statement, StatementKind
from .ledger import LedgerEntry, LedgerKind, TreeDetail
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
    "Profile",
    "Role",
    "SourceFrame",
    "Statement",
    "StatementKind",
    "Storage",
    "TreeDetail",
]
