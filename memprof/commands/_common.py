"""What several subcommands share: the FILE argument, reading a profile, printing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from memprof.profiler.errors import ProfileError
from memprof.profiler.file import read_profile
from memprof.profiler.model import Profile
from memprof.profiler.report.terminal import printable

_Command = TypeVar("_Command", bound=Callable[..., Any])


class BadFile(click.ClickException):
    """A file that cannot be read or written; exits with 2."""

    exit_code = 2


def file_argument(command: _Command) -> _Command:
    """Add the FILE argument."""
    # Not click.Path(exists=True): read_profile's messages say more.
    return click.argument("file", type=click.Path())(command)


def read(path: str) -> Profile:
    """The profile at ``path``.

    Raises:
        BadFile: it cannot be read.
    """
    try:
        return read_profile(path)
    except ProfileError as e:
        raise BadFile(str(e)) from e


def print_text(text: str) -> None:
    """Print rendered text, in characters that standard output can show."""
    click.echo(printable(text, sys.stdout), nl=False)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))
