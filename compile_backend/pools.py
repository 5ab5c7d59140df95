"""One entry point for the memory of replays: every pool of the process, explained."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from memprof.cudagraph_trees.explain.attribution import PoolParts, explain_pool
from memprof.cudagraph_trees.explain.history import Manager, managers
from memprof.cudagraph_trees.replay.node import path_to
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
    four parts, is what it has from the system, to the byte. Its ``nodes`` are named by function and
    number of the recording or warm-up: ``0/0 forward #2``.

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
        found[name] = _with_functions(explain_pool(manager), manager)
    return Pools({name: parts for name, parts in found.items() if parts.reserved})


def _with_functions(parts: PoolParts, manager: Manager) -> PoolParts:
    """Replace numbers of recordings and warm-ups by names with their functions."""
    last = manager.path.node
    recorded = [*manager.nodes(), *(path_to(last) if last is not None else ())]
    labels = {n.number: n.wrapped_function.label for n in recorded}
    nodes: dict[int | str, int] = {
        f"{labels[int(n)]} #{n}": nbytes for n, nbytes in parts.nodes.items()
    }
    return replace(parts, nodes=nodes)


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
