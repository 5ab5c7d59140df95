"""The account of a device as text: the first line is what must fit, the rows add up to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..model import AccountRow, DeviceAccount, FailedRequest, SourceFrame
from .format import format_ns, format_share
from .page import PLAIN, Page, Style

__all__ = ["render_accounts"]


def render_accounts(accounts: Iterable[DeviceAccount], style: Style = PLAIN) -> str:
    """Accounts as text, ending in a newline."""
    page = Page(style)
    for i, account in enumerate(accounts):
        if i:
            page.line()
        _head(page, account)
        _purposes(page, account)
        _outside(page, account)
        _groups(page, account, "module", lambda r: r.modules or "(outside of modules)")
        _groups(page, account, "source line", lambda r: _location(page, r.frame))
        _blocks(page, account)
        _host_reads(page, account)
    return page.text()


def _head(page: Page, a: DeviceAccount) -> None:
    simulated = ", simulated" if a.simulated else ""
    page.line(f"{a.name or a.device}, {page.bytes(a.total)}{simulated}", "bold")
    where = ""
    if a.phase:
        where = f" in the {a.phase} of step {a.step}" if a.phase != "optimizer" else ""
        where = where or f" in optimizer step {a.step}"
    page.line(f"Peak reserved on {a.device}: {page.bytes(a.reserved)} ({a.reserved:,} B){where}")
    page.line(f"  {page.bytes(a.most_allocated)} allocated at most")
    if a.outside:
        page.line(f"  {page.bytes(a.needed)} with what is outside of torch's allocator")
    if a.elapsed_ns:
        steps = f"{a.steps:,} optimizer step{'s' if a.steps != 1 else ''} in " if a.steps else ""
        page.line(f"  {steps}{format_ns(a.elapsed_ns)}; ended: {a.ended}")
    for f in a.failed[: page.top]:
        page.indented(_failure(page, f), 2, "red")
    if (more := len(a.failed) - page.top) and more > 0:
        page.line(f"  {more:,} more requests could not be served", "red")
    for note in a.notes:
        page.indented(note, 2, "yellow")


def _failure(page: Page, f: FailedRequest) -> str:
    said = [f"out of memory: {page.bytes(f.nbytes)} asked for"]
    if f.count > 1:
        said[0] += f" {f.count:,} times"
    said += [f.modules] if f.modules else []
    said += [page.location(f.frame)] if f.frame is not None else []
    return " · ".join(said)


def _purposes(page: Page, a: DeviceAccount) -> None:
    page.section("What is reserved at the peak")
    table = page.table(">bytes", ">share", "what")
    for what, n in a.parts():
        if n or what == "not explained":
            table.add_row(page.bytes(n), format_share(n, a.reserved), what)
    table.add_row(page.bytes(a.reserved), format_share(a.reserved, a.reserved), "total reserved")
    page.show(table)


def _outside(page: Page, a: DeviceAccount) -> None:
    if not a.outside:
        return
    page.section("Outside of torch's allocator")
    table = page.table(">bytes", "what", "from", fold=True)
    for o in a.outside:
        estimated = "estimate: " if o.estimated else ""
        table.add_row(page.bytes(o.nbytes), o.what, f"{estimated}{o.source}")
    page.show(table)


def _groups(page: Page, a: DeviceAccount, by: str, key: Callable[[AccountRow], str]) -> None:
    found: dict[str, int] = {}
    for r in a.rows:
        found[key(r)] = found.get(key(r), 0) + r.nbytes
    if not found:
        return
    page.section(f"Live at the peak by {by}")
    table = page.table(">bytes", ">share", by)
    ordered = sorted(found.items(), key=lambda item: -item[1])
    for name, n in ordered[: page.top]:
        table.add_row(page.bytes(n), format_share(n, a.live), name)
    if rest := ordered[page.top :]:
        n = sum(n for _, n in rest)
        table.add_row(page.bytes(n), format_share(n, a.live), f"{len(rest):,} more")
    page.show(table)


def _blocks(page: Page, a: DeviceAccount) -> None:
    if not a.rows:
        return
    page.section("Live at the peak, largest first")
    table = page.table(">bytes", ">blocks", "what", "code", "where, and FX nodes of compiled code")
    for r in a.rows[: page.top]:
        code = "compiled" if r.compiled else "eager" if r.frame is not None else "autograd"
        where = _location(page, r.frame) + (f" · {r.nodes}" if r.nodes else "")
        table.add_row(page.bytes(r.nbytes), f"{r.count:,}", r.what, code, where)
    if rest := a.rows[page.top :]:
        n, blocks = sum(r.nbytes for r in rest), sum(r.count for r in rest)
        table.add_row(page.bytes(n), f"{blocks:,}", f"{len(rest):,} more", "", "")
    page.show(table)


def _host_reads(page: Page, a: DeviceAccount) -> None:
    if not a.host_reads:
        return
    count = sum(r.count for r in a.host_reads)
    times = "once" if count == 1 else f"{count:,} times"
    page.section(f"The program looked at values {times}; kernels computed none")
    table = page.table(">times", ">bytes", "source line")
    for r in a.host_reads[: page.top]:
        table.add_row(f"{r.count:,}", page.bytes(r.nbytes), _location(page, r.frame))
    if rest := a.host_reads[page.top :]:
        n, count = sum(r.nbytes for r in rest), sum(r.count for r in rest)
        table.add_row(f"{count:,}", page.bytes(n), f"{len(rest):,} more")
    page.show(table)


def _location(page: Page, frame: SourceFrame | None) -> str:
    return page.location(frame) if frame is not None else "(no Python was running: autograd)"
