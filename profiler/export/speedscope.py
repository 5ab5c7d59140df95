"""Flame graphs of bytes: speedscope's file format, and collapsed stacks.

speedscope: https://www.speedscope.app/file-format-schema.json, profiles of type ``sampled`` whose
weights are bytes. Collapsed: one line a stack, frames joined by ``;``, a space and the bytes, as
Brendan Gregg's flamegraph.pl and inferno read it.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from ..devices import devices_of
from ..model import Profile
from ..timeline import Timeline
from ..writing import Output
from .stacks import Frame, Stack, Stacks, account_stacks, data_flow_stacks, peak_between
from .walk import Part


def write_speedscope(profile: Profile, file: Output, part: Part) -> None:
    """Write two profiles a device, see ``export_profile``: bytes live at the peak, and allocated by
    all calls; with them those live at the peak of the data flow, and reserved in an account."""
    frames: dict[Frame, int] = {}
    profiles: list[dict[str, Any]] = []

    def add(name: str, sums: Counter[Stack]) -> None:
        samples = [[frames.setdefault(f, len(frames)) for f in stack] for stack in sums]
        profiles.append(
            {
                "type": "sampled",
                "name": name,
                "unit": "bytes",
                "startValue": 0,
                "endValue": sums.total(),
                "samples": samples,
                "weights": list(sums.values()),
            }
        )

    calls = part.calls(profile)
    for device in part.devices if calls else ():
        timeline = Timeline(profile, device)
        stacks = Stacks(timeline)
        at = peak_between(timeline, calls)
        live = f"live at the peak, in call {at.call + 1:,}"
        add(f"{device}: {live}", stacks.live_at(at.call, at.instant))
        allocated = f"allocated by calls {calls[0] + 1:,} to {calls[-1] + 1:,}"
        add(f"{device}: {allocated}", stacks.allocated(calls))
    for of in profile.dataflow.devices if profile.dataflow is not None else ():
        add(f"{of.device}: live at the peak of the data-flow profile", data_flow_stacks(of))
    for account in profile.accounts:
        if account.device in part.devices and not account.present:
            when = "at the snapshot" if account.snapshot else "at the peak"
            add(f"{account.device}: reserved {when}", account_stacks(account))
    if not profiles:
        add("no calls", Counter())
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": "memprof",
        "exporter": f"memprof {profile.memprof}",
        "activeProfileIndex": 0,
        "profiles": profiles,
        "shared": {"frames": [*map(_frame, frames)]},
    }
    file.write(json.dumps(document, separators=(",", ":")).encode())


def write_collapsed(profile: Profile, file: Output, part: Part, *, allocated: bool = False) -> None:
    """Write collapsed stacks of what is live at the peak, or of all that calls have ``allocated``,
    freed since or not; see ``export_profile``.

    The first frame is the device. A device that no compiled code used has what was reserved in its
    account.
    """
    calls = part.calls(profile)
    compiled = devices_of(profile) if calls else []
    accounts = {a.device: a for a in profile.accounts if not a.present}
    for device in part.devices:
        if device in compiled:
            sums = _at_peak_or_allocated(Timeline(profile, device), calls, allocated)
        elif device in accounts and not allocated:
            sums = account_stacks(accounts[device])
        else:
            continue
        lines: Counter[str] = Counter()
        for stack, nbytes in sums.items():
            # The format has no escapes: `;` parts frames, the last space parts the count.
            names = (" ".join(f.name.replace(";", ",").split()) for f in stack)
            lines[";".join((device, *names))] += nbytes
        for line, nbytes in sorted(lines.items()):
            file.write(f"{line} {nbytes}\n".encode("utf-8", "backslashreplace"))


def _at_peak_or_allocated(timeline: Timeline, calls: range, allocated: bool) -> Counter[Stack]:
    stacks = Stacks(timeline)
    if allocated:
        return stacks.allocated(calls)
    at = peak_between(timeline, calls)
    return stacks.live_at(at.call, at.instant)


def _frame(frame: Frame) -> dict[str, Any]:
    place = {} if frame.file is None else {"file": frame.file, "line": frame.line}
    return {"name": frame.name, **place}
