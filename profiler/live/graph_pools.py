"""Memory that captures leave in their pool, and the names of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memprof.profiler.model import Fate, GraphCapture, GraphPool, Held


def leaks(row: Held, graphs: Sequence[int]) -> bool:
    """Whether what these captures left grows from one to the next, and nobody in Python holds
    it."""
    return row.fate is Fate.UNEXPLAINED and len(graphs) > 1


def left_behind(pool: GraphPool) -> list[tuple[Held, tuple[int, ...]]]:
    """Memory that stays after the captures of a pool, a row a place of the program with the bytes
    and blocks of all captures, and their numbers, ascending: leaks first, then most bytes first."""
    found: dict[Held, list[tuple[Held, int]]] = {}
    for graph in pool.graphs:
        for row in graph.left:
            found.setdefault(replace(row, nbytes=0, count=0), []).append((row, graph.number))
    out = []
    for alike, rows in found.items():
        nbytes, count = sum(r.nbytes for r, _ in rows), sum(r.count for r, _ in rows)
        row = replace(alike, nbytes=nbytes, count=count)
        out.append((row, tuple(number for _, number in rows)))
    return sorted(out, key=lambda x: (not leaks(*x), -x[0].nbytes))


def label(graph: GraphCapture) -> str:
    """A graph's number, and its name or else its maker, e.g. ``#3 decode``."""
    return f"#{graph.number} {graph.name or graph.maker}".rstrip()
