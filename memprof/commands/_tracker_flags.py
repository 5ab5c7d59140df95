"""The tracker's settings as flags, and as text."""

from __future__ import annotations

from typing import Any

import click

from memprof.profiler.tracker.settings import SettingsError, check

from ._common import Command

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
