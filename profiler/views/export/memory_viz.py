"""A snapshot as ``torch.cuda.memory._snapshot()`` gives it, with what happened inside replays.

torch's allocator records the allocations of a CUDA graph once, when it is captured: a replay is one
launch and leaves nothing in a snapshot, so memory_viz shows its memory as a block that never moves.
Here every call has the allocations and releases of its program, with frames from provenance.

The format is that of torch's ``_memory_viz.py`` and ``MemoryViz.js``: a pickled dictionary of
``segments`` and ``device_traces``. ``size`` is requested bytes, as torch records it.

Note [Addresses in the snapshot]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A profile does not know where memory was. It gets a layout that an allocator could have made of the
same requests: best fit, blocks split and merged again, segments as large as those of torch's CUDA
caching allocator, all of pool (0, 0). Its fragmentation is that of this layout, not of the run. The
first events allocate what is live when the first call begins; a segment is allocated when a block
needs it, and none is given back.

Note [Categories in MemoryViz.js]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
It colours allocations by their ``category`` where events have one. Where none of them is
``unknown`` it adds that name to a list whose name it misspells, and draws nothing (seen in the
versions of 2024 to 2026). So a trace begins with an event of action ``snapshot``, which draws
nothing, in that category.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any

from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.live_set import LiveItem
from memprof.profiler.model import Category, Profile
from memprof.profiler.model.allocator_rules import rounded
from memprof.profiler.support.writing import Output

from .made_up_addresses import MadeUpAddresses
from .walk import LiveBlock, Walk, walks

_BASE = 1 << 44
"""First made-up address of a device, times its place from 1: far below where drivers put memory on
Linux (0x7f…) and far above their low ranges."""


_GAP = 2 << 20
"""Bytes between segments that are made up, so that nobody takes two for one."""


def write_memory_viz(profile: Profile, file: Output) -> None:
    """Write a snapshot, see ``export_profile``; segments are as they are after the last call.

    All events are in memory at once.
    """
    found = walks(profile)
    index = device_index(list(found))
    labels = {g.id: g.label for g in profile.graphs}
    traces = {index[d]: _DeviceTrace(walk, labels, index[d]) for d, walk in found.items()}
    places = range(max(traces, default=-1) + 1)
    snapshot = {
        "device_traces": [list(traces[i].events()) if i in traces else [] for i in places],
        "segments": [segment for i in sorted(traces) for segment in traces[i].segments()],
        "allocator_settings": {"memprof": "see docs/exports.md for what these addresses are"},
        "external_annotations": [],
    }
    # The newest protocol of which MemoryViz.js knows all that such values need.
    pickle.dump(snapshot, file, protocol=4)


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


class _DeviceTrace:
    """The events of one device, and the segments after them."""

    def __init__(self, walk: Walk, labels: dict[int, str], device: int) -> None:
        self._walk = walk
        self._labels = labels
        self._device = device
        profile = walk.timeline.profile
        self._origin_ns = profile.perf_origin_ns
        self._graphs = {g.id: g for g in profile.graphs}
        self._attribution = Attribution(profile)
        self._space = MadeUpAddresses(_BASE * (device + 1), _GAP)
        self._at: dict[int, LiveBlock] = {}
        """Blocks by address."""
        self._addresses: dict[int, list[int]] = {}
        """Addresses of the copies of each memory, by its number."""
        self._known: dict[int, dict[str, Any]] = {}
        """Fields that the events of a block share, by its number."""

    def events(self) -> Iterator[dict[str, Any]]:
        begun = False
        for moment in self._walk:
            time_us = (moment.time_ns + self._origin_ns) // 1000
            if not begun:
                begun = True
                yield _plain("snapshot", 0, 0, time_us) | {"category": Category.UNKNOWN.value}
            change = moment.change
            address = 0
            for block in change.freed:
                address = self._addresses[block.memory].pop()
                known = self._event(self._at.pop(address))
                for action in ("free_requested", "free_completed"):
                    yield {"action": action, **known, "addr": address, "time_us": time_us}
                if not change.reuse:
                    self._space.free(address)
            for block in change.allocated:
                if not change.reuse:
                    address, made = self._space.allocate(rounded(block.nbytes))
                    if made is not None:
                        yield _plain("segment_alloc", made.address, made.nbytes, time_us)
                self._addresses.setdefault(block.memory, []).append(address)
                self._at[address] = block
                known = self._event(block)
                yield {"action": "alloc", **known, "addr": address, "time_us": time_us}

    def _event(self, block: LiveBlock) -> dict[str, Any]:
        """Fields that all events of a block share: stream, size, category, graph, frames."""
        if block.number not in self._known:
            self._known[block.number] = {
                "stream": 0,
                "size": block.nbytes,
                "category": self._attribution.site_of(block.item).category.value,
                "compile_context": self._labels[block.item.graph],
                "frames": self._frames_of(block.item),
            }
        return self._known[block.number]

    def _frames_of(self, item: LiveItem) -> list[dict[str, Any]]:
        """Innermost first: the FX node or what else made it, its module, the user's stack."""
        site = self._attribution.site_of(item)
        maker, label = self._graphs[site.graph], self._labels[item.graph]
        where = f"<{maker.label.replace('/', '_')}>"
        if site.outside is not None:
            name = f"{site.outside} {site.fqn or site.node or item.storage.name}"
        elif site.node is not None:
            name = f"{site.node} {site.op or ''}".strip()
        else:
            why = site.why.get(View.NODE, "unknown")
            name = f"{item.owner or 'scratch'} (unknown: {why})"
        # The line is one of the code of the graph that has it live.
        out = [
            _frame(name, where if site.graph == item.graph else f"{where} in {label}", item.line)
        ]
        if site.module is not None:
            out.append(_frame(f"module {site.module or '(root)'}", "<module>", 0))
        node = maker.nodes.get(site.node) if site.node is not None else None
        stack = node.stack if node is not None else (site.frame,) if site.frame else ()
        return out + [_frame(f.function, f.file, f.line) for f in reversed(stack)]

    def segments(self) -> Iterator[dict[str, Any]]:
        """Segments with their blocks, as they are after the last event."""
        for s in self._space.segments:
            blocks = []
            for address, nbytes, used in s.blocks(self._space.taken):
                there = self._at[address] if used else None
                blocks.append(
                    {
                        "address": address,
                        "size": nbytes,
                        "requested_size": there.nbytes if there else 0,
                        "state": "active_allocated" if there else "inactive",
                        "frames": self._known[there.number]["frames"] if there else [],
                    }
                )
            active = sum(b["size"] for b in blocks if b["state"] != "inactive")
            yield {
                "device": self._device,
                "address": s.address,
                "total_size": s.nbytes,
                "allocated_size": active,
                "active_size": active,
                "requested_size": sum(b["requested_size"] for b in blocks),
                "stream": 0,
                "segment_type": "small" if s.small else "large",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "frames": [],
                "blocks": blocks,
            }


def _plain(action: str, address: int, size: int, time_us: int) -> dict[str, Any]:
    """An event that no code is known to have caused."""
    event = {"action": action, "stream": 0, "size": size, "frames": []}
    return event | {"addr": address, "time_us": time_us}


def _frame(name: str, filename: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}
