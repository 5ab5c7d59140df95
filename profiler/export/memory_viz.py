"""A snapshot as ``torch.cuda.memory._snapshot()`` gives it, with what happened inside replays.

torch's allocator records the allocations of a CUDA graph once, when it is captured: a replay is one
launch and leaves nothing in a snapshot, so memory_viz shows its memory as a block that never moves.
Here every call has the allocations and releases of its program, with frames from provenance.

The format is that of torch's ``_memory_viz.py`` and ``MemoryViz.js``: a pickled dictionary of
``segments`` and ``device_traces``. ``size`` is requested bytes, as torch records it.

Note [Addresses in the snapshot]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Replays of graph trees have their memory at the addresses of the pool, everything else at made-up
ones, in segments of pool (0, 0): see ``addresses.py``. The first events allocate the pool's
segments and what is live when the first call begins; a made-up segment is allocated when a block
needs it, and none is given back.

Note [Categories in MemoryViz.js]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
It colours allocations by their ``category`` where events have one. Where none of them is
``unknown`` it adds that name to a list whose name it misspells, and draws nothing (seen in the
versions of 2024 to 2026). So a trace begins with an event of action ``snapshot``, which draws
nothing, in that category."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ..attribution import Attribution, View
from ..live import LiveItem
from ..model import Category, Profile
from ..writing import Output
from . import pickle_stream as pk
from .addresses import AddressSpace, Pool, Segment
from .walk import Block, Part, Walk

_BASE = 1 << 44
"""Of made-up addresses, times the device's place from 1: far below where drivers put memory on
Linux (0x7f…) and far above their low ranges."""


def write_memory_viz(profile: Profile, file: Output, part: Part) -> None:
    """Write a snapshot, see ``export_profile``; segments are as they are after the last call."""
    index = device_index(part.devices)
    sites = _Sites(profile)
    traces = {
        index[d]: _Trace(profile, sites, part.walk(profile, d), index[d], Pool(profile, d))
        for d in part.devices
    }
    file.write(pk.START + pk.DICT + pk.MARK)
    # Keys of ours, which no reader looks at: the strings that events repeat.
    file.write(pk.encode("memprof_names") + _NAMES.definition + pk.encode("memprof_graphs"))
    labels = (pk.encode(g.label) + pk.put(sites.contexts[g.id]) for g in profile.graphs)
    pk.write_list(file.write, labels)
    file.write(pk.encode("device_traces") + pk.LIST)
    for i in range(max(traces, default=-1) + 1):
        file.write(pk.MARK)
        pk.write_list(file.write, traces[i].events() if i in traces else ())
        file.write(pk.APPENDS)
    file.write(pk.encode("segments"))
    pk.write_list(file.write, (s for i in sorted(traces) for s in traces[i].segments()))
    settings = {"memprof": "see docs/exports.md for what these addresses are"}
    file.write(pk.encode("allocator_settings") + pk.encode(settings))
    file.write(pk.encode("external_annotations") + pk.encode([]))
    file.write(pk.SET_ITEMS + pk.STOP)


def device_index(devices: Sequence[str]) -> dict[str, int]:
    """The place of each device in ``device_traces``: an accelerator's own number where it is
    free, others, the CPU among them, after those."""
    out: dict[str, int] = {}
    for device in devices:
        _, _, number = device.partition(":")
        # Every place up to the highest has a list in the file: a name may hold any number.
        if re.fullmatch(r"[0-9]{1,3}", number) and int(number) not in out.values():
            out[device] = int(number)
    for device in devices:
        out.setdefault(device, max(out.values(), default=-1) + 1)
    return out


class _Sites:
    """Frames and contexts of blocks, for the pickle."""

    def __init__(self, profile: Profile) -> None:
        self._graphs = {g.id: g for g in profile.graphs}
        self._attribution = Attribution(profile)
        # What their names are remembered as. Numbers below 256 are those of ``_NAMES``.
        self.contexts = {g.id: n for n, g in enumerate(profile.graphs, 256)}
        self._remembered = 256 + len(self.contexts)

    def frames(self, item: LiveItem) -> list[dict[str, Any]]:
        """Innermost first: the FX node or what else made it, its module, the user's stack."""
        graph = self._graphs[item.graph]
        site = self._attribution.site(item.graph, item.storage, item.owner, item.line)
        maker = self._graphs[site.graph]
        where = f"<{maker.label.replace('/', '_')}>"
        if site.outside is not None:
            name = f"{site.outside} {site.fqn or site.node or item.storage.name}"
        elif site.node is not None:
            name = f"{site.node} {site.op or ''}".strip()
        else:
            why = site.why.get(View.NODE, "unknown")
            name = f"{item.owner or 'scratch'} (unknown: {why})"
        # The line is one of the code of the graph that has it live.
        out = [_frame(name, where if maker is graph else f"{where} in {graph.label}", item.line)]
        if site.module is not None:
            out.append(_frame(f"module {site.module or '(root)'}", "<module>", 0))
        node = maker.nodes.get(site.node) if site.node is not None else None
        stack = node.stack if node is not None else (site.frame,) if site.frame else ()
        out += [_frame(f.function, f.file, f.line) for f in reversed(stack)]
        return out

    def number(self) -> int:
        """One under which nothing is remembered in the pickle yet."""
        self._remembered += 1
        return self._remembered - 1


class _Trace:
    """The events of one device, and the segments after them."""

    def __init__(
        self, profile: Profile, sites: _Sites, walk: Walk, device: int, pool: Pool
    ) -> None:
        self._origin_ns = profile.perf_origin_ns
        self._sites = sites
        self._walk = walk
        self._device = device
        self._pool = pool
        self._space = AddressSpace(_BASE * (device + 1))
        self._at: dict[int, Block] = {}
        """By address."""
        self._addresses: dict[int, list[int]] = {}
        """Of the copies of each memory."""
        self._frames: dict[int, int] = {}
        """Number of a block → what its frames are remembered as."""
        self._heads: dict[tuple[int, str], bytes] = {}

    def events(self) -> Iterator[bytes]:
        """Opcodes of each event."""
        begin = [_plain("snapshot", Category.UNKNOWN, 0, 0)]
        begin += map(_segment_alloc, self._pool.segments)
        for moment in self._walk:
            stamp = _TIME + pk.encode_int((moment.time_ns + self._origin_ns) // 1000) + pk.SET_ITEMS
            while begin:
                yield begin.pop(0) + stamp
            change = moment.change
            address = 0
            for block in change.freed:
                address = self._addresses[block.memory].pop()
                there = self._at.pop(address)
                where = pk.encode_int(address)
                yield self._head(there, "free_requested") + where + stamp
                yield self._head(there, "free_completed") + where + stamp
                if not change.reuse and not self._pool.give_back(address):
                    self._space.free(address)
            for block in change.allocated:
                if not change.reuse:
                    own = self._pool.place(moment.call, block.item) if moment.instant > 0 else None
                    address, made = (
                        self._space.allocate(block.nbytes) if own is None else (own, None)
                    )
                    if made is not None:
                        yield _segment_alloc(made) + stamp
                self._addresses.setdefault(block.memory, []).append(address)
                self._at[address] = block
                yield self._head(block, "alloc") + pk.encode_int(address) + stamp

    def _head(self, block: Block, action: str) -> bytes:
        """An event up to the value of its address."""
        key = (block.number, action)
        if key in self._heads:
            return self._heads[key]
        item = block.item
        known = self._frames.get(block.number)
        if known is None:
            known = self._frames[block.number] = self._sites.number()
            frames = pk.encode(self._sites.frames(item)) + pk.put(known)
        else:
            frames = pk.get(known)
        begin = _event(action, item.storage.category, item.storage.nbytes)
        begin += _NAMES["compile_context"] + pk.get(self._sites.contexts[item.graph]) + _FRAMES
        self._heads[key] = begin + pk.get(known) + _ADDRESS
        return begin + frames + _ADDRESS

    def segments(self) -> Iterator[bytes]:
        """Opcodes of each segment, as it is after the last event."""
        made_up = ((s, self._space.blocks(s), 0) for s in self._space.segments)
        in_pool = ((s, self._pool.blocks(s), 1) for s in self._pool.segments)
        for s, parts_of, pool in (*made_up, *in_pool):
            blocks, requested, active = [], 0, 0
            for address, nbytes, used in parts_of:
                there = self._at[address] if used else None
                requested += there.nbytes if there else 0
                active += nbytes if there else 0
                blocks.append(
                    _dictionary(
                        _FRAMES + (pk.get(self._frames[there.number]) if there else pk.LIST),
                        address=address,
                        size=nbytes,
                        requested_size=there.nbytes if there else 0,
                        state="active_allocated" if there else "inactive",
                    )
                )
            parts = [pk.encode("blocks")]
            pk.write_list(parts.append, blocks)
            yield _dictionary(
                b"".join(parts),
                device=self._device,
                address=s.address,
                total_size=s.nbytes,
                allocated_size=active,
                active_size=active,
                requested_size=requested,
                stream=0,
                segment_type="small" if s.small else "large",
                segment_pool_id=(0, pool),
                is_expandable=False,
                frames=[],
            )


_KEYS = ("action", "addr", "category", "compile_context", "frames", "size", "stream", "time_us")
_ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "snapshot")
_NAMES = pk.Names((*_KEYS, *_ACTIONS, *(c.value for c in Category)))
_TIME = _NAMES["time_us"]
_FRAMES = _NAMES["frames"]
_ADDRESS = _NAMES["addr"]


def _dictionary(last: bytes, **values: Any) -> bytes:
    """A dictionary of ``values``, and of what comes encoded."""
    pairs = b"".join(pk.encode(k) + pk.encode(v) for k, v in values.items())
    return pk.DICT + pk.MARK + pairs + last + pk.SET_ITEMS


def _event(action: str, category: Category | None, size: int) -> bytes:
    """The beginning of an event: what it is and how large."""
    begin = pk.DICT + pk.MARK + _NAMES["action"] + _NAMES[action]
    begin += _NAMES["stream"] + pk.encode_int(0) + _NAMES["size"] + pk.encode_int(size)
    return begin + (_NAMES["category"] + _NAMES[category.value] if category is not None else b"")


def _plain(action: str, category: Category | None, address: int, size: int) -> bytes:
    """An event without frames, up to its time."""
    frames = _FRAMES + pk.LIST
    return _event(action, category, size) + frames + _ADDRESS + pk.encode_int(address)


def _segment_alloc(s: Segment) -> bytes:
    return _plain("segment_alloc", None, s.address, s.nbytes)


def _frame(name: str, filename: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}
