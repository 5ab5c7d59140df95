"""How a command ends that something outside of memprof keeps from its end."""

from __future__ import annotations

import click


class BadFile(click.ClickException):
    """Something outside of memprof keeps a command from its end; exits with 2."""

    exit_code = 2
