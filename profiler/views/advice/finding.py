"""Data of a finding; ``__init__.py`` has the thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from memprof.profiler.live.attribution import Attribution, Site
from memprof.profiler.live.live_set import LiveItem
from memprof.profiler.live.timeline import Timeline
from memprof.profiler.model import Relief, SourceFrame

MOST = 5
PER_KIND = 2
MIN_SHARE = 0.02
MIN_BYTES = 1 << 20
MIN_TIMES = 2
MIN_OUTPUT_SHARE = 0.1


class FindingKind(str, Enum):
    """Subject of a finding; see Note [When something is worth a finding]."""

    RECOMPUTE = "recompute"
    STATIC_INPUT = "static_input"
    MOVING_ADDRESS = "moving_address"
    LARGE_OUTPUT = "large_output"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One place or fact that a finding rests on; None where it does not apply."""

    text: str  # what was seen there
    nbytes: int = 0
    count: int = 0  # how often
    graph: str | None = None  # its label
    node: str | None = None  # FX node or graph input
    module: str | None = None  # path, "" is the root
    frame: SourceFrame | None = None  # line of user code

    @staticmethod
    def at(site: Site, graph: str, text: str, nbytes: int, count: int) -> Evidence:
        """Evidence of ``nbytes`` in ``count`` storages that come from a site."""
        return Evidence(text, nbytes, count, graph, site.node, site.module, site.frame)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person can act on."""

    kind: FindingKind
    title: str  # what was found, one line without bytes
    nbytes: int  # what the change can save at most
    whose: str  # what these bytes are part of, e.g. ``at the peak``
    change: str  # what to do
    evidence: tuple[Evidence, ...]  # largest first
    ways: tuple[Relief, ...] = ()  # of several ways to do it what each can save at most


Made = tuple[int, str | None, int]
"""A storage by who made it: graph, name in its code and line."""


def made(item: LiveItem) -> Made:
    """Key of a live storage's maker: graph id, name in its code and line."""
    return item.graph, item.owner, item.line


def at_peak(timeline: Timeline, attribution: Attribution) -> Iterator[tuple[LiveItem, Site]]:
    """Yields each item that is live at the peak, and its site; nothing if there is no peak."""
    for i in timeline.at_peak():
        yield i, attribution.site_of(i)
