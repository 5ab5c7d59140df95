"""Ranges of the integers in a profile, checked on reading and given in its JSON Schema. They count
bytes, nanoseconds and things, and fit 64 bits with a sign: what does not is a mistake, and would be
an error much later (in an array, a date, a table)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

LARGEST = (1 << 63) - 1

Int = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
"""A number that may be less than nothing, as a difference is, or -1 where there is none."""
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
"""Bytes, positions, instants, how many of something."""
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
"""A count of something that would have no row if there were none."""
