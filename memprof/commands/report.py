"""``memprof report FILE``."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from memprof.profiler.file import read_profiles
from memprof.profiler.report.page import style_of
from memprof.views import report_json, report_style, report_text

from ._common import (
    chosen_rank,
    file_argument,
    keep_apart,
    page_option,
    print_json,
    print_page,
    print_text,
    read,
    table_options,
)


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
