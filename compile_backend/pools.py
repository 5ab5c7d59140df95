"""One entry point for the memory of replays: every pool of the process, explained."""

from __future__ import annotations

from collections import Counter

from memprof.cudagraph_trees.explain.attribution import PoolParts, explain_pool
from memprof.cudagraph_trees.explain.history import managers
from memprof.cudagraph_trees.replay.errors import output_origin
from memprof.cudagraph_trees.replay.node import Node
from memprof.profiler.views.report.columns import Column, Unit
from memprof.profiler.views.report.format import format_bytes
from memprof.profiler.views.report.section import Section, Table
from memprof.profiler.views.report.text import render


class Pools(dict[str, PoolParts]):
    """Pools by name, see ``explain_pools``; ``print`` shows them as tables."""

    def __str__(self) -> str:
        return render(_section(name, parts) for name, parts in self.items())


def explain_pools() -> Pools:
    """Explains every byte that pools of CUDA graphs have from the system.

    Call it between two calls of compiled code. Of each pool, ``parts.reserved``, the sum of the
    four parts, is what it has from the system, to the byte. Its ``nodes`` are named by function,
    number of the recording or warm-up, and what is known of the output: ``0/0 forward #2: FX node
    addmm, train.py:7, module fc``.

    Returns:
        by the device of each manager of graph trees that lives, e.g. ``cuda:0``, with a number
        behind it from the second thread family on: ``cuda:0 #2``. What holds nothing is left out.
    """
    found = Pools()
    numbers: Counter[str] = Counter()
    for manager in managers():
        device = manager.ledger.device
        numbers[device] += 1
        name = device if numbers[device] == 1 else f"{device} #{numbers[device]}"
        found[name] = explain_pool(manager, _name)
    return Pools({name: parts for name, parts in found.items() if parts.reserved})


def _name(node: Node, output: int) -> str:
    """Function, number of the recording or warm-up, and the output with its line."""
    function = node.wrapped_function
    origin = output_origin(function, output) or f"output {output}"
    return f"{function.label} #{node.number}: {origin}"


def _section(name: str, parts: PoolParts) -> Section:
    rows = sorted(((n, str(what)) for what, n in parts.nodes.items()), reverse=True)
    columns = (Column("bytes", Unit.BYTES, adds=True), Column("what", Unit.CODE))
    others = {
        "rounding": parts.rounding,
        "unattributed": parts.unattributed,
        "free": parts.free,
        "total reserved": parts.reserved,
    }
    foot = tuple((n, what) for what, n in others.items())
    title = f"{name}: {format_bytes(parts.reserved)} ({parts.reserved:,} B)"
    return Section("", title, tables=(Table(columns, rows, foot, rest="smaller"),))
