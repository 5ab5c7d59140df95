"""The graphs stage: CUDA code runs in memprof's graph trees.

Note [Whose decision it is to wrap]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Inductor decides which graphs are safe to capture, cuts the others into partitions, and
computes which inputs each partition has, which are static and which it writes to. All of
that is left to it: memprof compiles with ``triton.cudagraphs`` on and stands in the place
of the function that Inductor calls for each partition. The box through which a forward
tells its backward that it was not wrapped stays Inductor's too, since a backward whose
forward runs without a graph gets its saved tensors at new addresses each time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule

from memprof.cudagraph_trees.inductor import use_in_inductor
from memprof.profiler.model import GraphRecord, LedgerKind

from . import _torch_compat
from .ledger import Ledger
from .metadata.compile_state import CompileState
from .metadata.stage import CompileStage


def runs_on_cuda(gm: GraphModule, example_inputs: Any) -> bool:
    """Whether a Dynamo graph takes or makes tensors on a CUDA device."""
    if any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in example_inputs):
        return True
    for node in gm.graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, torch.Tensor) and value.device.type == "cuda":
            return True
    return False


class GraphsStage(CompileStage[Any]):
    """Hands each partition of one compiled graph to the trees.

    Args:
        record: what the trees know the graph by, in messages and in their ledger.
        ledger: says why a graph is not wrapped.
        kwargs: of ``compile_fx_inner``; its ``cudagraphs`` becomes ``box``.
        box: Inductor's own.
        clone_outputs: option ``outputs="clone"``.
    """

    name = "graphs"

    def __init__(
        self,
        record: GraphRecord,
        ledger: Ledger,
        kwargs: dict[str, Any],
        box: Any,
        clone_outputs: bool,
    ) -> None:
        self.record = record
        self.ledger = ledger
        self.kwargs = kwargs
        self.box = box
        self.clone_outputs = clone_outputs
        self._wrapped: list[dict[str, Any]] = []

    def pre_compile(self, state: CompileState) -> CompileState:
        """Stand in the place of Inductor's own trees while it compiles this graph."""
        state.cleanup.enter_context(use_in_inductor(self._on_wrap, this_thread=True))
        self.kwargs["cudagraphs"] = self.box
        return state

    def _on_wrap(self, options: dict[str, Any]) -> None:
        options["record"] = self.record
        options["clone_outputs"] = self.clone_outputs
        self._wrapped.append(options)

    def post_compile(self, compiled: Any, state: CompileState) -> Any:
        """Tell the trees which inputs and outputs of the graph each partition has."""
        if not self._wrapped:
            reason = getattr(compiled, "disabled_cudagraphs_reason", None)
            self.ledger.add(
                LedgerKind.NOT_GRAPHED,
                self.record.id,
                reason or "Inductor found no part of it that can be captured",
            )
            return compiled
        partitions = _torch_compat.partition_outputs(compiled)
        # A graph compiled again, past a cache, was wrapped twice; what counts is the last.
        wrapped = self._wrapped[-len(partitions) :] if partitions else self._wrapped
        inputs = _torch_compat.partition_inputs(compiled)
        for number, options in enumerate(wrapped[: len(partitions)]):
            options["partition"] = number if len(partitions) > 1 else None
            options["graph_inputs"] = inputs[number]
            options["graph_outputs"] = partitions[number]
        return compiled
