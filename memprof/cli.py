"""The command line. Each subcommand is a module of ``memprof/commands``, loaded when asked for.

Reading a profile must work, and at once, on a machine that has no torch: only ``doctor`` and
``run`` import it.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import click

from memprof.commands.errors import BadFile
from memprof.profiler.sources.process.settings import SettingsError
from memprof.profiler.support.errors import ProfileError
from memprof.profiler.support.host import installed_version
from memprof.profiler.support.text import visible

COMMANDS = (
    "report",
    "top",
    "diff",
    "export",
    "run",
    "simulate",
    "fit",
    "config",
    "doctor",
)
"""Subcommands in the order of ``memprof --help``; ``name`` stands in ``commands/name.py``, but for
those in ``_INSIDE``."""
_INSIDE = {"diff": "report", "config": "run"}
_GONE = {
    "advise": "memprof fit --try -- python SCRIPT",
    "leaks": "memprof report FILE --section leaks",
    "ledger": "memprof report FILE --section ledger",
    "gantt": "memprof report FILE -o PAGE",
    "merge": "memprof export FILE... -f memprof -o OUT",
    "enrich": "memprof export FILE -f memory-viz -o OUT",
    "schema": "memprof export --schema",
}
"""Commands of before, and what to type instead."""


class _Commands(click.Group):
    """Subcommands, and the one place where what goes wrong in them becomes a line of text."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            # What is still in the buffer would fail as the interpreter ends, with a traceback.
            if sys.stdout is not None:  # It may be closed.
                sys.stdout.flush()
            return result
        except click.ClickException as e:
            shown: Any = e  # click says that nobody changes a message
            shown.message = visible(e.message)
            raise
        except OSError as e:
            if e.errno == errno.EPIPE:
                raise  # Whoever reads has seen enough; click ends without a word.
            if e.filename is not None:
                raise BadFile(visible(f"{e.filename}: {e.strerror}")) from e
            _discard_output()
            raise BadFile(visible(f"cannot write to standard output: {e.strerror or e}")) from e
        except ProfileError as e:
            raise BadFile(str(e)) from e
        except SettingsError as e:
            raise BadFile(visible(str(e))) from e
        except MemoryError as e:
            raise BadFile("there is not enough memory to show this file") from e

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _GONE:
            raise click.UsageError(f"memprof {name} is now: {_GONE[name]}", ctx)
        if name not in COMMANDS:
            if meant := get_close_matches(name, COMMANDS):
                raise click.UsageError(f"No such command {name!r}. Did you mean {meant[0]!r}?", ctx)
            return None
        module = import_module(f"memprof.commands.{_INSIDE.get(name, name)}")
        command = getattr(module, name)
        assert isinstance(command, click.Command)
        return command


def _discard_output() -> None:
    """Let go of what standard output did not take: it would not take it at the end, either."""
    with contextlib.suppress(OSError, ValueError):  # One without a descriptor has no end, either.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Notes(logging.Handler):
    """Describes what memprof logs while a command runs, a line each on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"{record.levelname.capitalize()}: {visible(record.getMessage())}", err=True)


@click.group("memprof", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installed_version(), prog_name="memprof")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Where the memory of compiled PyTorch code goes."""
    notes = _Notes(logging.WARNING)
    log = logging.getLogger("memprof")
    log.addHandler(notes)
    ctx.call_on_close(lambda: log.removeHandler(notes))
    # A profile is millions of objects in no cycle, and the collector would walk all of them again
    # and again: reading a .memprof file takes four times as long with it.
    if gc.isenabled():
        gc.disable()
        ctx.call_on_close(gc.enable)
