"""The report as a page: what ``memprof report FILE -o out.html`` writes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...model import Profile
from .page import Page, write_page
from .payload import ranks_payload

_STYLES = ("assets/report.css", "assets/gantt.css")
_SCRIPTS = (
    "assets/model.js",
    "assets/plot.js",
    "assets/columns.js",
    "assets/timeline.js",
    "assets/treemap.js",
    "assets/liveset.js",
    "assets/placement.js",
    "assets/addresses.js",
    "assets/curve.js",
    "assets/gantt_model.js",
    "assets/gantt_lanes.js",
    "assets/gantt.js",
    "assets/report.js",
)


def report_page(
    profile: Profile | Sequence[Profile],
    device: str | None = None,
    source: str = "",
    calls: range | None = None,
) -> Page:
    """The report of a profile as a page.

    Args:
        profile: a valid one, or one of each rank of a job.
        device: which one the page shows first; by default the one with the highest peak,
            accelerators before the CPU.
        source: path of the file that it comes from; its name is in the title.
        calls: the page opens at its bars, with these calls of the log in sight; of one profile.

    Raises:
        ValueError: no program uses ``device``.
    """
    name = os.path.basename(source)
    profiles = [profile] if isinstance(profile, Profile) else profile
    return Page(
        title=f"Memory of {name}" if name else "Memory of compiled code",
        payload=ranks_payload(profiles, device, calls),
        scripts=_SCRIPTS,
        styles=_STYLES,
        description="Where the memory of compiled PyTorch code goes, taken by memprof.",
    )


def write_report(
    profile: Profile | Sequence[Profile],
    path: str | os.PathLike[str],
    device: str | None = None,
    source: str = "",
    calls: range | None = None,
) -> int:
    """Write the report as one HTML file, whole or not at all, and return its bytes; see
    ``report_page`` and ``write_page``."""
    return write_page(report_page(profile, device, source, calls), path)
