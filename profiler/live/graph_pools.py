"""Memory that captures leave in their pool, and the names of graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memprof.profiler.model import Fate, GraphCapture, GraphPool, Held


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Memory that captures left in their pool at one place of the program: bytes and blocks of all
    captures, and their numbers, ascending."""

    row: Held
    graphs: tuple[int, ...]

    @property
    def leaks(self) -> bool:
        """Whether this memory grows from capture to capture, and nobody in Python holds it."""
        return self.row.fate is Fate.UNEXPLAINED and len(self.graphs) > 1


def left_behind(pool: GraphPool) -> list[LeftBehind]:
    """Memory that stays after the captures of a pool: leaks first, then most bytes first."""
    found: dict[Held, list[tuple[Held, int]]] = {}
    for graph in pool.graphs:
        for row in graph.left:
            found.setdefault(replace(row, nbytes=0, count=0), []).append((row, graph.number))
    out = []
    for alike, rows in found.items():
        nbytes, count = sum(r.nbytes for r, _ in rows), sum(r.count for r, _ in rows)
        row = replace(alike, nbytes=nbytes, count=count)
        out.append(LeftBehind(row, tuple(number for _, number in rows)))
    return sorted(out, key=lambda x: (not x.leaks, -x.row.nbytes))


def label(graph: GraphCapture) -> str:
    """A graph's number, and its name or else its maker, e.g. ``#3 decode``."""
    return f"#{graph.number} {graph.name or graph.maker}".rstrip()
