"""Settings of graph trees that a user can choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from memprof.profiler.support.text import parse_size


def parse_bytes(value: int | str) -> int:
    """Bytes from a number, or from text like ``"8GiB"``, ``"512 MB"``.

    Raises:
        ValueError: it is neither, or negative.
    """
    if isinstance(value, str):
        found = parse_size(value)
        if found is None:
            raise ValueError(
                f"{value!r} is no number of bytes; write e.g. 8589934592, '8GiB' or '512MB'"
            )
        return found
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of bytes; it must be an integer of 0 or more")
    return value


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Options of the trees of one process. What is made after a change sees it.

    Attributes:
        outputs: what becomes of outputs that are held when the next step begins: ``error``
            makes their use raise, ``clone`` gives them memory of their own.
        pool_initial: bytes that a pool starts with, in one segment.
    """

    outputs: str = "error"
    pool_initial: int = 0

    def __post_init__(self) -> None:
        if self.outputs not in ("error", "clone"):
            raise ValueError(f"outputs is {self.outputs!r}; it must be 'error' or 'clone'")


_current = TreeSettings()


def current_settings() -> TreeSettings:
    """The settings that managers are made with now."""
    return _current


def configure(
    *,
    outputs: str | None = None,
    pool_initial: int | str | None = None,
) -> TreeSettings:
    """Change settings; what is not given stays.

    Args:
        outputs: see ``TreeSettings``.
        pool_initial: bytes, or text like ``"1GiB"``.

    Returns:
        The former settings, for ``restore_settings``.

    Raises:
        ValueError: a value that makes no sense.
    """
    before = _current
    initial = None if pool_initial is None else parse_bytes(pool_initial)
    given = {"outputs": outputs, "pool_initial": initial}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    restore_settings(replace(before, **changes))
    return before


def restore_settings(settings: TreeSettings) -> None:
    """Put settings back that ``configure`` returned."""
    global _current
    _current = settings
