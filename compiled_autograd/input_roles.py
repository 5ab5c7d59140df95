"""What the lifted tensors of a captured backward are to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch.fx import Graph, Node

from .node_meta import GRADIENT_GROUP, INPUT_GROUP, TENSOR_NAME
from .nodes import (
    accumulated,
    is_accumulate_grad,
    is_aot_prologue,
    is_getitem,
    placeholders,
    takes_gradient,
)
from .origin import origin_of


class InputRole(Enum):
    """What one of ``inputs`` is."""

    LEAF = "leaf"
    """A tensor whose gradient the backward accumulates: a parameter, most of the time."""
    GRADIENT = "gradient"
    """A leaf's gradient until now, which is added to."""
    SAVED = "saved"
    """The forward saved it for the backward."""
    ROOT = "root"
    """A gradient that the backward is started with."""


@dataclass(frozen=True, slots=True)
class LiftedInput:
    """One of ``inputs``.

    Attributes:
        role: what it is.
        name: of a leaf, as in ``NAMES``; of a gradient, its leaf's; of
            memory saved that is a leaf's, the leaf's too. None if unknown.
        leaf: of a gradient, the index of its leaf in ``inputs``; of what is saved, that of
            the leaf whose memory it shares; None otherwise.
        aot_saved: ``(AOTAutograd's id of the graph, position among the tensors that its
            forward saved)`` if an AOTAutograd backward takes it.
    """

    role: InputRole
    name: str | None = None
    leaf: int | None = None
    aot_saved: tuple[int, int] | None = None


def input_roles(graph: Graph) -> dict[int, LiftedInput]:
    """What each lifted tensor is to the engine, by its index in ``inputs``."""
    items: dict[Node, int] = {}
    for node in placeholders(graph)["inputs"].users:
        if is_getitem(node) and isinstance(index := node.args[1], int):
            items[node] = index
    of_group = {n.meta[INPUT_GROUP]: n for n in items if INPUT_GROUP in n.meta}
    leaves: dict[Node, int] = {}
    gradients: dict[Node, Node] = {}
    saved: dict[Node, tuple[int, int]] = {}
    for node in graph.nodes:
        if is_accumulate_grad(node):
            variable, current, _ = accumulated(node)
            if variable in items:
                leaves[variable] = items[variable]
                if current is None:  # up to torch 2.11 it is an input, but no argument
                    current = of_group.get(variable.meta.get(GRADIENT_GROUP))
                if current is not None:
                    gradients[current] = variable
        elif is_aot_prologue(node) and (origin := origin_of(node)) is not None:
            tensors = node.args[0]
            assert isinstance(tensors, (list, tuple))
            for position, tensor in enumerate(tensors):
                if isinstance(tensor, Node) and origin.aot_id is not None:
                    saved.setdefault(tensor, (origin.aot_id, position))
    # A weight is saved as a view of itself more often than not.
    leaf_of_storage = {n.meta[INPUT_GROUP]: n for n in leaves if INPUT_GROUP in n.meta}
    found: dict[int, LiftedInput] = {}
    for node, index in items.items():
        aot_saved = saved.get(node)
        if node in gradients:
            leaf = gradients[node]
            found[index] = LiftedInput(
                InputRole.GRADIENT, leaf.meta.get(TENSOR_NAME), leaves[leaf], aot_saved
            )
        elif node in leaves:
            found[index] = LiftedInput(InputRole.LEAF, node.meta.get(TENSOR_NAME), None, aot_saved)
        elif _starts_it(node):
            found[index] = LiftedInput(InputRole.ROOT)
        else:
            shared = leaf_of_storage.get(node.meta.get(INPUT_GROUP))
            name = (shared or node).meta.get(TENSOR_NAME)
            found[index] = LiftedInput(
                InputRole.SAVED, name, None if shared is None else leaves[shared], aot_saved
            )
    return found


def taken_gradients(graph: Graph) -> dict[str, int]:
    """First gradients that are taken and not copied: name of the node -> index of the leaf.

    Dynamo makes an attribute assignment of ``take_gradient``, after which nothing in its
    graph leads from the gradient to the leaf.
    """
    found: dict[str, int] = {}
    for node in graph.nodes:
        if takes_gradient(node):
            variable, _, new = accumulated(node)
            if new is not None and isinstance(index := variable.args[1], int):
                found[new.name] = index
    return found


def _starts_it(node: Node) -> bool:
    origins = [origin_of(user) for user in node.users]
    return any(o is not None and o.autograd_node.endswith("GraphRoot") for o in origins)
