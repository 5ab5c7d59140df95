"""Which nodes read memory that another node may write.

Note [Readers stand before writers]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
For a capture the engine walks the autograd graph in another order than for a backward. So
what reads a saved tensor may stand behind what writes it: an accumulation into a gradient that
the forward has read, or an optimizer in a hook. The normal engine runs the reader first, or
finds by the tensor's version that it cannot. A captured graph has no versions; there every
computation goes before the writer, which it cannot depend on. Python code and other writers keep
their order.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Graph, Node

from .node_meta import GRADIENT_GROUP, INPUT_GROUP
from .nodes import accumulated, aliased_inputs, is_accumulate_grad, runs_python


def readers_of(node: Node) -> set[Node]:
    """Nodes that read the memory of ``node``, directly, as a view, or as another input."""
    group = node.meta.get(INPUT_GROUP)
    return _users([node] if group is None else _inputs_of(group, node.graph))


def readers_of_gradient(accumulation: Node) -> set[Node]:
    """Nodes other than ``accumulation`` that read the gradient which it adds to."""
    variable, current, _ = accumulated(accumulation)
    if current is not None:
        found = readers_of(current)
    else:  # up to torch 2.11 it is no argument, but may be a saved tensor of another node
        group = variable.meta.get(GRADIENT_GROUP)
        found = set() if group is None else _users(_inputs_of(group, variable.graph))
    return found - {accumulation}


def before_writer(writer: Node, readers: set[Node]) -> list[Node]:
    """Those of ``readers`` that must run before ``writer``: Note [Readers stand before writers]."""
    earlier = [r for r in readers if r < writer]
    if writer.users:  # whoever uses its value is behind it, and what else is nobody knows
        return earlier
    later = (r for r in readers if writer < r and r.op == "call_function")
    return earlier + [r for r in later if not runs_python(r) and not is_accumulate_grad(r)]


def move_behind(last: Node, moved: Iterable[Node]) -> Node:
    """Put nodes behind ``last``, in order; the last of them."""
    for node in moved:
        if last.next is not node:
            last.append(node)
        last = node
    return last


def _inputs_of(group: int, graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.meta.get(INPUT_GROUP) == group]


def _users(pending: list[Node]) -> set[Node]:
    found: set[Node] = set()
    while pending:
        for user in pending.pop().users:
            if user not in found:
                found.add(user)
                if aliased_inputs(user):
                    pending.append(user)
    return found
