"""The report of several ranks for the terminal."""

from __future__ import annotations

from ..ranks import Imbalance, RankSummary
from .format import format_ns
from .page import PLAIN, Page, Style

__all__ = ["render_ranks"]


def render_ranks(summary: RankSummary, style: Style = PLAIN) -> str:
    """The comparison as text."""
    page = Page(style)
    page.line(f"{len(summary.rows)} of {summary.world_size} ranks", "bold")
    for warning in summary.warnings:
        page.line(f"  {warning}", "yellow")
    page.section("By rank")
    table = page.table(
        ">rank", ">peak", ">steps", ">median step", ">graphs", ">calls", ">recompiled", ">skips",
        "device", "host", ">pid",
    )  # fmt: skip
    for r in summary.rows:
        table.add_row(
            f"{r.rank}",
            page.bytes(r.peak),
            f"{r.steps:,}",
            "-" if r.step_ns is None else format_ns(r.step_ns),
            f"{r.graphs:,}",
            f"{r.calls:,}",
            f"{r.recompiles:,}",
            f"{r.skips:,}",
            r.device,
            r.host or "-",
            f"{r.pid}" if r.pid else "-",
        )
    page.show(table)
    page.section("Imbalance (categories: of the live set at each rank's peak)")
    table = page.table("", ">lowest", ">rank", ">mean", ">highest", ">rank", ">above the mean")
    for i in summary.imbalance:
        table.add_row(
            i.name.replace("_", " "),
            _figure(page, i, i.lowest),
            f"{i.lowest_rank}",
            _figure(page, i, i.mean),
            _figure(page, i, i.highest),
            f"{i.highest_rank}",
            f"{100 * i.excess:.1f} %",
        )
    page.show(table)
    page.line()
    page.line("The report of one rank: memprof report FILE --rank N")
    return page.text()


def _figure(page: Page, i: Imbalance, value: float) -> str:
    return page.bytes(round(value)) if i.unit == "bytes" else format_ns(value)
