"""The report as a page, and the comparison of two profiles: what ``memprof report`` and ``memprof
diff`` write with ``-o out.html``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...diff_model import ProfileDiff
from ...model import Profile
from ..sections.diff import of_diff
from .page import Page, script_paths, write_page
from .payload import ranks_payload

_STYLES = ("assets/report.css", "assets/gantt.css")
_SCRIPTS = script_paths(
    *("model", "plot", "columns", "timeline", "treemap", "liveset", "placement", "addresses"),
    *("curve", "gantt_model", "gantt_lanes", "gantt", "report"),
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


def diff_payload(diff: ProfileDiff) -> dict[str, Any]:
    """The page's payload: the sections that the text has."""
    return {"sections": [s.plain() for s in of_diff(diff)]}


def write_diff(
    diff: ProfileDiff, path: str | os.PathLike[str], before: str = "", after: str = ""
) -> int:
    """Write a comparison as one HTML file, see ``write_page``; the names of the files ``before``
    and ``after`` are in its title."""
    names = [os.path.basename(p) for p in (before, after) if p]
    page = Page(
        title=f"What grew: {' → '.join(names)}" if names else "What grew",
        payload=diff_payload(diff),
        scripts=script_paths("diff"),
        styles=("assets/report.css",),
        description="Two memory profiles of PyTorch code compared, taken by memprof.",
    )
    return write_page(page, path)
