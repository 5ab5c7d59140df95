"""Is every number of a profile one that can be reckoned with?

JSON has numbers of any size. Ours count bytes, nanoseconds and things, and fit 64 bits with a sign:
what does not is a mistake, and would be an error much later (in an array, a date, a table).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

LARGEST = (1 << 63) - 1


def number_findings(value: Any, at: str) -> Iterator[tuple[str, str]]:
    """Path and description of every number in ``value`` that does not fit 64 bits.

    Args:
        value: of the data model: dataclasses, containers, scalars.
        at: its path in the document.
    """
    kind = type(value)
    if kind is int:
        if not -LARGEST <= value <= LARGEST:
            yield at, f"{_in_short(value)} does not fit 64 bits"
    elif kind is list or kind is tuple:
        first = type(value[0]) if value else None
        if first is int and all(type(v) is int for v in (value[-1], value[len(value) // 2])):
            yield from _column(value, at)
        elif first is not None and first is not str and first is not bool:
            for i, v in enumerate(value):
                yield from number_findings(v, f"{at}[{i}]")
    elif kind is dict:
        for k, v in value.items():
            yield from number_findings(v, f"{at}[{k!r}]")
    elif not isinstance(value, str):
        for name in _fields(kind):
            v = getattr(value, name)
            # Most are small numbers and text: they are looked at here, not in a call each.
            if type(v) is int:
                if not -LARGEST <= v <= LARGEST:
                    yield f"{at}.{name}", f"{_in_short(v)} does not fit 64 bits"
            elif v is not None and not isinstance(v, (str, bool)):
                yield from number_findings(v, f"{at}.{name}")


def _column(values: list[int] | tuple[int, ...], at: str) -> Iterator[tuple[str, str]]:
    try:
        fits = min(values) >= -LARGEST and max(values) <= LARGEST
    except TypeError:  # A column of something else as well.
        fits = False
    if not fits:
        for i, v in enumerate(values):
            yield from number_findings(v, f"{at}[{i}]")


_FIELDS: dict[type, tuple[str, ...]] = {}
"""Names of the fields of each class of the data model, () of others."""


def _fields(kind: type) -> tuple[str, ...]:
    found = _FIELDS.get(kind)
    if found is None:
        known = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        found = _FIELDS[kind] = tuple(f.name for f in known)
    return found


def _in_short(n: int) -> str:
    return f"a number of about {n.bit_length()} bits"
