"""Pieces of torch that a description needs: Dynamo's sources, and kinds of nodes and values."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import source as dynamo
from torch.fx import GraphModule
from torch.fx.experimental import _backward_state
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def dynamo_source(placeholder: torch.fx.Node) -> Any:
    """Dynamo's Source of a graph input, None where it has none."""
    known = getattr(placeholder.meta.get("grapharg"), "source", None)
    return getattr(placeholder, "_dynamo_source", None) or known


def source_text(source: Any) -> str:
    """A Dynamo Source as Python source, e.g. ``L['x']``; "" for None or what has none."""
    if source is None:
        return ""
    try:
        name = source.name
        return str(name() if callable(name) else name)
    except NotImplementedError:
        return ""


def source_links(source: Any) -> tuple[tuple[str, Any], ...]:
    """A Dynamo Source as ``(what, key)`` steps, from the frame's variable inwards.

    ``what`` is as below, or ``other``: ``module`` and ``optimizer`` say that what came so far is
    one, ``registry`` is a module's ``_parameters`` or ``_buffers``; ``key`` is the name or index,
    of a dictionary entry that Dynamo knows by position only (its key is an object) that position.
    """
    kinds: list[tuple[type | tuple[type, ...], str, str]] = [
        (dynamo.OptimizerSource, "optimizer", ""),
        (dynamo.NNModuleSource, "module", ""),
        (dynamo.UnspecializedParamBufferSource, "registry", "member"),
        (dynamo.GradSource, "grad", "member"),
        ((dynamo.AttrSource, dynamo.GenericAttrSource), "attr", "member"),
        ((dynamo.GetItemSource, dynamo.DictGetItemSource), "item", "index"),
        (dynamo.ConstDictKeySource, "item", "index"),
        ((dynamo.LocalSource, dynamo.SyntheticLocalSource), "local", "local_name"),
        (dynamo.GlobalSource, "global", "global_name"),
    ]
    links: list[tuple[str, Any]] = []
    while source is not None:
        for class_, what, field in kinds:
            if isinstance(source, class_):
                key = getattr(source, field, None)
                if isinstance(key, dynamo.ConstDictKeySource):
                    key = key.index
                if not isinstance(key, (str, int, type(None))):
                    key = f"<{type(key).__name__} at {id(key):#x}>"  # any dictionary key
                links.append((what, key))
                break
        else:
            links.append(("other", type(source).__name__))
        source = getattr(source, "base", None)
    return tuple(reversed(links))


def lifted_sources(gm: GraphModule) -> dict[str, Any]:
    """Dynamo's Source of each attribute that AOTAutograd will lift to a graph input."""
    return dict(getattr(gm, "_param_name_to_source", None) or {})


def is_managed_by_fsdp(source: Any) -> bool:
    """Tells whether the module that a Dynamo Source leads through is sharded by FSDP, 1 or 2."""
    return source is not None and bool(source.guard_source.is_fsdp_module())


def subclass_name(value: Any) -> str:
    """Class name of a tensor that is made of inner tensors, "" for anything else."""
    return type(value).__name__ if is_traceable_wrapper_subclass(value) else ""


def written_by(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Arguments that an operator writes to, by its schema."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    arguments = zip(node.target._schema.arguments, node.args, strict=False)
    written = [v for a, v in arguments if a.alias_info is not None and a.alias_info.is_write]
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg(written, found.append)
    return found


def is_backward_state(value: Any) -> bool:
    """Tells whether ``value`` carries hooks from a forward to compiled autograd."""
    return isinstance(value, _backward_state.BackwardState)
