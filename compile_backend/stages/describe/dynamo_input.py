"""Dynamo's knowledge of the values that it hands to a graph.

Note [Where an input's role comes from]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
From the Source that Dynamo guards the value by: the way from a variable of the frame to
the value. Names play no part. A value is

* a parameter if it is an ``nn.Parameter``, stands in the ``_parameters`` of a module, or
  in the ``params`` of a group of an optimizer;
* a buffer if it stands in the ``_buffers`` of a module;
* optimizer state if it is reached through an optimizer in any other way: through its
  ``state``, or as a hyperparameter of a group;
* a parameter's gradient if it is the ``grad`` of any of the parameters.

Dynamo hands most values over as placeholders, but puts what belongs to an optimizer (and,
with ``inline_inbuilt_nn_modules`` off, to a module) on the graph module as attributes,
which AOTAutograd lifts to inputs of their own. State that an optimizer *creates* inside a compiled
step is an ordinary output there, and optimizer state from the next step on.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memprof.profiler.model import Category, Role

from . import _torch_compat as compat

CATEGORIES = {
    Role.PARAMETER: Category.PARAMETER,
    Role.BUFFER: Category.PARAMETER,
    Role.OPTIMIZER_STATE: Category.OPTIMIZER_STATE,
    Role.PARAMETER_GRADIENT: Category.GRADIENT,
    Role.SAVED_FOR_BACKWARD: Category.ACTIVATION,
    Role.INPUT_GRADIENT: Category.AUTOGRAD_DETAIL,
    Role.TANGENT: Category.AUTOGRAD_DETAIL,
    Role.USER_INPUT: Category.INPUT,
}
"""The roles that a value of a Dynamo graph can have, and the category of its memory."""

Links = tuple[tuple[str, Any], ...]
"""Steps from a variable of the frame to a value; see ``_torch_compat.source_links``."""


@dataclass(frozen=True)
class DynamoInput:
    """One value that a Dynamo graph takes.

    Attributes:
        name: of the placeholder, or of the attribute that will be lifted.
        source: the way to it as Python source, e.g. ``L['self']._parameters['weight']``.
        role: see Note [Where an input's role comes from]. SAVED_FOR_BACKWARD, INPUT_GRADIENT (the
            gradient until now of a leaf that is no parameter) and TANGENT are compiled autograd's
            word on what a captured backward takes.
        fqn: qualified name, but of a plain user input, within the outermost module or optimizer
            that leads to it.
        index: position among the flat inputs; None for a lifted attribute.
        forward: of what a captured backward is given by a forward: id of the forward's record,
            index of its output.
        is_gathered: a parameter that FSDP gathers into other memory for each use.
        subclass: name of its class if that has inner tensors, "" otherwise.
    """

    name: str
    source: str = ""
    role: Role = Role.USER_INPUT
    fqn: str | None = None
    index: int | None = None
    forward: tuple[int, int] | None = None
    is_gathered: bool = False
    subclass: str = ""


def dynamo_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[DynamoInput, ...]:
    """Everything that a Dynamo graph takes: placeholders in order, then lifted attributes.

    A placeholder that is a list (compiled autograd has one) counts as its elements.
    """
    values: list[tuple[DynamoInput, Links, bool]] = []  # with its source path; is a parameter
    for at, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        example = example_inputs[at] if at < len(example_inputs) else None
        source = compat.dynamo_source(node)
        source_path = compat.source_links(source)
        for inside, leaf in _leaves(example):
            text = compat.source_text(source) + "".join(f"[{key!r}]" for key in inside)
            name = "_".join((node.name, *map(str, inside)))
            is_parameter = isinstance(leaf, torch.nn.Parameter)
            steps = tuple(("item", key) for key in inside) if source_path else ()
            gathered = is_parameter and compat.is_managed_by_fsdp(source)
            value = DynamoInput(
                name,
                text,
                index=len(values),
                is_gathered=gathered,
                subclass=compat.subclass_name(leaf),
            )
            values.append((value, source_path + steps, is_parameter))
    parameters = {name for name, _ in gm.named_parameters(remove_duplicate=False)}
    buffers = {name for name, _ in gm.named_buffers(remove_duplicate=False)}
    sources = compat.lifted_sources(gm)
    for name in (*sorted(parameters), *sorted(buffers)):
        source = sources.get(name)
        subclass = compat.subclass_name(operator.attrgetter(name)(gm))
        value = DynamoInput(name, compat.source_text(source), subclass=subclass)
        values.append((value, compat.source_links(source), name in parameters))

    of_parameters = {path for _, path, is_parameter in values if path and is_parameter}
    states = [p for _, p, _ in values if _registry(p) in ("_parameters", "_buffers")]
    several_roots = len(set(map(_root, states))) > 1
    inputs = []
    for value, path, is_parameter in values:
        role = classify(path, is_parameter, of_parameters)
        if value.index is None and role is Role.USER_INPUT:
            role = Role.BUFFER  # AOTAutograd's word for what is lifted
        fqn = None
        if role is not Role.USER_INPUT:
            fqn = _fqn(path, several_roots) or value.source or value.name
        inputs.append(replace(value, role=role, fqn=fqn))
    return tuple(inputs)


def _leaves(example: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Keys to, and values of, what a placeholder holds, as AOTAutograd counts it: itself, unless it
    is a container."""
    if not isinstance(example, (dict, list, tuple)):
        yield (), example
        return
    for key, value in example.items() if isinstance(example, dict) else enumerate(example):
        for inside, leaf in _leaves(value):
            yield (key, *inside), leaf


def classify(source_path: Links, is_parameter: bool, parameters: set[Links]) -> Role:
    """The role of the value at the end of ``source_path``, () where unknown; ``parameters`` are
    paths to values known to be parameters."""
    if is_parameter or _leads_to_parameter(source_path):
        return Role.PARAMETER
    if source_path and source_path[-1] == ("grad", "grad"):
        # Dynamo uses this step for what an optimizer's parameters hold in `.grad`.
        return Role.PARAMETER_GRADIENT
    if source_path and source_path[-1] == ("attr", "grad"):
        owner = source_path[:-1]
        if owner in parameters or _leads_to_parameter(owner):
            return Role.PARAMETER_GRADIENT
    if any(what == "optimizer" for what, _ in source_path):
        return Role.OPTIMIZER_STATE
    return Role.BUFFER if _registry(source_path) == "_buffers" else Role.USER_INPUT


def _leads_to_parameter(source_path: Links) -> bool:
    if _registry(source_path) == "_parameters":
        return True
    whats = [what for what, _ in source_path]
    if "optimizer" not in whats:
        return False
    inside = source_path[whats.index("optimizer") + 1 :]
    return (
        len(inside) == 4
        and inside[0] == ("attr", "param_groups")
        and inside[2] == ("item", "params")
    )


def _registry(source_path: Links) -> str | None:
    """``_parameters`` or ``_buffers`` if the value is an entry of that of a module."""
    if len(source_path) < 2 or source_path[-1][0] != "item":
        return None
    *before, (what, member), _ = source_path
    in_module = what == "attr" and before and before[-1][0] == "module"
    return str(member) if what == "registry" or in_module else None


def _root(source_path: Links) -> Links:
    """The steps to the outermost module or optimizer on the way, itself included."""
    for at, (what, _) in enumerate(source_path):
        if what in ("module", "optimizer"):
            return source_path[: at + 1]
    return ()


def _fqn(source_path: Links, with_root: bool) -> str:
    """Dotted name of the value within the outermost module or optimizer on its way; with how that
    is reached, ``with_root``, where there are several."""
    if not (root := _root(source_path)):
        return ""
    named = ("local", "global", "attr", "item", "registry", "grad")
    hidden = ("_modules", "_parameters", "_buffers")
    steps = source_path if with_root else source_path[len(root) :]
    return ".".join(str(key) for what, key in steps if what in named and key not in hidden)
