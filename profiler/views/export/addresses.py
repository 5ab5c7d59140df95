"""Addresses of memory, for tools that draw it by address: in the pool of graph trees, or made up.

Note [Which address a block gets]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A placement (``GraphRecord.placements``) is one recording of a graph for certain sizes. A call that
replayed or recorded takes the addresses of the latest one for its sizes: what it allocates is known
there by owner and line. Where no placement knows a block, or its place is taken (two forwards of
one graph wait at once, which the trees record twice, and a profile keeps only some recordings), its
address is made up.

Of all other memory a profile does not know where it was. It gets a layout that an allocator could
have made of the same requests: best fit, blocks split and merged again, segments as large as those
of torch's CUDA caching allocator. Its fragmentation is that of this layout, not of the run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter

from memprof.profiler.live.live_set import LiveItem
from memprof.profiler.live.trees import CallMode, call_modes
from memprof.profiler.model import Profile
from memprof.profiler.model.simulated_allocator import SegmentRange

_AT_THEIR_ADDRESSES = frozenset({CallMode.RECORD, CallMode.REPLAY, CallMode.REPLAY_OR_RUN})
_Site = tuple[str | None, int]
"""Owner and line of the generated code."""


class RecordedPool:
    """The pool of the graph trees of one device, block by block.

    Attributes:
        segments: those that the pool had from the system, by address; empty if none is known.
        taken: bytes of blocks that are live in the pool, by address.
    """

    def __init__(self, profile: Profile, device: str | None) -> None:
        self._calls = profile.calls
        self._graphs = {g.id: g for g in profile.graphs}
        self._known: dict[tuple[int, tuple[int, ...]], dict[_Site, list[int]]] = {}
        ranges: set[tuple[int, int]] = set()
        for graph in profile.graphs:
            for placement in graph.placements:
                if placement.pool != device:
                    continue
                ranges.update(placement.segments)
                sites: dict[_Site, list[int]] = {}
                for block in sorted(placement.blocks, key=lambda b: b.begin):
                    if block.graph == graph.id and block.begin > 0:
                        sites.setdefault((block.owner, block.line), []).append(block.address)
                self._known[graph.id, placement.key] = sites
        self.segments = _merged(ranges)
        self.taken: dict[int, int] = {}
        self._ordered: list[int] = []
        """Addresses of ``taken``, ascending."""
        self._modes = call_modes(profile) if self._known else []
        self._call = -1
        self._seen: Counter[_Site] = Counter()

    def place(self, call: int, item: LiveItem) -> int | None:
        """Take the place at which ``call`` allocates ``item``; None if it is not known or taken.
        Of a call, items come in the order of its events."""
        if not self._known or self._modes[call] not in _AT_THEIR_ADDRESSES:
            return None
        graph, program = self._graphs[self._calls.graph[call]], self._calls.program[call]
        sites = self._known.get((graph.id, graph.programs[program].key)) if program >= 0 else None
        if sites is None:
            return None
        if call != self._call:
            self._call = call
            self._seen.clear()
        site, nbytes = (item.owner, item.line), item.storage.nbytes
        known, n = sites.get(site, []), self._seen[site]
        self._seen[site] += 1
        if n >= len(known) or not self._is_free(known[n], nbytes):
            return None
        self._ordered.insert(bisect_left(self._ordered, known[n]), known[n])
        self.taken[known[n]] = nbytes
        return known[n]

    def give_back(self, address: int) -> bool:
        """Free the block at ``address``, and return whether there was one."""
        if self.taken.pop(address, None) is None:
            return False
        del self._ordered[bisect_left(self._ordered, address)]
        return True

    def _is_free(self, address: int, nbytes: int) -> bool:
        within = bisect_right(self.segments, address, key=lambda s: s.address) - 1
        if within < 0:
            return False
        segment, end = self.segments[within], address + nbytes
        after = bisect_left(self._ordered, address)
        before = self._ordered[after - 1] if after else None
        return (
            end <= segment.address + segment.nbytes
            and (after == len(self._ordered) or end <= self._ordered[after])
            and (before is None or before + self.taken[before] <= address)
        )


def _merged(ranges: set[tuple[int, int]]) -> list[SegmentRange]:
    """Segments at their largest, from ``ranges`` (address, bytes) of all recordings, which have
    segments as they were at the time."""
    out: list[SegmentRange] = []
    for address, nbytes in sorted(ranges):
        if out and address < out[-1].address + out[-1].nbytes:
            last = out.pop()
            nbytes = max(last.address + last.nbytes, address + nbytes) - last.address
            address = last.address
        out.append(SegmentRange(address, nbytes))
    return out
