"""``memprof schema``."""

from __future__ import annotations

import click

from memprof.profiler.file import profile_schema
from memprof.profiler.tracker.document import tracker_schema

from ._common import print_json


@click.command()
@click.option("--tracker", is_flag=True, help="Of the files of run-time trackers instead.")
def schema(tracker: bool) -> None:
    """Print the JSON Schema of profile files."""
    print_json(tracker_schema() if tracker else profile_schema())
