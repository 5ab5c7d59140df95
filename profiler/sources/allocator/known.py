"""Memory whose category is known from the objects that hold it: modules and optimizers.

Note [What counts as persistent state]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What a program writes to and keeps from step to step, without training it. It is known by any of:

* *running statistics*: buffers of BatchNorm and InstanceNorm, by the class, since their kernels
  write past the counter of writes;
* *buffers that were written to*: by the tensor's counter of writes (``_version``), which compiled
  code raises as well, ``FEW`` times or more. Any other buffer is a constant of the model, and
  counts as a parameter;
* *static tensors*: marked by ``torch._dynamo.mark_static_address``, and neither a parameter nor
  of an optimizer;
* *caches of transformers*: keys, values and states of its classes of caches;
* *any other tensor* that is there at a look and whose counter of writes is past ``MANY``: a cache
  that is an attribute or an argument, a running sum, the input of a CUDA graph that each batch is
  copied into. No constructor writes so often. All else by which a block is known goes before this.

Of compiled code the graph tells (Note [How a category is decided]).
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from memprof.profiler.model import Category

from . import _torch_compat as compat

Categories = dict[int, Category]
"""Categories of storages, by the address of their first byte."""

MANY = 16
"""Writes to a tensor past which it is state, whatever else it may be."""

FEW = 4
"""Writes to a buffer from which on it is state: an initial value, a scaled one and a checkpoint
that is loaded are three."""


class KnownMemory(NamedTuple):
    """Categories of the memory of modules, optimizers and what the program itself names; addresses
    of storages written to often; and gradients of any tensors."""

    categories: Categories
    written_often: frozenset[int]
    gradients: Categories


class Objects:
    """Modules and optimizers of the process, and what their memory is for; modules are not kept.

    Attributes:
        others: objects that are no modules and whose tensors are known all the same to be theirs.
    """

    def __init__(self) -> None:
        self.has_optimizer = False
        self.others: list[object] = []
        # As they are made: not even ``compat.existing`` is cheap enough to ask at each step.
        # By id: a module's own ``__hash__`` and ``__eq__`` may not work yet, or call two equal.
        self._modules: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []

    def module_made(self, module: torch.nn.Module) -> None:
        self._modules[id(module)] = weakref.ref(module)

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        self.has_optimizer = True
        self._optimizers.append(weakref.ref(optimizer))

    def least_written(self) -> int:
        """Fewest writes to any parameter of the optimizers; -1 if there is none."""
        made = [optimizer for r in self._optimizers if (optimizer := r()) is not None]
        groups = [group for o in made for group in getattr(o, "param_groups", ())]
        writes = (compat.writes_to(p) or 0 for group in groups for p in group["params"])
        return min(writes, default=-1)

    def fewest_steps(self, steps: Mapping[int, int]) -> int:
        """The fewest steps of an optimizer that is there, of ``steps`` by id. One that has made
        none counts where it holds a parameter that no other one updates, or it wraps another."""
        alive = [optimizer for r in self._optimizers if (optimizer := r()) is not None]
        held = {
            id(o): {id(p) for g in o.__dict__.get("param_groups", ()) for p in g["params"]}
            for o in alive
        }
        updated = {p for o in alive if id(o) in steps for p in held[id(o)]}
        counts = (steps.get(i, 0) for i, mine in held.items() if i in steps or mine - updated)
        return min(counts, default=0)

    def of_modules(self) -> Categories:
        """Categories of the parameters, buffers and gradients of every module that was made."""
        known: Categories = {}
        for module in self.alive():
            statistics = isinstance(module, compat.NormWithStatistics)
            for tensor in _own(module, "_buffers"):
                state = statistics or _is_written(tensor, FEW)
                _add(known, tensor, Category.PERSISTENT_STATE if state else Category.PARAMETER)
            for tensor in _own(module, "_parameters"):
                _add_with_gradient(known, tensor)
        return known

    def of_process(self) -> KnownMemory:
        """All that is known, by asking for the modules and optimizers that there are."""
        found = compat.existing(torch.nn.Module, torch.optim.Optimizer)
        optimizers = [x for x in found if issubclass(type(x), torch.optim.Optimizer)]
        for module in found:
            if issubclass(type(module), torch.nn.Module):
                self.module_made(module)
        self.has_optimizer |= bool(optimizers)
        known = self.of_modules()  # Also what ``gc.freeze()`` hides from the collector.
        for optimizer in optimizers:
            # A compiled optimizer's state is also among the buffers of Dynamo's modules.
            known = of_parameters(optimizer) | known | of_state(optimizer)
        static: Categories = {}
        often: Categories = {}
        gradients: Categories = {}
        for tensor in compat.existing(torch.Tensor):
            if (gradient := compat.gradient_of(tensor)) is not None:
                _add(gradients, gradient, Category.GRADIENT)
            if compat.is_marked_static(tensor):
                _add(static, tensor, Category.PERSISTENT_STATE)
            elif _is_written(tensor):
                _add(often, tensor, Category.PERSISTENT_STATE)
        for tensor in _tensors_of_caches():
            _add(static, tensor, Category.PERSISTENT_STATE)
        # Dynamo marks parameters, buffers and state of optimizers itself as static.
        known = static | known
        return KnownMemory(known, frozenset(often), gradients)

    def alive(self) -> Iterator[torch.nn.Module]:
        """Yields the modules that are there."""
        # Of a copy: the program's threads may add to the dictionary meanwhile.
        for reference in list(self._modules.values()):
            module = reference()
            if module is not None:
                yield module


def _own(module: torch.nn.Module, kind: str) -> list[torch.Tensor]:
    found = list(module.__dict__.get(kind, {}).values())
    return [t for t in found if isinstance(t, torch.Tensor)]


def _is_written(tensor: torch.Tensor, times: int = MANY) -> bool:
    return (compat.writes_to(tensor) or 0) >= times


def of_parameters(optimizer: torch.optim.Optimizer) -> Categories:
    """Categories of an optimizer's parameters and of their gradients."""
    known: Categories = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(p, torch.Tensor):
                _add_with_gradient(known, p)
    return known


def state_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Tensors that an optimizer keeps as its state."""
    states = [state for state in list(optimizer.state.values()) if isinstance(state, dict)]
    return [x for state in states for x in list(state.values()) if isinstance(x, torch.Tensor)]


def of_state(optimizer: torch.optim.Optimizer) -> Categories:
    """Category of an optimizer's state."""
    known: Categories = {}
    for tensor in state_of(optimizer):
        _add(known, tensor, Category.OPTIMIZER_STATE)
    return known


def _add_with_gradient(known: Categories, p: torch.Tensor) -> None:
    _add(known, p, Category.PARAMETER)
    if p.grad is not None:
        _add(known, p.grad, Category.GRADIENT)


def _add(known: Categories, tensor: torch.Tensor, category: Category) -> None:
    for address, _ in compat.memory_of(tensor, "cuda"):
        known.setdefault(address, category)


def _tensors_of_caches() -> list[torch.Tensor]:
    """Tensors in transformers' caches of keys, values and states."""
    module = sys.modules.get("transformers.cache_utils")
    names = ("CacheLayerMixin", "LinearAttentionCacheLayerMixin")
    kinds = [kind for name in names if isinstance(kind := getattr(module, name, None), type)]
    held = [list(vars(layer).values()) for layer in compat.existing(*kinds)] if kinds else []
    flat = (x for values in held for v in values for x in (v if isinstance(v, list) else [v]))
    return [t for t in flat if isinstance(t, torch.Tensor)]
