"""``memprof gantt FILE``."""

from __future__ import annotations

import click

from memprof.profiler.export import check_has_time
from memprof.profiler.export.walk import Part
from memprof.profiler.report.html import write_report

from ._common import (
    calls_option,
    file_argument,
    keep_apart,
    no_such_calls,
    output_option,
    print_page,
    read,
)


@click.command()
@file_argument
@output_option("The page: one file, no network.")
@calls_option
def gantt(file: str, output: str, calls: tuple[int | None, int | None]) -> None:
    """Write the page of a report, opened at operations and calls over time.

    FILE is a profile written by memprof. Lanes are threads and asyncio tasks; bars are the
    tracker's operations and calls of compiled code, replays of graphs among them. With --calls
    these are in sight first.
    """
    keep_apart([output], [file], "--output")
    profile = read(file)
    try:
        check_has_time([profile], "bars are over time")
        shown = Part((), *calls).calls(profile)
        print_page(output, write_report(profile, output, source=file, calls=shown))
    except IndexError as e:
        raise no_such_calls(profile) from e
