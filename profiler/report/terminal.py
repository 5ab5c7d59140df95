"""What a stream can show, and writing to it whatever the text holds."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

from .page import DEFAULT_WIDTH, Style


def style_of(out: TextIO) -> Style:
    """How text for ``out`` should look: as wide as COLUMNS says, else as the terminal, else
    100; colour on terminals unless NO_COLOR is set; ASCII where UTF-8 does not pass."""
    terminal = bool(getattr(out, "isatty", bool)())
    width = os.environ.get("COLUMNS", "")
    if width.isdecimal() and int(width):
        columns = int(width)
    else:
        columns = shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns if terminal else 0
    return Style(
        width=columns or DEFAULT_WIDTH,
        color=terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
        ascii_only=printable("·…─", out) != "·…─",
    )


def printable(text: str, out: TextIO) -> str:
    """``text`` with what ``out`` cannot encode as escapes: paths and code may hold anything."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:
        return text.encode("ascii", "backslashreplace").decode("ascii")
