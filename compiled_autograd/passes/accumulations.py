"""Accumulate each gradient as soon as it exists, and run hooks where the normal engine does.

Note [Where an accumulation may go]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The normal engine runs an AccumulateGrad before anything else that is ready; so does this pass, also
among the nodes of an inlined AOTAutograd graph, whose end the engine itself would wait for. A
gradient that is added to an existing one dies there. With the accumulation goes what the engine
runs for the same node before it: pre-hooks of the parameter and of its AccumulateGrad, which carry
the same index of the engine's call (``NodeOrigin.call_index``).

The accumulation writes the existing gradient in place, and hooks may write what they are given; so
nothing is moved above a reader of the existing gradient, or above an earlier one of the gradient
that a hook is given. Which inputs share memory with it the tracer has seen (``INPUT_GROUP``), and
views inside the graph are found through operator schemas.

Note [Readers stand before writers]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The order of a capture is not that of a backward. So what reads a saved tensor may stand behind what
writes it: an accumulation into a gradient that the forward has read, or an optimizer in a hook. The
normal engine runs the reader first, or finds by the tensor's version that it cannot. A captured
graph has no versions; there every computation goes before the writer, which it cannot depend on.
Python code and other writers keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Graph, Node

from .. import nodes
from ..nodes import (
    GRADIENT_GROUP,
    INPUT_GROUP,
    is_accumulate_grad,
    is_item_of_argument,
    origin_of,
    runs_python,
)


def accumulate_grad_asap(graph: Graph) -> None:
    """Move every accumulation, with the hooks before it, up to the last thing it needs."""
    for node in list(filter(is_accumulate_grad, graph.nodes)):
        block = _block(node)
        inside = set(block)
        after = [a for n in block for a in _computed(n) if a not in inside]
        after += _before_writer(node, readers_of_gradient(node) - inside)
        for hook in filter(runs_python, block):
            for given in _computed(hook):
                after += [u for u in given.users if u < hook and u not in inside]
        if after:
            _move_behind(max(after), block)


def _computed(node: Node) -> list[Node]:
    """The arguments of ``node`` that the graph computes."""
    return [a for a in node.all_input_nodes if not is_item_of_argument(a)]


def _block(accumulation: Node) -> list[Node]:
    """The accumulation and what leads to it within the same call of the engine, in order."""
    origin = origin_of(accumulation)
    found = {accumulation}
    pending = [accumulation] if origin is not None else []
    for node in pending:  # which grows meanwhile
        for argument in _computed(node):
            theirs = origin_of(argument)
            if argument in found or theirs is None or theirs.aot_node is not None:
                continue
            if origin is not None and theirs.call_index == origin.call_index:
                found.add(argument)
                pending.append(argument)
    return sorted(found)


def hooks_as_eager(graph: Graph) -> None:
    """Move post-accumulate-grad hooks and post-hooks of AccumulateGrad nodes up to it.

    Other hooks are where they run: right before and after their node. Hooks of one accumulation
    keep their order, and each stays behind the readers of the parameter: an optimizer in such a
    hook writes it, and they read the old value (Note [Readers stand before writers]).
    """
    hooks: dict[int, list[Node]] = {}
    for node in graph.nodes:
        origin = origin_of(node)
        kind = node.kwargs.get("hook_type") if nodes.is_hook(node) else None
        if origin is not None and kind in ("post_acc_grad_hook", "post_hook"):
            hooks.setdefault(origin.call_index, []).append(node)
    for node in list(filter(is_accumulate_grad, graph.nodes)):
        origin = origin_of(node)
        if origin is None:
            continue
        variable, _, _ = nodes.accumulated(node)
        last = node
        for hook in hooks.get(origin.call_index, ()):
            mine = _computed(hook)
            # Parts of another hook's result, made for this one.
            same = (a for a in mine if (o := origin_of(a)) and o.call_index == origin.call_index)
            parts = sorted(a for a in same if a > last)
            after = [last, *(a for a in mine if a not in parts)]
            after += _before_writer(hook, _readers_of(variable) - {*parts})
            last = _move_behind(max(after), (*parts, hook))


def _readers_of(node: Node) -> set[Node]:
    """Nodes that read the memory of ``node``, directly, as a view, or as another input."""
    group = node.meta.get(INPUT_GROUP)
    return _users([node]) if group is None else _readers_of_group(group, node.graph)


def readers_of_gradient(accumulation: Node) -> set[Node]:
    """Nodes other than ``accumulation`` that read the gradient which it adds to."""
    variable, current, _ = nodes.accumulated(accumulation)
    group = variable.meta.get(GRADIENT_GROUP)
    found: set[Node] = set()
    if current is not None:
        found = _readers_of(current)
    elif group is not None:  # up to torch 2.12 it is no argument, but may be a saved tensor
        found = _readers_of_group(group, variable.graph)
    return found - {accumulation}


def _before_writer(writer: Node, readers: set[Node]) -> list[Node]:
    """Readers that must run before ``writer``: Note [Readers stand before writers]."""
    earlier = [r for r in readers if r < writer]
    if writer.users:  # whoever uses its value is behind it, and what else is nobody knows
        return earlier
    later = (r for r in readers if writer < r and r.op == "call_function")
    return earlier + [r for r in later if not runs_python(r) and not is_accumulate_grad(r)]


def _move_behind(last: Node, moved: Iterable[Node]) -> Node:
    """Move nodes behind ``last``, in order; return the node that is last then."""
    for node in moved:
        if last.next is not node:
            last.append(node)
        last = node
    return last


def _readers_of_group(group: int, graph: Graph) -> set[Node]:
    return _users([n for n in graph.nodes if n.meta.get(INPUT_GROUP) == group])


def _users(pending: list[Node]) -> set[Node]:
    found: set[Node] = set()
    for node in pending:  # which grows meanwhile
        for user in node.users:
            if user not in found:
                found.add(user)
                if nodes.aliased_inputs(user):
                    pending.append(user)
    return found
