"""Calls a function of ours before or after each call of somebody else's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def before_call(owner: Any, name: str, do: Callable[..., object]) -> None:
    """Call ``do`` with the arguments of each call of the owner's function ``name``, before it."""
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        do(*args, **kwargs)
        return function(*args, **kwargs)

    setattr(owner, name, called)


def after_call(owner: Any, name: str, do: Callable[..., object]) -> None:
    """Call ``do`` with the result of each call of the owner's function ``name``, and with the first
    argument where it is a method."""
    function: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        do(result, *args[:1])
        return result

    setattr(owner, name, called)
