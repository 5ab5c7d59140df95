"""How large a batch of a DataLoader is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

DEEPEST = 4
"""Containers within containers of a batch that are looked into."""


def sizes_of(batch: Any) -> tuple[int, ...]:
    """Bytes of each tensor of a batch, in no order, each size once."""
    return tuple({t.numel() * t.element_size() for t in _tensors(batch, DEEPEST)} - {0})


def _tensors(value: Any, deepest: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif deepest:
        inner = value.values() if isinstance(value, Mapping) else value
        if isinstance(value, (Mapping, list, tuple)):
            for one in inner:
                yield from _tensors(one, deepest - 1)
