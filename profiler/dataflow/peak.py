"""What is live at an instant, above all at the peak, and what should not have stayed.

Note [Bytes at an instant]
~~~~~~~~~~~~~~~~~~~~~~~~~~
The bytes at time t are those of storages born at or before t and released after t;
storages that were there before count from the start, whether they are ever released or
not. A storage that is written to keeps its bytes and may change its category: the
version is that of the last write before t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from memprof.profiler.model import DataFlowFailure, SourceFrame

from .categories import Category
from .columns import NODE, Ints, ScopeKind
from .profile import DataFlowProfile
from .source import frames_of_events


@dataclass(frozen=True, slots=True)
class LiveStorage:
    """A storage at an instant.

    Attributes:
        storage: row of ``DataFlowProfile.storages``.
        version: of a storage with a key, else 0.
        size: bytes.
        category: None is unknown.
    """

    storage: int
    version: int
    size: int
    category: Category | None


@dataclass(slots=True)
class Share:
    """Live bytes with something in common."""

    name: str
    bytes: int = 0
    storages: int = 0


@dataclass(frozen=True, slots=True)
class SavedActivation:
    """An activation that the backward waits for.

    Attributes:
        storage: row of ``DataFlowProfile.storages``.
        size: bytes.
        module, operator, line: what made it, None if unknown.
    """

    storage: int
    size: int
    module: str | None
    operator: str | None
    line: str | None


@dataclass(frozen=True, slots=True)
class LeakSuspect:
    """A storage that outlived the step that made it and the whole step after.

    Attributes:
        storage: row of ``DataFlowProfile.storages``.
        size: bytes.
        category: None is unknown.
        made_in: number of the step, from 0.
        held_for: steps it outlived.
        module, operator, line: what made it, None if unknown.
    """

    storage: int
    size: int
    category: Category | None
    made_in: int
    held_for: int
    module: str | None
    operator: str | None
    line: str | None


@dataclass(slots=True)
class PeakReport:
    """The peak of one device.

    Attributes:
        device: e.g. ``cpu``.
        time: ns since the epoch.
        bytes: live bytes.
        categories, modules, operators, lines: the live bytes by each, largest first;
            they add up to ``bytes``.
        unknown: bytes without a category, by reason.
        saved: largest activations waiting for the backward at that time.
        leaks: leak suspects of the whole trace, largest first.
        allocator_reserved, allocator_allocated: what the caching allocator held then,
            None on devices without one. Their difference is what it holds idle or lost
            to fragmentation.
        replay_reserved: what pools of CUDA graphs and the CPU arena hold from the system when
            the trace is analysed, bytes; what is live in it is part of ``bytes``. On CUDA it
            is part of ``allocator_reserved`` too.
        failures: allocations on this device, or on one that is not known, that failed for want
            of memory; times since the epoch.
    """

    device: str
    time: int
    bytes: int
    categories: list[Share] = field(default_factory=list)
    modules: list[Share] = field(default_factory=list)
    operators: list[Share] = field(default_factory=list)
    lines: list[Share] = field(default_factory=list)
    unknown: dict[str, int] = field(default_factory=dict)
    saved: list[SavedActivation] = field(default_factory=list)
    leaks: list[LeakSuspect] = field(default_factory=list)
    allocator_reserved: int | None = None
    allocator_allocated: int | None = None
    replay_reserved: int = 0
    failures: list[DataFlowFailure] = field(default_factory=list)


def bytes_over_time(profile: DataFlowProfile, device: int) -> tuple[Ints, Ints]:
    """Times (ns, ascending) and the live bytes from each on; the first is the start."""
    rows = _present(profile, device)
    s = profile.storages
    limits = np.iinfo(np.int64)
    times = np.concatenate([s.born[rows], s.died[rows]])
    deltas = np.concatenate([s.size[rows], -s.size[rows]])
    deltas, times = deltas[times < limits.max], times[times < limits.max]
    found, inverse = np.unique(times, return_inverse=True)
    steps = np.zeros(len(found), np.int64)
    np.add.at(steps, inverse, deltas)
    if len(found) and found[0] == limits.min:
        found[0] = found[1] - 1 if len(found) > 1 else profile.columns.begin
    return found, np.cumsum(steps)


def peak(profile: DataFlowProfile, device: int) -> tuple[int, int]:
    """Time (ns) and bytes of the first instant with the most live bytes."""
    times, live = bytes_over_time(profile, device)
    if not len(times):
        return 0, 0
    at = int(np.argmax(live))
    return int(times[at]), int(live[at])


def live_at(profile: DataFlowProfile, device: int, time: int) -> list[LiveStorage]:
    """Storages live at a time, largest first."""
    s = profile.storages
    rows = _present(profile, device)
    rows = rows[(s.born[rows] <= time) & (s.died[rows] > time) & (s.size[rows] > 0)]
    rows = rows[np.argsort(-s.size[rows], kind="stable")]
    out = []
    for row in rows.tolist():
        version = profile.values_of(row, time) if row < s.keys else 0
        out.append(
            LiveStorage(row, version, int(s.size[row]), storage_category(profile, row, version))
        )
    return out


def storage_category(profile: DataFlowProfile, row: int, version: int) -> Category | None:
    """The category of a version of a storage."""
    if row < profile.storages.keys:
        return profile.category(row, version)
    number = int(profile.corrected.of_block[row - profile.storages.keys])
    return Category(number) if number else None


def _present(profile: DataFlowProfile, device: int) -> Ints:
    """Storages of a device that take part in the timeline."""
    s = profile.storages
    taking_part = np.concatenate(
        [profile.torch_categories.present, np.ones(len(s) - s.keys, np.bool_)]
    )
    return np.flatnonzero(taking_part & (s.device == device))


def peak_report(profile: DataFlowProfile, device: str, *, largest: int = 10) -> PeakReport:
    """What is live at the peak of a device, and why.

    Args:
        profile: from ``profile_memory``.
        device: e.g. ``cpu`` or ``cuda:0``.
        largest: how many saved activations and leak suspects to list.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    index = profile.device_index(device)
    time, total = peak(profile, index)
    live = live_at(profile, index, time)
    leaks = find_leaks(profile, index)[:largest]
    leaves = profile.columns.leaves
    backward = np.sort(leaves.start[leaves.backward == NODE])
    waiting = (
        i
        for i in live
        if i.category is Category.ACTIVATION
        and _awaits_backward(profile.storages.life(i.storage), backward)
    )
    saved = list(islice(waiting, largest))
    lines = {
        s: frame.location
        for s, frame in frames(
            profile, [i.storage for i in live] + [k[0] for k in leaks], time
        ).items()
    }

    def by(name: Callable[[LiveStorage], str]) -> list[Share]:
        shares: dict[str, Share] = {}
        for item in live:
            text = name(item)
            share = shares.setdefault(text, Share(text))
            share.bytes += item.size
            share.storages += 1
        return sorted(shares.values(), key=lambda s: (-s.bytes, s.name))

    report = PeakReport(
        device=device,
        time=time,
        bytes=total,
        categories=by(lambda i: i.category.name.lower() if i.category else "unknown"),
        modules=by(lambda i: profile.module(i.storage, time) or _before(profile, i.storage)),
        operators=by(lambda i: profile.operator(i.storage, time) or _before(profile, i.storage)),
        lines=by(lambda i: lines.get(i.storage) or _before(profile, i.storage)),
    )
    for item in live:
        if item.category is None:
            why = profile.why_unknown(item.storage)
            report.unknown[why] = report.unknown.get(why, 0) + item.size
    for item in saved:
        s = item.storage
        report.saved.append(
            SavedActivation(
                s, item.size, profile.module(s, time), profile.operator(s, time), lines.get(s)
            )
        )
    for row, made_in, held in leaks:
        last = (
            int(profile.graph.first_value[row + 1] - profile.graph.first_value[row]) - 1
            if (row < profile.storages.keys)
            else 0
        )
        report.leaks.append(
            LeakSuspect(
                storage=row,
                size=int(profile.storages.size[row]),
                category=storage_category(profile, row, last),
                made_in=made_in,
                held_for=held,
                module=profile.module(row),
                operator=profile.operator(row),
                line=lines.get(row),
            )
        )
    report.replay_reserved = sum(m.reserved for m in profile.memory if m.device == device)
    a = profile.columns.allocations
    told = np.flatnonzero((a.device == index) & (a.reserved >= 0) & (a.start <= time))
    if len(told):
        last_row = told[np.argmax(a.start[told])]
        report.allocator_reserved = int(a.reserved[last_row])
        report.allocator_allocated = int(a.allocated[last_row])
    report.failures = [f for f in failed_allocations(profile) if f.device in (None, device)]
    return report


def failed_allocations(profile: DataFlowProfile) -> list[DataFlowFailure]:
    """Allocations that failed for want of memory, in order of time; times since the epoch."""
    columns = profile.columns
    found = columns.out_of_memory
    if not found:
        return []
    known = columns.devices
    live = {d: bytes_over_time(profile, known.index(d)) for f in found if (d := f.device) in known}
    lines: dict[int, SourceFrame] = {}
    if columns.kineto is not None:
        events = {f.event for f in found}
        lines = frames_of_events(columns.kineto, events, skip_compiler=columns.skip_compiler)
    out = []
    for f in found:
        nbytes = None if f.device is None else 0
        if f.device in live:
            times, totals = live[f.device]
            at = int(np.searchsorted(times, f.time, side="right")) - 1
            nbytes = int(totals[at]) if at >= 0 else 0
        scope = f.scope
        while scope >= 0 and columns.scopes.kind[scope] != ScopeKind.MODULE:
            scope = int(columns.scopes.parent[scope])
        out.append(
            DataFlowFailure(
                f.time,
                None if f.device is None else str(f.device),
                nbytes,
                columns.names[f.op] if f.op >= 0 else None,
                profile.module_path(scope) if scope >= 0 else None,
                lines.get(f.event),
            )
        )
    return out


def _before(profile: DataFlowProfile, storage: int) -> str:
    """What to say of a storage whose maker is not known."""
    if profile.storages.created[storage] < 0:
        return "(before the trace)"
    return "(unattributed)"


def _awaits_backward(life: tuple[int, int], starts: Ints) -> bool:
    """Whether one of the backward's nodes, which start at ``starts``, began in a life."""
    born, died = life
    after = int(np.searchsorted(starts, born))
    return after < len(starts) and int(starts[after]) < died


def find_leaks(profile: DataFlowProfile, device: int) -> list[tuple[int, int, int]]:
    """(storage, step that made it, steps it outlived) of leak suspects, largest first.

    Gradients and the like may well live into the next step, up to where it clears them;
    what is still there when the next step ends is held by something else. Parameters and
    optimizer state are meant to stay.
    """
    s, context = profile.storages, profile.context
    rows = _present(profile, device)
    rows = rows[(s.created[rows] >= 0) & (s.size[rows] > 0)]
    made_in = context.step(profile.columns.allocations.start[s.created[rows]])
    ended = np.searchsorted(context.steps, s.died[rows], side="left")
    # What is never released outlives every step there is, up to the end of the trace.
    held = ended - made_in
    found = [
        (int(row), int(step), int(n))
        for row, step, n in zip(rows, made_in, held, strict=True)
        if n >= 2 and not _meant_to_stay(profile, int(row))
    ]
    return sorted(found, key=lambda f: (-int(s.size[f[0]]), f[0]))


def _meant_to_stay(profile: DataFlowProfile, row: int) -> bool:
    return storage_category(profile, row, 0) in (Category.PARAMETER, Category.OPTIMIZER_STATE)


def frames(
    profile: DataFlowProfile, storages: list[int], time: int | None = None
) -> dict[int, SourceFrame]:
    """The line of user code that made each storage, or whose value is in it at a time (ns),
    where it is known.

    Compiled code names the line that its FX node came from; for the rest the trace is
    walked once more, down to these allocations only.
    """
    out: dict[int, SourceFrame] = {}
    events: dict[int, list[int]] = {}
    for storage in dict.fromkeys(storages):
        row = int(profile.storages.created[storage])
        if row < 0:
            continue
        owner = profile.owner(storage, time)
        if owner is not None and owner.node is not None and owner.node.frame is not None:
            out[storage] = owner.node.frame
            continue
        events.setdefault(int(profile.columns.allocations.event[row]), []).append(storage)
    columns = profile.columns
    if columns.kineto is not None:
        found = frames_of_events(columns.kineto, set(events), skip_compiler=columns.skip_compiler)
        for event, frame in found.items():
            for storage in events[event]:
                out[storage] = frame
    return out
