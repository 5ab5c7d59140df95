"""Text of somebody else's making, as a terminal may be given it.

Note [What may reach a terminal]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Names, paths, source lines and reasons in a profile are whatever a program, or whoever edited the
file, put there. A terminal obeys some characters: escape sequences move the cursor or set the
clipboard; line breaks forge rows; bidirectional controls show a name in another order than it has;
invisible ones make two names look alike. So what is printed passes ``visible`` at the edge where
it becomes text for people, and nowhere else: files keep what was recorded. JSON is printed in
ASCII.
"""

from __future__ import annotations

import re

LONGEST = 5_000
"""Characters of one text that are shown; a ledger's longest reasons have some hundred."""

# C0, DEL, C1; the soft hyphen, zero-width characters and joiners; bidirectional marks, embeddings,
# overrides and isolates; line and paragraph separators; invisible operators; the byte order mark,
# annotations, tags; surrogates, which stand for bytes that are no UTF-8.
_OBEYED = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f"
    "\\ufeff\\ufff9-\\ufffb\\U000e0000-\\U000e007f\\ud800-\\udfff]"
)


def visible(text: str) -> str:
    """``text`` on one line, every character that a terminal would obey as its Python escape, at
    most about ``LONGEST`` characters of it."""
    cut = ""
    if len(text) > LONGEST:
        text, cut = text[:LONGEST], f"… ({len(text) - LONGEST:,} more characters)"
    if text.isascii() and text.isprintable():
        return text + cut
    return _OBEYED.sub(_escaped, text) + cut


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def without_numbers(module: str) -> str:
    """A module's path with ``*`` for the numbers of layers: ``blocks.*.up``."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)


_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = _UNITS[f"{_letter}i"] = 1024**_power


def parse_size(text: str) -> int | None:
    """Bytes from text like ``8GiB``, ``512 MB`` or ``8589934592``; None for anything else."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    unit = _UNITS.get(found[2]) if found is not None else None
    return int(float(found[1]) * unit) if found is not None and unit is not None else None
