"""Settings of graph trees that a user can choose."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from memprof.profiler.support.process_hooks import on_reset
from memprof.profiler.support.text import parse_size

log = logging.getLogger("memprof.cudagraph_trees")


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
        pool_budget: bytes that a pool may reserve, None for no limit. Above it, all recordings are
            dropped when the step ends, and what is used again is recorded into a new pool.
        pool_initial: bytes that a pool starts with, in one segment.
    """

    outputs: str = "error"
    pool_budget: int | None = None
    pool_initial: int = 0

    def __post_init__(self) -> None:
        if self.outputs not in ("error", "clone"):
            raise ValueError(f"outputs is {self.outputs!r}; it must be 'error' or 'clone'")


_configured = TreeSettings()
_current = _configured


def current_settings() -> TreeSettings:
    """The settings that managers are made with now."""
    return _current


def configure(
    *,
    outputs: str | None = None,
    pool_budget: int | str | None = None,
    pool_initial: int | str | None = None,
) -> TreeSettings:
    """Change settings; what is not given stays, and what ``override`` set is no longer in force.

    Args:
        outputs: see ``TreeSettings``.
        pool_budget: bytes, or text like ``"8GiB"``; 0 for no limit.
        pool_initial: bytes, or text like ``"1GiB"``.

    Returns:
        The former settings, for ``restore_settings``.

    Raises:
        ValueError: a value that makes no sense.
    """
    before = _configured
    initial = None if pool_initial is None else parse_bytes(pool_initial)
    given = {"outputs": outputs, "pool_initial": initial}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if pool_budget is not None:
        changes["pool_budget"] = parse_bytes(pool_budget) or None
    restore_settings(replace(before, **changes))
    return before


def restore_settings(settings: TreeSettings) -> None:
    """Put settings back that ``configure`` returned."""
    global _configured, _current
    _configured = _current = settings


def override(*, pool_budget: int | None, pool_initial: int) -> None:
    """Set the bytes of pool that a compilation's options ask for, until ``end_override``: None
    and 0 ask for nothing. All compiled code of a thread shares a device's pool: the smallest budget
    holds, and the largest beginning."""
    global _current
    budgets = [b for b in (_current.pool_budget, pool_budget) if b is not None]
    budget = min(budgets, default=None)
    if len(set(budgets)) > 1:
        log.warning(
            "pool_budget: %d bytes are asked for, and %d were before; code shares its pool with "
            "all that is compiled in this process, so %d holds",
            budgets[1],
            budgets[0],
            budget,
        )
    initial = max(_current.pool_initial, pool_initial)
    _current = replace(_current, pool_budget=budget, pool_initial=initial)


@on_reset
def end_override() -> None:
    """End ``override``: the configured settings are in force again."""
    global _current
    _current = _configured
