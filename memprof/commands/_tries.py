"""What ``fit`` and ``advise`` have in common: what goes wrong, in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from memprof.fit.store import BadStore
from memprof.fit.tries import ScriptFailed
from memprof.fit.variables import BadVariable
from memprof.profiler._text import visible
from memprof.profiler.errors import ProfileError
from memprof.simulate.command_line import BadCommand
from memprof.simulate.job import BadJob
from memprof.simulated_cuda.errors import SimulationError

from ._common import BadFile
from .simulate import FAILED


@contextmanager
def refused_before(command: tuple[str, ...], example: str) -> Iterator[None]:
    """Refuse bad options and files before anything runs.

    Args:
        command: of the user; there must be one.
        example: of what to write.
    """
    try:
        if not command:
            raise BadCommand(f"there is no script: {example}")
        yield
    except (BadCommand, BadVariable) as e:
        raise click.UsageError(visible(str(e))) from e
    except (BadStore, ProfileError) as e:
        raise BadFile(str(e)) from e


@contextmanager
def failures_in_words(name: str, output: str | None) -> Iterator[None]:
    """End with a line on standard error where tries cannot go on.

    Args:
        name: of the subcommand.
        output: the file with the tries so far, if there is one.
    """
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
    except (BadStore, ProfileError) as e:
        raise BadFile(str(e)) from e
