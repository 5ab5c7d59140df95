"""What a running program says of its memory in passing: batches, and who waits for a backward."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from memprof.profiler.model import SourceFrame

from .where import is_internal

DEEPEST = 4
"""Containers within containers of a batch that are looked into."""


def line_of_caller() -> SourceFrame | None:
    """The innermost line of the program on this thread's stack; None if it has none."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_internal(code.co_filename):
            return SourceFrame(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    return None


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
