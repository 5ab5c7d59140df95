"""From raw reports of one call to its ``AllocationProgram``. Pure data, no torch.

Note [Joining two witnesses]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The instrumented code knows *names*: which storage each assignment produced and which storage died
where. The allocator knows *bytes*, in exact order, but neither names nor addresses. Within a
statement both are matched by size: the last allocations of n bytes are the new storages of n bytes
(they are still there when the statement ends, and scratch of their size is not), a release of n
bytes is the next storage of n bytes that died. What the allocator did and no name accounts for is
scratch memory inside a kernel: INTERNAL. Two storages of equal size in one statement may be swapped
by this; the bytes live at each instant are right all the same.

Without the allocator's events (another profiler had the thread) the names alone make
the program, and scratch memory is missing from it: ``internal_observed`` is False.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memprof.profiler.model import (
    AllocationProgram,
    Category,
    Event,
    EventKind,
    GraphValue,
    Origin,
    Role,
    Storage,
)
from memprof.profiler.model.allocator_rules import SMALL

Categorize = Callable[[Origin, tuple[int, ...], tuple[int, ...], bool], Category]
"""(origin, input indices, output indices, survives the call) → category."""

# --- the raw material: what was seen during one call, in order -----------------------------


class Bound(NamedTuple):
    """A name was given a tensor (or a tuple holding it) in this storage."""

    name: str
    storage: int
    nbytes: int
    device: str


class Delta(NamedTuple):
    """An allocator event: signed bytes."""

    nbytes: int
    device: str = "cpu"


@dataclass(slots=True)
class StatementTrace:
    """One statement that was executed.

    Attributes:
        bound: storages that it gave a name.
        dropped: names that it deleted.
        freed: numbers of storages whose last reference went away meanwhile, in order.
        deltas: events of the allocator, in order.
    """

    line: int
    bound: list[Bound] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ObservedStorage:
    """A storage that was seen, and what is known of it until now.

    Attributes:
        name: of the first graph input in it, of the constant, or that it was first given.
        identity: number of the storage.
        inputs: indices of all graph inputs in it.
        owner: the name that holds it now.
    """

    nbytes: int
    device: str
    origin: Origin
    name: str = ""
    identity: int | None = None
    inputs: tuple[int, ...] = ()
    owner: str | None = None
    freed: bool = False


@dataclass(slots=True)
class CallTrace:
    """Trace of one observed call: its storages and statements.

    Attributes:
        key: the graph's symbolic sizes.
        entry: storages live at its beginning: INPUT, or EXTERNAL for constants of the graph.
        statements: the first is what comes before the first statement.
        allocator: whether the allocator's events were recorded.
        outputs: for each graph output the storage it lies in, None for what is no tensor.
        host_ns: duration in nanoseconds.
    """

    key: tuple[int, ...]
    entry: list[ObservedStorage] = field(default_factory=list)
    statements: list[StatementTrace] = field(default_factory=lambda: [StatementTrace(0)])
    allocator: bool = False
    outputs: list[int | None] = field(default_factory=list)
    host_ns: int = 0


# --- the program --------------------------------------------------------------------------


def build_program(trace: CallTrace, categorize: Categorize) -> AllocationProgram:
    """The program that ``trace`` shows; it takes the trace's storages over."""
    builder = _Builder(trace)
    for statement in trace.statements:
        builder.replay(statement)
    return builder.finish(categorize)


class _Builder:
    def __init__(self, trace: CallTrace) -> None:
        self.trace = trace
        self.storages = list(trace.entry)
        self.events: list[tuple[EventKind, ObservedStorage, int, str | None]] = []
        self.by_storage = {b.identity: b for b in self.storages}
        # name → its storages, in order of binding
        self.names = {b.name: [b] for b in self.storages}
        self.scratch: list[ObservedStorage] = []  # INTERNAL storages that are live, oldest first
        for storage in self.storages:
            storage.owner = storage.name

    def replay(self, statement: StatementTrace) -> None:
        line = statement.line
        new: list[Bound] = []
        for bound in statement.bound:
            is_known = bound.storage in self.by_storage
            if not is_known and all(bound.storage != b.storage for b in new):
                new.append(bound)
        died = list(statement.freed)
        deltas = statement.deltas
        if not self.trace.allocator:
            deltas = [Delta(b.nbytes, b.device) for b in new]
        named: dict[int, Bound] = {}  # position in the deltas → storage
        for i in reversed(range(len(deltas))):
            fitting = (b for b in reversed(new) if _fits(b, deltas[i].nbytes, deltas[i].device))
            if (match := next(fitting, None)) is not None:
                new.remove(match)
                named[i] = match
        for i, delta in enumerate(deltas):
            if delta.nbytes < 0:
                self._release(-delta.nbytes, died, line)
            elif i in named:
                self._alloc(named[i], delta.nbytes, line)
            else:
                storage = ObservedStorage(delta.nbytes, delta.device, Origin.INTERNAL)
                self.storages.append(storage)
                self.scratch.append(storage)
                self.events.append((EventKind.ALLOC, storage, line, None))
        for bound in new:
            self._name_without_allocation(bound, line)
        for number in died:
            self._free(self.by_storage.get(number), line)
        self._follow_names(statement)

    def _alloc(self, bound: Bound, nbytes: int, line: int) -> None:
        self._new(nbytes, Origin.BUFFER, bound).owner = bound.name
        self.events.append((EventKind.ALLOC, self.storages[-1], line, bound.name))

    def _new(self, nbytes: int, origin: Origin, bound: Bound) -> ObservedStorage:
        storage = ObservedStorage(nbytes, bound.device, origin, bound.name, bound.storage)
        self.storages.append(storage)
        self.by_storage[bound.storage] = storage
        return storage

    def _name_without_allocation(self, bound: Bound, line: int) -> None:
        """A storage is named for the first time, but its statement allocated nothing for it."""
        if not bound.nbytes:
            self._alloc(bound, 0, line)
            return
        for storage in reversed(self.scratch):
            if _fits(bound, storage.nbytes, storage.device):
                # Made by an earlier statement that had no name for it.
                self.scratch.remove(storage)
                storage.origin = Origin.BUFFER
                storage.name = bound.name
                storage.identity = bound.storage
                storage.device = bound.device
                self.events.append((EventKind.REUSE, storage, line, bound.name))
                self.by_storage[bound.storage] = storage
                return
        # Memory that something else holds; it was there all along.
        self._new(bound.nbytes, Origin.EXTERNAL, bound)

    def _release(self, nbytes: int, died: list[int], line: int) -> None:
        for number in died:
            storage = self.by_storage.get(number)
            if storage is not None and storage.nbytes == nbytes:
                died.remove(number)
                self._free(storage, line)
                return
        # If there is none: memory from before the call that no argument reaches.
        self._free(next((b for b in reversed(self.scratch) if b.nbytes == nbytes), None), line)

    def _free(self, storage: ObservedStorage | None, line: int) -> None:
        if storage is None or storage.freed:
            return
        storage.freed = True
        if storage in self.scratch:
            self.scratch.remove(storage)
        self.events.append((EventKind.FREE, storage, line, None))

    def _follow_names(self, statement: StatementTrace) -> None:
        """Keep track of which name owns each storage.

        ``buf4 = buf3; del buf3`` hands a storage over; a view beside a living buffer
        (``buf31 = reinterpret_tensor(buf34, …)``) does not.
        """
        bound_here: set[str] = set()
        for bound in statement.bound:
            storage = self.by_storage.get(bound.storage)
            if storage is None:
                continue
            if bound.name not in bound_here:  # a tuple is reported once an element
                bound_here.add(bound.name)
                self.names.pop(bound.name, None)
            self.names.setdefault(bound.name, []).append(storage)
            storage.owner = storage.owner or bound.name
        for name in statement.dropped:
            for storage in self.names.pop(name, ()):
                self._pass_on(storage, name, statement.line)

    def _pass_on(self, storage: ObservedStorage, name: str, line: int) -> None:
        if storage.owner == name and not storage.freed:
            heir = next((n for n in reversed(self.names) if storage in self.names[n]), None)
            if heir is not None:
                storage.owner = heir
                self.events.append((EventKind.REUSE, storage, line, heir))

    def finish(self, categorize: Categorize) -> AllocationProgram:
        outputs: dict[ObservedStorage | None, list[int]] = defaultdict(list)
        for index, number in enumerate(self.trace.outputs):
            outputs[self.by_storage.get(number)].append(index)
        devices = {b.device for b in self.storages if b.device.startswith("cuda:")}
        ids: dict[ObservedStorage, int] = {}
        storages = []
        for storage in self.storages:
            # What a kernel allocated and did not give back, a workspace or packed weights, it
            # keeps from a first call on: later calls, for which the program stands, do not
            # allocate it.
            if storage in self.scratch:
                continue
            ids[storage] = len(ids)
            device, out = storage.device, tuple(outputs.get(storage, ()))
            if device == "cuda" and len(devices) == 1:
                (device,) = devices
            outlives = storage.origin in (Origin.INPUT, Origin.EXTERNAL) or bool(out)
            storages.append(
                Storage(
                    id=ids[storage],
                    nbytes=storage.nbytes,
                    device=device,
                    origin=storage.origin,
                    name=storage.name,
                    category=categorize(storage.origin, storage.inputs, out, not storage.freed),
                    identity=storage.identity if outlives else None,
                    inputs=storage.inputs,
                    outputs=out,
                )
            )
        return AllocationProgram(
            key=self.trace.key,
            storages=tuple(storages),
            events=tuple(Event(k, ids[b], line, o) for k, b, line, o in self.events if b in ids),
            internal_observed=self.trace.allocator,
            kept_bytes=sum(b.nbytes for b in self.scratch),
            host_ns=self.trace.host_ns,
        )


def _fits(bound: Bound, allocated: int, device: str) -> bool:
    if bound.device.partition(":")[0] != device.partition(":")[0]:
        return False
    if bound.nbytes == allocated:
        return True
    if device == "cpu":
        return False
    # The caching allocator does not cut off a rest of up to ``SMALL`` bytes.
    return 0 < bound.nbytes < allocated <= bound.nbytes + SMALL


# --- the category of each storage --------------------------------------------------------

# Where several values share a storage, the one that decides how long it lives wins.
_PRECEDENCE = (
    Category.PARAMETER,
    Category.PERSISTENT_STATE,
    Category.OPTIMIZER_STATE,
    Category.CONSTANT,
    Category.GRADIENT,
    Category.CHECKPOINTED_INPUT,
    Category.ACTIVATION,
    Category.INPUT,
    Category.OUTPUT,
    Category.AUTOGRAD_DETAIL,
    Category.TEMPORARY,
    Category.UNKNOWN,
)


# Memory that no graph makes for itself.
_OF_OTHERS = (*_PRECEDENCE[:4], Category.INPUT)


def _made_for(value: GraphValue) -> Category:
    """Category of memory that the graph made for an output. Its value may be an input's where the
    memory is not: a convolution's backward gets the weight in another memory format, a copy."""
    if value.category not in _OF_OTHERS:
        return value.category
    return Category.ACTIVATION if value.role is Role.SAVED_FOR_BACKWARD else Category.OUTPUT


def categorizer(inputs: Sequence[GraphValue], outputs: Sequence[GraphValue]) -> Categorize:
    """Rule for the categories of one graph's storages, as ``build_program`` takes it."""

    from_inputs = [v.category for v in inputs]
    from_outputs = [_made_for(v) for v in outputs]

    def strongest(categories: Sequence[Category], indices: tuple[int, ...]) -> Category:
        found = [categories[i] for i in indices if i < len(categories)]
        return min(found, key=_PRECEDENCE.index, default=Category.UNKNOWN)

    def categorize(
        origin: Origin, ins: tuple[int, ...], outs: tuple[int, ...], survives: bool
    ) -> Category:
        if origin is Origin.INPUT:
            return strongest(from_inputs, ins)
        if origin is Origin.EXTERNAL:
            return Category.CONSTANT
        if outs:
            return strongest(from_outputs, outs)
        # What outlives the call without being returned is held by a library, for a
        # purpose that nothing at hand can tell.
        return Category.UNKNOWN if survives else Category.TEMPORARY

    return categorize
