"""The sections of a text report on process, data flow and advice."""

from __future__ import annotations

from ..advice import Finding
from .format import format_ns, format_share
from .page import Page
from .summary import Summary

_EVIDENCE = 3
"""Rows of evidence under a finding; the JSON report has all."""


def render_process(page: Page, s: Summary) -> None:
    """Which rank it is, and whether the file has the session's end."""
    p = s.process
    if p is not None and p.world_size > 1:
        page.line(f"rank {p.rank} of {p.world_size} (local rank {p.local_rank}, host {p.host})")
    if not s.complete:
        page.line(
            "incomplete: the process was killed or still runs; this is what it had written",
            "yellow",
        )


def render_dataflow(page: Page, s: Summary) -> None:
    """Peaks of the torch.profiler run, if one was added."""
    for peak in s.dataflow:
        after = format_ns(peak.after_ns)
        page.section(
            f"Data flow on {peak.device}, eager code included: "
            f"peak {page.bytes(peak.nbytes)}, {after} into the torch.profiler run"
        )
        table = page.table(">bytes", ">share", "category")
        for category, n in peak.categories.items():
            table.add_row(page.bytes(n), format_share(n, peak.nbytes), category.label)
        table.add_row(page.bytes(peak.nbytes), format_share(peak.nbytes, peak.nbytes), "total")
        page.show(table)


def render_advice(page: Page, s: Summary) -> None:
    """The last section: what could be changed."""
    page.section("What to change")
    if not s.advice:
        page.line("  nothing found that would save 2 % of the peak or of a pool")
    for number, finding in enumerate(s.advice, 1):
        _finding(page, number, finding)


def _finding(page: Page, number: int, f: Finding) -> None:
    title = f"{number}. up to {page.bytes(f.nbytes)} {f.whose}: {f.title}"
    page.indented(title, 2, style="bold")
    page.indented(f.change, 5)
    for e in f.evidence[:_EVIDENCE]:
        where = [e.graph, e.node, "(root)" if e.module == "" else e.module]
        where += [page.location(e.frame)] if e.frame else []
        text = f"{e.text}{f', {e.count:,} times' if e.count > 1 else ''}"
        page.indented(" · ".join([page.bytes(e.nbytes), text, *filter(None, where)]), 7, "dim")
    if rest := f.evidence[_EVIDENCE:]:
        n = page.bytes(sum(e.nbytes for e in rest))
        page.indented(f"{n} · {len(rest)} more", 7, "dim")
