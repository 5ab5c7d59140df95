"""The table of changes that were tried, in words."""

from __future__ import annotations

from memprof.profiler.report.page import PLAIN, Page, Style
from memprof.simulate.changes import change_of

from .advice import Advice, Result

__all__ = ["render_advice"]


def render_advice(found: Advice, made: int, known: int, style: Style = PLAIN) -> str:
    """A table of changes, largest saving first.

    Args:
        found: what was tried.
        made: how many tries ran.
        known: how many were taken from a file.
        style: how to print.
    """
    page = Page(style)
    fits = "fits" if found.before.fits else "does not fit"
    page.line(
        f"As it is it needs {page.bytes(found.before.needed)} and {fits} {found.gpu.name} "
        f"({page.bytes(found.gpu.memory)})",
        "bold",
    )
    page.line()
    table = page.table(
        *("change", ">needs", ">estimated", ">saves", ">recomputed", "fits", "costs"), fold=True
    )
    ordered = sorted(found.results, key=lambda r: -found.saved(r))
    for result in ordered:
        tried = result.tried
        if tried is None or result.idle:
            continue
        more = found.more_flops(result)
        saved = found.saved(result)
        alone = len(result.changes) == 1
        table.add_row(
            result.changes[0] if alone else "all that help",
            page.bytes(tried.needed),
            _estimate(page, result),
            page.bytes(saved) if saved > 0 else "does not help",
            "" if not more else f"{100 * more:.1f} %",
            "yes" if tried.fits else "no",
            change_of(result.changes[0])[0].costs if alone else " + ".join(result.changes),
        )
    page.show(table)
    for result in ordered:
        if len(result.changes) == 1:
            page.indented(_sentence(found, result), 2)
    for finding in found.untried:
        page.indented(
            f"not tried, since it is the program's own text that has to change: {finding.title}: "
            f"up to {page.bytes(finding.nbytes)}",
            2,
        )
    page.line(
        f"{made} tries, {known} known from the file before. Each row is a run of the whole script "
        "on the simulated device. Estimates are of bytes that are live, and what is saved is of "
        "all that the device gives. Recomputed operations are those of compiled code."
    )
    return page.text()


def _estimate(page: Page, result: Result) -> str:
    if result.estimate is None:
        return ""
    size = page.bytes(result.estimate)
    return f"at most {size}" if result.at_most and result.estimate else size


def _sentence(found: Advice, result: Result) -> str:
    """What was changed and how to have it, or why there is no row."""
    (text,) = result.changes
    of = f" (finding: {result.title})" if result.title else ""
    if result.tried is None:
        return f"{text}: the program failed with it: {result.problem}{of}"
    if result.idle:
        return f"{text}: there was nothing to change{of}"
    if found.saved(result) <= 0:
        return f"{text}: does not help{of}"
    changed = "; ".join(result.tried.changed)
    return f"{changed or text}. To have it: {change_of(text)[0].how}{of}"
