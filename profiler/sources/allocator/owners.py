"""Modules whose own memory is: parameters and buffers, their gradients and an optimizer's state;
and other tensors that are attributes of theirs.

Such memory is asked for where no module runs: where a model is moved to a device, where gradients
are accumulated, where an optimizer steps. It belongs to a module all the same, known as the classes
whose ``forward`` runs when that module is called (``Where.modules``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from . import _torch_compat as compat
from .where import MODULE_IN_MODULE, is_of_program

Owners = dict[int, str]
"""Modules that own storages, as ``Where.module_path``, by the address of their first byte; of a
tensor that is neither parameter nor buffer with the attribute's name, ``Model > Layer.cache``."""


def owners(
    modules: Iterable[torch.nn.Module],
    optimizers: Iterable[torch.optim.Optimizer] = (),
    others: Iterable[object] = (),
) -> Owners:
    """Owners of the memory that modules have now, and other objects by their attributes; submodules
    count as parts of the outermost."""
    every = list(modules)
    states = {id(p): state for o in optimizers for p, state in list(o.state.items())}
    inside = {id(child) for m in every for child in _has(m, "_modules")}
    known: Owners = {}
    walked = [x for m in every if id(m) not in inside for x in _walk(m, (), set())]
    for module, classes in walked:
        for tensor in (*_has(module, "_parameters"), *_has(module, "_buffers")):
            state = states.get(id(tensor))
            kept = list(state.values()) if isinstance(state, dict) else []
            for one in (tensor, compat.gradient_of(tensor), *kept):
                for address, _ in compat.memory_of(one, "cuda"):
                    known.setdefault(address, MODULE_IN_MODULE.join(classes))
    # What a module has of its own goes first: an attribute may be a view of another's parameter.
    attributes: Owners = {}
    named = [(module, MODULE_IN_MODULE.join(classes)) for module, classes in walked]
    for owner, path in (*named, *((other, type(other).__name__) for other in others)):
        for name, value in list(owner.__dict__.items()):
            for tensor in _tensors_in(value):
                for address, _ in compat.memory_of(tensor, "cuda"):
                    attributes.setdefault(address, f"{path}.{name}")
    return attributes | known


def classes_called(module: torch.nn.Module, above: tuple[str, ...]) -> tuple[str, ...]:
    """The classes whose ``forward`` runs when a module is called by those ``above``: with the one
    in whose text its own stands, as FSDP makes others of it, unless it is a wrapper of torch's,
    such as checkpointing's, or that cannot be read."""
    forward: Any = getattr(type(module), "forward", None)  # TorchScript's raises AttributeError.
    if not hasattr(forward, "__code__") or not is_of_program(forward.__code__.co_filename):
        return above
    name = getattr(forward, "__qualname__", "").rpartition(".forward")[0].rpartition(".")[2]
    return (*above, name) if name not in ("", *above[-1:]) else above


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of an attribute: itself, or those in a list or tuple."""
    found = value if type(value) in (list, tuple) else [value]
    # By ``type``, since ``isinstance`` asks the object.
    return [x for x in found if issubclass(type(x), torch.Tensor)]


def _has(module: torch.nn.Module, kind: str) -> list[Any]:
    return [x for x in module.__dict__.get(kind, {}).values() if x is not None]


def _walk(
    module: torch.nn.Module, above: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[torch.nn.Module, tuple[str, ...]]]:
    """A module and all inside of it, each once, with the classes that are called on the way."""
    seen.add(id(module))
    classes = classes_called(module, above)
    yield module, classes
    for child in _has(module, "_modules"):
        if id(child) not in seen:
            yield from _walk(child, classes, seen)
