"""Payload of the HTML page: a profile as plain data.

Note [What the page gets and what it works out]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
What does not depend on the reader is a section (``section.py``), decided and worded in Python. Live
sets of any instant are not in the payload, there are millions; what they are made of is, each once
(``payload_live.py``): for every distinct *step* of the timeline what is live when such a call
begins and between it and the next, for every program its events, which the page replays. A site has
its place in each view, so the page adds up and never attributes; the columns of the tables that it
fills are in ``templates``. Times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from memprof.profiler.live.attribution import Attribution, View
from memprof.profiler.live.devices import timelines
from memprof.profiler.model import GraphRecord, MemorySnapshot, Profile
from memprof.profiler.views.compare.ranks import compare_ranks, ranks_of
from memprof.profiler.views.report.format import format_bytes
from memprof.profiler.views.report.sections import about, live, of_profile, ranks
from memprof.profiler.views.report.summary import summarize

from .elements import category_color
from .payload_gantt import gantt_payload
from .payload_live import Items, live_payload, numbered

_SNAPSHOTS = 12  # of the tracker in the table; its curve has more
_LINE_COLORS = (
    "--accent",
    "--cat-temporary",
    "--cat-gradient",
    "--cat-output",
    "--cat-activation",
)
"""Colours of lines that are no categories, variables of ``assets/base.css``."""


def ranks_payload(
    profiles: Sequence[Profile],
    device: str | None = None,
) -> dict[str, Any]:
    """Payload of a report, with sections that ``elements.py`` takes apart; of several processes how
    they compare, and the report of the one with the highest peak."""
    if len(profiles) == 1:
        return {"ranks": None, "profile": report_payload(profiles[0], device)}
    compared = compare_ranks(profiles, device)
    highest = min(compared.rows, key=lambda r: (-r.peak, r.rank)).rank
    profile = profiles[ranks_of(profiles).index(highest)]
    return {
        "ranks": {"section": ranks.of_ranks(compared), "shown": highest},
        "profile": report_payload(profile, device),
    }


def report_payload(profile: Profile, device: str | None = None) -> dict[str, Any]:
    texts: dict[str, int] = numbered()
    attribution = Attribution(profile)
    found = timelines(profile)
    summary = summarize(profile, device, found, attribution)
    items = Items(attribution)
    return {
        "header": about.header(summary),
        "sections": [s for s in of_profile(summary, format_bytes, _SNAPSHOTS, page=True) if s],
        "curves": dict(_curves(profile)),
        "templates": live.templates(),
        "gantt": gantt_payload(profile),
        "views": [v.value for v in View],
        "device": live_payload(found[summary.device], items),
        "graphs": {g.id: _graph(g, texts) for g in profile.graphs},
        "texts": list(texts),
        # Last: everything above adds to them.
        "sites": items.sites(),
        "places": items.places(),
    }


def _graph(graph: GraphRecord, texts: dict[str, int]) -> dict[str, Any]:
    """Label, and the number in ``texts`` of each line of generated code at which a program does
    something."""
    used = {e.line for p in graph.programs for e in p.events}
    lines = {s.line: texts[s.text[:200]] for s in graph.statements if s.line in used}
    return {"id": graph.id, "label": graph.label, "lines": lines}


def _curves(profile: Profile) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields curves with their names: live bytes by category of each device of the data-flow
    profile, and figures of the tracker's snapshots; times in ns since their first."""
    for d in profile.dataflow.devices if profile.dataflow else ():
        lines = [(c.value, category_color(c.value), of) for c, of in d.bytes.items()]
        yield (
            f"dataflow {d.device}",
            {
                "label": f"Memory of {d.device} over time by category",
                "peak": None if d.peak is None else d.time_ns[d.peak] - d.time_ns[0],
                "stacked": True,
                **_lines(lines, d.time_ns),
            },
        )
    snapshots = profile.tracker.snapshots if profile.tracker else []
    if tracked := _tracked(snapshots):
        colors = cycle(_LINE_COLORS)
        lines = [(name, next(colors), of) for name, of in tracked.items()]
        yield (
            "tracker",
            {
                "label": "Memory of the process over time",
                "peak": None,
                "stacked": False,
                **_lines(lines, [s.time_ns for s in snapshots]),
            },
        )


def _lines(lines: Sequence[tuple[str, str, Sequence[int]]], times: Sequence[int]) -> dict[str, Any]:
    return {
        "time_ns": [time - times[0] for time in times],
        "lines": [
            {"name": name, "variable": color, "values": values} for name, color, values in lines
        ],
    }


def _tracked(snapshots: Sequence[MemorySnapshot]) -> dict[str, list[int]]:
    """Bytes at each snapshot, by name of the figure; where a snapshot has none, the one before."""
    found: dict[str, list[int | None]] = {
        "resident": [s.resident_bytes for s in snapshots],
        "live Python tensors": [s.total_bytes for s in snapshots],
    }
    for device in sorted({d for s in snapshots for d in s.devices} - {"cpu"}):
        memory = [s.devices.get(device) for s in snapshots]
        found[f"{device} allocated"] = [m.allocated_bytes if m else None for m in memory]
        found[f"{device} reserved"] = [m.reserved_bytes if m else None for m in memory]
    out = {}
    for name, values in found.items():
        if len(values) > 1 and any(values):
            last = 0
            out[name] = [last := last if value is None else value for value in values]
    return out
