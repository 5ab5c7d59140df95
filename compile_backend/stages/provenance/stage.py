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
    Evidence,
    GraphKind,
    GraphRecord,
    LedgerKind,
    NodeProvenance,
    Statement,
    StatementKind,
)
from memprof.profiler.sources.allocator.account import source_of
from memprof.profiler.sources.allocator.where import line_of_caller

from ... import _torch_compat
from ...session.runtime import RUNTIME
from ..pipeline import CompileStage
from . import artifact as artifacts
from .aot_nodes import captured_snapshot, draws_random_numbers, snapshot, tag_nodes
from .artifact import Artifact, ArtifactNode, describe_lowerings
from .generated_code import statements
from .lowering_tap import tap_lowering


@dataclass(eq=False, repr=False)
class AttributeStage(CompileStage):
    """Finds out where each buffer of one compiled graph comes from.

    Args:
        record: filled in by ``post_compile``.
        forward_nodes: for a backward graph, the AOT nodes of its forward.
        compile_again: compiles the same graph once more, past the cache.
        captured_nodes: for a captured backward, the captured graph's nodes.
    """

    record: GraphRecord
    forward_nodes: Mapping[str, NodeProvenance] | None
    compile_again: Callable[[], Any]
    captured_nodes: Mapping[str, NodeProvenance] | None = None
    aot_nodes: dict[str, NodeProvenance] = field(default_factory=dict, init=False)
    _lowerings: list[Any] = field(default_factory=list, init=False)
    name = "attribute"

    def pre_compile(self, gm: GraphModule, cleanup: ExitStack) -> None:
        """Read the AOT nodes, tag them, and tap the lowering to come."""
        # A backward is compiled where autograd first comes to it, which says nothing of its nodes.
        backward = self.record.kind is GraphKind.BACKWARD
        caller = None if backward else source_of(line_of_caller())
        self.aot_nodes = (
            snapshot(gm.graph, self.forward_nodes, caller)
            if self.captured_nodes is None
            else captured_snapshot(gm.graph, self.captured_nodes)
        )
        tag_nodes(gm.graph)
        self.record.random = any(map(draws_random_numbers, gm.graph.nodes))
        self._lowerings = cleanup.enter_context(tap_lowering(artifacts.VERSION))

    def post_compile(self, compiled: Any) -> Any:
        """Describe the buffers: from the lowering, or from the artifact of a cache hit."""
        if not hasattr(compiled, "current_callable"):
            # A graph without calls is not compiled: it makes nothing, so it has no buffers.
            self.record.fx_cache = "bypass"
            return compiled
        key = _torch_compat.cache_key(compiled)
        if self._lowerings:
            self.record.fx_cache = "miss" if key else "bypass"
            artifact = self._describe(key)
        else:
            compiled, artifact = self._from_cache(compiled, key)
        self.record.statements = statements(getattr(compiled, "source_code", "") or "")
        self.record.nodes = {
            name: _resolve(name, node, self.aot_nodes) for name, node in artifact.nodes.items()
        }
        # A graph with buffers of such sizes can allocate something else at every call.
        sizes = (b.nbytes_expr for b in artifact.buffers.values())
        symbols = sorted({s for size in sizes for s in _UNBACKED.findall(size)})
        if symbols:
            self.record.data_dependent = f"sizes depend on data: {', '.join(symbols)}"
        lines = first_lines(self.record.statements)
        self.record.buffers = {
            name: dataclasses.replace(buffer, line=lines.get(name))
            for name, buffer in artifact.buffers.items()
        }
        return compiled

    def _describe(self, key: str | None) -> Artifact:
        artifact = describe_lowerings(self._lowerings, self.aot_nodes)
        if key is not None:
            try:
                artifacts.store(artifact, self._path(key))
            except OSError as error:
                # Its own text names a temporary file, another one for each graph.
                why = f"{_torch_compat.inductor_cache_dir()}: {error.strerror or error}"
                RUNTIME.ledger.not_stored(self.record.id, "provenance beside the cache", why)
        return artifact

    def _from_cache(self, compiled: Any, key: str | None) -> tuple[Any, Artifact]:
        self.record.fx_cache = "hit"
        artifact = artifacts.load(self._path(key)) if key is not None else None
        if artifact is not None:
            RUNTIME.ledger.add(LedgerKind.CACHE_HIT, self.record.id, "found in Inductor's cache")
            return compiled, artifact
        RUNTIME.ledger.add(
            LedgerKind.RECOMPILED,
            self.record.id,
            "found in Inductor's cache, but its provenance was not beside it",
        )
        with _torch_compat.compiling_again():
            compiled = self.compile_again()
        if not self._lowerings:
            # Compiled in another process, or by a compiler that has no scheduler.
            RUNTIME.ledger.add(
                LedgerKind.NOT_OBSERVED,
                self.record.id,
                "the compiler did not show its buffers to this process",
            )
            return compiled, Artifact()
        return compiled, self._describe(key)

    @staticmethod
    def _path(key: str) -> Any:
        return artifacts.path_for(_torch_compat.inductor_cache_dir(), key)


# --- artifact + AOT nodes of this process → what a profile holds --------------------------


def _resolve(name: str, node: ArtifactNode, aot: Mapping[str, NodeProvenance]) -> NodeProvenance:
    """A post-grad node with the stack and module of the AOT node that it descends from."""
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
"""Size symbols whose value only the data decides: ``u0`` of a ``nonzero``."""


def first_lines(statements: Sequence[Statement]) -> dict[str, int]:
    """Line that first assigns each name, by name."""
    assigned = [s for s in statements if s.kind is not StatementKind.DELETE]
    return {name: s.line for s in reversed(assigned) for name in s.targets}
