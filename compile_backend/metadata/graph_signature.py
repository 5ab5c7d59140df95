"""Signatures of graphs in the calling convention of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable

from memprof.profiler.model import GraphValue, Role

from .descriptor import Descriptor
from .signature import BackwardSignature, GraphSignature


def forward_signature(
    inputs: tuple[GraphValue, ...],
    outputs: tuple[GraphValue, ...],
    input_descs: tuple[Descriptor | None, ...],
    output_descs: tuple[Descriptor | None, ...],
) -> GraphSignature:
    """Signature of a forward or inference graph.

    Optimizer state counts as buffers, as it does for AOTAutograd. Values that are saved
    for the backward, bases, sizes and random-number state are in no list.
    """
    lifted = {
        v.name: (v.role, v.fqn or v.name)
        for v in inputs
        if v.role in (Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE)
    }
    parameters = tuple((n, f) for n, (r, f) in lifted.items() if r is Role.PARAMETER)
    buffers = tuple((n, f) for n, (r, f) in lifted.items() if r is not Role.PARAMETER)
    user = (Role.USER_INPUT, Role.PARAMETER_GRADIENT)
    by_text = {d.text: v for d, v in zip(input_descs, inputs, strict=True) if d}
    mutations = []
    for value, desc in zip(outputs, output_descs, strict=True):
        if value.role is Role.MUTATED_INPUT and desc is not None and desc.whole.of is not None:
            of = desc.whole.of.text
            # The dense parts of a subclass are described one by one, the subclass is not.
            part = "".join(f".{a}" for a in desc.attribute_path)
            target = by_text.get(of + part)
            if target is not None:
                mutations.append((value.name, target))
    return GraphSignature(
        parameters=tuple(f for _, f in parameters),
        buffers=tuple(f for _, f in buffers),
        user_inputs=tuple(v.name for v in inputs if v.role in user),
        user_outputs=tuple(v.name for v in outputs if v.role is Role.USER_OUTPUT),
        inputs_to_parameters=parameters,
        inputs_to_buffers=buffers,
        buffers_to_mutate=tuple(
            (n, t.fqn or t.name)
            for n, t in mutations
            if t.role in (Role.BUFFER, Role.OPTIMIZER_STATE)
        ),
        parameters_to_mutate=tuple(
            (n, t.fqn or t.name) for n, t in mutations if t.role is Role.PARAMETER
        ),
        user_inputs_to_mutate=tuple((n, t.name) for n, t in mutations if t.role in user),
        in_spec="",
        out_spec="",
        backward_signature=None,
        input_tokens=tuple(v.name for v in inputs if v.role is Role.TOKEN),
        output_tokens=tuple(v.name for v in outputs if v.role is Role.TOKEN),
    )


def backward_signature(
    outputs: tuple[GraphValue, ...],
    output_descs: tuple[Descriptor | None, ...],
    forward_input: Callable[[Descriptor | None], GraphValue | None] | None,
) -> BackwardSignature:
    """The gradients that a backward graph returns.

    Args:
        forward_input: gives the forward's input for its descriptor.
    """
    inputs = []
    for value, desc in zip(outputs, output_descs, strict=True):
        if value.role is Role.INPUT_GRADIENT and desc is not None and desc.whole.of is not None:
            owner = forward_input(desc.whole.of) if forward_input is not None else None
            inputs.append((value.name, owner.name if owner else desc.whole.of.text))
    return BackwardSignature(
        gradients_to_parameters=tuple(
            (v.name, v.fqn or v.name) for v in outputs if v.role is Role.PARAMETER_GRADIENT
        ),
        gradients_to_user_inputs=tuple(inputs),
    )
