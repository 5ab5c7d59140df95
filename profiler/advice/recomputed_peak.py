"""The peak that would be left if some activations were computed again instead of kept.

Note [What recomputing saves]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The bytes of activations at the peak are not what recomputing them saves: without them another
instant may be the fullest, and while the backward uses one again, it is there again. So the whole
timeline is gone through once more, and a value that is recomputed is live

* in its forward, until the last line of the generated code that reads it;
* in its backward, from the first line that reads it, or another one that is computed from it again.

The highest instant that is left is the new peak. Lines that read a value are those of
``GraphRecord.statements``, by its name and those of its views. Where nothing is known to read it,
it is live at the line that makes it alone.

What it is computed from and nobody keeps so far is live from where it was freed until the value is
there again: Note [What it takes to recompute] in ``recompute_needs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ..live import LiveItem
from ..model import AllocationProgram, GraphKind, GraphRecord, NodeProvenance, StatementKind
from ..timeline import Timeline
from .recompute_needs import Need, Needs

Made = tuple[int, str | None, int]
"""A storage by who made it: graph, name in its code and line."""


def made(item: LiveItem) -> Made:
    """Who made a live storage."""
    return item.graph, item.owner, item.line


@dataclass(slots=True)
class RecomputedPeak:
    """Peaks of one timeline without some of its activations.

    Args:
        timeline: of the device that matters.
        cheap: whether an operator is cheap to run again, by its name.
    """

    timeline: Timeline
    cheap: Callable[[str | None], bool]
    _calls: list[int] = field(default_factory=list)
    _uses: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)

    def without(
        self,
        recomputed: Collection[Made],
        takes: Callable[[NodeProvenance], bool] = lambda node: False,
    ) -> int:
        """The most bytes that are live at any instant, if these are computed again.

        Args:
            recomputed: activations, by who made them.
            takes: whether a node, cheap or not, is computed again wherever it is needed for that.
        """
        if not self._calls:
            first: dict[int, int] = {}
            for call in range(len(self.timeline)):
                first.setdefault(self.timeline.kind(call), call)
            self._calls = list(first.values())
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
            sizes = _sizes(unit.program)
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


def _sizes(program: AllocationProgram) -> dict[str, int]:
    """Bytes of what a program allocates, by name."""
    storages = program.storages
    return {e.owner: storages[e.storage].nbytes for e in program.events if e.owner}


def _kept(needs: Mapping[Made, Need], of: Made) -> int:
    """Bytes that are kept besides for one of them."""
    return sum(needs[of].kept.values()) if of in needs else 0
