"""What grew of the parts that are not compiled code: the tracker's record and the data flow.

Note [What is compared of the tracker]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
By device, over the whole record:

* *tracker peak*: the most that the allocator had handed out, on the CPU the most resident bytes: by
  snapshots, operations and the allocator's own highest mark;
* *tracker reserved*: the most that the allocator had from the system (not on the CPU);
* *tracker tensors*: the most bytes of live Python tensors in a snapshot;
* *tracker end*: what was handed out at the last snapshot: what remained, and grows with a leak.

And by operation, of those that both records have (one that was added or renamed has not grown):

* *peak of OPERATION*: the highest inside any of its invocations, by device;
* *kept by OPERATION*: what an invocation leaves behind it on average, so that runs of different
  length compare: of an accelerator's allocator, and of live Python tensors. Resident bytes are not
  compared in this way: what one invocation changes of them is noise. Averages are whole blocks of
  ``BLOCK`` bytes, the least that torch's allocators hand out.

A figure that one record does not have is not compared: 0 would be a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from .diff_model import Quantity, changes, place_of
from .model import (
    DataFlowDevice,
    DataFlowStorage,
    DeviceMemory,
    OperationSummary,
    Profile,
    TrackerRecord,
)

__all__ = ["dataflow_quantities", "devices_of_parts", "operation_quantities", "tracker_quantities"]

BLOCK = 512
_TENSORS = "python tensors"


def devices_of_parts(profile: Profile) -> set[str]:
    """The devices of which the tracker or the data flow of a profile has figures."""
    found: set[str] = set()
    if profile.tracker is not None:
        found |= {d for s in profile.tracker.snapshots for d in s.devices}
        found |= {d for o in profile.tracker.operation_summary for d in o.devices}
    if profile.dataflow is not None:
        found |= {d.device for d in profile.dataflow.devices}
    return found


def tracker_quantities(
    before: TrackerRecord, after: TrackerRecord, device: str | None = None
) -> Iterator[Quantity]:
    """What both records say of each device; see Note [What is compared of the tracker].

    Args:
        before, after: the records.
        device: of this one alone.
    """
    for name in sorted({d for r in (before, after) for d in _devices(r)}):
        if device not in (None, name):
            continue
        for quantity, figure in _FIGURES.items():
            if quantity == "tracker reserved" and name == "cpu":
                continue  # resident bytes, which are the peak's
            old, new = figure(before, name), figure(after, name)
            if old is not None and new is not None:
                yield Quantity(quantity, old, new, {}, name)


def _devices(record: TrackerRecord) -> Iterator[str]:
    for snapshot in record.snapshots:
        yield from snapshot.devices
    for operation in record.operation_summary:
        yield from operation.devices


def _most(
    record: TrackerRecord, device: str, figure: Callable[[DeviceMemory], int | None]
) -> int | None:
    known = (figure(s.devices[device]) for s in record.snapshots if device in s.devices)
    return max((n for n in known if n is not None), default=None)


def _peak(record: TrackerRecord, device: str) -> int | None:
    operations = [
        o.devices[device].max_peak
        for o in record.operation_summary
        if device in o.devices and o.devices[device].measured
    ]
    snapshots = (
        _most(record, device, lambda m: m.highest_bytes),
        _most(record, device, lambda m: m.peak_bytes),
    )
    return max((n for n in (*snapshots, *operations) if n is not None), default=None)


def _end(record: TrackerRecord, device: str) -> int | None:
    last = [s.devices[device] for s in record.snapshots[-1:] if device in s.devices]
    return last[0].allocated_bytes if last else None


_FIGURES: dict[str, Callable[[TrackerRecord, str], int | None]] = {
    "tracker peak": _peak,
    "tracker reserved": lambda r, device: _most(r, device, lambda m: m.reserved_bytes),
    "tracker tensors": lambda r, device: _most(r, device, lambda m: m.tensor_bytes),
    "tracker end": _end,
}


def operation_quantities(
    before: TrackerRecord, after: TrackerRecord, device: str | None = None
) -> Iterator[Quantity]:
    """What both records say of each operation, in order of ``before``."""
    old, new = _by_path(before), _by_path(after)
    for path in old:
        if path not in new:
            continue
        a, b = old[path], new[path]
        for name in sorted(a.devices.keys() & b.devices.keys()):
            one, other = a.devices[name], b.devices[name]
            if device not in (None, name) or not (one.measured and other.measured):
                continue
            yield Quantity(f"peak of {path}", one.max_peak, other.max_peak, {}, name)
            if name != "cpu":
                kept = [_mean(d.total_delta, d.measured) for d in (one, other)]
                yield Quantity(f"kept by {path}", kept[0], kept[1], {}, name)
        if device is None and a.tensors_measured and b.tensors_measured:
            kept = [_mean(o.tensor_bytes_delta, o.tensors_measured) for o in (a, b)]
            yield Quantity(f"kept by {path}", kept[0], kept[1], {}, _TENSORS)


def _by_path(record: TrackerRecord) -> dict[str, OperationSummary]:
    return {record.path(i): o for i, o in enumerate(record.operation_summary)}


def _mean(total: int, count: int) -> int:
    return round(total / count / BLOCK) * BLOCK


def dataflow_quantities(
    before: Profile, after: Profile, device: str | None = None
) -> Iterator[Quantity]:
    """The peak of each device that the data flow of both profiles has, by category and place."""
    if before.dataflow is None or after.dataflow is None:
        return
    old = {d.device: d for d in before.dataflow.devices}
    for b in after.dataflow.devices:
        a = old.get(b.device)
        if a is None or device not in (None, b.device):
            continue
        views = {
            "category": changes(_categories(a), _categories(b)),
            "module": changes(*(_live(d, _module) for d in (a, b))),
            "node": changes(*(_live(d, _place) for d in (a, b))),
        }
        totals = [sum(_categories(d).values()) for d in (a, b)]
        yield Quantity("data-flow peak", totals[0], totals[1], views, b.device)


def _categories(device: DataFlowDevice) -> Counter[str]:
    if device.peak is None:
        return Counter()
    peak = device.peak
    return Counter({c.label: n for c, column in device.bytes.items() if (n := column[peak])})


def _live(device: DataFlowDevice, key: Callable[[DataFlowStorage], str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for storage in device.live:
        found[key(storage)] += storage.nbytes
    return found


def _module(storage: DataFlowStorage) -> str:
    return "(unknown)" if storage.module is None else storage.module or "(root)"


def _place(storage: DataFlowStorage) -> str:
    op = (storage.op or "?").removeprefix("aten::")
    return f"{op} in {_module(storage)} at {place_of(storage.frame)}"
