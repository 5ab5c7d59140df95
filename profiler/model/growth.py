"""Memory that is held across steps, and of which there is more with every step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .limits import Count, Int
from .provenance import SourceFrame


class GrowthSource(str, Enum):
    """Who has seen something grow."""

    ALLOCATOR = "allocator"
    """The allocator's history, followed to the end (``eager=True``)."""
    DATA_FLOW = "data_flow"
    """A run of ``torch.profiler``."""
    COMPILED = "compiled"
    """Forwards of compiled code whose backward never came, with what they saved, at the end."""
    TRACKER = "tracker"
    """Snapshots of the run-time tracker."""


@dataclass(frozen=True, slots=True)
class GrowthPart:
    """What grows, of one line.

    Attributes:
        nbytes: that are held.
        count: blocks or tensors.
        what: what they are for, or the FX node that made them.
        frame: innermost frame of the program that made them; None if not known.
        modules: as in ``AccountRow``.
    """

    nbytes: Int
    count: Int
    what: str = ""
    frame: SourceFrame | None = None
    modules: str = ""


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that is held and grows; see Note [What counts as growth] in ``growth_rule.py``.

    Attributes:
        source: who has seen it.
        device: e.g. ``cuda:0``.
        nbytes: that are held at the end.
        a_step: bytes by which it grows in each step, on average over those that were looked at.
        step: what a step is: ``optimizer step``, ``backward``, ``1,000 allocations``, ``forward``.
        since: the first step of which something is held, from 1.
        steps: how many steps there were.
        holder: who refers to it, from the innermost on, e.g. ``debug[...], global of train.py``;
            empty if nobody with a name was found.
        frame: line that made what is held, or where that is a graph of autograd, the tensor at its
            end; None if not known.
        parts: what it consists of, most bytes first.
    """

    source: GrowthSource
    device: str
    nbytes: Count
    a_step: Count
    step: str
    since: Int
    steps: Int
    holder: str = ""
    frame: SourceFrame | None = None
    parts: tuple[GrowthPart, ...] = ()
