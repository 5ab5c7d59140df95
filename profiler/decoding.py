"""Profiles from the frames of a file; see Note [What the frames of a profile hold].

Note [What damage costs]
~~~~~~~~~~~~~~~~~~~~~~~~
A frame that is damaged, or does not hold what it should, is left out; what is known from the rest
is the profile, and ``left_out`` says what was lost. Later frames count on earlier ones in three
places: programs and ledger entries have their positions (what is missing is a gap, and calls of a
lost program have none), and a graph of which only a later change is known is left out with its
calls.

Nearly every profile is decoded at once. Only where that fails (something is not of the type that it
should be, or a number beyond its limits in ``model/limits.py``) is it taken apart, the way it is
nested, so that what cannot be read costs no more than the smallest part that stands alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ._json import to_json
from .errors import ProfileError, ProfileInvalidError, ProfileTruncatedError, ProfileVersionError
from .frames import Damage, Frame, Kind, frames
from .model import (
    FORMAT,
    SCHEMA_VERSION,
    AllocationProgram,
    CallColumns,
    DataFlowColumns,
    GraphRecord,
    OperationSummary,
    Profile,
    TrackerMetadata,
    TrackerRecord,
)
from .model.limits import Int
from .reading import Budget
from .repair import LOST_PROGRAM, Notes, repair
from .tracker.fold import Entry, TrackerFold

_MOST_BAD = 1_000
"""Frames of a process that do not hold what they should; behind these nobody looks for more, since
each costs an exception and a few bytes are enough for one."""
_GAP = 100_000
"""Programs and ledger entries of a process that can be missing, all gaps together."""
_LOST = msgspec.Raw(b"null")
"""Stands where a program or a ledger entry is missing."""
_UNREADABLE = (msgspec.ValidationError, UnicodeDecodeError, RecursionError)
"""What decoding a value of another type, of no text, or of too many levels leads to."""
_BY_FIELD = (GraphRecord, DataFlowColumns, TrackerRecord, TrackerMetadata, OperationSummary)
"""What is taken apart field by field, as the profile itself; other parts stand alone."""
_IN_PLACE = {AllocationProgram: LOST_PROGRAM, OperationSummary: OperationSummary("(lost)")}
"""What others refer to by its position, and what stands there instead."""
_T = TypeVar("_T")
_PROFILE_FIELDS = {f.name for f in fields(Profile)} - {
    *("format", "schema_version", "graphs", "calls", "ledger", "complete")
}


class _Programs(msgspec.Struct):
    start: Int = msgspec.field(name="from")
    items: list[msgspec.Raw]


class _Ledger(msgspec.Struct):
    length: Int
    entries: list[tuple[int, msgspec.Raw]]


class _Calls(msgspec.Struct):
    # Of any size: one that does not fit costs its call, by ``bad_calls``, and not all of them.
    graph: list[int]
    program: list[int]
    start_ns: list[int]
    duration_ns: list[int]
    thread: list[int]
    dropped: Int | None = None


def documents(data: bytes, path: str | None) -> Iterator[Document]:
    """What a file says of each process, in order of their headers.

    Raises:
        ProfileTruncatedError: not even the first frame is whole.
        ProfileInvalidError: there is no whole frame at all.
        ProfileTooLargeError: it unpacks to more than may be read.
    """
    found: list[Document] = []
    by_process: dict[int, Document] = {}
    damage: Damage | None = None  # of which nobody has said anything yet
    last: Document | None = None
    for frame in frames(data, Budget(len(data), path)):
        if isinstance(frame, Damage):
            damage = damage or frame
            continue
        document = by_process.get(frame.process)
        if document is None or frame.kind == Kind.HEADER:
            if damage is not None and last is not None and frame.number == 0:
                last.lost(damage.start, damage.problem)  # at its end
                damage = None
            # Of the same number are profiles with the same content: each has a header.
            document = by_process[frame.process] = Document(path)
            found.append(document)
        document.add(frame, damage)
        damage, last = None, document
    if last is not None:
        if damage is not None:
            last.lost(damage.start, damage.problem)
        yield from found
    elif damage is None:
        raise ProfileTruncatedError(
            path,
            f"truncated: not one whole frame in {len(data):,} bytes; copy it again or take the "
            "profile again",
        )
    else:
        raise ProfileInvalidError(
            path,
            f"damaged after {damage.start:,} bytes: {damage.problem}, and there is no whole frame; "
            "copy it again or take the profile again",
        )


class Document:
    """What the frames of one process come to: ``left_out`` is what was damaged, ``refused`` why
    nothing of it was read. Of the log ``keep_calls`` calls are kept, the latest, by default all."""

    def __init__(self, path: str | None, keep_calls: int | None = None) -> None:
        self.left_out = Notes()
        self._keep_calls = keep_calls
        self._counts: Counter[int] = Counter()
        self.refused: ProfileError | None = None
        self._path = path
        self._fields: dict[str, msgspec.Raw] = {}
        self._graphs: dict[int, dict[str, msgspec.Raw]] = {}
        self._programs: dict[int, list[msgspec.Raw]] = {}
        self._ledger: list[msgspec.Raw] = []
        self._columns = CallColumns()
        self._tracker: TrackerFold | None = None
        self._dropped = 0
        self._complete = False
        self._next = 0
        self._gap = _GAP
        self._bad = 0

    def lost(self, start: int, problem: str, count: int = 1) -> None:
        what = "a frame" if count < 2 else f"{count:,} frames"
        self.left_out.line(f"{what}, after {start:,} bytes: {problem}")

    def add(self, frame: Frame, damage: Damage | None) -> None:
        """Add a frame, before which there was damage of which nobody has said anything."""
        missing = frame.number - self._next
        if missing < 0:
            self.lost(frame.start, "its number was there before")
            return
        if damage is not None:
            self.lost(damage.start, damage.problem, missing)
        elif missing:
            self.lost(frame.start, "missing", missing)
        self._next = frame.number + 1
        if self.refused is not None or self._bad == _MOST_BAD:
            return
        try:
            self._apply(frame)
        except ProfileError as e:
            self.refused = e  # of other processes the file can have readable ones
        except (*_UNREADABLE, msgspec.DecodeError, ValueError) as e:
            self._bad += 1
            self.lost(frame.start, f"not what it should be ({type(e).__name__}: {e})")
            if self._bad == _MOST_BAD:
                self.left_out.line(
                    f"whatever comes after {_MOST_BAD:,} frames that are not what they should be"
                )

    def _apply(self, frame: Frame) -> None:
        payload = frame.payload
        if frame.kind == Kind.HEADER:
            self._header(payload)
        elif frame.kind == Kind.FIELDS:
            self._fields.update(_raw_fields(payload))
        elif frame.kind == Kind.GRAPH:
            self._graph(_raw_fields(payload))
        elif frame.kind == Kind.LEDGER:
            self._entries(msgspec.json.decode(payload, type=_Ledger))
        elif frame.kind == Kind.CALLS:
            self._calls(msgspec.json.decode(payload, type=_Calls))
        elif frame.kind == Kind.TRACKER:
            self._tracker = self._tracker or TrackerFold()
            self._tracker.add(msgspec.json.decode(payload, type=Entry))
        elif frame.kind == Kind.END:
            self._complete = True

    def _header(self, payload: bytes) -> None:
        found: dict[str, Any] = dict.fromkeys(("format", "schema_version", "memprof"))
        raw = _raw_fields(payload)
        for name in found.keys() & raw:
            try:
                found[name] = msgspec.json.decode(raw[name])
            except _UNREADABLE:
                found[name] = "something that cannot be read"
        version, by = found["schema_version"], found["memprof"]
        if found["format"] != FORMAT:
            raise ProfileInvalidError(
                self._path, f"not a valid profile: its `format` is {found['format']!r:.60}"
            )
        if type(version) is not int:
            raise ProfileInvalidError(
                self._path,
                f"not a valid profile: `schema_version` is {version!r:.60}, it must be a whole "
                "number",
                "$.schema_version",
            )
        if version != SCHEMA_VERSION:
            newer = version > SCHEMA_VERSION
            do = "read it with a newer memprof" if newer else "take the profile again"
            by = by[:60] if isinstance(by, str) and by else "?"
            raise ProfileVersionError(
                self._path,
                f"schema version {version!r:.60}, written by memprof {by}; this memprof reads "
                f"version {SCHEMA_VERSION}: {do}",
            )

    def _graph(self, change: dict[str, msgspec.Raw]) -> None:
        id = msgspec.json.decode(change.get("id", b"null"), type=Int)
        if "programs" in change:
            new = msgspec.json.decode(change.pop("programs"), type=_Programs)
            known = self._programs.setdefault(id, [])
            self._spend_gap(new.start, len(known), "programs")
            known[new.start :] = [*[_LOST] * (new.start - len(known)), *new.items]
        # In place: a graph can have very many changes.
        self._graphs.setdefault(id, {}).update(change)

    def _entries(self, change: _Ledger) -> None:
        if any(not 0 <= i < change.length for i, _ in change.entries):
            raise ValueError(f"an entry outside of a ledger of {change.length}")
        new = {i for i, _ in change.entries}
        self._spend_gap(change.length, len(self._ledger) + len(new), "ledger entries")
        del self._ledger[change.length :]
        self._ledger += [_LOST] * (change.length - len(self._ledger))
        for i, entry in change.entries:
            self._ledger[i] = entry

    def _calls(self, new: _Calls) -> None:
        columns = (new.graph, new.program, new.start_ns, new.duration_ns, new.thread)
        if len({len(c) for c in columns}) > 1:
            raise ValueError(f"columns of {[len(c) for c in columns]} calls")
        starts = list(accumulate(new.start_ns))
        known = self._columns
        known.graph.extend(new.graph)
        known.program.extend(new.program)
        known.start_ns.extend(starts)
        known.end_ns.extend(s + d for s, d in zip(starts, new.duration_ns, strict=True))
        known.thread.extend(new.thread)
        self._counts.update(new.graph)
        if new.dropped is not None:
            self._dropped = new.dropped
        if self._keep_calls is not None and (more := len(known) - self._keep_calls) > 0:
            self._columns = known.each(lambda column: column[more:], known.dropped)
            self._dropped += more

    def _spend_gap(self, end: int, known: int, what: str) -> None:
        gap = max(end - known, 0)
        if end < 0 or gap > self._gap:
            raise ValueError(f"{end} {what}, where {known} are known")
        self._gap -= gap

    def profile(self) -> Profile:
        """The profile; what cannot be read, or contradicts itself, is left out and noted.

        Raises:
            ProfileError: ``refused``.
        """
        if self.refused is not None:
            raise self.refused
        calls = replace(self._columns, dropped=self._dropped)
        graphs = [
            {"calls": self._counts[id], **graph, "programs": self._programs.get(id, [])}
            for id, graph in sorted(self._graphs.items())
        ]
        known = {name: raw for name, raw in self._fields.items() if name in _PROFILE_FIELDS}
        data = to_json(
            {**known, "graphs": graphs, "ledger": self._ledger, "complete": self._complete}
        )
        try:
            found = msgspec.json.decode(data, type=Profile)
        except _UNREADABLE:
            found = _object(Profile, _raw_fields(data), "$", self.left_out)
        found.calls = calls
        if self._tracker is not None:
            record, lost = self._tracker.record()
            found = found.with_tracker(record)
            for line in lost:
                self.left_out.line(line)
        if not self._complete or self.left_out:
            # Chunks are cut while calls go on: these counts may be a little ahead of the calls, as
            # they are where calls were lost.
            logged = len(calls) + calls.dropped
            found.released = {k: min(n, logged) for k, n in found.released.items()}
        repair(found, self.left_out)
        return found


# Parts that cannot be read


def _raw_fields(payload: bytes | msgspec.Raw) -> dict[str, msgspec.Raw]:
    """Of an object, not decoded: the structure is checked and no value is built."""
    return msgspec.json.decode(payload, type=dict[str, msgspec.Raw])


def _object(kind: type[_T], document: Mapping[str, msgspec.Raw], at: str, notes: Notes) -> _T:
    """A dataclass, field by field; a field that cannot be read has its default, and is noted.

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
        except _UNREADABLE as e:
            what, inside = _explained(e)
            if required:
                raise msgspec.ValidationError(f"{what} - at `$.{field.name}{inside}`") from e
            notes.add(field.name, where + inside, what)
    return kind(**found)


def _value(kind: Any, raw: msgspec.Raw, at: str, notes: Notes) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind)
    except _UNREADABLE:
        inner = get_args(kind)
        if get_origin(kind) is list and is_dataclass(inner[0]):
            return _elements(inner[0], raw, at, notes)
        for one in (kind, *inner):
            if one in _BY_FIELD:
                return _object(one, _raw_fields(raw), at, notes)
        raise


def _elements(kind: Any, raw: msgspec.Raw, at: str, notes: Notes) -> list[Any]:
    out: list[Any] = []
    for i, item in enumerate(msgspec.json.decode(raw, type=list[msgspec.Raw])):
        try:
            if bytes(item) == b"null":
                raise msgspec.ValidationError("it was in what is damaged")
            out.append(_value(kind, item, f"{at}[{i}]", notes))
        except _UNREADABLE as e:
            what, inside = _explained(e)
            name = re.sub("(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
            notes.add(f"a{'n' * (name[0] in 'aio')} {name}", f"{at}[{i}]{inside}", what)
            if kind in _IN_PLACE:
                out.append(_IN_PLACE[kind])
    return out


def _explained(e: Exception) -> tuple[str, str]:
    """Why a value could not be read, and where inside of it, as a path without its ``$``."""
    if isinstance(e, RecursionError):
        return "it is nested too deeply", ""
    what, found, where = str(e).rpartition(" - at `$")
    return (what, where.rstrip("`")) if found else (str(e), "")
