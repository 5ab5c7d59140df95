"""What the simulated device was given, joined with torch's operations."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from memprof.what_if.estimate import _torch_compat, micro_batches
from memprof.what_if.estimate.estimating import step_time
from memprof.what_if.estimate.recording import Recording
from memprof.what_if.estimate.steps import StepTimes
from memprof.what_if.estimate.timeline import RecordedStep, device_ns
from memprof.what_if.estimate.work import ATTENTION, CONVOLUTION, COPY, OTHER, PRODUCT, SET, Work

pytestmark = pytest.mark.simgpu


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """A recording that follows captures."""
    for name in ("capture_begin", "capture_end"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, getattr(torch.cuda.CUDAGraph, name))
    # Other tests may have compiled something.
    monkeypatch.setitem(torch._dynamo.utils.counters["stats"], "unique_graphs", 0)
    monkeypatch.setattr(torch._C, "_swap_tensor_impl", torch._C._swap_tensor_impl)
    for name in ("_prepare_profiler", "_enable_profiler"):
        monkeypatch.setattr(torch.autograd.profiler, name, getattr(torch.autograd.profiler, name))
    made = Recording()
    made.install()
    return made


def followed(recording: Recording, act: Callable[[], object]) -> RecordedStep:
    """What the device was given for an act, which was done before."""
    recording.pass_step()
    act()
    assert recording.begin()
    act()
    step = recording.end()
    assert step is not None
    return step


def works(step: RecordedStep, kind: str) -> list[Work]:
    return [g.work for g in step.given if g.work is not None and g.work.kind == kind]


def test_products_have_the_sizes_that_cublas_was_given(recording: Recording) -> None:
    a, b = torch.ones(24, 16, device="cuda"), torch.ones(16, 40, device="cuda").bfloat16()
    batch = torch.ones(3, 8, 16, device="cuda")
    step = followed(
        recording, lambda: (a @ a.T, a.bfloat16() @ b, torch.bmm(batch, batch.transpose(1, 2)))
    )
    found = [(w.flops, w.nbytes, w.dtype) for w in works(step, PRODUCT)]
    assert found == [
        (2 * 24 * 24 * 16, 4 * (24 * 16 * 2 + 24 * 24), "float32"),
        (2 * 24 * 40 * 16, 2 * (24 * 16 + 16 * 40 + 24 * 40), "bfloat16"),
        (2 * 3 * 8 * 8 * 16, 4 * 3 * (8 * 16 * 2 + 8 * 8), "float32"),
    ]
    assert step.unknown == 0


def test_operators_have_the_bytes_of_their_tensors(recording: Recording) -> None:
    x, y = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 20, device="cuda")
    step = followed(recording, lambda: x + y)
    (work,) = works(step, OTHER)
    assert work.nbytes == 3 * 4 << 20
    (work,) = works(followed(recording, lambda: x.add_(y)), OTHER)
    assert work.nbytes == 3 * 4 << 20


def test_copies_and_fills(recording: Recording) -> None:
    here, there = torch.ones(1 << 18), torch.ones(1 << 18, device="cuda")
    step = followed(recording, lambda: (there.copy_(here), there.cpu(), there.clone()))
    assert [(w.nbytes, w.way) for w in works(step, COPY)] == [
        (4 << 18, "to device"),
        (4 << 18, "to host"),
    ]
    assert [w.nbytes for w in works(step, SET)] == [2 * 4 << 18]


def test_attention_by_its_shapes_and_of_a_backward_on_another_thread(recording: Recording) -> None:
    q = torch.ones(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)

    def act() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        out.backward(out.detach())

    step = followed(recording, act)
    products = 2 * 8 * 128 * 128 * 64  # of which half is masked; the backward has five
    flops: dict[str, int] = {}
    for work in works(step, ATTENTION):
        flops[work.way] = flops.get(work.way, 0) + work.flops
        assert work.shape == (8, 128, 64)
    assert flops["forward"] == products
    assert flops["backward"] == pytest.approx(products * 5 / 2, rel=0.01)


def test_two_streams_and_an_event(recording: Recording) -> None:
    x = torch.ones(8, device="cuda")
    other, event = torch.cuda.Stream(), torch.cuda.Event()

    def act() -> None:
        x.add_(1)
        event.record()
        x.mul_(2)
        with torch.cuda.stream(other):
            event.wait(other)
            x.sub_(1)

    step = followed(recording, act)
    durations = [0.0 if given.work is None else 10.0 for given in step.given]
    assert sum(durations) == 30
    # THEN the other stream's kernel runs beside the second, after the first
    assert device_ns(step.given, durations, step.after) == 20


def test_a_graph_has_the_work_of_its_capture(recording: Recording) -> None:
    a, x = torch.ones(24, 16, device="cuda"), torch.ones(1 << 20, device="cuda")
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        main = torch.cuda.current_stream()
        product = a @ a.T
        side.wait_stream(main)
        with torch.cuda.stream(side):
            x.add_(1)
        product.add_(1)
        main.wait_stream(side)
    step = followed(recording, graph.replay)
    assert (step.graphs, step.launches, step.unknown) == (1, 1, 0)
    assert [w.flops for w in works(step, PRODUCT)] == [2 * 24 * 24 * 16]
    assert [w.nbytes for w in works(step, OTHER)] == [2 * 4 << 20, 2 * 4 * 24 * 24]
    durations = [0.0 if given.work is None else 10.0 for given in step.given]
    # THEN its two branches run at once
    assert device_ns(step.given, durations, step.after) == 20


def test_a_program_that_profiles_itself_is_not_followed(recording: Recording) -> None:
    with torch.profiler.profile():
        assert not recording.begin()
    # AND the next step is
    assert recording.begin()
    recording.end()


@pytest.mark.parametrize(
    "profiler",
    [torch.profiler.profile, torch.autograd.profiler.profile, torch.autograd.profiler.emit_nvtx],
)
def test_a_profiler_of_the_program_ends_the_step(
    recording: Recording, profiler: Callable[[], Any]
) -> None:
    x = torch.ones(8, device="cuda")
    assert recording.begin()
    # WHEN it begins within the step and ends after it
    with profiler() as profile:
        with torch.profiler.record_function("within"):
            x.add_(1)
        assert recording.end() is None
        with torch.profiler.record_function("after"):
            x.add_(1)
    # THEN it has all of its own, and there is a reason
    if profiler is torch.profiler.profile:
        assert {"within", "after"} <= {event.name for event in profile.events()}
    assert "profiler itself" in recording.problem
    assert not torch._C._autograd._profiler_enabled()


def test_a_capture_that_fails_to_begin_leaves_no_profiler(recording: Recording) -> None:
    with pytest.raises(TypeError):
        torch.cuda.CUDAGraph().capture_begin(pool="none")  # type: ignore[arg-type]
    assert not torch._C._autograd._profiler_enabled()


@pytest.mark.usefixtures("recording")  # which undoes what is installed
def test_optimizers_within_backwards_and_captures_are_not_followed() -> None:
    times = StepTimes("h200-141gb", None)
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    steps = itertools.count(1)
    weight.register_post_accumulate_grad_hook(lambda _: times.after_step(next(steps), last=False))
    for _ in range(4):
        weight.sum().backward()
    assert times.time is None
    assert "within a backward" in times.notes[0]


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_have_torchs_count(recording: Recording, transposed: bool) -> None:
    kind = torch.nn.ConvTranspose2d if transposed else torch.nn.Conv2d
    model = kind(8, 16, 3, stride=2, padding=1, dilation=2, device="cuda")
    x = torch.ones(4, 8, 32, 32, device="cuda")  # of which no gradient is asked
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    step = followed(recording, lambda: model(x).sum().backward())
    found = sum(w.flops for w in works(step, CONVOLUTION))
    assert found == pytest.approx(counter.get_total_flops(), rel=1e-5)
    assert step.unknown == 0


def test_heads_that_share_keys_count_as_the_querys(recording: Recording) -> None:
    query = torch.ones(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
    key = torch.ones(2, 2, 128, 64, device="cuda", dtype=torch.bfloat16)

    def act() -> None:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)

    found = works(followed(recording, act), ATTENTION)
    assert sum(w.flops for w in found) == 4 * 2 * 8 * 128 * 128 * 64


class Twice(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.sum()


def test_launches_have_the_module_of_their_forward(recording: Recording) -> None:
    model = Twice().cuda()
    x = torch.ones(8, 32, device="cuda", requires_grad=True)

    def act() -> None:
        model(x).backward()
        x.grad = None

    step = followed(recording, act)
    products = works(step, PRODUCT)
    # THEN a forward and two gradients of each layer are of it
    assert [w.module for w in products] == ["Twice > Linear"] * 6
    time = step_time(step, "h200-141gb", tf32=())
    assert time is not None
    assert {m.module for m in time.modules} == {"Twice", "Twice > Linear", ""}
    of_kinds = sum(kind.device_ns for kind in time.kinds)
    assert sum(m.device_ns for m in time.modules) == pytest.approx(of_kinds, rel=0.01)
    # AND the program has no hooks afterwards
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def accumulates(micro_batches: list[int], rows: tuple[int, ...] = (8,)) -> Callable[[], None]:
    """A step that clips gradients of as many micro-batches as the next of these numbers says, which
    have so many ``rows`` in turn."""
    model = Twice().cuda()
    inputs = itertools.cycle(torch.ones(n, 32, device="cuda") for n in rows)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    numbers = iter(micro_batches)

    def act() -> None:
        for _ in range(next(numbers)):
            model(next(inputs)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return act


def test_micro_batches_in_the_middle_count_as_those_that_are_followed(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a step of which all micro-batches are followed
    monkeypatch.setattr(micro_batches, "FEWEST", 99)
    whole = followed(recording, accumulates([6, 6]))
    # WHEN only the first and the last are
    monkeypatch.setattr(micro_batches, "FEWEST", 4)
    step = followed(recording, accumulates([6, 6]))
    # THEN each launch has its work and its module
    assert [g.work for g in step.given] == [g.work for g in whole.given]
    assert step.unknown == 0


def test_micro_batches_that_differ_are_all_followed(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (8, 64, 16, 8, 128, 8)
    monkeypatch.setattr(micro_batches, "FEWEST", 99)
    whole = followed(recording, accumulates([6, 6], lengths))
    monkeypatch.setattr(micro_batches, "FEWEST", 4)
    step = followed(recording, accumulates([6, 6], lengths))
    assert step.unknown == 0
    assert [g.work for g in step.given] == [g.work for g in whole.given]


def test_what_comes_after_fewer_micro_batches_than_before_is_not_known(
    recording: Recording,
) -> None:
    step = followed(recording, accumulates([6, 3]))
    # THEN gradients are clipped and the optimizer steps while the profiler rests
    assert 0 < step.unknown < len(step.given)
    assert [w.module for w in works(step, PRODUCT)].count("Twice > Linear") == 3 * 5
    assert not recording.problem


def test_a_profiler_of_the_programs_own_follows_what_memprofs_lets_rest(
    recording: Recording,
) -> None:
    act = accumulates([6, 2])
    recording.pass_step()
    act()
    assert recording.begin()
    act()  # After its first backward the profiler rests.
    with torch.profiler.profile() as profiler:
        torch.ones(8, device="cuda").sin()
    assert recording.end() is None
    assert "aten::sin" in {event.name for event in profiler.events()}


def test_what_is_compiled_in_the_step_knows_nothing_of_it(recording: Recording) -> None:
    torch._dynamo.utils.counters.clear()
    model, x = Twice().cuda(), torch.ones(8, 32, device="cuda")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert recording.begin()
    model(x)
    compiled(x)
    step = recording.end()
    assert step is not None
    assert not any(w.module for w in works(step, PRODUCT))


def test_swapped_parameters_end_the_step(recording: Recording) -> None:
    model, x = torch.nn.Linear(8, 8).cuda(), torch.ones(8, 8, device="cuda")
    other = torch.nn.Parameter(torch.zeros(8, 8, device="cuda"))
    assert recording.begin()
    model(x)
    torch.utils.swap_tensors(model.weight, other)
    assert recording.end() is None
    assert "swaps tensors" in recording.problem
    assert not model.weight.any()


def test_code_that_inductor_did_not_make_has_no_modules(recording: Recording) -> None:
    model = torch.compile(Twice().cuda(), backend="eager")
    x = torch.ones(8, 32, device="cuda")
    time = step_time(followed(recording, lambda: model(x)), "h200-141gb", tf32=())
    assert time is not None
    assert time.modules == []


def test_streams_are_together_no_faster_than_the_device(recording: Recording) -> None:
    a = torch.ones(4096, 4096, device="cuda")
    other = torch.cuda.Stream()

    def act() -> None:
        a @ a
        with torch.cuda.stream(other):
            a @ a

    time = step_time(followed(recording, act), "h200-141gb", tf32=())
    assert time is not None
    assert time.utilisation < 1.001


def test_a_failure_of_memprof_leaves_the_program_alone(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise RuntimeError("another Kineto")

    monkeypatch.setattr(_torch_compat, "operations", fails)
    x = torch.ones(8, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.add_(1)
    assert "another Kineto" in recording.problem
    times = StepTimes("h200-141gb", None)
    for step in range(1, 5):
        times.after_step(step, last=False)
    assert times.time is None
    assert "another Kineto" in times.notes[0]
