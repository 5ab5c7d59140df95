"""Launches of generated code: the statements that run kernels, and what each of them makes.

Note [Which statement launched a kernel]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A trace of ``torch.profiler`` has a kernel's name and when the host launched it, or the CUDA graph
that it is of. A kernel belongs to the call that was running at that time; there, to

* the statement whose nodes it was annotated with (option ``annotate_kernels``);
* else, if Inductor named it, the statement that launches that name. Layers that are alike share one
  kernel: where the call ran it as often as its code launches it, the first is of the first;
* else, of a library, the one in its place, if the call, or the graph that it replayed, ran one
  kernel for each statement that launches, and those that Inductor named where the code has them.

Else its call and graph alone are known.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from memprof.profiler.model import BufferProvenance, GraphRecord, NodeProvenance, Profile
from memprof.profiler.model.kernel import Kernel

_LAUNCH = re.compile(r"(\w+)\.run\(|\bextern_kernels\.|\btorch\.ops\.|\bcpp_\w+\(")
"""Statements of Inductor's code that launch: Triton's, libraries', fallbacks, C++ on the CPU."""
_UNFILLED = re.compile(r"empty_strided|# reuse$")
"""Is in what makes a buffer, or takes another's memory for it, that a later statement fills."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A statement that launches.

    Attributes:
        line: of the generated code.
        kernel: the name that Inductor gave the kernel, None if it is no kernel of Inductor's.
        buffers: what it fills; none is filled by two.
        nodes: FX nodes that are computed into these, as far as they are known.
        primary: the one of them that the last buffer's value is of.
        text: first line of the statement.
    """

    line: int
    kernel: str | None
    buffers: tuple[BufferProvenance, ...]
    nodes: tuple[NodeProvenance, ...]
    primary: NodeProvenance | None
    text: str

    def annotation(self, graph: str) -> dict[str, str]:
        """Its origin: ``name``, the module or else the operators, ``line`` of the program,
        FX ``nodes`` and ``graph``; only what is known."""
        names = ", ".join(n.name for n in self.nodes)
        found = {"graph": graph, "name": names or self.text}
        if self.primary is not None:
            found |= {"nodes": names, "name": self.primary.module_path or names}
            if (frame := self.primary.frame) is not None:
                found["line"] = frame.location
        return found


def launches(record: GraphRecord) -> Iterator[Launch]:
    """The launches of a graph's code, in line order."""
    made: set[str] = set()
    for statement in record.statements:
        if (launch := _LAUNCH.search(statement.text)) is None:
            if _UNFILLED.search(statement.text) is None:
                made.update(statement.targets)
            continue
        names = [n for n in (*statement.reads, *statement.targets) if n not in made]
        made.update(names)
        buffers = tuple(record.buffers[n] for n in names if n in record.buffers)
        nodes = tuple(record.nodes[n] for b in buffers for n in b.nodes if n in record.nodes)
        primary = [n for b in buffers if (n := record.nodes.get(b.primary or ""))] or nodes
        last = primary[-1] if primary else None
        yield Launch(statement.line, launch[1], buffers, nodes, last, statement.text)


@dataclass(frozen=True, slots=True)
class Launched:
    """A kernel of a trace, and where it comes from as far as that is known: the position of the
    call, its graph, the launch."""

    kernel: Kernel
    call: int | None = None
    graph: GraphRecord | None = None
    launch: Launch | None = None


def launched(profile: Profile, kernels: Sequence[Kernel]) -> Iterator[Launched]:
    """The kernels with what launched them: Note [Which statement launched a kernel].

    Args:
        kernels: by the time at which they began.
    """
    calls, graphs = profile.calls, {g.id: g for g in profile.graphs}
    launches_of = cache(lambda id: list(launches(graphs[id])))
    nodes_of = cache(lambda id: {x.annotation("").get("nodes"): x for x in launches_of(id)})
    by_call: defaultdict[int | None, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        at = (kernel.launched_ns or 0) - profile.perf_origin_ns
        k = bisect_left(calls.end_ns, at)
        by_call[k if k < len(calls) and calls.start_ns[k] <= at else None].append(kernel)
    for call, of in by_call.items():
        if call is None:
            yield from map(Launched, of)
            continue
        graph = graphs[calls.graph[call]]
        turns = _by_turn(of, launches_of(graph.id))
        for kernel in of:
            noted = nodes_of(graph.id).get(kernel.nodes) if kernel.nodes else None
            yield Launched(kernel, call, graph, noted or turns.get(kernel))


def _by_turn(kernels: list[Kernel], code: list[Launch]) -> dict[Kernel, Launch]:
    """The launches of a call's kernels, as far as their order tells."""
    found: dict[Kernel, Launch] = {}
    names = [launch.kernel for launch in code]
    for name in set(names) - {None}:
        of = [kernel for kernel in kernels if kernel.name == name]
        if len(of) == names.count(name):
            found |= zip(of, (x for x in code if x.kernel == name), strict=True)
    # Of a replay its graph alone: the copies of its inputs were launched by themselves.
    together: defaultdict[int | None, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        together[kernel.launched_ns].append(kernel)
    for of in (kernels, *together.values()):
        if names == [kernel.name if kernel.name in names else None for kernel in of]:
            found |= zip(of, code, strict=True)
    return found
