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

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Output:
    """One output: its type, and what prints or writes it."""

    type: Any
    by: str


OUTPUTS = {
    "report": Output(report_type(), "memprof report FILE --json"),
    "ranks": Output(report_type(of_ranks=True), "memprof report FILE --json, of several ranks"),
    "leaks": Output(list[Growth], "memprof report FILE --section leaks --json"),
    "ledger": Output(list[LedgerEntry], "memprof report FILE --section ledger --json"),
    "diff": Output(ProfileDiff, "memprof diff BEFORE AFTER --json"),
    "top": Output(list[Present], "memprof top --json: a line each look"),
    "step": Output(StepRecord, "memprof.profile(steps=FILE): a line each step"),
    "simulate": Output(SimulationResult, "memprof simulate --json -- python SCRIPT"),
    "fit": Output(Rows, "memprof fit --json -- python SCRIPT"),
    "fit-try": Output(Trials, "memprof fit --try --json -- python SCRIPT"),
    "gpus": Output(tuple[Gpu, ...], "memprof simulate --list-gpus --json"),
    "config": Output(Configured, "memprof config show --json"),
    "doctor": Output(Diagnosis, "memprof doctor --json"),
}
"""Outputs by the names that ``memprof export --schema`` takes, beside ``PROFILE``."""

PROFILE = "profile"
"""What ``memprof export FILE -f json`` writes: files have a schema version of their own."""


def schema_of(name: str) -> dict[str, Any]:
    """JSON Schema (2020-12) of an output; raises ``KeyError`` where none has this name."""
    if name == PROFILE:
        return profile_schema()
    output = OUTPUTS[name]
    return json_schema(output.type, f"memprof {minor_version()}: {output.by}")


def minor_version() -> str:
    """Version of memprof without its last number: see Note [What programs may rely on]."""
    return ".".join(installed_version().split(".")[:2])
