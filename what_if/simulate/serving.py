"""Servers whose sign that they are ready is known: a simulated one is left there, as it has no end.

Seen with vLLM 0.24 to 0.26 and SGLang 0.5.13. Another version that says something else runs until
``--until`` or ``--timeout`` says otherwise.
"""

from __future__ import annotations

import os

from .command_line import Command

READY = {
    "vllm": "Application startup complete",
    "sglang": "The server is fired up and ready to roll",
}
"""Text that a server prints when it serves, by program or first part of its module's name."""

_SERVERS = {"vllm": ("serve", "api_server"), "sglang": ("serve", "launch_server")}
"""Subcommands and modules that serve; all else of these packages ends by itself."""


def ready_sign(command: Command) -> str | None:
    """The text that a server prints when it is ready; None for what is no server that is known."""
    first = os.path.basename(command.program[0])
    words = command.program[1:] if first == "-m" else command.program
    name = os.path.basename(words[0]).partition(".")[0]
    serves = _SERVERS.get(name, ())
    parts = {*words[0].split("."), *words[1:2]}
    return READY[name] if parts.intersection(serves) else None
