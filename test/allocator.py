"""A small caching allocator of our own, which writes the history and the snapshots of torch's."""

from __future__ import annotations

from typing import Any

from memprof.profiler.model.allocator_rules import ROUNDING, SMALL

MIB = 1 << 20

Json = dict[str, Any]


class Allocator:
    """Small requests have segments of 2 MiB, others of 20 MiB; the first free range that is large
    enough is taken, and cut where more than a MiB remains, of small ones where anything does.

    Attributes:
        events, before: the history, and addresses of blocks that were there when it began.
        live: of each block by its address what was asked for, and its size.
        peak: bytes reserved and allocated at the instant that decides, since the history begins.
        most: the most bytes allocated since then.
    """

    def __init__(self, divisions: int = 0) -> None:
        self.divisions = divisions
        self.segments: dict[int, int] = {}
        self.free: dict[int, int] = {}
        self.live: dict[int, tuple[int, int]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin the history here."""
        self.events: list[Json] = []
        self.before = set(self.live)
        self.peak = (self.reserved, self.allocated)
        self.most = self.allocated

    @property
    def reserved(self) -> int:
        return sum(self.segments.values())

    @property
    def allocated(self) -> int:
        return sum(size for _, size in self.live.values())

    def rounded(self, requested: int) -> int:
        floor = 1 << (requested.bit_length() - 1)
        if self.divisions and requested > ROUNDING * self.divisions:
            step = floor // self.divisions
            return -(-requested // step) * step
        return -(-requested // ROUNDING) * ROUNDING

    def take(self, requested: int) -> int:
        size = self.rounded(requested)
        whole = 2 * MIB if size <= SMALL else 20 * MIB if size < 10 * MIB else size
        alike = (
            a for a in sorted(self.free) if (self._segment(a)[1] == 2 * MIB) is (size <= SMALL)
        )
        address = next((a for a in alike if self.free[a] >= size), -1)
        if address < 0:
            address = next(a for a in range(0, 1 << 40, 64 * MIB) if a not in self.segments)
            self.segments[address] = self.free[address] = whole
            self._say("segment_alloc", address, whole)
        there = self.free.pop(address)
        if there - size > (0 if size <= SMALL else SMALL):
            self.free[address + size] = there - size
        else:
            size = there
        self.live[address] = requested, size
        self._say("alloc", address, requested)
        self.peak = max(self.peak, (self.reserved, self.allocated))
        self.most = max(self.most, self.allocated)
        return address

    def drop(self, address: int) -> None:
        requested, size = self.live.pop(address)
        for action in ("free_requested", "free_completed"):
            self._say(action, address, requested)
        begin, end = self._segment(address)[0], sum(self._segment(address))
        for start in [a for a, n in self.free.items() if a + n == address > begin]:
            size, address = size + self.free.pop(start), start
        if address + size < end:
            size += self.free.pop(address + size, 0)
        self.free[address] = size

    def give_back(self) -> None:
        """Give back every segment that is free."""
        for address, size in list(self.segments.items()):
            if self.free.get(address) == size:
                self._say("segment_free", address, size)
                del self.segments[address], self.free[address]

    def snapshot(self) -> Json:
        """As ``torch.cuda.memory._snapshot()`` would have it now."""
        parts = {a: (0, n, "inactive") for a, n in self.free.items()}
        parts |= {a: (n, size, "active_allocated") for a, (n, size) in self.live.items()}
        frames = [{"filename": "/p/a.py", "line": 3, "name": "f"}]
        blocks = [
            {"address": a, "requested_size": n, "size": size, "state": state, "frames": frames}
            for a, (n, size, state) in sorted(parts.items())
        ]
        settings = {"roundup_power2_divisions": {str(1 << i): self.divisions for i in range(16)}}
        segments = [
            {
                "device": 0,
                "address": a,
                "total_size": n,
                "blocks": [dict(b) for b in blocks if a <= b["address"] < a + n],
            }
            for a, n in self.segments.items()
        ]
        traces = [[dict(e) for e in self.events]]
        return {"segments": segments, "device_traces": traces, "allocator_settings": settings}

    def _segment(self, address: int) -> tuple[int, int]:
        return next((a, n) for a, n in self.segments.items() if a <= address < a + n)

    def _say(self, action: str, address: int, size: int) -> None:
        self.events.append({"action": action, "addr": address, "size": size, "stream": 0})
