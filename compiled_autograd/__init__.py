"""Compiled autograd: a whole backward captured as one FX graph.

    with memprof.compiled_autograd.enable(compiler_fn, dynamic=True):
        loss.backward()

``docs/compiled-autograd.md`` says what works and what runs in the normal engine.
"""

from __future__ import annotations

from .capture import CapturedBackward, Listener
from .compiler import AutogradCompilerInstance
from .engine import (
    capture,
    disable,
    enable,
    install,
    installed,
    reset,
    turn_off,
    turn_on,
    uninstall,
)
from .errors import CaptureError

__all__ = [
    "AutogradCompilerInstance",
    "CaptureError",
    "CapturedBackward",
    "Listener",
    "capture",
    "disable",
    "enable",
    "install",
    "installed",
    "reset",
    "turn_off",
    "turn_on",
    "uninstall",
]
