"""One compiled callable and all that is known of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from .description import GraphDescription, GraphValue
from .limits import Int
from .program import AllocationProgram
from .provenance import BufferProvenance, NodeProvenance


class GraphKind(str, Enum):
    """Which part of AOTAutograd's output a callable is."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INFERENCE = "inference"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of the generated wrapper code.

    Attributes:
        line: 1-based.
        targets: names it assigns.
        reads: names it reads; for a kernel its arguments, outputs included.
        text: its first line, stripped.
        function: generated function it stands in, e.g. ``Runner.call``.
    """

    line: Int
    targets: tuple[str, ...]
    reads: tuple[str, ...]
    text: str
    function: str


@dataclass(slots=True, repr=False)
class GraphRecord:
    """One compiled forward, backward or inference callable.

    Attributes:
        id: number of this record in the process, from 0.
        compile_id: Dynamo's, e.g. ``0/1``; None outside Dynamo.
        graph_id: the ``id`` of the forward; a forward and its backward share it.
        description: what it takes and returns.
        nodes: FX nodes that buffers refer to, by name.
        buffers: by name in the generated code.
        statements: the generated wrapper code, in line order.
        programs: observed allocation programs, one per key.
        fx_cache: ``hit``, ``miss``, ``bypass`` or ``disabled``.
        compile_ns: time Inductor took.
        code_path: of the generated module, None if there is none.
        unobservable: why no program can be observed, None if one can.
        data_dependent: why a program holds for the observed call alone, None if it stands
            for later calls too.
        calls: number of calls so far.
        random: whether it draws random numbers, as dropout does; None if not known.
    """

    id: Int
    kind: GraphKind
    compile_id: str | None = None
    graph_id: Int | None = None
    devices: tuple[str, ...] = ()
    description: GraphDescription = field(default_factory=GraphDescription)
    nodes: dict[str, NodeProvenance] = field(default_factory=dict)
    buffers: dict[str, BufferProvenance] = field(default_factory=dict)
    statements: tuple[Statement, ...] = ()
    programs: list[AllocationProgram] = field(default_factory=list)
    fx_cache: str = "disabled"
    compile_ns: Int = 0
    code_path: str | None = None
    unobservable: str | None = None
    data_dependent: str | None = None
    calls: Int = 0
    random: bool | None = None

    @property
    def label(self) -> str:
        """Short name for reports, e.g. ``0/0 forward``."""
        return f"{self.compile_id or f'#{self.id}'} {self.kind.value}"

    @property
    def inputs(self) -> tuple[GraphValue, ...]:
        """Inputs of the graph, in calling order."""
        return self.description.inputs

    @property
    def outputs(self) -> tuple[GraphValue, ...]:
        """Outputs of the graph, in order."""
        return self.description.outputs

    def __repr__(self) -> str:
        return f"<GraphRecord {self.id}: {self.label}, {self.calls:,} calls>"

    def buffer_of_line(self, line: int) -> str | None:
        """The buffer that a line of the generated code computes, None if it computes none.

        That is what the statement assigns; a kernel launch assigns nothing and has its
        outputs after its inputs, so its last argument that is a buffer stands for it. A
        statement of several lines is known by its first.
        """
        end = bisect_right(self.statements, line, key=attrgetter("line"))
        if not end:
            return None
        first = self.statements[end - 1].line
        begin = bisect_left(self.statements, first, key=attrgetter("line"))
        there = self.statements[begin:end]
        names = (name for s in there for name in (*s.targets, *reversed(s.reads)))
        return next((name for name in names if name in self.buffers), None)
