"""``memprof run SCRIPT`` with the tracker's settings as flags, and ``memprof config`` of these."""

from __future__ import annotations

import dataclasses
import os
import sys
from functools import partial
from typing import Any

import click

from memprof.profiler.sources.process import settings
from memprof.profiler.support.writing import check_writable

from ._common import Command, json_option, print_json, read_by


def settings_flags(command: Command) -> Command:
    for field in reversed(dataclasses.fields(settings.TrackerSettings)):
        if "help" not in field.metadata:
            continue
        name, help = field.name, field.metadata["help"]
        flag = f"--{name.replace('_', '-')}"
        kind: Any = click.Path() if isinstance(field.default, str) else type(field.default)
        checks = read_by(partial(settings.check, name, where=""), settings.SettingsError)
        command = click.option(flag, name, type=kind, callback=checks, help=help)(command)
    return command


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@settings_flags
@click.option(
    "--graphs", is_flag=True, help="Watch captures of CUDA graphs instead: cuda_graphs_*.memprof."
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(command: tuple[str, ...], module: str | None, graphs: bool, **flags: Any) -> None:
    """Run a script nobody changed with the memory tracker on.

    COMMAND is a script and its arguments, as after `python`. memory_profile_*.memprof is in the
    output folder when it has ended, however it ended. Settings that are not given come from
    MEMPROF_* variables and from a TOML file, see `memprof config show`; but `enabled`, which this
    command is.

    With --graphs there is no tracker: each CUDA graph that the script captures, by whatever means,
    is in the file with its memory (docs/cuda-graph-memory.md). Of the settings only --output-dir
    counts.
    """
    if module is None and not command:
        raise click.UsageError("Missing a script: memprof run [OPTIONS] SCRIPT [ARGUMENT ...]")
    # Unknown options pass, as those after -m MODULE are the module's; without -m one is a mistake.
    if module is None and command[0].startswith("-"):
        raise click.NoSuchOption(command[0].partition("=")[0])
    given = {name: value for name, value in flags.items() if value is not None}
    if graphs and given.keys() - {"output_dir"}:
        names = ", ".join(f"--{n.replace('_', '-')}" for n in given if n != "output_dir")
        raise click.UsageError(f"{names}: of the tracker, which --graphs runs without")
    environment = dict(os.environ)
    for name, value in given.items():
        environment[settings.ENVIRONMENT_PREFIX + name.upper()] = str(value)
    found = settings.configured(environment=environment)
    check_writable(os.path.join(found.settings.output_dir, "memory_profile.memprof"))
    if not found.settings.enabled and not graphs:
        click.echo(
            f"memprof run: tracking, although {found.origin['enabled']} says enabled = false; "
            "start the script with python to run it without",
            err=True,
        )
    what = ["-m", module, *command] if module is not None else list(command)
    graphs_in = ["--graphs", found.settings.output_dir] if graphs else []
    launch = [sys.executable, "-m", "memprof.compile_backend.session.launch", *graphs_in, *what]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, launch, environment)


@click.group()
def config() -> None:
    """Show the settings of the memory tracker."""


@config.command()
@json_option()
def show(as_json: bool) -> None:
    """Print the settings in force here, and where each comes from."""
    found = settings.configured()
    if as_json:
        print_json(found)
        return
    click.echo(f"# file: {found.file or f'none (no {settings.FILE_NAME}, no [tool.memprof])'}")
    for field in dataclasses.fields(settings.TrackerSettings):
        value = settings.toml_value(getattr(found.settings, field.name))
        click.echo(f"{field.name} = {value}  # {found.origin.get(field.name, 'default')}")
