"""Profiles from the frames of a file; see Note [What the frames of a profile hold].

Note [What damage costs]
~~~~~~~~~~~~~~~~~~~~~~~~
Every frame is decoded by the types of the data model as it is read, and later frames count on
earlier ones. So a file is read up to its first frame that is damaged, missing, or not what it
should be: what came before is the profile, and one line of ``left_out`` says where it ends and why.
"""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any, TypedDict, get_type_hints

import msgspec

from memprof.profiler.model import (
    FORMAT,
    SCHEMA_VERSION,
    AllocationProgram,
    CallColumns,
    GraphRecord,
    LedgerEntry,
    Profile,
)
from memprof.profiler.model.limits import LARGEST, Count, Int
from memprof.profiler.support.errors import ProfileInvalidError

from .frames import Damage, Frame, Kind, frames

_BAD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)
"""Errors of decoding JSON that has another type, is no text, or is nested too deep."""
_LONGEST = 400
"""Most characters of the message about a bad frame, which quotes the file."""


def _some(kind: type, without: set[str], **other: Any) -> Any:
    """The type of an object with any of the fields of a dataclass.

    Args:
        kind: the dataclass.
        without: its fields that are not there.
        other: fields of another type than in the dataclass.
    """
    hints = get_type_hints(kind, include_extras=True)
    earlier = {name: hint for name, hint in hints.items() if name not in without}
    some: Any = TypedDict  # Of which mypy wants every field named where it is called.
    return some(kind.__name__, {**earlier, **other}, total=False)


class _Header(msgspec.Struct):
    format: str = ""
    schema_version: int = 0
    memprof: str = "?"


class _Programs(msgspec.Struct):
    start: Count = msgspec.field(name="from")
    items: list[AllocationProgram]


class _Ledger(msgspec.Struct):
    length: Count
    entries: list[tuple[Count, LedgerEntry]]


class _Calls(msgspec.Struct):
    graph: list[Int]
    program: list[Int]
    start_ns: list[Int]
    duration_ns: list[Count]
    thread: list[Count]
    dropped: Count | None = None


_FIELDS = _some(Profile, {"format", "schema_version", "graphs", "calls", "ledger", "complete"})
_GRAPH = _some(GraphRecord, set(), programs=_Programs)
# At import: threads that decode a type for the first time at once crash msgspec 0.22.
_decode_fields = msgspec.json.Decoder(_FIELDS).decode
_decode_graph = msgspec.json.Decoder(_GRAPH).decode
_decode_ledger = msgspec.json.Decoder(_Ledger).decode
_decode_calls = msgspec.json.Decoder(_Calls).decode
_decode_header = msgspec.json.Decoder(_Header).decode


def documents(data: bytes, path: str | None) -> list[Document]:
    """Decoded content of a file, a document for each process, in order of their headers.

    Raises:
        ProfileInvalidError: the file begins with something else than a whole frame, or a process
            of it with a header of another version.
        ProfileUnreadableError: it unpacks to more than may be read.
    """
    found: list[Document] = []
    by_process: dict[int, Document] = {}
    damage: Damage | None = None
    for frame in frames(data, path):
        if isinstance(frame, Damage):
            damage = frame
        elif frame.kind != Kind.HEADER and frame.process not in by_process:
            damage = Damage(frame.start, "a frame of a profile whose beginning is missing")
        else:
            if frame.kind == Kind.HEADER:
                # Of the same number are profiles with the same content: each has a header.
                by_process[frame.process] = Document(path)
                found.append(by_process[frame.process])
            try:
                by_process[frame.process].add(frame)
            except _BAD as e:
                damage = Damage(frame.start, f"not what it should be: {e}")
        if damage is not None:
            break
    if not found:
        problem = f"truncated: not one whole frame in {len(data):,} bytes"
        if damage is not None:
            problem = f"damaged after {damage.start:,} bytes: {damage.problem}, and no whole frame "
            problem += "comes before"
        raise ProfileInvalidError(path, f"{problem}; copy it again or take the profile again")
    if damage is not None:
        reason = f"what comes after {damage.start:,} bytes: {damage.problem}"
        found[-1].left_out.append(reason[:_LONGEST])
    return found


class Document:
    """Content of one process's frames: ``left_out`` says where it ends early. The latest
    ``keep_calls`` calls of the log are kept, by default all."""

    def __init__(self, path: str | None, keep_calls: int | None = None) -> None:
        self.left_out: list[str] = []
        self._path = path
        self._keep_calls = keep_calls
        self._fields: dict[str, Any] = {}
        self._graphs: dict[int, dict[str, Any]] = {}
        self._programs: dict[int, list[AllocationProgram]] = {}
        self._ledger: list[LedgerEntry] = []
        self._columns = CallColumns()
        self._counts: Counter[int] = Counter()
        self._dropped = 0
        self._complete = False
        self._next = 0

    def add(self, frame: Frame) -> None:
        """Add the next frame.

        Raises:
            ProfileInvalidError: it is a header of another format or version.
            ValueError, msgspec.DecodeError, RecursionError: it is not what it should be.
        """
        if frame.number != self._next:
            raise ValueError(f"frame {frame.number} where frame {self._next} should be")
        payload = frame.payload
        if frame.kind == Kind.HEADER:
            self._header(payload)
        elif frame.kind == Kind.FIELDS:
            self._fields.update(_decode_fields(payload))
        elif frame.kind == Kind.GRAPH:
            self._graph(payload)
        elif frame.kind == Kind.LEDGER:
            self._entries(_decode_ledger(payload))
        elif frame.kind == Kind.CALLS:
            self._calls(_decode_calls(payload))
        elif frame.kind == Kind.END:
            self._complete = True
        self._next += 1

    def _header(self, payload: bytes) -> None:
        try:
            header = _decode_header(payload)
        except _BAD as e:
            raise ProfileInvalidError(
                self._path, f"not a valid profile, in its first frame: {e}"
            ) from e
        if header.format != FORMAT:
            raise ProfileInvalidError(
                self._path, f"not a valid profile: its `format` is {header.format!r:.60}"
            )
        version = header.schema_version
        if version != SCHEMA_VERSION:
            newer = version > SCHEMA_VERSION
            do = "read it with a newer memprof" if newer else "take the profile again"
            raise ProfileInvalidError(
                self._path,
                f"schema version {version!r:.60}, written by memprof {header.memprof:.60}; this "
                f"memprof reads version {SCHEMA_VERSION}: {do}",
            )

    def _graph(self, payload: bytes) -> None:
        change = _decode_graph(payload)
        id = change.get("id")
        if id is None or (id not in self._graphs and "kind" not in change):
            raise ValueError("a graph without its id, or a new one without its kind")
        earlier = self._programs.setdefault(id, [])
        new: _Programs | None = change.pop("programs", None)
        if new is not None:
            if new.start > len(earlier):
                raise ValueError(f"program {new.start} where {len(earlier)} are known")
            earlier[new.start :] = new.items
        # In place: a graph can have very many changes.
        self._graphs.setdefault(id, {}).update(change)

    def _entries(self, change: _Ledger) -> None:
        earlier = min(len(self._ledger), change.length)
        added = [i for i, _ in change.entries if i >= earlier]
        end = earlier + len(added)
        if end != change.length or added != list(range(earlier, end)):
            raise ValueError(f"entries {added[:9]} of {earlier} to {change.length} of the ledger")
        del self._ledger[earlier:]
        for i, entry in change.entries:
            self._ledger[i : i + 1] = [entry]

    def _calls(self, new: _Calls) -> None:
        columns = (new.graph, new.program, new.start_ns, new.duration_ns, new.thread)
        if len({len(c) for c in columns}) > 1:
            raise ValueError(f"columns of {[len(c) for c in columns]} calls")
        starts = list(accumulate(new.start_ns))
        ends = [s + d for s, d in zip(starts, new.duration_ns, strict=True)]
        # The times are sums of what the file has, and of its numbers each alone fits.
        if min(starts, default=0) < -LARGEST or max(ends, default=0) > LARGEST:
            raise ValueError("times of calls that do not fit 64 bits")
        earlier = self._columns
        earlier.graph.extend(new.graph)
        earlier.program.extend(new.program)
        earlier.start_ns.extend(starts)
        earlier.end_ns.extend(ends)
        earlier.thread.extend(new.thread)
        self._counts.update(new.graph)
        if new.dropped is not None:
            self._dropped = new.dropped
        if self._keep_calls is not None and (more := len(earlier) - self._keep_calls) > 0:
            self._columns = earlier.each(lambda column: column[more:], earlier.dropped)
            self._dropped += more

    def profile(self) -> Profile:
        """The profile as far as it is known; frames that are added later do not change it.

        Raises:
            ProfileInvalidError: an account of it does not add up.
        """
        graphs = [
            GraphRecord(
                **{"calls": self._counts[id], **fields},
                programs=list(self._programs[id]),
            )
            for id, fields in sorted(self._graphs.items())
        ]
        found = Profile(
            **self._fields,
            graphs=graphs,
            ledger=list(self._ledger),
            calls=self._columns.each(list, self._dropped),
            complete=self._complete,
        )
        # Chunks are cut while calls go on: these counts may be a little ahead of the calls.
        logged = len(found.calls) + found.calls.dropped
        found.released = {k: min(n, logged) for k, n in found.released.items()}
        for account in found.accounts:
            parts = account.explained + account.unexplained
            if parts != account.reserved:
                raise ProfileInvalidError(
                    self._path,
                    f"it contradicts itself: {account.device} has {account.reserved} bytes "
                    f"reserved, while its parts have {parts}",
                )
        found.left_out = [*found.left_out, *self.left_out]
        return found
