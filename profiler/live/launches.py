"""Launches of generated code: the statements that run kernels, and what each of them makes.

Note [Which statement launched a kernel]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
A trace of ``torch.profiler`` has a kernel's name and when the host launched it, or the CUDA graph
that it is of. A kernel belongs to the call that was running at that time; there, to

* the statement whose nodes it was annotated with (option ``annotate_kernels``);
* else, if Inductor named it, the statement that launches that name. Layers that are alike share one
  kernel: where the call ran it as often as its code launches it, the first is of the first.

Else its call and graph alone are known: of libraries' kernels a trace has no more without
annotations.
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

    @cache
    def known(id: int) -> tuple[dict[str | None, list[Launch]], dict[str, Launch]]:
        """The launches of a graph by kernel, and by nodes."""
        by_kernel: defaultdict[str | None, list[Launch]] = defaultdict(list)
        by_nodes: dict[str, Launch] = {}
        for launch in launches(graphs[id]):
            by_kernel[launch.kernel].append(launch)
            by_nodes.setdefault(launch.annotation("").get("nodes", ""), launch)
        return by_kernel, by_nodes

    runs: defaultdict[tuple[int | None, str], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        at = (kernel.launched_ns or 0) - profile.perf_origin_ns
        call = bisect_left(calls.end_ns, at)
        inside = call < len(calls) and calls.start_ns[call] <= at
        runs[call if inside else None, kernel.name].append(kernel)
    for (k, name), of in runs.items():
        if k is None:
            yield from map(Launched, of)
            continue
        by_kernel, by_nodes = known(calls.graph[k])
        named = by_kernel.get(name, ())
        for i, kernel in enumerate(of):
            noted = by_nodes.get(kernel.nodes) if kernel.nodes else None
            counted = named[i] if len(named) == len(of) else None
            yield Launched(kernel, k, graphs[calls.graph[k]], noted or counted)
