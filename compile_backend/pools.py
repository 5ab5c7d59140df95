"""One entry point for the memory of replays: every pool and arena of the process, explained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from memprof.cudagraph_trees.account.attribution import PoolParts, explain_blocks, explain_pool
from memprof.cudagraph_trees.account.history import managers
from memprof.cudagraph_trees.manager import CUDAGraphTreeManager
from memprof.cudagraph_trees.node import path_to
from memprof.profiler.report.columns import Column, Unit
from memprof.profiler.report.format import format_bytes, shorten_path
from memprof.profiler.report.section import Section, Table
from memprof.profiler.report.text import render

from .cpu_arena.tensors import POOL
from .runtime import RUNTIME

ARENA = "cpu arena"


class Pools(dict[str, PoolParts]):
    """Pools and arenas by name, see ``explain_pools``; ``print`` shows them as tables."""

    def __str__(self) -> str:
        return render(_section(name, parts) for name, parts in self.items())


def explain_pools() -> Pools:
    """What every byte is that pools of CUDA graphs and the CPU arena have from the system.

    Call it between two calls of compiled code. Of each pool, ``parts.reserved``, the sum of the
    five parts, is what it has from the system, to the byte. Its ``nodes`` are named: in the arena
    ``0/0 forward: addmm_3, model.py:12`` by graph, FX node and line (``scratch`` for temporaries of
    calls), on a device ``0/0 forward #2`` by function and number of the recording or warm-up.

    Returns:
        by name: ``cpu arena``; and the device of each manager of graph trees that lives, e.g.
        ``cuda:0``, with a number behind it from the second thread family on: ``cuda:0 #2``.
        What holds nothing is left out.
    """
    arena = explain_blocks(POOL.segments(), POOL.leased())
    found = Pools({ARENA: _with_nodes(arena)})
    numbers: Counter[str] = Counter()
    for manager in managers():
        device = manager.ledger.device
        numbers[device] += 1
        name = device if numbers[device] == 1 else f"{device} #{numbers[device]}"
        found[name] = _with_functions(explain_pool(manager), manager)
    return Pools({name: parts for name, parts in found.items() if parts.reserved})


def _with_nodes(parts: PoolParts) -> PoolParts:
    """Labels ``<graph>: <buffer>`` of the arena with FX node and line for the buffer."""
    known = {live.record.label: live.record for live in RUNTIME.graphs()}

    def name(label: int | str) -> str:
        graph, _, buffer = str(label).partition(": ")
        record = known.get(graph)
        made = record.buffers.get(buffer) if record is not None else None
        node = made.primary or (made.nodes[-1] if made.nodes else None) if made else None
        if record is None or node is None:
            return str(label)
        frame = record.nodes[node].frame if node in record.nodes else None
        line = f", {shorten_path(frame.file)}:{frame.line}" if frame is not None else ""
        return f"{graph}: {node}{line}"

    return _renamed(parts, name)


def _with_functions(parts: PoolParts, manager: CUDAGraphTreeManager) -> PoolParts:
    """Numbers of recordings with the functions that they are of; of warm-ups too."""
    last = manager.path.node
    known = [*manager.nodes(), *(path_to(last) if last is not None else ())]
    labels = {n.number: n.wrapped_function.label for n in known}
    return _renamed(parts, lambda number: f"{labels[int(number)]} #{number}")


def _renamed(parts: PoolParts, name: Callable[[int | str], str]) -> PoolParts:
    nodes: Counter[int | str] = Counter()
    for label, nbytes in parts.nodes.items():
        nodes[name(label)] += nbytes
    return replace(parts, nodes=dict(nodes))


def _section(name: str, parts: PoolParts) -> Section:
    rows = sorted(((n, str(what)) for what, n in parts.nodes.items()), reverse=True)
    columns = (Column("bytes", Unit.BYTES, adds=True), Column("what", Unit.CODE))
    others = {
        "rounding": parts.rounding,
        "workspaces of libraries": parts.workspace,
        "unattributed": parts.unattributed,
        "free": parts.free,
        "total reserved": parts.reserved,
    }
    foot = tuple((n, what) for what, n in others.items())
    title = f"{name}: {format_bytes(parts.reserved)} ({parts.reserved:,} B)"
    return Section("", title, tables=(Table(columns, rows, foot, rest="smaller"),))
