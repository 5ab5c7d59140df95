"""A profile from a document of which some parts are not of the types that they should be.

Nearly every document is decoded at once. Only where that fails is it taken apart here, the way it
is nested: each graph, program, ledger entry, snapshot and device by itself, so that what cannot be
read costs no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Protocol, TypeVar, get_type_hints

import msgspec

from .model import (
    AllocationProgram,
    DataFlowColumns,
    DataFlowDevice,
    DataFlowFailure,
    DeviceAccount,
    GraphRecord,
    LedgerEntry,
    MemorySnapshot,
    Placement,
    Profile,
    TrackerRecord,
)
from .repair import LOST_PROGRAM, Notes

__all__ = ["UNREADABLE", "FromJson", "FromObjects", "Reader", "salvage", "salvage_tracked"]

UNREADABLE = (msgspec.ValidationError, UnicodeDecodeError, RecursionError)
"""What decoding a value of another type, of no text, or of too many levels leads to."""

_T = TypeVar("_T")


class Reader(Protocol):
    """How values of a document are decoded. Each method raises one of ``UNREADABLE``."""

    def value(self, raw: Any, kind: Any) -> Any:
        """``raw`` as a value of a type of the data model."""

    def items(self, raw: Any) -> list[Any]:
        """The elements of a list, not decoded."""

    def fields(self, raw: Any) -> dict[str, Any]:
        """The fields of an object, not decoded."""


class FromJson:
    """Values are pieces of JSON, as ``msgspec.Raw``."""

    def value(self, raw: Any, kind: Any) -> Any:
        return msgspec.json.decode(raw, type=kind)

    def items(self, raw: Any) -> list[Any]:
        found: list[Any] = msgspec.json.decode(raw, type=list[msgspec.Raw])
        return found

    def fields(self, raw: Any) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        return found


class FromObjects:
    """Values are Python's, as JSON decodes to them."""

    def value(self, raw: Any, kind: Any) -> Any:
        return msgspec.convert(raw, kind, str_keys=True)

    def items(self, raw: Any) -> list[Any]:
        found: list[Any] = msgspec.convert(raw, list[Any])
        return found

    def fields(self, raw: Any) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.convert(raw, dict[str, Any])
        return found


def salvage(document: Mapping[str, Any], reader: Reader, notes: Notes) -> Profile:
    """The profile that a document holds, less what cannot be read.

    Args:
        document: its fields, not decoded.
        reader: decodes them.
        notes: get what was left out.
    """
    return _Salvage(reader, notes).profile(document, "$")


def salvage_tracked(
    document: Mapping[str, Any], reader: Reader, notes: Notes
) -> tuple[TrackerRecord, Profile]:
    """The same of a tracker's own file: its record, and the profile beside it."""
    parts = _Salvage(reader, notes)
    record = parts.record(document, "$")
    profile = Profile()
    if "profile" in document:
        try:
            profile = parts.profile(reader.fields(document["profile"]), "$.profile")
        except UNREADABLE as e:
            parts.left_out("profile", "$.profile", e)
    return record, profile


class _Salvage:
    def __init__(self, reader: Reader, notes: Notes) -> None:
        self.reader = reader
        self.notes = notes

    def profile(self, document: Mapping[str, Any], at: str) -> Profile:
        by_part: dict[str, Callable[[Any, str], Any]] = {
            "graphs": lambda raw, at: self.each(raw, at, "a graph", self.graph),
            "ledger": lambda raw, at: self.each(raw, at, "a ledger entry", self.of(LedgerEntry)),
            "dataflow": self.dataflow,
            "accounts": lambda raw, at: self.each(raw, at, "an account", self.of(DeviceAccount)),
            "tracker": self.tracker,
        }
        return self.object(Profile, document, at, by_part)

    def object(
        self,
        kind: type[_T],
        document: Mapping[str, Any],
        at: str,
        by_part: Mapping[str, Callable[[Any, str], Any]],
    ) -> _T:
        """A dataclass, field by field; a field that cannot be read has its default.

        Raises:
            msgspec.ValidationError: it has none.
        """
        found: dict[str, Any] = {}
        hints = get_type_hints(kind)
        for field in fields(kind):  # type: ignore[arg-type]
            required = field.default is MISSING and field.default_factory is MISSING
            if field.name not in document:
                if required:
                    raise msgspec.ValidationError(f"Object missing required field `{field.name}`")
                continue
            read = by_part.get(field.name) or self.of(hints[field.name])
            try:
                found[field.name] = read(document[field.name], f"{at}.{field.name}")
            except UNREADABLE as e:
                if required:
                    what, where = _explained(e)
                    where = f"$.{field.name}{where}"
                    raise msgspec.ValidationError(f"{what} - at `{where}`") from e
                self.left_out(field.name, f"{at}.{field.name}", e)
        return kind(**found)

    def of(self, kind: Any) -> Callable[[Any, str], Any]:
        """Reads a value as a whole."""
        return lambda raw, at: self.reader.value(raw, kind)

    def each(
        self, raw: Any, at: str, name: str, read: Callable[[Any, str], _T], lost: _T | None = None
    ) -> list[_T]:
        """The elements of a list that can be read; ``lost``, if given, in the place of others."""
        out = []
        for i, item in enumerate(self.reader.items(raw)):
            try:
                if item is None:
                    raise msgspec.ValidationError("it was in what is damaged")
                out.append(read(item, f"{at}[{i}]"))
            except UNREADABLE as e:
                self.left_out(name, f"{at}[{i}]", e)
                if lost is not None:
                    out.append(lost)
        return out

    def left_out(self, part: str, at: str, e: Exception) -> None:
        """Note a part that could not be read."""
        what, where = _explained(e)
        self.notes.add(part, at + where, what)

    def graph(self, raw: Any, at: str) -> GraphRecord:
        try:
            found: GraphRecord = self.reader.value(raw, GraphRecord)
        except UNREADABLE:
            program, placement = self.of(AllocationProgram), self.of(Placement)
            by_part: dict[str, Callable[[Any, str], Any]] = {
                "programs": lambda raw, at: self.each(raw, at, "a program", program, LOST_PROGRAM),
                "placements": lambda raw, at: self.each(raw, at, "a placement", placement),
            }
            found = self.object(GraphRecord, self.reader.fields(raw), at, by_part)
        return found

    def dataflow(self, raw: Any, at: str) -> DataFlowColumns | None:
        try:
            whole: DataFlowColumns | None = self.reader.value(raw, DataFlowColumns | None)
        except UNREADABLE:
            device = self.of(DataFlowDevice)
            failure = self.of(DataFlowFailure)
            by_part: dict[str, Callable[[Any, str], Any]] = {
                "devices": lambda raw, at: self.each(raw, at, "a data flow", device),
                "failures": lambda raw, at: self.each(raw, at, "a failed allocation", failure),
            }
            whole = self.object(DataFlowColumns, self.reader.fields(raw), at, by_part)
        return whole

    def tracker(self, raw: Any, at: str) -> TrackerRecord | None:
        try:
            whole: TrackerRecord | None = self.reader.value(raw, TrackerRecord | None)
        except UNREADABLE:
            whole = self.record(self.reader.fields(raw), at)
        return whole

    def record(self, fields: Mapping[str, Any], at: str) -> TrackerRecord:
        snapshot = self.of(MemorySnapshot)
        by_part = {"snapshots": lambda raw, at: self.each(raw, at, "a snapshot", snapshot)}
        return self.object(TrackerRecord, fields, at, by_part)


def _explained(e: Exception) -> tuple[str, str]:
    """Why a value could not be read, and where inside of it, as a path without its ``$``."""
    if isinstance(e, RecursionError):
        return "it is nested too deeply", ""
    what, found, where = str(e).rpartition(" - at `$")
    return (what, where.rstrip("`")) if found else (str(e), "")
