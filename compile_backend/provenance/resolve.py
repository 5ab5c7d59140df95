"""Artifact + AOT nodes of this process → the provenance that a profile holds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from memprof.profiler.model import (
    BufferProvenance,
    Evidence,
    NodeProvenance,
    Statement,
    StatementKind,
)

from .artifact import Artifact, ArtifactNode


def resolve_nodes(
    artifact: Artifact, aot: Mapping[str, NodeProvenance]
) -> dict[str, NodeProvenance]:
    """Post-grad nodes with the stacks and modules of the AOT nodes they descend from."""
    return {name: _resolve(name, node, aot) for name, node in artifact.nodes.items()}


def _resolve(name: str, node: ArtifactNode, aot: Mapping[str, NodeProvenance]) -> NodeProvenance:
    origin = aot.get(node.aot_node) if node.aot_node is not None else None
    if origin is None:
        return NodeProvenance(name, node.target, node.original_aten, evidence=Evidence.NONE)
    evidence = node.evidence if node.evidence is not Evidence.EXACT else origin.evidence
    return dataclasses.replace(
        origin,
        name=name,
        target=node.target,
        original_aten=node.original_aten or origin.original_aten,
        evidence=evidence,
    )


_UNBACKED = re.compile(r"\bu\d+\b")


def data_dependent_sizes(artifact: Artifact) -> tuple[str, ...]:
    """Size symbols whose value only the data decides (``u0`` of a ``nonzero``), sorted.

    A graph with buffers of such sizes can allocate something else at every call.
    """
    found = {s for b in artifact.buffers.values() for s in _UNBACKED.findall(b.nbytes_expr)}
    return tuple(sorted(found))


def resolve_buffers(
    artifact: Artifact, statements: Sequence[Statement]
) -> dict[str, BufferProvenance]:
    """Buffers with the line that first assigns each."""
    lines: dict[str, int] = {}
    for statement in statements:
        if statement.kind is not StatementKind.DELETE:
            for target in statement.targets:
                lines.setdefault(target, statement.line)
    return {
        name: dataclasses.replace(buffer, line=lines.get(name))
        for name, buffer in artifact.buffers.items()
    }
