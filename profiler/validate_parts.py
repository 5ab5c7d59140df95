"""Does a profile agree with itself? Its optional parts: process, data flow, tracker."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from .model import (
    DataFlowColumns,
    DataFlowDevice,
    OperationColumns,
    Process,
    Profile,
    TrackerRecord,
)

Finding = tuple[str, str]
"""Path in the document, what is wrong there."""


def part_findings(profile: Profile) -> Iterator[Finding]:
    """Everything in the optional parts that contradicts itself, in document order."""
    graphs = {g.id for g in profile.graphs}
    if profile.process is not None:
        yield from _process(profile.process)
    if profile.dataflow is not None:
        yield from _dataflow(profile.dataflow, graphs)
    if profile.tracker is not None:
        yield from tracker_findings(profile.tracker)


def _process(process: Process) -> Iterator[Finding]:
    if process.world_size < 1:
        yield "$.process.world_size", f"{process.world_size} processes; it is at least 1"
        return
    for name in ("rank", "local_rank"):
        value = getattr(process, name)
        if not 0 <= value < process.world_size:
            yield f"$.process.{name}", f"there is no rank {value} among {process.world_size}"


def _dataflow(dataflow: DataFlowColumns, graphs: set[int]) -> Iterator[Finding]:
    devices: set[str] = set()
    for i, device in enumerate(dataflow.devices):
        at = f"$.dataflow.devices[{i}]"
        if device.device in devices:
            yield f"{at}.device", f"{device.device!r} is there twice"
        devices.add(device.device)
        yield from _dataflow_device(device, at, graphs)


def _dataflow_device(device: DataFlowDevice, at: str, graphs: set[int]) -> Iterator[Finding]:
    times = device.time_ns
    for j in range(1, len(times)):
        if times[j] <= times[j - 1]:
            yield f"{at}.time_ns[{j}]", f"{times[j]} after {times[j - 1]}; times ascend"
            break
    for category, column in device.bytes.items():
        where = f"{at}.bytes[{category.value!r}]"
        if len(column) != len(times):
            yield where, f"{len(column)} entries for {len(times)} times"
            return
        if column and min(column) < 0:
            yield where, f"{min(column)} is no number of bytes"
    for j, storage in enumerate(device.live):
        if storage.nbytes < 0:
            yield f"{at}.live[{j}].nbytes", f"{storage.nbytes} is no number of bytes"
        if storage.graph is not None and storage.graph not in graphs:
            yield f"{at}.live[{j}].graph", f"there is no graph {storage.graph}"
    if device.peak is None:
        return
    if not 0 <= device.peak < len(times):
        yield f"{at}.peak", f"there is no time {device.peak}, there are {len(times)}"
        return
    live = sum(storage.nbytes for storage in device.live)
    if live != device.bytes_at(device.peak):
        yield (
            f"{at}.live",
            f"adds up to {live:,} bytes, the columns to {device.bytes_at(device.peak):,}",
        )


def tracker_findings(record: TrackerRecord, at: str = "$.tracker") -> Iterator[Finding]:
    """Everything in a tracker's record that contradicts itself.

    Args:
        record: the record.
        at: path of the record in the document.
    """
    lanes = record.metadata.lanes
    for i, lane in enumerate(lanes):
        if not 0 <= lane.thread < len(lanes):
            yield (
                f"{at}.metadata.lanes[{i}].thread",
                f"there is no lane {lane.thread}, there are {len(lanes)}",
            )
    for i, span in enumerate(record.metadata.pauses):
        if span.end_ns < span.start_ns:
            yield f"{at}.metadata.pauses[{i}]", "it ends before it starts"
    times = [snapshot.time_ns for snapshot in record.snapshots]
    yield from _ascending(times, f"{at}.snapshots", ".time_ns")
    for i, summary in enumerate(record.operation_summary):
        if not -1 <= summary.parent < i:
            yield (
                f"{at}.operation_summary[{i}].parent",
                f"{summary.parent} is no operation before this one",
            )
    yield from _operations(record, f"{at}.operation_allocations")


def _operations(record: TrackerRecord, at: str) -> Iterator[Finding]:
    columns = record.operation_allocations
    lengths = {
        f.name: len(getattr(columns, f.name))
        for f in dataclasses.fields(OperationColumns)
        if f.name != "memory"
    }
    for device, memory in columns.memory.items():
        lengths |= {
            f"memory[{device!r}].{f.name}": len(getattr(memory, f.name))
            for f in dataclasses.fields(memory)
        }
    if len(set(lengths.values())) > 1:
        yield at, f"the columns differ in length: {lengths}"
        return
    limits = (
        ("summary", 0, len(record.operation_summary)),
        ("lane", 0, len(record.metadata.lanes)),
        ("parent", -1, len(columns)),
    )
    for name, lowest, end in limits:
        column: list[int] = getattr(columns, name)
        if column and not (lowest <= min(column) and max(column) < end):
            i = next(i for i, n in enumerate(column) if not lowest <= n < end)
            yield f"{at}.{name}[{i}]", f"{column[i]} is not from {lowest} to {end - 1}"


def _ascending(values: Sequence[int], at: str, field: str) -> Iterator[Finding]:
    for i in range(1, len(values)):
        if values[i] < values[i - 1]:
            yield f"{at}[{i}]{field}", f"{values[i]} after {values[i - 1]}; times ascend"
            return
