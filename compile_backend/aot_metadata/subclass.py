"""How a tensor subclass is put together from dense tensors.

A compiled graph takes and returns dense tensors only. A wrapper subclass stands there as the flat
sequence of its inner tensors, outermost attribute first, nested subclasses in place, each followed
by the symbolic entries of its outer size and then outer stride.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

IGNORED_SIZE = -1
"""What stands for the ragged size of a jagged tensor, which computes it from its offsets."""

Sizes = tuple["int | None", ...]
"""Sizes or strides; None for one that is a flat argument at every call."""


class SubclassRebuildError(RuntimeError):
    """A tensor subclass cannot be rebuilt from the given values."""


@dataclass(frozen=True)
class InnerValue:
    """A dense tensor or opaque object inside of a subclass.

    Attributes:
        arg_count: flat arguments that it takes; from torch 2.15 on with symbolic sizes of its own.
        is_tensor: it is no opaque object.
    """

    arg_count: int = 1
    is_tensor: bool = True


@dataclass(frozen=True)
class SubclassLayout:
    """How one tensor subclass is rebuilt; torch's ``SubclassCreationMeta``.

    Attributes:
        subclass: the class.
        context: what its ``__tensor_flatten__`` returned beside the names.
        start: index of its first flat argument.
        arg_count: number of its flat arguments, those of nested ones and sizes included.
        attrs: name and layout of each inner value, in the order of flattening.
        outer_size, outer_stride: of the wrapper, elements.
        outer_size_from, outer_stride_from: name of the inner tensor whose size or stride is also
            the wrapper's; torch 2.15 on, None before.
    """

    subclass: type
    context: object
    start: int
    arg_count: int
    attrs: tuple[tuple[str, SubclassLayout | InnerValue], ...]
    outer_size: Sizes
    outer_stride: Sizes
    outer_size_from: str | None = None
    outer_stride_from: str | None = None

    def rebuild(self, flat_args: Sequence[Any]) -> torch.Tensor:
        """The subclass instance that these flat arguments stand for.

        Args:
            flat_args: arguments or results of the compiled graph: dense tensors, opaque objects and
                integers, in their order.

        Raises:
            SubclassRebuildError: too few arguments, or something else where a tensor is wanted.
        """
        values: dict[str, Any] = {}
        at = self.start
        for name, layout in self.attrs:
            if isinstance(layout, SubclassLayout):
                values[name] = layout.rebuild(flat_args)
            else:
                values[name] = self._argument(flat_args, at, name)
                if layout.is_tensor and not isinstance(values[name], torch.Tensor):
                    raise SubclassRebuildError(
                        f"{self.subclass.__qualname__}.{name}, flat argument {at}, must be a "
                        f"tensor and is a {type(values[name]).__qualname__}"
                    )
            at += layout.arg_count
        # The arguments of sizes take up their places also where an inner tensor has the last word.
        size = self._filled(self.outer_size, "outer size", flat_args, at)
        at += self.outer_size.count(None)
        stride = self._filled(self.outer_stride, "outer stride", flat_args, at)
        if self.outer_size_from is not None:
            size = tuple(values[self.outer_size_from].size())
        if self.outer_stride_from is not None:
            stride = tuple(values[self.outer_stride_from].stride())
        rebuilt: torch.Tensor = self.subclass.__tensor_unflatten__(  # type: ignore[attr-defined]
            values, self.context, size, stride
        )
        return rebuilt

    def _filled(
        self, sizes: Sizes, what: str, flat_args: Sequence[Any], at: int
    ) -> tuple[int, ...]:
        arguments = itertools.count(at)
        return tuple(
            self._argument(flat_args, next(arguments), what) if s is None else s for s in sizes
        )

    def _argument(self, flat_args: Sequence[Any], at: int, what: str) -> Any:
        if at >= len(flat_args):
            raise SubclassRebuildError(
                f"{self.subclass.__qualname__}.{what} is flat argument {at}, but there are "
                f"{len(flat_args)}"
            )
        return flat_args[at]
