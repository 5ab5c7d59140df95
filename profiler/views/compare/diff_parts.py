"""Growth of the parts that are not compiled code: the tracker's record, and all that was reserved
on a device.

Note [What is compared of the tracker]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
By device, over the whole record:

* *tracker peak*: the most that the allocator had handed out, on the CPU the most resident bytes: by
  snapshots, operations and the allocator's own highest mark;
* *tracker reserved*: the most that the allocator had from the system (not on the CPU);
* *tracker tensors*: the most bytes of live Python tensors in a snapshot;
* *tracker end*: what was handed out at the last snapshot, which grows with a leak.

A device that one record knows nothing of had nothing in use there: it is compared with 0. A figure
that one record does not have of a device that it knows, or a record of no device at all, is not
compared, since 0 would be a guess; a note says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from memprof.profiler.model import BEFORE, DeviceAccount, Held, Profile, TrackerRecord

from .diff_model import Quantity, changes, place_of


def tracker_changes(
    before: TrackerRecord, after: TrackerRecord, device: str | None
) -> tuple[list[Quantity], list[str]]:
    """Quantities of each device that both records have, and, in words, those that only one has; see
    Note [What is compared of the tracker]."""
    known = [set(_devices(r)) for r in (before, after)]
    found, notes = [], []
    if bool(known[0]) != bool(known[1]):
        notes.append(f"a tracker's record: of no device {'after' if known[0] else 'before'}")
    for name in sorted(set.union(*known)) if all(known) else ():
        if device not in (None, name):
            continue
        has = _figures(after, name)
        for quantity, old in _figures(before, name).items():
            new = has[quantity]
            if old is not None and new is not None:
                found.append(Quantity(quantity, old, new, {}, name))
            elif old is not None or new is not None:
                notes.append(f"{quantity}, {name}: only {'before' if new is None else 'after'}")
    return found, notes


def _devices(record: TrackerRecord) -> Iterator[str]:
    for snapshot in record.snapshots:
        yield from snapshot.devices
    for operation in record.operation_summary:
        yield from operation.devices


def _figures(record: TrackerRecord, device: str) -> dict[str, int | None]:
    """Figures of a record on a device in bytes, by name; None where it has none."""
    memory = [s.devices[device] for s in record.snapshots if device in s.devices]
    operations = [o.devices[device] for o in record.operation_summary if device in o.devices]
    peaks = [n for m in memory for n in (m.highest_bytes, m.peak_bytes)]
    peaks += [o.max_peak for o in operations if o.measured]
    last = [s.devices[device] for s in record.snapshots[-1:] if device in s.devices]
    # Every snapshot has all devices that are in use then.
    idle = 0 if record.snapshots and not memory else None

    def most(figures: Iterable[int | None]) -> int | None:
        return max((n for n in figures if n is not None), default=idle)

    found = {
        "tracker peak": most(peaks),
        "tracker reserved": most(m.reserved_bytes for m in memory),
        "tracker tensors": most(m.tensor_bytes for m in memory),
        "tracker end": most(m.allocated_bytes for m in last),
    }
    if device == "cpu":
        del found["tracker reserved"]  # resident bytes, which are the peak's
    return found


def account_changes(before: Profile, after: Profile) -> tuple[list[Quantity], list[str]]:
    """Reserved bytes of each device that both profiles have an account of: at the fullest instants
    where both know theirs, and at the ends of sessions where neither does; and, in words, devices
    whose fullest instant only one of them knows."""
    old, new = ({a.device: a for a in p.accounts} for p in (before, after))
    found, notes = [], []
    for name in (n for n in new if n in old):
        pair = old[name], new[name]
        was, now = pair
        if was.present != now.present:
            notes.append(f"the peak of {name}: only {'after' if was.present else 'before'}")
        else:  # Of what is there now the account is no peak's.
            found.append(_reserved("reserved end" if now.present else "reserved", name, was, now))
    return found, notes


def _reserved(quantity: str, device: str, old: DeviceAccount, new: DeviceAccount) -> Quantity:
    pair = old, new
    views = {
        "category": changes(*(_bytes(a, lambda r: r.category.label) for a in pair)),
        "module": changes(*(_bytes(a, lambda r: r.modules or "(no module)") for a in pair)),
        "line": changes(*(_bytes(a, _place_of_row) for a in pair)),
    }
    return Quantity(quantity, old.reserved, new.reserved, views, device)


def _bytes(account: DeviceAccount, key: Callable[[Held], str]) -> Counter[str]:
    """Bytes of all that is reserved on a device: blocks by ``key``, the rest by its name."""
    found: Counter[str] = Counter()
    for row in account.rows:
        found[key(row)] += row.nbytes
    found["(rounding)"] += account.rounding
    found["(freed, in use by a stream)"] += account.awaiting
    for pool in account.pools:
        found["(free)" if pool.name == "general" else "(free, private pools)"] += pool.free
    found["(not explained)"] += account.unexplained
    return found


def _place_of_row(row: Held) -> str:
    # Not the nodes: names of FX count from the start of the graph.
    if row.frame is not None:
        return place_of(row.frame)
    if row.holder:
        return row.holder
    return f"({BEFORE})" if row.detail == BEFORE else "(autograd)"
