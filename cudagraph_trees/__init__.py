"""Graph trees: compiled graphs replayed out of one pool of memory, safely.

``docs/architecture.md`` has the files that a call goes through, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memprof.profiler.support.lazy_names import name_from

if TYPE_CHECKING:
    from .call.container import (
        get_container,
        get_manager,
        mark_warmup_incomplete,
        reset_cudagraph_trees,
    )
    from .call.entry import cudagraphify, cudagraphify_impl, tell_what_is_given
    from .call.inductor import InductorTrees, use_in_inductor

__all__ = [
    "InductorTrees",
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
_HOMES = ("call.container", "call.entry", "call.inductor")


def __getattr__(name: str) -> Any:
    return name_from(__name__, _HOMES if name in __all__ else (), name)
