"""``memprof diff BEFORE AFTER``."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import click

from memprof.profiler.diff import ProfileDiff, compare
from memprof.profiler.report.diff_text import render_diff
from memprof.profiler.report.format import format_bytes
from memprof.profiler.report.terminal import style_of

from ._common import print_json, print_text, read, table_options

_UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


def _limit(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[float, bool] | None:
    """From ``5%`` (a growth relative to BEFORE) or ``64MiB``: number, whether it is relative."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|b|[kmgt]ib)?", value.strip().lower())
    if not found or (found[2] is None and found[1] != "0"):
        raise click.BadParameter(
            f"{value!r} is no limit: give a percentage like 5% or bytes like 64MiB"
        )
    number, unit = float(found[1]), found[2] or "b"
    return (number / 100, True) if unit == "%" else (number * _UNITS[unit], False)


@click.command()
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@click.option(
    "--fail-over",
    "limit",
    callback=_limit,
    metavar="LIMIT",
    help="Exit 1 if anything grew by more: 5% of what it was, or bytes like 64MiB.",
)
@click.option("--json", "as_json", is_flag=True, help="The whole comparison as JSON, in bytes.")
@table_options
def diff(
    before: str,
    after: str,
    limit: tuple[float, bool] | None,
    as_json: bool,
    top: int,
    device: str | None,
    exact: bool,
) -> None:
    """Print what grew from one profile to another, by category, module and node.

    Compared are the peak of live memory, what forwards save for their backwards, what a step
    allocates, and the pool of graph trees. Exits 2 if a file cannot be read.
    """
    old, new = read(before), read(after)
    try:
        found = compare(old, new, device)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    if as_json:
        print_json(found)
    else:
        style = replace(style_of(sys.stdout), top=top, exact=exact)
        print_text(render_diff(found, style))
    if limit is not None:
        _check(found, *limit)


def _check(found: ProfileDiff, limit: float, relative: bool) -> None:
    over = [
        q for q in found.quantities if q.change > 0 and (q.growth if relative else q.change) > limit
    ]
    if over:
        allowed = f"{100 * limit:g} %" if relative else format_bytes(int(limit))
        grown = ", ".join(f"{q.name} by {format_bytes(q.change)}" for q in over)
        click.echo(f"Grew by more than {allowed}: {grown}", err=True)
        raise SystemExit(1)
