"""A profile as frames, at once or piece by piece while it grows.

Note [What the frames of a profile hold]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
docs/profile-format.md has the payload of each ``Kind``, JSON that ``decoding.py`` reads. Fields,
graphs, their programs and ledger entries are said where they are new or have changed; calls with
differences of their starts, which cost some 6 bytes each. Without an ``END`` ``Profile.complete``
is False, and a graph's number of calls is that of the calls in the file.

Whatever the pieces, the profile read is the one that was there at the last:
``test/profiler/file/test_frames.py`` holds this for random histories.
"""

from __future__ import annotations

import dataclasses
import operator
import zlib
from collections import Counter
from itertools import takewhile
from typing import Any

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
from memprof.profiler.support.errors import ProfileInvalidError
from memprof.profiler.support.json_text import to_json

from .frames import Kind, pack

_CALLS_A_FRAME = 65_536
# Written in frames of their own, or with the end.
_SPECIAL = {
    "format",
    "schema_version",
    "created_ns",
    "graphs",
    "calls",
    "ledger",
    "complete",
    "resident",
}
_FIELDS = [f.name for f in dataclasses.fields(Profile) if f.name not in _SPECIAL]
_GRAPH_FIELDS = [
    f.name for f in dataclasses.fields(GraphRecord) if f.name not in {"id", "programs", "calls"}
]


def encode_profile(profile: Profile) -> bytes:
    """A whole profile as the content of a file.

    Raises:
        ProfileInvalidError: something in it has no JSON form.
    """
    encoder, calls = ProfileEncoder(), profile.calls
    pieces = []
    try:
        for start in range(0, max(len(calls), 1), _CALLS_A_FRAME):
            end = start + _CALLS_A_FRAME
            columns = calls.each(operator.itemgetter(slice(start, end)), calls.dropped)
            last = end >= len(calls) and profile.complete
            pieces.append(encoder.chunk(profile, columns, end=last))
    except (TypeError, ValueError, RecursionError) as e:
        raise ProfileInvalidError(None, f"this profile has no JSON form: {e}") from e
    return b"".join(pieces)


class ProfileEncoder:
    """Turns a growing profile into chunks of frames: each says what is new since the last."""

    def __init__(self) -> None:
        self._process: int | None = None
        self._number = 0
        self._fields: dict[str, bytes] = {}
        self._graphs: dict[int, dict[str, tuple[Any, int, int]]] = {}
        """Written fields of each graph id: by field the value, its length and its JSON's hash."""
        self._programs: dict[int, list[AllocationProgram]] = {}
        self._ledger: list[LedgerEntry] = []
        self._calls: Counter[int] = Counter()
        self._dropped = 0

    def chunk(self, profile: Profile, calls: CallColumns, *, end: bool = False) -> bytes:
        """The next frames; nothing at all if nothing is new.

        Args:
            profile: as it is now; its ``calls`` are not looked at.
            calls: those since the last chunk; ``dropped`` is the number up to now.
            end: this is the last chunk, and ``profile`` final. Only here is everything
                compared by content; before, graphs by identity of their fields, since a
                large one takes milliseconds to encode and hardly ever changes.

        Raises:
            TypeError, ValueError, RecursionError: something in it has no JSON form. Whatever is
                raised, the encoder is as it was, and the next chunk says what this one would have.
        """
        draft = ProfileEncoder()
        draft.__dict__.update(
            self.__dict__,
            _fields=dict(self._fields),
            _graphs={id: dict(graph) for id, graph in self._graphs.items()},
            _programs=dict(self._programs),
            _calls=self._calls.copy(),
        )
        data = draft._chunk(profile, calls, end)
        self.__dict__.update(draft.__dict__)
        return data

    def _chunk(self, profile: Profile, calls: CallColumns, end: bool) -> bytes:
        new: list[tuple[Kind, bytes]] = []
        self._set(new, profile, _FIELDS)
        for record in profile.graphs:
            if changed := self._graph(record, end):
                new.append((Kind.GRAPH, _object({"id": to_json(record.id), **changed})))
        self._entries(new, profile.ledger)
        self._columns(new, calls)
        if end:
            for record in profile.graphs:
                if record.calls != self._calls[record.id]:
                    new.append((Kind.GRAPH, to_json({"id": record.id, "calls": record.calls})))
        # The time alone is no news: an idle process would write one chunk after the other.
        if new or end:
            self._set(new, profile, ["created_ns", "resident"])
        if end:
            new.append((Kind.END, b"{}"))
        if not new:
            return b""
        if self._process is None:
            what = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "memprof": profile.memprof}
            new.insert(0, (Kind.HEADER, to_json(what)))
            # Of the content, so that the same profile gives the same bytes; processes differ.
            self._process = zlib.crc32(b"".join(payload for _, payload in new))
        first, self._number = self._number, self._number + len(new)
        return b"".join(
            pack(kind, self._process, number, payload)
            for number, (kind, payload) in enumerate(new, first)
        )

    def _set(self, new: list[tuple[Kind, bytes]], profile: Profile, names: list[str]) -> None:
        changed: dict[str, bytes] = {}
        for name in names:
            data = to_json(getattr(profile, name))
            if self._fields.get(name) != data:
                self._fields[name] = changed[name] = data
        if changed:
            new.append((Kind.FIELDS, _object(changed)))

    def _graph(self, record: GraphRecord, by_content: bool) -> dict[str, bytes]:
        """Fields of a graph that the file does not have yet, in JSON."""
        written = self._graphs.setdefault(record.id, {})
        changed: dict[str, bytes] = {}
        for name in _GRAPH_FIELDS:
            value = getattr(record, name)
            size = len(value) if isinstance(value, (dict, list, tuple)) else 0
            old, old_size, old_hash = written.get(name, (None, -1, None))
            # Comparing containers by content would take as long as encoding them.
            same_value = old is value if size else old == value
            if not by_content and same_value and old_size == size:
                continue
            data = to_json(value)
            written[name] = value, size, hash(data)
            if old_hash != hash(data):
                changed[name] = data
        known, programs = self._programs.get(record.id, []), record.programs
        pairs = zip(known, programs, strict=False)
        same = sum(1 for _ in takewhile(lambda p: p[0] is p[1] or p[0] == p[1], pairs))
        if same < max(len(known), len(programs)):
            self._programs[record.id] = list(programs)
            changed["programs"] = to_json({"from": same, "items": programs[same:]})
        return changed

    def _entries(self, new: list[tuple[Kind, bytes]], ledger: list[LedgerEntry]) -> None:
        known = self._ledger
        changed = [
            (i, entry) for i, entry in enumerate(ledger) if i >= len(known) or entry != known[i]
        ]
        if changed or len(ledger) != len(known):
            new.append((Kind.LEDGER, to_json({"length": len(ledger), "entries": changed})))
            self._ledger = list(ledger)

    def _columns(self, new: list[tuple[Kind, bytes]], calls: CallColumns) -> None:
        if not len(calls) and calls.dropped == self._dropped:
            return
        starts = calls.start_ns
        columns: dict[str, Any] = {
            "graph": calls.graph,
            "program": calls.program,
            "start_ns": [*starts[:1], *map(operator.sub, starts[1:], starts)],
            "duration_ns": list(map(operator.sub, calls.end_ns, starts)),
            "thread": calls.thread,
        }
        if calls.dropped != self._dropped:
            columns["dropped"] = self._dropped = calls.dropped
        new.append((Kind.CALLS, to_json(columns)))
        self._calls.update(calls.graph)


def _object(fields: dict[str, bytes]) -> bytes:
    return to_json({name: msgspec.Raw(data) for name, data in fields.items()})
