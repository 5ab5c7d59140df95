"""Inputs and outputs of a captured backward, and the provenance of its nodes.

Note [Where a captured backward gets its names from]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Its compiler sees a plain function of ``inputs[0]``, ``inputs[1]`` and so on, and nothing is
differentiated. What goes in and out is known in three places:

* the engine: which input is a leaf, its gradient until now, saved, or what the backward
  is started with (``lifted_inputs``);
* the forward's description: which of its outputs a saved tensor is. The tracer decides by it, and
  both sides know AOTAutograd's number of the graph;
* the call of the forward, which had the parameters under their names (``note_names``).

Outputs are the accumulations, whose first argument is the leaf. So a captured backward, and its
nodes, are described like one that AOTAutograd made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

from memprof.compiled_autograd.nodes import (
    GRADIENT_GROUP,
    INPUT_GROUP,
    NAMES,
    SAVED_AS,
    TENSOR_NAME,
    accumulated,
    accumulated_leaf,
    is_accumulate_grad,
    is_engine_frame,
    is_getitem,
    origin_of,
    placeholders,
    takes_gradient,
)
from memprof.profiler.model import NO_VALUE, GraphValue, NodeProvenance, Role

from .session.runtime import FORWARDS
from .stages.describe._torch_compat import dynamo_source, source_text
from .stages.describe.dynamo_input import CATEGORIES, DynamoInput
from .stages.describe.graph_value import RoleInfo
from .stages.provenance import aot_nodes


def note_names(
    sources: Sequence[DynamoInput], example_inputs: Sequence[Any]
) -> Callable[[Sequence[Any]], None]:
    """Register the names of a Dynamo graph's parameters; return a function that does so at a later
    call: one graph may serve several modules. It costs a look-up where they are the same."""
    parameters = [s for s in sources if s.role is Role.PARAMETER]
    names = {s.index: s.fqn for s in parameters if s.fqn and s.index is not None}
    if not names:
        return lambda args: None
    first = min(names)

    def seen(args: Sequence[Any]) -> None:
        if first < len(args) and args[first] not in NAMES:
            for i, name in names.items():
                if i < len(args) and isinstance(args[i], torch.Tensor):
                    NAMES.setdefault(args[i], name)

    seen(example_inputs)
    return seen


class LiftedInput(NamedTuple):
    """Role that one of ``inputs`` of a captured backward has for the engine.

    Attributes:
        role: SAVED_FOR_BACKWARD by the forward, PARAMETER_GRADIENT for the gradient until now of
            any leaf, TANGENT for a gradient that the backward is started with, and PARAMETER for a
            leaf whose gradient is accumulated, most of the time one.
        name: of the leaf that it is, as in ``NAMES``, or that ``leaf`` is; None if unknown.
        leaf: of a gradient, the index of its leaf in ``inputs``; of what is saved, that of
            the leaf whose memory it shares; None otherwise.
        saved_as: ``(AOTAutograd's id of the graph, output of its forward)`` if the backward of a
            compiled function takes it.
    """

    role: Role
    name: str | None = None
    leaf: int | None = None
    saved_as: tuple[int, GraphValue] | None = None


def lifted_inputs(graph: Graph) -> dict[int, LiftedInput]:
    """Roles of lifted tensors, by their index in ``inputs``."""
    items: dict[Node, int] = {}
    for node in placeholders(graph)["inputs"].users:
        if is_getitem(node) and isinstance(index := node.args[1], int):
            items[node] = index
    of_group = {n.meta[INPUT_GROUP]: n for n in items if INPUT_GROUP in n.meta}
    leaves: set[Node] = set()
    gradients: dict[Node, Node] = {}
    for node in graph.nodes:
        if is_accumulate_grad(node):
            variable, current, _ = accumulated(node)
            if variable in items:
                leaves.add(variable)
                if current is None:  # up to torch 2.12 it is an input, but no argument
                    current = of_group.get(variable.meta.get(GRADIENT_GROUP))
                if current is not None:
                    gradients[current] = variable
    # A weight is saved as a view of itself more often than not.
    leaf_of_storage = {n.meta[INPUT_GROUP]: n for n in leaves if INPUT_GROUP in n.meta}
    found: dict[int, LiftedInput] = {}
    for node, index in items.items():
        leaf = None
        if node in gradients:
            role, leaf = Role.PARAMETER_GRADIENT, gradients[node]
        elif node in leaves:
            role = Role.PARAMETER
        elif _starts_it(node):
            found[index] = LiftedInput(Role.TANGENT)
            continue
        else:
            role, leaf = Role.SAVED_FOR_BACKWARD, leaf_of_storage.get(node.meta.get(INPUT_GROUP))
        name = (node if leaf is None else leaf).meta.get(TENSOR_NAME)
        found[index] = LiftedInput(
            role, name, None if leaf is None else items[leaf], node.meta.get(SAVED_AS)
        )
    return found


def _starts_it(node: Node) -> bool:
    origins = [origin_of(user) for user in node.users]
    return any(o is not None and o.autograd_node.endswith("GraphRoot") for o in origins)


def taken_gradients(graph: Graph) -> dict[str, int]:
    """First gradients that are taken and not copied: name of the node -> index of the leaf, to
    which nothing in Dynamo's graph leads from the gradient."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        if takes_gradient(node):
            variable, _, new = accumulated(node)
            if new is not None and isinstance(index := variable.args[1], int):
                found[new.name] = index
    return found


class CapturedBackwardIO:
    """Inputs, outputs and provenance of one captured backward, whose nodes get tags.

    Attributes:
        nodes: provenance of the captured graph's nodes, by name.
    """

    def __init__(self, captured: GraphModule) -> None:
        # By the way to each in a Dynamo graph.
        self._inputs = {_source(i): lifted for i, lifted in lifted_inputs(captured.graph).items()}
        self._taken = taken_gradients(captured.graph)
        self.nodes = captured_nodes(captured)
        aot_nodes.tag_nodes(captured.graph, aot_nodes.CAPTURED_TAG)

    def inputs(self, gm: GraphModule, inputs: Sequence[DynamoInput]) -> tuple[DynamoInput, ...]:
        """Describe the inputs of one of the graphs that Dynamo cut the captured backward into (one,
        without hooks), and finish its tags."""
        aot_nodes.tag_inlined_nodes(gm.graph)
        parameters = {given.source for given in inputs if given.role is Role.PARAMETER}
        return tuple(
            _described(given, self._inputs[given.source], parameters)
            if given.source in self._inputs
            else given
            for given in inputs
        )

    def outputs(self, gm: GraphModule, inputs: Sequence[DynamoInput]) -> dict[int, RoleInfo]:
        """Roles of the new gradients among a Dynamo graph's outputs, by position."""
        described = {d.source: d for d in inputs}
        (output,) = gm.graph.find_nodes(op="output")
        found = {}
        for position, node in enumerate(output.args[0]):
            if not isinstance(node, Node):
                continue
            # The gradient itself, detached. One of several results has the tag of them all
            # and, as every value that is assigned to a variable, its own name.
            tag = aot_nodes.tag_of(node, aot_nodes.CAPTURED_TAG)
            names = [tag or "", *(n.name for n in node.all_input_nodes)]
            taken = next(
                (self._taken[n] for n in names if n is not None and n in self._taken), None
            )
            leaf = accumulated_leaf(node)
            if taken is not None:
                of = described.get(_source(taken))
            elif leaf is not None:
                of = described.get(_source_of(leaf))
            else:
                continue
            is_parameter = of is not None and of.role is Role.PARAMETER
            role = Role.PARAMETER_GRADIENT if is_parameter else Role.INPUT_GRADIENT
            found[position] = RoleInfo(role, CATEGORIES[role], of.fqn if of is not None else None)
        return found


def _described(given: DynamoInput, lifted: LiftedInput, parameters: set[str]) -> DynamoInput:
    link, fact = _in_forward(lifted)
    name = lifted.name or (fact.fqn if fact is not None else None)
    plain = DynamoInput(given.name, given.source, index=given.index, forward=link)
    of_parameter = lifted.leaf is not None and _source(lifted.leaf) in parameters
    if lifted.role is Role.TANGENT:
        return replace(plain, role=Role.TANGENT)
    if lifted.role is Role.PARAMETER_GRADIENT:
        role = Role.PARAMETER_GRADIENT if of_parameter else Role.INPUT_GRADIENT
        return replace(plain, role=role, fqn=name)
    if given.role is Role.PARAMETER or of_parameter:
        return replace(plain, role=Role.PARAMETER, fqn=name)
    if lifted.role is Role.PARAMETER:
        return replace(plain, fqn=name)
    if fact is not None:
        return replace(plain, role=fact.role, fqn=fact.fqn)
    return replace(plain, role=Role.SAVED_FOR_BACKWARD)


def _in_forward(lifted: LiftedInput) -> tuple[tuple[int, int] | None, RoleInfo | None]:
    """Ids of the forward's record and of its output that a saved tensor is; role of the forward's
    input, if that output is one."""
    aot_id, output = lifted.saved_as or (-1, NO_VALUE)
    forward = FORWARDS.get(aot_id)
    if forward is None:
        return None, None
    link = (forward.record.id, output.index)
    if output.alias_of_input is None:
        return link, None
    origin = forward.record.inputs[output.alias_of_input]
    role = origin.role if origin.role in CATEGORIES else Role.USER_INPUT
    return link, RoleInfo(role, CATEGORIES[role], origin.fqn)


def _source(index: int) -> str:
    """The way to one of ``inputs`` in a Dynamo graph."""
    return f"L['inputs'][{index}]"


def _source_of(leaf: Node) -> str:
    """The way to an input of a Dynamo graph, e.g. ``L['inputs'][3]``."""
    if is_getitem(leaf) and isinstance(leaf.args[0], Node):
        return f"{_source_of(leaf.args[0])}[{leaf.args[1]!r}]"
    return source_text(dynamo_source(leaf))


# --- nodes --------------------------------------------------------------------------------


def captured_nodes(captured: GraphModule) -> dict[str, NodeProvenance]:
    """Provenance of every node of a captured graph, by name.

    A node of an AOTAutograd backward has what it has where AOTAutograd compiles that
    backward itself, see ``snapshot``. A plain autograd node has the engine's line for a stack and
    no module.
    """
    by_seq: dict[int, dict[int, NodeProvenance]] = {}
    found: dict[str, NodeProvenance] = {}
    alone: list[Node] = []
    for node in aot_nodes.computing(captured.graph):
        p = aot_nodes.own_provenance(node, backward=True)
        origin = origin_of(node)
        if origin is not None and origin.aot_node is not None:
            if p.frame is not None and is_engine_frame(p.frame):
                p = replace(p, stack=())
            aot_id = -1 if origin.aot_id is None else origin.aot_id
            if (forward := FORWARDS.get(aot_id)) is not None:
                if aot_id not in by_seq:
                    by_seq[aot_id] = aot_nodes.by_sequence_number(forward.aot_nodes.values())
                p = aot_nodes.with_forward(p, by_seq[aot_id])
            if not p.stack and p.module_path is None:
                alone.append(node)
        found[node.name] = p
    located = {n: p for n, p in found.items() if p.module_path is not None or _in_user_code(p)}
    aot_nodes.borrow_from_nearest(alone, found, located)
    return {name: aot_nodes.in_root(p) if _in_user_code(p) else p for name, p in found.items()}


def _in_user_code(p: NodeProvenance) -> bool:
    return p.frame is not None and not is_engine_frame(p.frame)
