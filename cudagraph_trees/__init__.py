"""Graph trees: compiled graphs replayed out of one pool of memory, safely.

``docs/architecture.md`` has the files that a call goes through, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .container import (
        get_container,
        get_manager,
        mark_warmup_incomplete,
        reset_cudagraph_trees,
    )
    from .entry import cudagraphify, cudagraphify_impl, tell_what_is_given
    from .inductor import InductorTrees, use_in_inductor
    from .settings import TreeSettings, configure

# Most importers of this package want one name, and some of them (reports) must not import torch.
_HOME = {
    "InductorTrees": "inductor",
    "TreeSettings": "settings",
    "configure": "settings",
    "cudagraphify": "entry",
    "cudagraphify_impl": "entry",
    "get_container": "container",
    "get_manager": "container",
    "mark_warmup_incomplete": "container",
    "reset_cudagraph_trees": "container",
    "tell_what_is_given": "entry",
    "use_in_inductor": "inductor",
}

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


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{home}"), name)
