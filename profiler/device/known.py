"""Memory whose purpose is known from the objects that hold it: modules and optimizers.

Note [What counts as persistent state]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What a program writes to and keeps from step to step, without training it. It is known by any of:

* *running statistics*: buffers of BatchNorm and InstanceNorm. Their kernels write past the
  counter of writes, so what they are is taken from the class;
* *buffers that were written to*: the tensor's counter of writes (``_version``), which compiled
  code raises as well, had gone up at two looks (``written.py``), since one write may be a
  checkpoint that is loaded. A module's buffer that nobody was seen to write to is a constant of
  the model, and counts as a parameter;
* *moving averages*: ``torch.optim.swa_utils.AveragedModel``; and parameters that no optimizer
  holds and that were seen to be written to, of a module that has the same names and shapes as one
  with parameters in an optimizer. Such a copy that nobody writes to (a teacher, a reference model)
  is made of parameters;
* *static tensors*: marked by ``torch._dynamo.mark_static_address``, and neither a parameter nor
  of an optimizer. The program says itself that they stay;
* *caches of transformers*: keys, values and states of its classes of caches;
* *any other tensor* that is there at a look and whose counter of writes is past ``MANY``: a cache
  that is an attribute or an argument, a running sum, the input of a CUDA graph that each batch is
  copied into. No constructor writes so often, and no checkpoint that is loaded. Nothing goes after
  this by which a block is known, DDP's and FSDP's functions included.

Of buffers and copies of models, too, so many writes are enough: one look at the end of a session
knows them. Of compiled code the graph tells (Note [How a category is decided]).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

import torch

from memprof.profiler.model import Purpose

from . import _torch_compat as compat
from .written import Written

log = logging.getLogger("memprof")

Known = dict[int, Purpose]
"""Purposes of storages, by the address of their first byte."""

MANY = 16
"""Writes to a tensor past which it is state, whatever else it may be."""


class Look(NamedTuple):
    """What is known of everything in the process.

    Attributes:
        known: of modules and optimizers, and what the program itself says.
        often: addresses of storages that were written to often, those of ``known`` included.
    """

    known: Known
    often: frozenset[int] = frozenset()


def modules_and_optimizers() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    """All of the process."""
    found = compat.existing(torch.nn.Module, torch.optim.Optimizer)
    optimizers = [x for x in found if issubclass(type(x), torch.optim.Optimizer)]
    return [x for x in found if issubclass(type(x), torch.nn.Module)], optimizers


def of_modules(modules: Iterable[torch.nn.Module], written: Written | None = None) -> Known:
    """Parameters, buffers and gradients of modules; of buffers, which are state.

    Args:
        modules: all to look at.
        written: what was seen to be written to.
    """
    known: Known = {}
    for module in modules:
        statistics = isinstance(module, compat.NormWithStatistics)
        for name, tensor in list(module.__dict__.get("_buffers", {}).items()):
            if isinstance(tensor, torch.Tensor):
                state = (
                    statistics
                    or is_written_often(tensor)
                    or (written is not None and written.was(module, name))
                )
                _add(known, tensor, Purpose.PERSISTENT_STATE if state else Purpose.PARAMETER)
        for tensor in list(module.__dict__.get("_parameters", {}).values()):
            if isinstance(tensor, torch.Tensor):
                _add_with_gradient(known, tensor)
    return known


def of_averages(
    modules: Iterable[torch.nn.Module],
    optimizers: Iterable[torch.optim.Optimizer],
    written: Written | None = None,
) -> Known:
    """Copies of models that are kept up to date, and trained by no optimizer."""
    modules = list(modules)
    trained = {id(p) for o in optimizers for g in o.param_groups for p in g["params"]}
    known: Known = {}
    for module in modules:
        if isinstance(module, torch.optim.swa_utils.AveragedModel):
            for tensor in (*module.parameters(), *module.buffers()):
                _add(known, tensor, Purpose.PERSISTENT_STATE)
    if not trained:
        return known
    of_trained = set()
    candidates = []
    for module in modules:
        named = list(module.named_parameters())
        if not named:
            continue
        shapes = tuple((name, tuple(p.shape)) for name, p in named)
        held = sum(id(p) in trained for _, p in named)
        if held:
            of_trained.add(shapes)
        elif any(map(is_written_often, module.parameters())) or (
            written is not None and written.anything(module)
        ):
            candidates.append((module, shapes))
    for module, shapes in candidates:
        if shapes in of_trained:
            for tensor in module.parameters():
                _add(known, tensor, Purpose.PERSISTENT_STATE)
    return known


def is_written_often(tensor: torch.Tensor) -> bool:
    """Whether torch has counted so many writes that the tensor is state."""
    return (compat.writes_to(tensor) or 0) >= MANY


def of_static() -> Look:
    """Tensors that the program has marked as staying where they are, and those of caches; and all
    that were written to often.

    Dynamo marks parameters, buffers and state of optimizers itself: what is known of them goes
    before this.
    """
    known: Known = {}
    often: Known = {}
    for tensor in compat.existing(torch.Tensor):
        if compat.is_marked_static(tensor):
            _add(known, tensor, Purpose.PERSISTENT_STATE)
        elif is_written_often(tensor):
            _add(often, tensor, Purpose.PERSISTENT_STATE)
    for tensor in compat.tensors_of_caches():
        _add(known, tensor, Purpose.PERSISTENT_STATE)
    return Look(known, frozenset(often))


def of_parameters(optimizer: torch.optim.Optimizer) -> Known:
    """What an optimizer is to step on, and its gradients."""
    known: Known = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(p, torch.Tensor):
                _add_with_gradient(known, p)
    return known


def of_state(optimizer: torch.optim.Optimizer) -> Known:
    """An optimizer's state."""
    known: Known = {}
    for state in list(optimizer.state.values()):
        for value in list(state.values()) if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                _add(known, value, Purpose.OPTIMIZER_STATE)
    return known


def of_all(
    modules: Iterable[torch.nn.Module],
    optimizers: Iterable[torch.optim.Optimizer],
    written: Written | None = None,
) -> Look:
    """All of the above, of these modules and optimizers."""
    modules, optimizers = list(modules), list(optimizers)
    known = of_modules(modules, written)
    for optimizer in optimizers:
        known = of_state(optimizer) | of_parameters(optimizer) | known
    static, often = of_static()
    return Look(static | known | of_averages(modules, optimizers, written), often)


def _add_with_gradient(known: Known, p: torch.Tensor) -> None:
    _add(known, p, Purpose.PARAMETER)
    if p.grad is not None:
        _add(known, p.grad, Purpose.GRADIENT)


def _add(known: Known, tensor: torch.Tensor, purpose: Purpose) -> None:
    try:
        for plain in compat.plain_tensors(tensor):
            if plain.device.type == "cuda":
                known.setdefault(plain.untyped_storage().data_ptr(), purpose)
    except Exception as e:  # Meta and fake tensors, subclasses that forbid a look.
        log.debug("memprof cannot see the memory of a %s: %s", type(tensor).__name__, e)
