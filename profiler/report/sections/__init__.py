"""What there is to say of a profile, subject by subject: see Note [One description of each view].

Nothing here knows whether it will be text or a page, and nothing reads a file or torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..section import Section, Show
from ..summary import Summary
from .about import advice, header, not_counted
from .account import of_accounts
from .dataflow import dataflow
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
from .tracker import of_tracker
from .trees import trees, why_no_addresses

__all__ = [
    "advice",
    "dataflow",
    "figures",
    "header",
    "live_templates",
    "of_accounts",
    "of_device",
    "of_diff",
    "of_graph_pool",
    "of_growth",
    "of_instant",
    "of_ledger",
    "of_ranks",
    "of_report",
    "of_tracker",
    "trees",
    "why_no_addresses",
]


def of_report(s: Summary, show: Show) -> Iterator[Section]:
    """A report from its first line to its last."""
    yield header(s)
    yield peak(s, show)
    yield from peak_breakdowns(s)
    *by_device, missing = of_device(s, show)
    yield from by_device
    if s.trees:
        yield trees(s, show)
    yield ledger_counts(s)
    yield from dataflow(s.dataflow, show).parts
    yield missing
    yield advice(s, show)


def of_device(s: Summary, show: Show) -> Iterator[Section]:
    """What a page shows again when another device is chosen."""
    yield saved(s, show)
    yield graphs(s)
    yield not_counted(s, show)
