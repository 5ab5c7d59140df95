"""The peak that would be left if some activations were computed again instead of kept.

Note [What recomputing saves]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Without activations that are recomputed another instant may be the fullest, and while the backward
uses one again, it is there again. So the whole timeline is gone through, and such a value is live

* in its forward, until the last line of the generated code that reads it;
* in its backward, from the first line that reads it, or another one that is computed from it again.

Lines that read a value are those of ``GraphRecord.statements``, by its name and those of its views;
where there are none, it is live at the line that makes it alone. What it is computed from and
nobody keeps so far is live from where it was freed until the value is there again.

Note [What it takes to recompute]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A value that is not kept is computed from what its kernel has read. Of that costs nothing what the
backward has in any case: inputs of the graph, and what is kept besides. The rest is kept in its
place, or computed again too, whichever is less, as a partitioner by minimum cut decides. Computed
again is what an elementwise kernel has made; matrix products, reductions and what torch's own
operators return are kept, unless the remedy has them run again: of a layer whose product is kept by
chance, and so of all (an attention's scores). Of several values that one elementwise kernel reads
no more is kept than the largest takes: that much what it computes of them takes, too.

Read from ``GraphRecord.statements``: a kernel's arguments are what it updates in place, then what
it reads, then what it writes, and a name is written by the first kernel that has it after it was
allocated. A kernel that writes a second value, which is kept and as large as something that it has
read, has that one in its place if it comes first (a sum, where the next normalisation of it is
computed again; not the other way round).

Values that are computed one from the other, as what runs past the blocks of a network is, are there
again when the last of them is, and that the backward uses first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..live import LiveItem
from ..model import GraphKind, GraphRecord, NodeProvenance, Statement, StatementKind
from ..timeline import Timeline

Made = tuple[int, str | None, int]
"""A storage by who made it: graph, name in its code and line."""


def made(item: LiveItem) -> Made:
    """Who made a live storage."""
    return item.graph, item.owner, item.line


@dataclass(slots=True)
class RecomputedPeak:
    """Peaks of one timeline without some of its activations; ``cheap`` says whether an operator is
    cheap to run again, by its name."""

    timeline: Timeline
    cheap: Callable[[str | None], bool]
    _calls: list[int] = field(default_factory=list)
    _uses: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)

    def without(
        self,
        recomputed: Collection[Made],
        takes: Callable[[NodeProvenance], bool] = lambda node: False,
    ) -> int:
        """The most bytes that are live at any instant, if these activations are computed again.
        ``takes``: whether a node, cheap or not, is computed again wherever it is needed for that.
        """
        if not self._calls:  # One of each kind.
            calls = reversed(range(len(self.timeline)))
            self._calls = list({self.timeline.kind(call): call for call in calls}.values())
        needs = self._needs(recomputed, takes)
        return max((max(self._bytes(call, recomputed, needs)) for call in self._calls), default=0)

    def _needs(
        self, recomputed: Collection[Made], takes: Callable[[NodeProvenance], bool]
    ) -> dict[Made, Need]:
        """What each of these takes."""
        found: dict[Made, Need] = {}
        for unit in self.timeline.units:
            of = {m[1]: m for m in recomputed if m[0] == unit.graph.id and m[1] is not None}
            if not of or unit.graph.kind is not GraphKind.FORWARD:
                continue
            kept = {s.owner for s in unit.saved.values() if s.graph == unit.graph.id and s.owner}
            again = self._always_again(unit.graph, takes)
            events, storages = unit.program.events, unit.program.storages
            sizes = {e.owner: storages[e.storage].nbytes for e in events if e.owner}
            needs = Needs(unit.graph, sizes, kept, self._is_cheap(unit.graph), again)
            found.update((of[name], need) for name, need in needs.of(of).items())
        return found

    def _is_cheap(self, graph: GraphRecord) -> Callable[[str], bool]:
        def cheap(name: str) -> bool:
            buffer = graph.buffers.get(name)
            nodes = [graph.nodes[n] for n in (buffer.nodes if buffer else ()) if n in graph.nodes]
            # Of a normalisation what follows its reduction is cheap, which is a buffer of its own.
            return bool(nodes) and all(self.cheap(n.target) for n in nodes)

        return cheap

    def _always_again(
        self, graph: GraphRecord, takes: Callable[[NodeProvenance], bool]
    ) -> set[str]:
        """Buffers of which all is ``takes``'s that is not cheap."""
        found = set()
        for name, buffer in graph.buffers.items():
            nodes = (graph.nodes[n] for n in buffer.nodes if n in graph.nodes)
            heavy = [n for n in nodes if not self.cheap(n.original_aten or n.target)]
            if heavy and all(map(takes, heavy)):
                found.add(name)
        return found

    def _bytes(
        self, call: int, recomputed: Collection[Made], needs: Mapping[Made, Need]
    ) -> Iterator[int]:
        """Live bytes at each instant of a call."""
        at_entry = self.timeline.live_at(call, 0)
        gone = {
            made(i): i.nbytes - i.count * _kept(needs, made(i))
            for i in at_entry.items
            if made(i) in recomputed
        }
        total = at_entry.nbytes
        yield total - sum(gone.values())
        changes = self.timeline.changes(call)
        if not changes:
            return
        columns = self.timeline.profile.calls
        graph = self.timeline.profile.graph(columns.graph[call])
        program = graph.programs[columns.program[call]]
        uses = self._uses_in(graph)
        comes: dict[Made, set[int]] = {}
        if graph.kind is GraphKind.BACKWARD:
            for event, (before, _) in zip(program.events, changes, strict=True):
                if before is not None and made(before) in gone:
                    name = program.storages[event.storage].name
                    comes.setdefault(made(before), {uses.get(name, (event.line, 0))[0]})
            by_name = {(m[0], m[1]): m for m in comes}
            for m, lines in comes.items():
                for name in needs[m].before if m in needs else ():
                    if (m[0], name) in by_name:
                        comes[by_name[m[0], name]] |= lines
        functions = {s.line: s.function for s in graph.statements}
        more = {n: size for m, need in needs.items() if m[0] == graph.id
                for n, size in need.kept.items()}  # fmt: skip
        goes: dict[Made, tuple[int, int]] = {}
        for event, (before, after) in zip(program.events, changes, strict=True):
            # Lines are in the order of time within one function of the generated code alone.
            at = functions.get(event.line)
            for key, lines in list(comes.items()):
                if any(n <= event.line and functions.get(n) == at for n in lines):
                    gone.pop(key, None)
                    del comes[key]
            for key in [
                k for k, (n, _) in goes.items() if n < event.line and functions.get(n) == at
            ]:
                gone[key] = goes.pop(key)[1]
            if before is not None:
                if made(before)[0] == graph.id and (after is None or after.owner != before.owner):
                    total += more.pop(before.owner or "", 0)
                total -= before.nbytes
                for known in (gone, comes, goes):
                    known.pop(made(before), None)
            if after is not None:
                total += after.nbytes
                if made(after) in recomputed:
                    last = uses.get(after.owner or "", (0, 0))[1]
                    goes[made(after)] = max(last, after.line), after.nbytes
            yield total - sum(gone.values())

    def _uses_in(self, graph: GraphRecord) -> dict[str, tuple[int, int]]:
        """The first and the last line of generated code that reads a name or a view of it."""
        found = self._uses.get(graph.id)
        if found is None:
            found = self._uses[graph.id] = {}
            roots: dict[str, str] = {}
            for statement in graph.statements:
                read = {roots.get(name, name) for name in statement.reads}
                if statement.kind is StatementKind.VIEW:
                    roots.update((target, root) for root in read for target in statement.targets)
                elif statement.kind in _USES:
                    for name in read:
                        first, _ = found.get(name, (statement.line, 0))
                        found[name] = first, statement.line
        return found


_USES = (StatementKind.KERNEL, StatementKind.FALLBACK)


def _kept(needs: Mapping[Made, Need], of: Made) -> int:
    """Bytes that are kept besides for one of them."""
    return sum(needs[of].kept.values()) if of in needs else 0


_DEEPEST = 100
"""Kernels one after the other that are looked back at."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What one statement has made of what: names, and in the place of what is updated in place the
    name before; and whether it is a kernel that Inductor has generated."""

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
    """What it takes to compute values of one graph again.

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
        """What each of these values takes, which are kept as it is."""
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
        # What the graph makes before it cannot be made of it.
        last = self._order.get(name, -1)
        earlier = [n for n in made.writes if n in free and self._order.get(n, last) < last]
        beside = [self._sizes.get(n, 0) for n in earlier]
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
