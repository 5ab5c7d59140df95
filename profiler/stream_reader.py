"""Reading streamed profile files; see Note [What a streamed file looks like].

Note [What damage costs]
~~~~~~~~~~~~~~~~~~~~~~~~
A chunk that cannot be unpacked, and a record that is not what it should be, are left out; what is
known from the rest is the profile, and ``left_out`` says what was lost. Later records count on
earlier ones in three places, and there the loss is kept in mind: programs and ledger entries have
their positions (what is missing is a gap, and calls of a lost program have none), and a graph of
which only a later change is known is left out with its calls. The number of a chunk tells whether
one is missing, and its profile's name keeps the chunks of a process whose beginning was lost from
being taken for another's.

A last chunk that is not whole is what a killed process leaves behind: it is no damage.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec

from ._header import check_version
from .errors import ProfileError, ProfileInvalidError, ProfileTruncatedError
from .reading import TRUNCATED, Budget, Member, members
from .repair import Notes
from .stream import STREAM_HEAD

__all__ = ["Document", "documents"]

_COLUMNS = ("graph", "program", "start_ns", "end_ns", "thread")
_MOST_BAD = 1_000
"""Records of a profile that are not what they should be; behind these nobody looks for more, since
each costs an exception and a line of a few bytes is enough for one."""
_GAP = 100_000
"""Programs and ledger entries of a profile that can be missing, all gaps together."""
_STRANGE = (
    msgspec.MsgspecError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
)
"""What a record that is not what it should be can lead to."""


@dataclass(frozen=True, slots=True)
class Document:
    """One profile of a stream.

    Attributes:
        fields: as the document that a plain file would hold, in Python's types; programs and
            ledger entries that were lost are None.
        left_out: what was damaged.
        refused: why nothing of it was read, None if it was.
    """

    fields: dict[str, Any]
    left_out: Notes
    refused: ProfileError | None = None


def documents(data: bytes, path: str | None) -> Iterator[Document]:
    """The profiles of a stream, in order; see Note [What damage costs].

    Raises:
        ProfileTruncatedError: not even the first chunk is whole.
        ProfileInvalidError: nothing of it can be used.
        ProfileTooLargeError: it unpacks to more than may be read.
    """
    found: _Document | None = None
    damaged: Member | None = None  # the first of a row of them, of which nothing was said yet
    begun: dict[str, Any] | None = None  # header of a profile whose first chunk is damaged
    for member in members(data, Budget(len(data), path)):
        if member.data is None:
            damaged, begun = damaged or member, _header(member.begin) or begun
            continue
        lines = re.findall(rb"[^\n]+", member.data)  # without empty ones, be they millions
        header = _header(member.data)
        if header is not None:
            lines = lines[1:]
        elif begun is None and found is None:
            break
        if header is not None or begun is not None:
            if found is not None:
                found.note(damaged)
                damaged = None
                yield found.build()
            found = _Document(header or begun or {}, path)
            begun = None
        assert found is not None
        found.chunk(lines, member.start, damaged)
        damaged = None
    if found is not None:
        if damaged is not None and damaged.problem != TRUNCATED:
            found.note(damaged)
        yield found.build()
    elif damaged is None:
        raise ProfileInvalidError(
            path, "damaged: its first record is not what it should be; take the profile again"
        )
    elif damaged.problem == TRUNCATED:
        raise ProfileTruncatedError(
            path,
            f"truncated: not one whole chunk in {len(data):,} bytes; copy it again or take the "
            "profile again",
        )
    else:
        raise ProfileInvalidError(
            path,
            f"damaged after {damaged.start:,} bytes: {damaged.problem}, and there is no whole "
            "chunk; copy it again or take the profile again",
        )


def _header(begin: bytes) -> dict[str, Any] | None:
    """The record that begins a profile, None if ``begin`` does not begin with one."""
    if not begin.startswith(STREAM_HEAD) or b"\n" not in begin:
        return None
    try:
        return msgspec.json.decode(begin[: begin.index(b"\n")], type=dict[str, Any])
    except _STRANGE:
        return None


class _Document:
    def __init__(self, header: dict[str, Any], path: str | None) -> None:
        self.header = header
        self.refused: ProfileError | None = None
        try:
            check_version(header.get("schema_version"), header.get("memprof"), path)
        except ProfileError as e:
            self.refused = e  # of other processes the file can have readable ones
        self.fields: dict[str, Any] = {}
        self.graphs: dict[int, dict[str, Any]] = {}
        self.ledger: list[Any] = []
        self.columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
        self.dropped = 0
        self.complete = False
        self.left_out = Notes()
        self._id: str | None = None
        self._next = 0
        self._gap = _GAP
        self._bad = 0

    # What it is made of

    def note(self, damaged: Member | None) -> None:
        """Say that a chunk is damaged, if one is."""
        if damaged is not None:
            self.left_out.line(f"a chunk, after {damaged.start:,} bytes: {damaged.problem}")

    def chunk(self, lines: list[bytes], start: int, damaged: Member | None) -> None:
        """Add a chunk.

        Args:
            lines: its records but for the header of a profile.
            start: where it begins in the file.
            damaged: what could not be read right before.
        """
        if self.refused is not None:
            return
        known = self._chunk_record(lines[0]) if lines else None
        if known is not None:
            of, number = known
            if self._id is None:
                self._id = of
            if of != self._id or number < self._next:
                self.note(damaged)
                self.left_out.line(
                    f"a chunk, after {start:,} bytes: of a process whose first chunk is missing"
                )
                return
            missing = number - self._next
            if damaged is not None or missing:
                at = f"after {(damaged.start if damaged else start):,} bytes"
                problem = damaged.problem if damaged else "missing"
                chunks = "a chunk" if missing < 2 else f"{missing:,} chunks"
                self.left_out.line(f"{chunks}, {at}: {problem}")
            self._next = number + 1
        elif damaged is not None:
            # Older memprof did not say whose a chunk is.
            self.note(damaged)
            if self.complete:
                self.left_out.line(
                    f"a chunk, after {start:,} bytes: of a process whose first chunk is missing"
                )
                return
        for line in lines:
            if self._bad == _MOST_BAD:
                return
            try:
                self._apply(msgspec.json.decode(line, type=dict[str, Any]))
            except _STRANGE as e:
                self._bad += 1
                self.left_out.line(
                    f"a record of the chunk after {start:,} bytes: not what it should be "
                    f"({type(e).__name__}: {e})"
                )
                if self._bad == _MOST_BAD:
                    self.left_out.line(
                        f"whatever comes after {_MOST_BAD:,} records that are not what they "
                        "should be"
                    )

    @staticmethod
    def _chunk_record(line: bytes) -> tuple[str, int] | None:
        if not line.startswith(b'{"chunk":'):
            return None
        try:
            content = msgspec.json.decode(line, type=dict[str, Any])["chunk"]
            of, number = content["of"], content["number"]
        except _STRANGE:
            return None
        return (of, number) if type(of) is str and type(number) is int else None

    def _apply(self, record: dict[str, Any]) -> None:
        """Add a record; one of a kind that is not known is ignored."""
        for kind, content in record.items():
            if kind == "set":
                self.fields.update(_checked(content, dict))
            elif kind == "graph":
                self._graph(_checked(content, dict))
            elif kind == "ledger":
                self._entries(_checked(content, dict))
            elif kind == "calls":
                self._calls(_checked(content, dict))
            elif kind == "end":
                self.complete = content is True

    def _graph(self, content: dict[str, Any]) -> None:
        graph = self.graphs.get(_checked(content["id"], int), {"programs": []})
        programs = content.pop("programs", None)
        if programs is not None:
            known: list[Any] = graph["programs"]
            start, items = _checked(programs["from"], int), _checked(programs["items"], list)
            self._spend_gap(start, len(known), "programs")
            known[start:] = [*[None] * (start - len(known)), *items]  # what is None was lost
        graph.update(content)  # in place: a graph can have very many changes
        self.graphs[content["id"]] = graph

    def _entries(self, content: dict[str, Any]) -> None:
        length, entries = _checked(content["length"], int), _checked(content["entries"], list)
        changed = {_checked(i, int): entry for i, entry in entries}
        if any(not 0 <= i < length for i in changed):
            raise ValueError(f"an entry outside of a ledger of {length}")
        self._spend_gap(length, len(self.ledger) + len(changed), "ledger entries")
        del self.ledger[length:]
        self.ledger += [None] * (length - len(self.ledger))
        for i, entry in changed.items():
            self.ledger[i] = entry

    def _calls(self, content: dict[str, Any]) -> None:
        read = ("graph", "program", "start_ns", "duration_ns", "thread")
        columns = {name: _checked(content[name], list) for name in read}
        if len({len(c) for c in columns.values()}) > 1:
            raise ValueError(f"columns of {[len(c) for c in columns.values()]} calls")
        for name, column in columns.items():
            if not set(map(type, column)) <= {int}:
                raise TypeError(f"{name} is not of whole numbers")
        dropped = _checked(content.get("dropped", self.dropped), int)
        columns["start_ns"] = list(accumulate(columns["start_ns"]))
        durations = columns.pop("duration_ns")
        columns["end_ns"] = [s + d for s, d in zip(columns["start_ns"], durations, strict=True)]
        for name in _COLUMNS:
            self.columns[name] += columns[name]
        self.dropped = dropped

    def _spend_gap(self, end: int, known: int, what: str) -> None:
        """Count what is missing before ``end``, of which ``known`` are there."""
        gap = max(end - known, 0)
        if end < 0 or gap > self._gap:
            raise ValueError(f"{end} {what}, where {known} are known")
        self._gap -= gap

    # What it comes to

    def build(self) -> Document:
        """The document of a plain file."""
        logged = len(self.columns["graph"]) + self.dropped
        counts = Counter(self.columns["graph"])
        for id, graph in self.graphs.items():
            graph.setdefault("calls", counts[id])
        fields = dict(self.fields)
        released = fields.get("released")
        if (not self.complete or self.left_out) and isinstance(released, dict):
            # Chunks are cut while calls go on: these counts may be a little ahead of the calls, as
            # they are where calls were lost.
            fields["released"] = {
                k: min(n, logged) if type(n) is int else n for k, n in released.items()
            }
        return Document(
            {
                **fields,
                "format": self.header["format"],
                "schema_version": self.header.get("schema_version"),
                "graphs": [self.graphs[id] for id in sorted(self.graphs)],
                "calls": {**self.columns, "dropped": self.dropped},
                "ledger": self.ledger,
                "complete": self.complete,
            },
            self.left_out,
            self.refused,
        )


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value
