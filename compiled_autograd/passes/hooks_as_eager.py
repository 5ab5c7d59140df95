"""Run hooks after an accumulation where the normal engine runs them: right after it."""

from __future__ import annotations

from torch.fx import Graph, Node

from ..hazards import before_writer, move_behind, readers_of
from ..nodes import (
    HOOKS_AFTER_ACCUMULATION,
    accumulated,
    is_accumulate_grad,
    is_hook,
    is_item_of_argument,
)
from ..origin import origin_of


def hooks_as_eager(graph: Graph) -> None:
    """Move post-accumulate-grad hooks and post-hooks of AccumulateGrad nodes up to it.

    Hooks of other nodes were captured right before and after the node that they belong to,
    which is where they run. Pre-hooks of an accumulation moved with it.

    Hooks of one accumulation keep their order, and each stays behind the readers of the
    parameter: an optimizer in a post-accumulate-grad hook writes it, and they read the old
    value (Note [Readers stand before writers]).
    """
    hooks: dict[int, list[Node]] = {}
    for node in graph.nodes:
        origin = origin_of(node)
        if origin is not None and any(is_hook(node, k) for k in HOOKS_AFTER_ACCUMULATION):
            hooks.setdefault(origin.call_index, []).append(node)
    for node in [n for n in graph.nodes if is_accumulate_grad(n)]:
        origin = origin_of(node)
        if origin is None:
            continue
        variable, _, _ = accumulated(node)
        last = node
        for hook in hooks.get(origin.call_index, ()):
            mine = {a for a in hook.all_input_nodes if not is_item_of_argument(a)}
            # Parts of another hook's result, made for this one.
            parts = sorted(a for a in mine if _call_index(a) == origin.call_index and a > last)
            after = [last, *(a for a in mine if a not in parts)]
            after += before_writer(hook, readers_of(variable) - {*parts})
            last = move_behind(max(after), (*parts, hook))


def _call_index(node: Node) -> int | None:
    origin = origin_of(node)
    return origin.call_index if origin is not None else None
