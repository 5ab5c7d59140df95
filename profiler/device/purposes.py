"""What tensors of modules and optimizers are for, by the address of their first byte."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch

from memprof.profiler.model import Purpose

from . import _torch_compat as compat

log = logging.getLogger("memprof")


def parameters(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """What an optimizer steps on."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if isinstance(p, torch.Tensor):
                yield p


def add_state(known: dict[int, Purpose], optimizer: torch.optim.Optimizer) -> None:
    """Note where an optimizer's state lies."""
    for state in list(optimizer.state.values()):
        for value in list(state.values()) if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor):
                add(known, value, Purpose.OPTIMIZER_STATE)


def add(known: dict[int, Purpose], tensor: torch.Tensor, purpose: Purpose) -> None:
    """Note where a tensor lies, unless something else is known of that place."""
    try:
        for plain in compat.plain_tensors(tensor):
            if plain.device.type == "cuda":
                known.setdefault(plain.untyped_storage().data_ptr(), purpose)
    except Exception as e:  # Meta and fake tensors, subclasses that forbid a look.
        log.debug("memprof cannot see the memory of a %s: %s", type(tensor).__name__, e)
