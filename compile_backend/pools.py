"""One entry point for the memory of replays: every pool and arena of the process, explained."""

from __future__ import annotations

from memprof.cudagraph_trees.account.attribution import PoolParts, explain_pool
from memprof.cudagraph_trees.account.history import managers

from .cpu_arena.replay import explain_arena

ARENA = "cpu arena"


def explain_pools() -> dict[str, PoolParts]:
    """What every byte is that pools of CUDA graphs and the CPU arena have from the system.

    Call it between two calls of compiled code. Of each pool, ``parts.reserved``, the sum of the
    five parts, is what it has from the system, to the byte.

    Returns:
        by name: ``cpu arena``; and the device of each manager of graph trees that lives, e.g.
        ``cuda:0``, with a number behind it from the second thread family on: ``cuda:0 #2``.
        What holds nothing is left out.
    """
    found = {ARENA: explain_arena()}
    for manager in managers():
        name = device = manager.ledger.device
        number = 1
        while name in found:
            number += 1
            name = f"{device} #{number}"
        found[name] = explain_pool(manager)
    return {name: parts for name, parts in found.items() if parts.reserved}
