"""Pages for the browser: one self-contained HTML file each, opened without a server or a network.
``payload.py`` says what the report knows, as plain data; ``assets/`` draws it.

Note [What a page may do]
~~~~~~~~~~~~~~~~~~~~~~~~~
A page is opened from disk, mailed and attached to bug reports: its content security policy forbids
every connection and every script but the one written into it here, named by its SHA-256. What comes
from a profile (source lines, paths, reasons) is data from elsewhere, and stays data:

* it is in the file as base64 of gzip of JSON, an alphabet in which no tag can be written;
* the title, the only text of a profile in the markup, is escaped;
* scripts put it into the document as text nodes and attributes, never as markup
  (``elements.py``, ``assets/page.js``), and if one ever did, the policy keeps it from running.

Styles may be inline, because charts and tables set widths and positions. ``assets/vendor/`` has
uPlot as published, which draws on canvases and loads nothing.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from memprof.profiler.model import Profile
from memprof.profiler.support.writing import write_whole
from memprof.profiler.views.compare.diff_model import ProfileDiff
from memprof.profiler.views.report.sections.diff import of_diff

from .elements import report_elements, titled
from .payload import ranks_payload

_SCRIPTS = ["page.js", "table.js"]
_STYLES = ["base.css", "report.css"]
_REPORT = [
    "vendor/uPlot.iife.min.js",
    "model.js",
    "chart.js",
    "timeline.js",
    "liveset.js",
    "gantt.js",
    "report.js",
]
_ENDS = re.compile(r"</script|<!--|</style", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """A page before it is written.

    Attributes:
        title: In the tab and the first heading.
        payload: JSON values; ``start(draw)`` of ``assets/page.js`` calls ``draw`` with them.
        scripts: Names in ``assets/``, after those that every page has, in order of need: they are
            the parts of one function. The last one calls ``start``.
        styles: Names in ``assets/``, before those that every page has.
        markup: Names in ``assets/`` of templates that the scripts fill.
    """

    title: str
    payload: Any
    scripts: Sequence[str]
    styles: Sequence[str] = ()
    markup: Sequence[str] = ()


def report_page(
    profile: Profile | Sequence[Profile],
    device: str | None = None,
    source: str = "",
    calls: range | None = None,
) -> HtmlPage:
    """The report of a valid profile, or of one of each rank of a job, as a page.

    Args:
        device: shown first; by default the one with the highest peak, accelerators before the CPU.
        source: path of the file that it comes from; its name is in the title.
        calls: the page opens at its bars, with these calls of the log in sight; of one profile.

    Raises:
        ValueError: no program uses ``device``.
    """
    profiles = [profile] if isinstance(profile, Profile) else profile
    title = f"Memory of {os.path.basename(source) or 'compiled code'}"
    return HtmlPage(
        title=title,
        payload=report_elements(ranks_payload(profiles, device, calls)),
        scripts=_REPORT,
        styles=["vendor/uPlot.min.css"],
        markup=["report.html"],
    )


def write_report(
    profile: Profile | Sequence[Profile],
    path: str | os.PathLike[str],
    device: str | None = None,
    source: str = "",
    calls: range | None = None,
) -> int:
    """Write the ``report_page``, and return its bytes; see ``write_page``."""
    return write_page(report_page(profile, device, source, calls), path)


def write_diff(
    diff: ProfileDiff, path: str | os.PathLike[str], before: str = "", after: str = ""
) -> int:
    """Write a comparison: the sections that the text has; see ``write_page``. The names of the
    files ``before`` and ``after`` are in its title."""
    names = " → ".join(os.path.basename(p) for p in (before, after) if p)
    title = f"What grew: {names}" if names else "What grew"
    sections = [titled(s.plain()) for s in of_diff(diff)]
    return write_page(HtmlPage(title, sections, ["diff.js"]), path)


def build_page(page: HtmlPage) -> str:
    """The page as one HTML document. The same page gives the same text.

    Raises:
        ValueError: an asset would end its own element, or the payload has no JSON form.
        FileNotFoundError: there is no such asset.
    """
    parts = "\n".join(_asset(name) for name in [*_SCRIPTS, *page.scripts])
    styles = "\n".join(_asset(name) for name in [*page.styles, *_STYLES])
    templates = "".join(_asset(name) for name in page.markup)
    script = f'(() => {{\n"use strict";\n{parts}}})();\n'
    policy = (
        f"default-src 'none'; script-src 'sha256-{_base64(sha256(script.encode()).digest())}'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = escape(page.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{styles}</style>
</head>
<body>
<a class="skip visually-hidden" href="#main">Skip to the content</a>
<header class="page-header">
<h1>{title}</h1>
<select id="theme" aria-label="Theme">
<option value="auto">Theme: auto</option><option value="light">Theme: light</option>\
<option value="dark">Theme: dark</option></select>
</header>
<noscript><p class="notice">This page draws itself with JavaScript, which is off here. \
It needs no network.</p></noscript>
<div id="page-error" class="notice error" role="alert" hidden></div>
<main id="main" tabindex="-1"></main>
<div id="tooltip" class="tooltip" aria-hidden="true" hidden></div>
<div id="announcer" class="visually-hidden" aria-live="polite"></div>
{templates}<script type="application/octet-stream" id="payload">{_pack(page.payload)}</script>
<script>{script}</script>
</body>
</html>
"""


def write_page(page: HtmlPage, path: str | os.PathLike[str]) -> int:
    """Write a page, whole or not at all, and return its bytes.

    Raises:
        ProfileNotWritableError: the operating system refuses; what was there is unchanged.
        ValueError, FileNotFoundError: see ``build_page``.
    """
    # A title may hold a path that is not UTF-8: it is shown as Python escapes it.
    data = build_page(page).encode("utf-8", "backslashreplace")
    write_whole(path, data, "the page")
    return len(data)


def _pack(payload: Any) -> str:
    # ASCII, so that lone surrogates (paths that are not UTF-8) pass; NaN is no JSON.
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return _base64(gzip.compress(text.encode(), compresslevel=6, mtime=0))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@cache
def _asset(name: str) -> str:
    # Line ends as a browser reads them, or the hash would not match.
    text = files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
    if found := _ENDS.search(text):
        raise ValueError(f"{name} cannot stand in a page: it contains {found[0]!r}")
    return text.replace("\r\n", "\n").replace("\r", "\n")
