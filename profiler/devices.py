"""Which device a report is about."""

from __future__ import annotations

from .model import Profile
from .timeline import Timeline


def timelines(profile: Profile) -> dict[str, Timeline]:
    """The memory of each device that programs use, by name; of the CPU if none is used."""
    devices = {s.device for g in profile.graphs for p in g.programs for s in p.storages if s.nbytes}
    return {d: Timeline(profile, d) for d in sorted(devices) or ["cpu"]}


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
