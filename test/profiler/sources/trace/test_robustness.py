"""Traces that are cut off, odd or contradictory: no assertion, sensible output."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from counting import lines_run
from framing import findings
from rendering import render_text

import memprof.profiler as ours
from memprof.profiler.model import Category, Profile
from memprof.profiler.sources.trace import data_flow_device, profile_memory
from memprof.profiler.sources.trace.categories import CATEGORIES, ORDER
from memprof.profiler.sources.trace.to_model import (
    by_category,
    data_flow_columns,
    frames,
    live_rows,
    storages_at,
)
from memprof.profiler.torch_names import Action
from memprof.profiler.views.report import summarize

from .fake_trace import (
    Event,
    PyCall,
    Result,
    Tensor,
    alloc,
    fakes,  # noqa: F401
    node,
    op,
)
from .models import at_peak, mlp, optimizer, profiled, train


def entries(profile: ours.DataFlowProfile) -> list[tuple[str, int, int]]:
    t = profile.changes
    return [
        (Action(a).name, int(k), int(n))
        for a, k, n in zip(t.action.tolist(), t.key.tolist(), t.size.tolist(), strict=True)
    ]


def test_an_empty_trace() -> None:
    with profiled() as prof:
        pass
    profile = profile_memory(prof)
    assert len(profile.graph) == 0
    assert profile.devices == []
    with pytest.raises(ValueError, match="no memory events"):
        data_flow_device(profile, "cpu")


def test_what_is_no_result_is_named() -> None:
    with pytest.raises(TypeError, match="an object of type dict is not a profiler result"):
        profile_memory({})
    prof = profiled()
    with pytest.raises(ValueError, match="leave its `with` block"):
        profile_memory(prof)
    with torch.profiler.profile(profile_memory=True) as prof:
        pass
    with pytest.raises(ValueError, match="without record_shapes=True, with_stack=True"):
        profile_memory(prof)


def test_an_unknown_device_is_answered_with_the_known() -> None:
    with profiled() as prof:
        torch.ones(3)
    with pytest.raises(ValueError, match=r"nothing in this trace is on 'cuda:7'; it has \['cpu'\]"):
        data_flow_device(profile_memory(prof), "cuda:7")


def test_a_trace_that_begins_in_the_backward() -> None:
    case = mlp()
    opt = optimizer("adam", case.model)
    train(case, opt, 1)
    loss = case.loss(case.model, case.batch())
    with profiled() as prof:
        loss.backward()
        opt.step()
    profile = profile_memory(prof, modules=case.model, optimizers=opt)
    found = at_peak(profile, "cpu")
    assert found.attributed == found.total > 0
    parameters = sum(p.nbytes for p in case.model.parameters())
    assert {s.key: s.nbytes for s in found.parts}["parameter"] == parameters


def test_a_trace_that_ends_in_the_forward() -> None:
    case = mlp()
    x = case.batch()
    with profiled() as prof:
        loss = case.loss(case.model, x)
    found = at_peak(profile_memory(prof), "cpu")
    # THEN what the forward leaves behind is activations, and the batch an input
    by_name = {s.key: s.nbytes for s in found.parts}
    assert by_name["activation"] >= 16 * (128 + 64 + 10) * 4
    assert by_name["input"] == x.nbytes
    assert by_name["parameter"] == sum(p.nbytes for p in case.model.parameters())
    del loss


def test_forward_only_without_gradients() -> None:
    case = mlp()
    with torch.no_grad(), profiled() as prof:
        case.model(case.batch())
    found = at_peak(profile_memory(prof), "cpu")
    by_name = {s.key: s.nbytes for s in found.parts}
    assert by_name["parameter"] == sum(p.nbytes for p in case.model.parameters())
    assert not found.remainder


def test_zero_size_tensors() -> None:
    empty = torch.empty(0, 5)
    with profiled() as prof:
        torch.cat([empty, torch.ones(2, 5)]) + torch.empty(0, 5).sum()
    profile = profile_memory(prof)
    assert at_peak(profile, "cpu").total < 1000
    assert (profile.storages.size >= 0).all()


def test_freed_before_and_after_the_trace() -> None:
    # GIVEN a process without an earlier trace: the profiler keeps the size of what was allocated in
    # one and freed after it, and reports a release of whatever is at that address in a later one
    me = f"import {__name__} as me; me.freed_before_and_after_the_trace()"
    process = subprocess.run(
        [sys.executable, "-c", me],
        # Not the product's own folders, some of which have the names of these.
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr


def freed_before_and_after_the_trace() -> None:
    before = torch.ones(1024)
    with profiled() as prof:
        before.add_(1)
        kept = before * 2
        del before
    profile = profile_memory(prof)
    assert at_peak(profile, "cpu").total >= 8192
    table = by_category(profile, "cpu")
    assert (table.bytes >= 0).all()
    # The CPU allocator does not report the release of what it did not see allocated, so
    # `before` stays to the end.
    assert int(table.bytes[-1].sum()) == kept.nbytes + 4096


def test_operators_without_a_schema_and_ranges() -> None:
    with (
        profiled() as prof,
        torch.profiler.record_function("not::an operator"),
        torch.profiler.record_function("aten::no_such_operator"),
    ):
        y = torch.ones(64) + 1
    profile = profile_memory(prof)
    names = [profile.columns.names[i] for i in profile.columns.leaves.name.tolist() if i >= 0]
    assert names == ["aten::ones", "aten::add"]
    del y


def test_several_threads() -> None:
    def work() -> None:
        case = mlp()
        train(case, optimizer("adam", case.model), 1)

    with profiled(
        experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    ) as prof:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        work()
        for t in threads:
            t.join()
    profile = profile_memory(prof)
    assert len({thread for _, thread in profile.columns.threads}) >= 2
    # THEN where torch drops the memory events of such a run (pytorch#166121), nothing says what
    # was let go of, so there is no peak, and every view says why
    if len(profile.columns.allocations):
        assert (by_category(profile, "cpu").bytes.sum(axis=1) >= 0).all()
        return
    assert profile.devices == []
    for view in (data_flow_device, by_category):
        with pytest.raises(ValueError, match="it has no memory events, so its peak is not known"):
            view(profile, "cpu")
    flow = data_flow_columns(profile)
    assert not flow.devices
    text = " ".join(render_text(summarize(Profile(dataflow=flow))).split())
    assert "The torch.profiler run has no memory events" in text
    assert "profile_all_threads=True drops them" in text


@pytest.mark.usefixtures("fakes")
class TestContradictions:
    @pytest.mark.parametrize(
        ("trace", "changes"),
        [
            (
                lambda: (
                    op("aten::empty", [], alloc(64, 16, 1, 1)),
                    op("aten::relu", [Tensor(1, 1, 64)], *(alloc(64, -16, 1, 1) for _ in range(2))),
                ),
                ["CREATE", "DESTROY"],
            ),
            (
                lambda: (op("aten::zero_", [Tensor(1, 1, 64)]), alloc(64, 16, 1, 1)),
                ["CREATE", "INCREMENT_VERSION"],
            ),
            (lambda: (alloc(64, 16, 1, 1), alloc(64, 16, 1, 1)), ["CREATE"]),
        ],
        ids=["released twice", "written to before it is allocated", "allocated twice"],
    )
    def test_a_contradiction_is_no_error(
        self, trace: Callable[[], Any], changes: list[str]
    ) -> None:
        profile = profile_memory(Result(*trace()))
        assert [action for action, _, _ in entries(profile)] == changes

    def test_several_devices(self) -> None:
        # GIVEN one storage on each of three devices, the largest on the second GPU
        profile = profile_memory(
            Result(
                alloc(64, 16, 1, 1),
                alloc(64, 512, 2, 2, "cuda:0"),
                alloc(64, 1024, 3, 3, "cuda:1"),
                alloc(64, -512, 2, 2, "cuda:0"),
            )
        )
        assert profile.devices == ["cpu", "cuda:0", "cuda:1"]
        peaks = {d: at_peak(profile, d).total for d in profile.devices}
        assert peaks == {"cpu": 16, "cuda:0": 512, "cuda:1": 1024}

    def test_storages_without_a_tensor(self) -> None:
        # GIVEN scratch within an operator, a release without an allocation, and an address
        # allocated twice
        profile = profile_memory(
            Result(
                op(
                    "aten::mm",
                    [Tensor(8, 8, 8), Tensor(9, 9, 9)],
                    alloc(64, 100),
                    alloc(64, -100),
                ),
                alloc(128, -50),
                alloc(192, 10),
                alloc(192, 20),
            )
        )
        assert entries(profile) == [
            ("PREEXISTING", -1, 50),
            ("PREEXISTING", 0, 16),
            ("PREEXISTING", 1, 16),
            ("CREATE", -1, 100),
            ("DESTROY", -1, 100),
            ("DESTROY", -1, 50),
            ("CREATE", -1, 10),
            ("CREATE", -1, 20),
            ("DESTROY", -1, 10),
        ]
        assert profile.category(profile.storages.keys) is Category.TEMPORARY
        assert at_peak(profile, "cpu").unattributed == 50 + 2 * 16

    def test_what_another_thread_releases_is_released_in_order_of_time(self) -> None:
        # GIVEN a range around all of one thread, and another that releases memory of the first
        # before its address is used again
        main = op("a range", [], alloc(64, 16, start=10), alloc(64, 32, start=30), start=5)
        profile = profile_memory(Result(main, alloc(64, -16, start=20, thread=2)))
        # THEN what is live is so in every view, and never negative
        table = by_category(profile, "cpu")
        assert table.time.tolist() == [10, 20, 30]
        assert table.bytes.sum(axis=1).tolist() == [16, 0, 32]
        for time, nbytes in ((10, 16), (20, 0), (30, 32)):
            assert profile.storages.size[live_rows(profile, 0, time)].sum() == nbytes

    @pytest.mark.parametrize("seed", range(60))
    def test_every_view_of_a_trace_has_the_same_bytes(self, seed: int) -> None:
        # GIVEN two threads that allocate, use and release memory, with and without a tensor, of
        # each other too; the main one is below one range, and some releases go unseen
        random = Random(seed)
        live: dict[int, tuple[int | None, int | None, int]] = {}
        made: Counter[int] = Counter()
        mine: list[Event] = []
        others: list[Event] = []
        for time in range(10, 10 * random.randint(3, 15), 10):
            into, at = (mine, {}) if random.random() < 0.7 else (others, {"thread": 2})
            place = random.choice((64, 128, 192, 256))
            if place not in live:
                size = random.choice((16, 32, 64))
                key = (place + made[place], made[place]) if random.random() < 0.5 else (None, None)
                live[place] = (*key, size)
                into.append(alloc(place, size, *key, start=time, **at))
            elif live[place][0] is not None and random.random() < 0.5:
                name = random.choice(("aten::relu", "aten::relu_", "a range"))
                used = [Tensor(*live[place][:2], place)]
                into.append(random.choice((op, node))(name, used, start=time, **at))
            else:
                *key, size = live.pop(place)
                made[place] += 1
                if key[0] is not None or random.random() < 0.7:
                    into.append(alloc(place, -size, *key, start=time, **at))
        profile = profile_memory(Result(op("a range", [], *mine, start=5), *others))
        # THEN what a file keeps of it agrees with itself,
        columns = data_flow_columns(profile, 0)
        assert findings(Profile(dataflow=columns)) == []
        # and live storages add up to what the table has, at every time
        for device in profile.devices:
            table = by_category(profile, device)
            assert (table.bytes >= 0).all()
            for time, row in zip(table.time.tolist(), table.bytes.tolist(), strict=True):
                found = storages_at(profile, profile.device_index(device), time)
                assert sum(s.nbytes for s in found) == sum(row)

    def test_a_device_on_which_nothing_changes(self) -> None:
        # GIVEN an operator on a GPU that reads a tensor of the CPU from before the trace
        begin = 10**18
        read = op("aten::relu", [Tensor(1, 1, 64)], start=begin)
        profile = profile_memory(Result(read, alloc(64, 8, 2, 2, "cuda:0", start=begin + 7)))
        # THEN it is there from the beginning of the trace, not from 1969
        assert by_category(profile, "cpu").time.tolist() == [begin]
        assert data_flow_device(profile, "cpu").time_ns == [begin]
        (cpu, _) = data_flow_columns(profile, begin).devices
        assert (cpu.time_ns, cpu.live[0].created_ns) == ([0], None)

    def test_the_line_of_an_allocation_after_compiler_frames_that_were_not_looked_at(self) -> None:
        def call(line: int, *below: Event, name: str = "user.py(1): f") -> Event:
            payload = PyCall()
            payload.caller = SimpleNamespace(  # type: ignore[attr-defined]
                file_name="user.py", function_name="f", line_number=line
            )
            return Event(payload, *below, name=name)

        compiler = "torch/_inductor/compile_fx.py(1): compile_fx"
        inside = [op("aten::empty", []) for _ in range(3)]
        roots = [call(1, *inside, name=compiler), call(2, alloc(64, 16)), call(3)]
        profile = profile_memory(Result(*roots))
        assert [f.line for f in frames(profile, [0]).values()] == [2]

    def test_addresses_and_threads_of_64_bits(self) -> None:
        profile = profile_memory(Result(alloc((1 << 63) + 5, 16, 1, 1, thread=(1 << 64) - 1)))
        assert int(profile.columns.keys.ptr[0]) % (1 << 64) == (1 << 63) + 5

    @pytest.mark.parametrize("seed", range(60))
    def test_every_view_of_a_contradictory_trace_has_the_same_bytes(self, seed: int) -> None:
        # GIVEN storages that are allocated, written to and released at random, in any order, by
        # operators that begin before or after
        random = Random(seed)
        events = []
        for _ in range(random.randint(2, 14)):
            key = random.randint(1, 3)
            time = random.randrange(10, 100)
            what = random.choice(("alloc", "free", "write", "read", "two"))
            size = random.choice((16, 32))
            used = [Tensor(key, key, 64 * key)]
            if what == "write":
                events.append(op("aten::relu_", used, start=time))
            elif what == "read":
                events.append(random.choice((op, node))("aten::relu", used, start=time))
            elif what == "two":
                inside = [alloc(64 * key, n, key, key, start=time + 1) for n in (-size, size)]
                random.shuffle(inside)
                events.append(op("aten::mm", used, *inside, start=time))
            else:
                sign = 1 if what == "alloc" else -1
                events.append(alloc(64 * key, sign * size, key, key, start=time))
        profile = profile_memory(Result(*events))
        # THEN what a file keeps of it agrees with itself,
        assert findings(Profile(dataflow=data_flow_columns(profile, 0))) == []
        # and live storages add up to what the table has, at every time, category by category
        for device in profile.devices:
            table = by_category(profile, device)
            assert (table.bytes >= 0).all()
            # What was there before has the time of the first change; that comes last.
            last = dict(zip(table.time.tolist(), table.bytes.tolist(), strict=True))
            for time, row in last.items():
                found = storages_at(profile, profile.device_index(device), time)
                sums: Counter[int] = Counter()
                for s in found:
                    sums[ORDER.index(CATEGORIES.index(s.category))] += s.nbytes
                assert [sums[i] for i in range(len(ORDER))] == row

    def test_work_is_in_proportion_to_events(self) -> None:
        def lines(n: int) -> int:
            roots = []
            for i in range(n):
                t = Tensor(i, i, 64)
                roots.append(op("aten::relu_", [t], alloc(64, 16, i, i), start=3 * i))
                roots.append(alloc(64, -16, i, i, start=3 * i + 1))
            profiles: list[ours.DataFlowProfile] = []
            count = lines_run(lambda: profiles.append(profile_memory(Result(*roots))))
            assert profiles[0].columns.events == 3 * n
            return count

        small, large = lines(250), lines(2_000)
        assert large < 9 * small

    def test_a_node_of_the_backward_is_a_leaf(self) -> None:
        g = Tensor(1, 1, 64)
        profile = profile_memory(
            Result(
                node(
                    "torch::autograd::AccumulateGrad",
                    [g],
                    op("aten::detach", [g]),
                )
            )
        )
        assert profile.graph.backward.tolist() == [True]
        assert profile.category(0, 0) is Category.GRADIENT


def test_tensors_without_a_storage_of_their_own() -> None:
    # Gradients of this embedding are sparse; the linear layer has no weights yet.
    model = torch.nn.ModuleDict(
        {"words": torch.nn.Embedding(10, 4, sparse=True), "later": torch.nn.LazyLinear(3)}
    )
    words = model["words"]
    opt = torch.optim.SparseAdam(words.parameters())
    with profiled() as prof:
        words(torch.tensor([1, 2])).sum().backward()
        opt.step()
    profile = profile_memory(prof, modules=model, optimizers=opt)
    ptr = words.weight.untyped_storage().data_ptr()
    (key,) = [k for k, p in enumerate(profile.columns.keys.ptr.tolist()) if p == ptr]
    assert profile.category(key) is Category.PARAMETER
