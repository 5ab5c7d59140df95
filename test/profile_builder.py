"""Profiles built by hand: the smallest ones that have everything a report speaks of.

``training()`` is three steps of a two-layer model: forward 0/0, its backward, and a compiled
optimizer step. Sizes are chosen so that every sum can be checked by eye.
"""

from __future__ import annotations

from collections.abc import Sequence

from memprof.profiler.model import (
    AllocationProgram,
    BufferProvenance,
    CallColumns,
    Category,
    Event,
    EventKind,
    GraphDescription,
    GraphKind,
    GraphRecord,
    GraphValue,
    LedgerEntry,
    LedgerKind,
    Machine,
    NodeProvenance,
    Origin,
    Profile,
    Role,
    SourceFrame,
    Statement,
    StepTime,
    Storage,
)

KIB = 1024
MIB = 1024 * KIB


class ProgramBuilder:
    """Writes a program step by step; names stand for storages."""

    def __init__(self, *key: int, device: str = "cpu") -> None:
        self.key = key
        self.device = device
        self.storages: list[Storage] = []
        self.events: list[Event] = []
        self.index: dict[str, int] = {}

    def storage(
        self,
        name: str,
        nbytes: int,
        origin: Origin,
        category: Category,
        identity: int | None = None,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
    ) -> int:
        id = len(self.storages)
        self.index[name] = id
        shown = "" if origin is Origin.INTERNAL else name
        self.storages.append(
            Storage(
                id,
                nbytes,
                self.device,
                origin,
                shown,
                category,
                identity,
                tuple(inputs),
                tuple(outputs),
            )
        )
        return id

    def input(
        self,
        name: str,
        nbytes: int,
        category: Category,
        identity: int | None = None,
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
    ) -> ProgramBuilder:
        self.storage(name, nbytes, Origin.INPUT, category, identity, inputs, outputs)
        return self

    def alloc(
        self,
        name: str,
        nbytes: int,
        line: int,
        category: Category = Category.TEMPORARY,
        identity: int | None = None,
        outputs: Sequence[int] = (),
        internal: bool = False,
    ) -> ProgramBuilder:
        origin = Origin.INTERNAL if internal else Origin.BUFFER
        id = self.storage(name, nbytes, origin, category, identity, (), outputs)
        self.events.append(Event(EventKind.ALLOC, id, line, None if internal else name))
        return self

    def free(self, name: str, line: int) -> ProgramBuilder:
        self.events.append(Event(EventKind.FREE, self.index[name], line))
        return self

    def reuse(self, name: str, new: str, line: int) -> ProgramBuilder:
        id = self.index[new] = self.index[name]
        self.events.append(Event(EventKind.REUSE, id, line, new))
        return self

    def build(self) -> AllocationProgram:
        return AllocationProgram(self.key, tuple(self.storages), tuple(self.events), host_ns=1000)


def node(
    name: str,
    op: str,
    module: str | None,
    line: int | None,
    file: str = "/nowhere/site-packages/zoo/model.py",
) -> NodeProvenance:
    stack = () if line is None else (SourceFrame(file, line, "forward", f"x = self.l{line}(x)"),)
    return NodeProvenance(name, op, op, stack=stack, module_path=module)


def buffer(name: str, *nodes: str, kind: str = "ComputedBuffer") -> BufferProvenance:
    return BufferProvenance(name, kind, nodes, nodes[-1] if nodes else None)


def calls(*rows: tuple[int, int], step_ns: int = 1_000_000) -> CallColumns:
    """A call a millisecond: (graph, program)."""
    n = len(rows)
    return CallColumns(
        graph=[g for g, _ in rows],
        program=[p for _, p in rows],
        start_ns=[i * step_ns for i in range(n)],
        end_ns=[i * step_ns + step_ns // 2 for i in range(n)],
        thread=[0] * n,
    )


def forward() -> GraphRecord:
    """x(1 MiB) → h = l1(x) saved → y = l2(h); kernel scratch of 3 MiB in l2."""
    program = (
        ProgramBuilder()
        .input("primals_1", 4 * MIB, Category.PARAMETER, 1, [0], [2])
        .input("primals_2", 2 * MIB, Category.PARAMETER, 2, [1])
        .input("primals_3", 1 * MIB, Category.INPUT, 3, [2], [3])
        .alloc("buf0", 8 * MIB, 10, Category.ACTIVATION, 4, [1])
        .alloc("buf1", 2 * MIB, 12)
        .alloc("scratch", 3 * MIB, 13, internal=True)
        .free("scratch", 13)
        .reuse("buf1", "buf2", 14)
        .alloc("buf3", 1 * MIB, 15, Category.OUTPUT, 5, [0])
        .free("buf2", 16)
        .build()
    )
    P, U, S = Role.PARAMETER, Role.USER_INPUT, Role.SAVED_FOR_BACKWARD
    inputs = (
        GraphValue(0, "primals_1", P, Category.PARAMETER, "l1.weight", static=True),
        GraphValue(1, "primals_2", P, Category.PARAMETER, "l2.bias", static=True),
        GraphValue(2, "primals_3", U, Category.INPUT, "L['x']"),
    )
    outputs = (
        GraphValue(0, "add", Role.USER_OUTPUT, Category.OUTPUT),
        GraphValue(1, "mm", S, Category.ACTIVATION),
        GraphValue(2, "primals_1", S, Category.PARAMETER, alias_of_input=0),
        GraphValue(3, "primals_3", S, Category.INPUT, alias_of_input=2),
    )
    nodes = [
        node("mm", "aten.mm.default", "l1", 3),
        node("relu", "aten.relu.default", "", 4),
        node("sum_1", "aten.sum.dim_IntList", "l2.head", 5),
        node("add", "aten.add.Tensor", "l2", None),
    ]
    buffers = [
        buffer("buf0", "mm"),
        buffer("buf1", "relu"),
        buffer("buf2", "sum_1"),
        buffer("buf3", "sum_1", "add"),
    ]
    statements = (
        Statement(
            10,
            ("buf0",),
            (),
            "buf0 = empty_strided_cpu((1024, 2048), (2048, 1), torch.float32)",
            "Runner.call",
        ),
        Statement(
            13,
            (),
            ("primals_3", "buf0", "buf1"),
            "extern_kernels.bmm(primals_3, buf0, out=buf1)",
            "Runner.call",
        ),
    )
    return GraphRecord(
        0,
        GraphKind.FORWARD,
        "0/0",
        0,
        ("cpu",),
        GraphDescription(inputs, outputs),
        {n.name: n for n in nodes},
        {b.name: b for b in buffers},
        statements,
        [program],
        "miss",
        5_000_000,
        calls=3,
        random=False,
    )


def backward() -> GraphRecord:
    """Frees h on the way; makes a gradient for l1.weight."""
    program = (
        ProgramBuilder()
        .input("primals_1", 4 * MIB, Category.PARAMETER, 1, [0])
        .input("primals_3", 1 * MIB, Category.INPUT, 3, [1])
        .input("mm", 8 * MIB, Category.ACTIVATION, 4, [2])
        .input("tangents_1", 1 * MIB, Category.AUTOGRAD_DETAIL, 6, [3])
        .alloc("buf0", 6 * MIB, 20)
        .free("mm", 21)
        .alloc("buf1", 4 * MIB, 22, Category.GRADIENT, 7, [0])
        .free("buf0", 23)
        .build()
    )
    S = Role.SAVED_FOR_BACKWARD
    inputs = (
        GraphValue(0, "primals_1", S, Category.PARAMETER, forward_output=2),
        GraphValue(1, "primals_3", S, Category.INPUT, forward_output=3),
        GraphValue(2, "mm", S, Category.ACTIVATION, forward_output=1),
        GraphValue(3, "tangents_1", Role.TANGENT, Category.AUTOGRAD_DETAIL),
    )
    outputs = (GraphValue(0, "mm_1", Role.PARAMETER_GRADIENT, Category.GRADIENT, "l1.weight"),)
    nodes = [
        node("mul", "aten.mul.Tensor", "l1", 3),
        node("mm_1", "aten.mm.default", "l1", 3),
    ]
    return GraphRecord(
        1,
        GraphKind.BACKWARD,
        "0/0",
        0,
        ("cpu",),
        GraphDescription(inputs, outputs),
        {n.name: n for n in nodes},
        {"buf0": buffer("buf0", "mul"), "buf1": buffer("buf1", "mm_1")},
        (),
        [program],
        "miss",
        4_000_000,
        calls=3,
    )


def optimizer() -> GraphRecord:
    """l1.weight, its gradient (handed on by the backward), one moment; a buffer of which
    nothing is known."""
    program = (
        ProgramBuilder()
        .input("arg0_1", 4 * MIB, Category.PARAMETER, 1, [0])
        .input("arg1_1", 4 * MIB, Category.GRADIENT, 7, [1])
        .input("arg2_1", 4 * MIB, Category.OPTIMIZER_STATE, 8, [2])
        .alloc("buf0", 512 * KIB, 30, Category.UNKNOWN)
        .free("buf0", 31)
        .build()
    )
    inputs = (
        GraphValue(0, "arg0_1", Role.PARAMETER, Category.PARAMETER, "l1.weight"),
        GraphValue(1, "arg1_1", Role.PARAMETER_GRADIENT, Category.GRADIENT, "l1.weight"),
        GraphValue(2, "arg2_1", Role.OPTIMIZER_STATE, Category.OPTIMIZER_STATE, "exp_avg"),
    )
    return GraphRecord(
        2,
        GraphKind.INFERENCE,
        "1/0",
        None,
        ("cpu",),
        GraphDescription(inputs),
        programs=[program],
        fx_cache="hit",
        calls=3,
    )


def ledger() -> list[LedgerEntry]:
    second = 1_000_000_000
    return [
        LedgerEntry(1 * second, LedgerKind.COMPILED, 0, "first compilation"),
        LedgerEntry(2 * second, LedgerKind.COMPILED, 1, "first compilation"),
        LedgerEntry(3 * second, LedgerKind.CACHE_HIT, 2, "FX graph cache"),
        LedgerEntry(4 * second, LedgerKind.OBSERVED, 0, "new sizes ()"),
    ]


def training(steps: int = 3) -> Profile:
    """Forward, backward, optimizer, ``steps`` times."""
    return Profile(
        created_ns=1_700_000_000_000_000_000,
        memprof="0.1.0",
        torch="2.13.0+cpu",
        python="3.11.4",
        machine=Machine("Linux-6.1", "Some CPU", 2, 8 * KIB * MIB),
        graphs=[forward(), backward(), optimizer()],
        calls=calls(*[(0, 0), (1, 0), (2, 0)] * steps),
        ledger=ledger(),
    )


def step_time(device_ns: int) -> StepTime:
    """The time of a step of which nothing else is known."""
    return StepTime(
        measured=True,
        device_ns=device_ns,
        host_ns=0,
        kinds=[],
        modules=[],
        launches=2,
        graphs=0,
        unknown=0,
        peak_flops=1e15,
        source="a data sheet",
    )
