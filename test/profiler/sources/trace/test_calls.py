"""Calls of compiled code against their programs, on traces and programs made by hand."""

from __future__ import annotations

import pytest

from memprof.profiler import DataFlowProfile
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
    NodeProvenance,
    Origin,
    Profile,
    Role,
    Storage,
)
from memprof.profiler.sources.trace import calls
from memprof.profiler.sources.trace.read import read_events

from . import fake_trace
from .fake_trace import PyCall, Result, alloc, fakes  # noqa: F401

pytestmark = pytest.mark.usefixtures("fakes")

FORWARD_FILE, BACKWARD_FILE = "c" + "f" * 24, "c" + "b" * 24
ALLOC, FREE, REUSE = EventKind.ALLOC, EventKind.FREE, EventKind.REUSE


def call(
    file: str, start: int, *children: fake_trace.Event, length: int = 1000
) -> fake_trace.Event:
    """A call of a generated function."""
    return fake_trace.Event(
        PyCall(), *children, name=f"/tmp/x/{file}.py(7): call", start=start, length=length
    )


def node(name: str) -> NodeProvenance:
    return NodeProvenance(name, f"aten.{name}.default", module_path=f"m.{name}")


def forward() -> GraphRecord:
    """Allocates a saved activation, a temporary and an output; the temporary's memory is taken
    over by another buffer."""
    storages = (
        Storage(0, 400, "cpu", Origin.BUFFER, "buf0", Category.ACTIVATION, outputs=(1,)),
        Storage(1, 300, "cpu", Origin.BUFFER, "buf1", Category.TEMPORARY),
        Storage(2, 200, "cpu", Origin.BUFFER, "buf3", Category.OUTPUT, outputs=(0,)),
    )
    events = (
        Event(ALLOC, 0, 1, "buf0"),
        Event(ALLOC, 1, 2, "buf1"),
        Event(REUSE, 1, 3, "buf2"),
        Event(ALLOC, 2, 4, "buf3"),
        Event(FREE, 1, 5),
    )
    names = {"buf0": "tanh", "buf1": "mul", "buf2": "exp", "buf3": "sum"}
    return GraphRecord(
        id=0,
        kind=GraphKind.FORWARD,
        compile_id="0/0",
        graph_id=5,
        code_path=f"/tmp/x/{FORWARD_FILE}.py",
        nodes={n: node(n) for n in names.values()},
        buffers={b: BufferProvenance(b, "ComputedBuffer", (n,), n) for b, n in names.items()},
        programs=[AllocationProgram((), storages, events)],
    )


def backward() -> GraphRecord:
    """Releases what the forward saved between two allocations of its own."""
    storages = (
        Storage(0, 400, "cpu", Origin.INPUT, "saved", Category.ACTIVATION, inputs=(0,)),
        Storage(1, 100, "cpu", Origin.BUFFER, "buf0", Category.GRADIENT, outputs=(0,)),
        Storage(2, 50, "cpu", Origin.BUFFER, "buf1", Category.TEMPORARY),
    )
    events = (
        Event(ALLOC, 1, 1, "buf0"),
        Event(FREE, 0, 2),
        Event(ALLOC, 2, 3, "buf1"),
        Event(FREE, 2, 4),
    )
    return GraphRecord(
        id=1,
        kind=GraphKind.BACKWARD,
        compile_id="0/0",
        graph_id=5,
        code_path=f"/tmp/x/{BACKWARD_FILE}.py",
        description=GraphDescription(
            inputs=(
                GraphValue(
                    0, "saved", Role.SAVED_FOR_BACKWARD, Category.ACTIVATION, forward_output=1
                ),
            )
        ),
        programs=[AllocationProgram((), storages, events)],
    )


def profile(trace: list[fake_trace.Event]) -> DataFlowProfile:
    known = Profile(graphs=[forward(), backward()], calls=CallColumns())
    return DataFlowProfile(read_events(Result(*trace)), memprof_profile=known)


def lives(p: DataFlowProfile) -> list[tuple[int, int, int, str | None]]:
    """Bytes, birth, death (-1: none) and category of every storage of compiled code."""
    out = []
    for s in range(len(p.storages)):
        if p.owners(s):
            born, died = p.storages.life(s)
            category = p.category(s)
            name = None if category is Category.UNKNOWN else category.name
            out.append((int(p.storages.size[s]), born, died if died < 1 << 60 else -1, name))
    return sorted(out, key=lambda x: (x[1], x[0]))


def observed() -> list[fake_trace.Event]:
    """A forward that allocates what its program says, at 100, 200 and 300."""
    return [
        call(
            FORWARD_FILE,
            1000,
            alloc(64, 400, 1, 1, start=1100),
            alloc(128, 300, 2, 2, start=1200),
            alloc(256, 200, 3, 3, start=1400),
            alloc(128, -300, 2, 2, start=1500),
        )
    ]


def test_a_call_that_allocates_what_its_program_says() -> None:
    p = profile(observed())
    assert p.compiled is not None
    assert (p.compiled.calls, p.compiled.matched) == (1, 1)
    assert p.compiled.unmatched == {}
    assert [(n, c) for n, _, _, c in lives(p)] == [
        (400, "ACTIVATION"),
        (300, "TEMPORARY"),
        (200, "ACTIVATION"),
    ]


def test_memory_that_is_taken_over_has_one_owner_after_the_other() -> None:
    p = profile(observed())
    [storage] = [s for s in range(len(p.storages)) if int(p.storages.size[s]) == 300]
    # THEN the second owner begins between the allocations around it in the program,
    assert [(o.buffer, o.since) for o in p.owners(storage)] == [("buf1", 1200), ("buf2", 1300)]
    # and who asks for a time is told who it was then.
    assert p.operator(storage) == "aten.mul.default"
    assert p.operator(storage, 1299) == "aten.mul.default"
    assert p.operator(storage, 1300) == "aten.exp.default"
    assert p.module(storage, 1450) == "m.exp"


def test_scratch_memory_that_was_not_observed_is_more_than_the_program() -> None:
    trace = observed()
    trace[0].children.insert(1, alloc(512, 77, start=1150))
    trace[0].children.insert(2, alloc(512, -77, start=1160))
    p = profile(trace)
    assert p.compiled is not None
    assert (p.compiled.matched, p.compiled.unmatched) == (1, {})
    assert sum(n for n, *_ in lives(p)) == 900


def test_calls_alike_are_put_against_their_program_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN fifty calls with scratch memory that the program has not: to find out takes a while
    # where there are thousands of allocations
    roots = [
        call(
            FORWARD_FILE,
            at,
            *(alloc(64 + i, n, start=at + 100 * i) for i, n in enumerate((400, 77, 300, 200), 1)),
            *(alloc(64 + i, -n, start=at + 500) for i, n in enumerate((400, 77, 300, 200), 1)),
        )
        for at in range(1000, 500_000, 10_000)
    ]
    asked: list[list[int]] = []
    common = calls._common

    def counted(sizes: list[int], program: AllocationProgram) -> dict[int, int]:
        asked.append(sizes)
        return common(sizes, program)

    monkeypatch.setattr(calls, "_common", counted)
    p = profile(roots)
    assert p.compiled is not None
    assert (p.compiled.calls, p.compiled.matched) == (50, 50)
    assert asked == [[400, 77, 300, 200]]


def test_what_a_call_lacks_is_named() -> None:
    # GIVEN a call that allocates two of three buffers
    trace = observed()
    del trace[0].children[1:]
    p = profile(trace)
    assert p.compiled is not None
    assert p.compiled.matched == 0
    assert p.compiled.unmatched == {"its program allocates 500 bytes more (buf1, buf3)": 1}
    assert [n for n, *_ in lives(p)] == [400]


def test_a_graph_without_a_program_says_so() -> None:
    known = Profile(graphs=[forward()])
    known.graphs[0].programs = []
    known.graphs[0].unobservable = "cpp_wrapper"
    p = DataFlowProfile(read_events(Result(*observed())), memprof_profile=known)
    assert p.compiled is not None
    assert p.compiled.unmatched == {"no program was observed of 0/0 forward: cpp_wrapper": 1}


def test_a_replayed_call_says_that_its_memory_is_not_in_the_trace() -> None:
    p = profile([call(FORWARD_FILE, 10_000, length=600)])
    assert p.compiled is not None
    assert p.compiled.unmatched == {
        "it allocates nothing of its program, as a replayed CUDA graph does": 1
    }
    assert lives(p) == []
