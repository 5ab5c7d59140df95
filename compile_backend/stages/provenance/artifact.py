"""The part of a graph's provenance that depends only on the compiled artifact.

It is stored beside the artifact in Inductor's cache, so that a cache hit, in this process or a
later one, still knows its buffers, and parses nothing. It holds no user source: see Note [Two
levels of nodes] in ``aot_nodes``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch.fx import Node

from memprof.profiler.model import BufferProvenance

from ...stored import Stored
from .aot_nodes import nearest, tag_of, target_name
from .generated_code import WrapperCode

VERSION = "4"
"""Version of the stored form; part of its key, and of Inductor's cache key by ``LoweringTap``."""


@dataclass(frozen=True, slots=True)
class ArtifactNode:
    """A post-grad FX node; ``aot_node`` is the name of the AOT node it descends from, by its own
    link or its neighbour's."""

    target: str
    original_aten: str | None = None
    aot_node: str | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """Nodes and buffers of one compiled graph, by name, and its generated code; a buffer's ``line``
    is not known yet."""

    nodes: dict[str, ArtifactNode] = field(default_factory=dict)
    buffers: dict[str, BufferProvenance] = field(default_factory=dict)
    code: WrapperCode = field(default_factory=WrapperCode)


STORED = Stored(f"provenance-{VERSION}", Artifact)


def store(artifact: Artifact, key: str, source: str) -> None:
    """Keeps the artifact of the graph that has ``key`` in Inductor's cache, and whose generated
    code is ``source``.

    Raises:
        OSError: the folder cannot be written.
    """
    STORED.write(replace(artifact, code=artifact.code.without_texts()), key, source)


def load(key: str, source: str) -> Artifact | None:
    """The artifact of the graph that has ``key`` in Inductor's cache, and whose generated code is
    ``source``; None if there is none, or a damaged one: the graph is compiled again and stored
    anew."""
    found = STORED.read(key, source)
    return found and replace(found, code=found.code.with_texts(source))


# --- made from Inductor's GraphLowering: layouts, and the FX nodes behind each buffer -------

# GraphLowering and the IR below it are internal to Inductor and untyped for our purposes.
Lowering = Any


def describe_lowerings(lowerings: Sequence[Lowering], aot_names: Container[str]) -> Artifact:
    """Nodes and buffers of a graph and its subgraphs, whose names begin with the subgraph's."""
    nodes: dict[str, ArtifactNode] = {}
    buffers: dict[str, BufferProvenance] = {}
    for lowering in lowerings:
        order = {n: i for i, n in enumerate(lowering.graph.nodes)}
        tags = {n.name: t for n in order if (t := _aot_name(n, aot_names)) is not None}
        for name, ir in lowering.name_to_buffer.items():
            origins = _origins(lowering, name, ir)
            origins.sort(key=lambda n: order.get(n, len(order)))
            primary = getattr(ir, "origin_node", None)
            if primary is None or primary.op in ("placeholder", "output"):
                primary = origins[-1] if origins else None
            for node in (*origins, primary):
                if node is not None and node.name not in nodes:
                    nodes[node.name] = _describe_node(node, tags)
            buffers[name] = BufferProvenance(
                name=name,
                kind=type(ir).__name__,
                nodes=tuple(n.name for n in origins),
                primary=primary.name if primary is not None else None,
                **_layout(ir),
            )
    return Artifact(nodes, buffers)


def _aot_name(node: Node, aot_names: Container[str]) -> str | None:
    if node.op in ("placeholder", "output"):
        return None
    is_aot = node.name in aot_names and "original_aten" in node.meta
    return tag_of(node) or (node.name if is_aot else None)


def _describe_node(node: Node, tags: dict[str, str]) -> ArtifactNode:
    aot = tags.get(node.name) or tags.get(nearest(node, tags) or "")
    original = node.meta.get("original_aten")
    return ArtifactNode(
        target=target_name(node.target),
        original_aten=str(original) if original is not None else None,
        aot_node=aot,
    )


def _origins(lowering: Lowering, name: str, ir: Any) -> list[Node]:
    """The FX nodes computed into a buffer. A copy that Inductor inserts to change a layout has
    none; it has those of the kernels that read it, or failing that of what it copies."""
    if own := _computing([ir]):
        return own
    scheduler = getattr(lowering, "scheduler", None)
    scheduled = getattr(scheduler, "name_to_buf", {}).get(name)
    uses = getattr(scheduled, "users", None) or ()
    if readers := _computing(getattr(getattr(use, "node", None), "node", None) for use in uses):
        return readers
    read: Iterable[str] = ()
    with contextlib.suppress(Exception):  # not every IR node has reads; this is a last resort
        read = ir.get_read_names()
    return _computing(lowering.name_to_buffer.get(name) for name in read)


def _computing(irs: Iterable[Any]) -> list[Node]:
    """The FX nodes that IR nodes come from, each once."""
    nodes = (n for ir in irs for n in getattr(ir, "origins", None) or ())
    return list(dict.fromkeys(n for n in nodes if n.op not in ("placeholder", "output")))


def _layout(ir: Any) -> dict[str, Any]:
    """dtype, shape, device and size of a buffer, as far as its layout is a tensor's."""
    layout = getattr(ir, "layout", None)
    target = getattr(layout, "real_layout", None)
    if target is not None:
        # It writes into another buffer, through a view maybe: the memory is that buffer's.
        layout = target()
    if not all(hasattr(layout, a) for a in ("size", "stride", "dtype", "device")):
        return {}
    assert layout is not None
    elements: Any = 1
    for size, stride in zip(layout.size, layout.stride, strict=True):
        elements = elements + (size - 1) * stride
    if any(s == 0 for s in layout.size):
        elements = 0
    nbytes = elements * layout.dtype.itemsize
    fixed = isinstance(nbytes, int) or getattr(nbytes, "is_number", False)
    return {
        "dtype": str(layout.dtype),
        "shape": tuple(str(s) for s in layout.size),
        "device": str(layout.device),
        "nbytes": int(nbytes) if fixed else None,
        "nbytes_expr": str(nbytes),
    }
