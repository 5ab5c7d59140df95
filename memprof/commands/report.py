"""``memprof report FILE``, ``leaks FILE``, ``ledger FILE``: what a profile says, as text."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from memprof.profiler.file import read_profiles
from memprof.profiler.growth import growth, looked
from memprof.profiler.report import render_ledger
from memprof.profiler.report.page import style_of
from memprof.profiler.report.sections.growth import of_growth
from memprof.profiler.report.text import render
from memprof.views import report_json, report_style, report_text

from ._common import (
    chosen_rank,
    exact_option,
    file_argument,
    keep_apart,
    page_option,
    print_json,
    print_line,
    print_page,
    print_text,
    read,
    table_options,
)


@click.command()
@file_argument
@click.option("--json", "as_json", is_flag=True, help="As JSON, in bytes.")
@exact_option
@click.option(
    "--fail", is_flag=True, help="Exit with 1 if memory grows, and with 2 if the file cannot tell."
)
def leaks(file: str, as_json: bool, exact: bool, fail: bool) -> None:
    """Print what is held across steps and grows: by how much a step, since when, who made it and
    who refers to it.

    FILE is a profile written by memprof; one taken with eager=True tells most.
    """
    profile = read(file)
    found, seen = growth(profile), looked(profile)
    if as_json:
        print_json(found)
    elif found:
        style = replace(style_of(sys.stdout), exact=exact)
        print_text(render([of_growth(found, style.show, len(found))], style))
    elif seen:
        print_line(f"Nothing grows, by {', '.join(seen)}.")
    else:
        print_line(
            "This file cannot tell what grows: take one with memprof.profile(PATH, eager=True) "
            "over at least 10 steps."
        )
    if fail and (found or not seen):
        raise click.exceptions.Exit(1 if found else 2)


@click.command()
@file_argument
def ledger(file: str) -> None:
    """Print what memprof did, declined and gave up on, and why, in order of time."""
    print_text(render_ledger(read(file), style_of(sys.stdout)))


@click.command()
@file_argument
@click.option("--full", is_flag=True, help="All of it, not only what fits a screen.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON, in bytes and ns.")
@table_options
@page_option
@click.option(
    "--profile",
    "names",
    type=click.Path(),
    multiple=True,
    help="Of a run of the same code: names the FX nodes of a snapshot. May be given again.",
)
def report(
    file: str,
    full: bool,
    as_json: bool,
    top: int | None,
    device: str | None,
    exact: bool,
    output: str | None,
    names: tuple[str, ...],
) -> None:
    """Print what is in a profile: the peak, what it is made of and what to change.

    The last line says what else --full prints; a page (-o) and --json have all of it, too.

    FILE is a profile written by memprof, or by a tracker, or a snapshot of torch's allocator
    (torch.cuda.memory._dump_snapshot), of which nothing is executed. Of a file of several ranks it
    compares the ranks; --rank chooses one.
    """
    if output is not None and as_json:
        raise click.UsageError("--output and --json exclude each other: run the command twice.")
    if output is not None:
        keep_apart([output], [file, *names], "--output")
    try:
        if names:
            from memprof.profiler.snapshot.named import read_named_snapshot

            profiles = [read_named_snapshot(file, names)]
        else:
            profiles = read_profiles(file) if chosen_rank() is None else [read(file)]
        if output is not None:
            # Its assets are of no use to the terminal's report.
            from memprof.profiler.report.html import write_report

            print_page(output, write_report(profiles, output, device, file))
        elif as_json:
            print_json(report_json(profiles, device))
        else:
            style = replace(style_of(sys.stdout), exact=exact)
            print_text(report_text(profiles, report_style(style, full, top), device))
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
