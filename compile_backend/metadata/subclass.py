"""How tensor subclasses come apart into dense tensors, and together again.

A compiled graph takes and returns dense tensors only. A wrapper subclass stands there as
the flat sequence of its inner tensors, outermost attribute first, nested subclasses in
place, each followed by the symbolic entries of its outer size and then outer stride.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from .memory_format import MemoryFormatMeta
from .sizes import Size, SymbolicSize, is_symbolic, runtime_safe_size

if TYPE_CHECKING:
    import torch


class SubclassRebuildError(RuntimeError):
    """A tensor subclass cannot be rebuilt from the given tensors."""


class FlatLayout(ABC):
    """One entry of a flat calling convention. ``kind`` tells the three apart in JSON."""

    @property
    @abstractmethod
    def arg_count(self) -> int:
        """Number of graph arguments that the entry takes, symbolic sizes included."""


@dataclass(frozen=True)
class PlainTensorMeta(FlatLayout):
    """A dense tensor, or anything else that is no subclass.

    Attributes:
        unwrapped_idx: its position among the flat arguments. Only meaningful at the top
            level; AOTAutograd leaves another number in the leaves of a subclass.
        memory_format: layout expected of it; only for tangents.
        size_symbol_placeholders, stride_symbol_placeholders: which sizes and strides
            follow it as arguments of their own; torch 2.15 on, for leaves of a subclass.
    """

    unwrapped_idx: int
    memory_format: MemoryFormatMeta | None = None
    size_symbol_placeholders: tuple[bool, ...] = ()
    stride_symbol_placeholders: tuple[bool, ...] = ()
    kind: Literal["tensor"] = "tensor"

    @property
    def arg_count(self) -> int:
        return 1 + sum(self.size_symbol_placeholders) + sum(self.stride_symbol_placeholders)


@dataclass(frozen=True)
class OpaqueMeta(FlatLayout):
    """An inner attribute that is an opaque object, no tensor; torch 2.13 on."""

    kind: Literal["opaque"] = "opaque"

    @property
    def arg_count(self) -> int:
        return 1


class SubclassBinding:
    """The living part of a subclass: its class and what ``__tensor_flatten__`` returned.

    It is left out of equality and of JSON.
    """

    __slots__ = ("context", "subclass_type")

    def __init__(self, subclass_type: type, context: object) -> None:
        self.subclass_type = subclass_type
        self.context = context


@dataclass(frozen=True)
class SubclassCreationMeta(FlatLayout):
    """How to rebuild one tensor subclass from flat arguments.

    Attributes:
        flat_tensor_start_idx: index of its first flat argument.
        flat_arg_count: number of its flat arguments, nested ones and sizes included.
        included_subclass_symints: symbolic outer sizes and strides are among them.
        attrs: attribute name and layout of each inner value, in flattening order.
        outer_size, outer_stride: of the wrapper, elements.
        type_name: qualified name of the class.
        context: ``repr`` of what ``__tensor_flatten__`` returned beside the names.
        context_is_portable: the context is None, and so JSON carries all of it.
        memory_format: layout expected of it; only for tangents.
        outer_size_from_attr, outer_stride_from_attr: inner tensor whose size or stride
            is also the wrapper's; torch 2.15 on.
        binding: the class and context themselves, present in the compiling process.
    """

    flat_tensor_start_idx: int
    flat_arg_count: int
    included_subclass_symints: bool
    attrs: tuple[tuple[str, FlatLayout], ...]
    outer_size: tuple[Size, ...]
    outer_stride: tuple[Size, ...]
    type_name: str
    context: str = "None"
    context_is_portable: bool = True
    memory_format: MemoryFormatMeta | None = None
    outer_size_from_attr: str | None = None
    outer_stride_from_attr: str | None = None
    binding: SubclassBinding | None = field(default=None, compare=False, repr=False)
    kind: Literal["subclass"] = "subclass"

    @property
    def arg_count(self) -> int:
        return self.flat_arg_count

    def runtime_safe(self) -> SubclassCreationMeta:
        """The same without symbolic expressions, nested ones included."""
        return replace(
            self,
            attrs=tuple((name, runtime_safe_layout(layout)) for name, layout in self.attrs),
            outer_size=tuple(runtime_safe_size(s) for s in self.outer_size),
            outer_stride=tuple(runtime_safe_size(s) for s in self.outer_stride),
        )

    def rebuild(self, flat_args: Sequence[Any]) -> torch.Tensor:
        """The subclass instance that these flat arguments stand for.

        Args:
            flat_args: the arguments or results of the compiled graph, dense tensors,
                opaque objects and integers, in their order.

        Raises:
            SubclassRebuildError: too few arguments, something else where a tensor is
                wanted, or the class or its context is not at hand in this process.
        """
        subclass_type, context = self._bound()
        values: dict[str, Any] = {}
        at = self.flat_tensor_start_idx
        for name, layout in self.attrs:
            if isinstance(layout, SubclassCreationMeta):
                values[name] = layout.rebuild(flat_args)
            else:
                values[name] = self._argument(flat_args, at, name, layout)
            at += layout.arg_count
        size, at = self._outer(
            self.outer_size, self.outer_size_from_attr, "size", values, flat_args, at
        )
        stride, at = self._outer(
            self.outer_stride, self.outer_stride_from_attr, "stride", values, flat_args, at
        )
        rebuilt: torch.Tensor = subclass_type.__tensor_unflatten__(  # type: ignore[attr-defined]
            values, context, size, stride
        )
        return rebuilt

    def _argument(self, flat_args: Sequence[Any], at: int, name: str, layout: FlatLayout) -> Any:
        import torch

        if at >= len(flat_args):
            raise SubclassRebuildError(
                f"{self.type_name}.{name} is flat argument {at}, but there are {len(flat_args)}"
            )
        value = flat_args[at]
        if isinstance(layout, PlainTensorMeta) and not isinstance(value, torch.Tensor):
            raise SubclassRebuildError(
                f"{self.type_name}.{name}, flat argument {at}, must be a tensor and is a "
                f"{type(value).__qualname__}"
            )
        return value

    def _outer(
        self,
        sizes: tuple[Size, ...],
        from_attr: str | None,
        method: Literal["size", "stride"],
        values: dict[str, Any],
        flat_args: Sequence[Any],
        at: int,
    ) -> tuple[tuple[int, ...], int]:
        """The wrapper's size or stride, and where the next flat argument is.

        Symbolic entries are read from the arguments, from ``at`` on, also where an inner
        tensor has the last word: they take up their places all the same.
        """
        symbols = sum(map(is_symbolic, sizes)) if self.included_subclass_symints else 0
        arguments = iter(flat_args[at : at + symbols])
        if from_attr is not None:
            return tuple(getattr(values[from_attr], method)()), at + symbols
        out: list[int] = []
        for s in sizes:
            value = next(arguments, None) if is_symbolic(s) else runtime_safe_size(s)
            if value is None or isinstance(value, SymbolicSize):
                raise SubclassRebuildError(
                    f"{self.type_name} has a symbolic outer {method} that is not among the "
                    f"{len(flat_args)} flat arguments"
                )
            out.append(value)
        return tuple(out), at + symbols

    def _bound(self) -> tuple[type, object]:
        if self.binding is not None:
            return self.binding.subclass_type, self.binding.context
        if not self.context_is_portable:
            raise SubclassRebuildError(
                f"the flattening context of {self.type_name} is a Python object "
                f"({self.context}) and was not kept: rebuild in the process that compiled"
            )
        return _resolve(self.type_name), None


def runtime_safe_layout(layout: FlatLayout) -> FlatLayout:
    """``layout`` without symbolic expressions."""
    return layout.runtime_safe() if isinstance(layout, SubclassCreationMeta) else layout


def _resolve(name: str) -> type:
    """The class called ``name``, a dotted path.

    Raises:
        SubclassRebuildError: there is none that can be imported.
    """
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
    raise SubclassRebuildError(f"there is no importable class {name}")


@dataclass(frozen=True, eq=False)
class TensorAlias:
    """A tensor that is passed around autograd instead of through it.

    Wrapped, an output that only aliases another is no tensor to ``autograd.Function``
    and takes no part in the backward. Compared by identity.
    """

    alias: torch.Tensor
