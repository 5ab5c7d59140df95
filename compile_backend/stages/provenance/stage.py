"""The attribute stage: gives a graph's record its nodes, buffers and statements."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule

from memprof.profiler.model import (
    GraphKind,
    LedgerKind,
    NodeProvenance,
    SourceFrame,
    Statement,
)

from ... import _torch_compat
from ...session.runtime import RUNTIME, LiveGraph
from ..pipeline import CompileStage
from . import artifact as artifacts
from .aot_nodes import captured_snapshot, draws_random_numbers, snapshot, tag_nodes
from .artifact import Artifact, ArtifactNode, describe_lowerings
from .generated_code import read_wrapper
from .lowering_tap import tap_lowering


@dataclass(eq=False, repr=False)
class AttributeStage(CompileStage):
    """Finds out where each buffer of one compiled graph comes from.

    Args:
        gm: AOTAutograd's graph.
        graph: its record is filled in by ``post_compile``.
        forward_nodes: for a backward graph, the AOT nodes of its forward.
        caller: line that called the compiled function.
        compile_again: compiles the same graph once more, past the cache.
        captured_nodes: for a captured backward, the captured graph's nodes.
    """

    gm: GraphModule
    graph: LiveGraph
    forward_nodes: Mapping[str, NodeProvenance] | None
    caller: SourceFrame | None
    compile_again: Callable[[], Any]
    captured_nodes: Mapping[str, NodeProvenance] | None = None
    _lowerings: list[Any] = field(default_factory=list, init=False)
    name = "attribute"

    def pre_compile(self, cleanup: ExitStack) -> None:
        """Read the AOT nodes, tag them, and tap the lowering to come."""
        # A backward is compiled where autograd first comes to it, which says nothing of its nodes.
        backward = self.graph.record.kind is GraphKind.BACKWARD
        self.graph.aot_nodes = (
            snapshot(self.gm.graph, self.forward_nodes, None if backward else self.caller)
            if self.captured_nodes is None
            else captured_snapshot(self.gm.graph, self.captured_nodes)
        )
        tag_nodes(self.gm.graph)
        self.graph.record.random = any(map(draws_random_numbers, self.gm.graph.nodes))
        self._lowerings = cleanup.enter_context(tap_lowering(artifacts.VERSION))

    def post_compile(self, compiled: Any) -> Any:
        """Describe the buffers: from the lowering, or from the artifact of a cache hit."""
        if not hasattr(compiled, "current_callable"):
            # A graph without calls is not compiled: it makes nothing, so it has no buffers.
            self.graph.record.fx_cache = "bypass"
            return compiled
        key = _torch_compat.cache_key(compiled)
        if self._lowerings:
            self.graph.record.fx_cache = "miss" if key else "bypass"
            artifact = self._describe(compiled, key)
        else:
            compiled, artifact = self._from_cache(compiled, key)
        attribute(self.graph, artifact)
        return compiled

    def _describe(self, compiled: Any, key: str | None) -> Artifact:
        artifact = describe_lowerings(self._lowerings, self.graph.aot_nodes)
        source = _torch_compat.source_code(compiled)
        artifact = dataclasses.replace(artifact, code=read_wrapper(source))
        if key is not None:
            try:
                artifacts.store(artifact, key, source)
            except OSError as error:
                RUNTIME.ledger.not_stored(
                    self.graph.record.id,
                    "provenance beside the cache",
                    _torch_compat.why_not_stored(error),
                )
        return artifact

    def _from_cache(self, compiled: Any, key: str | None) -> tuple[Any, Artifact]:
        record = self.graph.record
        record.fx_cache = "hit"
        source = _torch_compat.source_code(compiled)
        artifact = artifacts.load(key, source) if key is not None else None
        if artifact is not None:
            RUNTIME.ledger.add(LedgerKind.CACHE_HIT, record.id, "found in Inductor's cache")
            return compiled, artifact
        RUNTIME.ledger.add(
            LedgerKind.RECOMPILED,
            record.id,
            "found in Inductor's cache, but its provenance was not beside it",
        )
        with _torch_compat.compiling_again(key):
            compiled = self.compile_again()
        if not self._lowerings:
            # Compiled in another process, or by a compiler that has no scheduler.
            RUNTIME.ledger.add(
                LedgerKind.NOT_OBSERVED,
                record.id,
                "the compiler did not show its buffers to this process",
            )
            return compiled, Artifact(code=read_wrapper(_torch_compat.source_code(compiled)))
        return compiled, self._describe(compiled, _torch_compat.cache_key(compiled))


# --- artifact + AOT nodes of this process → what a profile holds --------------------------


def attribute(graph: LiveGraph, artifact: Artifact) -> None:
    """Give a graph's record its nodes, buffers and statements.

    Args:
        graph: its ``aot_nodes`` are those of this process.
        artifact: of its compiled code.
    """
    record = graph.record
    graph.instrumented = artifact.code.copy
    record.statements = artifact.code.statements
    record.nodes = {
        name: _resolve(name, node, graph.aot_nodes) for name, node in artifact.nodes.items()
    }
    # A graph with buffers of such sizes can allocate something else at every call.
    sizes = (b.nbytes_expr for b in artifact.buffers.values())
    symbols = sorted({s for size in sizes for s in _UNBACKED.findall(size)})
    if symbols:
        record.data_dependent = f"sizes depend on data: {', '.join(symbols)}"
    lines = first_lines(record.statements)
    record.buffers = {
        name: dataclasses.replace(buffer, line=lines.get(name))
        for name, buffer in artifact.buffers.items()
    }


def _resolve(name: str, node: ArtifactNode, aot: Mapping[str, NodeProvenance]) -> NodeProvenance:
    """A post-grad node with the stack and module of the AOT node that it descends from."""
    origin = aot.get(node.aot_node) if node.aot_node is not None else None
    if origin is None:
        return NodeProvenance(name, node.target, node.original_aten)
    return dataclasses.replace(
        origin,
        name=name,
        target=node.target,
        original_aten=node.original_aten or origin.original_aten,
    )


_UNBACKED = re.compile(r"\bu\d+\b")
"""Size symbols whose value only the data decides: ``u0`` of a ``nonzero``."""


def first_lines(statements: Sequence[Statement]) -> dict[str, int]:
    """Line that first assigns each name, by name."""
    return {name: s.line for s in reversed(statements) for name in s.targets}
