"""``memprof schema``."""

from __future__ import annotations

import click

from memprof.profiler.file import profile_schema

from ._common import print_json


@click.command()
def schema() -> None:
    """Print the JSON Schema of exported profiles (memprof export -f json)."""
    print_json(profile_schema())
