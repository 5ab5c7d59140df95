"""One graph on its way through the stages: what is known so far."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from memprof.profiler.model import GraphKind

from .view_and_mutation import ViewAndMutationMeta

if TYPE_CHECKING:
    import torch

    from .graph_io import GraphIO


@dataclass(frozen=True, eq=False)
class CompileState:
    """One graph on its way through the stages. Stages return changed copies.

    Attributes:
        kind: which part of the function the graph is.
        graph_module: the graph; Inductor rewrites it in place.
        flat_args: fake tensors and symbolic integers it was traced with.
        fw_metadata: of the forward it belongs to; None outside AOTAutograd.
        graph_io: its inputs and outputs, once described.
        cleanup: closed when the compilation has ended, by whoever began it.
        notes: what stages leave for later ones, by stage name.
    """

    kind: GraphKind
    graph_module: torch.fx.GraphModule
    flat_args: tuple[Any, ...] = ()
    fw_metadata: ViewAndMutationMeta | None = None
    graph_io: GraphIO | None = None
    cleanup: ExitStack = field(default_factory=ExitStack)
    notes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def with_note(self, stage: str, note: object) -> CompileState:
        """The same with ``note`` left under the name of ``stage``."""
        return replace(self, notes=MappingProxyType({**self.notes, stage: note}))
