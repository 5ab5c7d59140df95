"""Describes what several subcommands share: the FILE argument, reading a profile, printing."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
import msgspec

from memprof.profiler.file.profile_file import read_profiles, single_profile
from memprof.profiler.model import Profile
from memprof.profiler.support.json_text import to_json
from memprof.profiler.support.text import visible
from memprof.profiler.views.compare.ranks import ranks_of
from memprof.profiler.views.report.text_page import printable

from .errors import BadFile as BadFile

Command = TypeVar("Command", bound=Callable[..., Any])


def read_by(
    convert: Callable[[Any], Any], *errors: type[Exception]
) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A callback of an option: its value by ``convert``, whose ``errors`` say what is wrong."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except errors as e:
            raise click.BadParameter(visible(str(e))) from e

    return callback


def seconds(value: float) -> float:
    """A number that ``click.FloatRange`` let pass; refuses nan, which is in every range."""
    if math.isnan(value):
        raise click.BadParameter("nan is no number of seconds")
    return value


def keep_apart(output: str, inputs: Iterable[str]) -> None:
    """Refuse to write to ``output``, which ``--output`` gives, over what will be read, by whatever
    name: relative, linked, or in letters of another case where these are the same."""
    if any(_same_file(output, path) for path in inputs):
        raise click.BadParameter(
            f"{output} is the file to read, and would be overwritten: give another path",
            param_hint="--output",
        )


def _same_file(a: str, b: str) -> bool:
    with contextlib.suppress(OSError, ValueError):  # One is not there, or is no path.
        return os.path.samefile(a, b)
    return False


UNFORESEEN = (LookupError, ArithmeticError, TypeError, ValueError, AttributeError, RecursionError)
"""What showing a profile leads to that is not what views trust it to be."""
_FILES = ("file", "files", "before", "after", "target")
"""Arguments of commands that are files to show."""


def shows_files(command: Command) -> Command:
    """Say of a file that leads a view to what is not there that it contradicts itself."""

    @functools.wraps(command)
    def show(**values: Any) -> None:
        try:
            command(**values)
        except UNFORESEEN as e:
            given = [values[name] for name in _FILES if name in values]
            files = " or ".join(" or ".join(f) if isinstance(f, tuple) else f for f in given)
            at = traceback.extract_tb(e.__traceback__)[-1]
            raise BadFile(
                visible(
                    f"{files} contradicts itself: {type(e).__name__}: {e} "
                    f"({os.path.basename(at.filename)}, line {at.lineno}); if it is as memprof "
                    "wrote it, this is a mistake in memprof"
                )
            ) from e

    shown: Any = show
    return shown  # type: ignore[no-any-return]


def file_argument(command: Command) -> Command:
    # Not click.Path(exists=True): read_profile's messages say more.
    return click.argument("file", type=click.Path())(rank_option(shows_files(command)))


def rank_option(command: Command) -> Command:
    """Add ``--rank``, for files of several ranks; ``read`` asks for the rank itself."""
    return click.option(
        "--rank",
        type=click.IntRange(min=0),
        expose_value=False,
        callback=lambda ctx, param, value: ctx.meta.__setitem__(_RANK, value),
        help="Whose profile, in a file of several ranks.",
    )(command)


_RANK = "memprof.rank"


def chosen_rank() -> int | None:
    ctx = click.get_current_context(silent=True)
    found: int | None = ctx.meta.get(_RANK) if ctx is not None else None
    return found


def _to_file(value: str) -> str:
    """A path to write to; nothing here writes to standard output."""
    if value == "-":
        raise click.BadParameter("'-' is no file, and memprof writes files only")
    return value


def output_option(help: str, *, required: bool = True) -> Callable[[Command], Command]:
    checks = read_by(_to_file)
    return click.option(
        "--output", "-o", type=click.Path(), callback=checks, required=required, help=help
    )


page_option = click.option(
    "--output",
    "-o",
    type=click.Path(),
    callback=read_by(_to_file),
    is_flag=False,
    flag_value="",
    metavar="[PAGE]",
    help="Write a page for the browser here, or beside FILE: one file, no network.",
)


def json_option(help: str = "The same as JSON.") -> Callable[[Command], Command]:
    return click.option("--json", "as_json", is_flag=True, help=help)


exact_option = click.option("--bytes", "exact", is_flag=True, help="Bytes with all digits.")


def table_options(command: Command) -> Command:
    whose = "Whose memory, e.g. cuda:0. Default: the one with the most."
    rows = "Rows in each table; the rest is added up. Default: 10, of a short report 5."
    command = click.option("--device", help=whose)(exact_option(command))
    return click.option("--top", type=click.IntRange(min=1), help=rows)(command)


def read(path: str) -> Profile:
    """The profile at ``path``; of several ranks the chosen one."""
    rank, profiles = chosen_rank(), read_profiles(path)
    if rank is None:
        return single_profile(profiles, path)
    ranks = ranks_of(profiles)
    if rank not in ranks:
        raise BadFile(f"{path}: it has no rank {rank}, but {', '.join(map(str, ranks))}")
    return profiles[ranks.index(rank)]


def print_text(text: str) -> None:
    """Print the text of a page, in characters that standard output can show."""
    click.echo(printable(text, sys.stdout), nl=False)


def print_line(text: str) -> None:
    """Print one line, of which a part may be anybody's: a path, a name."""
    print_text(visible(text) + "\n")


def print_page(path: str, nbytes: int) -> None:
    print_line(f"{path}: {nbytes / 1e6:.1f} MB, one file that any browser opens offline")


def print_result(as_json: bool, value: Any, text: Callable[[], str]) -> None:
    """Print what a command has found as JSON, or its text."""
    if as_json:
        print_json(value)
    else:
        print_text(text())


def print_json(value: Any, indent: int = 2) -> None:
    click.echo(json_text(value, indent))


def json_text(value: Any, indent: int = 2) -> str:
    """JSON in ASCII, of which a terminal obeys nothing; on one line where ``indent`` is 0."""
    text = msgspec.json.format(to_json(value), indent=indent).decode()
    return re.sub("[^\\n -~]", lambda found: json.dumps(found[0])[1:-1], text)
