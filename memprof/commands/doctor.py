"""``memprof doctor``."""

from __future__ import annotations

import sys

import click

from memprof.doctor import examine, render_doctor
from memprof.profiler.report.page import style_of

from ._common import json_option, print_json, print_text


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Say what is installed here, what works and what does not.

    Exits 1 if memprof cannot work here.
    """
    diagnosis = examine()
    if as_json:
        print_json(diagnosis)
    else:
        print_text(render_doctor(diagnosis, style_of(sys.stdout)))
    if not diagnosis.works:
        raise SystemExit(1)
