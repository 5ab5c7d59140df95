"""Which storages of a trace are live at an instant, and which should not have stayed.

Note [Bytes at an instant]
~~~~~~~~~~~~~~~~~~~~~~~~~~
The bytes at time t are those of storages born at or before t and released after t;
storages that were there before count from the start, whether they are ever released or
not. A storage that is written to keeps its bytes and may change its category: the
version is that of the last write before t.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import numpy as np

from memprof.profiler.model import Category, DataFlowLeak, DataFlowStorage, SourceFrame

from .columns import NODE, Ints
from .profile import DataFlowProfile
from .source import frames_of_events


def storages_at(
    profile: DataFlowProfile,
    device: int,
    time: int,
    origin: int = 0,
    lines: Mapping[int, SourceFrame] | None = None,
) -> list[DataFlowStorage]:
    """Storages live at a time (ns), largest first.

    Args:
        profile: of the trace.
        device: index in ``EventColumns.devices``.
        time: ns since the epoch.
        origin: what to take from times to have the clock of the call log.
        lines: ``frames`` of the storages, where they are known already.
    """
    rows = live_rows(profile, device, time).tolist()
    lines = frames(profile, rows, time) if lines is None else lines
    leaves = profile.columns.leaves
    backward = np.sort(leaves.start[leaves.backward == NODE])
    out = []
    for row in rows:
        category = profile.category(row, profile.version_at(row, time))
        born, died = profile.storages.life(row)
        # One of the backward's nodes began in its life.
        awaits = np.searchsorted(backward, born) < np.searchsorted(backward, died)
        awaited = category is Category.ACTIVATION and bool(awaits)
        out.append(_storage(profile, row, time, category, lines.get(row), origin, awaited))
    return out


def live_rows(profile: DataFlowProfile, device: int, time: int) -> Ints:
    """Rows of ``DataFlowProfile.storages`` that are live at a time, largest first."""
    s = profile.storages
    rows = _present(profile, device)
    rows = rows[(s.born[rows] <= time) & (s.died[rows] > time) & (s.size[rows] > 0)]
    return rows[np.argsort(-s.size[rows], kind="stable")]


def leaks(profile: DataFlowProfile, device: int, most: int) -> list[tuple[int, int, int]]:
    """(storage, step that made it, steps it outlived) of the ``most`` largest storages that
    outlived their step and the one after, largest first.

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
    stay = (Category.PARAMETER, Category.OPTIMIZER_STATE)
    found = [
        (row, step, n)
        for row, step, n in zip(rows.tolist(), made_in.tolist(), held.tolist(), strict=True)
        if n >= 2 and profile.category(row) not in stay
    ]
    return sorted(found, key=lambda f: (-int(s.size[f[0]]), f[0]))[:most]


def leaked(
    profile: DataFlowProfile,
    found: Iterable[tuple[int, int, int]],
    origin: int,
    lines: Mapping[int, SourceFrame],
) -> list[DataFlowLeak]:
    """What ``leaks`` has found, as the model has it; ``lines`` are ``frames`` of the storages."""
    out = []
    for row, step, n in found:
        category = profile.category(row, sys.maxsize)  # of its last version
        storage = _storage(profile, row, None, category, lines.get(row), origin)
        out.append(DataFlowLeak(storage, step, n))
    return out


def frames(
    profile: DataFlowProfile, storages: Iterable[int], time: int | None = None
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


def _storage(
    profile: DataFlowProfile,
    row: int,
    time: int | None,
    category: Category,
    frame: SourceFrame | None,
    origin: int,
    awaited: bool = False,
) -> DataFlowStorage:
    owner = profile.owner(row, time)
    known = int(profile.storages.created[row]) >= 0
    return DataFlowStorage(
        nbytes=int(profile.storages.size[row]),
        category=category,
        op=profile.operator(row, time),
        module=profile.module(row, time),
        frame=frame,
        created_ns=profile.storages.life(row)[0] - origin if known else None,
        graph=None if owner is None else owner.graph.id,
        awaited=awaited,
        why=profile.why_unknown(row) if category is Category.UNKNOWN else "",
    )


def _present(profile: DataFlowProfile, device: int) -> Ints:
    """Storages of a device that take part in the changes."""
    s = profile.storages
    taking_part = np.concatenate(
        [profile.torch_categories.present, np.ones(len(s) - s.keys, np.bool_)]
    )
    return np.flatnonzero(taking_part & (s.device == device))
