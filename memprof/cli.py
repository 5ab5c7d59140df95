"""The command line. Each subcommand is a module of ``memprof/commands``, loaded when asked for.

Reading a profile must work, and at once, on a machine that has no torch: only ``doctor`` and
``run`` import it.
"""

from __future__ import annotations

import gc
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import click

__all__ = ["COMMANDS", "main"]

COMMANDS = (
    "report",
    "ledger",
    "diff",
    "merge",
    "gantt",
    "export",
    "run",
    "config",
    "schema",
    "doctor",
)
"""Subcommands in the order of ``memprof --help``; ``name`` stands in ``commands/name.py``."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = import_module(f"memprof.commands.{name}")
        command = getattr(module, name)
        assert isinstance(command, click.Command)
        return command


def _version() -> str:
    try:
        return version("memprof")
    except PackageNotFoundError:
        return "unknown (not installed)"


@click.group("memprof", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="memprof")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Where the memory of compiled PyTorch code goes."""
    # A profile is millions of objects in no cycle, and the collector would walk all of them again
    # and again: reading a .memprof file takes four times as long with it.
    if gc.isenabled():
        gc.disable()
        ctx.call_on_close(gc.enable)
