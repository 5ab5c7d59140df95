"""Names of a package whose modules are imported when a name is first used."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def name_from(package: str, homes: Sequence[str], name: str) -> Any:
    """The value of a package's ``name``, for its ``__getattr__``.

    Args:
        package: its name.
        homes: modules of it, in the order in which they are imported to look for the name. A module
            also has the names that it imports.

    Raises:
        AttributeError: none of them has it.
    """
    for home in homes:
        found = getattr(import_module(f"{package}.{home}"), name, None)
        if found is not None:
            return found
    raise AttributeError(f"module {package!r} has no attribute {name!r}")
