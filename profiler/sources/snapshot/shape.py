"""Content of a snapshot of torch's allocator, checked before anybody uses it.

Note [The shape of a snapshot]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``torch.cuda.memory._snapshot()`` of torch 2.11 to 2.15, ``torch.xpu``'s, what memprof exports, and
those of older torch are dictionaries of ``segments`` and ``device_traces`` (or a list of segments
alone). Fields that are used here must have their type where they are; others are let alone and
stay in an enriched file.

torch makes one object of each stack and of each frame, and so does a snapshot that is loaded.
Segments, blocks and events it makes each for itself, and a file in which one of these stands twice
is refused: what is checked and counted is then never more than what the file has bytes for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NoReturn

import msgspec

from memprof.profiler.model.limits import Count
from memprof.profiler.support.errors import SnapshotInvalidError

Json = dict[str, Any]

_DEVICES = 1 << 10
"""Limit of a snapshot's devices: more than one machine has."""

ROLE, MODULE, GRAPH = "memprof_role", "memprof_module", "memprof_graph"
"""Fields that ``enrich`` adds to frames beside torch's ``fx_``."""
_WORKSPACE = ("WorkspaceForHandle", "BlasLtWorkspace")
"""Parts of the names of C++ functions that ask for the workspaces of cuBLAS."""
_WITHOUT_ADDRESS = ("oom", "snapshot")

# Types of the parts of a snapshot, each with the fields that are used here.
_TEXTS = ("fx_node_op", "fx_node_name", "fx_node_target", "fx_original_trace", ROLE, MODULE, GRAPH)
_Frame = msgspec.defstruct(
    "_Frame",
    [
        ("name", str),
        ("filename", str),
        ("line", Annotated[int, msgspec.Meta(ge=0)]),  # of C++ 2**64 - 1 where it is not known
        *((name, str, "") for name in _TEXTS),
    ],
)
_Block = msgspec.defstruct(
    "_Block",
    [
        ("size", Count),
        ("state", str),
        ("address", Count, 0),
        ("requested_size", Count, 0),
        ("frames", list[Any] | None, None),
    ],
)
_Segment = msgspec.defstruct(
    "_Segment",
    [
        ("address", Count),
        ("total_size", Count),
        ("blocks", list[Any]),
        ("device", Annotated[int, msgspec.Meta(ge=0, lt=_DEVICES)], 0),
        ("stream", Count, 0),
        ("segment_pool_id", tuple[Count, Count], (0, 0)),
        ("is_expandable", bool, False),
    ],
)
_Event = msgspec.defstruct(
    "_Event",
    [
        ("action", str),
        ("addr", Count, 0),
        ("size", Count, 0),
        ("stream", Count, 0),
        ("frames", list[Any] | None, None),
    ],
)
_Traces = Annotated[list[list[Any]], msgspec.Meta(max_length=_DEVICES)]


class Snapshot:
    """A checked snapshot.

    Attributes:
        raw: the dictionary, as ``_dump_snapshot`` wrote it.
        segments: all of them.
        traces: events of each device, oldest first, by its number.
        devices: numbers of those that have segments or events.
        settings: ``allocator_settings``, as far as ``AllocatorHistory`` uses them.
    """

    def __init__(self, value: Any, path: str | None) -> None:
        """
        Args:
            value: what the pickle holds.
            path: of the file, for messages.

        Raises:
            SnapshotInvalidError: that is no snapshot, or it contradicts itself.
        """
        if isinstance(value, list):  # Segments alone: ``torch.cuda.memory_snapshot()``.
            value = {"segments": value, "device_traces": []}
        if not isinstance(value, dict) or not isinstance(value.get("segments"), list):
            raise SnapshotInvalidError(
                path,
                "a pickle of plain data, and no snapshot of torch's allocator: it has no list of "
                "segments; give what torch.cuda.memory._dump_snapshot wrote",
            )
        self.raw: Json = value
        self.segments: list[Json] = value["segments"]
        check = _Checks(path)
        for i, segment in enumerate(self.segments):
            check.segment(segment, f"$.segments[{i}]")
        check.places(self.segments)
        traces = value.get("device_traces")
        self.traces: list[list[Json]] = [] if traces is None else traces
        check.of_type(_Traces, self.traces, "$.device_traces")
        for i, trace in enumerate(self.traces):
            for j, event in enumerate(trace):
                check.event(event, f"$.device_traces[{i}][{j}]")
        used = {s["device"] for s in self.segments} | {i for i, t in enumerate(self.traces) if t}
        self.devices: list[int] = sorted(used)
        self.settings = _settings(value.get("allocator_settings"))

    def of_device(self, device: int) -> list[Json]:
        """Segments of a device, by address."""
        own = [s for s in self.segments if s["device"] == device]
        return sorted(own, key=lambda s: int(s["address"]))

    def trace_of(self, device: int) -> list[Json]:
        """Events of a device, oldest first; none where no history was on."""
        return self.traces[device] if device < len(self.traces) else []


class _Checks:
    """Checks each part of a snapshot. What older torch did not write is put in."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        # By ``id()``. Segments, blocks and events that were seen; stacks and frames that are right.
        self._seen: set[int] = set()
        self._stacks: set[int] = set()
        self._frames: set[int] = set()

    def segment(self, s: Any, at: str) -> None:
        self.once(_Segment, s, at)
        for name, default in (("device", 0), ("stream", 0), ("segment_pool_id", (0, 0))):
            s.setdefault(name, default)
        s.setdefault("is_expandable", False)
        end = s["address"]
        for i, block in enumerate(s["blocks"]):
            where = f"{at}.blocks[{i}]"
            self.once(_Block, block, where)
            if block.setdefault("address", end) < end:
                self.fail(f"{where}.address", f"it is {block['address']}, below {end}")
            self.block(block, where)
            end = block["address"] + block["size"]
        if s["blocks"] and end > s["address"] + s["total_size"]:
            self.fail(f"{at}.blocks", f"they end at {end}, beyond the segment")

    def block(self, b: Json, at: str) -> None:
        history = b.get("history")
        if "frames" not in b and isinstance(history, list) and history:
            self.first_request(b, history[0])
        active = b["state"] != "inactive"
        if b.setdefault("requested_size", b["size"] if active else 0) > b["size"] and active:
            self.fail(f"{at}.requested_size", "it is more than its size")
        self.frames(b, at)

    def first_request(self, b: Json, request: Any) -> None:
        """Fill in a block's last request, which torch before 2.1 had in a history of the block."""
        if type(request) is dict:
            if type(request.get("frames")) is list:
                b["frames"] = request["frames"]
            if type(request.get("real_size")) is int:
                b.setdefault("requested_size", request["real_size"])

    def places(self, segments: list[Json]) -> None:
        """Refuse segments that have addresses in common: their bytes would count twice."""
        end: dict[int, int] = {}
        for i, s in sorted(enumerate(segments), key=lambda e: int(e[1]["address"])):
            before = end.get(s["device"], 0)
            if s["total_size"] and s["address"] < before:
                self.fail(f"$.segments[{i}].address", "it is within another segment")
            end[s["device"]] = max(before, s["address"] + s["total_size"])

    def event(self, e: Any, at: str) -> None:
        self.once(_Event, e, at)
        if e["action"] not in _WITHOUT_ADDRESS and "addr" not in e:
            self.fail(f"{at}.addr", "it is missing")
        e.setdefault("size", 0)
        e.setdefault("stream", 0)
        self.frames(e, at)

    def frames(self, holder: Json, at: str) -> None:
        frames = holder.get("frames")
        if frames is None or id(frames) in self._stacks:
            return
        self._stacks.add(id(frames))
        if self._frames.issuperset(map(id, frames)):  # As a hundred are in each of many stacks.
            return
        for i, frame in enumerate(frames):
            if id(frame) not in self._frames:
                self.of_type(_Frame, frame, f"{at}.frames[{i}]")
                self._frames.add(id(frame))

    def once(self, kind: Any, value: Any, at: str) -> None:
        self.of_type(kind, value, at)
        if id(value) in self._seen:
            self.fail(at, "it stands elsewhere, too")
        self._seen.add(id(value))

    def of_type(self, kind: Any, value: Any, at: str) -> None:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as e:
            self.fail(at, str(e))

    def fail(self, where: str, what: str) -> NoReturn:
        raise SnapshotInvalidError(self._path, f"no valid snapshot: {where}: {what}", where)


def _settings(found: Any) -> Json:
    """The part of ``allocator_settings`` that ``AllocatorHistory`` reads, where torch wrote it."""
    if type(found) is not dict:
        return {}
    settings: Json = {}
    limit = found.get("max_split_size")
    if type(limit) is int and limit < 1 << 63:
        settings["max_split_size"] = limit
    parts = found.get("roundup_power2_divisions")
    if type(parts) is dict:
        settings["roundup_power2_divisions"] = {
            k: n
            for k, n in parts.items()
            if type(k) is str and k.isascii() and k.isdigit() and len(k) < 8
            if type(n) is int and 0 <= n <= 64
        }
    return settings


def is_workspace(frames: Iterable[Mapping[str, Any]]) -> bool:
    """Tells whether a stack asked for a workspace of cuBLAS, which stays for later calls. Stacks of
    Python alone do not tell."""
    native = (f["name"] for f in frames if f["line"] == 0 or ".so" in f["filename"])
    return any(word in name for name in native for word in _WORKSPACE)
