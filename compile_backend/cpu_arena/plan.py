"""What of a compiled CPU graph's memory comes out of the arena, and where. Pure data.

Note [What can be planned]
~~~~~~~~~~~~~~~~~~~~~~~~~~
Planned are allocations that the generated code makes itself, once a call, at a known line. What
dies in the call is scratch; what it returns is leased (``tensors``). The rest keeps its ordinary
memory:

* what an operator allocates inside itself, its results included;
* what survives a call without being returned: somebody keeps it;
* what is handed to code that might keep it: custom operators, branches of control flow,
  collectives that run on after they return (``wrapper_code`` finds those);
* outputs below ``min_lease`` bytes: making a tensor that owns a block costs more than
  ``malloc`` does for small ones.

Note [Where buffers are put]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The problem is strip packing with fixed positions in time, NP-hard in general, and easy on
the programs that compilers write. Each buffer is put into the lowest gap that is free
during its whole life, and of several orders to place buffers in the one that needs the fewest bytes
wins: within 1 % of the lower bound on average. The largest first is the order of TensorFlow Lite's
planner (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020); the
others catch programs on which it does badly.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from memprof.cudagraph_trees.account.placement import placed
from memprof.profiler.model import AllocationProgram, EventKind, Origin, Placement

MAX_SCRATCH_BUFFERS = 1000
"""Of more temporaries than this only the largest are planned."""

LARGE = 128 << 10
"""Bytes from which glibc's malloc asks the system (``M_MMAP_THRESHOLD``) at first."""


class Site(NamedTuple):
    """An allocation in the code that is served by the arena."""

    line: int
    name: str
    storage: int
    """Index in the program's storages."""
    nbytes: int
    offset: int | None
    """In the scratch; None if it is leased."""


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """What of one program comes out of the arena, and where it lies there.

    Attributes:
        sites: by line.
        scratch_bytes: of the temporaries.
        lower_bound: the most bytes of planned temporaries that are live at once.
        left_out: bytes that the call allocates outside the arena, by reason.
    """

    sites: tuple[Site, ...]
    scratch_bytes: int
    lower_bound: int
    left_out: Mapping[str, int]

    @property
    def large_bytes(self) -> int:
        """Bytes of sites that are ``LARGE``: what the arena can save page faults on."""
        return sum(s.nbytes for s in self.sites if s.nbytes >= LARGE)


def plan_program(
    program: AllocationProgram, allocations: Mapping[int, str], unsafe: Set[str], min_lease: int
) -> ArenaPlan:
    """Plan one observed program.

    Args:
        allocations, unsafe: of ``WrapperCode``.
        min_lease: bytes from which on outputs are leased.
    """
    born: dict[int, int] = {}
    died: dict[int, int] = {}
    lines: dict[int, int] = {}
    names: dict[int, set[str | None]] = defaultdict(set)
    for at, event in enumerate(program.events):
        names[event.storage].add(event.owner)
        if event.kind is EventKind.ALLOC:
            born[event.storage], lines[event.storage] = at, event.line
        elif event.kind is EventKind.FREE:
            died[event.storage] = at
    births_on_line = Counter(lines.values())
    left_out: Counter[str] = Counter()
    scratch: list[int] = []
    leased: list[int] = []
    for i in born:
        storage = program.storages[i]
        line = lines[i]
        reason = ""
        if storage.origin is Origin.INTERNAL:
            reason = "scratch memory inside operators"
        elif allocations.get(line) != storage.name or births_on_line[line] != 1:
            reason = "allocated by operators"
        elif storage.device != "cpu":
            reason = "on another device"
        elif names[i] & unsafe:
            reason = "handed to code that might keep it"
        elif i not in died and not storage.outputs:
            reason = "kept by somebody after the call"
        elif i not in died and storage.nbytes < max(1, min_lease):
            reason = "outputs too small to lease"
        elif storage.nbytes:
            (scratch if i in died else leased).append(i)
        if reason:
            left_out[reason] += storage.nbytes
    if len(scratch) > MAX_SCRATCH_BUFFERS:
        scratch.sort(key=lambda i: -program.storages[i].nbytes)
        dropped = scratch[MAX_SCRATCH_BUFFERS:]
        left_out["too many temporaries"] = sum(program.storages[i].nbytes for i in dropped)
        del scratch[MAX_SCRATCH_BUFFERS:]
    made = pack([Lifetime(program.storages[i].nbytes, born[i], died[i]) for i in scratch])
    offsets: dict[int, int | None] = dict(zip(scratch, made.offsets, strict=True))
    sites = [
        Site(lines[i], program.storages[i].name, i, program.storages[i].nbytes, offsets.get(i))
        for i in sorted((*scratch, *leased), key=lines.__getitem__)
    ]
    return ArenaPlan(tuple(sites), made.nbytes, made.lower_bound, left_out)


def placement_of_plan(graph: int, program: AllocationProgram, plan: ArenaPlan) -> Placement:
    """The placement of a CPU graph's temporaries in its scratch memory. Outputs are in blocks
    of their own, which are elsewhere at every call."""
    offsets = {s.storage: s.offset for s in plan.sites if s.offset is not None}
    return Placement(
        pool="cpu arena",
        key=program.key,
        node=None,
        segments=((0, plan.scratch_bytes),),
        lines=tuple(e.line for e in program.events),
        blocks=tuple(placed(graph, program, offsets)),
    )


# --- offsets in one piece of memory -------------------------------------------------------

ALIGNMENT = 64
"""Bytes; what torch's CPU allocator aligns to, and a cache line."""


class Lifetime(NamedTuple):
    """A buffer to place, which is live at the instants ``begin <= t < end``."""

    nbytes: int
    begin: int
    end: int


class Offsets(NamedTuple):
    """Where each buffer lies, in bytes, and how much memory that takes; ``lower_bound`` are the
    most bytes that are live at one instant, than which no plan needs fewer."""

    offsets: tuple[int, ...]
    nbytes: int
    lower_bound: int


def pack(buffers: Sequence[Lifetime]) -> Offsets:
    """Place ``buffers`` so that no two that are live at the same time overlap: the best of a few
    greedy plans, the same for the same buffers."""
    bound = _lower_bound(buffers)
    found = []
    for order in _ORDERS:
        indices = sorted(range(len(buffers)), key=list(map(order, buffers)).__getitem__)
        offsets, nbytes = _place(buffers, indices)
        found.append(Offsets(tuple(offsets), nbytes, bound))
        if nbytes == bound:
            break
    return min(found, key=lambda o: o.nbytes)


_ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    # The largest first; among equals, the longest-lived.
    lambda b: (-b.nbytes, b.begin - b.end, b.begin),
    # The longest-lived first: they are in everybody's way.
    lambda b: (b.begin - b.end, -b.nbytes, b.begin),
    # The largest area in the plane of time and bytes first.
    lambda b: (-b.nbytes * (b.end - b.begin), b.begin),
)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _place(buffers: Sequence[Lifetime], order: Sequence[int]) -> tuple[list[int], int]:
    """Offsets, and the bytes that they need."""
    offsets = [0] * len(buffers)
    nbytes = 0
    placed: list[tuple[int, int, int, int]] = []  # (offset, end of it, begin, end), by offset
    for i in order:
        _, begin, end = buffers[i]
        size = _aligned(buffers[i].nbytes)
        if not size:
            continue
        free = 0
        for offset, after, b, e in placed:
            if b < end and begin < e:
                if offset - free >= size:
                    break
                free = max(free, after)
        offsets[i] = free
        insort(placed, (free, free + size, begin, end))
        nbytes = max(nbytes, free + size)
    return offsets, nbytes


def _lower_bound(buffers: Sequence[Lifetime]) -> int:
    changes = []
    for b in buffers:
        if b.begin < b.end:
            changes += [(b.begin, _aligned(b.nbytes)), (b.end, -_aligned(b.nbytes))]
    # At one instant, ends (negative) come first.
    return max(itertools.accumulate((n for _, n in sorted(changes)), initial=0))
