"""memprof's data model: plain data, no torch, no I/O.

A name's module is imported when the name is first used. Making the classes of all takes 60 ms, and
a process that compiles needs those of graphs and programs alone.
"""
# ruff: noqa: F403

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memprof.profiler.support.lazy_names import name_from

if TYPE_CHECKING:
    from .aot_metadata import *
    from .captures import *
    from .category import *
    from .dataflow import *
    from .description import *
    from .device import *
    from .graph import *
    from .held import *
    from .ledger import *
    from .profile import *
    from .program import *
    from .provenance import *
    from .step import *
    from .step_time import *
    from .tracker import *

# Each only if none before has the name: a module also has the names that it imports.
_HOMES = (
    "category",
    "provenance",
    "aot_metadata",
    "description",
    "program",
    "graph",
    "ledger",
    "held",
    "captures",
    "dataflow",
    "device",
    "tracker",
    "profile",
    "step",
    "step_time",
)


def __getattr__(name: str) -> Any:
    globals()[name] = found = name_from(__name__, () if name.startswith("_") else _HOMES, name)
    return found
