"""Parts of a report as text, which commands show only together with others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from memprof.profiler.model import DeviceAccount, GraphPool, Profile, TrackerRecord
from memprof.profiler.views.compare.diff_model import ProfileDiff
from memprof.profiler.views.report import Style, Summary, sections
from memprof.profiler.views.report.parts import DevicePeak
from memprof.profiler.views.report.sections.diff import of_diff
from memprof.profiler.views.report.text import render
from memprof.profiler.views.report.text_page import PLAIN


def render_text(summary: Summary, style: Style = PLAIN) -> str:
    """What a report says of compiled code."""
    return render(sections.of_report(summary, style.show), style)


def render_ledger(profile: Profile, style: Style = PLAIN) -> str:
    """The ledger as ``memprof report`` prints it."""
    return render([replace(sections.ledger.of_ledger(profile, style.show), title="")], style)


def render_accounts(
    accounts: Iterable[DeviceAccount], style: Style = PLAIN, peaks: Iterable[DevicePeak] = ()
) -> str:
    """Accounts, and ``peaks`` of those of the present."""
    return render(sections.account.of_accounts(accounts, style.show, peaks), style)


def render_diff(diff: ProfileDiff, style: Style = PLAIN) -> str:
    """As ``memprof diff`` prints it."""
    return render(of_diff(diff), style)


def render_tracker_record(record: TrackerRecord, style: Style = PLAIN) -> str:
    """A tracker's record as text."""
    return render(sections.tracker.of_tracker(record, style.show, style.top), style)


def render_graph_pools(pools: Iterable[GraphPool]) -> str:
    """Pools of CUDA graphs as text."""
    return render(sections.account.of_graph_pool(p, PLAIN.show) for p in pools)
