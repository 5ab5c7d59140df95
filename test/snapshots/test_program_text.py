"""program_text: what a call does to memory, without what differs from run to run."""

from __future__ import annotations

import dataclasses
import unittest

import pytest

from memprof.profiler.model import (
    AllocationProgram,
    BufferProvenance,
    Category,
    Event,
    EventKind,
    GraphKind,
    GraphRecord,
    NodeProvenance,
    Origin,
    Storage,
)
from snapshots import TestCase, program_text

pytestmark = pytest.mark.zero_kernels


def _program(prefix: str = "buf", line: int = 10, device: str = "cpu") -> AllocationProgram:
    """Two inputs in one storage, a saved activation, a reused temporary, kernel scratch."""
    storages = (
        Storage(0, 256, device, Origin.INPUT, "primals_1", Category.PARAMETER, line, (0, 2)),
        Storage(1, 512, device, Origin.BUFFER, f"{prefix}3", Category.TEMPORARY),
        Storage(2, 64, device, Origin.INTERNAL, "", Category.TEMPORARY),
        Storage(3, 1024, device, Origin.BUFFER, f"{prefix}7", Category.ACTIVATION, 9, (), (1,)),
    )
    events = (
        Event(EventKind.ALLOC, 1, line, f"{prefix}3"),
        Event(EventKind.ALLOC, 2, line + 1),
        Event(EventKind.FREE, 2, line + 1),
        Event(EventKind.REUSE, 1, line + 2, f"{prefix}4"),
        Event(EventKind.ALLOC, 3, line + 3, f"{prefix}7"),
        Event(EventKind.FREE, 1, line + 4),
    )
    return AllocationProgram((), storages, events, host_ns=line)


class ProgramText(TestCase):
    def test_program(self) -> None:
        self.assertProgram(
            _program(),
            """\
program: live at entry 256, allocates 1536, peak 1792 after event 3
    live  input0+2      256 parameter
    alloc buf0          512 temporary
    reuse buf0 as buf1
    alloc buf2         1024 activation -> output1
    free  buf1          512
""",
        )

    def test_program_with_scratch(self) -> None:
        self.assertProgram(
            _program(),
            """\
program: live at entry 256, allocates 1600, peak 1792 after event 5
    live  input0+2      256 parameter
    alloc buf0          512 temporary
    alloc (scratch)      64 temporary
    free  (scratch)      64
    reuse buf0 as buf1
    alloc buf2         1024 activation -> output1
    free  buf1          512
""",
            internal=True,
        )

    def test_record_names_operators(self) -> None:
        # GIVEN a graph that knows what buf3 and buf7 hold
        record = GraphRecord(
            id=4,
            kind=GraphKind.FORWARD,
            nodes={
                "mm": NodeProvenance("mm", "aten.mm.default"),
                "relu": NodeProvenance("relu", "aten.relu.default"),
            },
            buffers={
                "buf3": BufferProvenance("buf3", "ExternKernelOut", ("mm",), "mm"),
                "buf7": BufferProvenance("buf7", "ComputedBuffer", ("relu",), "relu"),
            },
            programs=[_program(), dataclasses.replace(_program(), key=(8, 3))],
        )
        self.assertProgram(
            record,
            """\
forward program: live at entry 256, allocates 1536, peak 1792 after event 3
    live  input0+2      256 parameter
    alloc buf0          512 temporary  aten.mm.default
    reuse buf0 as buf1
    alloc buf2         1024 activation aten.relu.default -> output1
    free  buf1          512

forward program for (8, 3): live at entry 256, allocates 1536, peak 1792 after event 3
    live  input0+2      256 parameter
    alloc buf0          512 temporary  aten.mm.default
    reuse buf0 as buf1
    alloc buf2         1024 activation aten.relu.default -> output1
    free  buf1          512
""",
        )


def test_what_differs_from_run_to_run_does_not_matter() -> None:
    assert program_text(_program()) == program_text(_program("tmp", line=77, device="cuda:0"))


def test_bytes_matter() -> None:
    program = _program()
    larger = dataclasses.replace(program.storages[3], nbytes=2048)
    other = dataclasses.replace(program, storages=(*program.storages[:3], larger))
    assert program_text(program) != program_text(other)


def test_wants_a_program() -> None:
    with pytest.raises(TypeError, match="AllocationProgram or a GraphRecord, got int"):
        program_text(3)  # type: ignore[arg-type]


def test_nothing_observed() -> None:
    record = GraphRecord(id=2, kind=GraphKind.BACKWARD, unobservable="cpp_wrapper is on")
    with pytest.raises(ValueError, match=r"no program of graph 2 .*: cpp_wrapper is on"):
        program_text(record)
    with pytest.raises(ValueError, match="has not been called yet"):
        program_text(GraphRecord(id=2, kind=GraphKind.BACKWARD))


if __name__ == "__main__":
    unittest.main()
