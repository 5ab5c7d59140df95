"""Values of some operators at one line are computed again in the backward, in compiled code."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from memprof.profiler._text import is_inside
from memprof.profiler.stack_text import innermost_module

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


class Recomputed:
    """Marks nodes of joint graphs as torch's checkpointing does, before they are partitioned.

    Args:
        where: ``OPERATOR+OPERATOR@FILE:LINE`` or ``…@MODULE``, as ``profiler/advice/recompute.py``
            writes it.
        said: is told what was marked so far, in words.
    """

    def __init__(self, where: str, said: Callable[[str], None]) -> None:
        operators, line, *module = where.split("@")
        self._operators = frozenset(operators.split("+"))
        self._file, _, self._line = line.rpartition(":")
        self._module = module[0] if module else ""
        self._said = said
        self._marked = 0

    def install(self, partitioners: ModuleType) -> None:
        """Mark in what is partitioned from now on."""
        partition = partitioners.min_cut_rematerialization_partition

        def marked(joint: Any, *args: Any, **kwargs: Any) -> Any:
            from torch.utils.checkpoint import CheckpointPolicy

            for node in joint.graph.nodes:
                if node.op == "call_function" and self._is_meant(node):
                    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
                    self._marked += 1
            if self._marked:
                self._said(f"{self._marked:,} nodes")
            return partition(joint, *args, **kwargs)

        partitioners.min_cut_rematerialization_partition = marked  # type: ignore[attr-defined]

    def _is_meant(self, node: Any) -> bool:
        # Seeds must be those of the forward: other random numbers would be another function.
        if node.meta.get("partitioner_tag") == "is_backward" or "seed" in str(node.target):
            return False
        operator = str(node.meta.get("original_aten") or node.target)
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        here = any(os.path.basename(f) == self._file and n == self._line for f, n in frames)
        path, _ = innermost_module(node.meta.get("nn_module_stack")) or ("", "")
        return here and operator in self._operators and is_inside(path, self._module)
