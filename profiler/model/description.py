"""Descriptions of compiled graphs: what each takes and returns.

Note [One description of a graph]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A ``GraphDescription`` is made once, when a graph is compiled, from AOTAutograd's metadata and
Dynamo's sources, and compared there with what Inductor says of the same graph
(``compile_backend/stages/describe``). Graph trees, the tracer of whole backwards, straight calls,
attribution and reports decide by it, and ask torch nothing about inputs and outputs. It is plain
data, complete before the graph is first called.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from .aot_metadata import InputAliasInfo, MutationType, OutputType, ViewAndMutationMeta
from .category import Category
from .limits import Count, Int

_SHOWN = 18
"""Most inputs, and outputs, of which a description's text has a line each."""


class Role(str, Enum):
    """Role of a graph input or output, as AOTAutograd and Dynamo know it."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    USER_INPUT = "user_input"
    OPTIMIZER_STATE = "optimizer_state"
    PARAMETER_GRADIENT = "parameter_gradient"
    SAVED_FOR_BACKWARD = "saved_for_backward"
    TANGENT = "tangent"
    INPUT_GRADIENT = "input_gradient"
    RNG_STATE = "rng_state"
    TOKEN = "token"
    SIZE = "size"
    USER_OUTPUT = "user_output"
    INTERMEDIATE_BASE = "intermediate_base"
    MUTATED_INPUT = "mutated_input"
    OPAQUE = "opaque"
    CONSTANT = "constant"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GraphValue:
    """One input or output of a compiled graph.

    Attributes:
        index: position among the graph's inputs (or outputs).
        name: of the FX node.
        category: of memory first seen as this value.
        fqn: qualified name of a parameter or buffer, or the Dynamo source of an input.
        part: of an inner tensor of a subclass, the class and the way to it, e.g.
            ``DTensor local_tensor``; ``fqn`` is the whole's.
        dtype, shape, device: of a tensor; shape entries may be symbolic.
        nbytes: of the tensor's extent, None if symbolic or not a tensor.
        static: its address is expected to be the same at every call.
        mutated: the graph writes to it.
        donated: for a saved input of a backward, nobody else holds it, and the backward may write
            its results there.
        alias_of_input: for an output, the input whose memory it shares by AOTAutograd's
            analysis.
        forward_output: for a saved input of a backward, the index of the forward output
            that it is.
        gradient_of: for a tangent of a backward, the index of the forward output whose gradient
            it is; for a gradient that a backward returns, that of the forward input.
        info: position of an input in ``ViewAndMutationMeta.input_info``, of an output in
            ``output_info``; None if it is in neither.
        frame: ``file:line`` of user code that made this output, if known.
        forward_graph: id of the record of that forward where it is not the one with the
            backward's ``graph_id``: a captured backward has several forwards.
    """

    index: Int
    name: str
    role: Role
    category: Category
    fqn: str | None = None
    dtype: str | None = None
    shape: tuple[str, ...] = ()
    device: str | None = None
    nbytes: Int | None = None
    static: bool = False
    mutated: bool = False
    donated: bool = False
    alias_of_input: Int | None = None
    forward_output: Count | None = None
    frame: str | None = None
    forward_graph: Int | None = None
    gradient_of: Count | None = None
    info: Count | None = None
    part: str | None = None

    @property
    def label(self) -> str:
        """Its name for people: the user's, e.g. ``weight (DTensor local_tensor)``, else that of the
        FX node."""
        if self.fqn is None:
            return self.name
        return f"{self.fqn} ({self.part})" if self.part else self.fqn


NO_VALUE = GraphValue(-1, "", Role.UNKNOWN, Category.UNKNOWN)
"""An input or output of a part of a graph that is none of the whole: another part makes or reads
it."""


@dataclass(frozen=True, slots=True)
class GraphDescription:
    """Inputs and outputs of a compiled graph: Note [One description of a graph].

    Attributes:
        inputs, outputs: in calling order. An output that the graph returns None for has the name
            "" and the role UNKNOWN.
        metadata: AOTAutograd's, of the function that was traced; empty for a backward, whose
            forward has it.
        unreadable: why nothing is known but how many values there are, "" otherwise.
    """

    inputs: tuple[GraphValue, ...] = ()
    outputs: tuple[GraphValue, ...] = ()
    metadata: ViewAndMutationMeta = field(default_factory=ViewAndMutationMeta)
    unreadable: str = ""

    @property
    def static(self) -> tuple[int, ...]:
        """Positions of inputs whose address is expected to be the same at every call."""
        return tuple(i for i, v in enumerate(self.inputs) if v.static)

    @property
    def mutated(self) -> tuple[int, ...]:
        """Positions of inputs that the graph writes to."""
        return tuple(i for i, v in enumerate(self.inputs) if v.mutated)

    @property
    def donated(self) -> frozenset[int]:
        """Positions of inputs that nobody else holds when it is called."""
        return frozenset(i for i, v in enumerate(self.inputs) if v.donated)

    def is_visible(self, output: int) -> bool:
        """Tells whether a user can hold an output: it is not saved for the backward alone, or
        nothing is known of it."""
        known = output < len(self.outputs)
        return not known or self.outputs[output].role is not Role.SAVED_FOR_BACKWARD

    @property
    def saved_tensors(self) -> tuple[GraphValue, ...]:
        """Outputs of a forward that are tensors saved for its backward, in that one's order."""
        return tuple(self.outputs[i] for i in self.metadata.saved_positions(len(self.outputs))[0])

    def bases(self) -> tuple[int | None, ...]:
        """For each output the position of the one whose memory it is: an earlier one that is the
        same value, or what AOTAutograd says that it is a view of; None if of none."""
        first: dict[str, int] = {}
        numbers = {v.info: i for i, v in enumerate(self.outputs) if v.info is not None}
        roots = [i for i, v in enumerate(self.outputs) if v.role is Role.INTERMEDIATE_BASE]
        found = []
        for i, value in enumerate(self.outputs):
            base = first.setdefault(value.name, i) if value.name else i
            info = None if value.info is None else self.metadata.output_info[value.info]
            if base == i and info is not None and info.base_idx is not None:
                if info.output_type is OutputType.ALIAS_OF_INTERMEDIATE_BASE_IS_USER_OUTPUT:
                    base = numbers.get(info.base_idx, i)
                elif info.output_type.is_of_base and info.base_idx < len(roots):
                    base = roots[info.base_idx]
            found.append(None if base == i else base)
        return tuple(found)

    def input_info(self, position: int) -> InputAliasInfo | None:
        """AOTAutograd's word on an input, None where it has none."""
        info = self.inputs[position].info
        return None if info is None else self.metadata.input_info[info]

    @property
    def updates_leaves(self) -> bool:
        """Tells whether it writes to leaves that ask for a gradient, as an optimizer does."""
        infos = map(self.input_info, self.mutated)
        return any(i is not None and i.is_leaf and i.requires_grad for i in infos)

    def part(self, inputs: Sequence[int | None], outputs: Sequence[int | None]) -> GraphDescription:
        """The description of a part of the graph, by which inputs and outputs of the whole its own
        are; None is none of these."""
        return GraphDescription(
            tuple(NO_VALUE if i is None else self.inputs[i] for i in inputs),
            tuple(NO_VALUE if i is None else self.outputs[i] for i in outputs),
            self.metadata,
        )

    def __str__(self) -> str:
        """Stable text: a line for each input and output, of many the first, of the rest sums."""
        if self.unreadable:
            return f"unknown: {self.unreadable}"
        lines = []
        for title, values, words in (
            ("inputs", self.inputs, self._input),
            ("outputs", self.outputs, self._output),
        ):
            lines.append(f"{title}: {len(values)}")
            shown = enumerate(values[:_SHOWN])
            lines.extend(f"{i:>4} {' · '.join(words(i, value))}" for i, value in shown)
            rest = Counter(v.role.value.replace("_", " ") for v in values[_SHOWN:])
            if rest:
                roles = ", ".join(f"{n} {role}" for role, n in sorted(rest.items()))
                lines.append(f"     and {sum(rest.values())} more: {roles}")
        if self.metadata.unknown:
            lines.append(f"not known to this memprof: {', '.join(self.metadata.unknown)}")
        return "\n".join(lines)

    def _input(self, at: int, value: GraphValue) -> Iterator[str]:
        """Words about one input."""
        yield _named(value)
        if value.static:
            yield "static"
        info = self.input_info(at)
        if info is not None and info.mutation_type is MutationType.MUTATED_OUT_GRAPH:
            yield f"written to after the call ({info.words})"
        elif value.mutated:
            words = "" if info is None else info.words
            yield f"written to ({words})" if words else "written to"
        if value.donated:
            yield "donated"
        if value.forward_output is not None:
            yield f"output {value.forward_output} of the forward"
        if value.gradient_of is not None:
            yield f"gradient of output {value.gradient_of}"

    def _output(self, at: int, value: GraphValue) -> Iterator[str]:
        """Words about one output."""
        yield _named(value) if value.name else "None"
        info = None if value.info is None else self.metadata.output_info[value.info]
        if value.alias_of_input is not None:
            yield f"memory of input {value.alias_of_input}"
        elif info is not None and info.output_type.is_alias:
            yield info.output_type.value.replace("_", " ")
        if value.gradient_of is not None:
            yield f"gradient of input {value.gradient_of}"
        if info is not None and info.requires_grad:
            yield "requires grad"


def _named(value: GraphValue) -> str:
    """Role, name and shape."""
    dtype = (value.dtype or "").removeprefix("torch.")
    shape = f" {dtype}[{', '.join(value.shape)}]" if dtype else ""
    return f"{value.role.value.replace('_', ' ')} {value.label}{shape}"
