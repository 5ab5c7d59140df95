"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = _UNITS[f"{_letter}i"] = 1024**_power


def parse_size(text: str) -> int | None:
    """Bytes from text like ``8GiB``, ``512 MB`` or ``8589934592``; None for anything else."""
    found = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    unit = _UNITS.get(found[2]) if found is not None else None
    return int(float(found[1]) * unit) if found is not None and unit is not None else None
