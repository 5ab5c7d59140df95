"""What has to be kept so that other values can be computed again in the backward.

Note [What it takes to recompute]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A value that is not kept is computed from what its kernel has read. Of that costs nothing what the
backward has in any case: inputs of the graph, and what is kept besides. The rest is kept in its
place, or computed again too, whichever is less: that is what a partitioner by minimum cut decides,
looked at buffer by buffer. Computed again is what an elementwise kernel has made; matrix products,
reductions and what torch's own operators return are kept. Of several values that one elementwise
kernel reads no more is kept than the largest takes: that much what it computes of them takes, too.

Read from ``GraphRecord.statements``: a kernel's arguments are what it updates in place, then what
it reads, then what it writes, and a name is written by the first kernel that has it after it was
allocated. A kernel that writes a second value, which is kept and as large as something that it has
read, has that one in its place (a sum that the next normalisation reads, say).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from ..model import GraphRecord, Statement, StatementKind

_DEEPEST = 100
"""Kernels one after the other that are looked back at."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What one statement has made of what.

    Attributes:
        reads: names, and in the place of what is updated in place the name before.
        writes: names.
        cheap: whether it is a kernel that Inductor has generated.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    cheap: bool


class Needs:
    """Of one graph.

    Args:
        graph: a forward.
        sizes: bytes of what a program of it allocates, by name.
        kept: names that the backward has in any case.
        cheap: whether a buffer's operator is cheap to run again, by its name.
    """

    def __init__(
        self,
        graph: GraphRecord,
        sizes: Mapping[str, int],
        kept: Collection[str],
        cheap: Callable[[str], bool],
    ) -> None:
        self._sizes = sizes
        self._kept = frozenset(kept)
        self._cheap = cheap
        self._made, self._roots = _read(graph)

    def of(self, recomputed: Collection[str]) -> dict[str, dict[str, int]]:
        """Bytes by name that have to be kept besides, for each value that is computed again.

        What several of them need stands with the first.

        Args:
            recomputed: names of values that are kept as it is.
        """
        free = {self._root(n) for n in self._kept} - {self._root(n) for n in recomputed}
        wanted = {self._root(n) for n in recomputed}
        taken: set[str] = set()
        found = {}
        known: dict[str, frozenset[str]] = {}
        for name in recomputed:
            more = self._from(self._root(name), free, wanted, known, 0) - taken
            taken |= more
            found[name] = {n: self._sizes.get(n, 0) for n in sorted(more)}
        return found

    def _root(self, name: str) -> str:
        return _value(name, self._roots, {}, ())

    def _from(
        self,
        name: str,
        free: set[str],
        wanted: set[str],
        known: dict[str, frozenset[str]],
        depth: int,
    ) -> frozenset[str]:
        """Names to keep for computing ``name`` again; each is looked at once."""
        made = self._made.get(name)
        if made is None or name in known:
            return known.get(name, frozenset())
        known[name] = frozenset()  # For code that contradicts itself.
        beside = [self._sizes.get(n, 0) for n in made.writes if n != name and n in free]
        found: frozenset[str] = frozenset()
        wholes: list[str] = []
        for read in made.reads:
            of = self._sizes.get(read, 0)
            there = read not in self._made or read in free or read in wanted or read == name
            if there or any(size >= of > 0 for size in beside):
                continue
            if depth < _DEEPEST and self._made[read].cheap and self._cheap(read):
                parts = self._from(read, free, wanted, known, depth + 1)
                if sum(self._sizes.get(n, 0) for n in parts) < of:
                    found |= parts
                    continue
            wholes.append(read)
        if wholes and made.cheap and self._cheap(name):
            wholes = [max(wholes, key=lambda n: self._sizes.get(n, 0))]
        known[name] = found | frozenset(wholes)
        return known[name]


def _read(graph: GraphRecord) -> tuple[dict[str, _Made], dict[str, str]]:
    """Who made each name, and the names that views are of."""
    made: dict[str, _Made] = {}
    roots: dict[str, str] = {}
    before: dict[str, str] = {}
    open_names: set[str] = set()
    lines = {(s.line, n) for s in graph.statements if s.kind is StatementKind.DELETE
             for n in s.targets}  # fmt: skip
    for s in graph.statements:
        if s.kind is StatementKind.ALLOC:
            open_names.update(s.targets)
        elif s.kind in (StatementKind.REUSE, StatementKind.VIEW):
            (target, *_), (source, *_) = s.targets or ("",), s.reads or ("",)
            if not target or not source:
                continue
            if s.kind is StatementKind.REUSE or (s.line, source) in lines:
                # The name has the memory; whether it has the value too, its first use tells.
                open_names.add(target)
                before[target] = source
            else:
                roots[target] = source
        elif s.kind is StatementKind.KERNEL and s.reads:
            _kernel(s, made, roots, before, open_names)
        elif s.kind in (StatementKind.FALLBACK, StatementKind.GETITEM, StatementKind.CALL):
            reads = tuple(_value(n, roots, before, open_names) for n in s.reads)
            for target in s.targets:
                # A call of a partition returns what its own lines have made.
                made.setdefault(target, _Made(reads, s.targets, cheap=False))
    return made, roots


def _kernel(
    s: Statement,
    made: dict[str, _Made],
    roots: dict[str, str],
    before: dict[str, str],
    open_names: set[str],
) -> None:
    defined = [i for i, n in enumerate(s.reads) if n not in open_names]
    first, last = (defined[0], defined[-1]) if defined else (len(s.reads), -1)
    generated = not s.text.startswith(("extern_kernels.", "torch."))
    reads, writes = [], []
    for i, name in enumerate(s.reads):
        if name not in open_names:
            reads.append(_value(name, roots, before, open_names))
        elif generated and i < first:
            writes.append(name)
            if name in before:
                reads.append(_value(before[name], roots, before, open_names))
        elif i > last:
            writes.append(name)
        else:
            reads.append(_value(name, roots, before, open_names))
    open_names.difference_update(writes)
    for name in writes:
        made[name] = _Made(tuple(dict.fromkeys(reads)), tuple(writes), generated)


def _value(
    name: str, roots: Mapping[str, str], before: Mapping[str, str], open_names: Iterable[str]
) -> str:
    """The name under which a value was made."""
    for _ in range(len(roots) + len(before) + 1):
        if name in roots:
            name = roots[name]
        elif name in before and name in open_names:
            name = before[name]
        else:
            break
    return name
