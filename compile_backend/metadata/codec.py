"""Metadata to JSON and back.

Note [What JSON keeps of the metadata]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Every field of every class travels, in these portable forms, and what comes back is
equal to what went in:

* a type is its qualified name, a dtype, device, layout or memory format its ``str``;
* a symbolic size is its expression;
* a traced tangent is its type, dtype, shape and device;
* a view sequence is the names of its steps and the place they lead to;
* an effect token is the name of its effect; a descriptor its ``expr()``;
* a pytree specification is text, such as ``torch.utils._pytree.treespec_dumps`` makes;
* the context of a tensor subclass is its ``repr``.

One thing stays behind: ``SubclassCreationMeta.binding``, the class and context as
Python objects. A layout that was read back can rebuild its subclass only where the
class can be imported and the context is None.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from .subclass import (
    FlatLayout,
    OpaqueMeta,
    PlainTensorMeta,
    SubclassBinding,
    SubclassCreationMeta,
)

T = TypeVar("T")

_LAYOUTS: dict[str, type[FlatLayout]] = {
    "tensor": PlainTensorMeta,
    "subclass": SubclassCreationMeta,
    "opaque": OpaqueMeta,
}


class MetadataFormatError(ValueError):
    """JSON that does not describe the metadata it was read as."""


def to_builtins(value: object) -> Any:
    """``value``, one of the metadata classes, as dictionaries, lists, numbers and text."""
    # JSON knows lists only, so tuples go now: what a file gives back is then the same.
    return msgspec.json.decode(to_json(value))


def to_json(value: object) -> bytes:
    """``value``, one of the metadata classes, as JSON."""
    return msgspec.json.encode(value, enc_hook=_encode)


def from_builtins(data: Any, type_: type[T]) -> T:
    """The ``type_`` that ``to_builtins`` made ``data`` from.

    Raises:
        MetadataFormatError: ``data`` describes no ``type_``; says where and why.
    """
    try:
        return msgspec.convert(data, type_, dec_hook=_decode)
    except msgspec.ValidationError as e:
        raise MetadataFormatError(f"not a {type_.__name__}: {e}") from e


def from_json(data: bytes | str, type_: type[T]) -> T:
    """The ``type_`` that ``to_json`` made ``data`` from.

    Raises:
        MetadataFormatError: ``data`` is no JSON or describes no ``type_``.
    """
    try:
        return msgspec.json.decode(data, type=type_, dec_hook=_decode)
    except msgspec.DecodeError as e:  # ValidationError is one too
        raise MetadataFormatError(f"not a {type_.__name__}: {e}") from e


def _encode(value: object) -> Any:
    if isinstance(value, SubclassBinding):
        return None
    raise TypeError(f"{type(value).__qualname__} has no JSON form")


def _decode(type_: type, data: Any) -> Any:
    if type_ is not FlatLayout:
        raise TypeError(f"{type_.__qualname__} has no JSON form")
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in _LAYOUTS:
        raise ValueError(f"a layout must be an object of kind {sorted(_LAYOUTS)}, got {data!r}")
    return msgspec.convert(data, _LAYOUTS[kind], dec_hook=_decode)
