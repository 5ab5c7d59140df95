"""Functions of other modules, replaced for as long as somebody wants to know of their calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

Undo = Callable[[], None]
"""Takes a change back; it may be called again."""


def replace(
    owners: Sequence[Any],
    name: str,
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Undo:
    """Put ``around(function)`` in the place of a function that ``owners`` have under ``name``.

    Undone, the function is there again; where somebody has put another one over ours, that stays
    and ours does nothing but call the function.
    """
    original = getattr(owners[0], name)
    own = [vars(owner).get(name, original) for owner in owners]  # a staticmethod as such
    ours: Callable[..., Any] | None = around(original)

    @functools.wraps(original)
    def standing_in(*args: Any, **kwargs: Any) -> Any:
        return (ours or original)(*args, **kwargs)

    for owner in owners:
        setattr(owner, name, standing_in)

    def undo() -> None:
        nonlocal ours
        ours = None
        for owner, before in zip(owners, own, strict=True):
            if getattr(owner, name) is standing_in:
                setattr(owner, name, before)

    return undo


def before(do: Callable[..., object]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For ``replace``: ``do`` is called first, with the same arguments."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def both(*args: Any, **kwargs: Any) -> Any:
            do(*args, **kwargs)
            return original(*args, **kwargs)

        return both

    return around


def undo_all(*undone: Undo) -> Undo:
    """One change back for several."""

    def undo() -> None:
        for one in undone:
            one()

    return undo
