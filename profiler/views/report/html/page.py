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
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from memprof.profiler.model import Profile
from memprof.profiler.support.writing import StrPath, write_whole

from .elements import report_elements
from .payload import ranks_payload

_SCRIPTS = [
    "page.js",
    "table.js",
    "vendor/uPlot.iife.min.js",
    "model.js",
    "chart.js",
    "timeline.js",
    "liveset.js",
    "gantt.js",
    "report.js",
]
"""Names in ``assets/``, in order of need: they are the parts of one function."""
_STYLES = ["vendor/uPlot.min.css", "base.css", "report.css"]
_ENDS = re.compile(r"</script|<!--|</style", re.IGNORECASE)


def report_page(
    profile: Profile | Sequence[Profile],
    device: str | None = None,
    source: str = "",
    title: str = "",
) -> str:
    """The report of a valid profile, or of one of each rank of a job, as a page.

    Args:
        device: shown first; by default the one with the highest peak, accelerators before the CPU.
        source: path of the file that it comes from; its name is in the title.
        title: in the tab and the first heading, instead of one with ``source``.

    Raises:
        ValueError: no program uses ``device``.
    """
    profiles = [profile] if isinstance(profile, Profile) else profile
    title = title or f"Memory of {os.path.basename(source) or 'compiled code'}"
    return build_page(title, report_elements(ranks_payload(profiles, device)))


def write_report(
    profile: Profile | Sequence[Profile],
    path: StrPath,
    device: str | None = None,
    source: str = "",
    title: str = "",
) -> int:
    """Write the ``report_page``, whole or not at all, and return its bytes.

    Raises:
        ProfileNotWritableError: the operating system refuses; what was there is unchanged.
        ValueError: no program uses ``device``.
    """
    # A title may hold a path that is not UTF-8: it is shown as Python escapes it.
    text = report_page(profile, device, source, title)
    data = text.encode("utf-8", "backslashreplace")
    write_whole(path, data, "the page")
    return len(data)


def build_page(title: str, payload: Any) -> str:
    """One HTML document, whose scripts draw a payload of JSON values. The same gives the same text.

    Raises:
        ValueError: an asset would end its own element, or the payload has no JSON form.
    """
    parts = "\n".join(map(_asset, _SCRIPTS))
    styles = "\n".join(map(_asset, _STYLES))
    script = f'(() => {{\n"use strict";\n{parts}}})();\n'
    policy = (
        f"default-src 'none'; script-src 'sha256-{_base64(sha256(script.encode()).digest())}'; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = escape(title)
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
{_asset("report.html")}\
<script type="application/octet-stream" id="payload">{_pack(payload)}</script>
<script>{script}</script>
</body>
</html>
"""


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
