"""A snapshot whose frames of generated code say what they are, where its viewers show it.

Note [Where viewers of snapshots look]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
* memory_viz (torch's MemoryViz.js) prints of a frame ``filename:line:name``, and below it the
  ``fx_`` fields, which torch adds for code of FX graphs and not for Inductor's; of an event
  ``compile_context`` and ``user_metadata``; and it colours by ``category`` if one event has one.
  Then one must be ``unknown``, or it draws nothing: Note [Categories in MemoryViz.js].
* ``torch.cuda._memory_viz`` and oomscope print ``filename``, ``line`` and ``name``; oomscope puts
  the innermost file outside of ``site-packages`` on a row, which is the generated one.
* mosaic prints the three as well, matches rules of its user against ``name`` and ``filename``,
  tells forwards from backwards by words in ``name``, and groups by ``compile_context``. Its
  profiles take no frame with a fourth field (seen in 2026-06).

So a name stands in all of these: behind ``name`` in brackets, in the ``fx_`` fields (not for
mosaic), and in what an event has.
"""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from memprof.profiler.file.reading import StrPath
from memprof.profiler.model import Category
from memprof.profiler.sources.allocator.where import is_generated
from memprof.profiler.support.errors import SnapshotInvalidError
from memprof.profiler.support.writing import output

from .names import CodeNames, Name
from .shape import GRAPH, MODULE, ROLE, Json, Snapshot, is_workspace

_WORKSPACE = "workspace"
_PROTOCOL = 4
"""Latest pickle protocol that MemoryViz.js reads."""


EAGER, BARE = "no generated code", "no stack"
"""Labels of blocks without a frame of generated code, and of those without any frame."""


@dataclass(slots=True)
class Enriched:
    """Counts of what was named and what was not.

    Attributes:
        frames, events: distinct frames that have a name now, and events with such a one, by graph.
        unnamed: frames by file of generated code that no profile knows.
        blocks, nbytes: blocks of the snapshot's end, and what they had been asked for: by graph, by
            file that no profile knows, ``EAGER`` or ``BARE``.
    """

    frames: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    unnamed: Counter[str] = field(default_factory=Counter)
    blocks: Counter[str] = field(default_factory=Counter)
    nbytes: Counter[str] = field(default_factory=Counter)


def enrich(snapshot: Snapshot, names: CodeNames, *, fields: bool = True) -> Enriched:
    """Name the frames of generated code that some profiles know, in place.

    A frame that they do not know stays as it is, and so does one that has a name already.

    Args:
        snapshot: to be changed.
        names: of the profiles.
        fields: whether frames may have further fields than name, file and line.
    """
    work = _Work(names, fields)
    for block in (b for s in snapshot.segments for b in s["blocks"]):
        if block["state"] != "inactive":
            work.block(block)
    for trace in snapshot.traces:
        for event in trace:
            work.event(event)
        _colour(trace, work)
    return work.found


def write_snapshot(snapshot: Snapshot, path: StrPath) -> None:
    """Write a snapshot as torch does, whole or not at all; packed if ``path`` ends in ``.gz``.

    Raises:
        ProfileNotWritableError: the operating system refuses; what was there is unchanged.
        SnapshotInvalidError: something in it that memprof does not look at is nested too deeply.
    """
    try:
        with output(path) as file:
            pickle.Pickler(file, _PROTOCOL).dump(snapshot.raw)
    except RecursionError as e:
        raise SnapshotInvalidError(
            path, "nothing was written: a field of the snapshot is nested too deeply"
        ) from e


class _Stack(NamedTuple):
    """A stack: its innermost file of generated code, its innermost name, its memory's category, and
    all of it in words; "" if unknown."""

    file: str = ""
    name: Name | None = None
    role: str = ""
    words: str = ""


class _Work:
    """Names frames, and counts. Many blocks and events have one stack, and many stacks one frame:
    each is looked at once."""

    def __init__(self, names: CodeNames, fields: bool) -> None:
        self.found = Enriched()
        self._names = names
        self._fields = fields
        self._stacks: dict[int, _Stack] = {}  # by id, as the others
        self._frames: dict[int, tuple[str, Name | None] | None] = {}
        self.roles: dict[int, str] = {}  # of events

    def block(self, block: Json) -> None:
        """Name the frames of a block, and it; and count it."""
        stack = self._name_all(block)
        whose = BARE
        if stack is not None:
            whose = stack.name.graph if stack.name is not None else stack.file or EAGER
        self.found.blocks[whose] += 1
        self.found.nbytes[whose] += block["requested_size"]

    def event(self, event: Json) -> None:
        """Name the frames of an event, and it; and count it."""
        stack = self._name_all(event)
        if stack is None or stack.name is None:
            return
        self.found.events[stack.name.graph] += 1
        if stack.role:
            self.roles[id(event)] = stack.role
        if event.get("compile_context", "N/A") in ("N/A", "", None):
            event["compile_context"] = stack.name.graph

    def _name_all(self, holder: Json) -> _Stack | None:
        frames = holder.get("frames")
        if not frames:
            return None
        if id(frames) not in self._stacks:
            self._stacks[id(frames)] = self._stack(frames)
        stack = self._stacks[id(frames)]
        if stack.words:
            words = f"memprof: {stack.words}"
            already = holder.get("user_metadata")
            if already in (None, ""):
                holder["user_metadata"] = words
            elif type(already) is str and words not in already:
                holder["user_metadata"] = f"{already}; {words}"
        return stack

    def _stack(self, frames: list[Json]) -> _Stack:
        known = self._frames
        for frame in frames:
            if id(frame) not in known:
                file = frame["filename"]
                generated = is_generated(file) or self._names.knows(file)
                known[id(frame)] = (file, self._name(frame)) if generated else None
        generated_frames = [found for f in frames if (found := known[id(f)]) is not None]
        file = generated_frames[0][0] if generated_frames else ""
        name = next((name for _, name in generated_frames if name is not None), None)
        if name is None:
            return _Stack(file)
        role = name.category.value if name.category else ""
        if is_workspace(frames):
            return _Stack(file, name, _WORKSPACE, name.words(_WORKSPACE))
        return _Stack(file, name, role, name.words())

    def _name(self, frame: Json) -> Name | None:
        function, _, has_name = frame["name"].partition(" [")
        name = self._names.name(frame["filename"], frame["line"], function)
        if name is None:
            if not self._names.knows(frame["filename"]):
                self.found.unnamed[frame["filename"]] += 1
            return None
        self.found.frames[name.graph] += 1
        if not has_name:
            frame["name"] = f"{function} [{name.words()}]"
        if self._fields:
            _add_fields(frame, name)
        return name


def _add_fields(frame: Json, name: Name) -> None:
    known = {
        GRAPH: name.graph,
        ROLE: name.category and name.category.value,
        MODULE: name.module,
        "fx_node_name": name.node,
        "fx_node_op": name.node and "call_function",
        "fx_node_target": name.target,
        "fx_original_trace": name.trace or None,
    }
    frame.update((field, value) for field, value in known.items() if value is not None)


def _colour(trace: list[Json], work: _Work) -> None:
    """Give events a category if one is known; Note [Categories in MemoryViz.js]."""
    unknown = Category.UNKNOWN.value
    allocations = [e for e in trace if e["action"] == "alloc"]
    if any("category" in e for e in trace) or work.roles.keys().isdisjoint(map(id, allocations)):
        return
    for e in allocations:
        e["category"] = work.roles.get(id(e), unknown)
    if all(e["category"] != unknown for e in allocations):
        other = next((e for e in trace if e["action"] != "alloc"), None)
        if other is None:
            trace.append({"action": "snapshot", "size": 0, "stream": 0, "category": unknown})
        else:
            other["category"] = unknown
