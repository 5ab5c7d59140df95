"""``memprof diff BEFORE AFTER``."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import click

from memprof.profiler._text import parse_size, visible
from memprof.profiler.diff import NothingToCompare, compare
from memprof.profiler.diff_model import ProfileDiff
from memprof.profiler.model import Profile
from memprof.profiler.report.format import format_bytes
from memprof.profiler.report.page import style_of
from memprof.profiler.report.text import render_diff
from memprof.views import report_style

from ._common import (
    BadFile,
    keep_apart,
    page_option,
    print_json,
    print_page,
    print_text,
    rank_option,
    read,
    read_by,
    table_options,
)


def _limit(value: str) -> tuple[float, bool]:
    """From ``5%`` (a growth relative to BEFORE) or ``64MiB``: number, whether it is relative."""
    text = value.strip()
    if percent := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text):
        return float(percent[1]) / 100, True
    has_unit = text == "0" or not text[-1:].isdigit()
    nbytes = parse_size(text) if has_unit else None
    if nbytes is None:
        raise click.BadParameter(
            f"{value!r} is no limit: give a percentage like 5% or bytes like 64MiB"
        )
    return nbytes, False


@click.command()
@click.argument("before", type=click.Path())
@click.argument("after", type=click.Path())
@click.option(
    "--fail-over",
    "limit",
    callback=read_by(_limit),
    metavar="LIMIT",
    help="Exit 1 if anything grew by more: 5% of what it was, or bytes like 64MiB.",
)
@click.option("--json", "as_json", is_flag=True, help="The whole comparison as JSON, in bytes.")
@rank_option
@page_option
@table_options
def diff(
    before: str,
    after: str,
    limit: tuple[float, bool] | None,
    as_json: bool,
    output: str | None,
    top: int | None,
    device: str | None,
    exact: bool,
) -> None:
    """Print what grew from one profile to another, by category, module and node.

    Compared is every part that both files have: of compiled code the peak of live memory, what
    forwards save for their backwards, what a step allocates, and the pool of graph trees; of the
    tracker peaks and what remained by device, and peaks and what is kept by operation; of the data
    flow its peaks. Values that forwards save in one of them alone, or in another type, are named
    by operator and line, also between versions of torch. Exits 2 if a file cannot be read, or if
    there is nothing to compare; with --fail-over also if a file lacks a part, or its end, or
    something could not be compared.
    """
    if output is not None and as_json:
        raise click.UsageError("--output and --json exclude each other: run the command twice.")
    if output is not None:
        keep_apart([output], [before, after], "--output")
    old, new = read(before), read(after)
    try:
        found = compare(old, new, device)
    except NothingToCompare as e:
        raise BadFile(f"{before} and {after}: {e}") from e
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    if output is not None:
        # Its assets are of no use to the terminal's text.
        from memprof.profiler.report.html import write_diff

        print_page(output, write_diff(found, output, before, after))
    elif as_json:
        print_json(found)
    else:
        style = report_style(replace(style_of(sys.stdout), exact=exact), full=True, top=top)
        print_text(render_diff(found, style))
    if limit is not None:
        for path, profile in ((before, old), (after, new)):
            _check_whole(path, profile)
        _check(found, *limit)
        if found.notes:
            raise BadFile(
                f"{before} and {after}: not compared: {'; '.join(found.notes)}, so --fail-over "
                "cannot judge them: take both profiles in the same way"
            )


def _check_whole(path: str, profile: Profile) -> None:
    """Refuse to judge a profile that lacks something, which looks smaller than it was.

    Raises:
        BadFile: it does.
    """
    if profile.left_out:
        raise BadFile(
            f"{path}: {len(profile.left_out)} parts of it cannot be used (memprof report "
            "says which), so --fail-over cannot judge it"
        )
    if not profile.complete:
        raise BadFile(
            f"{path}: its process was killed or still runs, and what came later is not in it, so "
            "--fail-over cannot judge it"
        )


def _check(found: ProfileDiff, limit: float, relative: bool) -> None:
    over = [
        q
        for q in (*found.quantities, *found.operations)
        if q.change > 0 and (q.growth if relative else q.change) > limit
    ]
    if over:
        allowed = f"{100 * limit:g} %" if relative else format_bytes(int(limit))
        grown = ", ".join(f"{q.label} by {format_bytes(q.change)}" for q in over)
        click.echo(f"Grew by more than {allowed}: {visible(grown)}", err=True)
        raise SystemExit(1)
