"""``memprof ledger FILE``."""

from __future__ import annotations

import sys

import click

from memprof.profiler.report import render_ledger
from memprof.profiler.report.page import style_of

from ._common import file_argument, print_text, read


@click.command()
@file_argument
def ledger(file: str) -> None:
    """Print what memprof did, declined and gave up on, and why, in order of time."""
    print_text(render_ledger(read(file), style_of(sys.stdout)))
