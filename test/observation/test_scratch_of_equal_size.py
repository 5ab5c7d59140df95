"""Scratch memory as large as the result of its statement: every release must be accounted for."""

from __future__ import annotations

from memprof.compile_backend.observation.program_builder import (
    AllocatorDelta,
    At,
    Bound,
    KnownStorage,
    Trace,
    build_program,
)
from memprof.profiler.model import Category, EventKind, Origin


def test_release_of_scratch_as_large_as_the_result() -> None:
    # GIVEN a kernel that allocates scratch, its result, and releases the scratch
    trace = Trace(key=(), entry=[KnownStorage(1, 64, "cpu", "x", (0,))])
    trace.reports = [At(1, 10), Bound("buf0", 2, 100, "cpu")]
    trace.allocator = [
        AllocatorDelta(1, 100),
        AllocatorDelta(1, 100),
        AllocatorDelta(1, -100),
        AllocatorDelta(1, 100),
        AllocatorDelta(1, -100),
    ]
    trace.outputs = [2]

    program = build_program(trace, lambda *_: Category.TEMPORARY)

    # THEN what is live follows the allocator at each instant
    assert program.deltas() == [100, 100, -100, 100, -100]
    assert program.peak() == (2, 264)
    # AND the result alone is left
    assert [s.storage.name for s in program.surviving()] == ["x", "buf0"]
    assert [program.storages[e.storage].origin for e in program.events] == [
        Origin.INTERNAL,
        Origin.INTERNAL,
        Origin.INTERNAL,
        Origin.BUFFER,
        Origin.INTERNAL,
    ]
    assert program.events[-1].kind is EventKind.FREE


def test_two_results_of_one_size_keep_their_order() -> None:
    trace = Trace(key=())
    trace.reports = [At(1, 10), Bound("buf0", 1, 8, "cpu"), Bound("buf1", 2, 8, "cpu")]
    trace.allocator = [AllocatorDelta(1, 8), AllocatorDelta(1, 8)]

    program = build_program(trace, lambda *_: Category.TEMPORARY)

    assert [e.owner for e in program.events] == ["buf0", "buf1"]
