"""The memory layout that a tangent is expected to arrive in."""

from __future__ import annotations

from dataclasses import dataclass

from .sizes import Size


@dataclass(frozen=True)
class MemoryFormatMeta:
    """Either exact sizes and strides, or a memory format.

    Exact ones for plain tensors of static shape; a format for dynamic shapes, tensor
    subclasses and outputs that overlap themselves.

    Attributes:
        size, stride: in elements; None where a format stands.
        memory_format: e.g. ``torch.channels_last``; None where sizes stand.
    """

    size: tuple[Size, ...] | None = None
    stride: tuple[Size, ...] | None = None
    memory_format: str | None = None
