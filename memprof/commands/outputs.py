"""Outputs of commands that programs read: what prints each, its type, and its JSON Schema.

Note [What programs may rely on]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The schemas follow from the types that are printed; nobody writes them. Within a minor version of
memprof fields may be added, and none goes or changes its type: ``test/commands/outputs.txt`` has
those that there are, and a test holds the types against it. The ``sections`` of a report are the
words of its text, which may change at any time, so the schema says of them that they are objects
and no more.

This module is imported by who asks for a schema: it brings ``fit`` and ``doctor`` along.
"""

from __future__ import annotations

from typing import Any

from memprof.profiler.file.profile_file import profile_schema
from memprof.profiler.model import Growth, LedgerEntry, StepRecord
from memprof.profiler.running_job import Present
from memprof.profiler.sources.process.settings import Configured
from memprof.profiler.support.host import installed_version
from memprof.profiler.support.json_text import json_schema
from memprof.profiler.verbs import report_type
from memprof.profiler.views.compare.diff_model import ProfileDiff
from memprof.simulated_cuda.gpus import Gpu
from memprof.what_if.simulate.result import SimulationResult

from .doctor import Diagnosis
from .fit import Rows, Trials

OUTPUTS: dict[str, tuple[Any, str]] = {
    "report": (report_type(), "memprof report FILE --json"),
    "ranks": (report_type(of_ranks=True), "memprof report FILE --json, of several ranks"),
    "leaks": (list[Growth], "memprof report FILE --section leaks --json"),
    "ledger": (list[LedgerEntry], "memprof report FILE --section ledger --json"),
    "diff": (ProfileDiff, "memprof diff BEFORE AFTER --json"),
    "top": (list[Present], "memprof top --json: a line each look"),
    "step": (StepRecord, "memprof.profile(steps=FILE): a line each step"),
    "simulate": (SimulationResult, "memprof simulate --json -- python SCRIPT"),
    "fit": (Rows, "memprof fit --json -- python SCRIPT"),
    "fit-try": (Trials, "memprof fit --try --json -- python SCRIPT"),
    "gpus": (tuple[Gpu, ...], "memprof simulate --list-gpus --json"),
    "config": (Configured, "memprof config show --json"),
    "doctor": (Diagnosis, "memprof doctor --json"),
}
"""Types of outputs, with what prints or writes them, by the name that ``memprof export --schema``
takes, beside ``PROFILE``."""

PROFILE = "profile"
"""What ``memprof export FILE -f json`` writes: files have a schema version of their own."""


def schema_of(name: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of an output; raises ``KeyError`` where none has this name."""
    if name == PROFILE:
        return profile_schema()
    type_, by = OUTPUTS[name]
    return json_schema(type_, f"memprof {minor_version()}: {by}")


def minor_version() -> str:
    """Version of memprof without its last number: see Note [What programs may rely on]."""
    return ".".join(installed_version().split(".")[:2])
