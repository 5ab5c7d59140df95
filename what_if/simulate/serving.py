"""What serving engines print: the sign that they are ready, at which a simulated one is left, as it
has no end, and that the device is too small for their cache.

Seen with vLLM 0.24 to 0.26 and 0.33, and SGLang 0.5.13, 0.5.17 and 0.5.23. Another version that
says something else runs until ``--until`` or ``--timeout`` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from .command_line import Command
from .failures import Failure

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


_TOO_SMALL = (
    "No available memory for the cache blocks",
    "larger than the available KV cache memory",
    "not enough GPU memory available to serve",
    "Not enough memory. Please try to increase --mem-fraction-static",
)
"""Texts of errors by which engines end that have too little memory left for their cache."""


def refusal(failures: Iterable[Failure | None]) -> str:
    """What an engine said as it ended since its cache would not fit; empty if none of the failures
    is such."""
    messages = (failure.message for failure in failures if failure is not None)
    refusing = (m for m in messages if any(text in m for text in _TOO_SMALL))
    # What follows is advice.
    return next((message.partition(". ")[0].partition("\n")[0] for message in refusing), "")
