"""What a snapshot of torch's allocator holds, checked before anybody uses it.

Note [The shape of a snapshot]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``torch.cuda.memory._snapshot()`` of torch 2.11 to 2.15, ``torch.xpu``'s, what memprof itself
exports, and those of older torch are dictionaries of ``segments`` and ``device_traces`` (or a list
of segments alone). Fields that are used here must have their type where they are; those that are
not used (``external_annotations``, whatever a later torch adds) are let alone and stay in an
enriched file.

torch makes one object of each stack and of each frame, and lets many events have it; so does a
snapshot that is loaded. Segments, blocks and events it makes each for itself, and a file in which
one of these stands twice is refused: what is checked and counted here is then never more than what
the file has bytes for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from ..errors import SnapshotInvalidError

Json = dict[str, Any]

MOST = (1 << 64) - 1
_DEVICES = 1 << 10
"""More than one machine has."""

_TEXTS = ("name", "filename", "fx_node_op", "fx_node_name", "fx_node_target", "fx_original_trace")
ROLE, MODULE, GRAPH = "memprof_role", "memprof_module", "memprof_graph"
"""Fields that ``enrich`` adds to frames beside torch's ``fx_``."""
_OURS = (ROLE, MODULE, GRAPH)
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
        self._path = path
        self._seen: set[int] = set()
        self._stacks: set[int] = set()
        self._frames: set[int] = set()
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
        for i, segment in enumerate(self.segments):
            self._check_segment(segment, f"$.segments[{i}]")
        self._check_places()
        traces = value.get("device_traces")
        self.traces: list[list[Json]] = [] if traces is None else traces
        if type(self.traces) is not list or len(self.traces) > _DEVICES:
            self._fail("$.device_traces", f"a list of at most {_DEVICES:,} lists", self.traces)
        for i, trace in enumerate(self.traces):
            self._check_list(trace, f"$.device_traces[{i}]")
            for j, event in enumerate(trace):
                self._check_event(event, f"$.device_traces[{i}][{j}]")
        used = {s["device"] for s in self.segments} | {i for i, t in enumerate(self.traces) if t}
        self.devices: list[int] = sorted(used)
        self.settings = _settings(value.get("allocator_settings"))
        self._seen.clear()
        self._stacks.clear()
        self._frames.clear()

    def of_device(self, device: int) -> list[Json]:
        """Segments of a device, by address."""
        own = [s for s in self.segments if s["device"] == device]
        return sorted(own, key=lambda s: int(s["address"]))

    def trace_of(self, device: int) -> list[Json]:
        """Events of a device, oldest first; none where no history was on."""
        return self.traces[device] if device < len(self.traces) else []

    def holders(self) -> Iterator[tuple[Json, bool]]:
        """Whatever can have frames: each block that is in use, and each event; and whether it is a
        block."""
        blocks = (b for s in self.segments for b in s["blocks"])
        yield from ((b, True) for b in blocks if b["state"] != "inactive")
        yield from ((event, False) for trace in self.traces for event in trace)

    # Checks. What is missing of what older torch did not write is put in.

    def _check_segment(self, s: Any, at: str) -> None:
        self._once(s, at)
        for name in ("address", "total_size"):
            self._number(s, name, at)
        for name in ("device", "stream"):
            self._number(s, name, at, default=0)
        if s["device"] >= _DEVICES:
            self._fail(f"{at}.device", f"the number of one of at most {_DEVICES:,}", s["device"])
        pool = s.setdefault("segment_pool_id", (0, 0))
        if not isinstance(pool, (tuple, list)) or [type(n) for n in pool] != [int, int]:
            self._fail(f"{at}.segment_pool_id", "a pair of numbers", pool)
        if type(s.setdefault("is_expandable", False)) is not bool:
            self._fail(f"{at}.is_expandable", "True or False", s["is_expandable"])
        blocks = s.get("blocks")
        self._check_list(blocks, f"{at}.blocks")
        address = s["address"]
        for i, block in enumerate(blocks):
            where = f"{at}.blocks[{i}]"
            self._once(block, where)
            self._number(block, "size", where)
            if self._number(block, "address", where, default=address) < address:
                self._fail(f"{where}.address", f"{address} or more", block["address"])
            state = block.get("state")
            if type(state) is not str:
                self._fail(f"{where}.state", "text", state)
            history = block.get("history")
            if "frames" not in block and isinstance(history, list) and history:
                self._check_history(block, history[0], where)
            most = 0 if state == "inactive" else block["size"]
            requested = self._number(block, "requested_size", where, default=most)
            if requested > block["size"] and state != "inactive":
                self._fail(f"{where}.requested_size", "at most its size", requested)
            self._check_frames(block, where)
            address = block["address"] + block["size"]
        if blocks and address > s["address"] + s["total_size"]:
            self._fail(f"{at}.blocks", f"within {s['total_size']} bytes", address - s["address"])

    def _check_places(self) -> None:
        """Refuse segments that have addresses in common: their bytes would count twice."""
        end: dict[int, int] = {}
        order = sorted(range(len(self.segments)), key=lambda i: int(self.segments[i]["address"]))
        for i in order:
            s = self.segments[i]
            if s["total_size"] and s["address"] < end.get(s["device"], 0):
                self._fail(f"$.segments[{i}].address", "beyond other segments", s["address"])
            end[s["device"]] = max(end.get(s["device"], 0), s["address"] + s["total_size"])

    def _check_history(self, block: Json, first: Any, at: str) -> None:
        """torch before 2.1 had the last request of a block here."""
        if type(first) is dict:
            if type(first.get("frames")) is list:
                block["frames"] = first["frames"]
            if type(first.get("real_size")) is int:
                block.setdefault("requested_size", first["real_size"])

    def _check_event(self, e: Any, at: str) -> None:
        self._once(e, at)
        action = e.get("action")
        if type(action) is not str:
            self._fail(f"{at}.action", "text", action)
        if action not in _WITHOUT_ADDRESS:
            self._number(e, "addr", at)
        self._number(e, "size", at, default=0)
        self._number(e, "stream", at, default=0)
        self._check_frames(e, at)

    def _check_frames(self, holder: Json, at: str) -> None:
        frames = holder.get("frames")
        if frames is None or id(frames) in self._stacks:
            return
        self._check_list(frames, f"{at}.frames")
        self._stacks.add(id(frames))
        if self._frames.issuperset(map(id, frames)):  # As a hundred are in each of many stacks.
            return
        for i, f in enumerate(frames):
            if id(f) in self._frames:
                continue
            where = f"{at}.frames[{i}]"
            if type(f) is not dict:
                self._fail(where, "a dictionary", f)
            self._frames.add(id(f))
            for name in ("name", "filename"):
                if type(f.get(name)) is not str:
                    self._fail(f"{where}.{name}", "text", f.get(name))
            self._number(f, "line", where)
            for name in (*_TEXTS[2:], *_OURS):
                if name in f and type(f[name]) is not str:
                    self._fail(f"{where}.{name}", "text", f[name])

    def _once(self, value: Any, at: str) -> None:
        if type(value) is not dict:
            self._fail(at, "a dictionary", value)
        if id(value) in self._seen:
            self._fail(at, "for itself", "what stands elsewhere, too")
        self._seen.add(id(value))

    def _check_list(self, value: Any, at: str) -> None:
        if type(value) is not list:
            self._fail(at, "a list", value)

    def _number(self, of: Json, name: str, at: str, default: int | None = None) -> int:
        value: Any = of.get(name, default)
        if type(value) is not int or not 0 <= value <= MOST:
            self._fail(f"{at}.{name}", "a number from 0 to 2**64 - 1", value)
        of[name] = value
        number: int = value
        return number

    def _fail(self, where: str, wanted: str, found: Any) -> NoReturn:
        shown = "nothing" if found is None else f"a {type(found).__name__}"
        if type(found) in (int, bool):
            shown = str(found)
        elif type(found) is str:
            shown = f"{found[:80]!r}"
        raise SnapshotInvalidError(
            self._path, f"no valid snapshot: {where} must be {wanted}, and is {shown}", where
        )


def _settings(found: Any) -> Json:
    """What ``Replay`` reads of ``allocator_settings``, where it is what torch writes."""
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
    """Whether a stack asked for a workspace of cuBLAS, which stays for later calls. Stacks of
    Python alone do not tell."""
    native = (f["name"] for f in frames if f["line"] == 0 or ".so" in f["filename"])
    return any(word in name for name in native for word in _WORKSPACE)
