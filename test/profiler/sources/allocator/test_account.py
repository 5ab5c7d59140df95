"""What a block is for, by when it was there; and that a peak's parts add up."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from memprof.profiler.model import Category, DeviceAccount, Held, SourceFrame as Frame
from memprof.profiler.sources.allocator.account import add_history_notes, explain, of_distributed
from memprof.profiler.sources.allocator.history import AllocatorHistory
from memprof.profiler.sources.allocator.marks import Mark, Phase
from memprof.profiler.sources.allocator.where import where

MIB = 1 << 20
SITE = "/env/lib/python3.11/site-packages"


def frames(*lines: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [{"filename": f, "line": n, "name": name} for f, n, name in lines]


class Run:
    """A run with one segment: blocks are asked for and let go of, marks set in between."""

    def __init__(self) -> None:
        self.marks = [Mark(Phase.FORWARD, 0)]
        self.events: list[dict[str, Any]] = [
            {"action": "segment_alloc", "addr": 0, "size": 1024 * MIB, "stream": 0}
        ]
        self.asked = self.let_go = 0
        self.at = 0
        self.live: dict[int, int] = {}

    def take(self, mib: int, *program: tuple[str, int, str]) -> int:
        address = self.at
        self.at += mib * MIB
        self.live[address] = mib * MIB
        self.asked += 1
        event = {"action": "alloc", "addr": address, "size": mib * MIB, "stream": 0}
        self.events.append({**event, "frames": frames(*program)})
        return address

    def drop(self, address: int) -> None:
        self.let_go += 1
        del self.live[address]
        # What is free at the end is one range, of which the next block is the beginning.
        self.at = max((a + n for a, n in self.live.items()), default=0)
        for action in ("free_requested", "free_completed"):
            self.events.append({"action": action, "addr": address, "size": 0, "stream": 0})

    def mark(self, phase: Phase, step: int = 0, **known: int) -> None:
        by_address = {address: Category(name) for name, address in known.items()}
        self.say(Mark(phase, step, by_address))

    def say(self, mark: Mark) -> None:
        mark.counts = {0: (self.asked, self.let_go)}
        self.marks.append(mark)

    def categories(
        self,
        cut_off: bool = False,
        workspaces: Collection[int] = (),
        transient_workspaces: Collection[int] = (),
    ) -> dict[int, tuple[Category, str]]:
        """By MiB of all blocks of one category and place, which each test makes tell apart."""
        rows = self.rows(cut_off, workspaces, transient_workspaces)
        return {r.nbytes // MIB: (r.category, r.detail) for r in rows}

    def rows(
        self,
        cut_off: bool = False,
        workspaces: Collection[int] = (),
        transient_workspaces: Collection[int] = (),
    ) -> list[Held]:
        replay = AllocatorHistory()
        replay.feed(self.events, self.marks)
        found = DeviceAccount("cuda:0", reserved=replay.peak.reserved)
        explain(
            *(found, replay.peak, self.marks),
            cut_off=cut_off,
            is_workspace=lambda b: b.address in workspaces,
            transient_workspaces=transient_workspaces,
        )
        assert not found.unexplained
        return found.rows


@pytest.fixture
def model_file(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text("class Net:\n    def forward(self, x):\n        return x\n")
    return str(path)


def test_every_purpose_at_one_instant(model_file: str) -> None:
    """A training step, with the peak inside of the backward."""
    forward = (model_file, 3, "forward")
    script = ("/home/me/train.py", 10, "<module>")
    run = Run()
    weight = run.take(1, script)
    momentum = run.take(2, script)
    run.mark(Phase.FORWARD, parameter=weight, optimizer_state=momentum)
    run.take(3, script)
    saved = run.take(4, forward, script)
    run.take(5, forward, script)
    run.mark(Phase.BACKWARD)
    gradient = run.take(6)
    recomputed = run.take(
        7, forward, (f"{SITE}/torch/utils/checkpoint.py", 5, "recompute_fn"), script
    )
    gathered = run.take(8, (f"{FSDP2}/_fsdp_param.py", 9, "alloc_all_gather_outputs"))
    reduced = run.take(9, (f"{FSDP2}/_fsdp_collectives.py", 9, "foreach_reduce"))
    scratch = run.take(10)
    for address in (saved, recomputed, gathered, reduced, scratch):
        run.drop(address)
    run.mark(Phase.FORWARD)
    run.mark(Phase.OPTIMIZER, gradient=gradient)
    assert run.categories() == {
        1: (Category.PARAMETER, ""),
        2: (Category.OPTIMIZER_STATE, ""),
        3: (Category.INPUT, ""),
        4: (Category.ACTIVATION, ""),
        5: (Category.OUTPUT, ""),
        6: (Category.GRADIENT, ""),
        7: (Category.ACTIVATION, "recomputed"),
        8: (Category.PARAMETER, "all-gathered by FSDP"),
        9: (Category.COMMUNICATION_BUFFER, "reduce-scatter of FSDP"),
        10: (Category.TEMPORARY, ""),
    }


def test_free_memory_is_said_by_segments_that_have_some_and_by_pool() -> None:
    """Segments of 2, 3 and 5 MiB, of which the first is full, were all given back after the peak,
    before anybody asked for their pools; the history of newer torch has these itself."""

    def parts(**pool: Any) -> list[tuple[str, int]]:
        replay = AllocatorHistory()
        for at, mib in ((0, 2), (10, 3), (20, 5)):
            event = {"addr": at * MIB, "size": mib * MIB, "stream": 0, **pool}
            asked = {**event, "size": 2 * MIB}
            replay.feed([{**event, "action": "segment_alloc"}, {**asked, "action": "alloc"}])
        gone = [{"action": "segment_free", "addr": 20 * MIB, "size": 5 * MIB, "stream": 0}]
        for address in (0, 10 * MIB, 20 * MIB):
            gone[:0] = [
                {"action": action, "addr": address, "size": 2 * MIB, "stream": 0}
                for action in ("free_requested", "free_completed")
            ]
        replay.feed(gone)
        account = DeviceAccount("cuda:0", reserved=replay.peak.reserved)
        explain(account, replay.peak, [Mark(Phase.FORWARD, 0)])
        assert account.pools[0].segments == 3
        return [(words, n) for _, words, n in account.other_parts() if n]

    # 3 MiB of 5 are cut off; 1 MiB of 3 is of no use, and so stays with the block.
    rounding = ("rounding: blocks are larger than what was asked for", MIB)
    assert parts() == [rounding, ("free inside 1 segment, given back later", 3 * MIB)]
    assert parts(pool_id=(0, 0)) == [rounding, ("free inside 1 segment", 3 * MIB)]
    assert parts(pool_id=(0, 7)) == [
        rounding,
        ("free inside 1 segment of pool private 0,7", 3 * MIB),
    ]


def test_what_an_address_held_earlier_does_not_count() -> None:
    """A block at the address of a parameter that is gone is not that parameter."""
    run = Run()
    first = run.take(3)
    run.mark(Phase.FORWARD, parameter=first)
    run.drop(first)
    assert run.take(4) == first
    assert run.categories() == {4: (Category.INPUT, "")}


def test_what_was_there_before_anybody_watched() -> None:
    def block(at: int, mib: int) -> dict[str, Any]:
        size = mib * MIB
        found = {"address": at * MIB, "requested_size": size, "size": size, "frames": []}
        return {**found, "state": "active_allocated"}

    blocks = [block(0, 2), block(2, 3)]
    replay = AllocatorHistory()
    replay.take_over([{"address": 0, "total_size": 5 * MIB, "blocks": blocks}])
    marks = [Mark(Phase.FORWARD, 0), Mark(Phase.FORWARD, 0, {0: Category.PARAMETER})]
    found = DeviceAccount("cuda:0")
    replay.feed((), marks)
    explain(found, replay.peak, marks)
    assert {r.nbytes // MIB: (r.category, r.detail) for r in found.rows} == {
        2: (Category.PARAMETER, "from before the session"),
        3: (Category.UNKNOWN, "from before the session"),
    }


def test_inference_keeps_its_state(model_file: str) -> None:
    forward = (model_file, 3, "forward")
    run = Run()
    run.take(2, ("/home/me/serve.py", 1, "main"))
    run.take(3, forward)
    run.drop(run.take(5, forward))
    workspace = run.take(6, forward)
    run.say(Mark(Phase.FORWARD, 0, clears=True))
    run.drop(workspace)
    assert run.categories() == {
        2: (Category.INPUT, ""),
        3: (Category.PERSISTENT_STATE, ""),
        6: (Category.WORKSPACE, "cuBLAS"),
    }


def test_activations_of_a_run_that_ended_in_its_forward(model_file: str) -> None:
    run = Run()
    run.mark(Phase.BACKWARD)
    run.mark(Phase.FORWARD, step=1)
    run.take(3, (model_file, 3, "forward"))
    assert run.categories(cut_off=True) == {3: (Category.ACTIVATION, "")}
    assert run.categories() == {3: (Category.OUTPUT, "")}


def test_activations_of_a_training_that_ended_before_its_first_backward(model_file: str) -> None:
    run = Run()
    forward = (model_file, 3, "forward")
    run.take(1, ("/home/me/data.py", 1, "load"))
    run.take(2, forward)
    scratch = run.take(4, forward)
    run.take(8, forward)
    run.say(Mark(Phase.FORWARD, 0, checkpointed=frozenset({scratch})))
    run.drop(scratch)
    assert run.categories(cut_off=True) == {
        1: (Category.INPUT, ""),
        4: (Category.TEMPORARY, ""),
        10: (Category.ACTIVATION, ""),
    }
    # Of one that does not train nobody can say so: it was seen whole.
    assert run.categories()[10] == (Category.PERSISTENT_STATE, "")


_CHECKPOINT = f"{SITE}/torch/utils/checkpoint.py"
_MODULE = (f"{SITE}/torch/nn/modules/module.py", 5, "_call_impl")
_ENGINE = (f"{SITE}/torch/autograd/graph.py", 5, "_engine_run_backward")
_BY_HAND = ("/home/me/random.py", 7, "backward")
_TRAIN = ("/home/me/train.py", 10, "<module>")


@pytest.mark.parametrize(
    ("program", "again"),
    [
        # What a checkpoint runs again: on autograd's thread, or inside of the backward of a
        # reentrant one, which begins another; and one by hand, as frameworks have it.
        ([_MODULE, (_CHECKPOINT, 5, "unpack_hook")], True),
        ([_MODULE, (_CHECKPOINT, 5, "unpack_hook"), _ENGINE, _TRAIN], True),
        ([(_CHECKPOINT, 5, "backward"), _ENGINE, _TRAIN], True),
        ([_MODULE, _BY_HAND, _ENGINE, _TRAIN], True),
        # What these backwards ask for themselves.
        ([], False),
        ([_ENGINE, _TRAIN], False),
        ([_ENGINE, (_CHECKPOINT, 5, "backward"), _ENGINE, _TRAIN], False),
        ([_BY_HAND, _ENGINE, _MODULE, _TRAIN], False),
    ],
)
def test_what_a_backward_computes_again_is_no_gradient(
    program: list[tuple[str, int, str]], again: bool, model_file: str
) -> None:
    """Nor a temporary; whether it goes within the backward or leaks."""
    program = [(model_file, 3, "forward"), *program] if again else program
    run = Run()
    run.mark(Phase.BACKWARD)
    run.drop(run.take(1, *program))
    run.mark(Phase.FORWARD)
    temporary = (Category.ACTIVATION, "recomputed") if again else (Category.TEMPORARY, "")
    assert run.categories() == {1: temporary}
    run.take(2, *program)
    run.events[-1]["addr"], run.marks[-1].counts = 0, {0: (2, 1)}
    gradient = (Category.ACTIVATION, "recomputed") if again else (Category.GRADIENT, "")
    assert run.categories() == {2: gradient}


def test_what_is_kept_for_the_backward_of_a_gradient_is_an_activation() -> None:
    """``backward(create_graph=True)``: what goes in a later backward was saved for it."""
    run = Run()
    run.mark(Phase.BACKWARD)
    saved, gradient = run.take(1), run.take(2)
    run.mark(Phase.FORWARD)
    run.mark(Phase.BACKWARD)
    run.drop(saved)
    run.mark(Phase.FORWARD)
    run.mark(Phase.OPTIMIZER, step=1)
    run.drop(gradient)
    assert run.categories() == {1: (Category.ACTIVATION, ""), 2: (Category.GRADIENT, "")}


@given(st.integers(0, 1 << 30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_failure_and_the_run_have_one_account_of_one_instant(model_file: str, seed: int) -> None:
    """A program of random forwards, backwards and steps in which a request fails; it is cut off
    there, or lets go of everything and goes on."""
    rnd = random.Random(seed)
    forward = (model_file, 3, "forward")
    programs = {
        Phase.FORWARD: [[_TRAIN], [forward, _TRAIN], [forward, (_CHECKPOINT, 5, "f"), _TRAIN]],
        Phase.BACKWARD: [[], [_ENGINE, _TRAIN], [forward, (_CHECKPOINT, 5, "f")]],
        Phase.OPTIMIZER: [[_TRAIN]],
    }
    run = Run()
    run.events[0]["size"] = 1 << 50
    weight = run.take(1, _TRAIN)
    parameter = {weight: Category.PARAMETER}
    run.say(Mark(Phase.FORWARD, 0, parameter))
    sizes = itertools.count(2)
    gradients: list[int] = []

    def phase() -> None:
        """What runs asks for blocks, and lets go of some that are there."""
        for _ in range(rnd.randrange(4)):
            run.take(next(sizes), *rnd.choice(programs[run.marks[-1].phase]))
            if rnd.random() < 0.4:
                run.drop(rnd.choice([a for a in run.live if a not in (weight, *gradients)]))

    def steps(most: int) -> Iterator[None]:
        for _ in range(most):
            yield phase()
            run.mark(Phase.BACKWARD)
            yield phase()
            gradients[:] = [run.take(next(sizes))]
            run.say(Mark(Phase.FORWARD, 0, parameter | {gradients[0]: Category.GRADIENT}))
            yield phase()
            run.mark(Phase.OPTIMIZER)
            yield phase()
            run.mark(Phase.FORWARD)

    rest = steps(4)
    for _ in range(rnd.randrange(1, 12)):
        next(rest)
    # WHEN a request fails
    run.events.append({"action": "oom", "size": 1 << 40, "stream": 0})
    now = len(run.events)
    replay = AllocatorHistory()
    replay.feed(run.events, run.marks)
    instant = replay.now()

    def account(**how: Any) -> Counter[Category]:
        found = DeviceAccount("cuda:0")
        explain(found, instant, run.marks, **how)
        return Counter(found.by_category())

    told = account(cut_off=True, now=True, holder_of=lambda block: (Category.TENSOR, "x"))
    # THEN what is said at once is what is said at the end, whatever the program does
    caught = rnd.random() < 0.5
    raised = run.marks[-1].phase is Phase.BACKWARD
    goes = [a for a in run.live if a not in (weight, *gradients)]
    for address in goes if caught else rnd.sample(goes, rnd.randrange(len(goes) + 1)):
        if raised and rnd.random() < 0.3:
            run.say(Mark(Phase.FORWARD, 0, cut=True))
            raised = False
        run.drop(address)
    if raised:
        run.say(Mark(Phase.FORWARD, 0, cut=True))
    if caught:
        for _ in steps(2):
            pass
    replay.feed(run.events[now:], run.marks)
    assert account(cut_off=not caught) == told


def test_where_names_line_modules_and_nodes(tmp_path: Path, model_file: str) -> None:
    generated = tmp_path / ("c" + "a" * 51 + ".py")
    generated.write_text(
        "def call(args):\n"
        "    buf0 = empty_strided_cuda((4,), (1,), torch.float32)\n"
        "    buf1 = empty_strided_cuda((4,), (1,), torch.float32)\n"
        "    # Topologically Sorted Source Nodes: [y, z], Original ATen: [aten.add, aten.mul]\n"
        "    stream0 = get_raw_stream(0)\n"
        "    triton_poi.run(arg0, buf1, 4, stream=stream0)\n"
        "    # Topologically Sorted Source Nodes: [w], Original ATen: [aten.mm]\n"
        "    extern_kernels.mm(buf1, arg1, out=buf0)\n"
    )
    stack = (
        Frame(str(generated), 2, "call"),
        Frame(model_file, 3, "forward"),
        Frame(f"{SITE}/torch/_inductor/utils.py", 9, "run"),
        Frame("/home/me/train.py", 4, "main"),
    )
    found = where(stack)
    assert found.line == Frame(model_file, 3, "forward")
    assert found.modules == ("Net",)
    assert found.generated == stack[0]
    assert found.nodes == "w (aten.mm)"
    assert where((Frame(str(generated), 3, "call"),)).nodes == "y, z (aten.add, aten.mul)"
    assert where(()).line is None


def test_what_is_written_to_is_state_whenever_that_is_seen() -> None:
    """At the first look it is a buffer like any other."""
    run = Run()
    cache, constant = run.take(1), run.take(2)
    run.say(Mark(Phase.FORWARD, 0, {cache: Category.PARAMETER, constant: Category.PARAMETER}))
    run.take(4)
    run.mark(Phase.FORWARD, persistent_state=cache)
    assert run.categories() == {
        1: (Category.PERSISTENT_STATE, ""),
        2: (Category.PARAMETER, ""),
        4: (Category.INPUT, ""),
    }


def test_compiled_code_of_several_modules() -> None:
    """A whole model in one graph: no module is that of a buffer, and it is no input."""
    generated = ("/tmp/inductor/ab/c" + "a" * 51 + ".py", 3, "call")
    step = ("/home/me/train.py", 1, "step")
    for backward in (False, True):
        run = Run()
        run.take(1, step)
        buffer = run.take(2, generated, step)
        run.take(4, generated, step)
        run.drop(buffer)
        if backward:
            run.mark(Phase.BACKWARD)
            run.mark(Phase.FORWARD)
        assert run.categories() == {
            1: (Category.INPUT, ""),
            2: (Category.TEMPORARY, ""),
            4: (Category.OUTPUT, ""),
        }, backward
    run = Run()
    run.drop(run.take(4, generated, step))
    assert run.categories() == {4: (Category.TEMPORARY, "")}


def test_workspaces_that_stay_in_somebodys_program() -> None:
    run = Run()
    workspace = run.take(32, ("/home/me/train.py", 1, "step"))
    gone = run.take(33, ("/home/me/train.py", 1, "step"))
    run.drop(gone)
    assert run.categories(workspaces=[workspace])[32] == (Category.WORKSPACE, "cuBLAS")
    # Another block that lay at the address of one and is gone is none.
    assert run.categories(workspaces=[workspace, gone])[33] == (Category.INPUT, "")


def test_workspaces_that_go_with_their_operation() -> None:
    """As from torch 2.15 on; what lives while something else is asked for is none."""
    program = ("/home/me/train.py", 1, "step")
    run = Run()
    run.mark(Phase.BACKWARD)
    run.drop(run.take(32, program))
    run.mark(Phase.FORWARD)
    assert run.categories(transient_workspaces={32 * MIB}) == {32: (Category.WORKSPACE, "cuBLAS")}
    assert run.categories(transient_workspaces={33 * MIB}) == {32: (Category.TEMPORARY, "")}

    run = Run()
    temporary = run.take(32, program)
    run.drop(run.take(1, program))
    run.drop(temporary)
    assert run.categories(transient_workspaces={32 * MIB}) == {33: (Category.INPUT, "")}


def test_what_is_handed_to_a_checkpointed_function(model_file: str) -> None:
    forward = (model_file, 3, "forward")
    run = Run()
    earlier = run.take(1, forward)
    run.say(Mark(Phase.FORWARD, 0, checkpointed=frozenset({earlier})))
    run.drop(earlier)
    saved = run.take(2, forward)  # at the same address
    assert saved == earlier
    inputs = run.take(4, forward)
    scratch = run.take(8, forward)
    run.say(Mark(Phase.FORWARD, 0, checkpointed=frozenset({inputs, scratch})))
    run.drop(scratch)
    run.take(16, ("/home/me/data.py", 1, "load"))
    run.mark(Phase.BACKWARD)
    run.drop(inputs)
    run.drop(saved)
    run.mark(Phase.FORWARD, step=1)
    found = run.categories()
    assert found[4] == (Category.CHECKPOINTED_INPUT, "")
    assert found[2] == (Category.ACTIVATION, "")
    assert found[16] == (Category.INPUT, "")


def test_a_block_of_a_backward_has_the_line_that_waits_for_it(model_file: str) -> None:
    calls = Frame("/home/me/train.py", 7, "step")
    run = Run()
    run.say(Mark(Phase.BACKWARD, 0, line=calls))
    run.take(1)
    run.take(2, (model_file, 3, "forward"))  # a hook of the program's
    run.mark(Phase.FORWARD)
    run.take(4)
    lines = {r.nbytes // MIB: (r.frame, r.waits) for r in run.rows()}
    assert lines[1] == (calls, True)
    frame, waits = lines[2]
    assert frame is not None
    assert frame.file == model_file
    assert not waits
    assert lines[4] == (None, False)


FSDP2 = f"{SITE}/torch/distributed/fsdp/_fully_shard"
FSDP1 = f"{SITE}/torch/distributed/fsdp"
DDP = f"{SITE}/torch/nn/parallel/distributed.py"
BUFFER = Category.COMMUNICATION_BUFFER


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ([("_fsdp_collectives.py", "foreach_all_gather")], (BUFFER, "all-gather of FSDP")),
        (
            [("_fsdp_collectives.py", "allocate"), ("_fsdp_collectives.py", "foreach_all_gather")],
            (BUFFER, "all-gather of FSDP"),
        ),
        (
            [("_fsdp_collectives.py", "allocate"), ("_fsdp_collectives.py", "foreach_reduce")],
            (BUFFER, "reduce-scatter of FSDP"),
        ),
        (
            [
                ("_fsdp_param.py", "alloc_all_gather_outputs"),
                ("_fsdp_collectives.py", "foreach_all_gather_copy_out"),
            ],
            (Category.PARAMETER, "all-gathered by FSDP"),
        ),
    ],
)
def test_buffers_of_fsdp2(stack: list[tuple[str, str]], expected: tuple[Category, str]) -> None:
    frames = [Frame(f"{FSDP2}/{file}", 1, function) for file, function in stack]
    assert of_distributed([*frames, Frame("/home/me/train.py", 1, "main")]) == expected


def test_buffers_of_fsdp1_and_ddp() -> None:
    def of(file: str, function: str) -> tuple[Category, str] | None:
        return of_distributed([Frame(file, 1, function), Frame("/home/me/train.py", 1, "main")])

    gathers = of(f"{FSDP1}/_flat_param.py", "_alloc_padded_unsharded_flat_param")
    assert gathers == (BUFFER, "parameters gathered by FSDP1")
    reduces = of(f"{FSDP1}/_runtime_utils.py", "_get_reduce_scatter_tensors")
    assert reduces == (BUFFER, "reduce-scatter of FSDP1")
    assert of(DDP, "_ddp_init_helper") == (BUFFER, "DDP's buckets")
    assert of(DDP, "_sync_module_states") == (BUFFER, "DDP's broadcast")
    assert of(f"{SITE}/torch/nn/functional.py", "linear") is None


def test_what_a_module_asks_for_that_fsdp_or_ddp_has_called_is_no_buffer(model_file: str) -> None:
    for outer in (f"{FSDP1}/fully_sharded_data_parallel.py", DDP):
        calls = [Frame(f"{SITE}/torch/nn/modules/module.py", 9, "_call_impl"), Frame(outer, 1, "f")]
        assert of_distributed([Frame(model_file, 3, "forward"), *calls]) is None
        relu = [Frame(f"{SITE}/torch/nn/functional.py", 1, "relu")]
        assert (
            of_distributed([*relu, Frame(f"{SITE}/torch/nn/modules/a.py", 1, "f"), *calls]) is None
        )
        assert of_distributed(calls[1:]) is not None


def test_gradients_that_are_views_of_buckets() -> None:
    run = Run()
    bucket = run.take(1, (DDP, 9, "_ddp_init_helper"), ("/home/me/train.py", 1, "main"))
    run.take(2, (DDP, 9, "_ddp_init_helper"), ("/home/me/train.py", 1, "main"))
    run.mark(Phase.OPTIMIZER, gradient=bucket)
    assert run.categories() == {
        1: (BUFFER, "DDP's buckets: gradients are views of them"),
        2: (BUFFER, "DDP's buckets"),
    }


def test_failed_requests_of_one_place_are_one() -> None:
    replay = AllocatorHistory()
    event = {"action": "oom", "addr": 0, "size": 5, "frames": frames(("a.py", 1, "f"))}
    replay.feed([event, event, {**event, "size": 6}])
    account = DeviceAccount("cuda:0")
    add_history_notes(account, replay, 0)
    assert [(f.nbytes, f.count) for f in account.failed] == [(5, 2), (6, 1)]
    assert {f.frame and f.frame.location for f in account.failed} == {"a.py:1"}
