"""Live tensors: all that Python can reach are found, none is kept alive, totals are exact."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator

import pytest
import torch
from in_threads import run_in_threads

from memprof.profiler.model import SnapshotKind
from memprof.profiler.sources.process import tensors as tensors_module
from memprof.profiler.sources.process.operations import OperationLog
from memprof.profiler.sources.process.recorder import take_snapshot
from memprof.profiler.sources.process.settings import TrackerSettings
from memprof.profiler.sources.process.tensors import LiveTensors


@pytest.fixture
def live() -> Iterator[LiveTensors]:
    gc.collect()  # Cycles that other tests left would die during a test.
    found = LiveTensors(top=3)
    found.watch()
    found.scan()
    yield found
    found.unwatch()


def truth() -> tuple[int, int]:
    """Bytes of distinct storages and number of all Python tensors."""
    gc.collect()
    tensors = [o for o in gc.get_objects() if isinstance(o, torch.Tensor)]
    tensors = [t for t in tensors if type(t) in (torch.Tensor, torch.nn.Parameter)]
    tensors = [t for t in tensors if t.layout is torch.strided and t.device.type != "meta"]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values()), len(tensors)


def grown(live: LiveTensors, before: tuple[int, int]) -> tuple[int, int]:
    live.look()
    nbytes, tensors = live.sums()
    return nbytes - before[0], tensors - before[1]


def recheck_all(live: LiveTensors) -> None:
    """One call reads some tensors in turn, and other tests may have left many."""
    live._to_recheck.clear()
    live.recheck()
    while live._to_recheck:
        live.recheck()


def test_new_tensors_are_found_and_dead_ones_forgotten_and_views_share_a_storage(
    live: LiveTensors,
) -> None:
    live.look()
    before = live.sums()
    base = torch.nn.Parameter(torch.empty(100))
    views = [base[i] for i in range(5)]
    assert grown(live, before) == (400, 6)
    del base  # which its views keep alive
    assert grown(live, before) == (400, 6)
    del views[1:]
    assert grown(live, before) == (400, 2)
    views.clear()
    assert grown(live, before) == (0, 0)


def test_nothing_is_kept_alive(live: LiveTensors) -> None:
    # The lists of objects that are looked through once held one another: a cycle, and every
    # tensor in it lived until the next collection.
    gc.disable()
    try:
        for _ in range(3):
            tensor = torch.empty(10)
            dead = weakref.ref(tensor)
            live.look()
            live.recheck()
            live.largest()
            live.scan()
            del tensor
            assert dead() is None
    finally:
        gc.enable()


def test_a_training_step_leaves_what_python_says(live: LiveTensors) -> None:
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])
    optimizer = torch.optim.AdamW(model.parameters())
    loss = None
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 16)).sum()
        live.look()
        loss.backward()
        optimizer.step()
    expected = truth()  # Collects: cycles that other tests left behind die now, not later.
    live.look()
    assert live.sums() == expected
    assert loss is not None


def test_automatic_collections_lose_nothing(live: LiveTensors) -> None:
    # GIVEN many allocations, so that the collector runs by itself in all generations
    kept = []
    for i in range(20_000):
        kept.append((torch.empty(1), [i], {"i": i}))
    live.look()
    assert live.sums() == truth()


def test_without_watching_they_are_lost_until_a_scan() -> None:
    gc.collect()  # Cycles that other tests left are not to die below.
    live = LiveTensors()
    live.scan()
    live.look()
    before = live.sums()
    kept = torch.empty(100)
    gc.collect()
    assert grown(live, before) == (0, 0)
    live.scan()
    assert grown(live, before) == (400, 1)
    del kept


def test_resized_and_exchanged_storages_are_read_again(live: LiveTensors) -> None:
    live.look()
    before = live.sums()
    a, b = torch.empty(100), torch.empty(10)
    assert grown(live, before) == (440, 2)
    a.untyped_storage().resize_(0)
    recheck_all(live)
    assert grown(live, before) == (40, 2)
    b.data = torch.empty(50)
    recheck_all(live)
    assert grown(live, before) == (200, 2)
    a.untyped_storage().resize_(4000)
    recheck_all(live)
    assert grown(live, before) == (4200, 2)


def test_a_thousand_at_a_time_all_are_read_again(live: LiveTensors) -> None:
    kept = [torch.empty(1) for _ in range(2500)]
    live.look()
    before = live.sums()
    for t in kept:
        t.untyped_storage().resize_(8)
    for _ in range(8):
        live.recheck()
    assert grown(live, before) == (2500 * 4, 0)


def test_the_largest(live: LiveTensors) -> None:
    kept = [torch.empty(10_000_000 + i, device="cpu") for i in (3, 1, 2, 5, 4)]
    live.look()
    assert [s.nbytes for s in live.largest()] == [40_000_020, 40_000_016, 40_000_012]
    wanted = (kept[3], kept[4], kept[0])
    assert all(s.tensor() is t for s, t in zip(live.largest(), wanted, strict=True))
    del wanted
    del kept[3]
    live.look()
    assert [s.nbytes for s in live.largest()] == [40_000_016, 40_000_012, 40_000_008]


def test_the_largest_of_very_many_of_one_size(live: LiveTensors) -> None:
    kept = [torch.empty(1 << 18) for _ in range(300)]
    live.look()
    assert [s.nbytes for s in live.largest()] == [1 << 20] * 3
    more = torch.empty(1 << 20)
    live.look()
    assert live.largest()[0].nbytes == 1 << 22
    kept.clear()
    live.look()
    assert live.largest()[0].tensor() is more


def test_what_has_no_storage_is_left_out(live: LiveTensors) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    live.look()
    before = live.sums()
    sparse = torch.eye(3).to_sparse()
    meta = torch.empty(1000, device="meta")
    with FakeTensorMode():
        fake = torch.empty(1000)
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    nbytes, _ = grown(live, before)
    # The parts that the wrapper holds count: values (5 floats), offsets (3 integers).
    assert nbytes == 5 * 4 + 3 * 8
    del sparse, meta, fake, jagged


class Loud(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        Loud.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_subclasses_are_counted_without_running_their_code(live: LiveTensors) -> None:
    live.look()
    before = live.sums()
    loud = torch.empty(100).as_subclass(Loud)
    Loud.calls = 0
    assert grown(live, before)[0] == 400
    live.recheck()
    assert Loud.calls == 0
    del loud


def evil(name: str) -> type[torch.Tensor]:
    """A subclass whose property or method ``name`` raises, once it is told to."""

    def refuses(tensor: torch.Tensor) -> None:
        raise KeyError("not now")

    return type("Evil", (torch.Tensor,), {name: property(refuses)})


@pytest.mark.parametrize("name", ["device", "untyped_storage", "__class__", "shape", "dtype"])
def test_subclasses_that_raise_cost_nobody_else(live: LiveTensors, name: str) -> None:
    live.look()
    before = live.sums()
    # Not as_subclass(), whose result has a base that keeps the storage known.
    bad = torch.Tensor._make_subclass(evil(name), torch.empty(1 << 20))
    good = torch.empty(100)
    expected = (4 << 20) + 400 if name in ("shape", "dtype") else 400
    assert grown(live, before)[0] == expected
    # AND one that was counted before it raised
    kind = type("Later", (torch.Tensor,), {})
    later = torch.Tensor._make_subclass(kind, torch.empty(100))
    assert grown(live, before)[0] == expected + 400
    if name != "__class__":
        setattr(kind, name, evil(name).__dict__[name])
    recheck_all(live)
    assert grown(live, before)[0] == expected + 400
    # AND a snapshot has the others
    live._top, said = 10_000, list[str]()
    log = OperationLog(live, TrackerSettings(), itertools.count().__next__, said.append)
    taken = take_snapshot(log, SnapshotKind.CHECKPOINT, "")
    sizes = [t.nbytes for t in taken.largest]
    assert ((4 << 20) in sizes) == (expected > 400)
    # (tensors of other tests may be there, and refuse as well)
    assert said or name not in ("shape", "dtype")
    del bad, good, later


def test_too_many_young_objects_are_left_to_the_collector(
    live: LiveTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors_module, "MAX_YOUNG", 2_000)
    gc.collect()
    live.look()
    before = live.sums()
    gc.disable()
    try:
        kept = torch.empty(100)
        many = [[i] for i in range(3_000)]
        assert live.look() is False
        assert live.sums() == before
        gc.collect(1)
        assert live.look() is True
        assert live.sums() == (before[0] + 400, before[1] + 1)
    finally:
        gc.enable()
    del kept, many


def test_tensors_of_other_threads(live: LiveTensors) -> None:
    import threading

    live.look()
    before = live.sums()
    kept: list[torch.Tensor] = []
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for i in range(500):
            kept.append(torch.empty(i % 7 + 1))
            if i % 50 == 0:
                live.look()

    run_in_threads(*4 * [work])
    wanted = sum(t.untyped_storage().nbytes() for t in kept)
    assert grown(live, before) == (wanted, 2000)
    kept.clear()
    assert grown(live, before) == (0, 0)


def test_what_waits_for_the_next_look_is_bounded(
    live: LiveTensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors_module, "MAX_QUEUED", 4)
    live.look()
    before = live.sums()
    kept = []
    for _ in range(50):  # collections, and no look in between
        kept.append(torch.ones(10))
        dying = [torch.ones(10) for _ in range(10)]
        live._on_collection("start", {"generation": 1})
        del dying
    assert len(live._found) <= 5
    assert sum(map(len, live._found)) <= 50 + 5 * (10 + 50)
    assert grown(live, before) == (50 * 40, 50)


def test_many_that_die_at_once(live: LiveTensors) -> None:
    live.look()
    before = live.sums()
    kept = [torch.ones(i % 7 + 1) for i in range(2_000)]
    views = [t.detach() for t in kept[:100]]
    live.scan()
    del kept
    assert grown(live, before) == (sum(4 * (i % 7 + 1) for i in range(100)), 100)
    assert all(s.nbytes for s in live.largest())
    del views
    assert grown(live, before) == (0, 0)
    assert len(live._storages) <= before[1]


def test_the_second_generation_is_looked_through_when_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # GIVEN a look, no collection since, and a collector that comes when it is told
    gc.collect()
    gc.disable()
    found = LiveTensors()
    found.watch()
    looked: list[int] = []
    real = gc.get_objects

    def noted(generation: int) -> list[object]:
        looked.append(generation)
        return real(generation)

    monkeypatch.setattr(gc, "get_objects", noted)
    try:
        found.look()
        before = found.sums()
        looked.clear()
        kept = [torch.empty(1000)]
        found.look()
        # THEN the next look takes the first generation alone
        assert looked == [0]
        assert found.sums() == (before[0] + 4000, before[1] + 1)
        # WHEN a collection has moved a new one to the second
        kept.append(torch.empty(1000))
        gc.collect(0)
        looked.clear()
        found.look()
        assert looked == list(tensors_module._YOUNG)
        assert found.sums() == (before[0] + 8000, before[1] + 2)

        # AND when one comes while it looks
        def late(generation: int) -> list[object]:
            monkeypatch.setattr(gc, "get_objects", noted)
            kept.append(torch.empty(1000))
            gc.collect(0)
            return real(generation)

        monkeypatch.setattr(gc, "get_objects", late)
        found.look()
        assert found.sums() == (before[0] + 12000, before[1] + 3)
        # AND nobody watches
        found.unwatch()
        kept.append(torch.empty(1000))
        gc.collect(0)
        found.look()
        assert found.sums() == (before[0] + 16000, before[1] + 4)
    finally:
        gc.enable()
        found.unwatch()


def test_a_tensor_in_the_place_of_one_that_died_is_another_one() -> None:
    # GIVEN a tensor that a look has seen
    found = LiveTensors()
    found.look()
    before = found.sums()
    kept = torch.empty(1000)
    found.look()
    identity = id(kept)
    # WHEN it dies and the next one gets its identity, as CPython gives memory again at once
    for _ in range(100):
        del kept
        kept = torch.empty(500)
        if id(kept) == identity:
            break
    # THEN that is counted for what it is
    found.look()
    assert found.sums() == (before[0] + 2000, before[1] + 1)
