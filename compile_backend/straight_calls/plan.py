"""What AOTAutograd's run-time wrapper has left to do for one graph, from its metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..aot_metadata.view_and_mutation import OutputType, TangentFormat, ViewAndMutationMeta


class NotStraight(Exception):
    """The graph needs more than a straight call does; the message says what, after "it"."""


Dims = frozenset[int]
Call = Callable[[list[Any]], Any]
"""What a wrapper is: from a list of inputs, which it may empty, to a list of outputs."""


@dataclass(frozen=True)
class CallPlan:
    """What a call does besides running the compiled code.

    Attributes:
        returns: how many outputs the program gets.
        written: inputs that the graph writes to, whose version is to be advanced.
        varying: outputs with dimensions that vary, of which Dynamo is told.
    """

    returns: int
    written: tuple[int, ...]
    varying: tuple[tuple[int, Dims], ...]


@dataclass(frozen=True)
class TrainingPlan(CallPlan):
    """What a training step does besides.

    Attributes:
        saved: outputs of the compiled forward that ``save_for_backward`` gets.
        saved_unchecked: those that are saved without a check of their version.
        saved_sizes: those that are saved sizes.
        saved_varying: as ``varying``, of all tensors that are saved.
        kept_views: which saved tensors, of both kinds, stay as they are even if they are views.
        unsafe_views: outputs that become views of what nobody else can reach.
        without_gradient: outputs that are tensors and take no gradient.
        tangents: for each gradient that the backward takes, which output's it is and its layout.
        deterministic: whether deterministic algorithms were asked for when it was compiled.
    """

    saved: slice
    saved_unchecked: slice
    saved_sizes: slice
    saved_varying: tuple[tuple[int, Dims], ...]
    kept_views: tuple[bool, ...]
    unsafe_views: tuple[int, ...]
    without_gradient: tuple[int, ...]
    tangents: tuple[tuple[int, TangentFormat], ...]
    deterministic: bool | None


def inference_plan(metadata: ViewAndMutationMeta, writes_itself: bool) -> CallPlan:
    """The plan of a graph without a backward.

    Args:
        metadata: of the function.
        writes_itself: whether the graph itself writes to inputs that it mutates.

    Raises:
        NotStraight: the graph does more.
    """
    outputs = metadata.output_info
    _refuse(
        {
            f"has metadata that could not be read: {', '.join(metadata.unknown)}": metadata.unknown,
            "returns views": any(o.output_type.is_alias for o in outputs),
            "has inputs that are written to after the call": metadata.num_mutated_outputs,
            "returns bases of views": metadata.num_intermediate_bases,
            "has effects in an order": metadata.tokens + metadata.num_backward_tokens,
            "takes a random state as an input": metadata.is_rng_op_functionalized,
            "changes the grad mode": metadata.grad_enabled_mutation is not None,
        }
    )
    return CallPlan(
        returns=len(outputs),
        written=metadata.mutated_graph_handled_indices_seen_by_autograd if writes_itself else (),
        varying=tuple((i, o.dynamic_dims) for i, o in enumerate(outputs) if o.dynamic_dims),
    )


def training_plan(metadata: ViewAndMutationMeta, writes_itself: bool) -> TrainingPlan:
    """The plan of a graph with a backward, and without tensor subclasses.

    Args:
        metadata, writes_itself: as for ``inference_plan``.

    Raises:
        NotStraight: the graph does more.
    """
    call = inference_plan(metadata, writes_itself)
    sizes = metadata.num_symints_saved_for_bw
    unchecked = metadata.num_tensors_saved_with_no_vc_check
    _refuse(
        {
            "takes random states as inputs": metadata.num_graphsafe_rng_states,
            "saves opaque objects": metadata.num_opaque_objects_saved_for_bw,
            "writes to inputs in its backward": (
                metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw
            ),
            "is not partitioned": sizes is None or unchecked is None,
            "takes gradients that are subclasses": None in metadata.subclass_tangent_meta,
        }
    )
    assert sizes is not None
    assert unchecked is not None
    outputs = metadata.output_info
    flows = [i for i, o in enumerate(outputs) if o.takes_gradient]
    tangents = [t for t in metadata.subclass_tangent_meta if t is not None]
    if len(tangents) != len(flows):
        raise NotStraight("takes gradients of another number than its outputs")
    return TrainingPlan(
        **vars(call),
        saved=slice(metadata.num_forward, -(unchecked + sizes) or None),
        saved_unchecked=slice(-(unchecked + sizes), -sizes or None) if unchecked else slice(0, 0),
        saved_sizes=slice(-sizes, None) if sizes else slice(0, 0),
        saved_varying=metadata.dynamic_saved_tensors_idxs,
        kept_views=metadata.saved_tensor_is_graph_input,
        unsafe_views=tuple(
            i for i, o in enumerate(outputs) if o.output_type is OutputType.UNSAFE_VIEW_ALIAS
        ),
        without_gradient=tuple(
            i for i, o in enumerate(outputs) if o.is_tensor and not o.requires_grad
        ),
        tangents=tuple(zip(flows, tangents, strict=True)),
        deterministic=metadata.deterministic,
    )


def _refuse(reasons: dict[str, Any]) -> None:
    for words, holds in reasons.items():
        if holds:
            raise NotStraight(words)
