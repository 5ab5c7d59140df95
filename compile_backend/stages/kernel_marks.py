"""Marks the kernels of a CUDA graph with the module and line that they come from, for traces.

Note [Kernels of a graph in a trace]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A replay runs no Python, so a trace of ``torch.profiler`` has nothing for its kernels but names
that Inductor made up. Torch (2.12 on) keeps an annotation of what is captured in the scope of
``mark_kernels``, by a number that the driver gives each node, and
``prof.export_chrome_trace(path, cuda_graph_annotations=get_kernel_annotations())`` writes it to
the trace. With the option ``annotate_kernels`` a capture runs an instrumented copy of the generated
code, as an observation does, and each of its statements is such a scope.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

from memprof.profiler.live.launches import launches
from memprof.profiler.model import GraphRecord

from .. import _torch_compat
from .provenance.generated_code import Clone

log = logging.getLogger("memprof")


class KernelMarker:
    """The hooks of a copy of generated code that is captured once. None raises into that: after a
    first error nothing more is marked."""

    def __init__(self, marks: dict[int, dict[str, str]]) -> None:
        self._marks = marks
        self._scope = contextlib.ExitStack()

    def at(self, line: int) -> None:
        """Begin the statement at ``line``, and end the one before."""
        try:
            self._scope.close()
            if (mark := self._marks.get(line)) is not None:
                self._scope.enter_context(_torch_compat.mark_kernels(mark))
        except Exception as error:
            self._marks = {}
            log.error("memprof failed to annotate kernels: %s: %s.", type(error).__name__, error)

    def bound(self, name: str, value: object) -> None:
        """Take no note of an assignment."""

    def dropped(self, names: tuple[str, ...]) -> None:
        """Take no note of a deletion."""


def run_marked(
    clone: Callable[[Any], Clone], position: int | None, record: GraphRecord, inputs: list[Any]
) -> Any:
    """Run a copy of a partition, by its position, or of the whole ``call``, whose kernels are
    marked."""
    marker = KernelMarker({of.line: of.annotation(record.label) for of in launches(record)})
    copy = clone(marker)
    try:
        return (copy.call if position is None else copy.partitions[position])(inputs)
    finally:
        marker.at(0)  # No line of a file: it ends the last one.
