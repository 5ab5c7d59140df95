"""``memprof config show`` and ``memprof config update``."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import click

from memprof.profiler.tracker.settings import (
    FILE_NAME,
    SettingsError,
    TrackerSettings,
    check,
    configured,
    find_file,
    parse,
    read_toml,
    table_name,
    table_of,
    toml_document,
    toml_value,
)
from memprof.profiler.writing import write_whole

from ._common import BadFile, json_option, print_json


@click.group()
def config() -> None:
    """Show or change the settings of the memory tracker."""


@config.command()
@json_option
def show(as_json: bool) -> None:
    """Print the settings in force here, and where each comes from."""
    try:
        found = configured()
    except SettingsError as e:
        raise BadFile(str(e)) from e
    if as_json:
        file = str(found.file) if found.file else None
        origin = found.origin
        print_json({"file": file, "settings": found.settings, "origin": origin})
        return
    click.echo(f"# file: {found.file or f'none (no {FILE_NAME}, no [tool.memprof])'}")
    for field in dataclasses.fields(TrackerSettings):
        value = toml_value(getattr(found.settings, field.name))
        click.echo(f"{field.name} = {value}  # {found.origin.get(field.name, 'default')}")


@config.command()
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.option(
    "--file",
    type=click.Path(dir_okay=False),
    help=f"Which file. Default: the one in force, else a new {FILE_NAME} here.",
)
def update(settings: tuple[str, ...], file: str | None) -> None:
    """Set settings in the TOML file; NAME= takes one out.

    The rest of the file, comments included, stays as it is.
    """
    try:
        changes = [_change(text) for text in settings]
        path = Path(file) if file else find_file() or Path(FILE_NAME)
        text = ""
        if path.exists():
            table_of(path, read_toml(path))
            text = path.read_text(encoding="utf-8")
        for name, value in changes:
            text = changed(text, table_name(path), name, value)
        _check_text(path, text)
        write_whole(path, text.encode(), "the settings")
    except SettingsError as e:
        raise BadFile(str(e)) from e
    except OSError as e:  # A folder above it may not even be looked into.
        raise BadFile(f"{e.filename}: cannot read it: {e.strerror}") from e
    click.echo(f"{path}: {', '.join(settings)}")


def _change(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="NAME=VALUE")
    name = name.strip().replace("-", "_")
    if not value:
        check(name, getattr(TrackerSettings(), name, None), "NAME=")
        return name, None
    return name, toml_value(parse(name, value, text))


def changed(text: str, table: str, name: str, value: str | None) -> str:
    """TOML ``text`` with ``name`` set to ``value``, or taken out, in ``[table]``.

    Only lines of that table are touched, so that comments and layout stay. A value of ours is
    always on one line.
    """
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    dotted = r"\s*\.\s*".join(re.escape(part) for part in table.split("."))
    header = re.compile(rf"\s*\[\s*{dotted}\s*\]")
    begin = next((i for i, line in enumerate(lines) if header.match(line)), None)
    if begin is None:
        if value is None:
            return text
        gap = ["\n"] if lines else []
        return "".join([*lines, *gap, f"[{table}]\n", f"{name} = {value}\n"])
    end = next(
        (i for i in range(begin + 1, len(lines)) if re.match(r"\s*\[", lines[i])), len(lines)
    )
    entry = re.compile(rf"(\s*(?:{re.escape(name)}|\"{re.escape(name)}\")\s*=\s*)(.*)")
    for i in range(begin + 1, end):
        match = entry.match(lines[i])
        if match:
            comment = re.search(r"\s+#[^\"']*$", match[2])
            new = [] if value is None else [f"{match[1]}{value}{comment[0] if comment else ''}\n"]
            return "".join([*lines[:i], *new, *lines[i + 1 :]])
    if value is None:
        return text
    while end > begin + 1 and not lines[end - 1].strip():
        end -= 1
    return "".join([*lines[:end], f"{name} = {value}\n", *lines[end:]])


def _check_text(path: Path, text: str) -> None:
    """Refuse to write what could not be read again, e.g. where the table is written inline."""
    try:
        table = table_of(path, toml_document(text, path)) or {}
    except SettingsError as e:
        raise SettingsError(f"{e}: cannot be changed automatically; edit it by hand") from e
    for name, value in table.items():
        check(name, value, str(path))
