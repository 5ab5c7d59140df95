"""A data-flow profile as the plain columns that profile files hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memprof.profiler.model import Category as ModelCategory
from memprof.profiler.model import (
    DataFlowColumns,
    DataFlowDevice,
    DataFlowStorage,
)

from .categories import Category
from .over_time import ORDER, BytesByCategory, by_category, thinned
from .peak import failed_allocations, frames, live_at
from .profile import DataFlowProfile

POINTS = 20_000
"""Times a device at most; a page or a file has no use for more."""

_MODEL = {c: ModelCategory(c.name.lower()) for c in Category}


def data_flow_columns(
    profile: DataFlowProfile, perf_origin_ns: int = 0, *, points: int = POINTS
) -> DataFlowColumns:
    """What a profile file keeps of a data-flow profile.

    Args:
        profile: from ``profile_memory``.
        perf_origin_ns: ``Profile.perf_origin_ns``: what to take from times of the trace, which
            count from the epoch, to have the clock of the call log.
        points: times a device at most. Of each stretch of time that becomes one, the instant
            with the most bytes is kept, so that peaks stay.
    """
    failures = [replace(f, time_ns=f.time_ns - perf_origin_ns) for f in failed_allocations(profile)]
    devices = [_device(profile, d, perf_origin_ns, points) for d in profile.devices]
    return DataFlowColumns(devices, failures)


def _device(profile: DataFlowProfile, device: str, origin: int, points: int) -> DataFlowDevice:
    table = thinned(_distinct(by_category(profile, device)), points)
    if not len(table.time):
        return DataFlowDevice(device)
    peak = int(np.argmax(table.bytes.sum(axis=1)))
    columns = {
        _MODEL[Category(number)] if number else ModelCategory.UNKNOWN: table.bytes[:, i].tolist()
        for i, number in enumerate(ORDER)
        if table.bytes[:, i].any()
    }
    return DataFlowDevice(
        device=device,
        time_ns=(table.time - origin).tolist(),
        bytes=columns,
        peak=peak,
        live=_live(profile, device, int(table.time[peak]), origin),
    )


def _distinct(table: BytesByCategory) -> BytesByCategory:
    """What was there before the first change gets a time of its own, just before it."""
    if len(table.time) > 1 and table.time[0] == table.time[1]:
        time = table.time.copy()
        time[0] -= 1
        return BytesByCategory(time, table.bytes)
    return table


def _live(profile: DataFlowProfile, device: str, time: int, origin: int) -> list[DataFlowStorage]:
    live = live_at(profile, profile.device_index(device), time)
    lines = frames(profile, [i.storage for i in live], time)
    out = []
    for item in live:
        owner = profile.owner(item.storage, time)
        known = int(profile.storages.created[item.storage]) >= 0
        out.append(
            DataFlowStorage(
                nbytes=item.size,
                category=_MODEL[item.category] if item.category else ModelCategory.UNKNOWN,
                op=profile.operator(item.storage, time),
                module=profile.module(item.storage, time),
                frame=lines.get(item.storage),
                created_ns=profile.storages.life(item.storage)[0] - origin if known else None,
                graph=None if owner is None else owner.graph.id,
            )
        )
    return out
