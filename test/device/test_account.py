"""What a block is for, by when it was there; and that a peak's parts add up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memprof.profiler.device.account import Mark, Phase, explain, failed_requests
from memprof.profiler.device.replay import Replay
from memprof.profiler.device.where import where
from memprof.profiler.model import Purpose
from memprof.profiler.model import SourceFrame as Frame

MIB = 1 << 20
SITE = "/env/lib/python3.11/site-packages"


def frames(*lines: tuple[str, int, str]) -> list[dict[str, Any]]:
    return [{"filename": f, "line": n, "name": name} for f, n, name in lines]


class Run:
    """A run with one segment: blocks are asked for and let go of, marks set in between."""

    def __init__(self) -> None:
        self.marks = [Mark(Phase.FORWARD, 0)]
        self.counts = [(0, 0)]
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
        by_address = {address: Purpose(name) for name, address in known.items()}
        self.marks.append(Mark(phase, step, by_address))
        self.counts.append((self.asked, self.let_go))

    def purposes(
        self, last: int | None = None, cut_off: bool = False
    ) -> dict[int, tuple[Purpose, str]]:
        """By MiB of all blocks of one purpose and place, which each test makes tell apart."""
        replay = Replay()
        replay.feed(self.events, self.counts)
        assert not replay.strange
        found = explain(replay.peak, self.marks, last, cut_off)
        total = sum(r.nbytes for r in found.rows) + found.rounding + found.awaiting
        assert total + sum(p.free for p in found.pools) == replay.peak.reserved
        return {r.nbytes // MIB: (r.purpose, r.detail) for r in found.rows}


@pytest.fixture
def model_file(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "model.py"
    path.write_text("class Net:\n    def forward(self, x):\n        return x\n")
    return str(path)


def test_a_training_step(model_file: str) -> None:
    forward = (model_file, 3, "forward")
    script = ("/home/me/train.py", 10, "<module>")
    run = Run()
    weight = run.take(1, script)
    run.take(2, ("/home/me/data.py", 1, "load"))
    saved = run.take(3, forward, script)
    logits = run.take(4, forward, script)
    scratch = run.take(5, forward, script)
    run.drop(scratch)
    run.mark(Phase.BACKWARD)
    of_backward = run.take(6)
    gradient = run.take(7)
    kept = run.take(8)
    recomputed = run.take(
        9, forward, (f"{SITE}/torch/utils/checkpoint.py", 5, "recompute_fn"), script
    )
    run.drop(saved)
    run.drop(of_backward)
    run.drop(recomputed)
    run.mark(Phase.FORWARD)
    run.mark(Phase.OPTIMIZER, parameter=weight, gradient=gradient)
    momentum = run.take(10, script)
    update = run.take(11, script)
    run.drop(update)
    run.mark(Phase.FORWARD, step=1, optimizer_state=momentum)
    run.drop(logits)
    run.take(40, script)
    run.drop(kept)
    assert run.purposes() == {
        1: (Purpose.PARAMETER, ""),
        2: (Purpose.INPUT, ""),
        7 + 8: (Purpose.GRADIENT, ""),  # one, and what outlived the backward; neither has a line
        10: (Purpose.OPTIMIZER_STATE, ""),
        40: (Purpose.INPUT, ""),
    }


def test_every_purpose_at_one_instant(model_file: str) -> None:
    """The same step, but with the peak inside of the backward."""
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
    gathered = run.take(8, (f"{SITE}/torch/distributed/fsdp/_param.py", 9, "all_gather"))
    reduced = run.take(9, (f"{SITE}/torch/distributed/fsdp/_param.py", 9, "foreach_reduce"))
    scratch = run.take(10)
    for address in (saved, recomputed, gathered, reduced, scratch):
        run.drop(address)
    run.mark(Phase.FORWARD)
    run.mark(Phase.OPTIMIZER, gradient=gradient)
    assert run.purposes() == {
        1: (Purpose.PARAMETER, ""),
        2: (Purpose.OPTIMIZER_STATE, ""),
        3: (Purpose.INPUT, ""),
        4: (Purpose.ACTIVATION, ""),
        5: (Purpose.OUTPUT, ""),
        6: (Purpose.GRADIENT, ""),
        7: (Purpose.ACTIVATION, "recomputed"),
        8: (Purpose.PARAMETER, "all-gathered by FSDP"),
        9: (Purpose.GRADIENT, "reduced by FSDP"),
        10: (Purpose.TEMPORARY, ""),
    }


def test_what_an_address_held_earlier_does_not_count() -> None:
    """A block at the address of a parameter that is gone is not that parameter."""
    run = Run()
    first = run.take(3)
    run.mark(Phase.FORWARD, parameter=first)
    run.drop(first)
    assert run.take(4) == first
    assert run.purposes() == {4: (Purpose.INPUT, "")}


def test_what_was_there_before_anybody_watched() -> None:
    def block(at: int, mib: int) -> dict[str, Any]:
        size = mib * MIB
        found = {"address": at * MIB, "requested_size": size, "size": size, "frames": []}
        return {**found, "state": "active_allocated"}

    blocks = [block(0, 2), block(2, 3)]
    replay = Replay()
    replay.take_over([{"address": 0, "total_size": 5 * MIB, "blocks": blocks}])
    marks = [Mark(Phase.FORWARD, 0), Mark(Phase.FORWARD, 0, {0: Purpose.PARAMETER})]
    found = explain(replay.peak, marks)
    assert {r.nbytes // MIB: (r.purpose, r.detail) for r in found.rows} == {
        2: (Purpose.PARAMETER, "from before the session"),
        3: (Purpose.UNKNOWN, "from before the session"),
    }


def test_inference_keeps_its_state(model_file: str) -> None:
    forward = (model_file, 3, "forward")
    run = Run()
    run.take(2, ("/home/me/serve.py", 1, "main"))
    run.take(3, forward)
    run.drop(run.take(5, forward))
    workspace = run.take(6, forward)
    run.mark(Phase.FORWARD)
    run.drop(workspace)
    assert run.purposes(last=1) == {
        2: (Purpose.INPUT, ""),
        3: (Purpose.STATE, ""),
        6: (Purpose.WORKSPACE, "cuBLAS"),
    }


def test_activations_of_a_run_that_ended_in_its_forward(model_file: str) -> None:
    run = Run()
    run.mark(Phase.BACKWARD)
    run.mark(Phase.FORWARD, step=1)
    run.take(3, (model_file, 3, "forward"))
    assert run.purposes(cut_off=True) == {3: (Purpose.ACTIVATION, "")}
    assert run.purposes() == {3: (Purpose.OUTPUT, "")}


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


def test_failed_requests_of_one_place_are_one() -> None:
    replay = Replay()
    event = {"action": "oom", "addr": 0, "size": 5, "frames": frames(("a.py", 1, "f"))}
    replay.feed([event, event, {**event, "size": 6}], [(0, 0)])
    assert [(f.nbytes, f.count) for f in failed_requests(replay)] == [(5, 2), (6, 1)]
