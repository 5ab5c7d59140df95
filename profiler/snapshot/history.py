"""The state that a snapshot's history began in, and the fullest instant of it.

Note [A history that begins late]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
``device_traces`` has the last so many events (``max_entries``), or those since somebody began to
record; what was there before the first of them stands nowhere. But the segments of the snapshot are
the state after the last one: going back from it, what an event made goes, and what it let go of
comes again. From what is there in the end ``Replay`` follows the history as any other. Of blocks
that went within the history their size is not known, but what was asked for, so it is rounded up,
as far as there is room.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from memprof.profiler.device.replay import Peak, Replay
from memprof.profiler.device.segments import Ascending

from .shape import Json, Snapshot

_NO_MARKS = ((0, 0),)


def follow(snapshot: Snapshot, device: int) -> tuple[Replay, Peak]:
    """A device's history, followed to its end, and the fullest instant of it: Note [The instant
    that decides]."""
    segments, trace = snapshot.of_device(device), snapshot.trace_of(device)
    begin = _beginning(segments, trace, Replay(snapshot.settings))
    # In two passes: what is there at a peak that a later one surpasses is of no use.
    whole = Replay(snapshot.settings, take_down=False)
    whole.take_over(begin)
    whole.feed(trace, _NO_MARKS)
    until = Replay(snapshot.settings, take_down=False)
    until.take_over(begin)
    until.assign_pools(begin)
    until.feed(trace[: whole.peak.event], _NO_MARKS)
    until.assign_pools(segments)
    return whole, until.now()


def totals(segments: Sequence[Json]) -> tuple[int, int]:
    """Bytes that are reserved, and bytes of blocks that are allocated, by a snapshot."""
    used = (b["size"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated")
    return sum(s["total_size"] for s in segments), sum(used)


@dataclass(slots=True)
class _Ranges:
    """Ranges of addresses that the allocator had, each with what is known of its segment."""

    starts: Ascending = field(default_factory=Ascending)
    known: dict[int, tuple[int, Json]] = field(default_factory=dict)

    def add(self, address: int, size: int, of: Json) -> None:
        """A range, as one with those of growing segments that it touches."""
        before, after = self.starts.last_up_to(address - 1), self.starts.first_above(address - 1)
        until = address if before is None else before + self.known[before][0]
        if not size or until > address or (after is not None and after < address + size):
            return  # Or it contradicts what is there.
        if of["is_expandable"]:
            if after == address + size and self.known[after][1]["is_expandable"]:
                size += self._forget(after)[0]
            if before is not None and until == address:
                nbytes, whose = self.known[before]
                if whose["is_expandable"]:
                    self.known[before] = nbytes + size, whose
                    return
        self.starts.add(address)
        self.known[address] = size, of

    def remove(self, address: int, size: int) -> None:
        """What of a range was, if one range has all of it."""
        begin = self.starts.last_up_to(address)
        if begin is None or address + size > begin + self.known[begin][0]:
            return
        whole, of = self._forget(begin)
        self.add(begin, address - begin, of)
        self.add(address + size, begin + whole - address - size, of)

    def _forget(self, begin: int) -> tuple[int, Json]:
        self.starts.remove(begin)
        return self.known.pop(begin)


def _beginning(segments: Sequence[Json], trace: Sequence[Json], rules: Replay) -> list[Json]:
    """The segments before the first event, in the snapshot's own form."""
    ranges = _Ranges()
    blocks: dict[int, Json] = {}
    for s in segments:
        ranges.add(s["address"], s["total_size"], s)
        blocks |= {b["address"]: b for b in s["blocks"] if b["state"] != "inactive"}
    for e in reversed(trace):
        action = e["action"]
        if action == "alloc":
            blocks.pop(e["addr"], None)
        elif action in ("free_completed", "free_requested"):
            state = "active_allocated" if action == "free_requested" else "active_awaiting_free"
            blocks[e["addr"]] = {
                "address": e["addr"],
                "size": rules.rounded(e["size"]),
                "requested_size": e["size"],
                "state": state,
            }
        elif action in ("segment_free", "segment_unmap"):
            ranges.add(e["addr"], e["size"], _of_event(e, action == "segment_unmap"))
        elif action in ("segment_alloc", "segment_map"):
            ranges.remove(e["addr"], e["size"])
    return _filled(ranges, blocks)


def _of_event(e: Json, expandable: bool) -> Json:
    pool = e.get("pool_id")
    known = isinstance(pool, (tuple, list)) and [type(n) for n in pool] == [int, int]
    return {
        "stream": e["stream"],
        "segment_pool_id": pool if known else (0, 0),
        "is_expandable": expandable,
    }


def _filled(ranges: _Ranges, blocks: dict[int, Json]) -> list[Json]:
    addresses = sorted(blocks)
    found: list[Json] = []
    for begin in ranges.starts:
        size, of = ranges.known[begin]
        at, end = begin, begin + size
        own: list[dict[str, Any]] = []
        first = bisect.bisect_left(addresses, begin)
        for i in range(first, bisect.bisect_left(addresses, end)):
            block = blocks[addresses[i]]
            room = min(end, addresses[i + 1] if i + 1 < len(addresses) else end) - addresses[i]
            if at < addresses[i]:
                own.append({"address": at, "size": addresses[i] - at, "state": "inactive"})
            if block["size"] > room:
                asked = min(block["requested_size"], room)
                block = {**block, "size": room, "requested_size": asked}
            own.append(block)
            at = addresses[i] + block["size"]
        if at < end:
            own.append({"address": at, "size": end - at, "state": "inactive"})
        fields = ("stream", "segment_pool_id", "is_expandable")
        known = {name: of[name] for name in fields}
        found.append({"address": begin, "total_size": size, "blocks": own, **known})
    return found
