"""What has to be kept so that other values can be computed again in the backward.

Note [What it takes to recompute]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A value that is not kept is computed from what its kernel has read. Of that costs nothing what the
backward has in any case: inputs of the graph, and what is kept besides. The rest is kept in its
place, or computed again too, whichever is less: that is what a partitioner by minimum cut decides,
looked at buffer by buffer. Computed again is what an elementwise kernel has made; matrix products,
reductions and what torch's own operators return are kept, unless the remedy has them run again: of
a layer whose product is kept by chance, and so of all (an attention's scores). Of several values
that one elementwise kernel reads no more is kept than the largest takes: that much what it computes
of them takes, too.

Read from ``GraphRecord.statements``: a kernel's arguments are what it updates in place, then what
it reads, then what it writes, and a name is written by the first kernel that has it after it was
allocated. A kernel that writes a second value, which is kept and as large as something that it has
read, has that one in its place if it comes first (a sum, where the next normalisation of it is
computed again; not the other way round).

Values that are computed one from the other, as what runs past the blocks of a network is, are there
again when the last of them is, and that the backward uses first.
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


@dataclass(frozen=True, slots=True)
class _From:
    """What a value is computed from: names that are kept for it, and those that are computed
    again as well."""

    kept: frozenset[str]
    again: frozenset[str]


_NOTHING = _From(frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class Need:
    """What a value takes that is computed again.

    Attributes:
        kept: bytes by name that have to be kept besides. What several need stands with the first.
        before: other values of those to compute again that it is computed from, one from the other.
    """

    kept: dict[str, int]
    before: list[str]


class Needs:
    """Of one graph.

    Args:
        graph: a forward.
        sizes: bytes of what a program of it allocates, by name.
        kept: names that the backward has in any case.
        cheap: whether a buffer's operator is cheap to run again, by its name.
        again: names that are never kept: what made them is told to run again.
    """

    def __init__(
        self,
        graph: GraphRecord,
        sizes: Mapping[str, int],
        kept: Collection[str],
        cheap: Callable[[str], bool],
        again: Collection[str] = (),
    ) -> None:
        self._sizes = sizes
        self._kept = frozenset(kept)
        self._cheap = cheap
        self._again = again
        self._made, self._roots = _read(graph)
        order = {node: i for i, node in enumerate(graph.nodes)}
        self._order = {
            name: max((order[n] for n in buffer.nodes if n in order), default=-1)
            for name, buffer in graph.buffers.items()
        }

    def of(self, recomputed: Collection[str]) -> dict[str, Need]:
        """What each value takes that is computed again.

        Args:
            recomputed: names of values that are kept as it is.
        """
        wanted: dict[str, list[str]] = {}
        for name in recomputed:
            wanted.setdefault(self._root(name), []).append(name)
        free = {self._root(n) for n in self._kept} - wanted.keys()
        taken: set[str] = set()
        found = {}
        known: dict[str, _From] = {}
        for root in wanted:
            self._from(root, free, wanted, known, 0)
        for root, names in wanted.items():
            more = known[root].kept - taken if root in known else frozenset()
            taken |= more
            before = [n for r in _all_before(root, known) for n in wanted[r]]
            for name in names:
                found[name] = Need({n: self._sizes.get(n, 0) for n in sorted(more)}, before)
                more = frozenset()
        return found

    def _is_before(self, name: str, other: str) -> bool:
        """Whether the graph makes a buffer before another one: it cannot be made of that."""
        before, after = (self._order.get(n) for n in (name, other))
        return before is not None and after is not None and before < after

    def _root(self, name: str) -> str:
        return _value(name, self._roots, {}, ())

    def _from(
        self,
        name: str,
        free: set[str],
        wanted: Collection[str],
        known: dict[str, _From],
        depth: int,
    ) -> _From:
        """What ``name`` is computed from again; each is looked at once."""
        made = self._made.get(name)
        if made is None or name in known:
            return known.get(name, _NOTHING)
        known[name] = _NOTHING  # For code that contradicts itself.
        beside = [
            self._sizes.get(n, 0) for n in made.writes if n in free and self._is_before(n, name)
        ]
        kept: frozenset[str] = frozenset()
        again: frozenset[str] = frozenset()
        wholes: list[str] = []
        for read in made.reads:
            of = self._sizes.get(read, 0)
            if read not in self._made or read in free or read == name:
                continue
            if any(size >= of > 0 for size in beside):
                continue
            if read in wanted:
                again |= {read}
                continue
            always = read in self._again
            if depth < _DEEPEST and (always or (self._made[read].cheap and self._cheap(read))):
                parts = self._from(read, free, wanted, known, depth + 1)
                if always or sum(self._sizes.get(n, 0) for n in parts.kept) < of:
                    kept |= parts.kept
                    again |= parts.again
                    continue
            wholes.append(read)
        if wholes and made.cheap and self._cheap(name):
            wholes = [max(wholes, key=lambda n: self._sizes.get(n, 0))]
        known[name] = _From(kept | frozenset(wholes), again)
        return known[name]


def _all_before(name: str, known: Mapping[str, _From]) -> set[str]:
    """Those to compute again that ``name`` is computed from, and those that these are, ..."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        more = known.get(waiting.pop(), _NOTHING).again - found
        found |= more
        waiting.extend(more)
    return found - {name}


def _read(graph: GraphRecord) -> tuple[dict[str, _Made], dict[str, str]]:
    """Who made each name, and the names that views are of."""
    made: dict[str, _Made] = {}
    roots: dict[str, str] = {}
    before: dict[str, str] = {}
    open_names: set[str] = set()
    inputs = {v.name for v in graph.inputs}
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
                # A call of a partition returns what its own lines have made, or were given.
                if target not in inputs:
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
