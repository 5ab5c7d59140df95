"""Addresses that replays really use, where a profile has them (``GraphRecord.placements``).

Note [Which address a block gets]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A placement is one recording of a graph for certain sizes. A call that replayed or recorded takes
the addresses of the latest one for its sizes: what it allocates is known there by owner and line.
A block gets a made-up address instead where the placement does not know it, or where its place is
taken: the timeline lets two forwards of one graph wait at once, which the trees record twice, and
a profile keeps only some recordings."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter

from ..live import LiveItem
from ..model import Profile
from ..trees import CallMode, call_modes
from .address_space import Segment

_AT_THEIR_ADDRESSES = frozenset({CallMode.RECORD, CallMode.REPLAY, CallMode.REPLAY_OR_RUN})
_Site = tuple[str | None, int]
"""Owner and line of the generated code."""


class Pool:
    """The pool of the graph trees of one device, block by block.

    Attributes:
        segments: what it had from the system, by address; empty if nothing is known.
    """

    def __init__(self, profile: Profile, device: str) -> None:
        self._profile = profile
        self._graphs = {g.id: g for g in profile.graphs}
        self._known: dict[tuple[int, tuple[int, ...]], dict[_Site, list[int]]] = {}
        ranges: list[tuple[int, int]] = []
        for graph in profile.graphs:
            for placement in graph.placements:
                if placement.pool != device or placement.node is None:
                    continue
                ranges += placement.segments
                sites: dict[_Site, list[int]] = {}
                for block in sorted(placement.blocks, key=lambda b: b.begin):
                    if block.graph == graph.id and block.begin > 0:
                        sites.setdefault((block.owner, block.line), []).append(block.address)
                self._known[graph.id, placement.key] = sites
        self.segments = _merged(ranges)
        self._modes = call_modes(profile) if self._known else []
        self._taken: list[tuple[int, int]] = []
        """First address and bytes of what is live, by address."""
        self._call = -1
        self._seen: Counter[_Site] = Counter()

    def place(self, call: int, item: LiveItem) -> int | None:
        """Take the place at which ``call`` allocates ``item``; None if it is not known or taken.
        Of a call, items come in the order of its events."""
        calls = self._profile.calls
        if not self._known or self._modes[call] not in _AT_THEIR_ADDRESSES:
            return None
        graph = self._graphs[calls.graph[call]]
        program = calls.program[call]
        sites = self._known.get((graph.id, graph.programs[program].key)) if program >= 0 else None
        if sites is None:
            return None
        if call != self._call:
            self._call = call
            self._seen.clear()
        site = (item.owner, item.line)
        known = sites.get(site, [])
        n = self._seen[site]
        self._seen[site] += 1
        if n >= len(known) or not self._is_free(known[n], item.storage.nbytes):
            return None
        insort(self._taken, (known[n], item.storage.nbytes))
        return known[n]

    def give_back(self, address: int) -> bool:
        """Free a place; whether ``address`` is one."""
        at = bisect_left(self._taken, (address, 0))
        if at == len(self._taken) or self._taken[at][0] != address:
            return False
        del self._taken[at]
        return True

    def blocks(self, segment: Segment) -> list[tuple[int, int, bool]]:
        """(address, bytes, taken) of each part of a segment, in order; without gaps."""
        out: list[tuple[int, int, bool]] = []
        at, end = segment.address, segment.address + segment.nbytes
        for address, nbytes in self._taken:
            if segment.address <= address < end:
                if at < address:
                    out.append((at, address - at, False))
                out.append((address, nbytes, True))
                at = address + nbytes
        return [*out, (at, end - at, False)] if at < end else out

    def _is_free(self, address: int, nbytes: int) -> bool:
        within = bisect_right(self.segments, address, key=lambda s: s.address) - 1
        if within < 0:
            return False
        segment = self.segments[within]
        if address + nbytes > segment.address + segment.nbytes:
            return False
        at = bisect_left(self._taken, (address, 0))
        if at < len(self._taken) and self._taken[at][0] < address + nbytes:
            return False
        return at == 0 or sum(self._taken[at - 1]) <= address


def _merged(ranges: list[tuple[int, int]]) -> list[Segment]:
    """Segments as they were at their largest: recordings know those of their time."""
    out: list[Segment] = []
    for address, nbytes in sorted(set(ranges)):
        last = out[-1] if out else None
        if last is not None and address < last.address + last.nbytes:
            end = max(last.address + last.nbytes, address + nbytes)
            out[-1] = Segment(last.address, end - last.address, False)
        else:
            out.append(Segment(address, nbytes, False))
    return out
