"""The part of a graph's provenance that depends only on the compiled artifact.

It is stored in Inductor's cache directory beside the FX graph cache, under the same key,
so that a cache hit, in this process or a later one, still knows its buffers. It holds
no user source: see Note [Two levels of nodes] in ``aot_nodes``.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from memprof.profiler.model import BufferProvenance, Evidence

VERSION = "2"
"""Version of the stored form; part of Inductor's cache key through ``LoweringTap``."""


@dataclass(frozen=True, slots=True)
class ArtifactNode:
    """A post-grad FX node.

    Attributes:
        target: e.g. ``aten.mm.default``.
        original_aten: the operator that decomposition started from.
        aot_node: name of the AOT node it descends from.
        evidence: whether that link is the node's own or its neighbour's.
    """

    target: str
    original_aten: str | None = None
    aot_node: str | None = None
    evidence: Evidence = Evidence.EXACT


@dataclass(frozen=True, slots=True)
class Artifact:
    """Nodes and buffers of one compiled graph, by name; a buffer's ``line`` is not known yet."""

    version: str = VERSION
    nodes: dict[str, ArtifactNode] = field(default_factory=dict)
    buffers: dict[str, BufferProvenance] = field(default_factory=dict)


def path_for(cache_dir: str, key: str) -> Path:
    """Where the artifact of the FX graph cache entry ``key`` is stored."""
    return Path(cache_dir) / "memprof" / f"provenance-{VERSION}" / key[1:3] / f"{key}.json"


def store(artifact: Artifact, path: Path) -> None:
    """Write atomically: readers see the old file, none, or the whole new one.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(artifact))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path: Path) -> Artifact | None:
    """The stored artifact; None if there is none, or one that cannot be used.

    A damaged file is the same as none: the graph is compiled again and stored anew.
    """
    try:
        artifact = msgspec.json.decode(path.read_bytes(), type=Artifact)
    except (OSError, msgspec.MsgspecError):
        return None
    return artifact if artifact.version == VERSION else None
