"""The command line: ``memprof report``, ``ledger``, ``schema``, ``doctor``.

Nothing here imports torch, ``doctor`` excepted: reading a profile must work, and at once,
on a machine that has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import click
import msgspec

from memprof.profiler.errors import ProfileError
from memprof.profiler.file import profile_schema, read_profile
from memprof.profiler.model import Profile
from memprof.profiler.report import render_ledger, render_text, summarize
from memprof.profiler.report.terminal import printable, style_of

__all__ = ["main"]

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _BadFile(click.ClickException):
    exit_code = 2


def _version() -> str:
    try:
        return version("memprof")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _file_argument(command: _Command) -> _Command:
    # Not click.Path(exists=True): read_profile's messages say more.
    return click.argument("file", type=click.Path())(command)


def _read(path: str) -> Profile:
    try:
        return read_profile(path)
    except ProfileError as e:
        raise _BadFile(str(e)) from e


def _print(text: str) -> None:
    click.echo(printable(text, sys.stdout), nl=False)


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


@click.group("memprof", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="memprof")
def main() -> None:
    """Where the memory of compiled PyTorch code goes."""


@main.command()
@_file_argument
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON, in bytes and ns.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Rows in each table; the rest is added up.",
)
@click.option("--device", help="Whose memory, e.g. cuda:0. Default: the one with the most.")
@click.option("--bytes", "exact", is_flag=True, help="Bytes with all digits.")
def report(file: str, as_json: bool, top: int, device: str | None, exact: bool) -> None:
    """Print what is in a profile: the peak, what was live at it and where it came from.

    FILE is a profile written by memprof, .json or .json.gz.
    """
    profile = _read(file)
    try:
        summary = summarize(profile, device)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--device") from e
    if as_json:
        _print_json(summary)
    else:
        _print(render_text(summary, top=top, exact=exact, **style_of(sys.stdout)))


@main.command()
@_file_argument
def ledger(file: str) -> None:
    """Print what memprof did, declined and gave up on, and why, in order of time."""
    _print(render_ledger(_read(file), **style_of(sys.stdout)))


@main.command()
def schema() -> None:
    """Print the JSON Schema of profile files."""
    _print_json(profile_schema())


@main.command()
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
def doctor(as_json: bool) -> None:
    """Say what is installed here, what works and what does not.

    Exits 1 if memprof cannot work here.
    """
    from memprof.doctor import examine, render_doctor

    diagnosis = examine()
    if as_json:
        _print_json(diagnosis)
    else:
        _print(render_doctor(diagnosis, **style_of(sys.stdout)))
    if not diagnosis.works:
        raise SystemExit(1)
