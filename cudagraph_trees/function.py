"""A function that was handed to the trees, and what is known about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import torch

from .torch_options import TreeOptions

if TYPE_CHECKING:
    from memprof.profiler.model import GraphRecord

    from .device.protocol import Model


class CompilationMode(Enum):
    """Which part of a training or inference step a function is."""

    FORWARD = auto()
    BACKWARD = auto()
    INFERENCE = auto()


@dataclass(frozen=True, slots=True)
class FunctionID:
    """Number of a wrapped function in its manager."""

    id: int


@dataclass(frozen=True, slots=True)
class GraphID:
    """Number of a recording in its manager; negative for warm-ups."""

    id: int


@dataclass(eq=False, slots=True)
class Function:
    """One compiled function for one set of integer inputs.

    Attributes:
        id: its number.
        model: the boxed callable.
        mode: forward, backward or inference.
        static_input_idxs: inputs whose address is expected to stay.
        constants: device tensors baked into the code.
        placeholders: torch's ``PlaceholderInfo`` for each input, for messages.
        mutated_input_idxs: inputs that the code writes to.
        stack_traces: user code that made each output, or None.
        user_outputs: outputs that a user can hold (not: saved for the backward); None if
            unknown, which means any.
        kernel_free: the code launches nothing, so there is nothing to capture.
        compile_id: Dynamo's.
        key: values of the integer inputs.
        record: the graph in the profile, if memprof's backend compiled it.
        alignment_checked: inputs that the code takes for aligned and that may not be.
        loose: tensors among the inputs that are not static.
        partition: number of this partition of the graph, None if it has only one.
        graph_inputs: for each input, which input of the whole graph it is, None for what
            another partition makes. None where the function is the whole graph.
        graph_outputs: for each output, which output of the whole graph it is, None for what
            only another partition reads. None where the function is the whole graph.
        clone_outputs: outputs that are held beyond their step get memory of their own.
        options: torch's options for it.
        warm_ups: how often it was warmed up.
        pool_growth: bytes that this pool took from the device for it.
        recordings: how many this pool has of it.
    """

    id: FunctionID
    model: Model
    mode: CompilationMode
    static_input_idxs: tuple[int, ...] = ()
    constants: tuple[torch.Tensor, ...] = ()
    placeholders: Sequence[Any] = ()
    mutated_input_idxs: tuple[int, ...] = ()
    stack_traces: Sequence[str | None] | None = None
    user_outputs: frozenset[int] | None = None
    kernel_free: bool = False
    compile_id: object = None
    key: tuple[int, ...] = ()
    record: GraphRecord | None = None
    partition: int | None = None
    graph_outputs: tuple[int | None, ...] | None = None
    alignment_checked: tuple[int, ...] = ()
    loose: tuple[int, ...] = ()
    label: str = field(default="")
    graph_inputs: tuple[int | None, ...] | None = None
    clone_outputs: bool = False
    options: TreeOptions = field(default_factory=TreeOptions)
    warm_ups: int = 0
    pool_growth: int = 0
    recordings: int = 0

    def __post_init__(self) -> None:
        if not self.label:
            what = self.mode.name.lower()
            self.label = (
                f"{self.compile_id} {what}" if self.compile_id else f"{what} function {self.id.id}"
            )
