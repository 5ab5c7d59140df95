"""What there is to say of a profile, subject by subject: see Note [One description of each view].

Nothing here knows whether it will be text or a page, and nothing reads a file or torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..section import Section, Show
from ..summary import Summary
from .about import advice, header, not_counted
from .account import of_accounts
from .dataflow import dataflow, no_dataflow
from .diff import of_diff
from .graph_pools import of_graph_pool
from .growth import of_growth
from .ledger import ledger_counts, of_ledger
from .live import (
    figures,
    graphs,
    live_templates,
    of_instant,
    peak,
    peak_breakdowns,
    saved,
)
from .ranks import of_ranks
from .totals import totals
from .tracker import of_tracker
from .trees import trees, why_no_addresses
from .words import words

__all__ = [
    "advice",
    "dataflow",
    "figures",
    "header",
    "ledger_counts",
    "live_templates",
    "no_dataflow",
    "of_accounts",
    "of_device",
    "of_diff",
    "of_graph_pool",
    "of_growth",
    "of_instant",
    "of_ledger",
    "of_profile",
    "of_ranks",
    "of_report",
    "of_tracker",
    "totals",
    "trees",
    "why_no_addresses",
    "words",
]


def of_profile(s: Summary, show: Show, snapshots: int) -> Iterator[Section]:
    """All that there is to say of a profile, what matters most first.

    Args:
        s: its summary.
        show: how bytes are written.
        snapshots: of the tracker, at most so many.
    """
    profile, grows = s.profile, of_growth(s.growth, show)
    # That of a failed allocation begins with the request, whatever else there is to say.
    failed = any(a.failure is not None for a in profile.accounts)
    if not failed:
        yield grows
    yield totals(s)
    yield from of_accounts(profile.accounts, show, s.at_peak)
    for n, pool in enumerate(profile.graph_pools):
        yield replace(of_graph_pool(pool, show), spare=4 if n else 0)
    if failed:
        yield grows
    others = profile.accounts or profile.graph_pools or profile.tracker
    if profile.graphs or profile.dataflow or not others:
        yield from of_report(s, show)
    elif s.advice:
        yield advice(s, show)
    if profile.tracker is not None:
        yield from of_tracker(profile.tracker, show, snapshots)
    yield words()


def of_report(s: Summary, show: Show) -> Iterator[Section]:
    """What is said of compiled code, and of the data flow."""
    yield header(s)
    yield peak(s, show)
    breakdowns = list(peak_breakdowns(s, show))
    yield from breakdowns[:1]
    if s.peak is not None or s.advice:
        yield advice(s, show)
    yield from breakdowns[1:]
    *by_device, missing = of_device(s, show)
    if s.graphs:
        yield from by_device
    if s.trees:
        yield trees(s, show)
    if s.graphs or s.ledger.fallbacks or s.ledger.not_observed:
        yield ledger_counts(s)
    yield from dataflow(s.dataflow, show).parts
    if s.graphs:
        yield missing


def of_device(s: Summary, show: Show) -> Iterator[Section]:
    """What a page shows again when another device is chosen."""
    yield saved(s, show)
    yield graphs(s)
    yield not_counted(s, show)
