"""The arena's memory: blocks, leases, scratches. No compilation."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.compile_backend.cpu_arena.memory import MIN_SEGMENT, Arena, LeasePool, OverBudget
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


def check_books(arena: Arena, live: dict[int, int]) -> None:
    """Blocks tile the segments, and exactly ``live`` (address → bytes) is allocated."""
    found = {}
    for segment in arena.segments():
        at, free_before = segment.address, False
        for block in segment.blocks:
            assert block.address == at
            assert block.nbytes > 0
            assert block.address % 64 == 0
            assert not (free_before and not block.live), "free neighbours are merged"
            at, free_before = at + block.nbytes, not block.live
            if block.live:
                found[block.address] = block.requested
                assert block.requested <= block.nbytes
        assert at == segment.address + segment.nbytes
    assert found == live
    assert arena.reserved_bytes == sum(s.nbytes for s in arena.segments())
    assert arena.live_addresses() == set(live)


# (bytes to allocate) or (number of the live block to free).
operations = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 3 * MIN_SEGMENT // 2)),
        st.tuples(st.just("give"), st.integers(0, 50)),
        st.tuples(st.just("trim"), st.just(0)),
    ),
    max_size=60,
)


@given(operations)
@settings(max_examples=100)
def test_books_are_right_after_any_operations(todo: list[tuple[str, int]]) -> None:
    arena, live = Arena(), {}
    for what, n in todo:
        if what == "take":
            address = arena.allocate(n)
            assert address not in live
            live[address] = n
        elif what == "give" and live:
            address = sorted(live)[n % len(live)]
            arena.free(address)
            del live[address]
        elif what == "trim":
            arena.trim()
        check_books(arena, live)
    for address in live:
        arena.free(address)
    arena.trim()
    assert arena.reserved_bytes == 0


def test_a_segment_is_given_back_before_more_is_asked_for() -> None:
    # GIVEN a pool in which 8 MiB were in use at once, and nothing is now
    arena = Arena()
    arena.free(arena.allocate(8 << 20))
    # WHEN sizes grow a little from call to call
    for extra in range(1, 6):
        arena.free(arena.allocate((8 << 20) + extra * 4096))
        # THEN old sizes do not pile up
        assert arena.reserved_bytes == (8 << 20) + extra * 4096


def test_a_budget_is_kept() -> None:
    arena = Arena(budget=lambda: 4 << 20)
    first = arena.allocate(3 << 20)
    with pytest.raises(OverBudget, match="would exceed the budget of 4194304 bytes"):
        arena.allocate(3 << 20)
    arena.free(first)
    arena.allocate(4 << 20)
    assert arena.reserved_bytes == 4 << 20


def test_what_is_not_live_cannot_be_freed() -> None:
    arena = Arena()
    address = arena.allocate(64)
    arena.free(address)
    with pytest.raises(KeyError):
        arena.free(address)


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
    assert [s.nbytes for s in pool.segments()] == [MIN_SEGMENT]
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
    free, pool._arena._free = pool._arena._free, []
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
    pool._arena._free = free
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
