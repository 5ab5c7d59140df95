"""Two profiles compared, as a page: what ``memprof diff BEFORE AFTER -o out.html`` writes."""

from __future__ import annotations

import os
from typing import Any

from ...diff_model import ProfileDiff
from ..sections.diff import of_diff
from .page import Page, write_page


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
        scripts=("assets/diff.js",),
        styles=("assets/report.css",),
        description="Two memory profiles of PyTorch code compared, taken by memprof.",
    )
    return write_page(page, path)
