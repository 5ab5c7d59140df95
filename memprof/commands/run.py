"""``memprof run SCRIPT`` with the tracker's settings as flags, and ``memprof config`` of these."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from memprof.profiler.sources.process import settings
from memprof.profiler.support.writing import check_writable, write_whole

from ._common import BadFile, Command, json_option, print_json, read_by


def settings_flags(command: Command) -> Command:
    for field in reversed(dataclasses.fields(settings.TrackerSettings)):
        if "help" not in field.metadata:
            continue
        name, help = field.name, field.metadata["help"]
        flag = f"--{name.replace('_', '-')}"
        kind: Any = type(field.default)
        if kind is bool:
            option = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=help)
        else:
            kind = click.Path() if kind is str else kind
            checks = read_by(partial(settings.check, name, where=""), settings.SettingsError)
            option = click.option(flag, name, type=kind, callback=checks, help=help)
        command = option(command)
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
        text = str(value).lower() if isinstance(value, bool) else str(value)
        environment[settings.ENVIRONMENT_PREFIX + name.upper()] = text
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
    """Show or change the settings of the memory tracker."""


@config.command()
@json_option
def show(as_json: bool) -> None:
    """Print the settings in force here, and where each comes from."""
    found = settings.configured()
    if as_json:
        file = str(found.file) if found.file else None
        print_json({"file": file, "settings": found.settings, "origin": found.origin})
        return
    click.echo(f"# file: {found.file or f'none (no {settings.FILE_NAME}, no [tool.memprof])'}")
    for field in dataclasses.fields(settings.TrackerSettings):
        value = settings.toml_value(getattr(found.settings, field.name))
        click.echo(f"{field.name} = {value}  # {found.origin.get(field.name, 'default')}")


@config.command()
@click.argument("texts", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.option(
    "--file",
    type=click.Path(dir_okay=False),
    help=f"Which file. Default: the one in force, else a new {settings.FILE_NAME} here.",
)
def update(texts: tuple[str, ...], file: str | None) -> None:
    """Set settings in the TOML file; NAME= takes one out.

    The rest of the file, comments included, stays as it is.
    """
    changes = [_change(text) for text in texts]
    try:
        path = Path(file) if file else settings.find_file() or Path(settings.FILE_NAME)
        text = settings.read_toml(path) if path.exists() else ""
    except OSError as e:  # A folder above it may not even be looked into.
        raise BadFile(f"{e.filename}: cannot read it: {e.strerror}") from e
    settings.table_in(text, path)
    for name, value in changes:
        text = changed(text, settings.table_name(path), name, value)
    # Where the table is written inline, it could not be read again.
    try:
        table = settings.table_in(text, path) or {}
    except settings.SettingsError as e:
        raise BadFile(f"{e}: cannot be changed automatically; edit it by hand") from e
    for name, value in table.items():
        settings.check(name, value, f"{path}: ")
    write_whole(path, text.encode(), "the settings")
    click.echo(f"{path}: {', '.join(texts)}")


def _change(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="NAME=VALUE")
    name = name.strip().replace("-", "_")
    if not value:
        settings.check(name, getattr(settings.TrackerSettings(), name, None), "NAME=: ")
        return name, None
    return name, settings.toml_value(settings.parse(name, value, f"{text}: "))


def changed(text: str, table: str, name: str, value: str | None) -> str:
    """TOML ``text`` with ``name`` set to ``value``, or taken out, in ``[table]``. Only lines of
    that table are touched, so that comments and layout stay."""
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    dotted = r"\s*\.\s*".join(re.escape(part) for part in table.split("."))
    header = re.compile(rf"\s*\[\s*{dotted}\s*\]")
    entry = re.compile(rf"(\s*(?:{re.escape(name)}|\"{re.escape(name)}\")\s*=\s*)(.*)")
    begin = next((i for i, line in enumerate(lines) if header.match(line)), None)
    if begin is None:
        gap = ["\n"] if lines else []
        new = [*gap, f"[{table}]\n", f"{name} = {value}\n"]
        return text if value is None else "".join([*lines, *new])
    end = begin + 1
    while end < len(lines) and not re.match(r"\s*\[", lines[end]):
        if match := entry.match(lines[end]):
            comment = re.search(r"\s+#[^\"']*$", match[2])
            line = f"{match[1]}{value}{comment[0] if comment else ''}\n"
            lines[end : end + 1] = [] if value is None else [line]
            return "".join(lines)
        end += 1
    while end > begin + 1 and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, f"{name} = {value}\n")
    return text if value is None else "".join(lines)
