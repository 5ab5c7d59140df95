"""Does a profile agree with itself? What types cannot say: indices that must exist, columns
of one length, events in an order that memory allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from .model import (
    AllocationProgram,
    CallColumns,
    EventKind,
    GraphRecord,
    GraphValue,
    LedgerEntry,
    Placement,
)
from .validate_numbers import LARGEST, number_findings
from .validate_parts import Finding


def graph_findings(graph: GraphRecord, at: str) -> Iterator[Finding]:
    """What contradicts itself in a graph but for its programs and placements."""
    yield from _values(graph.inputs, f"{at}.inputs", len(graph.inputs))
    yield from _values(graph.outputs, f"{at}.outputs", len(graph.inputs))
    for name, node in graph.nodes.items():
        if node.name != name:
            yield f"{at}.nodes[{name!r}].name", f"{node.name!r} stands under the key {name!r}"
    for name, buffer in graph.buffers.items():
        if buffer.name != name:
            yield f"{at}.buffers[{name!r}].name", f"{buffer.name!r} stands under the key {name!r}"
        if (buffer.nbytes or 0) < 0:
            yield f"{at}.buffers[{name!r}].nbytes", f"{buffer.nbytes} is no number of bytes"
    for field in dataclasses.fields(graph):
        if field.name not in ("programs", "placements"):
            yield from number_findings(getattr(graph, field.name), f"{at}.{field.name}")


def entry_findings(entry: LedgerEntry, at: str, graphs: Collection[int]) -> Iterator[Finding]:
    """What contradicts itself in a ledger entry of a profile with these graphs."""
    if entry.graph is not None and entry.graph not in graphs:
        yield f"{at}.graph", f"there is no graph {entry.graph}"
    if entry.count < 1:
        yield f"{at}.count", f"{entry.count} is not a count; it is at least 1"
    yield from number_findings(entry, at)


def release_findings(identity: int, call: int, calls: CallColumns) -> Iterator[Finding]:
    """What contradicts itself in an entry of ``Profile.released``."""
    logged = len(calls) + calls.dropped
    if not 0 <= call <= logged or not -LARGEST <= identity <= LARGEST:
        yield f"$.released[{str(identity)!r}]", f"released after call {call}, of {logged} calls"


def _values(values: tuple[GraphValue, ...], at: str, inputs: int) -> Iterator[Finding]:
    for i, value in enumerate(values):
        if value.index != i:
            yield f"{at}[{i}].index", f"index {value.index} at position {i}"
        if value.alias_of_input is not None and not 0 <= value.alias_of_input < inputs:
            yield (
                f"{at}[{i}].alias_of_input",
                f"there is no input {value.alias_of_input}, the graph has {inputs}",
            )
        for name in ("forward_output", "gradient_of"):
            index = getattr(value, name)
            if index is not None and index < 0:
                yield f"{at}[{i}].{name}", f"{index} is no output index"


def program_findings(
    program: AllocationProgram, graph: GraphRecord, at: str, keys: set[tuple[int, ...]]
) -> Iterator[Finding]:
    """What contradicts itself in a program.

    Args:
        program, graph: the program and what it is of.
        at: its path in the document.
        keys: of the graph's programs before this one; gets its key.
    """
    if program.key in keys:
        yield f"{at}.key", f"two programs have the key {list(program.key)}"
    keys.add(program.key)
    yield from number_findings(program, at)
    live: set[int] = set()
    inputs: set[int] = set()
    for i, s in enumerate(program.storages):
        if s.id != i:
            yield f"{at}.storages[{i}].id", f"id {s.id} at position {i}"
        if s.nbytes < 0:
            yield f"{at}.storages[{i}].nbytes", f"{s.nbytes} is no number of bytes"
        for name, indices, count in (
            ("inputs", s.inputs, len(graph.inputs)),
            ("outputs", s.outputs, len(graph.outputs)),
        ):
            for k in indices:
                if not 0 <= k < count:
                    yield (
                        f"{at}.storages[{i}].{name}",
                        f"there is no {name[:-1]} {k}, the graph has {count}",
                    )
        if s.at_entry:
            inputs.add(i)
    live |= inputs
    for i, e in enumerate(program.events):
        where = f"{at}.events[{i}]"
        if not 0 <= e.storage < len(program.storages):
            yield (
                f"{where}.storage",
                f"there is no storage {e.storage}, the program has {len(program.storages)}",
            )
            return  # What is live is no longer known.
        if e.line < 0:
            yield f"{where}.line", f"{e.line} is no line number"
        if e.kind is EventKind.ALLOC:
            if e.storage in inputs:
                yield where, f"allocates storage {e.storage}, which was live before the call"
            elif e.storage in live:
                yield where, f"allocates storage {e.storage}, which is live already"
            live.add(e.storage)
        else:
            if e.storage not in live:
                verb = "frees" if e.kind is EventKind.FREE else "reuses"
                yield where, f"{verb} storage {e.storage}, which is not live"
            if e.kind is EventKind.FREE:
                live.discard(e.storage)


def placement_findings(
    placement: Placement, at: str, inputs: Mapping[int, int]
) -> Iterator[Finding]:
    """What contradicts itself in a placement.

    Args:
        placement: the placement.
        at: its path in the document.
        inputs: number of inputs of each graph of the profile.
    """
    yield from number_findings(placement, at)
    for i, (address, nbytes) in enumerate(placement.segments):
        if address < 0 or nbytes < 0:
            yield f"{at}.segments[{i}]", f"{nbytes} bytes at {address} are no piece of memory"
    last = len(placement.lines) + 1
    for i, b in enumerate(placement.blocks):
        if b.address < 0 or b.nbytes < 0:
            yield f"{at}.blocks[{i}]", f"{b.nbytes} bytes at {b.address} are no piece of memory"
        if not 0 <= b.begin <= b.end <= last:
            yield (
                f"{at}.blocks[{i}]",
                f"lives from instant {b.begin} to {b.end}; the placement has 0 to {last - 1}",
            )
        # Its graph may be of an earlier session, see Attribution; its inputs are then not known.
        count = inputs.get(b.graph, max(b.inputs, default=0) + 1)
        for k in b.inputs:
            if not 0 <= k < count:
                yield f"{at}.blocks[{i}].inputs", f"there is no input {k}, the graph has {count}"


def calls_findings(calls: CallColumns, programs: Mapping[int, int]) -> Iterator[Finding]:
    """What contradicts itself in the call log.

    Args:
        calls: the log, whose columns have one length.
        programs: number of programs of each graph of the profile.
    """
    if calls.dropped < 0:
        yield "$.calls.dropped", f"{calls.dropped} is no count"
    yield from number_findings(calls, "$.calls")
    # A log has millions of calls and few distinct pairs: look at the pairs first.
    bad = {
        (g, p)
        for g, p in set(zip(calls.graph, calls.program, strict=True))
        if g not in programs or not -1 <= p < programs[g]
    }
    if bad:
        for i, (g, p) in enumerate(zip(calls.graph, calls.program, strict=True)):
            if (g, p) not in bad:
                continue
            if g not in programs:
                yield f"$.calls.graph[{i}]", f"there is no graph {g}"
            else:
                yield (
                    f"$.calls.program[{i}]",
                    f"there is no program {p}, graph {g} has {programs[g]} (-1 stands for none)",
                )
    if any(map(int.__gt__, calls.start_ns, calls.end_ns)):
        for i, (start, end) in enumerate(zip(calls.start_ns, calls.end_ns, strict=True)):
            if start > end:
                yield f"$.calls.end_ns[{i}]", f"the call ends at {end}, before it starts at {start}"
    if calls.thread and min(calls.thread) < 0:
        i = next(i for i, t in enumerate(calls.thread) if t < 0)
        yield f"$.calls.thread[{i}]", f"{calls.thread[i]} is no thread number"
