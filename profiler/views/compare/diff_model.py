"""A comparison as plain data: what was compared, and by what it changed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from memprof.profiler.model import SourceFrame
from memprof.profiler.model.provenance import IN_TORCH


@dataclass(frozen=True, slots=True)
class PlaceChange:
    """Bytes of the place ``key`` before and after, 0 where it is not there."""

    key: str
    before: int
    after: int

    @property
    def change(self) -> int:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Quantity:
    """One thing that is compared, see Note [What is compared].

    Attributes:
        name: ``peak``, ``saved``, ``allocated`` or ``pool`` of compiled code; ``reserved`` and
            ``reserved end`` of accounts.
        before, after: bytes.
        views: changes by ``category``, ``module`` and ``node`` (of what was reserved by ``line``,
            of a pool by ``function``), largest change first; in each the changes add up to that
            of the quantity, but for a pool, whose growth recordings do not explain alone. Places
            that did not change are left out.
        device: whose memory; "" for compiled code on ``ProfileDiff.devices``.
    """

    name: str
    before: int
    after: int
    views: dict[str, tuple[PlaceChange, ...]]
    device: str = ""

    @property
    def change(self) -> int:
        return self.after - self.before

    @property
    def growth(self) -> float:
        """Gives the change as a part of ``before``; infinite where there was nothing."""
        if not self.change:
            return 0.0
        return self.change / self.before if self.before else float("inf")

    @property
    def label(self) -> str:
        return f"{self.name}, {self.device}" if self.device else self.name


@dataclass(frozen=True, slots=True)
class ProfileDiff:
    """Two profiles side by side.

    Attributes:
        devices: whose memory was compared of compiled code, before and after; "" where neither
            profile has any. Quantities of further ones say their device.
        quantities: in the order of Note [What is compared].
        notes: what could not be compared, or from nothing alone, in words.
    """

    devices: tuple[str, str]
    quantities: tuple[Quantity, ...]
    notes: tuple[str, ...] = ()


def changes(old: Mapping[str, int], new: Mapping[str, int]) -> tuple[PlaceChange, ...]:
    """Changes in bytes of each place from ``old`` to ``new``, largest change first."""
    found = [PlaceChange(key, old.get(key, 0), new.get(key, 0)) for key in {**old, **new}]
    return tuple(sorted((c for c in found if c.change), key=lambda c: (-abs(c.change), c.key)))


def place_of(frame: SourceFrame | None) -> str:
    """A source line by its file and its text, or its number where the text is not known."""
    if frame is None:
        return "?"
    _, installed, inside = frame.file.rpartition("-packages/")
    if IN_TORCH in frame.file:  # Whose text and lines are other ones in each version.
        return f"{inside}: in {frame.function}"
    code = " ".join(frame.code.split())
    name = os.path.basename(frame.file)
    # The program may lie elsewhere in the other run; a library's file has many namesakes.
    return f"{name}: {code}" if code else f"{inside if installed else name}:{frame.line}"
