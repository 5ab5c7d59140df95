"""What AOTAutograd's tracing told of a compiled graph, for the processes that do not trace it.

See Note [Warm starts] in ``warm_start.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from memprof.profiler.model import GraphDescription, GraphKind, GraphRecord, NodeProvenance

from .session.runtime import LiveGraph
from .stages.graphs import UnsafeOperator
from .stages.observe.stage import SizeInputs
from .stages.provenance import artifact as artifacts
from .stages.provenance.artifact import Artifact
from .stages.provenance.dynamo_lines import DynamoLines
from .stored import Stored

VERSION = "1"
"""Version of the stored form; part of its key and of AOTAutograd's."""


@dataclass(frozen=True, slots=True)
class Companion:
    """One graph as AOTAutograd's tracing showed it; lines are numbers: Note [Lines by number].

    Attributes:
        kind: of the graph.
        description: what it takes and returns, outputs without their frames.
        frames: for each output, the number of its frame.
        nodes: its AOT nodes by name, without stacks.
        stacks: for each of ``nodes``, the number of its stack.
        random: whether it draws random numbers.
        sizes: the inputs that sizes of a call can be read off.
        outside: the first operator that no CUDA graph can have, without its frame.
        outside_frame: the number of that frame.
    """

    kind: GraphKind
    description: GraphDescription
    frames: tuple[int, ...]
    nodes: dict[str, NodeProvenance]
    stacks: dict[str, int]
    random: bool | None
    sizes: SizeInputs
    outside: UnsafeOperator | None
    outside_frame: int


class CacheEntry(NamedTuple):
    """A compiled graph as a part of an entry of AOTAutograd's cache.

    Attributes:
        traced: the entry's key: all that AOTAutograd decides by, of which Inductor's key has only
            what is left in the graph.
        graph: key of the graph in Inductor's cache.
        source: its generated code.
    """

    traced: str
    graph: str
    source: str


STORED = Stored(f"companion-{VERSION}", Companion)


def store(
    graph: LiveGraph,
    sizes: SizeInputs,
    outside: UnsafeOperator | None,
    lines: DynamoLines,
    entry: CacheEntry,
) -> None:
    """Keeps what is known of ``graph``, which is a part of ``entry``.

    Raises:
        OSError: the folder cannot be written.
        KeyError: a line is none of the Dynamo graph's, so that another process could not name it.
    """
    record = graph.record
    companion = Companion(
        kind=record.kind,
        description=replace(
            record.description,
            outputs=tuple(replace(value, frame=None) for value in record.outputs),
        ),
        frames=tuple(lines.number_of_frame(value.frame) for value in record.outputs),
        nodes={name: replace(node, stack=()) for name, node in graph.aot_nodes.items()},
        stacks={name: lines.number_of_stack(n.stack) for name, n in graph.aot_nodes.items()},
        random=record.random,
        sizes=sizes,
        outside=outside and outside._replace(frame=None),
        outside_frame=lines.number_of_frame(outside.frame if outside else None),
    )
    STORED.write(companion, *entry, lines.digest)


class Known(NamedTuple):
    """All that is stored of one graph: what its tracing told, with the lines of this process, and
    what its code is."""

    companion: Companion
    artifact: Artifact


def load(entry: CacheEntry, lines: DynamoLines) -> Known | None:
    """What is known of a part of ``entry``, which a Dynamo graph with these lines has; None if some
    of it is missing or damaged."""
    found = STORED.read(*entry, lines.digest)
    if found is None:
        return None
    artifact = artifacts.load(entry.graph, entry.source)
    if artifact is None:
        return None
    outputs = zip(found.description.outputs, found.frames, strict=True)
    companion = replace(
        found,
        description=replace(
            found.description,
            outputs=tuple(replace(value, frame=lines.frame(frame)) for value, frame in outputs),
        ),
        nodes={
            name: replace(node, stack=lines.stack(found.stacks[name]))
            for name, node in found.nodes.items()
        },
        outside=found.outside and found.outside._replace(frame=lines.frame(found.outside_frame)),
    )
    return Known(companion, artifact)


def restored(companion: Companion, id: int, compile_id: str | None) -> LiveGraph:
    """A graph of this process as the companion has it."""
    record = GraphRecord(
        id=id,
        kind=companion.kind,
        compile_id=compile_id,
        description=companion.description,
        random=companion.random,
        fx_cache="hit",
    )
    return LiveGraph(record, aot_nodes=companion.nodes)
