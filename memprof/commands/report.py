"""``memprof report`` and ``memprof diff``: what profiles say."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace

import click

from memprof.profiler.file.profile_file import read_profiles, single_profile
from memprof.profiler.live.growth import growth, looked
from memprof.profiler.model import Growth, Profile
from memprof.profiler.support.text import parse_size, visible
from memprof.profiler.verbs import report_json, report_style, report_text
from memprof.profiler.views.compare.diff import NothingToCompare, compare
from memprof.profiler.views.compare.diff_model import ProfileDiff
from memprof.profiler.views.report.format import format_bytes
from memprof.profiler.views.report.sections.about import of_growth
from memprof.profiler.views.report.sections.diff import of_diff
from memprof.profiler.views.report.sections.ledger import of_ledger
from memprof.profiler.views.report.text import render
from memprof.profiler.views.report.text_page import Style, style_of

from ._common import (
    BadFile,
    chosen_rank,
    file_argument,
    json_option,
    keep_apart,
    page_option,
    print_json,
    print_line,
    print_page,
    print_result,
    print_text,
    rank_option,
    read,
    read_by,
    shows_files,
    table_options,
)


def _check_output(output: str | None, as_json: bool, *read: str) -> None:
    if output is not None:
        if as_json:
            raise click.UsageError("--output and --json exclude each other: run the command twice.")
        keep_apart(output, read)


def _print_leaks(found: list[Growth], seen: list[str], as_json: bool, style: Style) -> None:
    if as_json:
        print_json(found)
    elif found:
        print_text(render([of_growth(found, style.show, len(found))], style))
    elif seen:
        print_line(f"Nothing grows, by {', '.join(seen)}.")
    else:
        print_line(
            "This file cannot tell what grows: take one with memprof.profile(PATH, eager=True) "
            "over at least 10 steps, or with memprof run over at least 8 snapshots (--interval)."
        )


@click.command()
@file_argument
@click.option("--full", is_flag=True, help="All of it, not only what fits a screen.")
@json_option("The whole report as JSON, in bytes and ns.")
@table_options
@page_option
@click.option(
    "--section",
    type=click.Choice(["leaks", "ledger"]),
    help="This alone, and all of it: what grows from step to step, by how much, since when, who "
    "made it and who refers to it; or what memprof did, declined and gave up on, and why.",
)
@click.option(
    "--fail-on-leaks",
    is_flag=True,
    help="Exit with 1 if memory grows, and with 2 if the file cannot tell.",
)
def report(
    file: str,
    full: bool,
    as_json: bool,
    top: int | None,
    device: str | None,
    exact: bool,
    output: str | None,
    section: str | None,
    fail_on_leaks: bool,
) -> None:
    """Print what is in a profile: the peak, what it is made of and what to change.

    The last line says what else --full prints; a page (-o) and --json have all of it, too.

    FILE is a profile written by memprof, or by a tracker. Of a file of several ranks it compares
    the ranks; --rank chooses one.
    """
    if output == "":
        output = f"{os.path.splitext(file)[0]}.html"
    _check_output(output, as_json, file)
    if section is not None and (full or top or device or output):
        raise click.UsageError(f"--section {section} is all of it: leave the other options out")
    style = replace(style_of(sys.stdout), exact=exact)
    profiles = read_profiles(file) if chosen_rank() is None else [read(file)]
    if section is not None or fail_on_leaks:
        profile = single_profile(profiles, file)
    if section == "leaks" or fail_on_leaks:
        found, seen = growth(profile), looked(profile)
    try:
        if section == "ledger":
            ledger = replace(of_ledger(profile, style.show), title="")
            print_result(as_json, profile.ledger, lambda: render([ledger], style))
        elif section == "leaks":
            _print_leaks(found, seen, as_json, style)
        else:
            _print_report(profiles, file, output, as_json, report_style(style, full, top), device)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    if fail_on_leaks and (found or not seen):
        raise click.exceptions.Exit(1 if found else 2)


def _print_report(
    profiles: list[Profile],
    file: str,
    output: str | None,
    as_json: bool,
    style: Style,
    device: str | None,
) -> None:
    if output is not None:
        # Its assets are of no use to the terminal's report.
        from memprof.profiler.views.report.html import write_report

        print_page(output, write_report(profiles, output, device, file))
    elif as_json:
        print_json(report_json(profiles, device))
    else:
        print_text(report_text(profiles, style, device))


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
@json_option("The whole comparison as JSON, in bytes.")
@rank_option
@table_options
@shows_files
def diff(
    before: str,
    after: str,
    limit: tuple[float, bool] | None,
    as_json: bool,
    top: int | None,
    device: str | None,
    exact: bool,
) -> None:
    """Print what grew from one profile to another, by category, module and node.

    Compared is every part that both files have: of compiled code the peak of live memory, what
    forwards save for their backwards, what a step allocates, and the pool of graph trees; all that
    was reserved on a device. Exits 2 if a file cannot be read, or if there is nothing to compare;
    with --fail-over also if a file lacks a part, or its end, or something could not be compared.
    """
    old, new = read(before), read(after)
    try:
        found = compare(old, new, device)
    except NothingToCompare as e:
        raise BadFile(f"{before} and {after}: {e}") from e
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    style = report_style(replace(style_of(sys.stdout), exact=exact), full=True, top=top)
    print_result(as_json, found, lambda: render(of_diff(found), style))
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
    """Refuse to judge a profile that lacks something, which looks smaller than it was."""
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
        q for q in found.quantities if q.change > 0 and (q.growth if relative else q.change) > limit
    ]
    if over:
        allowed = f"{100 * limit:g} %" if relative else format_bytes(int(limit))
        grown = ", ".join(f"{q.label} by {format_bytes(q.change)}" for q in over)
        click.echo(f"Grew by more than {allowed}: {visible(grown)}", err=True)
        raise SystemExit(1)
