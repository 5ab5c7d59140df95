"""What ``simulate``, ``fit`` and ``advise`` share: options of tries, what goes wrong in words."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from memprof.fit.store import BadStore, Store
from memprof.fit.tries import ScriptFailed
from memprof.fit.variables import BadVariable
from memprof.profiler._text import visible
from memprof.simulate.command_line import BadCommand, BadJob
from memprof.simulated_cuda.errors import SimulationError

from ._common import BadFile, Command, exact_option, keep_apart, output_option, read_by

FAILED = 3
"""Exit status: the script failed."""


def _seconds(value: float) -> float:
    if math.isnan(value):  # which is in every range
        raise click.BadParameter("nan is no number of seconds")
    return value


def timeout_option(help: str) -> Callable[[Command], Command]:
    """Add ``--timeout``."""
    kind = click.FloatRange(0, 1e7, min_open=True)
    return click.option(
        "--timeout", type=kind, callback=read_by(_seconds), metavar="SECONDS", help=help
    )


def steps_option(help: str) -> Callable[[Command], Command]:
    """Add ``--steps``, of the optimizer."""
    return click.option("--steps", type=click.IntRange(1), default=3, show_default=True, help=help)


def tries_options(what: str) -> Callable[[Command], Command]:
    """Add when a try ends, where tries are kept and how they are printed (``what`` is that which
    ``--json`` prints), and the COMMAND."""

    def add(command: Command) -> Command:
        for option in (
            click.argument("command", nargs=-1, type=click.UNPROCESSED),
            click.option("-q", "--quiet", is_flag=True, help="Without progress."),
            exact_option,
            click.option("--json", "as_data", is_flag=True, help=f"The {what} as JSON, in bytes."),
            output_option("Keep tries there, as JSON, and go on from them.", required=False),
            timeout_option("Give up on a try then."),
            steps_option("End a try after so many optimizer steps."),
        ):
            command = option(command)
        return command

    return add


def store_at(output: str | None, command: tuple[str, ...]) -> Store:
    """The tries in a file, which must not be one that the command names."""
    if output is not None:
        keep_apart([output], [word for word in command if os.path.isfile(word)], "--output")
    return Store(output)


@contextmanager
def refused_before(command: tuple[str, ...], example: str) -> Iterator[None]:
    """Refuse bad options and files before anything runs, and to run nothing: ``example`` is what to
    write."""
    try:
        if not command:
            raise BadCommand(f"there is no script: {example}")
        yield
    except (BadCommand, BadVariable) as e:
        raise click.UsageError(visible(str(e))) from e
    except BadStore as e:
        raise BadFile(str(e)) from e


@contextmanager
def failures_in_words(name: str, output: str | None = None) -> Iterator[None]:
    """End with a line on standard error where tries of a subcommand cannot go on; ``output`` is the
    file with those so far, if there is one."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"; {output} has the tries so far" if output is not None else ""
        click.echo(visible(f"memprof {name}: interrupted{kept}"), err=True)
        raise SystemExit(130) from None
    except (BadCommand, BadJob) as e:
        raise click.UsageError(visible(str(e))) from e
    except SimulationError as e:
        for line in f"memprof {name}: {e}".splitlines():
            click.echo(visible(line), err=True)
        raise SystemExit(BadFile.exit_code) from e
    except ScriptFailed as e:
        for line in e.trace.splitlines():
            click.echo(visible(line), err=True)
        click.echo(visible(f"memprof {name}: the script failed: {e}"), err=True)
        raise SystemExit(FAILED) from e
    except BadStore as e:
        raise BadFile(str(e)) from e
