"""What a report says of a profile's optional parts, as data: tracker and data flow."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..attribution import Breakdown, View, data_flow_breakdown
from ..model import Category, DataFlowLeak, DataFlowStorage, Profile, TensorInfo, TrackerRecord

_VIEWS = (View.LINE, View.MODULE, View.NODE)
_LEAKS = 10
"""Storages that outlived their step in a report, the largest."""


@dataclass(frozen=True, slots=True)
class DataFlowPeak:
    """The peak of one device in the data-flow profile: eager and compiled code together.

    Attributes:
        device: e.g. ``cuda:0``.
        nbytes: live bytes.
        after_ns: time from the first entry of the profile.
        categories: bytes, largest first.
        times: number of entries.
        unknown: bytes without a category, by reason, largest first.
        leaks: the largest storages that outlived their training step.
        reserved, allocated: what the caching allocator held then, None if it has none.
        replay_reserved: bytes that pools of CUDA graphs and the CPU arena held at the end.
        notes: on the whole run.
        views: what was live then, by line, module and operator.
        live: the same one by one, largest first.
        graphs: labels of the graphs that ``live`` names by their ids.
    """

    device: str
    nbytes: int
    after_ns: int
    categories: dict[Category, int]
    times: int
    unknown: dict[str, int] = field(default_factory=dict)
    leaks: list[DataFlowLeak] = field(default_factory=list)
    reserved: int | None = None
    allocated: int | None = None
    replay_reserved: int = 0
    notes: list[str] = field(default_factory=list)
    views: dict[View, Breakdown] = field(default_factory=dict)
    live: list[DataFlowStorage] = field(default_factory=list)
    graphs: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationRow:
    """All invocations of one tracked operation at one place.

    Attributes:
        path: names from the root, joined by ``/``.
        count: invocations that ended; ``failed`` of them with an exception.
        total_ns: time in all of them.
        tensor_bytes: what live tensors grew by, all of them together.
        peaks: the most bytes inside an invocation, by device.
    """

    path: str
    count: int
    failed: int
    total_ns: int
    tensor_bytes: int
    peaks: dict[str, int]


@dataclass(frozen=True, slots=True)
class TrackerSummary:
    """What the run-time tracker saw.

    Attributes:
        state, reason: how it ended.
        span_ns: from its start to its end.
        snapshots: that are in the profile.
        tensors: the most bytes that live Python tensors referred to, all devices.
        resident: the most bytes that were resident, None if unknown.
        devices: the most bytes of each device's allocator, None if unknown.
        largest: the largest tensors at the snapshot with most in tensors of those that have
            any described.
        operations: most time first.
        problems: of the tracker itself.
    """

    state: str
    reason: str
    span_ns: int
    snapshots: int
    tensors: int
    resident: int | None
    devices: dict[str, int | None]
    operations: list[OperationRow]
    problems: list[str]
    largest: list[TensorInfo] = field(default_factory=list)


def data_flow_peaks(profile: Profile) -> list[DataFlowPeak]:
    """One entry a device that had bytes."""
    out = []
    labels = {g.id: g.label for g in profile.graphs}
    for device in profile.dataflow.devices if profile.dataflow else ():
        at = device.peak
        if at is None:
            continue
        shares = {c: column[at] for c, column in device.bytes.items() if column[at]}
        unknown = data_flow_breakdown(device.live, View.CATEGORY).remainder
        named = {s.graph for s in device.live}
        views = {v: data_flow_breakdown(device.live, v) for v in _VIEWS}
        out.append(
            DataFlowPeak(
                device.device,
                device.bytes_at(at),
                device.time_ns[at] - device.time_ns[0],
                dict(sorted(shares.items(), key=lambda s: -s[1])),
                len(device.time_ns),
                {share.key: share.nbytes for share in unknown},
                device.leaks[:_LEAKS],
                device.reserved,
                device.allocated,
                device.replay_reserved,
                profile.dataflow.notes if profile.dataflow else [],
                views,
                sorted(device.live, key=lambda s: -s.nbytes),
                {g: label for g, label in labels.items() if g in named},
            )
        )
    return out


def tracker_summary(record: TrackerRecord | None) -> TrackerSummary | None:
    """None if there is no record."""
    if record is None:
        return None
    devices: dict[str, int | None] = {}
    for snapshot in record.snapshots:
        for name, memory in snapshot.devices.items():
            known = devices.setdefault(name, None)
            highest = memory.highest_bytes
            if highest is None:
                highest = memory.allocated_bytes
            if highest is not None:
                devices[name] = max(known or 0, highest)
    resident = [s.resident_bytes for s in record.snapshots if s.resident_bytes is not None]
    operations = []
    for i, o in enumerate(record.operation_summary):
        peaks = {name: d.max_peak for name, d in o.devices.items() if d.measured}
        path, grew = record.path(i), o.tensor_bytes_delta
        operations.append(OperationRow(path, o.count, o.failed, o.total_ns, grew, peaks))
    about, described = record.metadata, record.most_described()
    return TrackerSummary(
        state=about.state.value,
        reason=about.reason,
        span_ns=max(0, about.end_ns - about.start_ns),
        snapshots=len(record.snapshots),
        tensors=max((s.total_bytes for s in record.snapshots), default=0),
        resident=max(resident, default=None),
        devices=dict(sorted(devices.items())),
        operations=sorted(operations, key=lambda o: -o.total_ns),
        problems=about.problems,
        largest=list(described.largest) if described is not None else [],
    )
