"""Memory whose purpose is known from the objects that hold it: modules and optimizers."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from memprof.profiler.model import Purpose

from . import _torch_compat as compat

log = logging.getLogger("memprof")

Known = dict[int, Purpose]
"""Purposes of storages, by the address of their first byte."""


def modules_and_optimizers() -> tuple[list[torch.nn.Module], list[torch.optim.Optimizer]]:
    """All of the process."""
    found = compat.existing(torch.nn.Module, torch.optim.Optimizer)
    optimizers = [x for x in found if issubclass(type(x), torch.optim.Optimizer)]
    return [x for x in found if issubclass(type(x), torch.nn.Module)], optimizers


def of_modules(modules: Iterable[torch.nn.Module]) -> Known:
    """Parameters, buffers and gradients of modules."""
    known: Known = {}
    for module in modules:
        for tensor in list(module.__dict__.get("_buffers", {}).values()):
            if isinstance(tensor, torch.Tensor):
                _add(known, tensor, Purpose.PARAMETER)
        for tensor in list(module.__dict__.get("_parameters", {}).values()):
            if isinstance(tensor, torch.Tensor):
                _add_with_gradient(known, tensor)
    return known


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


def of_process() -> Known:
    """All of the above, of everything in the process that the collector knows."""
    modules, optimizers = modules_and_optimizers()
    known = of_modules(modules)
    for optimizer in optimizers:
        known = of_state(optimizer) | of_parameters(optimizer) | known
    return known


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
