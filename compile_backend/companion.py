"""What AOTAutograd's tracing told of a compiled graph, for the processes that do not trace it.

See Note [Warm starts] in ``warm_start.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from memprof.profiler.model import (
    BufferProvenance,
    GraphDescription,
    GraphKind,
    GraphRecord,
    NodeProvenance,
)

from .session.runtime import RUNTIME, LiveGraph
from .stages.graphs import UnsafeOperator
from .stages.observe.stage import SizeInputs
from .stages.provenance.dynamo_lines import DynamoLines
from .stages.provenance.generated_code import WrapperCode
from .stored import Stored

VERSION = "4"
"""Version of the stored form; part of its key and of AOTAutograd's."""


@dataclass(frozen=True, slots=True)
class Details:
    """Facts of a graph that profiles alone ask for; lines are numbers: Note [Lines by number].

    Attributes:
        nodes: FX nodes that buffers refer to, by name, without stacks.
        stacks: for each of ``nodes``, the number of its stack.
        buffers: by name.
        code: its generated code, without texts.
    """

    nodes: dict[str, NodeProvenance]
    stacks: dict[str, int]
    buffers: dict[str, BufferProvenance]
    code: WrapperCode


@dataclass(frozen=True, slots=True)
class Companion:
    """One graph as it was compiled; lines are numbers: Note [Lines by number].

    Attributes:
        kind: of the graph.
        description: what it takes and returns, outputs without their frames.
        frames: for each output, the number of its frame.
        random: whether it draws random numbers.
        data_dependent: why a program holds for the observed call alone, None if it does not.
        instrumented: code of an instrumented copy (``WrapperCode.copy``).
        sizes: the inputs that sizes of a call can be read off.
        outside: the first operator that no CUDA graph can have, without its frame.
        outside_frame: the number of that frame.
        details: ``Details``. A process that is never asked for a profile does not read them: making
            their objects takes longer than all else that a hit costs, and sets off collections.
    """

    kind: GraphKind
    description: GraphDescription
    frames: tuple[int, ...]
    random: bool | None
    data_dependent: str | None
    instrumented: bytes | None
    sizes: SizeInputs
    outside: UnsafeOperator | None
    outside_frame: int
    details: msgspec.Raw


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


_DETAILS = msgspec.msgpack.Decoder(Details)  # At import, as in ``Stored``.
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
    details = Details(
        nodes={name: replace(node, stack=()) for name, node in record.nodes.items()},
        stacks={name: lines.number_of_stack(n.stack) for name, n in record.nodes.items()},
        buffers=record.buffers,
        code=WrapperCode(record.statements).without_texts(),
    )
    companion = Companion(
        kind=record.kind,
        description=replace(
            record.description,
            outputs=tuple(replace(value, frame=None) for value in record.outputs),
        ),
        frames=tuple(lines.number_of_frame(value.frame) for value in record.outputs),
        random=record.random,
        data_dependent=record.data_dependent,
        instrumented=graph.instrumented,
        sizes=sizes,
        outside=outside and outside._replace(frame=None),
        outside_frame=lines.number_of_frame(outside.frame if outside else None),
        details=msgspec.Raw(msgspec.msgpack.encode(details)),
    )
    STORED.write(companion, *entry, lines.digest)


def load(entry: CacheEntry, lines: DynamoLines) -> Companion | None:
    """Facts about a part of ``entry``, which a Dynamo graph with these lines has; None if it
    is missing or damaged."""
    found = STORED.read(*entry, lines.digest)
    if found is None:
        return None
    outputs = zip(found.description.outputs, found.frames, strict=True)
    return replace(
        found,
        description=replace(
            found.description,
            outputs=tuple(replace(value, frame=lines.frame(frame)) for value, frame in outputs),
        ),
        outside=found.outside and found.outside._replace(frame=lines.frame(found.outside_frame)),
    )


def restored(
    companion: Companion, lines: DynamoLines, source: str, id: int, compile_id: str | None
) -> LiveGraph:
    """A graph of this process as the companion has it; ``source`` is its generated code."""
    record = GraphRecord(
        id=id,
        kind=companion.kind,
        compile_id=compile_id,
        description=companion.description,
        random=companion.random,
        data_dependent=companion.data_dependent,
        fx_cache="hit",
    )

    def read() -> None:
        try:
            found = _DETAILS.decode(companion.details)
            record.statements = found.code.with_texts(source).statements
            record.buffers = found.buffers
            record.nodes = {
                name: replace(node, stack=lines.stack(found.stacks[name]))
                for name, node in found.nodes.items()
            }
        except Exception as error:
            RUNTIME.ledger.fallback(id, "reading what is stored of a graph", error)

    return LiveGraph(record, instrumented=companion.instrumented, read_details=read)
