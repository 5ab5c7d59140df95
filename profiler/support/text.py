"""Text of somebody else's making, as a terminal may be given it.

Note [What may reach a terminal]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
Names, paths, source lines and reasons in a profile are whatever a program, or whoever edited the
file, put there. A terminal obeys some characters: escape sequences move the cursor or set the
clipboard; line breaks forge rows; bidirectional controls show a name in another order than it has;
invisible ones make two names look alike. So what is printed passes ``visible`` or ``visible_json``
at the edge where it becomes text for people, and nowhere else: files keep what was recorded.
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


def visible_json(text: str, encoding: str = "utf-8") -> str:
    """A JSON document that says the same and shows as it is: line breaks between values stay, every
    other character that a terminal would obey, or that ``encoding`` lacks, is escaped as JSON has
    it."""
    text = _OBEYED.sub(_json_escaped, text)
    try:
        text.encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return re.sub("[^\\x00-\\x7f]", _json_escaped, text)
    return text


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escaped(match: re.Match[str]) -> str:
    if match[0] == "\n":  # Inside a string it is escaped already.
        return match[0]
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


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
