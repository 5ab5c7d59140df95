"""Contradictions within a profile: references to what does not exist, and sums that differ from
their parts.

Note [What is checked of a profile]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Views trust what they are given: indices that exist, columns of one length, releases of what is
live. Types and limits of numbers the data model has (``model/limits.py``); here is what they cannot
say. memprof writes no such file, and one that contradicts itself is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import TypeVar

from memprof.profiler import model
from memprof.profiler.model.tracker import MAX_NAMES

LONGEST_PATHS = MAX_NAMES * 10_000
"""Most characters of the paths of all operations together. Every operation shows its path, so that
long names above many would come to more than any memory holds."""

_T = TypeVar("_T")
Finding = tuple[str, str]
"""Path in the document, what is wrong there."""


def contradictions(profile: model.Profile) -> Iterator[Finding]:
    """Yields contradictions in a profile. Nobody asks for more than the first: those behind it may
    only follow from it."""
    graphs = {g.id: g for g in profile.graphs}
    for g, graph in enumerate(profile.graphs):
        yield from _in_graph(graph, f"$.graphs[{g}]")
    yield from _in_calls(profile.calls, graphs)
    for i, entry in enumerate(profile.ledger):
        if entry.graph is not None and entry.graph not in graphs:
            yield f"$.ledger[{i}].graph", f"there is no graph {entry.graph}"
    if profile.process is not None:
        yield from _in_process(profile.process)
    if profile.dataflow is not None:
        devices = profile.dataflow.devices
        yield from _in_each(devices, "$.dataflow.devices", _in_flow)
        if len({d.device for d in devices}) < len(devices):
            yield "$.dataflow.devices", "a device is there twice"
    if profile.tracker is not None:
        yield from _in_tracker(profile.tracker, "$.tracker")
    yield from _in_each(profile.growth, "$.growth", _in_growth)
    yield from _in_each(profile.accounts, "$.accounts", _in_account)
    yield from _in_each(profile.graph_pools, "$.graph_pools", _in_pool)


def _in_each(
    items: Iterable[_T], at: str, check: Callable[[_T, str], Iterator[Finding]]
) -> Iterator[Finding]:
    for i, item in enumerate(items):
        yield from check(item, f"{at}[{i}]")


def _in_range(
    what: str, indices: Iterable[int], count: int, at: str, lowest: int = 0
) -> Iterator[Finding]:
    for i in indices:
        if not lowest <= i < count:
            yield at, f"there is no {what} {i}, there are {count}"


# Graphs and calls


def _in_graph(graph: model.GraphRecord, at: str) -> Iterator[Finding]:
    inputs, metadata = len(graph.inputs), graph.description.metadata
    for side, values, infos in (
        ("inputs", graph.inputs, metadata.input_info),
        ("outputs", graph.outputs, metadata.output_info),
    ):
        for i, value in enumerate(values):
            where = f"{at}.description.{side}[{i}]"
            if value.index != i:
                yield f"{where}.index", f"index {value.index} at position {i}"
            if value.info is not None:
                yield from _in_range("info", [value.info], len(infos), f"{where}.info")
            if value.alias_of_input is not None:
                where = f"{where}.alias_of_input"
                yield from _in_range("input", [value.alias_of_input], inputs, where)
    for what, named in (("nodes", graph.nodes), ("buffers", graph.buffers)):
        for key, made in named.items():
            if made.name != key:
                yield f"{at}.{what}[{key!r}].name", f"{made.name!r} stands under the key {key!r}"
    keys: set[tuple[int, ...]] = set()
    for p, program in enumerate(graph.programs):
        where = f"{at}.programs[{p}]"
        if program.key in keys:
            yield f"{where}.key", f"two programs have the key {list(program.key)}"
        keys.add(program.key)
        yield from _in_program(program, graph, where)


def _in_program(
    program: model.AllocationProgram, graph: model.GraphRecord, at: str
) -> Iterator[Finding]:
    storages = program.storages
    for i, s in enumerate(storages):
        if s.id != i:
            yield f"{at}.storages[{i}].id", f"id {s.id} at position {i}"
        where = f"{at}.storages[{i}]"
        yield from _in_range("input", s.inputs, len(graph.inputs), f"{where}.inputs")
        yield from _in_range("output", s.outputs, len(graph.outputs), f"{where}.outputs")
    live = {i for i, s in enumerate(storages) if s.at_entry}
    for i, e in enumerate(program.events):
        where = f"{at}.events[{i}]"
        if not 0 <= e.storage < len(storages):
            yield f"{where}.storage", f"there is no storage {e.storage}"
        elif e.kind is model.EventKind.ALLOC:
            if storages[e.storage].at_entry or e.storage in live:
                yield where, f"allocates storage {e.storage}, which was live already"
            live.add(e.storage)
        elif e.storage not in live:
            yield where, f"frees or reuses storage {e.storage}, which is not live"
        elif e.kind is model.EventKind.FREE:
            live.remove(e.storage)


def _in_calls(
    calls: model.CallColumns, graphs: Mapping[int, model.GraphRecord]
) -> Iterator[Finding]:
    for graph, program in set(zip(calls.graph, calls.program, strict=True)):
        if graph not in graphs:
            yield "$.calls.graph", f"there is no graph {graph}"
        else:
            programs = len(graphs[graph].programs)
            # -1 stands for none.
            yield from _in_range("program", [program], programs, "$.calls.program", lowest=-1)


# Other parts


def _in_process(process: model.Process) -> Iterator[Finding]:
    for name, value in (("rank", process.rank), ("local_rank", process.local_rank)):
        yield from _in_range("rank", [value], process.world_size, f"$.process.{name}")


def _in_account(account: model.DeviceAccount, at: str) -> Iterator[Finding]:
    total = account.explained + account.unexplained
    if total != account.reserved:
        yield f"{at}.reserved", f"{account.reserved} bytes, while its parts have {total}"
    if account.peak is not None:
        yield from _in_account(account.peak, f"{at}.peak")


def _in_pool(pool: model.GraphPool, at: str) -> Iterator[Finding]:
    grew = pool.grew_outside + sum(g.grew for g in pool.graphs)
    used = pool.other_shares + sum(s.nbytes for s in pool.shares)
    for what, total in (
        ("captures and what was between them", grew),
        ("users", used + pool.live_outside + pool.unused),
    ):
        if total != pool.reserved:
            yield f"{at}.reserved", f"{pool.reserved} bytes, while its {what} come to {total}"
    numbers = {g.number for g in pool.graphs}
    if len(numbers) != len(pool.graphs):
        yield f"{at}.graphs", "two graphs have one number"
    for i, share in enumerate(pool.shares):
        if not share.graphs or not numbers.issuperset(share.graphs):
            yield f"{at}.shares[{i}]", f"{share.nbytes} bytes of graphs {list(share.graphs)}"
    for i, graph in enumerate(pool.graphs):
        had = graph.rounding + sum(r.nbytes for r in graph.at_peak)
        if had != graph.peak:
            yield f"{at}.graphs[{i}].peak", f"{graph.peak} bytes, while its blocks have {had}"


def _in_growth(growth: model.Growth, at: str) -> Iterator[Finding]:
    if not 0 <= growth.since <= growth.steps:
        yield f"{at}.since", f"step {growth.since} of {growth.steps}"


def _in_flow(device: model.DataFlowDevice, at: str) -> Iterator[Finding]:
    times = device.time_ns
    yield from _ascending(times, f"{at}.time_ns", least=1)
    for category, column in device.bytes.items():
        if len(column) != len(times):
            problem = f"{len(column)} entries for {len(times)} times"
            yield f"{at}.bytes[{category.value!r}]", problem
    if device.peak is None:
        return
    yield from _in_range("time", [device.peak], len(times), f"{at}.peak")
    live, total = sum(storage.nbytes for storage in device.live), device.bytes_at(device.peak)
    if live != total:
        yield f"{at}.live", f"adds up to {live:,} bytes, the columns to {total:,}"


def _ascending(times: Iterable[int], at: str, least: int = 0) -> Iterator[Finding]:
    """Yields times that are less than ``least`` ns after the one before."""
    for i, (before, time) in enumerate(pairwise(times), 1):
        if time - before < least:
            yield f"{at}[{i}]", f"{time} after {before}; times ascend"


def _in_tracker(record: model.TrackerRecord, at: str) -> Iterator[Finding]:
    metadata, summary = record.metadata, record.operation_summary
    lanes = len(metadata.lanes)
    threads = [lane.thread for lane in metadata.lanes]
    yield from _in_range("lane", threads, lanes, f"{at}.metadata.lanes")
    if any(pause.end_ns < pause.start_ns for pause in metadata.pauses):
        yield f"{at}.metadata.pauses", "one ends before it starts"
    yield from _ascending([s.time_ns for s in record.snapshots], f"{at}.snapshots")
    lengths: list[int] = []
    for i, o in enumerate(summary):
        yield from _in_range(
            "earlier operation", [o.parent], i, f"{at}.operation_summary[{i}].parent", lowest=-1
        )
        above = lengths[o.parent] + 1 if o.parent >= 0 else 0
        lengths.append(above + len(o.name))
    if sum(lengths) - sum(len(o.name) for o in summary) > LONGEST_PATHS:
        yield f"{at}.operation_summary", f"paths of more than {LONGEST_PATHS:,} characters"
    yield from _in_operations(record, f"{at}.operation_allocations")


def _in_operations(record: model.TrackerRecord, at: str) -> Iterator[Finding]:
    columns = record.operation_allocations
    tables: list[model.OperationColumns | model.MemoryColumns] = [columns]
    tables += columns.memory.values()
    for of in tables:
        lengths = {f.name: len(getattr(of, f.name)) for f in fields(of) if f.name != "memory"}
        if set(lengths.values()) != {len(columns)}:
            yield at, f"the columns differ in length: {lengths}"
    summaries, lanes = len(record.operation_summary), len(record.metadata.lanes)
    yield from _in_range("operation", columns.summary, summaries, f"{at}.summary")
    yield from _in_range("lane", columns.lane, lanes, f"{at}.lane")
    yield from _in_range("operation", columns.parent, len(columns), f"{at}.parent", lowest=-1)
