"""Errors of capture."""

from __future__ import annotations

_TURN_OFF = (
    "Run that backward inside `with memprof.compiled_autograd.disable():`, or leave compiled "
    "autograd off."
)


class CaptureError(RuntimeError):
    """A backward that cannot be captured. Nothing of it has run: no gradient was written."""

    def __init__(self, what: str) -> None:
        super().__init__(f"compiled autograd cannot capture this backward: {what}. {_TURN_OFF}")
