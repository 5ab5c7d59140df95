"""The zoo's models on the trees, beside eager on the CPU and beside torch's own trees.

Each of ``test_training`` and ``test_inference`` is one model's whole life on the simulated
device: ten steps, replays included, then a reset. CI runs a few variants; ``make
test-simgpu-slow`` runs every model, with and without graph breaks.
"""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from acceptance.training import tensors
from cudagraph_trees.support import SIMULATED, VALUES, pool_segments
from models import zoo
from torch import Tensor, nn
from torch._inductor.runtime.benchmarking import benchmarker

import memprof
from memprof.cudagraph_trees.call.container import all_managers, reset_cudagraph_trees
from memprof.profiler.model import LedgerKind, Profile

pytestmark = pytest.mark.simgpu

STEPS = 10
RECORDED_BY = 3
"""A step warms up, a step is observed, a step records; all others replay."""

RUNS = (LedgerKind.WARM_UP, LedgerKind.RECORD, LedgerKind.RERECORD, LedgerKind.SKIP)

# Where a graph break goes: into the second block of each.
BLOCK: dict[str, Callable[[Any], nn.Module]] = {
    "mlp": lambda m: m[3],
    "resnet": lambda m: m.stages[1],
    "gpt2": lambda m: m.transformer.h[1],
    "bert": lambda m: m.bert.encoder.layer[1],
    "llama": lambda m: m.model.layers[1],
    "vit": lambda m: m.vit.layers[1],
}

WHOLE, BROKEN = False, True


def _variants(quick: set[tuple[str, bool]]) -> list[Any]:
    return [
        pytest.param(
            name,
            broken,
            marks=[] if (name, broken) in quick else [pytest.mark.slow],
            id=f"{name}-{'broken' if broken else 'whole'}",
        )
        for name in zoo.MODELS
        for broken in (WHOLE, BROKEN)
    ]


# In float32 the last bit decides which side of zero a ReLU's input is on, and with it the gradient.
DOUBLE = {"mlp", "resnet"}


class Pair:
    """A model of the zoo on the device, and its twin on the CPU.

    The two devices draw other random numbers, so nothing is dropped.
    """

    def __init__(self, name: str, broken: bool = WHOLE, *, training: bool = True) -> None:
        self.case = zoo.build(name)
        _turn_dropout_off(self.case.model)
        if hasattr(self.case.model, "config"):
            # Left to itself, transformers decides at the first call and Dynamo compiles twice.
            self.case.model.config.problem_type = "single_label_classification"
        if name in DOUBLE:
            self.case.model.double()
            self.case.inputs = {k: v.double() for k, v in self.case.inputs.items()}
        self.case.model.train(training)
        self.reference = copy.deepcopy(self.case.model)
        self.model = self.case.model.cuda()
        if broken:
            _break_graph(BLOCK[name](self.model))
        self.inputs = {k: v.cuda() for k, v in self.case.inputs.items()}
        self.optimizers = [
            torch.optim.SGD(m.parameters(), lr=0.02) for m in (self.model, self.reference)
        ]

    def compile(self, **how: Any) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(self.model, **how)
        return compiled

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def same_gradients(self) -> None:
        for (n, p), q in zip(
            self.model.named_parameters(), self.reference.parameters(), strict=True
        ):
            _close(p.grad, q.grad, f"gradient of {n}")

    def same_state(self) -> None:
        theirs = self.reference.state_dict()
        for n, t in self.model.state_dict().items():
            _close(t, theirs[n], n)


def _turn_dropout_off(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attn_dropout", "attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def _break_graph(module: nn.Module) -> None:
    forward = module.forward

    def broken(*args: Any, **kwargs: Any) -> Any:
        torch._dynamo.graph_break()
        return forward(*args, **kwargs)

    module.forward = broken  # type: ignore[method-assign]


def _close(a: Tensor | None, b: Tensor | None, what: str) -> None:
    if a is None or b is None:
        assert a is b, what
        return
    assert a.shape == b.shape, what
    if VALUES:
        try:
            torch.testing.assert_close(
                a.detach().cpu(), b.detach(), rtol=1e-3, atol=1e-5, msg=lambda m: f"{what}: {m}"
            )
        except AssertionError:
            if uncomputed := _uncomputed():
                pytest.skip(f"the simulated device computed nothing for {uncomputed[0]}")
            raise


def _uncomputed() -> list[str]:
    """Kernels that the simulated device has met since this was cleared and cannot compute, as
    those with barriers that torch 2.15 makes."""
    if not SIMULATED:
        return []
    from memprof.simulated_cuda.values.kernels import missing

    return missing


def _leaves_nothing(test: Callable[..., None]) -> Callable[..., None]:
    """The device is as empty after the test and a reset as it was before it."""

    def clear() -> None:
        torch._dynamo.reset()
        reset_cudagraph_trees()
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    @functools.wraps(test)
    def checked(**arguments: Any) -> None:
        clear()
        _uncomputed().clear()
        before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        test(**arguments)
        clear()
        assert all_managers() == []
        assert pool_segments() == []
        assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
        if SIMULATED:
            from memprof.simulated_cuda import control as simgpu

            assert simgpu.live(simgpu.GRAPHS) == 0
            assert simgpu.live(simgpu.EXECS) == 0

    return checked


def _recordings(profile: Profile) -> dict[LedgerKind, int]:
    return {k: sum(e.count for e in profile.ledger if e.kind is k) for k in LedgerKind}


class Watch:
    """That from some step after the last compilation on there are replays and nothing else. Some
    versions of transformers make Dynamo compile once more in the second step."""

    def __init__(self) -> None:
        self.before: dict[LedgerKind, int] = {}
        self.compiled = 0
        self.graphs = 0

    def check(self, step: int, profile: Profile) -> None:
        """After ``step`` (from 1)."""
        counts = _recordings(profile)
        assert counts[LedgerKind.FALLBACK] == counts[LedgerKind.TREE_FAILURE] == 0, profile.ledger
        if len(profile.graphs) > self.graphs:
            self.compiled, self.graphs = step, len(profile.graphs)
            assert step <= 2
        if step >= self.compiled + RECORDED_BY:
            for kind in RUNS:
                assert counts[kind] == self.before[kind], f"{kind} in step {step}"
            assert counts[LedgerKind.REPLAY] > self.before[LedgerKind.REPLAY]
        self.before = counts


@pytest.mark.parametrize(
    ("name", "broken"),
    _variants({("mlp", BROKEN), ("resnet", WHOLE), ("gpt2", BROKEN)}),
)
@_leaves_nothing
def test_training(name: str, broken: bool) -> None:
    pair = Pair(name, broken)
    compiled = pair.compile(backend="memprof")
    watch = Watch()
    with memprof.profile() as session:
        for i in range(STEPS):
            # WHEN a step is made on both devices
            expected = pair.reference(**pair.case.inputs)
            output = compiled(**pair.inputs)
            # THEN outputs, loss and gradients are the same
            for k, (a, b) in enumerate(zip(tensors(output), tensors(expected), strict=True)):
                _close(a, b, f"output {k} of step {i}")
            loss, expected_loss = pair.case.loss(output), pair.case.loss(expected)
            _close(loss, expected_loss, f"loss of step {i}")
            loss.backward()
            expected_loss.backward()
            pair.same_gradients()
            pair.update()
            watch.check(i + 1, session.profile())
    # AND so are parameters and statistics in the end
    pair.same_state()
    # AND every graph that is called after the second step is among those that replay
    profile = session.profile()
    replayed = {e.graph for e in profile.ledger if e.kind is LedgerKind.REPLAY}
    called = profile.calls.graph
    assert replayed == {*called[len(called) // 2 :]}


@pytest.mark.parametrize(("name", "broken"), _variants({("vit", WHOLE), ("mlp", BROKEN)}))
@_leaves_nothing
@torch.no_grad()
def test_inference(name: str, broken: bool) -> None:
    pair = Pair(name, broken, training=False)
    compiled = pair.compile(backend="memprof")
    watch = Watch()
    with memprof.profile() as session:
        for i in range(STEPS):
            output = compiled(**pair.inputs)
            expected = pair.reference(**pair.case.inputs)
            for k, (a, b) in enumerate(zip(tensors(output), tensors(expected), strict=True)):
                _close(a, b, f"output {k} of step {i}")
            watch.check(i + 1, session.profile())


@pytest.mark.parametrize("name", [pytest.param("llama", marks=pytest.mark.slow), "mlp"])
@_leaves_nothing
def test_gradient_accumulation(name: str) -> None:
    """The first micro-batch's gradient is stolen from the pool, the others are added to it."""
    pair = Pair(name)
    compiled = pair.compile(backend="memprof")
    watch = Watch()
    generator = torch.Generator().manual_seed(3)
    with memprof.profile() as session:
        for i in range(STEPS):
            for _ in range(3):
                inputs = _other_values(pair.case.inputs, generator)
                pair.case.loss(pair.reference(**inputs)).backward()
                on_device = {k: v.cuda() for k, v in inputs.items()}
                pair.case.loss(compiled(**on_device)).backward()
            pair.same_gradients()
            pair.update()
            watch.check(i + 1, session.profile())
    pair.same_state()


def _other_values(
    inputs: dict[str, Tensor], generator: torch.Generator, batch: int | None = None
) -> dict[str, Tensor]:
    """Inputs of the same kind; tokens and labels that are one tensor stay one."""
    made: dict[int, Tensor] = {}
    for t in inputs.values():
        shape = (batch or t.shape[0], *t.shape[1:])
        if t.is_floating_point():
            made[id(t)] = torch.randn(shape, generator=generator, dtype=t.dtype)
        else:
            made[id(t)] = torch.randint(int(t.max()) + 1, shape, generator=generator)
    return {k: made[id(t)] for k, t in inputs.items()}


@pytest.mark.parametrize(
    "name", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt2", "llama")), "mlp"]
)
@_leaves_nothing
def test_dynamic_batch_sizes(name: str) -> None:
    """Each size is warmed up twice, observed in the second, and recorded once; then it replays, in
    any order."""
    pair = Pair(name)
    compiled = pair.compile(backend="memprof", dynamic=True)
    generator = torch.Generator().manual_seed(3)
    sizes = [3, 5, 3, 5, 3, 5, 7, 7, 7]
    with memprof.profile() as session:
        for batch in [*sizes, 5, 7, 3, 3, 7, 5]:
            inputs = _other_values(pair.case.inputs, generator, batch)
            expected = _loss_of_any_batch(pair.reference(**inputs))
            loss = _loss_of_any_batch(compiled(**{k: v.cuda() for k, v in inputs.items()}))
            _close(loss, expected, f"loss of a batch of {batch}")
            loss.backward()
            expected.backward()
            pair.same_gradients()
            pair.update()
        profile = session.profile()
    counts = _recordings(profile)
    assert counts[LedgerKind.WARM_UP] == 2 * counts[LedgerKind.RECORD] == 6 * len(profile.graphs)
    assert counts[LedgerKind.REPLAY] == 6 * len(profile.graphs)
    assert counts[LedgerKind.SKIP] == counts[LedgerKind.RERECORD] == 0


def _loss_of_any_batch(output: Any) -> Tensor:
    """The zoo's own losses of plain tensors have targets for one size of batch."""
    loss: Tensor = output.square().mean() if isinstance(output, Tensor) else output.loss
    return loss


@pytest.mark.skipif(not VALUES, reason="nothing is computed")
@pytest.mark.parametrize(
    "name", [*(pytest.param(n, marks=pytest.mark.slow) for n in ("gpt2", "bert", "vit")), "mlp"]
)
@_leaves_nothing
def test_dropout_is_what_it_is_without_graphs(name: str) -> None:
    """From one seed, the same losses and gradients with graphs and without, each step others."""
    results = []
    for graphs in (True, False):
        torch._dynamo.reset()
        case = zoo.build(name)
        if hasattr(case.model, "config"):
            case.model.config.problem_type = "single_label_classification"
        model = case.model.cuda()
        assert any(isinstance(m, nn.Dropout) and m.p > 0 for m in model.modules())
        compiled = torch.compile(model, backend="memprof", options={"graphs": graphs})
        inputs = {k: v.cuda() for k, v in case.inputs.items()}
        torch.manual_seed(11)
        steps = []
        for _ in range(8):
            model.zero_grad()
            loss = case.loss(compiled(**inputs))
            loss.backward()
            steps.append(
                [
                    loss.item(),
                    *(p.grad.norm().item() for p in model.parameters() if p.grad is not None),
                ]
            )
        results.append(steps)
    assert len({losses[0] for losses in results[0]}) == 8
    torch.testing.assert_close(
        torch.tensor(results[0]), torch.tensor(results[1]), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("outputs", ["error", "clone"])
@pytest.mark.parametrize("name", ["mlp", pytest.param("bert", marks=pytest.mark.slow)])
@_leaves_nothing
@torch.no_grad()
def test_outputs_that_are_held(name: str, outputs: str) -> None:
    """A list of all outputs of ten steps: with "clone" all are right, otherwise the last is."""
    pair = Pair(name, training=False)
    compiled = pair.compile(backend="memprof", options={"outputs": outputs})
    generator = torch.Generator().manual_seed(3)
    held: list[list[Tensor]] = []
    expected: list[list[Tensor]] = []
    for _ in range(STEPS):
        inputs = _other_values(pair.case.inputs, generator)
        held.append(tensors(compiled(**{k: v.cuda() for k, v in inputs.items()})))
        expected.append(tensors(pair.reference(**inputs)))
    for i in range(STEPS):
        for a, b in zip(held[i], expected[i], strict=True):
            if outputs == "clone" or i == STEPS - 1:
                _close(a, b, f"output of step {i}")
            else:
                with pytest.raises(RuntimeError, match="overwritten"):
                    a.cpu()


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(("name", "broken"), _variants({("mlp", BROKEN)}))
@_leaves_nothing
def test_the_pool_is_no_larger_than_torchs(name: str, broken: bool, training: bool) -> None:
    pair = Pair(name, broken, training=training)
    # On an H200 Inductor flushed 60 MiB of cache to tune a kernel in a warm-up, memory that stays
    # in the pool, in memprof's run or in torch's or in both, as its own caches had it.
    with mock.patch.dict(benchmarker.__dict__, {"L2_cache_size": 0}):
        # What else tuning takes is there once, whoever's the pool is: before anything is measured.
        for how in ({"backend": "memprof"}, {"mode": "reduce-overhead"}):
            _reserved(pair, training, **how)
        ours = _reserved(pair, training, backend="memprof")
        torchs = _reserved(pair, training, mode="reduce-overhead")
    print(f"pool of {name}: {ours} B, torch's {torchs} B")
    assert 0 < ours <= torchs


def _reserved(pair: Pair, training: bool, **how: Any) -> int:
    with torch.set_grad_enabled(training):
        return _run_and_measure(pair, training, **how)


def _run_and_measure(pair: Pair, training: bool, **how: Any) -> int:
    torch._dynamo.reset()
    reset_cudagraph_trees()
    gc.collect()
    torch.cuda.empty_cache()
    assert pool_segments() == []
    compiled = pair.compile(**how)
    for _ in range(6):
        output = compiled(**pair.inputs)
        if training:
            pair.case.loss(output).backward()
            pair.model.zero_grad()
        del output
    return sum(s["total_size"] for s in pool_segments())
