"""``memprof run SCRIPT``, with the tracker's settings as flags."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from memprof.profiler.tracker.settings import ENVIRONMENT_PREFIX, SettingsError, check, configured
from memprof.profiler.writing import check_writable

from ._common import BadFile, Command

_FLAGS: tuple[tuple[str, Any, str], ...] = (
    ("output_dir", click.Path(), "Folder of the file."),
    ("interval", float, "Seconds between snapshots, 0.01 to 1,000,000."),
    ("largest", int, "How many of the largest tensors a snapshot describes."),
    ("max_snapshots", int, "How many snapshots are kept; older ones are merged."),
    ("max_operations", int, "How many operations are kept one by one."),
    ("operation_share", float, "Part of the time for memory at the edges of operations, 0 to 1."),
    ("scan_at_start", bool, "Find the tensors that exist already."),
    ("cpu_allocator", bool, "Count all CPU allocations, for 1.6 us each."),
)


def settings_flags(command: Command) -> Command:
    """Add a flag for each setting; without a value it is None."""
    for name, kind, text in reversed(_FLAGS):
        flag = name.replace("_", "-")
        if kind is bool:
            option = click.option(f"--{flag}/--no-{flag}", name, default=None, help=text)
        else:
            option = click.option(f"--{flag}", name, type=kind, help=text)
        command = option(command)
    return command


def checked(values: dict[str, Any]) -> dict[str, Any]:
    """The flags that were given.

    Raises:
        click.BadParameter: one cannot have its value.
    """
    given = {name: value for name, value in values.items() if value is not None}
    for name, value in given.items():
        try:
            check(name, value, "flag")
        except SettingsError as e:
            message = str(e).removeprefix("flag: ")
            raise click.BadParameter(message, param_hint=f"--{name.replace('_', '-')}") from e
    return given


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
    given = checked(flags)
    if graphs and given.keys() - {"output_dir"}:
        names = ", ".join(f"--{n.replace('_', '-')}" for n in given if n != "output_dir")
        raise click.UsageError(f"{names}: of the tracker, which --graphs runs without")
    environment = dict(os.environ)
    for name, value in given.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        environment[ENVIRONMENT_PREFIX + name.upper()] = text
    try:
        found = configured(environment=environment)
        check_writable(os.path.join(found.settings.output_dir, "memory_profile.memprof"))
    except SettingsError as e:
        raise BadFile(str(e)) from e
    if not found.settings.enabled and not graphs:
        click.echo(
            f"memprof run: tracking, although {found.origin['enabled']} says enabled = false; "
            "start the script with python to run it without",
            err=True,
        )
    what = ["-m", module, *command] if module is not None else list(command)
    launch = [sys.executable, "-m", "memprof.profiler.tracker.launch", *what]
    if graphs:
        launch = [sys.executable, "-m", "memprof.graphs_launch", found.settings.output_dir, *what]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, launch, environment)
