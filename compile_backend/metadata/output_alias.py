"""What AOTAutograd found out about each output of the user's function."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from .sizes import SymbolicSize


class OutputType(str, Enum):
    """How an output relates to memory that somebody else already holds.

    The values are AOTAutograd's own names.
    """

    NON_ALIAS = "non_alias"
    """Memory of its own."""
    ALIAS_OF_INPUT = "alias_of_input"
    """A view of input ``base_idx``, made again from that input after the call."""
    IS_INPUT = "is_input"
    """Input ``base_idx`` itself."""
    ALIAS_OF_INTERMEDIATE_SAVE_AS_OUTPUT = "alias_of_intermediate_save_as_output"
    """A view of an intermediate, which the graph returns for it: this is the output
    because of which intermediate base ``base_idx`` is a graph output."""
    ALIAS_OF_INTERMEDIATE = "alias_of_intermediate"
    """A view of intermediate base ``base_idx``, which another output has already added."""
    ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT = "alias_of_intermediate_base_is_user_output"
    """A view of user output ``base_idx``."""
    UNSAFE_VIEW_ALIAS = "unsafe_view_alias"
    """A view of an intermediate that nobody else can reach: treated as no alias."""
    CUSTOM_FUNCTION_VIEW = "custom_function_view"
    """A view made by a custom autograd.Function: returned as it is, not replayed."""

    @property
    def is_replayed(self) -> bool:
        """Whether the output is made again from its base after the compiled call."""
        return self not in (
            OutputType.NON_ALIAS,
            OutputType.UNSAFE_VIEW_ALIAS,
            OutputType.CUSTOM_FUNCTION_VIEW,
        )

    @property
    def aliases_input(self) -> bool:
        """Whether its memory is that of an input."""
        return self in (OutputType.ALIAS_OF_INPUT, OutputType.IS_INPUT)

    @property
    def aliases_intermediate(self) -> bool:
        """Whether its memory is that of an intermediate or of another output."""
        return self.is_replayed and not self.aliases_input


# What it is to be the same place in the same storage.
Place = tuple[int | SymbolicSize, ...]


@dataclass(frozen=True, eq=False)
class ViewSequence:
    """The views that lead from a base to an output.

    AOTAutograd replays them on the real base; here they are only described, because the
    C++ objects that can be replayed neither serialise nor have a stable Python form.

    Attributes:
        steps: names of the view operators, e.g. ``("view", "select_int")``.
        symbolic: some step takes a symbolic size, so AOTAutograd does not replay it.
        size, stride, storage_offset: of the result, in elements; stride and offset are
            None where the layout is sparse.
        layout: e.g. ``torch.strided``.
        is_conj, is_neg: lazy conjugation and negation bits of the result.
    """

    steps: tuple[str, ...]
    symbolic: bool = False
    size: Place = ()
    stride: Place | None = None
    storage_offset: int | SymbolicSize | None = None
    layout: str = "torch.strided"
    is_conj: bool = False
    is_neg: bool = False

    def __eq__(self, other: object) -> bool:
        """Whether both lead to the same place; an absent sequence equals every sequence.

        Both rules are AOTAutograd's: different steps may lead to the same view, and a
        sequence gets lost when a synthetic base is substituted for its inputs.
        """
        if other is None:
            return True
        if not isinstance(other, ViewSequence):
            return NotImplemented
        return self._place() == other._place()

    # An absent sequence equals every sequence, so no hash but a constant can agree with
    # equality; OutputAliasInfo leaves this field out of its own.
    def __hash__(self) -> int:
        return hash(ViewSequence)

    def _place(self) -> tuple[object, ...]:
        return (
            self.size,
            self.layout,
            self.stride,
            self.storage_offset,
            self.is_conj,
            self.is_neg,
        )


@dataclass(frozen=True)
class OutputAliasInfo:
    """One user output.

    Attributes:
        output_type: how it relates to other memory.
        raw_type: qualified name of its type, e.g. ``torch.Tensor`` or ``torch.SymInt``.
        base_idx: what it is a view of: an index of a user input (as the compiled graph
            sees them, see Note [Which inputs metadata counts] in from_aot.py), of an
            intermediate base, or of a user output, as ``output_type`` says.
        dynamic_dims: dimensions with a symbolic size, ascending; None for what is no tensor.
        requires_grad: of the output.
        requires_grad_for_backward: whether it has a tangent in the backward; differs
            from ``requires_grad`` for views made under no_grad. None before torch 2.13.
        view_sequence: the views that make it from its base, if AOTAutograd kept them.
    """

    output_type: OutputType
    raw_type: str
    base_idx: int | None
    dynamic_dims: tuple[int, ...] | None
    requires_grad: bool
    requires_grad_for_backward: bool | None = None
    view_sequence: ViewSequence | None = field(default=None, hash=False)
