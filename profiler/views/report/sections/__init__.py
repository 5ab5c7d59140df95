"""Sections of a report, a module for each subject: see Note [One description of each view].

Nothing here knows whether it will be text or a page, and nothing reads a file or torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memprof.profiler.views.report.section import Section, Show
from memprof.profiler.views.report.summary import Summary

from . import about, account, dataflow, ledger, live, tracker


def of_profile(s: Summary, show: Show, snapshots: int) -> Iterator[Section]:
    """All that there is to say of a profile, what matters most first; at most so many
    ``snapshots`` of the tracker."""
    if s.ledger.fallbacks:
        yield about.fell_back(s)
    profile, grows = s.profile, about.of_growth(s.growth, show)
    # That of a failed allocation begins with the request, whatever else there is to say.
    failed = any(a.failure is not None for a in profile.accounts)
    if not failed:
        yield grows
    yield from account.of_accounts(profile.accounts, show, s.at_peak)
    for n, pool in enumerate(profile.graph_pools):
        yield replace(account.of_graph_pool(pool, show), spare=4 if n else 0)
    if failed:
        yield grows
    others = profile.accounts or profile.graph_pools or profile.tracker
    if profile.graphs or profile.dataflow or not others:
        yield from of_report(s, show)
    elif s.advice:
        yield about.advice(s.advice, show)
    if profile.tracker is not None:
        yield from tracker.of_tracker(profile.tracker, show, snapshots)
    yield about.words()


def of_report(s: Summary, show: Show) -> Iterator[Section]:
    yield about.header(s)
    yield live.peak(s, show)
    breakdowns = list(live.peak_breakdowns(s, show))
    yield from breakdowns[:1]
    if s.peak is not None or s.advice:
        yield about.advice(s.advice, show)
    yield from breakdowns[1:]
    *by_device, missing = of_device(s, show)
    if s.graphs:
        yield from by_device
    if s.trees:
        yield ledger.trees(s, show)
    if s.graphs or s.ledger.fallbacks or s.ledger.not_observed:
        yield ledger.ledger_counts(s)
    if s.profile.dataflow is not None:
        flow = dataflow.dataflow(s.dataflow, show)
        yield from flow.parts or [flow]
    if s.graphs:
        yield missing
        yield live.descriptions(s.profile)


def of_device(s: Summary, show: Show) -> Iterator[Section]:
    """Yields the sections on one device, which a page replaces when another device is chosen."""
    yield live.graphs(s)
    yield about.not_counted(s, show)
