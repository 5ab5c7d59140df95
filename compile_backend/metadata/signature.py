"""Which graph input is which parameter, buffer or argument, and the same for outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from .view_and_mutation import ViewAndMutationMeta


class SignatureError(ValueError):
    """The names given do not fit the metadata or each other."""


# Ordered pairs stand for mappings, so that signatures are immutable and can be hashed.
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class BackwardSignature:
    """The gradients that a backward returns.

    Attributes:
        gradients_to_parameters: output name and qualified name of its parameter.
        gradients_to_user_inputs: output name and name of the forward input.
        loss_output: forward output that the backward starts from; None where it starts
            from tangents of several, as every graph of ``torch.compile`` does.
    """

    gradients_to_parameters: Pairs
    gradients_to_user_inputs: Pairs
    loss_output: str | None = None


@dataclass(frozen=True)
class GraphSignature:
    """The inputs and outputs of one graph by what they are.

    Names of inputs and outputs are FX node names, the others qualified names of
    parameters and buffers. Every tuple is in graph order.

    Attributes:
        parameters, buffers: qualified names.
        user_inputs, user_outputs: node names.
        inputs_to_parameters, inputs_to_buffers: node name and qualified name.
        buffers_to_mutate, parameters_to_mutate: name of the output that is the new
            value, and qualified name.
        user_inputs_to_mutate: the same for user inputs, with the input's node name.
        in_spec, out_spec: pytree specifications as text, see Note [What JSON keeps of
            the metadata]; "" where the calling convention is flat.
        backward_signature: of the backward part of a joint graph.
        input_tokens, output_tokens: effect tokens, node names.
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    user_inputs: tuple[str, ...]
    user_outputs: tuple[str, ...]
    inputs_to_parameters: Pairs
    inputs_to_buffers: Pairs
    buffers_to_mutate: Pairs
    parameters_to_mutate: Pairs
    user_inputs_to_mutate: Pairs
    in_spec: str
    out_spec: str
    backward_signature: BackwardSignature | None
    input_tokens: tuple[str, ...]
    output_tokens: tuple[str, ...]

    @classmethod
    def from_tracing_metadata(
        cls,
        *,
        graph_input_names: Sequence[str],
        graph_output_names: Sequence[str],
        view_mutation_metadata: ViewAndMutationMeta,
        named_parameters: Sequence[str],
        named_buffers: Sequence[str],
        num_user_inputs: int,
        num_user_outputs: int,
        trace_joint: bool,
        in_spec: str = "",
        out_spec: str = "",
        backward_signature: BackwardSignature | None = None,
    ) -> GraphSignature:
        """Signature of a graph in AOTAutograd's export calling convention.

        Inputs are tokens, parameters, buffers, user inputs; outputs are tokens, mutated
        inputs, user outputs, gradients. A graph of ``torch.compile`` follows another
        convention: ``graph_io.describe_graph`` builds its signature.

        Raises:
            SignatureError: a count does not fit, a parameter is mutated in a joint
                graph, or data is mutated in a way that gives no graph output.
        """
        tokens = len(view_mutation_metadata.tokens)
        inputs = _Reader(graph_input_names, "inputs")
        input_tokens = inputs.take(tokens, "tokens")
        parameters = inputs.take(len(named_parameters), "parameters")
        buffers = inputs.take(len(named_buffers), "buffers")
        user_inputs = inputs.take(num_user_inputs, "user inputs")
        inputs.finish()

        owners = (*named_parameters, *named_buffers, *user_inputs)
        if len(owners) != len(view_mutation_metadata.input_info):
            raise SignatureError(
                f"the graph has {len(owners)} inputs beside tokens, the metadata describes "
                f"{len(view_mutation_metadata.input_info)}"
            )
        mutated = [i for i, m in enumerate(view_mutation_metadata.input_info) if m.mutates_data]
        if trace_joint and any(i < len(named_parameters) for i in mutated):
            raise SignatureError(
                f"a joint graph may not mutate parameters, but mutates {owners[mutated[0]]}"
            )
        if len(mutated) != view_mutation_metadata.num_mutated_inp_runtime_indices:
            raise SignatureError(
                f"{len(mutated)} inputs are written but "
                f"{view_mutation_metadata.num_mutated_inp_runtime_indices} graph outputs are "
                "values of mutated inputs: metadata-only mutations and mutations kept in the "
                "graph have no place in a signature"
            )

        outputs = _Reader(graph_output_names, "outputs")
        output_tokens = outputs.take(tokens, "tokens")
        new_values = outputs.take(len(mutated), "mutated inputs")
        user_outputs = outputs.take(num_user_outputs, "user outputs")
        if backward_signature is not None:
            outputs.take(
                len(backward_signature.gradients_to_parameters)
                + len(backward_signature.gradients_to_user_inputs),
                "gradients",
            )
        outputs.finish()

        values = [(name, i, owners[i]) for name, i in zip(new_values, mutated, strict=True)]
        first_buffer = len(named_parameters)
        first_user = first_buffer + len(named_buffers)
        return cls(
            parameters=tuple(named_parameters),
            buffers=tuple(named_buffers),
            user_inputs=user_inputs,
            user_outputs=user_outputs,
            inputs_to_parameters=tuple(zip(parameters, named_parameters, strict=True)),
            inputs_to_buffers=tuple(zip(buffers, named_buffers, strict=True)),
            parameters_to_mutate=tuple((n, o) for n, i, o in values if i < first_buffer),
            buffers_to_mutate=tuple((n, o) for n, i, o in values if first_buffer <= i < first_user),
            user_inputs_to_mutate=tuple((n, o) for n, i, o in values if i >= first_user),
            in_spec=in_spec,
            out_spec=out_spec,
            backward_signature=backward_signature,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
        )


class _Reader:
    """Takes names off a list from the front."""

    def __init__(self, names: Sequence[str], what: str) -> None:
        self._names: Iterator[str] = iter(names)
        self._what = what
        self._total = len(names)

    def take(self, count: int, what: str) -> tuple[str, ...]:
        taken = tuple(islice(self._names, count))
        if len(taken) != count:
            raise SignatureError(
                f"{count} {what} expected among {self._total} graph {self._what}, "
                f"only {len(taken)} left"
            )
        return taken

    def finish(self) -> None:
        left = tuple(self._names)
        if left:
            raise SignatureError(
                f"{len(left)} of {self._total} graph {self._what} are left over: "
                f"{', '.join(left[:5])}"
            )
