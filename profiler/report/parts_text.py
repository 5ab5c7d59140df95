"""The sections of a text report on process, data flow and advice."""

from __future__ import annotations

from datetime import datetime, timezone

from ..advice import Finding
from ..out_of_memory import OutOfMemory
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


def render_left_out(page: Page, s: Summary) -> None:
    """What of the file is not in the report."""
    if not s.left_out:
        return
    n = len(s.left_out)
    parts = f"{n} part{'s' if n > 1 else ''}"
    page.line(f"left out, since the file is damaged or contradicts itself: {parts}", "yellow")
    for text in s.left_out[: page.top]:
        page.indented(text, 2, "yellow")
    if (more := len(s.left_out) - page.top) > 0:
        page.line(f"  {more} more: report --json", "yellow")


def render_out_of_memory(page: Page, s: Summary) -> None:
    """Allocations that failed, whether or not the program caught the error."""
    if not s.out_of_memory:
        return
    page.section(f"Out of memory: {sum(e.count for e in s.out_of_memory):,} times")
    for e in s.out_of_memory[: page.top]:
        page.indented(_failure(page, e), 2, "red")
    if rest := s.out_of_memory[page.top :]:
        page.line(f"  {sum(e.count for e in rest):,} more: report --json")


def _failure(page: Page, e: OutOfMemory) -> str:
    said = [f"{e.count:,} x {e.what}" if e.count > 1 else e.what]
    if e.module is not None:
        said.append(e.module or "(root)")
    if e.frame is not None:
        said.append(page.location(e.frame))
    if e.device is not None:
        said.append(e.device + (f", {page.bytes(e.live)} live" if e.live is not None else ""))
    if e.time_ns is not None:
        when = datetime.fromtimestamp(e.time_ns / 1e9, tz=timezone.utc)
        said.append(f"{when:%Y-%m-%d %H:%M:%S} UTC")
    text = f": {e.text}" if e.text else ""
    return f"{' · '.join(said)} ({e.source}){text}"


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
