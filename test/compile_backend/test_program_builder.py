"""What was seen of one call becomes its allocation program; pure data, nothing is compiled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import given, settings, strategies as st

from memprof.compile_backend.stages.observe.program_builder import (
    Bound,
    CallTrace,
    Delta,
    ObservedStorage,
    StatementTrace,
    build_program,
)
from memprof.profiler.model import Category, Event, EventKind, Origin


class At(NamedTuple):
    """A statement begins."""

    line: int


class Dropped(NamedTuple):
    """A name was deleted."""

    name: str


class Freed(NamedTuple):
    """The last reference to a storage went away."""

    storage: int


Seen = At | Bound | Dropped | Freed | Delta


def _trace(
    seen: Sequence[Seen],
    *,
    entry: Sequence[ObservedStorage] = (),
    outputs: Sequence[int | None] = (),
    allocator: bool = True,
) -> CallTrace:
    """What was seen in a call, by statement."""
    found = CallTrace((), entry=list(entry), allocator=allocator, outputs=list(outputs))
    for each in seen:
        statement = found.statements[-1]
        if isinstance(each, At):
            found.statements.append(StatementTrace(each.line))
        elif isinstance(each, Delta):
            statement.deltas.append(each)
        elif isinstance(each, Bound):
            statement.bound.append(each)
        elif isinstance(each, Dropped):
            statement.dropped.append(each.name)
        else:
            statement.freed.append(each.storage)
    return found


def _given(identity: int, nbytes: int, name: str, *inputs: int) -> ObservedStorage:
    """A storage that is live before the call, of these inputs, or a constant."""
    origin = Origin.INPUT if inputs else Origin.EXTERNAL
    return ObservedStorage(nbytes, "cpu", origin, name, identity, inputs)


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
    seen: list[Seen] = [
        At(10),
        Bound("buf0", 2, 64, "cpu"),
        Delta(64),
        At(11),
        At(12),
        Bound("buf1", 2, 64, "cpu"),
        Dropped("buf0"),
        At(13),
    ]
    trace = _trace(seen, entry=[_given(1, 32, "x", 0)], outputs=[2])
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
    seen: list[Seen] = [
        At(1),
        Bound("buf0", 1, 64, "cpu"),
        Delta(64),
        At(2),
        Bound("buf1", 1, 64, "cpu"),
        At(3),
        Dropped("buf1"),
        At(4),
        Freed(1),
        Dropped("buf0"),
        Delta(-64),
    ]
    trace = _trace(seen)
    program = build_program(trace, _category)
    assert program.events == (Event(ALLOC, 0, 1, "buf0"), Event(FREE, 0, 4))
    assert program.storages[0].category is Category.TEMPORARY
    assert program.storages[0].identity is None


def test_the_elements_of_a_fallback_result_are_named_one_by_one() -> None:
    # GIVEN  buf0 = op(); buf1 = buf0[0]; buf2 = buf0[1]; del buf0; return (buf1,)
    seen: list[Seen] = [
        At(1),
        Bound("buf0", 1, 100, "cpu"),
        Bound("buf0", 2, 8, "cpu"),
        Delta(100),
        Delta(8),
        At(2),
        Bound("buf1", 1, 100, "cpu"),
        At(3),
        Bound("buf2", 2, 8, "cpu"),
        At(4),
        Dropped("buf0"),
    ]
    trace = _trace(seen, outputs=[1])
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
    seen: list[Seen] = [
        At(7),
        Bound("buf0", 2, 64, "cpu"),
        Delta(64),
        Delta(48),
        Delta(-48),
    ]
    trace = _trace(seen, entry=[_given(1, 8, "x", 0)])
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
    seen: list[Seen] = [
        At(3),
        Dropped("saved"),
        Freed(1),
    ]
    trace = _trace(seen, entry=[_given(1, 256, "saved", 0)])
    program = build_program(trace, _category)
    assert program.events == (Event(FREE, 0, 3),)
    assert program.surviving() == []


def test_memory_that_nothing_allocated_was_there_before() -> None:
    # GIVEN an operator that returns a tensor it kept from an earlier call
    seen: list[Seen] = [
        At(3),
        Bound("buf0", 9, 512, "cpu"),
    ]
    trace = _trace(seen, outputs=[9])
    program = build_program(trace, _category)
    assert program.events == ()
    assert program.storages[0].origin is Origin.EXTERNAL
    assert program.entry_bytes == 512


def test_memory_is_named_by_a_later_statement() -> None:
    # GIVEN an aligned copy of an input, made before the first statement and named there
    seen: list[Seen] = [
        Delta(64),
        At(3),
        Bound("arg0", 5, 64, "cpu"),
    ]
    trace = _trace(seen)
    program = build_program(trace, _category)
    assert program.events == (Event(ALLOC, 0, 0, None), Event(REUSE, 0, 3, "arg0"))
    assert program.storages[0].origin is Origin.BUFFER


def test_without_the_allocator_names_alone_make_the_program() -> None:
    # GIVEN another profiler had the thread
    seen: list[Seen] = [
        At(1),
        Bound("buf0", 1, 64, "cpu"),
        At(2),
        Freed(1),
    ]
    trace = _trace(seen, allocator=False)
    program = build_program(trace, _category)
    assert program.events == (Event(ALLOC, 0, 1, "buf0"), Event(FREE, 0, 2))
    assert not program.internal_observed


def test_cuda_rounding_is_kept_as_the_allocators_own_figure() -> None:
    seen: list[Seen] = [
        At(1),
        Bound("buf0", 1, 40, "cuda:0"),
        Delta(512, "cuda:0"),
    ]
    trace = _trace(seen)
    program = build_program(trace, _category)
    assert program.storages[0].nbytes == 512
    assert program.storages[0].origin is Origin.BUFFER


def test_a_zero_size_tensor_has_an_event_and_no_bytes() -> None:
    seen: list[Seen] = [
        At(1),
        Bound("buf0", 1, 0, "cpu"),
    ]
    trace = _trace(seen, outputs=[1])
    program = build_program(trace, _category)
    assert program.events == (Event(ALLOC, 0, 1, "buf0"),)
    assert program.peak() == (0, 0)


def test_what_a_library_keeps_is_not_allocated_by_later_calls() -> None:
    # GIVEN a first call in which a kernel makes a workspace and does not give it back
    seen: list[Seen] = [
        At(3),
        Bound("buf0", 1, 64, "cpu"),
        Delta(4096, "cuda:0"),
        Delta(64),
        At(4),
    ]
    trace = _trace(seen)
    program = build_program(trace, _category)
    # THEN the program, which stands for later calls, does not, and says how much it was
    assert program.events == (Event(ALLOC, 0, 3, "buf0"),)
    assert [s.nbytes for s in program.storages] == [64]
    assert program.kept_bytes == 4096


def test_release_of_scratch_as_large_as_the_result() -> None:
    # GIVEN a kernel that allocates scratch, its result, and releases the scratch
    seen: list[Seen] = [
        At(10),
        Bound("buf0", 2, 100, "cpu"),
        Delta(100),
        Delta(100),
        Delta(-100),
        Delta(100),
        Delta(-100),
    ]
    trace = _trace(seen, entry=[_given(1, 64, "x", 0)], outputs=[2])

    program = build_program(trace, _category)

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
    seen: list[Seen] = [
        At(10),
        Bound("buf0", 1, 8, "cpu"),
        Bound("buf1", 2, 8, "cpu"),
        Delta(8),
        Delta(8),
    ]
    trace = _trace(seen)

    program = build_program(trace, _category)

    assert [e.owner for e in program.events] == ["buf0", "buf1"]


class _Machine:
    """A toy program of named buffers, run by hand: the reference for the builder."""

    def __init__(self, seed: int, inputs: int) -> None:
        self.random = random.Random(seed)
        self.seen: list[Seen] = []
        self.sizes = {i: self.random.choice([8, 16, 64, 64, 256]) for i in range(1, inputs + 1)}
        self.entry = [_given(i, n, f"in{i}", i - 1) for i, n in self.sizes.items()]
        self.names = {f"in{i}": i for i in self.sizes}
        self.live = [sum(self.sizes.values())]
        self.next = inputs + 1
        self.mark = 0

    def _statement(self) -> None:
        self.mark += 1
        self.seen.append(At(self.mark * 10))

    def _bytes(self, nbytes: int) -> None:
        self.seen.append(Delta(nbytes))
        self.live.append(self.live[-1] + nbytes)

    def allocate(self) -> None:
        self._statement()
        storage, self.next = self.next, self.next + 1
        self.sizes[storage] = self.random.choice([8, 16, 64, 64, 256])
        self._bytes(self.sizes[storage])
        name = f"buf{storage}"
        self.names[name] = storage
        self.seen.append(Bound(name, storage, self.sizes[storage], "cpu"))

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
            self.seen.append(Bound(name, storage, self.sizes[storage], "cpu"))

    def drop(self) -> None:
        if self.names:
            self._statement()
            name = self.random.choice(sorted(self.names))
            storage = self.names.pop(name)
            if storage not in self.names.values():
                self.seen.append(Freed(storage))
                self._bytes(-self.sizes[storage])
            self.seen.append(Dropped(name))


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
    trace = _trace(machine.seen, entry=machine.entry)
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
