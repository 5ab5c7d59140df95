"""Provenance of each node of the graph that AOTAutograd hands to Inductor.

Note [Two levels of nodes]
~~~~~~~~~~~~~~~~~~~~~~~~~~
Buffers come from nodes of the *post-grad* graph, which Inductor's passes have rewritten in place; a
cached artifact has only their names. User stacks live on the nodes of the *AOT* graph, which every
process traces anew, and are no part of Inductor's cache key, as that graph's code is. So memprof
links post-grad nodes to AOT nodes by name (``TAG`` in ``node.meta["custom"]``, which torch's
pattern matcher copies to the nodes it makes) and stores only that link with the artifact. A fresh
compilation takes the same path.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from memprof.profiler.live.stack_text import innermost_module, parse_stack_trace
from memprof.profiler.model import NodeProvenance, SourceFrame

TAG = "memprof_aot_node"
CAPTURED_TAG = "memprof_captured_node"


def tag_nodes(graph: Graph, tag: str = TAG) -> None:
    """Write each node's own name into its metadata, see Note [Two levels of nodes]; Dynamo copies
    it, too."""
    for node in computing(graph):
        _tag(node, tag, node.name)


def tag_of(node: Node, tag: str = TAG) -> str | None:
    """Name of the AOT node that a post-grad node descends from, if a tag survived."""
    custom = node.meta.get("custom")
    return custom.get(tag) if isinstance(custom, Mapping) else None


def tag_inlined_nodes(graph: Graph) -> None:
    """Tag what Dynamo inlined into a graph of a captured backward: accumulations, each with the tag
    of the gradient that is accumulated, its first argument."""
    for node in graph.nodes:
        if tag_of(node, CAPTURED_TAG) is None:
            tags = (tag_of(source, CAPTURED_TAG) for source in node.all_input_nodes)
            if (name := next((tag for tag in tags if tag is not None), None)) is not None:
                _tag(node, CAPTURED_TAG, name)


def _tag(node: Node, tag: str, name: str) -> None:
    node.meta["custom"] = {**(node.meta.get("custom") or {}), tag: name}


def target_name(target: Any) -> str:
    """``aten.mm.default`` for operators, the qualified name for other callables."""
    if isinstance(target, (str, torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target)
    return getattr(target, "__name__", str(target))


def own_provenance(node: Node, *, backward: bool) -> NodeProvenance:
    """Provenance from the node's own ``meta``, without its neighbours; ``backward`` says whether
    its graph is a backward's."""
    meta = node.meta
    module = innermost_module(meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack"))
    aten = meta.get("original_aten")
    return NodeProvenance(
        name=node.name,
        target=target_name(node.target),
        original_aten=str(aten) if aten is not None else None,
        seq_nr=meta.get("seq_nr"),
        stack=parse_stack_trace(meta.get("stack_trace")),
        module_path=module[0] if module else None,
        module_type=module[1] if module else None,
        recomputed=backward and meta.get("partitioner_tag") == "is_forward",
    )


def draws_random_numbers(node: Node) -> bool:
    """Tells whether a node of a graph gives other values each time, by torch's tag. Attention has
    that tag whatever its dropout is, and draws nothing where that is 0."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    names = [argument.name for argument in target._schema.arguments]
    given = {"dropout_p": 0.0, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    idle = "dropout_p" in names and given["dropout_p"] == 0.0
    return torch.Tag.nondeterministic_seeded in target.tags and not idle


def nearest(start: Node, wanted: Mapping[str, Any], limit: int = 512) -> str | None:
    """Name of the nearest node that is in ``wanted``. A node made by a pass serves the nodes that
    read it, so consumers come first at each distance. ``limit`` bounds the search on huge
    graphs."""
    seen = {start}
    queue = deque([*start.users, *start.all_input_nodes])
    while queue and limit:
        limit -= 1
        node = queue.popleft()
        if node in seen or node.op == "output":
            continue
        seen.add(node)
        if node.name in wanted:
            return node.name
        queue.extend(node.users)
        queue.extend(node.all_input_nodes)
    return None


def snapshot(
    graph: Graph,
    forward: Mapping[str, NodeProvenance] | None = None,
    caller: SourceFrame | None = None,
) -> dict[str, NodeProvenance]:
    """Provenance of every computing node of an AOT graph, by name.

    Args:
        graph: the graph before Inductor's passes.
        forward: for a backward graph, the snapshot of its forward: nodes without a
            stack or module of their own get those of the forward operator with the same
            autograd sequence number.
        caller: line that called the compiled function: that of nodes which have none, as of an
            ``nn.Sequential`` whose text is all torch's.

    Nodes that still have neither borrow from the nearest node that does.
    """
    by_seq = by_sequence_number(forward.values()) if forward else {}
    nodes = computing(graph)
    backward = any(n.meta.get("partitioner_tag") == "is_backward" for n in nodes)
    found = {n.name: with_forward(own_provenance(n, backward=backward), by_seq) for n in nodes}
    located = {name: p for name, p in found.items() if p.stack}
    placed = {name: p for name, p in found.items() if p.module_path is not None}
    alone = [n for n in nodes if n.name not in located and n.name not in placed]
    borrow_from_nearest(alone, found, located, placed)
    for name, p in found.items():
        if caller is not None and not p.stack:
            found[name] = dataclasses.replace(p, stack=(caller,))
    return {name: in_root(p) if p.stack else p for name, p in found.items()}


def captured_snapshot(
    graph: Graph, captured: Mapping[str, NodeProvenance]
) -> dict[str, NodeProvenance]:
    """Takes the snapshot of the AOT graph of a captured backward, whose nodes descend from tagged
    ones; ``captured`` is the provenance of these, by name."""
    located: dict[str, NodeProvenance] = {}
    others: dict[str, NodeProvenance] = {}
    alone: list[Node] = []
    for node in computing(graph):
        own = own_provenance(node, backward=True)
        origin = captured.get(tag_of(node, CAPTURED_TAG) or "")
        if origin is None:
            alone.append(node)
            others[node.name] = dataclasses.replace(own, stack=(), module_path=None)
        else:
            located[node.name] = dataclasses.replace(
                origin, name=own.name, target=own.target, original_aten=own.original_aten
            )
    borrow_from_nearest(alone, others, located)
    return located | others


def computing(graph: Graph) -> list[Node]:
    """Nodes that make a value: neither placeholders nor the output."""
    return [n for n in graph.nodes if n.op not in ("placeholder", "output")]


def borrow_from_nearest(
    alone: Iterable[Node], found: dict[str, NodeProvenance], *located: Mapping[str, NodeProvenance]
) -> None:
    """Give nodes in ``found`` the stack and module of the nearest node in the first of ``located``
    that has one."""
    for node in alone:
        for wanted in located:
            if (name := nearest(node, wanted)) is not None:
                origin = wanted[name]
                found[node.name] = dataclasses.replace(
                    found[node.name],
                    stack=origin.stack,
                    module_path=origin.module_path,
                    module_type=origin.module_type,
                )
                break


def in_root(p: NodeProvenance) -> NodeProvenance:
    """``p``, which has user code around it, in the root module if in no other: torch leaves the
    compiled function or module itself out of its module stacks."""
    return p if p.module_path is not None else dataclasses.replace(p, module_path="")


def by_sequence_number(nodes: Iterable[NodeProvenance]) -> dict[int, NodeProvenance]:
    """The first node of each autograd sequence number."""
    found: dict[int, NodeProvenance] = {}
    for p in nodes:
        if p.seq_nr is not None and p.seq_nr >= 0:
            found.setdefault(p.seq_nr, p)
    return found


def with_forward(p: NodeProvenance, by_seq: Mapping[int, NodeProvenance]) -> NodeProvenance:
    """``p`` with what it misses from the forward operator of its sequence number."""
    origin = by_seq.get(p.seq_nr) if p.seq_nr is not None else None
    if origin is None or (p.stack and p.module_path is not None):
        return p
    if p.stack and origin.stack and p.stack != origin.stack:
        return p  # the sequence number was reused; do not mix two origins
    return dataclasses.replace(
        p,
        stack=p.stack or origin.stack,
        module_path=p.module_path if p.module_path is not None else origin.module_path,
        module_type=p.module_type or origin.module_type,
    )
