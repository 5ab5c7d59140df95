"""Choice of the device that a report is about, and of one program for each graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from memprof.profiler.model import Profile

from .timeline import Timeline


def devices_of(profile: Profile) -> list[str]:
    """Devices on which programs of a profile have memory, in order."""
    programs = (p for g in profile.graphs for p in g.programs)
    return sorted({s.device for p in programs for s in p.storages if s.nbytes})


def timelines(profile: Profile) -> dict[str, Timeline]:
    """Timeline of each device that programs use, by its name; of the CPU if none is used."""
    return {d: Timeline(profile, d) for d in devices_of(profile) or ["cpu"]}


def peak_bytes(timeline: Timeline) -> int:
    peak = timeline.peak()
    return peak.nbytes if peak else 0


def main_device(found: dict[str, Timeline], wanted: str | None = None) -> str:
    """The device that was asked for; by default an accelerator's if any is used, the one with
    the highest peak. One that only the tracker or the data flow knows gets a timeline without
    memory in ``found``.

    Raises:
        ValueError: the profile has nothing on ``wanted``.
    """
    if wanted is None:
        return max(found, key=lambda d: (d != "cpu", peak_bytes(found[d])))
    profile = next(iter(found.values())).profile
    check_device(wanted, known_devices(profile))
    if wanted not in found:
        found[wanted] = Timeline(profile, wanted)
    return wanted


def known_devices(profile: Profile) -> list[str]:
    """Devices of which anything in a profile knows memory: compiled code, the tracker, the data
    flow, an account; in order."""
    devices = {*devices_of(profile), *(a.device for a in profile.accounts)}
    if profile.dataflow is not None:
        devices |= {d.device for d in profile.dataflow.devices}
    if profile.tracker is not None:
        devices |= {d for s in profile.tracker.snapshots for d in s.devices}
        devices |= {d for o in profile.tracker.operation_summary for d in o.devices}
    return sorted(devices)


def check_device(wanted: str | None, devices: Sequence[str]) -> None:
    """Refuse a device of which a profile knows nothing.

    Raises:
        ValueError: it is not among ``devices``.
    """
    if wanted is not None and wanted not in devices:
        devices = ", ".join(devices) or "none"
        raise ValueError(f"this profile has no memory on {wanted!r}; devices in it: {devices}")


def most_called(timeline: Timeline) -> dict[int, int]:
    """Graph id → the unit of its most called program, also if none was called."""
    counts = Counter(timeline.unit_of_call)
    return {
        graph: max(units, key=lambda u: counts[u.id]).id
        for graph, units in groupby(timeline.units, key=lambda u: u.graph.id)
    }
