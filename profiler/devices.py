"""What reports are about: which device, and of each graph which program."""

from __future__ import annotations

from collections import Counter

from .model import Profile
from .timeline import Timeline


def devices_of(profile: Profile) -> list[str]:
    """Devices on which programs of a profile have memory, in order."""
    programs = (p for g in profile.graphs for p in g.programs)
    return sorted({s.device for p in programs for s in p.storages if s.nbytes})


def timelines(profile: Profile) -> dict[str, Timeline]:
    """The memory of each device that programs use, by name; of the CPU if none is used."""
    return {d: Timeline(profile, d) for d in devices_of(profile) or ["cpu"]}


def peak_bytes(timeline: Timeline) -> int:
    """Known live bytes at the peak, 0 without calls."""
    peak = timeline.peak()
    return peak.nbytes if peak else 0


def main_device(found: dict[str, Timeline], wanted: str | None = None) -> str:
    """The device that was asked for; by default an accelerator's if any is used, the one with
    the highest peak.

    Raises:
        ValueError: no program uses ``wanted``.
    """
    if wanted is None:
        return max(found, key=lambda d: (d != "cpu", peak_bytes(found[d])))
    used = [d for d, t in found.items() if t.units]
    if wanted not in used:
        raise ValueError(
            f"no compiled graph of this profile has memory on {wanted!r}; "
            f"devices in it: {', '.join(used) or 'none'}"
        )
    return wanted


def most_called(timeline: Timeline) -> dict[int, int]:
    """Graph id → the unit of its most called program, also if none was called."""
    calls = timeline.profile.calls
    counts = Counter(zip(calls.graph, calls.program, strict=True))
    best: dict[int, tuple[int, int]] = {}
    for u in timeline.units:
        score = counts[u.graph.id, u.index]
        if u.graph.id not in best or score > best[u.graph.id][0]:
            best[u.graph.id] = (score, u.id)
    return {g: unit for g, (_, unit) in best.items()}
