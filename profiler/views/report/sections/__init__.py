"""Sections of a report, a module for each subject: see Note [One description of each view].

Nothing here reads a file or torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from memprof.profiler.views.report.section import Section, Show
from memprof.profiler.views.report.summary import Summary

from . import about, account, dataflow, ledger, live, step_time, tracker

MAX_LEDGER = 5_000
"""Entries of the ledger on a page, the latest; ``--section ledger`` prints all."""


def of_profile(s: Summary, show: Show, snapshots: int, page: bool = False) -> Iterator[Section]:
    """All that there is to say of a profile, what matters most first.

    Args:
        snapshots: at most so many of the tracker.
        page: with pictures in place of tables of the peak, with the ledger, and without what heads
            a page.
    """
    if s.ledger.fallbacks:
        yield about.fell_back(s)
    profile, grows = s.profile, about.of_growth(s.growth, show)
    accounts = account.of_accounts(profile.accounts, show, s.at_peak)
    pools = tuple(
        replace(account.of_graph_pool(pool, show), spare=4 if n else 0)
        for n, pool in enumerate(profile.graph_pools)
    )
    devices = (*accounts, *pools)
    if page:
        devices = (
            Section("accounts", "Device memory", parts=accounts),
            Section("graph-pools", "CUDA graphs", parts=pools),
        )
    # That of a failed allocation begins with the request, whatever else there is to say.
    failed = any(a.failure is not None for a in profile.accounts)
    yield from (*devices, grows) if failed else (grows, *devices)
    if profile.step_time is not None:
        yield step_time.of_step_time(profile.step_time, profile.accounts)
    others = profile.accounts or profile.graph_pools or profile.tracker
    if profile.graphs or profile.dataflow or not others:
        yield from of_report(s, show, page)
    else:
        if s.advice:
            yield about.advice(s.advice, show)
        if page:
            yield live.operations(profile)
    if profile.tracker is not None:
        parts = tuple(tracker.of_tracker(profile.tracker, show, snapshots))
        yield from (tracker.on_page(parts),) if page else parts
    yield about.words()


def of_report(s: Summary, show: Show, page: bool = False) -> Iterator[Section]:
    """Sections on compiled code and on the data flow."""
    if not page:
        yield about.header(s)
    yield live.peak(s, show)
    breakdowns = [] if page else list(live.peak_breakdowns(s, show))
    yield from breakdowns[:1]
    if s.peak is not None or s.advice:
        yield about.advice(s.advice, show)
    yield from breakdowns[1:]
    if page:
        yield from live.of_instant(s.profile)
        yield live.operations(s.profile)
    if s.graphs:
        yield live.graphs(s)
    if s.trees:
        yield ledger.trees(s, show)
    counts = ledger.ledger_counts(s)
    if page:
        entries = ledger.of_ledger(s.profile, show, MAX_LEDGER)
        yield replace(entries, notes=(*counts.notes, *entries.notes), parts=counts.parts)
    elif s.graphs or s.ledger.fallbacks or s.ledger.not_observed:
        yield counts
    if s.profile.dataflow is not None:
        flow = dataflow.dataflow(s.dataflow, show)
        yield from [flow] if page else flow.parts or [flow]
    if s.graphs:
        yield about.not_counted(s, show)
        yield live.descriptions(s.profile)
