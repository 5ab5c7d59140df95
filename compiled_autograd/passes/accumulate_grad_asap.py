"""Accumulate each gradient as soon as it exists.

Note [Where an accumulation may go]
~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
The normal engine runs an AccumulateGrad before anything else that is ready; so does this
pass, also among the nodes of an inlined AOTAutograd graph, where the engine itself would
wait for the graph's end. A gradient that is added to an existing one dies there.

With the accumulation goes what the engine runs for the same node before it: pre-hooks of
the parameter and of its AccumulateGrad. All nodes of one call of the engine carry its
index (``NodeOrigin.call_index``), which is how they are found.

Moving must not change what other nodes read. The accumulation writes the existing gradient in
place, and hooks may write what they are given; so nothing is moved above a reader of the
existing gradient (Note [Readers stand before writers]), or above an earlier one of the gradient
that a hook is given. Which inputs share memory with it the tracer has seen (``INPUT_GROUP``),
and views inside the graph are found through operator schemas.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from ..hazards import before_writer, move_behind, readers_of_gradient
from ..nodes import is_accumulate_grad, is_item_of_argument, runs_python
from ..origin import origin_of


def accumulate_grad_asap(graph: Graph) -> None:
    """Move every accumulation, with the hooks before it, up to the last thing it needs."""
    for node in [n for n in graph.nodes if is_accumulate_grad(n)]:
        block = _block(node)
        inside = set(block)
        needed = [a for n in block for a in n.all_input_nodes if a not in inside]
        after = [a for a in needed if not is_item_of_argument(a)]
        after += before_writer(node, readers_of_gradient(node) - inside)
        for hook in block:
            if runs_python(hook):
                for given in hook.all_input_nodes:
                    if not is_item_of_argument(given):
                        after += [u for u in given.users if u < hook and u not in inside]
        if after:
            move_behind(max(after), block)


def _block(accumulation: Node) -> list[Node]:
    """The accumulation and what leads to it within the same call of the engine, in order."""
    origin = origin_of(accumulation)
    if origin is None:
        return [accumulation]
    found = {accumulation}
    pending = [accumulation]
    while pending:
        for argument in pending.pop().all_input_nodes:
            theirs = origin_of(argument)
            if (
                argument not in found
                and theirs is not None
                and theirs.call_index == origin.call_index
                and theirs.aot_node is None
                and not is_item_of_argument(argument)
            ):
                found.add(argument)
                pending.append(argument)
    return sorted(found)
