"""What is fixed about one compilation."""

from __future__ import annotations

from dataclasses import dataclass


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
