"""``memprof leaks FILE``."""

from __future__ import annotations

import sys
from dataclasses import replace

import click

from memprof.profiler.growth import growth, looked
from memprof.profiler.report.page import style_of
from memprof.profiler.report.sections.about import of_growth
from memprof.profiler.report.text import render

from ._common import exact_option, file_argument, print_json, print_line, print_text, read


@click.command()
@file_argument
@click.option("--json", "as_json", is_flag=True, help="As JSON, in bytes.")
@exact_option
@click.option(
    "--fail",
    is_flag=True,
    help="Exit with 1 if memory grows, and with 2 if the file cannot tell.",
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
