"""Raw reports of one call become its allocation program; pure data, nothing is compiled."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.compile_backend.observation.program_builder import (
    AllocatorDelta,
    At,
    Bound,
    Dropped,
    Freed,
    KnownStorage,
    Report,
    Trace,
    as_deltas,
    build_program,
)
from memprof.profiler.model import Category, Event, EventKind, Origin

ALLOC, FREE, REUSE = EventKind.ALLOC, EventKind.FREE, EventKind.REUSE


def _category(
    origin: Origin, inputs: tuple[int, ...], outputs: tuple[int, ...], survives: bool
) -> Category:
    if origin is Origin.INPUT:
        return Category.INPUT
    if origin is Origin.EXTERNAL:
        return Category.CONSTANT
    if outputs:
        return Category.OUTPUT
    return Category.UNKNOWN if survives else Category.TEMPORARY


def test_a_buffer_is_allocated_handed_over_and_returned() -> None:
    # GIVEN  buf0 = empty(64); kernel(x, buf0); buf1 = buf0; del buf0; return (buf1,)
    trace = Trace((), entry=[KnownStorage(1, 32, "cpu", "x", (0,))])
    trace.reports = [
        At(1, 10),
        Bound("buf0", 2, 64, "cpu"),
        At(2, 11),
        At(3, 12),
        Bound("buf1", 2, 64, "cpu"),
        Dropped(("buf0",)),
        At(4, 13),
    ]
    trace.allocator = [AllocatorDelta(1, 64)]
    trace.outputs = [2]
    # WHEN
    program = build_program(trace, _category)
    # THEN
    assert program.events == (Event(ALLOC, 1, 10, "buf0"), Event(REUSE, 1, 12, "buf1"))
    assert [(s.name, s.nbytes, s.category, s.inputs, s.outputs) for s in program.storages] == [
        ("x", 32, Category.INPUT, (0,), ()),
        ("buf0", 64, Category.OUTPUT, (), (0,)),
    ]
    assert program.peak() == (1, 96)
    assert [live.owner for live in program.surviving()] == ["x", "buf1"]
    assert program.storages[1].identity == 2


def test_a_view_beside_its_base_does_not_take_it_over() -> None:
    # GIVEN  buf0 = empty(64); buf1 = reinterpret_tensor(buf0, …); del buf1; del buf0
    trace = Trace((), allocator=[AllocatorDelta(1, 64), AllocatorDelta(4, -64)])
    trace.reports = [
        At(1, 1),
        Bound("buf0", 1, 64, "cpu"),
        At(2, 2),
        Bound("buf1", 1, 64, "cpu"),
        At(3, 3),
        Dropped(("buf1",)),
        At(4, 4),
        Freed(1),
        Dropped(("buf0",)),
    ]
    program = build_program(trace, _category)
    assert program.events == (Event(ALLOC, 0, 1, "buf0"), Event(FREE, 0, 4))
    assert program.storages[0].category is Category.TEMPORARY
    assert program.storages[0].identity is None


def test_the_elements_of_a_fallback_result_are_named_one_by_one() -> None:
    # GIVEN  buf0 = op(); buf1 = buf0[0]; buf2 = buf0[1]; del buf0; return (buf1,)
    trace = Trace((), allocator=[AllocatorDelta(1, 100), AllocatorDelta(1, 8)], outputs=[1])
    trace.reports = [
        At(1, 1),
        Bound("buf0", 1, 100, "cpu"),
        Bound("buf0", 2, 8, "cpu"),
        At(2, 2),
        Bound("buf1", 1, 100, "cpu"),
        At(3, 3),
        Bound("buf2", 2, 8, "cpu"),
        At(4, 4),
        Dropped(("buf0",)),
    ]
    program = build_program(trace, _category)
    # THEN each storage passes from the tuple to the name of its element
    assert program.events == (
        Event(ALLOC, 0, 1, "buf0"),
        Event(ALLOC, 1, 1, "buf0"),
        Event(REUSE, 0, 4, "buf1"),
        Event(REUSE, 1, 4, "buf2"),
    )


def test_what_no_name_accounts_for_is_scratch_memory_of_the_statement() -> None:
    # GIVEN a statement that allocates its result (64) and scratch (48), and releases the scratch
    trace = Trace((), entry=[KnownStorage(1, 8, "cpu", "x", (0,))])
    trace.reports = [At(1, 7), Bound("buf0", 2, 64, "cpu")]
    trace.allocator = [AllocatorDelta(1, 64), AllocatorDelta(1, 48), AllocatorDelta(1, -48)]
    program = build_program(trace, _category)
    assert program.events == (
        Event(ALLOC, 1, 7, "buf0"),
        Event(ALLOC, 2, 7, None),
        Event(FREE, 2, 7, None),
    )
    scratch = program.storages[2]
    assert (scratch.origin, scratch.nbytes, scratch.device) == (Origin.INTERNAL, 48, "cpu")
    assert program.peak() == (2, 8 + 64 + 48)
    assert program.internal_observed


def test_an_input_that_dies_inside_the_call_is_freed_where_it_dies() -> None:
    # GIVEN an input allocated before recording began: the allocator does not report its release
    trace = Trace((), entry=[KnownStorage(1, 256, "cpu", "saved", (0,))], allocator=[])
    trace.reports = [At(1, 3), Dropped(("saved",)), Freed(1)]
    program = build_program(trace, _category)
    assert program.events == (Event(FREE, 0, 3),)
    assert program.surviving() == []


def test_memory_that_nothing_allocated_was_there_before() -> None:
    # GIVEN an operator that returns a tensor it kept from an earlier call
    trace = Trace((), allocator=[], outputs=[9])
    trace.reports = [At(1, 3), Bound("buf0", 9, 512, "cpu")]
    program = build_program(trace, _category)
    assert program.events == ()
    assert program.storages[0].origin is Origin.EXTERNAL
    assert program.entry_bytes == 512


def test_memory_is_named_by_a_later_statement() -> None:
    # GIVEN an aligned copy of an input, made before the first statement and named there
    trace = Trace((), allocator=[AllocatorDelta(0, 64)])
    trace.reports = [At(1, 3), Bound("arg0", 5, 64, "cpu")]
    program = build_program(trace, _category)
    assert program.events == (Event(ALLOC, 0, 0, None), Event(REUSE, 0, 3, "arg0"))
    assert program.storages[0].origin is Origin.BUFFER


def test_without_the_allocator_names_alone_make_the_program() -> None:
    # GIVEN another profiler had the thread
    trace = Trace(())
    trace.reports = [At(1, 1), Bound("buf0", 1, 64, "cpu"), At(2, 2), Freed(1)]
    program = build_program(trace, _category)
    assert program.events == (Event(ALLOC, 0, 1, "buf0"), Event(FREE, 0, 2))
    assert not program.internal_observed


def test_cuda_rounding_is_kept_as_the_allocators_own_figure() -> None:
    trace = Trace((), allocator=[AllocatorDelta(1, 512, "cuda:0")])
    trace.reports = [At(1, 1), Bound("buf0", 1, 40, "cuda:0")]
    program = build_program(trace, _category)
    assert program.storages[0].nbytes == 512
    assert program.storages[0].origin is Origin.BUFFER


def test_a_zero_size_tensor_has_an_event_and_no_bytes() -> None:
    trace = Trace((), allocator=[], outputs=[1])
    trace.reports = [At(1, 1), Bound("buf0", 1, 0, "cpu")]
    program = build_program(trace, _category)
    assert program.events == (Event(ALLOC, 0, 1, "buf0"),)
    assert program.peak() == (0, 0)


def test_marks_are_read_back_from_their_text() -> None:
    assert as_deltas([("", 8, "cpu"), ("mp:12", -8, "cuda:1")], "mp:") == [
        AllocatorDelta(0, 8),
        AllocatorDelta(12, -8, "cuda:1"),
    ]


def test_what_a_library_keeps_is_not_allocated_by_later_calls() -> None:
    # GIVEN a first call in which a kernel makes a workspace and does not give it back
    trace = Trace((), allocator=[AllocatorDelta(1, 4096, "cuda:0"), AllocatorDelta(1, 64)])
    trace.reports = [At(1, 3), Bound("buf0", 1, 64, "cpu"), At(2, 4)]
    program = build_program(trace, _category)
    # THEN the program, which stands for later calls, does not, and says how much it was
    assert program.events == (Event(ALLOC, 0, 3, "buf0"),)
    assert [s.nbytes for s in program.storages] == [64]
    assert program.kept_bytes == 4096


class _Machine:
    """A toy program of named buffers, run by hand: the reference for the builder."""

    def __init__(self, seed: int, inputs: int) -> None:
        self.random = random.Random(seed)
        self.reports: list[Report] = []
        self.deltas: list[AllocatorDelta] = []
        self.sizes = {i: self.random.choice([8, 16, 64, 64, 256]) for i in range(1, inputs + 1)}
        self.entry = [KnownStorage(i, n, "cpu", f"in{i}", (i - 1,)) for i, n in self.sizes.items()]
        self.names = {f"in{i}": i for i in self.sizes}
        self.live = [sum(self.sizes.values())]
        self.next = inputs + 1
        self.mark = 0

    def _statement(self) -> None:
        self.mark += 1
        self.reports.append(At(self.mark, self.mark * 10))

    def _bytes(self, nbytes: int) -> None:
        self.deltas.append(AllocatorDelta(self.mark, nbytes))
        self.live.append(self.live[-1] + nbytes)

    def allocate(self) -> None:
        self._statement()
        storage, self.next = self.next, self.next + 1
        self.sizes[storage] = self.random.choice([8, 16, 64, 64, 256])
        self._bytes(self.sizes[storage])
        name = f"buf{storage}"
        self.names[name] = storage
        self.reports.append(Bound(name, storage, self.sizes[storage], "cpu"))

    def scratch(self) -> None:
        self._statement()
        sizes = [self.random.choice([24, 64, 128]) for _ in range(self.random.randint(1, 3))]
        for n in sizes:
            self._bytes(n)
        for n in reversed(sizes):
            self._bytes(-n)

    def alias(self) -> None:
        if self.names:
            self._statement()
            storage = self.names[self.random.choice(sorted(self.names))]
            name = f"view{self.mark}"
            self.names[name] = storage
            self.reports.append(Bound(name, storage, self.sizes[storage], "cpu"))

    def drop(self) -> None:
        if self.names:
            self._statement()
            name = self.random.choice(sorted(self.names))
            storage = self.names.pop(name)
            if storage not in self.names.values():
                self.reports.append(Freed(storage))
                self._bytes(-self.sizes[storage])
            self.reports.append(Dropped((name,)))


@settings(max_examples=200)
@given(
    st.integers(0, 2**32),
    st.integers(0, 3),
    st.lists(st.sampled_from(["allocate", "scratch", "alias", "drop"]), max_size=40),
)
def test_bytes_and_owners_follow_any_program(seed: int, inputs: int, steps: list[str]) -> None:
    # GIVEN any sequence of statements
    machine = _Machine(seed, inputs)
    for step in steps:
        getattr(machine, step)()
    trace = Trace((), machine.entry, machine.reports, machine.deltas)
    # WHEN a program is built from what was seen of it
    program = build_program(trace, _category)
    # THEN the live bytes after each change are those of the reference
    live = [program.entry_bytes]
    for delta in program.deltas():
        if delta:
            live.append(live[-1] + delta)
    assert live == machine.live
    assert program.peak()[1] == max(machine.live)
    # AND what survives is what still has a name, owned by one of its names
    surviving = program.surviving()
    assert sum(s.storage.nbytes for s in surviving) == machine.live[-1]
    held = set(machine.names.values())
    assert len(surviving) == len(held)
    for s in surviving:
        assert s.owner in machine.names
        assert machine.sizes[machine.names[s.owner]] == s.storage.nbytes
