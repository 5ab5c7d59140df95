"""A profile from a document of which some parts are not of the types that they should be, or are
numbers beyond their limits (``model/limits.py``).

Nearly every document is decoded at once. Only where that fails is it taken apart here, the way it
is nested, so that what cannot be read costs no more than the smallest part that stands alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from .model import (
    AllocationProgram,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowFailure,
    DeviceAccount,
    GraphPool,
    GraphRecord,
    Growth,
    LedgerEntry,
    MemorySnapshot,
    OperationSummary,
    Placement,
    Profile,
    TrackerMetadata,
    TrackerRecord,
)
from .repair import LOST_PROGRAM, Notes

UNREADABLE = (msgspec.ValidationError, UnicodeDecodeError, RecursionError)
"""What decoding a value of another type, of no text, or of too many levels leads to."""

_T = TypeVar("_T")
_ALONE: dict[type, str] = {
    GraphRecord: "a graph",
    AllocationProgram: "a program",
    Placement: "a placement",
    LedgerEntry: "a ledger entry",
    DeviceAccount: "an account",
    GraphPool: "a pool",
    Growth: "growth",
    DataFlowDevice: "a data flow",
    DataFlowFailure: "a failed allocation",
    MemorySnapshot: "a snapshot",
    OperationSummary: "an operation",
}
"""What stands alone in a list, and what it is called."""
_BY_FIELD = (GraphRecord, DataFlowColumns, TrackerRecord, TrackerMetadata, OperationSummary)
"""What is taken apart field by field, as the profile itself."""
_IN_PLACE = {AllocationProgram: LOST_PROGRAM, OperationSummary: OperationSummary("(lost)")}
"""What others refer to by its position, and what stands there instead."""


def salvage(document: Mapping[str, msgspec.Raw], notes: Notes) -> Profile:
    """The profile that a document holds, less what cannot be read.

    Args:
        document: its fields, not decoded.
        notes: get what was left out.
    """
    return _object(Profile, document, "$", notes)


def _object(kind: type[_T], document: Mapping[str, msgspec.Raw], at: str, notes: Notes) -> _T:
    """A dataclass, field by field; a field that cannot be read has its default.

    Raises:
        msgspec.ValidationError: it has none.
    """
    found: dict[str, Any] = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):  # type: ignore[arg-type]
        required = field.default is MISSING and field.default_factory is MISSING
        if field.name not in document:
            if required:
                raise msgspec.ValidationError(f"Object missing required field `{field.name}`")
            continue
        where = f"{at}.{field.name}"
        try:
            found[field.name] = _value(hints[field.name], document[field.name], where, notes)
        except UNREADABLE as e:
            if required:
                what, inside = _explained(e)
                raise msgspec.ValidationError(f"{what} - at `$.{field.name}{inside}`") from e
            _left_out(field.name, where, e, notes)
    return kind(**found)


def _value(kind: Any, raw: msgspec.Raw, at: str, notes: Notes) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE:
        inner = get_args(kind)
        if get_origin(kind) is list and inner[0] in _ALONE:
            return _elements(inner[0], raw, at, notes)
        for one in (kind, *inner):
            if one in _BY_FIELD:
                return _object(one, raw_fields(raw), at, notes)
        raise


def _elements(kind: type, raw: msgspec.Raw, at: str, notes: Notes) -> list[Any]:
    """The elements of a list that can be read."""
    out: list[Any] = []
    for i, item in enumerate(msgspec.json.decode(raw, type=list[msgspec.Raw])):
        try:
            if bytes(item) == b"null":
                raise msgspec.ValidationError("it was in what is damaged")
            out.append(_value(kind, item, f"{at}[{i}]", notes))
        except UNREADABLE as e:
            _left_out(_ALONE[kind], f"{at}[{i}]", e, notes)
            if kind in _IN_PLACE:
                out.append(_IN_PLACE[kind])
    return out


def raw_fields(payload: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """The fields of an object, not decoded: the structure is checked and no value is built, which
    matters for large files."""
    return msgspec.json.decode(payload, type=dict[str, msgspec.Raw])


def _left_out(part: str, at: str, e: Exception, notes: Notes) -> None:
    what, where = _explained(e)
    notes.add(part, at + where, what)


def _explained(e: Exception) -> tuple[str, str]:
    """Why a value could not be read, and where inside of it, as a path without its ``$``."""
    if isinstance(e, RecursionError):
        return "it is nested too deeply", ""
    what, found, where = str(e).rpartition(" - at `$")
    return (what, where.rstrip("`")) if found else (str(e), "")
