"""The peak that would be left if some activations were computed again instead of kept.

Note [What recomputing saves]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Without activations that are recomputed another instant may be the fullest. So the whole timeline is
gone through, and such a value is live

* in its forward, until the last line of the generated code that reads it;
* in its backward, from the first line that reads it, or another one that is computed from it again.

Lines that read a value are those of ``GraphRecord.statements``, by its name and those of its views;
where there are none, it is live at the line that makes it alone. What it is computed from and
nobody keeps so far is live from where it was freed until the value is there again.

Note [What it takes to recompute]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A value that is not kept is computed from what its kernel has read. What the backward has in any
case costs nothing: inputs of the graph, and what is kept besides. The rest is kept in its place, or
computed again too, whichever is less, as a partitioner by minimum cut decides. Computed again is
what an elementwise kernel has made; matrix products, reductions and what torch's own operators
return are kept, unless the remedy has them run again (an attention's scores). Of several values
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

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..live import LiveItem
from ..model import GraphKind, GraphRecord, NodeProvenance, Statement, StatementKind
from ..timeline import Timeline
from .cheapness import cheapness

Made = tuple[int, str | None, int]
"""A storage by who made it: graph, name in its code and line."""


def made(item: LiveItem) -> Made:
    """Who made a live storage."""
    return item.graph, item.owner, item.line


class RecomputedPeak:
    """Peaks of one timeline without some of its activations."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        calls = reversed(range(len(timeline)))
        self._calls = list({timeline.kind(call): call for call in calls}.values())
        """One of each kind."""
        self._uses = {g.id: _uses(g) for g in timeline.profile.graphs}

    def without(self, recomputed: Collection[Made], takes: Callable[[NodeProvenance], bool]) -> int:
        """The most bytes that are live at any instant, if these activations are computed again.
        ``takes``: whether a node, cheap or not, is computed again wherever it is needed for that.
        """
        needs: dict[Made, Need] = {}
        for unit in self._timeline.units:
            graph = unit.graph
            of = {m[1]: m for m in recomputed if m[0] == graph.id and m[1] is not None}
            if not of or graph.kind is not GraphKind.FORWARD:
                continue
            kept = {s.owner for s in unit.saved.values() if s.graph == graph.id and s.owner}
            storages = unit.program.storages
            sizes = {e.owner: storages[e.storage].nbytes for e in unit.program.events if e.owner}
            found = Needs(graph, sizes, kept, takes).of(of)
            needs.update((of[name], need) for name, need in found.items())
        return max((max(self._bytes(call, recomputed, needs)) for call in self._calls), default=0)

    def _bytes(
        self, call: int, recomputed: Collection[Made], needs: Mapping[Made, Need]
    ) -> Iterator[int]:
        """Live bytes at each instant of a call."""
        at_entry = self._timeline.live_at(call, 0)
        gone = {
            made(i): i.nbytes - i.count * sum(needs.get(made(i), _NOTHING).kept.values())
            for i in at_entry.items
            if made(i) in recomputed
        }
        total = at_entry.nbytes
        yield total - sum(gone.values())
        changes = self._timeline.changes(call)
        if not changes:
            return
        columns = self._timeline.profile.calls
        graph = self._timeline.profile.graph(columns.graph[call])
        program = graph.programs[columns.program[call]]
        uses = self._uses[graph.id]
        # From which lines on a value is there again.
        comes: dict[Made, set[int]] = {}
        if graph.kind is GraphKind.BACKWARD:
            for event, (before, _) in zip(program.events, changes, strict=True):
                if before is not None and made(before) in gone:
                    name = program.storages[event.storage].name
                    comes.setdefault(made(before), {uses.get(name, (event.line, 0))[0]})
            by_name = {(m[0], m[1]): m for m in comes}
            for m, lines in comes.items():
                for name in needs.get(m, _NOTHING).before:
                    if (m[0], name) in by_name:
                        comes[by_name[m[0], name]] |= lines
        functions = {s.line: s.function for s in graph.statements}
        more = {
            name: size
            for m, need in needs.items()
            if m[0] == graph.id
            for name, size in need.kept.items()
        }
        # Behind which lines, each with its function, so many bytes of a value are gone.
        due: dict[Made, tuple[list[tuple[int, str | None]], int]] = {}
        for m, starts in comes.items():
            due[m] = [(n - 1, functions.get(n)) for n in starts], 0
        for event, (before, after) in zip(program.events, changes, strict=True):
            # Lines are in the order of time within one function of the generated code alone.
            at = functions.get(event.line)
            for m, (places, nbytes) in list(due.items()):
                if any(n < event.line and function == at for n, function in places):
                    gone[m] = nbytes
                    del due[m]
            if before is not None:
                m = made(before)
                if m[0] == graph.id and (after is None or after.owner != before.owner):
                    total += more.pop(before.owner or "", 0)
                total -= before.nbytes
                gone.pop(m, None)
                due.pop(m, None)
            if after is not None:
                total += after.nbytes
                if made(after) in recomputed:
                    last = max(uses.get(after.owner or "", (0, 0))[1], after.line)
                    due[made(after)] = [(last, functions.get(last))], after.nbytes
            yield total - sum(gone.values())


def _uses(graph: GraphRecord) -> dict[str, tuple[int, int]]:
    """The first and the last line of generated code that reads a name or a view of it."""
    found: dict[str, tuple[int, int]] = {}
    roots: dict[str, str] = {}
    for statement in graph.statements:
        read = {roots.get(name, name) for name in statement.reads}
        if statement.kind is StatementKind.VIEW:
            roots.update((target, root) for root in read for target in statement.targets)
        elif statement.kind in (StatementKind.KERNEL, StatementKind.FALLBACK):
            for name in read:
                first, _ = found.get(name, (statement.line, 0))
                found[name] = first, statement.line
    return found


_DEEPEST = 100
"""Kernels one after the other that are looked back at."""


class _Made(NamedTuple):
    """What one statement has made of what."""

    reads: tuple[str, ...]  # in the place of what is updated in place the name before
    writes: tuple[str, ...]
    cheap: bool  # a kernel that Inductor has generated


class _From(NamedTuple):
    """What a value is computed from."""

    kept: frozenset[str] = frozenset()  # names that are kept for it
    again: frozenset[str] = frozenset()  # names that are computed again as well


@dataclass(frozen=True, slots=True)
class Need:
    """What a value takes that is computed again.

    Attributes:
        kept: bytes by name that have to be kept besides. What several need stands with the first.
        before: other values of those to compute again that it is computed from, one from the other.
    """

    kept: dict[str, int]
    before: list[str]


_NOTHING = Need({}, [])


class Needs:
    """What it takes to compute values of a forward again, of which ``kept`` are what the backward
    has in any case and ``sizes`` the bytes of what a program allocates, by name. ``takes``: whether
    a node, cheap or not, is computed again wherever it is needed."""

    def __init__(
        self,
        graph: GraphRecord,
        sizes: Mapping[str, int],
        kept: Collection[str],
        takes: Callable[[NodeProvenance], bool] = lambda node: False,
    ) -> None:
        self._sizes = sizes
        self._kept = kept
        self._cheap: set[str] = set()
        self._always: set[str] = set()
        """Buffers that are never kept: all of them that is not cheap is ``takes``'s."""
        order = {node: i for i, node in enumerate(graph.nodes)}
        self._order: dict[str, int] = {}
        for name, buffer in graph.buffers.items():
            nodes = [graph.nodes[n] for n in buffer.nodes if n in graph.nodes]
            self._order[name] = max((order[n] for n in buffer.nodes if n in order), default=-1)
            # Of a normalisation what follows its reduction is cheap, which is a buffer of its own.
            if nodes and all(cheapness(n.target) == 1.0 for n in nodes):
                self._cheap.add(name)
            heavy = [n for n in nodes if cheapness(n.original_aten or n.target) < 1.0]
            if heavy and all(map(takes, heavy)):
                self._always.add(name)
        self._made: dict[str, _Made] = {}
        """Who made each name."""
        self._roots: dict[str, str] = {}
        """What views are of."""
        self._before: dict[str, str] = {}
        """Whose memory a name has taken over."""
        self._open: set[str] = set()
        """Names that have memory, and no value yet."""
        self._read(graph)

    def of(self, recomputed: Collection[str]) -> dict[str, Need]:
        """What each of these values takes, which are kept as it is."""
        wanted: dict[str, list[str]] = {}
        for name in recomputed:
            wanted.setdefault(self._root(name), []).append(name)
        free = {self._root(n) for n in self._kept} - wanted.keys()
        known: dict[str, _From] = {}

        def look_back(name: str, depth: int) -> _From:
            """What ``name`` is computed from again; each is looked at once."""
            made = self._made.get(name)
            if made is None or name in known:
                return known.get(name, _From())
            known[name] = _From()  # For code that contradicts itself.
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
                always = read in self._always
                is_cheap = self._made[read].cheap and read in self._cheap
                if depth < _DEEPEST and (always or is_cheap):
                    parts = look_back(read, depth + 1)
                    if always or sum(self._sizes.get(n, 0) for n in parts.kept) < of:
                        kept |= parts.kept
                        again |= parts.again
                        continue
                wholes.append(read)
            if wholes and made.cheap and name in self._cheap:
                wholes = [max(wholes, key=lambda n: self._sizes.get(n, 0))]
            known[name] = _From(kept | frozenset(wholes), again)
            return known[name]

        for root in wanted:
            look_back(root, 0)
        taken: set[str] = set()
        found = {}
        for root, names in wanted.items():
            more = known.get(root, _From()).kept - taken
            taken |= more
            before = [n for r in _all_before(root, known) for n in wanted[r]]
            for name in names:
                found[name] = Need({n: self._sizes.get(n, 0) for n in sorted(more)}, before)
                more = frozenset()
        return found

    def _read(self, graph: GraphRecord) -> None:
        inputs = {v.name for v in graph.inputs}
        deleted = {
            (s.line, name)
            for s in graph.statements
            if s.kind is StatementKind.DELETE
            for name in s.targets
        }
        for s in graph.statements:
            if s.kind is StatementKind.ALLOC:
                self._open.update(s.targets)
            elif s.kind in (StatementKind.REUSE, StatementKind.VIEW):
                (target, *_), (source, *_) = s.targets or ("",), s.reads or ("",)
                if not target or not source:
                    continue
                if s.kind is StatementKind.REUSE or (s.line, source) in deleted:
                    # The name has the memory; whether it has the value too, its first use tells.
                    self._open.add(target)
                    self._before[target] = source
                else:
                    self._roots[target] = source
            elif s.kind is StatementKind.KERNEL and s.reads:
                self._read_kernel(s)
            elif s.kind in (StatementKind.FALLBACK, StatementKind.GETITEM, StatementKind.CALL):
                reads = tuple(map(self._value, s.reads))
                for target in s.targets:
                    # A call of a partition returns what its own lines have made, or were given.
                    if target not in inputs:
                        self._made.setdefault(target, _Made(reads, s.targets, cheap=False))

    def _read_kernel(self, s: Statement) -> None:
        defined = [i for i, n in enumerate(s.reads) if n not in self._open]
        first, last = (defined[0], defined[-1]) if defined else (len(s.reads), -1)
        generated = not s.text.startswith(("extern_kernels.", "torch."))
        reads, writes = [], []
        for i, name in enumerate(s.reads):
            if name in self._open and generated and i < first:
                writes.append(name)
                if name in self._before:
                    reads.append(self._value(self._before[name]))
            elif name in self._open and i > last:
                writes.append(name)
            else:
                reads.append(self._value(name))
        self._open.difference_update(writes)
        for name in writes:
            self._made[name] = _Made(tuple(dict.fromkeys(reads)), tuple(writes), generated)

    def _value(self, name: str) -> str:
        """The name under which a value was made."""
        for _ in range(len(self._roots) + len(self._before) + 1):
            if name in self._roots:
                name = self._roots[name]
            elif name in self._before and name in self._open:
                name = self._before[name]
            else:
                break
        return name

    def _root(self, name: str) -> str:
        """What a name is a view of, itself if it is none."""
        for _ in range(len(self._roots) + 1):
            if name not in self._roots:
                break
            name = self._roots[name]
        return name


def _all_before(name: str, known: Mapping[str, _From]) -> set[str]:
    """Those to compute again that ``name`` is computed from, and those that these are, ..."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        more = known.get(waiting.pop(), _From()).again - found
        found |= more
        waiting.extend(more)
    return found - {name}
