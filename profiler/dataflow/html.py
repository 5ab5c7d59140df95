"""The timeline as one HTML file: a stacked picture, and what is live at the peak.

The picture is SVG inside the page; nothing is loaded, nothing runs.
"""

from __future__ import annotations

from collections import Counter
from html import escape

import numpy as np

from .over_time import COLORS, LABELS, BytesByCategory, by_category, thinned
from .peak import PeakReport, Share, peak_report
from .profile import DataFlowProfile

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 1200, 460, 76, 34, 12
_POINTS = 2400
"""Drawn at most; two a pixel."""


def page(profile: DataFlowProfile, device: str, title: str | None = None) -> str:
    """An HTML page for one device.

    Raises:
        ValueError: nothing in the trace is on that device.
    """
    table = by_category(profile, device)
    report = peak_report(profile, device)
    heading = escape(title or f"Memory of {device}")
    notes = [
        f"Peak {_size(report.bytes)} at {_ms(report.time, table)}; "
        f"{len(profile.timeline):,} changes in {profile.columns.events:,} events."
    ]
    if report.allocator_reserved is not None and report.allocator_allocated is not None:
        idle = report.allocator_reserved - report.allocator_allocated
        notes.append(
            f"The allocator held {_size(report.allocator_reserved)} then, {_size(idle)} of it idle."
        )
    if report.replay_reserved:
        notes.append(
            f"Pools of CUDA graphs and the arena hold {_size(report.replay_reserved)} from the "
            "system; what is live in them is in the picture."
        )
    if report.failures:
        where = Counter(f.op or "no operator" for f in report.failures)
        said = ", ".join(f"{n:,} in {escape(op)}" for op, n in where.most_common(5))
        notes.append(f"{len(report.failures):,} allocations failed, out of memory: {said}.")
    if profile.compiled is not None:
        c = profile.compiled
        replayed = f", {c.replayed:,} of them replayed" if c.replayed else ""
        notes.append(
            f"{c.matched:,} of {c.calls:,} compiled calls are known allocation by "
            f"allocation{replayed}."
        )
        notes += [f"{n:,} not: {escape(why)}." for why, n in sorted(c.unmatched.items())]
    if profile.columns.skipped_ns:
        notes.append(f"{profile.columns.skipped_ns / 1e9:.1f} s of compilation were not looked at.")
    unknown = "".join(
        f"<li>{_size(n)}: {escape(why)}</li>" for why, n in sorted(report.unknown.items())
    )
    sections = [
        _shares("Categories at the peak", report.categories, report.bytes),
        _shares("Modules", report.modules, report.bytes),
        _shares("Operators", report.operators, report.bytes),
        _shares("Source lines", report.lines, report.bytes),
        _saved(report),
        _leaks(report),
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{heading}</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 24px auto; max-width: {_WIDTH}px; }}
h1 {{ font-size: 20px; }} h2 {{ font-size: 15px; margin: 20px 0 4px; }}
table {{ border-collapse: collapse; }} td {{ padding: 1px 14px 1px 0; }}
td.n {{ text-align: right; font-variant-numeric: tabular-nums; }}
.legend span {{ margin-right: 16px; white-space: nowrap; }}
.legend i {{ display: inline-block; width: 11px; height: 11px; margin-right: 5px; }}
.tables {{ columns: 2; }} .tables section {{ break-inside: avoid; }}
</style></head><body>
<h1>{heading}</h1>
<p>{" ".join(notes)}</p>
{_picture(table, report)}
<p class="legend">{_legend()}</p>
<div class="tables">{"".join(sections)}</div>
<h2>Unknown at the peak</h2>
{f"<ul>{unknown}</ul>" if unknown else "<p>Nothing: every byte has a category.</p>"}
</body></html>
"""


def _picture(table: BytesByCategory, report: PeakReport) -> str:
    table = thinned(table, _POINTS)
    time, rows = table.time, table.bytes
    if not len(time):
        return "<p>No memory events.</p>"
    begin, end = int(time[0]), max(int(time[-1]), int(time[0]) + 1)
    top = max(int(rows.sum(axis=1).max()), 1) * 1.04
    x = _LEFT + (time - begin) / (end - begin) * (_WIDTH - _LEFT - 10)
    plot = _HEIGHT - _BOTTOM - _TOP
    stacked = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
    y = _HEIGHT - _BOTTOM - stacked / top * plot
    # Memory holds its level until the next change: draw steps.
    xs = np.repeat(x, 2)[1:]
    parts = []
    for i, (color, label) in enumerate(zip(COLORS, LABELS, strict=True)):
        if not rows[:, i].any():
            continue
        upper, lower = np.repeat(y[:, i + 1], 2)[:-1], np.repeat(y[:, i], 2)[:-1]
        points = [f"{a:.1f},{b:.1f}" for a, b in zip(xs, upper, strict=True)]
        points += [f"{a:.1f},{b:.1f}" for a, b in zip(xs[::-1], lower[::-1], strict=True)]
        parts.append(
            f'<polygon fill="{color}" points="{" ".join(points)}"><title>{label}</title></polygon>'
        )
    for i in range(5):
        level = top * i / 4
        at = _HEIGHT - _BOTTOM - plot * i / 4
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="#0002"/><text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
            f"{_size(int(level))}</text>"
        )
        when = (end - begin) * i / 4
        parts.append(
            f'<text x="{_LEFT + (_WIDTH - _LEFT - 10) * i / 4:.1f}" y="{_HEIGHT - 12}" '
            f'text-anchor="{"end" if i == 4 else "middle"}">{when / 1e6:.2f} ms</text>'
        )
    after = max(report.time - begin, 0)  # what was there before counts from the first change on
    at_peak = _LEFT + after / (end - begin) * (_WIDTH - _LEFT - 10)
    parts.append(
        f'<line x1="{at_peak:.1f}" x2="{at_peak:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" '
        f'stroke="#000" stroke-dasharray="4 3"><title>peak</title></line>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" font-size="11" role="img" '
        f'aria-label="memory over time">{"".join(parts)}</svg>'
    )


def _legend() -> str:
    return "".join(
        f'<span><i style="background:{c}"></i>{n}</span>'
        for c, n in zip(COLORS, LABELS, strict=True)
    )


def _shares(title: str, shares: list[Share], total: int, limit: int = 12) -> str:
    rows = "".join(_row(s.bytes, f"{s.bytes / max(total, 1):.1%}", s.name) for s in shares[:limit])
    rest = sum(s.bytes for s in shares[limit:])
    if rest:
        rows += _row(rest, f"{rest / max(total, 1):.1%}", f"{len(shares) - limit} more")
    return f"<section><h2>{title}</h2><table>{rows}</table></section>"


def _saved(report: PeakReport) -> str:
    rows = "".join(
        _row(a.size, a.operator or "", " ".join(filter(None, (a.module, a.line))))
        for a in report.saved
    )
    return (
        f"<section><h2>Largest saved activations</h2><table>{rows}</table></section>"
        if rows
        else ""
    )


def _leaks(report: PeakReport) -> str:
    rows = "".join(
        _row(
            k.size,
            f"step {k.made_in}, {k.held_for} steps",
            " ".join(filter(None, (k.operator, k.module, k.line))),
        )
        for k in report.leaks
    )
    return f"<section><h2>Outlives its step</h2><table>{rows}</table></section>" if rows else ""


def _row(size: int, middle: str, text: str) -> str:
    return (
        f'<tr><td class="n">{_size(size)}</td><td class="n">{escape(middle)}</td>'
        f"<td>{escape(text)}</td></tr>"
    )


def _size(n: int) -> str:
    value = float(n)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


def _ms(time: int, table: BytesByCategory) -> str:
    return f"{max(time - int(table.time[0]), 0) / 1e6:.2f} ms" if len(table.time) else "0 ms"
