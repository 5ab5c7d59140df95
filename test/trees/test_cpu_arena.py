"""The arena's memory: blocks, leases, scratches. No compilation."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.compile_backend.cpu_arena.memory import PAGE, LeasePool, Tokens
from memprof.compile_backend.cpu_arena.tensors import (
    LEASES_PER_SITE,
    MAX_SCRATCH,
    ScratchPlan,
    ScratchPool,
    TensorShape,
    leased_tensors,
)
from memprof.cudagraph_trees import _torch_compat as compat


class User:
    """What keeps a pool's free memory."""


def check_books(pool: LeasePool, live: dict[int, int]) -> None:
    """Blocks are whole pages, and exactly ``live`` (address → bytes) is out."""
    found = {}
    segments = pool.segments()
    for segment in segments:
        (block,) = segment.blocks
        assert (block.address, block.nbytes) == (segment.address, segment.nbytes)
        assert block.nbytes % PAGE == 0
        assert block.nbytes > 0
        if block.live:
            found[block.address] = block.requested
            assert block.requested <= block.nbytes
    ends = [s.address + s.nbytes for s in segments]
    assert all(end <= s.address for end, s in zip(ends, segments[1:], strict=False))
    assert found == live
    assert pool.reserved_bytes == sum(s.nbytes for s in segments)
    assert set(pool.leased()) == set(live)


# (bytes to lease) or (number of the lease to end).
operations = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 3 << 20)),
        st.tuples(st.just("give"), st.integers(0, 50)),
        st.tuples(st.just("trim"), st.just(0)),
    ),
    max_size=60,
)


def leased(pool: LeasePool, nbytes: int, tokens: Tokens | None = None) -> memoryview:
    """A block, of a call site without a limit."""
    view = pool.lease(nbytes, [None] if tokens is None else tokens)
    assert view is not None
    assert view.nbytes == nbytes
    return view


@given(operations)
@settings(max_examples=100)
def test_books_are_right_after_any_operations(todo: list[tuple[str, int]]) -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    held: dict[int, memoryview] = {}
    most = 0
    for what, n in todo:
        if what == "take":
            view = leased(pool, n)
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))
            assert address not in held
            held[address] = view
            del view
        elif what == "give" and held:
            del held[sorted(held)[n % len(held)]]
        elif what == "trim":
            pool.trim()
        check_books(pool, {a: v.nbytes for a, v in held.items()})
        # What is free beside what is out is no more than was out once.
        most = max(most, sum(b.nbytes for s in pool.segments() for b in s.blocks if b.live))
        assert pool.reserved_bytes <= most
    held.clear()
    pool.trim()
    assert pool.reserved_bytes == 0


def test_blocks_are_given_back_before_more_is_asked_for() -> None:
    # GIVEN a pool in which 8 MiB were in use at once, and nothing is now
    pool, user = LeasePool(), User()
    pool.add_user(user)
    leased(pool, 8 << 20)
    # WHEN sizes grow a little from call to call
    for extra in range(1, 6):
        leased(pool, (8 << 20) + extra * 4096)
        # THEN old sizes do not pile up
        assert pool.reserved_bytes == (8 << 20) + extra * 4096


def test_a_free_block_serves_what_needs_half_of_it() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    for nbytes in (8 << 20, 5 << 20, 8 << 20, 4 << 20):
        leased(pool, nbytes)
        assert pool.reserved_bytes == 8 << 20


def test_sizes_that_take_turns_share_a_block() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    leased(pool, 8 << 20)
    # GIVEN a free block of more than twice what is needed, and no room beside it
    # WHEN a lease is taken, THEN it gets that one: nothing goes back to be had again
    (block,) = pool.segments()
    for nbytes in (1 << 20, 8 << 20, 3 << 20, 8 << 20):
        leased(pool, nbytes)
        assert pool.segments() == [block]
    # WHEN more was in use at once, THEN there is room for one of its own
    both = leased(pool, 8 << 20), leased(pool, 1 << 20)
    assert pool.reserved_bytes == 9 << 20
    del both
    leased(pool, 1 << 20)
    assert pool.reserved_bytes == 9 << 20


def test_a_budget_is_kept() -> None:
    pool, user = LeasePool(lambda: 4 << 20), User()
    pool.add_user(user)
    tokens: Tokens = [None, None]
    first = leased(pool, 3 << 20, tokens)
    assert pool.lease(3 << 20, tokens) is None
    assert len(tokens) == 1
    del first
    second = leased(pool, 4 << 20, tokens)
    assert pool.reserved_bytes == 4 << 20
    del second
    assert len(tokens) == 2


SPEC = TensorShape.of((256, 512), (512, 1), torch.float32)


def test_a_block_comes_back_when_its_last_view_dies() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    make = leased_tensors(pool, SPEC, "test: y")
    # GIVEN a tensor of a leased block
    t = make()
    assert (t.shape, t.stride(), t.dtype) == ((256, 512), (512, 1), torch.float32)
    assert t.untyped_storage().nbytes() == 256 * 512 * 4
    assert t._base is None
    assert list(pool.leased().values()) == ["test: y"]
    address = t.data_ptr()
    # WHEN only a view of a view is left
    row = t.fill_(3.0)[1:][2]
    del t
    # THEN the block is out still, and nobody gets it
    assert len(pool.leased()) == 1
    other = make().zero_()
    assert other.data_ptr() != address
    assert row.eq(3.0).all()
    # WHEN it dies too, THEN the next tensor gets its memory
    del row
    assert len(pool.leased()) == 1
    assert make().data_ptr() == address


def test_a_site_has_so_many_blocks_out_and_no_more() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    make = leased_tensors(pool, SPEC, "")
    held = [make().fill_(i) for i in range(20)]
    assert len(pool.leased()) == LEASES_PER_SITE
    assert all(t.eq(i).all() for i, t in enumerate(held))
    reserved = pool.reserved_bytes
    del held
    assert pool.reserved_bytes == reserved == LEASES_PER_SITE * SPEC.nbytes
    assert [s.nbytes for s in pool.segments()] == [SPEC.nbytes] * LEASES_PER_SITE
    assert len(pool.leased()) == 0


def test_nothing_is_kept_without_users() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    make = leased_tensors(pool, SPEC, "")
    a, b = make(), make()
    del b
    assert pool.reserved_bytes > 0
    # WHEN the last user dies while a tensor lives
    del user
    # THEN its memory stays, and goes when it goes
    a.fill_(1.0)
    assert pool.reserved_bytes > 0
    del a
    assert pool.reserved_bytes == 0


def test_memory_outlives_the_pool() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    t = leased_tensors(pool, SPEC, "")().fill_(7.0)
    del pool, user
    gc.collect()
    assert t.eq(7.0).all()


def test_threads_share_no_block() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    wrong = []

    def work(number: int) -> None:
        make = leased_tensors(pool, SPEC, str(number))
        for i in range(200):
            held = [make().fill_(number * 1000 + i) for _ in range(2)]
            if not all(t.eq(number * 1000 + i).all() for t in held):
                wrong.append((number, i))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert not pool.leased()
    assert not any(b.live for s in pool.segments() for b in s.blocks)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_starts_anew() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    make = leased_tensors(pool, SPEC, "")
    t = make().fill_(5.0)
    pool._lock.acquire()  # as if another thread were at it, with the books half written
    free, pool._free = pool._free, []
    child = os.fork()
    if child == 0:
        try:
            other = make().fill_(6.0)
            ok = bool(t.eq(5.0).all() and other.eq(6.0).all() and other.data_ptr() != t.data_ptr())
            del t, other
            make()
            os._exit(0 if ok and not pool.leased() else 1)
        finally:
            os._exit(2)
    pool._free = free
    pool._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert t.eq(5.0).all()


DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8),
    *(torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_are_what_empty_strided_makes(dtype: torch.dtype) -> None:
    pool = LeasePool()
    layouts = [((6,), (1,)), ((2, 3), (1, 2)), ((2, 3), (8, 1)), ((), ()), ((3, 1), (1, 9))]
    for shape, stride in layouts:
        plain = torch.empty_strided(shape, stride, dtype=dtype)
        made = leased_tensors(pool, TensorShape.of(shape, stride, dtype), "")()
        scratch = ScratchPool(pool).take()
        assert scratch is not None
        plan = ScratchPlan(256, [(128, TensorShape.of(shape, stride, dtype))], lambda ts: ts[0])
        temporary = scratch.prepare(plan)
        for t in (made, temporary):
            assert t is not None
            assert (t.shape, t.stride(), t.dtype) == (plain.shape, plain.stride(), dtype)
            assert not t.requires_grad
        assert made.untyped_storage().nbytes() == plain.untyped_storage().nbytes()
        assert temporary.data_ptr() % 64 == 0


def test_tensors_ignore_modes() -> None:
    pool, scratches = LeasePool(), None
    make = leased_tensors(pool, SPEC, "")
    scratches = ScratchPool(pool)
    plan = ScratchPlan(SPEC.nbytes, [(0, SPEC)], lambda ts: ts[0])
    with torch.device("meta"), torch.inference_mode():
        scratch = scratches.take()
        assert scratch is not None
        temporary, made = scratch.prepare(plan), make()
    assert temporary is not None
    assert made.device.type == temporary.device.type == "cpu"
    assert made.is_inference()
    # THEN a temporary can be written outside of inference mode
    assert not temporary.is_inference()
    torch.mm(torch.ones(256, 8), torch.ones(8, 512), out=temporary)


def test_scratches() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    scratches = ScratchPool(pool)
    small = ScratchPlan(1 << 20, [(0, SPEC)], lambda ts: ts)
    large = ScratchPlan(3 << 20, [(1 << 20, SPEC)], lambda ts: ts)
    # GIVEN a scratch with the tensors of a plan
    scratch = scratches.take()
    assert scratch is not None
    assert scratch.prepare(small) is not None
    scratches.idle.append(scratch)
    # THEN it is used again
    assert scratches.take() is scratch
    assert scratch in small.bound
    # WHEN a plan needs more, THEN what was made before goes
    assert scratch.prepare(large) is not None
    assert scratch not in small.bound
    assert scratch.nbytes == 3 << 20
    assert [b.requested for s in pool.segments() for b in s.blocks if b.live] == [3 << 20]
    # WHEN too many calls run at once, THEN the last has none
    assert all(scratches.take() is not None for _ in range(MAX_SCRATCH - 1))
    assert scratches.take() is None
    # WHEN a view of a temporary is held, THEN the references tell
    before = scratch.references()
    view = large.bound[scratch][0][3]
    assert scratch.references() == before + 1
    # WHEN it is abandoned, THEN the memory is theirs who hold it, and another can be had
    view.fill_(4.0)
    scratches.abandon(scratch)
    del scratch
    fresh = scratches.take()
    assert fresh is not None
    assert fresh.prepare(large) is not None
    large.bound[fresh][0].zero_()
    assert view.eq(4.0).all()
    assert scratches.abandoned == 1


def test_a_scratch_keeps_no_function_alive() -> None:
    pool, user = LeasePool(), User()
    pool.add_user(user)
    scratches = ScratchPool(pool)

    class Function:
        pass

    function = Function()
    gone = weakref.ref(function)
    plan = ScratchPlan(SPEC.nbytes, [(0, SPEC)], lambda ts, f=function: (f, ts))
    scratch = scratches.take()
    assert scratch is not None
    scratch.prepare(plan)
    scratches.idle.append(scratch)
    del plan, function
    gc.collect()
    assert gone() is None
    # AND trimming gives its memory back
    pool.trim()
    del scratch
    assert pool.reserved_bytes == 0


def test_storage_use_count_is_what_the_check_relies_on() -> None:
    t = torch.zeros(4)
    pointer = t.untyped_storage()._cdata
    before = compat.storage_use_count(pointer)
    view = t[1:]
    assert compat.storage_use_count(pointer) == before + 1
    del view
    assert compat.storage_use_count(pointer) == before
