"""What Dynamo knows of the values that it hands to a graph.

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
which AOTAutograd lifts to inputs of their own; both are listed.

One thing cannot be told: state that an optimizer *creates* inside a compiled step leaves
the graph as an ordinary output (SGD's first momentum buffer). It is optimizer state from
the next step on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from memprof.compile_backend import _torch_compat as compat

Links = tuple[tuple[str, Any], ...]
"""Steps from a variable of the frame to a value; see ``_torch_compat.source_links``."""


@dataclass(frozen=True)
class DynamoInput:
    """One value that a Dynamo graph takes.

    Attributes:
        name: of the placeholder, or of the attribute that will be lifted.
        source: the way to it as Python source, e.g. ``L['self']._parameters['weight']``.
        is_parameter, is_buffer, is_optimizer_state, is_parameter_gradient: at most one
            holds, see Note [Where an input's role comes from].
        is_saved_for_backward: the graph is a captured backward and this is what the forward
            saved for it; only compiled autograd knows, no Source says so.
        is_input_gradient: likewise: the gradient until now of a leaf that is no parameter.
        is_backward_root: likewise: a gradient that the backward is started with.
        fqn: qualified name of what is none of a plain user input: of a parameter or buffer
            within the outermost module that leads to it, of anything else of an optimizer
            within that.
        index: position among the flat inputs; None for a lifted attribute.
        forward: of what a captured backward is given by a forward: id of the forward's record,
            index of its output.
        is_gathered: FSDP manages its module, so that a parameter is gathered into memory of its
            own before each use, and that memory freed after it.
    """

    name: str
    source: str = ""
    is_parameter: bool = False
    is_buffer: bool = False
    is_optimizer_state: bool = False
    is_parameter_gradient: bool = False
    is_saved_for_backward: bool = False
    is_input_gradient: bool = False
    is_backward_root: bool = False
    fqn: str | None = None
    index: int | None = None
    forward: tuple[int, int] | None = None
    is_gathered: bool = False


@dataclass(frozen=True)
class DynamoOutput:
    """One value that a Dynamo graph of a captured backward returns.

    Attributes:
        is_parameter_gradient: the new gradient of a parameter; of another leaf otherwise.
        fqn: of that parameter or leaf.
    """

    is_parameter_gradient: bool
    fqn: str | None


_NOTHING = DynamoInput("")


def dynamo_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[DynamoInput, ...]:
    """Everything that a Dynamo graph takes: placeholders in order, then lifted attributes.

    A placeholder that is a list (compiled autograd has one) counts as its elements.

    Args:
        gm: as Dynamo hands it to a backend.
        example_inputs: likewise; one a placeholder.
    """
    values: list[_Value] = []
    for at, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        source = compat.dynamo_source(node)
        way = tuple(compat.source_links(source))
        example = example_inputs[at] if at < len(example_inputs) else None
        for inside, leaf in _leaves(example):
            text = compat.source_text(source) + "".join(f"[{key!r}]" for key in inside)
            name = "_".join((node.name, *map(str, inside)))
            is_parameter = isinstance(leaf, torch.nn.Parameter)
            leaf_way = (*way, *(("item", key) for key in inside)) if way else ()
            gathered = is_parameter and compat.is_managed_by_fsdp(source)
            values.append(_Value(name, len(values), text, leaf_way, is_parameter, gathered))
    parameters = {name for name, _ in gm.named_parameters(remove_duplicate=False)}
    buffers = {name for name, _ in gm.named_buffers(remove_duplicate=False)}
    sources = compat.lifted_sources(gm)
    for name in (*sorted(parameters), *sorted(buffers)):
        source = sources.get(name)
        way = tuple(compat.source_links(source))
        values.append(_Value(name, None, compat.source_text(source), way, name in parameters))

    parameter_ways = {v.way for v in values if v.way and v.is_parameter}
    several_roots = len({_root(v.way) for v in values if _is_module_state(v.way)}) > 1
    inputs = []
    for v in values:
        facts = classify(v.way, v.is_parameter, parameter_ways)
        if v.index is None and facts == _NOTHING:
            facts = replace(facts, is_buffer=True)  # AOTAutograd's word for what is lifted
        fqn = None if facts == _NOTHING else _fqn(v.way, several_roots) or v.source or v.name
        facts = replace(facts, name=v.name, source=v.source, index=v.index, fqn=fqn)
        inputs.append(replace(facts, is_gathered=v.is_gathered))
    return tuple(inputs)


@dataclass(frozen=True)
class _Value:
    """A value before it is classified."""

    name: str
    index: int | None
    source: str
    way: Links
    is_parameter: bool
    is_gathered: bool = False


def _leaves(example: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Keys to, and values of, what a placeholder holds: itself, unless it is a container.

    Compiled autograd passes all its tensors in one list, and AOTAutograd counts what is
    inside.
    """
    items: Iterable[tuple[Any, Any]]
    if isinstance(example, dict):
        items = example.items()
    elif isinstance(example, (list, tuple)):
        items = enumerate(example)
    else:
        yield (), example
        return
    for key, value in items:
        for inside, leaf in _leaves(value):
            yield (key, *inside), leaf


def classify(way: Links, is_parameter: bool, parameters: set[Links]) -> DynamoInput:
    """The facts about the value at the end of ``way``, without names.

    Args:
        way: steps to the value; () where unknown.
        is_parameter: it is an ``nn.Parameter``.
        parameters: ways to values known to be parameters.
    """
    if is_parameter or _leads_to_parameter(way):
        return DynamoInput("", is_parameter=True)
    if way and way[-1] == ("grad", "grad"):
        # Dynamo uses this step for what an optimizer's parameters hold in `.grad`.
        return DynamoInput("", is_parameter_gradient=True)
    if way and way[-1] == ("attr", "grad"):
        owner = way[:-1]
        if owner in parameters or _leads_to_parameter(owner):
            return DynamoInput("", is_parameter_gradient=True)
    if any(what == "optimizer" for what, _ in way):
        return DynamoInput("", is_optimizer_state=True)
    if _registry(way) == "_buffers":
        return DynamoInput("", is_buffer=True)
    return DynamoInput("")


def _leads_to_parameter(way: Links) -> bool:
    if _registry(way) == "_parameters":
        return True
    whats = [what for what, _ in way]
    if "optimizer" not in whats:
        return False
    inside = way[whats.index("optimizer") + 1 :]
    return (
        len(inside) == 4
        and inside[0] == ("attr", "param_groups")
        and inside[2] == ("item", "params")
    )


def _registry(way: Links) -> str | None:
    """``_parameters`` or ``_buffers`` if the value is an entry of that of a module."""
    if len(way) < 2 or way[-1][0] != "item":
        return None
    what, member = way[-2]
    if what == "registry" or (what == "attr" and len(way) > 2 and way[-3][0] == "module"):
        return str(member)
    return None


def _is_module_state(way: Links) -> bool:
    return _registry(way) in ("_parameters", "_buffers")


def _root(way: Links) -> Links:
    """The steps to the outermost module or optimizer on the way, itself included."""
    for at, (what, _) in enumerate(way):
        if what in ("module", "optimizer"):
            return way[: at + 1]
    return ()


def _fqn(way: Links, with_root: bool) -> str:
    """Dotted name of the value within the outermost module or optimizer on its way.

    Args:
        way: steps to the value.
        with_root: begin with how that module is reached, because there are several.
    """
    root = _root(way)
    if not root:
        return ""
    hidden = ("_modules", "_parameters", "_buffers")
    path = [
        str(key)
        for what, key in (*(root if with_root else ()), *way[len(root) :])
        if what in ("local", "global", "attr", "item", "registry", "grad") and key not in hidden
    ]
    return ".".join(path)
