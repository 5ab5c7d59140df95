"""What AOTAutograd's run-time wrapper has left to do for one graph, from its metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import _torch_compat as compat


class NotStraight(Exception):
    """The graph needs more than a straight call does; the message says what, after "it"."""


@dataclass(frozen=True)
class CallPlan:
    """What a call does besides running the compiled code.

    Attributes:
        returns: how many outputs the program gets.
        written: inputs that the graph writes to before autograd's eyes.
        without_autocast: compiled code runs with autocast off, which was traced into it.
    """

    returns: int
    written: tuple[int, ...]
    without_autocast: bool


@dataclass(frozen=True)
class TrainingPlan(CallPlan):
    """What a training step does besides.

    Attributes:
        detached: inputs that never get a gradient.
        saved: outputs of the forward that ``save_for_backward`` gets.
        saved_unchecked: tensors among the outputs that are saved without a check of their version.
        symints: where the saved sizes begin, 0 for none.
        kept_views: which saved tensors, of both kinds, are kept as they are even if they are views.
        unsafe_views: outputs that become views that nobody else can reach.
        without_gradient: outputs that are tensors and take no gradient.
        tangents: for each gradient that the backward takes, which output's it is and the memory
            format it must have.
        deterministic: whether deterministic algorithms were asked for when it was compiled.
    """

    detached: tuple[int, ...]
    saved: slice
    saved_unchecked: slice
    symints: int
    kept_views: tuple[bool, ...]
    unsafe_views: tuple[int, ...]
    without_gradient: tuple[int, ...]
    tangents: tuple[tuple[int, Any], ...]
    deterministic: bool | None


def inference_plan(wrapper: Any, metadata: Any, keep_mutations: bool) -> CallPlan:
    """The plan of a graph without a backward.

    Args:
        wrapper: torch's ``RuntimeWrapper``.
        metadata: torch's ``ViewAndMutationMeta``.
        keep_mutations: whether the graph itself writes to inputs that it mutates.

    Raises:
        NotStraight: the graph does more.
    """
    _refuse(
        {
            "returns views of its inputs or of values inside of it": metadata.num_outputs_aliased,
            "has inputs that are written to after the call": (
                metadata.num_mutated_inp_runtime_indices
            ),
            "returns bases of views": metadata.num_intermediate_bases,
            "has effects in an order": metadata.tokens,
            "takes a random state as an input": metadata.is_rng_op_functionalized,
            "returns sizes that vary": metadata.dynamic_outputs,
            "changes the grad mode": metadata.grad_enabled_mutation is not None,
            "is checked by debug_assert": compat.debug_assert(),
        }
    )
    written = tuple(metadata.mutated_graph_handled_indices_seen_by_autograd)
    return CallPlan(
        returns=metadata.num_outputs,
        written=written if keep_mutations else (),
        without_autocast=wrapper.disable_amp,
    )


def training_plan(wrapper: Any, function: Any, keep_mutations: bool) -> TrainingPlan:
    """The plan of a graph with a backward.

    Args:
        wrapper: torch's ``RuntimeWrapper``.
        function: the ``autograd.Function`` that AOTAutograd made.
        keep_mutations: as in ``inference_plan``.

    Raises:
        NotStraight: the graph does more.
    """
    metadata = function.metadata
    call = inference_plan(wrapper, metadata, keep_mutations)
    _refuse(
        {
            "has tensor subclasses": function.maybe_subclass_metadata is not None,
            "takes random states as inputs": metadata.num_graphsafe_rng_states,
            "saves opaque objects": metadata.num_opaque_objects_saved_for_bw,
            "saves tensors of sizes that vary": metadata.dynamic_saved_tensors_idxs,
            "has effects in its backward": metadata.num_backward_tokens,
            "writes to inputs in its backward": (
                metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw
            ),
            "has hooks for what it saves": compat.hooks_are_inlined(),
            "uses objects that its backward must find again": compat.uses_objects(),
        }
    )
    outputs = metadata.output_info
    flows = [i for i, info in enumerate(outputs) if compat.takes_gradient(info)]
    formats = [compat.tangent_format(meta) for meta in metadata.subclass_tangent_meta]
    if len(formats) != len(flows):
        raise NotStraight("has gradients of another number than outputs that take one")
    symints = metadata.num_symints_saved_for_bw
    saved = metadata.tensors_saved_for_backwards_with_vc_check_slice
    return TrainingPlan(
        returns=call.returns,
        written=call.written,
        without_autocast=call.without_autocast,
        detached=tuple(wrapper.indices_of_inps_to_detach),
        saved=saved,
        saved_unchecked=metadata.tensors_saved_for_backwards_no_vc_check_slice,
        symints=-symints if symints else 0,
        kept_views=tuple(getattr(metadata, "saved_tensor_is_graph_input", ())),
        unsafe_views=tuple(metadata.unsafe_view_out_indices),
        without_gradient=tuple(
            i for i, info in enumerate(outputs) if not info.requires_grad and compat.is_tensor(info)
        ),
        tangents=tuple(zip(flows, formats, strict=True)),
        deterministic=metadata.deterministic,
    )


def _refuse(reasons: dict[str, Any]) -> None:
    for words, holds in reasons.items():
        if holds:
            raise NotStraight(words)


Call = Callable[[list[Any]], Any]
"""What a wrapper is: from a list of inputs, which it may empty, to a list of outputs."""
