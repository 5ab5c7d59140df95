"""Parts of a report as text, which commands show only together with others."""

from __future__ import annotations

from collections.abc import Iterable

from memprof.profiler.model import GraphPool, TrackerRecord
from memprof.profiler.report import Style, sections
from memprof.profiler.report.page import PLAIN
from memprof.profiler.report.text import render


def render_tracker_record(record: TrackerRecord, style: Style = PLAIN) -> str:
    """A tracker's record as text."""
    return render(sections.tracker.of_tracker(record, style.show, style.top), style)


def render_graph_pools(pools: Iterable[GraphPool]) -> str:
    """Pools of CUDA graphs as text."""
    return render(sections.account.of_graph_pool(p, PLAIN.show) for p in pools)
