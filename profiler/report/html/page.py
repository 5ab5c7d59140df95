"""One self-contained HTML file of a title, a payload and assets.

Note [What a page may do]
~~~~~~~~~~~~~~~~~~~~~~~~~
A page is opened from disk, mailed and attached to bug reports, so it loads nothing and tells
nobody anything: its content security policy forbids every connection and every script other
than those written into it here, each named by its SHA-256. What comes from a profile (source
lines, paths, module names, reasons) is data from elsewhere, and stays data:

* it is in the file as base64 of gzip of JSON, an alphabet in which no tag can be written;
* the title and the description, the only text of a profile in the markup, are escaped;
* scripts put it into the document as text nodes and attributes, never as markup
  (``assets/dom.js``), and if one ever did, the policy keeps it from running.

Styles may be inline, because charts and tables set widths and positions.
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

from ...writing import write_whole

SHARED_STYLES = ("assets/base.css", "assets/table.css")


def script_paths(*names: str) -> tuple[str, ...]:
    """Paths of assets."""
    return tuple(f"assets/{name}.js" for name in names)


SHARED_SCRIPTS = script_paths("format", "dom", "theme", "tooltip", "table", "start")
"""Helpers in the namespace ``memprof``, in order of need; every page has them."""

_ENDS = re.compile(r"</script|<!--|</style", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Page:
    """What a page is made of.

    Attributes:
        title: in the tab and the first heading.
        payload: JSON values; ``memprof.start(draw)`` calls ``draw`` with them.
        styles: paths below this folder, after the shared ones, e.g. ``assets/report.css``.
        scripts: likewise; the last one calls ``memprof.start``.
        description: one sentence on the content, for the page's metadata.
    """

    title: str
    payload: Any
    scripts: Sequence[str]
    styles: Sequence[str] = ()
    description: str = ""


def build_page(page: Page) -> str:
    """The page as one HTML document. The same page gives the same text.

    Raises:
        ValueError: an asset would end its own element, or the payload has no JSON form.
        FileNotFoundError: there is no such asset.
    """
    scripts = [_asset(path) for path in (*SHARED_SCRIPTS, *page.scripts)]
    styles = (_asset(path) for path in (*SHARED_STYLES, *page.styles))
    hashes = " ".join(f"'sha256-{_base64(sha256(text.encode()).digest())}'" for text in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
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
<meta name="description" content="{escape(page.description)}">
<title>{title}</title>
<link rel="icon" href="data:,">
{"".join(f"<style>{chr(10)}{text}</style>{chr(10)}" for text in styles)}</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header class="page-header">
<h1>{title}</h1>
<div class="page-tools"><button type="button" id="theme" class="quiet"></button></div>
</header>
<noscript><p class="notice">This page draws itself with JavaScript, which is off here. \
It needs no network.</p></noscript>
<div id="page-error" class="notice error" role="alert" hidden></div>
<main id="main" tabindex="-1"></main>
<div id="tooltip" class="tooltip" aria-hidden="true" hidden></div>
<div id="announcer" class="visually-hidden" aria-live="polite"></div>
<script type="application/octet-stream" id="payload">{_pack(page.payload)}</script>
{"".join(f"<script>{text}</script>{chr(10)}" for text in scripts)}</body>
</html>
"""


def write_page(page: Page, path: str | os.PathLike[str]) -> int:
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
def _asset(path: str) -> str:
    # Line ends as a browser reads them, or the hashes would not match.
    text = files(__package__).joinpath(path).read_text(encoding="utf-8")
    if found := _ENDS.search(text):
        raise ValueError(f"{path} cannot stand in a page: it contains {found[0]!r}")
    return text.replace("\r\n", "\n").replace("\r", "\n")
