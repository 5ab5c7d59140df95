"""What of a compiled CPU graph's memory comes out of the arena, and where. Pure data.

Note [What can be planned]
~~~~~~~~~~~~~~~~~~~~~~~~~~
Planned are allocations that the generated code makes itself, once a call, at a known line,
and whose storage the observed program saw born there. What dies in the call is scratch;
what the call returns is leased (``tensors``). The rest keeps its ordinary memory:

* what an operator allocates inside itself, its results included;
* what survives a call without being returned: somebody keeps it;
* what is handed to code that might keep it: custom operators, branches of control flow,
  collectives that run on after they return (``wrapper_code`` finds those);
* outputs below ``min_lease`` bytes: making a tensor that owns a block costs more than
  ``malloc`` does for small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from memprof.cudagraph_trees.account.placement import placed
from memprof.profiler.model import AllocationProgram, EventKind, Origin, Placement

from .planner import Lifetime, plan

MAX_SCRATCH_BUFFERS = 1000
"""Of more temporaries than this only the largest are planned."""

LARGE = 128 << 10
"""Bytes from which glibc's malloc asks the system (``M_MMAP_THRESHOLD``) at first."""


@dataclass(frozen=True, slots=True)
class Site:
    """An allocation in the code that is served by the arena.

    Attributes:
        line: of the generated code, 1-based.
        name: of the buffer that it assigns.
        storage: index in the program's storages.
        nbytes: of that.
        offset: in the scratch; None if it is leased.
    """

    line: int
    name: str
    storage: int
    nbytes: int
    offset: int | None


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
    program: AllocationProgram,
    allocations: Mapping[int, str],
    unsafe: Set[str],
    min_lease: int = 2 * LARGE,
) -> ArenaPlan:
    """Plan one observed program.

    Args:
        program: what a call does.
        allocations: lines that allocate and the buffer that each assigns; each runs once
            a call.
        unsafe: names that are handed to code that might keep them.
        min_lease: bytes from which on outputs are leased.
    """
    born: dict[int, int] = {}
    died: dict[int, int] = {}
    lines: dict[int, int] = {}
    names: dict[int, set[str]] = {}
    births_on_line: dict[int, int] = {}
    for at, event in enumerate(program.events):
        if event.owner is not None:
            names.setdefault(event.storage, set()).add(event.owner)
        if event.kind is EventKind.ALLOC:
            born[event.storage], lines[event.storage] = at, event.line
            births_on_line[event.line] = births_on_line.get(event.line, 0) + 1
        elif event.kind is EventKind.FREE:
            died[event.storage] = at
    left_out: dict[str, int] = {}
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
            left_out[reason] = left_out.get(reason, 0) + storage.nbytes
    if len(scratch) > MAX_SCRATCH_BUFFERS:
        scratch.sort(key=lambda i: -program.storages[i].nbytes)
        dropped = scratch[MAX_SCRATCH_BUFFERS:]
        left_out["too many temporaries"] = sum(program.storages[i].nbytes for i in dropped)
        del scratch[MAX_SCRATCH_BUFFERS:]
    made = plan([Lifetime(program.storages[i].nbytes, born[i], died[i]) for i in scratch])
    offsets: dict[int, int | None] = dict(zip(scratch, made.offsets, strict=True))
    sites = [
        Site(lines[i], program.storages[i].name, i, program.storages[i].nbytes, offsets.get(i))
        for i in (*scratch, *leased)
    ]
    return ArenaPlan(
        tuple(sorted(sites, key=lambda s: s.line)), made.nbytes, made.lower_bound, left_out
    )


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
