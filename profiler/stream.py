"""Streamed profile files (``.memprof``): a profile written piece by piece while it grows.

Note [What a streamed file looks like]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A row of gzip members, so that ``zcat`` shows it: JSON, a record a line. Each member is one
*chunk*, written with one system call: what a killed process leaves behind is readable up to
its last whole chunk. Chunks are independent but for the state that they add to:

* ``{"format": "memprof-stream", "schema_version": 1, …}`` begins a profile. A file with several
  of them holds several profiles, one a process: concatenating files merges them;
* ``{"set": {…}}``: fields of ``Profile`` that are new or have changed;
* ``{"graph": {"id": …, …}}``: fields of a ``GraphRecord`` that are new or have changed;
  ``programs`` come as ``{"from": n, "items": […]}``, which replaces the list from ``n`` on;
* ``{"ledger": {"length": n, "entries": [[position, entry], …]}}``: entries that are new or
  have changed (a repeat raises ``count``);
* ``{"calls": {…}}``: columns of calls. Starts are differences from the call before in the
  same chunk, the first one absolute; ``duration_ns`` stands for the end. A call costs
  some 6 bytes compressed;
* ``{"end": true}``: the session ended as it should. Without it ``Profile.complete`` is False,
  and a graph's number of calls is that of the calls in the file.

Whatever the chunks, the profile read is the one that a plain file of the last snapshot would
give: ``test/profiler/test_stream.py`` holds this for random histories.
"""

from __future__ import annotations

import dataclasses
import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, chain
from operator import sub
from typing import Any

import msgspec

from ._header import check_version
from ._json import to_json
from .errors import ProfileInvalidError, ProfileTruncatedError
from .model import (
    SCHEMA_VERSION,
    AllocationProgram,
    CallColumns,
    GraphRecord,
    LedgerEntry,
    Profile,
)

__all__ = ["STREAM_FORMAT", "STREAM_HEAD", "StreamEncoder", "documents", "encode_stream"]

STREAM_FORMAT = "memprof-stream"
STREAM_HEAD = f'{{"format":"{STREAM_FORMAT}"'.encode()

_CALLS_A_CHUNK = 65_536
_BLOCK = 65_536
# Written in records of their own, or with the end.
_SPECIAL = {
    *("format", "schema_version", "created_ns", "graphs", "calls", "ledger", "complete"),
}
_FIELDS = [f.name for f in dataclasses.fields(Profile) if f.name not in _SPECIAL]
_GRAPH_FIELDS = [
    f.name for f in dataclasses.fields(GraphRecord) if f.name not in {"id", "programs", "calls"}
]


def encode_stream(profile: Profile) -> bytes:
    """A whole profile as a stream.

    Raises:
        TypeError, ValueError, RecursionError: something in it has no JSON form.
    """
    encoder = StreamEncoder()
    calls = profile.calls
    pieces = []
    for start in range(0, max(len(calls), 1), _CALLS_A_CHUNK):
        part = slice(start, start + _CALLS_A_CHUNK)
        columns = CallColumns(
            calls.graph[part],
            calls.program[part],
            calls.start_ns[part],
            calls.end_ns[part],
            calls.thread[part],
            calls.dropped,
        )
        last = start + _CALLS_A_CHUNK >= len(calls)
        pieces.append(encoder.chunk(profile, columns, end=last and profile.complete))
    return b"".join(pieces)


class StreamEncoder:
    """Turns a growing profile into chunks: each says what is new since the one before."""

    def __init__(self) -> None:
        self._begun = False
        self._fields: dict[str, bytes] = {}
        self._graphs: dict[int, _WrittenGraph] = {}
        self._ledger: list[LedgerEntry] = []
        self._calls: Counter[int] = Counter()
        self._dropped = 0

    def chunk(self, profile: Profile, calls: CallColumns, *, end: bool = False) -> bytes:
        """The next chunk, one gzip member; nothing at all if nothing is new.

        Args:
            profile: as it is now; its ``calls`` are not looked at.
            calls: those since the last chunk; ``dropped`` is the number up to now.
            end: this is the last chunk, and ``profile`` final. Only here is everything
                compared by content; before, graphs by identity of their fields, since a
                large one takes milliseconds to encode and hardly ever changes.

        Raises:
            TypeError, ValueError, RecursionError: something in it has no JSON form.
        """
        lines: list[bytes] = []
        if not self._begun:
            head = {"format": STREAM_FORMAT, "schema_version": SCHEMA_VERSION}
            lines.append(to_json({**head, "memprof": profile.memprof}))
        self._set(lines, profile, _FIELDS)
        for record in profile.graphs:
            written = self._graphs.setdefault(record.id, _WrittenGraph())
            changed = written.changes(record, end)
            if changed:
                lines.append(_record("graph", {"id": to_json(record.id), **changed}))
        self._entries(lines, profile.ledger)
        self._columns(lines, calls)
        if end:
            for record in profile.graphs:
                if record.calls != self._calls[record.id]:
                    lines.append(to_json({"graph": {"id": record.id, "calls": record.calls}}))
        # The time alone is no news: an idle process would write one chunk after the other.
        if lines or end:
            self._set(lines, profile, ["created_ns"])
        if end:
            lines.append(to_json({"end": True}))
        self._begun = True
        if not lines:
            return b""
        return gzip.compress(b"\n".join(lines) + b"\n", compresslevel=6, mtime=0)

    def _set(self, lines: list[bytes], profile: Profile, names: list[str]) -> None:
        changed: dict[str, bytes] = {}
        for name in names:
            data = to_json(getattr(profile, name))
            if self._fields.get(name) != data:
                self._fields[name] = changed[name] = data
        if changed:
            lines.append(_record("set", changed))

    def _entries(self, lines: list[bytes], ledger: list[LedgerEntry]) -> None:
        known = self._ledger
        changed = [
            (i, entry) for i, entry in enumerate(ledger) if i >= len(known) or entry != known[i]
        ]
        if changed or len(ledger) != len(known):
            lines.append(to_json({"ledger": {"length": len(ledger), "entries": changed}}))
            self._ledger = list(ledger)

    def _columns(self, lines: list[bytes], calls: CallColumns) -> None:
        if not len(calls) and calls.dropped == self._dropped:
            return
        starts = calls.start_ns
        record: dict[str, Any] = {
            "graph": calls.graph,
            "program": calls.program,
            "start_ns": [*starts[:1], *map(sub, starts[1:], starts)],
            "duration_ns": list(map(sub, calls.end_ns, starts)),
            "thread": calls.thread,
        }
        if calls.dropped != self._dropped:
            record["dropped"] = self._dropped = calls.dropped
        lines.append(to_json({"calls": record}))
        self._calls.update(calls.graph)


class _WrittenGraph:
    """What the file knows of one graph."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._hashes: dict[str, int] = {}
        self._programs: list[AllocationProgram] = []

    def changes(self, record: GraphRecord, by_content: bool) -> dict[str, bytes]:
        """Fields that the file does not have yet, in JSON."""
        changed: dict[str, bytes] = {}
        for name in _GRAPH_FIELDS:
            value = getattr(record, name)
            size = len(value) if isinstance(value, (dict, list, tuple)) else 0
            if not by_content and name in self._values:
                old = self._values[name]
                # Comparing containers by content would take as long as encoding them.
                same_value = old is value if size else old == value
                if same_value and self._sizes[name] == size:
                    continue
            data = to_json(value)
            self._values[name], self._sizes[name] = value, size
            digest = hash(data)
            if self._hashes.get(name) != digest:
                self._hashes[name] = digest
                changed[name] = data
        known = self._programs
        same = 0
        for old_program, new_program in zip(known, record.programs, strict=False):
            if old_program is not new_program and old_program != new_program:
                break
            same += 1
        if same < max(len(known), len(record.programs)):
            self._programs = list(record.programs)
            changed["programs"] = to_json({"from": same, "items": self._programs[same:]})
        return changed


def _record(kind: str, fields: dict[str, bytes]) -> bytes:
    return to_json({kind: {name: msgspec.Raw(data) for name, data in fields.items()}})


def documents(data: bytes, path: str | None) -> Iterator[dict[str, Any]]:
    """The profiles of a stream, each as the document that a plain file would hold.

    A last chunk that is not whole is left out.

    Raises:
        ProfileTruncatedError: not even the first chunk is whole.
        ProfileVersionError: the stream has another schema version.
        ProfileInvalidError: a chunk is damaged.
    """
    document: _Document | None = None
    try:
        for line in chain.from_iterable(chunk.splitlines() for chunk in _chunks(data, path)):
            record = msgspec.json.decode(line, type=dict[str, Any])
            if "format" in record:
                check_version(record.get("schema_version"), record.get("memprof"), path)
                if document is not None:
                    yield document.build()
                document = _Document(record)
            elif document is None:
                raise ValueError("a record before the first header")
            else:
                document.apply(record)
        if document is not None:
            yield document.build()
    except (msgspec.MsgspecError, LookupError, ValueError, TypeError, AttributeError) as e:
        raise ProfileInvalidError(
            path,
            f"damaged: a record is not what it should be ({type(e).__name__}: {e}); copy the "
            "file again or take the profile again",
        ) from e
    if document is None:
        raise ProfileTruncatedError(
            path,
            f"truncated: not one whole chunk in {len(data):,} bytes; copy it again or take the "
            "profile again",
        )


class _Document:
    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.fields: dict[str, Any] = {}
        self.graphs: dict[int, dict[str, Any]] = {}
        self.ledger: list[Any] = []
        self.columns: dict[str, list[int]] = {
            name: [] for name in ("graph", "program", "start_ns", "end_ns", "thread")
        }
        self.dropped = 0
        self.complete = False

    def apply(self, record: dict[str, Any]) -> None:
        """Add a record; one of a kind that is not known is ignored."""
        for kind, content in record.items():
            if kind == "set":
                self.fields.update(content)
            elif kind == "graph":
                self._graph(content)
            elif kind == "ledger":
                self._ledger(content)
            elif kind == "calls":
                self._calls(content)
            elif kind == "end":
                self.complete = content is True

    def _graph(self, content: dict[str, Any]) -> None:
        graph = self.graphs.setdefault(content["id"], {"programs": []})
        programs = content.pop("programs", None)
        graph.update(content)
        if programs is not None:
            graph["programs"][programs["from"] :] = programs["items"]

    def _ledger(self, content: dict[str, Any]) -> None:
        length = content["length"]
        del self.ledger[length:]
        for i, entry in content["entries"]:
            self.ledger[i : i + 1] = [entry]
        if len(self.ledger) != length:
            raise ValueError(f"a ledger of {length} entries has {len(self.ledger)}")

    def _calls(self, content: dict[str, Any]) -> None:
        starts = list(accumulate(content["start_ns"]))
        ends = [s + d for s, d in zip(starts, content["duration_ns"], strict=True)]
        columns = {**content, "start_ns": starts, "end_ns": ends}
        for name, column in self.columns.items():
            column += columns[name]
        self.dropped = content.get("dropped", self.dropped)

    def build(self) -> dict[str, Any]:
        """The document of a plain file."""
        logged = len(self.columns["graph"]) + self.dropped
        counts = Counter(self.columns["graph"])
        for id, graph in self.graphs.items():
            graph.setdefault("calls", counts[id])
        fields = dict(self.fields)
        if not self.complete:
            # Chunks are cut while calls go on: these counts may be a little ahead of the calls.
            released = fields.get("released") or {}
            fields["released"] = {k: min(n, logged) for k, n in released.items()}
        return {
            "format": self.header["format"],
            "schema_version": self.header.get("schema_version"),
            **fields,
            "graphs": [self.graphs[id] for id in sorted(self.graphs)],
            "calls": {**self.columns, "dropped": self.dropped},
            "ledger": self.ledger,
            "complete": self.complete,
        }


def _chunks(data: bytes, path: str | None) -> Iterator[bytes]:
    view = memoryview(data)
    at = 0
    while at < len(data):
        member, pieces, start = zlib.decompressobj(wbits=31), [], at
        try:
            while not member.eof and at < len(data):
                # Bounded blocks: what is left over of one is copied.
                block = view[at : at + _BLOCK]
                pieces.append(member.decompress(block))
                at += len(block) - len(member.unused_data)
        except zlib.error as e:
            if not any(view[start:]):
                return  # A file system can leave zeros where the last write did not arrive.
            raise ProfileInvalidError(
                path,
                f"damaged after {start:,} bytes: {e}; copy it again or take the profile again",
            ) from e
        if not member.eof:
            return
        yield b"".join(pieces)
