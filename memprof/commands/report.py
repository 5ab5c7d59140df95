"""``memprof report FILE``."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from memprof.profiler.errors import ProfileError
from memprof.profiler.model import Profile
from memprof.profiler.ranks import compare_ranks
from memprof.profiler.report import render_text, summarize
from memprof.profiler.report.terminal import style_of
from memprof.profiler.report.text import render_accounts, render_ranks, render_tracker_record

from ._common import (
    BadFile,
    OutputPath,
    chosen_rank,
    file_argument,
    keep_apart,
    print_json,
    print_line,
    print_text,
    read,
    read_all,
    table_options,
)


@click.command()
@file_argument
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON, in bytes and ns.")
@table_options
@click.option(
    "--html",
    type=OutputPath(),
    help="Write a page for the browser here instead: one file, no network.",
)
def report(
    file: str, as_json: bool, top: int, device: str | None, exact: bool, html: str | None
) -> None:
    """Print what is in a profile: the peak, what was live at it and where it came from.

    FILE is a profile written by memprof: .json, .json.gz or .memprof. Of a file of several
    ranks it compares the ranks; --rank chooses one.
    """
    if html is not None and as_json:
        raise click.UsageError("--html and --json exclude each other: run the command twice.")
    if html is not None:
        keep_apart([html], [file], "--html")
    if chosen_rank() is None:
        profiles = read_all(file)
        if len(profiles) > 1 and html is None:
            _compare(profiles, as_json, top, device, exact)
            return
    else:
        profiles = [read(file)]
    try:
        if html is not None:
            _write_page(profiles, html, device, file)
            return
        summary = summarize(profiles[0], device)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    if as_json:
        print_json(summary)
        return
    style = replace(style_of(sys.stdout), top=top, exact=exact)
    profile = profiles[0]
    texts = []
    if profile.accounts:
        texts.append(render_accounts(profile.accounts, style))
    if profile.graphs or not (profile.accounts or profile.tracker):
        texts.append(render_text(summary, style))
    if profile.tracker is not None:
        texts.append(render_tracker_record(profile.tracker, style))
    print_text("\n".join(texts))


def _compare(
    profiles: list[Profile], as_json: bool, top: int, device: str | None, exact: bool
) -> None:
    try:
        ranks = compare_ranks(profiles, device)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    if as_json:
        print_json(ranks)
    else:
        style = replace(style_of(sys.stdout), top=top, exact=exact)
        print_text(render_ranks(ranks, style))


def _write_page(profiles: list[Profile], path: str, device: str | None, file: str) -> None:
    # Its assets are of no use to the terminal's report.
    from memprof.profiler.report.html import write_report

    try:
        nbytes = write_report(profiles, path, device, file)
    except ProfileError as e:
        raise BadFile(str(e)) from e
    print_line(f"{path}: {nbytes / 1e6:.1f} MB, one file that any browser opens offline")
