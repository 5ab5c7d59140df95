"""Describes what a snapshot of torch's allocator holds, checked before anybody uses it.

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
from typing import Any, NoReturn

from memprof.profiler.device.segments import pool_id

from ..errors import SnapshotInvalidError

Json = dict[str, Any]

MOST = (1 << 64) - 1
_DEVICES = 1 << 10
"""More than one machine has."""

ROLE, MODULE, GRAPH = "memprof_role", "memprof_module", "memprof_graph"
"""Fields that ``enrich`` adds to frames beside torch's ``fx_``."""
_NEEDED = ("name", "filename")
_FX = ("fx_node_op", "fx_node_name", "fx_node_target", "fx_original_trace")
_TEXTS = (*_NEEDED, *_FX, ROLE, MODULE, GRAPH)
"""Fields of frames."""
_WORKSPACE = ("WorkspaceForHandle", "BlasLtWorkspace")
"""In names of the functions of C++ that ask for the workspaces of cuBLAS."""
_WITHOUT_ADDRESS = ("oom", "snapshot")


class Snapshot:
    """A checked snapshot.

    Attributes:
        raw: the dictionary, as ``_dump_snapshot`` wrote it.
        segments: all of them.
        traces: events of each device, oldest first, by its number.
        devices: numbers of those that have segments or events.
        settings: ``allocator_settings``, as far as ``Replay`` uses them.
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
        if type(self.traces) is not list or len(self.traces) > _DEVICES:
            check.fail("$.device_traces", f"a list of at most {_DEVICES:,} lists", self.traces)
        for i, trace in enumerate(self.traces):
            check.of_type(list, trace, f"$.device_traces[{i}]")
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
    """Describes what is checked of each part. What is missing of what older torch did not write is
    put in."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        # By ``id()``. Segments, blocks and events that were seen; stacks and frames that are right.
        self._seen: set[int] = set()
        self._stacks: set[int] = set()
        self._frames: set[int] = set()

    def segment(self, s: Any, at: str) -> None:
        self.once(s, at)
        for name in ("address", "total_size"):
            self.number(s, name, at)
        for name in ("device", "stream"):
            self.number(s, name, at, default=0)
        if s["device"] >= _DEVICES:
            self.fail(f"{at}.device", f"the number of one of at most {_DEVICES:,}", s["device"])
        if pool_id(pool := s.setdefault("segment_pool_id", (0, 0))) is None:
            self.fail(f"{at}.segment_pool_id", "a pair of numbers", pool)
        if type(s.setdefault("is_expandable", False)) is not bool:
            self.fail(f"{at}.is_expandable", "True or False", s["is_expandable"])
        blocks = s.get("blocks")
        self.of_type(list, blocks, f"{at}.blocks")
        address = s["address"]
        for i, block in enumerate(blocks):
            where = f"{at}.blocks[{i}]"
            self.block(block, address, where)
            address = block["address"] + block["size"]
        if blocks and address > s["address"] + s["total_size"]:
            self.fail(f"{at}.blocks", f"within {s['total_size']} bytes", address - s["address"])

    def block(self, b: Any, least: int, at: str) -> None:
        """``least`` is where the one before it ends."""
        self.once(b, at)
        self.number(b, "size", at)
        if self.number(b, "address", at, default=least) < least:
            self.fail(f"{at}.address", f"{least} or more", b["address"])
        self.of_type(str, b.get("state"), f"{at}.state")
        history = b.get("history")
        if "frames" not in b and isinstance(history, list) and history:
            self.first_request(b, history[0])
        inactive = b["state"] == "inactive"
        requested = self.number(b, "requested_size", at, default=0 if inactive else b["size"])
        if requested > b["size"] and not inactive:
            self.fail(f"{at}.requested_size", "at most its size", requested)
        self.frames(b, at)

    def first_request(self, b: Json, request: Any) -> None:
        """torch before 2.1 had the last request of a block in a history of it."""
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
                self.fail(f"$.segments[{i}].address", "beyond other segments", s["address"])
            end[s["device"]] = max(before, s["address"] + s["total_size"])

    def event(self, e: Any, at: str) -> None:
        self.once(e, at)
        self.of_type(str, e.get("action"), f"{at}.action")
        if e["action"] not in _WITHOUT_ADDRESS:
            self.number(e, "addr", at)
        self.number(e, "size", at, default=0)
        self.number(e, "stream", at, default=0)
        self.frames(e, at)

    def frames(self, holder: Json, at: str) -> None:
        frames = holder.get("frames")
        if frames is None or id(frames) in self._stacks:
            return
        self.of_type(list, frames, f"{at}.frames")
        self._stacks.add(id(frames))
        if self._frames.issuperset(map(id, frames)):  # As a hundred are in each of many stacks.
            return
        for i, f in enumerate(frames):
            if id(f) in self._frames:
                continue
            where = f"{at}.frames[{i}]"
            self.of_type(dict, f, where)
            self._frames.add(id(f))
            for name in _TEXTS:
                if name in f or name in _NEEDED:
                    self.of_type(str, f.get(name), f"{where}.{name}")
            self.number(f, "line", where)

    def once(self, value: Any, at: str) -> None:
        self.of_type(dict, value, at)
        if id(value) in self._seen:
            self.fail(at, "for itself", "what stands elsewhere, too")
        self._seen.add(id(value))

    def of_type(self, kind: type, value: Any, at: str) -> None:
        if type(value) is not kind:
            self.fail(at, _WORDS[kind], value)

    def number(self, of: Json, name: str, at: str, default: int | None = None) -> int:
        value: Any = of.get(name, default)
        if type(value) is not int or not 0 <= value <= MOST:
            self.fail(f"{at}.{name}", "a number from 0 to 2**64 - 1", value)
        of[name] = value
        return int(value)

    def fail(self, where: str, wanted: str, found: Any) -> NoReturn:
        shown = "nothing" if found is None else f"a {type(found).__name__}"
        if type(found) in (int, bool):
            shown = str(found)
        elif type(found) is str:
            shown = f"{found[:80]!r}"
        raise SnapshotInvalidError(
            self._path, f"no valid snapshot: {where} must be {wanted}, and is {shown}", where
        )


_WORDS: dict[type, str] = {dict: "a dictionary", list: "a list", str: "text"}


def _settings(found: Any) -> Json:
    """Returns what ``Replay`` reads of ``allocator_settings``, where it is what torch writes."""
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
