"""What is fixed about one compilation, and what is known so far."""

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


class CompileConfigError(ValueError):
    """A combination of settings that AOTAutograd does not know."""


@dataclass(frozen=True)
class CompileConfig:
    """The settings of one compilation: the part of AOTAutograd's configuration that can
    be stored. Compilers, decompositions and partitioner are functions and stay out.

    Attributes:
        aot_id: AOTAutograd's number of the compilation; a forward and its backward share it.
        num_params_buffers: leading inputs that are lifted parameters and buffers.
        keep_inference_input_mutations: writes to inputs stay in an inference graph.
        is_export: traced for export.
        no_tangents: the joint graph makes its own tangents.
        dynamic_shapes: sizes may be symbolic.
        arg_sources: Dynamo's source of each argument, as text; None outside Dynamo.
        static_input_indices: inputs whose address stays.
        enable_log: graphs go to the structured log.
        pre_dispatch: traced above autograd; export only.
        precompile_backend_id: key of the backend in a precompiled package.

    Raises:
        CompileConfigError: ``pre_dispatch`` without ``is_export``.
    """

    aot_id: int
    num_params_buffers: int = 0
    keep_inference_input_mutations: bool = True
    is_export: bool = False
    no_tangents: bool = False
    dynamic_shapes: bool = False
    arg_sources: tuple[str | None, ...] | None = None
    static_input_indices: tuple[int, ...] | None = None
    enable_log: bool = True
    pre_dispatch: bool = False
    precompile_backend_id: str | None = None

    def __post_init__(self) -> None:
        if self.pre_dispatch and not self.is_export:
            raise CompileConfigError("pre_dispatch=True is only possible with is_export=True")


@dataclass(frozen=True, eq=False)
class CompileState:
    """One graph on its way through the stages. Stages return changed copies.

    Attributes:
        kind: which part of the function the graph is.
        config: the settings of its compilation.
        graph_module: the graph; Inductor rewrites it in place.
        flat_args: fake tensors and symbolic integers it was traced with.
        flat_args_descs: AOTAutograd's description of each, "" where it has none.
        fw_metadata: of the forward it belongs to; None outside AOTAutograd.
        graph_io: its inputs and outputs, once described.
        needs_autograd: a backward is compiled too.
        fake_mode: the mode that made the fake tensors.
        cleanup: closed when the compilation has ended, by whoever began it.
        notes: what stages leave for later ones, by stage name.
    """

    kind: GraphKind
    config: CompileConfig
    graph_module: torch.fx.GraphModule
    flat_args: tuple[Any, ...] = ()
    flat_args_descs: tuple[str, ...] = ()
    fw_metadata: ViewAndMutationMeta | None = None
    graph_io: GraphIO | None = None
    needs_autograd: bool = False
    fake_mode: Any = None
    cleanup: ExitStack = field(default_factory=ExitStack)
    notes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def with_note(self, stage: str, note: object) -> CompileState:
        """The same with ``note`` left under the name of ``stage``."""
        return replace(self, notes=MappingProxyType({**self.notes, stage: note}))
