"""From raw reports of one call to its ``AllocationProgram``. Pure data, no torch.

Note [Joining two witnesses]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The instrumented code knows *names*: which storage each assignment produced and which storage died
where. The allocator knows *bytes*, in exact order, but neither names nor addresses. Both are cut
into the same segments, one a statement executed, and within a segment they are matched by size: the
last allocations of n bytes are the new storages of n bytes, a release of n bytes is the next
storage of n bytes that died. The last, because a new storage is still there when the statement
ends: were it matched with the first, the release of scratch of its size would find nothing. What
the allocator did and no name accounts for is scratch memory inside a kernel: INTERNAL. Two blocks
of equal size in one statement may be swapped by this; the bytes live at each instant, and the
statement they belong to, are right all the same.

Without the allocator's events (another profiler had the thread) the names alone make
the program, and scratch memory is missing from it: ``internal_observed`` is False.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from memprof.profiler.model import AllocationProgram, Category, Event, EventKind, Origin, Storage

Categorize = Callable[[Origin, tuple[int, ...], tuple[int, ...], bool], Category]
"""(origin, input indices, output indices, survives the call) → category."""

# --- the raw material: what was seen during one call, in order -----------------------------


class At(NamedTuple):
    """Execution reached a statement. ``mark`` numbers these within the trace, from 1."""

    mark: int
    line: int


class Bound(NamedTuple):
    """A name was given a tensor (or a tuple holding it) in this storage."""

    name: str
    storage: int
    nbytes: int
    device: str


class Dropped(NamedTuple):
    """Names were deleted."""

    names: tuple[str, ...]


class Freed(NamedTuple):
    """The last reference to a storage went away."""

    storage: int


Report = At | Bound | Dropped | Freed


class AllocatorDelta(NamedTuple):
    """An allocator event: signed bytes, and the mark it happened under (0: before the first)."""

    mark: int
    nbytes: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class KnownStorage:
    """A storage that was live before the call.

    Attributes:
        storage: its identity.
        nbytes: its size in bytes.
        device: e.g. ``cpu``.
        name: of the first graph input in it, or of the constant.
        inputs: indices of all graph inputs in it; () for a constant of the graph.
    """

    storage: int
    nbytes: int
    device: str
    name: str
    inputs: tuple[int, ...] = ()


@dataclass(slots=True)
class Trace:
    """What was seen during one call.

    Attributes:
        key: the graph's symbolic sizes.
        entry: storages live at its beginning.
        reports: of the instrumented code and of storages dying, in order.
        allocator: the allocator's own events in order, None if they were not recorded.
        outputs: for each graph output the storage it lies in, None for what is no tensor.
        host_ns: duration in nanoseconds.
    """

    key: tuple[int, ...]
    entry: list[KnownStorage] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    allocator: list[AllocatorDelta] | None = None
    outputs: list[int | None] = field(default_factory=list)
    host_ns: int = 0


# --- the program --------------------------------------------------------------------------

# The CUDA caching allocator rounds small requests up to 512 bytes and hands out whole
# blocks of up to 1 MiB that are not worth splitting; the CPU allocator does not round.
_MAX_ROUNDING = 1 << 20


def build_program(trace: Trace, categorize: Categorize) -> AllocationProgram:
    """The program that ``trace`` shows."""
    return _Builder(trace).build(categorize)


@dataclass(slots=True)
class _Block:
    """A storage in the making."""

    nbytes: int
    device: str
    origin: Origin
    name: str
    identity: int | None = None
    inputs: tuple[int, ...] = ()
    freed: bool = False


@dataclass(slots=True)
class _Segment:
    """All that happened under one mark."""

    line: int
    reports: list[Report] = field(default_factory=list)
    deltas: list[AllocatorDelta] = field(default_factory=list)


class _Builder:
    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.blocks: list[_Block] = []
        self.events: list[Event] = []
        self.by_storage: dict[int, int] = {}
        self.names: dict[str, list[int]] = {}  # name → its blocks, in order of binding
        self.owner: dict[int, str] = {}  # block → name that owns it
        self.scratch: list[int] = []  # INTERNAL blocks that are live, oldest first

    def build(self, categorize: Categorize) -> AllocationProgram:
        for known in self.trace.entry:
            block = self._add(
                _Block(
                    known.nbytes,
                    known.device,
                    Origin.INPUT if known.inputs else Origin.EXTERNAL,
                    known.name,
                    known.storage,
                    known.inputs,
                )
            )
            self.by_storage[known.storage] = block
            self.names[known.name] = [block]
            self.owner[block] = known.name
        for segment in self._segments():
            self._replay(segment)
        return self._finish(categorize)

    def _segments(self) -> list[_Segment]:
        segments = [_Segment(0)]
        for report in self.trace.reports:
            if isinstance(report, At):
                segments.append(_Segment(report.line))
            else:
                segments[-1].reports.append(report)
        for delta in self.trace.allocator or ():
            segments[delta.mark].deltas.append(delta)
        return segments

    def _replay(self, segment: _Segment) -> None:
        new: list[Bound] = []
        died: list[int] = []
        for report in segment.reports:
            if isinstance(report, Bound) and report.storage not in self.by_storage:
                if all(report.storage != b.storage for b in new):
                    new.append(report)
            elif isinstance(report, Freed):
                died.append(report.storage)
        if self.trace.allocator is None:
            self._by_names_alone(segment)
        else:
            self._by_allocator(segment, new, died)
        self._follow_names(segment)

    def _by_names_alone(self, segment: _Segment) -> None:
        for report in segment.reports:
            if isinstance(report, Bound) and report.storage not in self.by_storage:
                self._alloc(report, report.nbytes, segment.line)
            elif isinstance(report, Freed):
                self._free(self.by_storage.get(report.storage), segment.line)

    def _by_allocator(self, segment: _Segment, new: list[Bound], died: list[int]) -> None:
        line = segment.line
        named: dict[int, Bound] = {}  # position in the segment's deltas → storage
        for i in reversed(range(len(segment.deltas))):
            delta = segment.deltas[i]
            fitting = (b for b in reversed(new) if _fits(b, delta.nbytes, delta.device))
            if (match := next(fitting, None)) is not None:
                new.remove(match)
                named[i] = match
        for i, delta in enumerate(segment.deltas):
            if delta.nbytes < 0:
                self._release(-delta.nbytes, died, line)
            elif i in named:
                self._alloc(named[i], delta.nbytes, line)
            else:
                block = self._add(_Block(delta.nbytes, delta.device, Origin.INTERNAL, ""))
                self.scratch.append(block)
                self.events.append(Event(EventKind.ALLOC, block, line))
        for bound in new:
            self._name_without_allocation(bound, line)
        for storage in died:
            self._free(self.by_storage.get(storage), line)

    def _name_without_allocation(self, bound: Bound, line: int) -> None:
        """A storage is named for the first time, but its statement allocated nothing for it."""
        if not bound.nbytes:
            self._alloc(bound, 0, line)
            return
        for block in reversed(self.scratch):
            made = self.blocks[block]
            if _fits(bound, made.nbytes, made.device):
                # Made by an earlier statement that had no name for it.
                self.scratch.remove(block)
                made.origin, made.name, made.identity = Origin.BUFFER, bound.name, bound.storage
                made.device = bound.device
                self.events.append(Event(EventKind.REUSE, block, line, bound.name))
                break
        else:
            # Memory that something else holds; it was there all along.
            made = _Block(bound.nbytes, bound.device, Origin.EXTERNAL, bound.name, bound.storage)
            block = self._add(made)
        self.by_storage[bound.storage] = block

    def _release(self, nbytes: int, died: list[int], line: int) -> None:
        for storage in died:
            block = self.by_storage.get(storage)
            if block is not None and self.blocks[block].nbytes == nbytes:
                died.remove(storage)
                self._free(block, line)
                return
        for block in reversed(self.scratch):
            if self.blocks[block].nbytes == nbytes:
                self._free(block, line)
                return
        # Neither ours nor scratch: memory from before the call that no argument reaches.

    def _alloc(self, bound: Bound, nbytes: int, line: int) -> None:
        block = self._add(_Block(nbytes, bound.device, Origin.BUFFER, bound.name, bound.storage))
        self.by_storage[bound.storage] = block
        self.owner[block] = bound.name
        self.events.append(Event(EventKind.ALLOC, block, line, bound.name))

    def _free(self, block: int | None, line: int) -> None:
        if block is None or self.blocks[block].freed:
            return
        self.blocks[block].freed = True
        if block in self.scratch:
            self.scratch.remove(block)
        self.events.append(Event(EventKind.FREE, block, line))

    def _follow_names(self, segment: _Segment) -> None:
        """Keep track of which name owns each block.

        ``buf4 = buf3; del buf3`` hands a block over; a view beside a living buffer
        (``buf31 = reinterpret_tensor(buf34, …)``) does not.
        """
        bound_here: set[str] = set()
        for report in segment.reports:
            if isinstance(report, Bound):
                block = self.by_storage.get(report.storage)
                if block is None:
                    continue
                if report.name not in bound_here:  # a tuple is reported once an element
                    bound_here.add(report.name)
                    self.names.pop(report.name, None)
                self.names.setdefault(report.name, []).append(block)
                self.owner.setdefault(block, report.name)
            elif isinstance(report, Dropped):
                for name in report.names:
                    for block in self.names.pop(name, ()):
                        self._pass_on(block, name, segment.line)

    def _pass_on(self, block: int, name: str, line: int) -> None:
        if self.owner.get(block) == name and not self.blocks[block].freed:
            heir = next((n for n in reversed(self.names) if block in self.names[n]), None)
            if heir is not None:
                self.owner[block] = heir
                self.events.append(Event(EventKind.REUSE, block, line, heir))

    def _add(self, block: _Block) -> int:
        self.blocks.append(block)
        return len(self.blocks) - 1

    def _finish(self, categorize: Categorize) -> AllocationProgram:
        outputs: dict[int, list[int]] = {}
        for index, storage in enumerate(self.trace.outputs):
            block = self.by_storage.get(storage) if storage is not None else None
            if block is not None:
                outputs.setdefault(block, []).append(index)
        devices = {b.device for b in self.blocks if b.device.startswith("cuda:")}
        # What a kernel allocated and did not give back, a workspace or packed weights, it
        # keeps from a first call on: later calls, for which the program stands, do not
        # allocate it.
        kept = set(self.scratch)
        ids = {
            block: i for i, block in enumerate(b for b in range(len(self.blocks)) if b not in kept)
        }
        storages = []
        for block, i in ids.items():
            b, out = self.blocks[block], tuple(outputs.get(block, ()))
            if b.device == "cuda" and len(devices) == 1:
                (b.device,) = devices
            outlives = b.origin is Origin.INPUT or b.origin is Origin.EXTERNAL or bool(out)
            storages.append(
                Storage(
                    id=i,
                    nbytes=b.nbytes,
                    device=b.device,
                    origin=b.origin,
                    name=b.name,
                    category=categorize(b.origin, b.inputs, out, not b.freed),
                    identity=b.identity if outlives else None,
                    inputs=b.inputs,
                    outputs=out,
                )
            )
        return AllocationProgram(
            key=self.trace.key,
            storages=tuple(storages),
            events=tuple(
                replace(e, storage=ids[e.storage]) for e in self.events if e.storage in ids
            ),
            internal_observed=self.trace.allocator is not None,
            kept_bytes=sum(self.blocks[block].nbytes for block in self.scratch),
            host_ns=self.trace.host_ns,
        )


def _fits(bound: Bound, allocated: int, device: str) -> bool:
    if bound.device.partition(":")[0] != device.partition(":")[0]:
        return False
    if bound.nbytes == allocated:
        return True
    if device == "cpu":
        return False
    return 0 < bound.nbytes < allocated <= bound.nbytes + _MAX_ROUNDING


def as_deltas(events: list[tuple[str, int, str]], prefix: str) -> list[AllocatorDelta]:
    """Allocator events (mark, signed bytes, device) with marks ``<prefix><number>``; those with
    a negative number are left out."""
    marked = ((int(m[len(prefix) :]) if m else 0, n, d) for m, n, d in events)
    return [AllocatorDelta(*delta) for delta in marked if delta[0] >= 0]
