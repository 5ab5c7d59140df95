"""``memprof gantt FILE``."""

from __future__ import annotations

import click

from memprof.profiler.errors import ProfileError
from memprof.profiler.report.html.gantt_page import write_gantt

from ._common import (
    BadFile,
    calls_option,
    file_argument,
    keep_apart,
    no_such_calls,
    page_option,
    print_page,
    read,
)


@click.command()
@file_argument
@page_option(required=True)
@calls_option
def gantt(file: str, output: str, calls: tuple[int | None, int | None]) -> None:
    """Write a page with operations, compiled calls and memory over time.

    FILE is a profile written by memprof. Lanes are threads and asyncio tasks; bars are the
    tracker's operations and calls of compiled code, replays of graphs among them.
    """
    keep_apart([output], [file], "--output")
    profile = read(file)
    try:
        print_page(output, write_gantt(profile, output, file, *calls))
    except IndexError as e:
        raise no_such_calls(profile) from e
    except ProfileError as e:
        raise BadFile(str(e)) from e
