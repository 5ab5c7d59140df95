"""Graph trees: compiled graphs replayed out of one pool of memory, safely.

``docs/architecture.md`` has the files that a call goes through, in order.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .call.container import (
        get_container,
        get_manager,
        mark_warmup_incomplete,
        reset_cudagraph_trees,
    )
    from .call.entry import cudagraphify, cudagraphify_impl, tell_what_is_given
    from .call.inductor import InductorTrees, use_in_inductor
    from .settings import TreeSettings, configure

__all__ = [
    "InductorTrees",
    "TreeSettings",
    "configure",
    "cudagraphify",
    "cudagraphify_impl",
    "get_container",
    "get_manager",
    "mark_warmup_incomplete",
    "reset_cudagraph_trees",
    "tell_what_is_given",
    "use_in_inductor",
]


# In this order: most importers of this package want one name, and some of them (reports) must not
# import torch, which the first needs not.
_HOMES = ("settings", "call.container", "call.entry", "call.inductor")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for home in _HOMES:
            found = getattr(import_module(f"{__name__}.{home}"), name, None)
            if found is not None:
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
