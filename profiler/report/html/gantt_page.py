"""Operations, calls and memory over time: what ``memprof gantt FILE -o out.html`` writes.

Note [Bars on a plain canvas]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The page draws bars itself. Measured with 20,000 bars in headless Chromium on two busy cores: a
custom series of ECharts, the library of the report page, draws them in 150 ms, zooms in 15 to 56
ms a frame, and takes 75 ms to find what is under the pointer at every move, since it tests every
shape. Rows hold sorted bars that do not overlap, so both drawing and finding are binary searches
here (``assets/gantt_model.js``): 2 to 5 ms a frame, which draws at most one bar a pixel and row,
and 1 to 4 ms a move, the tooltip included. And the library is 1.1 MB."""

from __future__ import annotations

import os

from ...model import Profile
from .gantt_payload import gantt_payload
from .page import Page, write_page

__all__ = ["gantt_page", "write_gantt"]

_STYLES = ("assets/gantt.css",)
_SCRIPTS = (
    "assets/columns.js",
    "assets/gantt_model.js",
    "assets/gantt_view.js",
    "assets/gantt_panels.js",
    "assets/gantt_sections.js",
    "assets/gantt.js",
)


def gantt_page(
    profile: Profile, source: str = "", first: int | None = None, last: int | None = None
) -> Page:
    """The Gantt chart of a profile as a page.

    Args:
        profile: a valid one.
        source: path of the file that it comes from; its name is in the title.
        first, last: calls of the log, both included; None is its end.

    Raises:
        IndexError: the log has no such calls.
    """
    name = os.path.basename(source)
    return Page(
        title=f"Timeline of {name}" if name else "Timeline",
        payload=gantt_payload(profile, name, first, last),
        scripts=_SCRIPTS,
        styles=_STYLES,
        description="Operations, compiled calls and memory over time, taken by memprof.",
        charts=False,
    )


def write_gantt(
    profile: Profile,
    path: str | os.PathLike[str],
    source: str = "",
    first: int | None = None,
    last: int | None = None,
) -> int:
    """Write the Gantt chart as one HTML file, whole or not at all, and return its bytes.

    Raises:
        ProfileNotWritableError: the operating system refuses; what was there is unchanged.
        IndexError: the log has no such calls.
    """
    return write_page(gantt_page(profile, source, first, last), path)
