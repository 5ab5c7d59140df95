"""What AOTAutograd found out about each input: whether and how it is mutated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MutationError(ValueError):
    """The facts about an input contradict each other or cannot be compiled."""


class MutationType(str, Enum):
    """Who carries a mutation of an input out."""

    NOT_MUTATED = "not_mutated"
    MUTATED_IN_GRAPH = "mutated_in_graph"
    """The compiled graph writes into the input."""
    MUTATED_OUT_GRAPH = "mutated_out_graph"
    """The graph returns the new value; AOTAutograd copies it into the input afterwards."""


@dataclass(frozen=True)
class InputAliasInfo:
    """One input of the traced function.

    Attributes:
        is_leaf: autograd leaf.
        mutates_data: its values are written.
        mutates_metadata: its sizes, strides or storage are changed.
        mutations_hidden_from_autograd: every mutation went through ``.data`` or a
            triton kernel, so no version counter moved.
        mutations_under_no_grad_or_inference_mode: every mutation happened there.
        mutation_inductor_storage_resize: its storage is resized (FSDP2 does).
        mutates_storage_metadata: ``set_()`` gave it another storage.
        requires_grad: of the input.
        keep_input_mutations: the compiler accepts writes to inputs in its graph.
        mutation_is_shallow_copy_data: the mutation is ``x.data = y``; torch 2.15 on,
            None before.

    Raises:
        MutationError: ``mutates_storage_metadata`` without ``mutates_metadata``: another
            storage always comes with its metadata.
    """

    is_leaf: bool
    mutates_data: bool
    mutates_metadata: bool
    mutations_hidden_from_autograd: bool
    mutations_under_no_grad_or_inference_mode: bool
    mutation_inductor_storage_resize: bool
    mutates_storage_metadata: bool
    requires_grad: bool
    keep_input_mutations: bool
    mutation_is_shallow_copy_data: bool | None = None

    def __post_init__(self) -> None:
        if self.mutates_storage_metadata and not self.mutates_metadata:
            raise MutationError(
                "an input with mutates_storage_metadata=True must have mutates_metadata=True"
            )

    @property
    def is_mutated(self) -> bool:
        """Whether anything about the input changes."""
        return self.mutates_data or self.mutates_metadata or self.mutation_inductor_storage_resize

    @property
    def can_stay_in_graph(self) -> bool:
        """Whether the compiled graph may carry the mutation out.

        It may where the compiler accepts it, something was written, and autograd need
        not see it: because the input takes no gradient and keeps its metadata, or
        because the mutation was hidden from autograd or under no_grad.
        """
        writes = (
            self.mutates_data
            or self.mutates_storage_metadata
            or self.mutation_inductor_storage_resize
        )
        autograd_may_ignore = (
            (not self.mutates_metadata and not self.requires_grad)
            or self.mutations_hidden_from_autograd
            or self.mutations_under_no_grad_or_inference_mode
        )
        return self.keep_input_mutations and writes and autograd_may_ignore

    @property
    def mutation_type(self) -> MutationType:
        """Who carries the mutation out.

        Raises:
            MutationError: ``set_()`` or a storage resize that cannot stay in the graph;
                nothing after the call could carry it out.
        """
        if not self.is_mutated:
            return MutationType.NOT_MUTATED
        if self.can_stay_in_graph:
            return MutationType.MUTATED_IN_GRAPH
        if self.mutates_storage_metadata or self.mutation_inductor_storage_resize:
            operator = "a storage resize" if self.mutation_inductor_storage_resize else "set_()"
            raise MutationError(
                f"{operator} on an input whose mutations cannot all stay in the graph: {self}"
            )
        return MutationType.MUTATED_OUT_GRAPH
