"""Plain ``torch.compile(mode="reduce-overhead")`` on these trees, against eager on the CPU."""

from __future__ import annotations

import copy
import gc
import warnings
from collections.abc import Iterator

import pytest
import torch

from memprof.cudagraph_trees import _torch_compat as compat
from memprof.cudagraph_trees.call.container import all_managers, reset_cudagraph_trees
from memprof.cudagraph_trees.call.inductor import InductorTrees, use_in_inductor
from memprof.cudagraph_trees.replay.path import ExecutionState
from memprof.profiler.model import LedgerKind

from .support import VALUES, manager, roots, same

pytestmark = pytest.mark.simgpu


@pytest.fixture(autouse=True)
def trees() -> Iterator[InductorTrees]:
    with use_in_inductor() as used, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield used


class Net(torch.nn.Module):
    def __init__(self, graph_break: bool = False) -> None:
        super().__init__()
        self.a = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.b = torch.nn.Linear(32, 8)
        self.graph_break = graph_break

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.a(x)))
        if self.graph_break:
            torch._dynamo.graph_break()
        return self.b(y).square().mean()


def pair(graph_break: bool = False) -> tuple[Net, Net]:
    """The same model on the CPU and on the device."""
    torch.manual_seed(0)
    model = Net(graph_break)
    return copy.deepcopy(model), model.cuda()


@pytest.mark.parametrize(
    ("graph_break", "micro_batches", "marks"),
    [(False, 1, False), (False, 3, True), (True, 1, True), (True, 3, False)],
)
def test_training(graph_break: bool, micro_batches: int, marks: bool) -> None:
    reference, model = pair(graph_break=graph_break)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (reference, model)]
    compiled = torch.compile(model, mode="reduce-overhead")
    recorded = []
    for i in range(10):
        if marks:
            torch.compiler.cudagraph_mark_step_begin()
        for _ in range(micro_batches):
            x = torch.randn(4, 16)
            expected = reference(x)
            expected.backward()
            loss = compiled(x.cuda())
            loss.backward()
            same(loss, expected)
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            same(p.grad, q.grad)
        for o in optimizers:
            o.step()
            o.zero_grad()
        if i >= 3:
            recorded.append(len(list(manager().nodes())))
    # Pure replay: no recording after step 3.
    assert len(set(recorded)) == 1
    assert manager().path.state is ExecutionState.EXECUTION


def test_one_functions_output_is_the_next_ones_input() -> None:
    # Two invocations of torch.compile, so two steps to torch; without a mark torch's trees
    # raise here.
    f = torch.compile(lambda x: x * 2, mode="reduce-overhead")
    g = torch.compile(lambda x: x + 1, mode="reduce-overhead")
    for i in range(6):
        same(g(f(torch.full((4,), float(i), device="cuda"))), torch.full((4,), 2.0 * i + 1))


# Without values this ends in many gigabytes, not here: Dynamo of torch 2.15 writes the elements of
# the optimizer's step counters to its log, and to print a tensor is to compute on the device.
@pytest.mark.skipif(not VALUES, reason="nothing is computed")
def test_a_compiled_optimizer() -> None:
    reference, model = pair()
    theirs = torch.optim.Adam(reference.parameters(), lr=0.01)
    ours = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), capturable=True)
    compiled = torch.compile(model, mode="reduce-overhead")
    update = torch.compile(ours.step, mode="reduce-overhead")
    for _ in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(4, 16)
        reference(x).backward()
        compiled(x.cuda()).backward()
        theirs.step()
        update()
        for p, q in zip(model.parameters(), reference.parameters(), strict=True):
            same(p, q)
        theirs.zero_grad()
        ours.zero_grad()


def test_buffers_that_are_written_to() -> None:
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(8)
    reference = copy.deepcopy(norm)
    norm = norm.cuda()
    compiled = torch.compile(norm, mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn(16, 8)
        same(compiled(x.cuda()), reference(x))
        same(norm.running_mean, reference.running_mean)
        same(norm.running_var, reference.running_var)


def test_writing_to_an_input_runs_without_a_graph() -> None:
    from torch._dynamo.utils import counters

    def foo(x: torch.Tensor) -> torch.Tensor:
        x.add_(2)
        return x * 1.5

    f = torch.compile(foo, mode="reduce-overhead")
    counters.clear()
    for _ in range(4):
        x = torch.ones(4, device="cuda")
        same(f(x), torch.full((4,), 4.5))
        same(x, torch.full((4,), 3.0))
    assert roots() == []
    assert counters["inductor"]["cudagraph_skips"] == 1
    (skip,) = [e for e in manager().entries() if e.kind is LedgerKind.SKIP]
    assert skip.count == 4


def test_writing_to_a_graphs_output_is_graphed() -> None:
    f = torch.compile(lambda x: x + 1, mode="reduce-overhead")

    def write(x: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return x + 1

    g = torch.compile(write, mode="reduce-overhead")
    for i in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        y = f(torch.full((4,), float(i), device="cuda"))
        z = g(y)
        same(y, torch.full((4,), 3.0 * (i + 1)))
        same(z, torch.full((4,), 3.0 * (i + 1) + 1))
    assert manager().path.state is ExecutionState.EXECUTION


def test_other_parameters_are_another_recording_and_come_back() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    first, second = model.weight, torch.nn.Parameter(torch.randn(8, 8, device="cuda"))
    x = torch.randn(2, 8, device="cuda")
    with torch.no_grad():
        for weight in (first, second, first, second):
            model.weight = weight
            for _ in range(4):
                same(compiled(x), x @ weight.T + model.bias)
    assert len(roots()) == 2


def test_unsafe_operators_between_partitions() -> None:
    def foo(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = (y.cpu() + 1).cuda()  # leaves the device
        return z * y

    f = torch.compile(foo, mode="reduce-overhead")
    with torch._inductor.config.patch(graph_partition=True):
        for i in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.full((4,), float(i), device="cuda")
            same(f(x), torch.full((4,), (2.0 * i + 1) * 2 * i))
    nodes = list(manager().nodes())
    assert len(nodes) == 2
    assert nodes[1].parent is nodes[0]


def test_views_expanded_and_misaligned_inputs() -> None:
    f = torch.compile(lambda x, y: (x + y).sum(0), mode="reduce-overhead", dynamic=False)
    for i in range(5):
        x = torch.full((1, 64), float(i), device="cuda").expand(4, 64)
        y = torch.arange(257.0, device="cuda")[1:].view(4, 64)
        same(f(x, y), (x.cpu() + y.cpu()).sum(0))


@pytest.mark.parametrize("partition", [True, False])
def test_sizes_inside_of_jagged_tensors(partition: bool) -> None:
    # GIVEN a size that is no input of its own, unless Inductor cuts the graph into partitions
    def scale(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).sin()

    w = torch.randn(8, device="cuda")
    with torch._inductor.config.patch(graph_partition=partition), torch.no_grad():
        f = torch.compile(scale, mode="reduce-overhead", dynamic=True)
        for total in (9, 9, 9, 12, 9, 12, 12, 7, 9):
            offsets = torch.tensor([0, 2, 5, total], device="cuda")
            x = torch.nested.nested_tensor_from_jagged(
                torch.randn(total, 8, device="cuda"), offsets
            )
            # THEN no recording is replayed for other sizes
            same(f(x, w).values(), scale(x.values(), w))
    known = partition or compat.torch_version() >= (2, 14)
    again = [e.reason for e in manager().entries() if e.kind is LedgerKind.RERECORD]
    assert again == ([] if known else ["a copied input has other sizes"] * 2)


def test_outputs_that_are_aliases() -> None:
    weight = torch.nn.Parameter(torch.randn(8, 8, device="cuda"))

    def foo(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return y, y[2:], y.T, weight.T, weight[1:3], torch.zeros(0, device="cuda"), x[0:0]

    f = torch.compile(foo, mode="reduce-overhead")
    with torch.no_grad():
        for i in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.full((8, 8), float(i), device="cuda")
            out = f(x)
            expected = foo(x)
            same(list(out), list(expected))
            storages = [o.untyped_storage()._cdata for o in out]
            assert storages[0] == storages[1] == storages[2]
            assert storages[3] == storages[4] == weight.untyped_storage()._cdata


def test_resets_with_torchs_own_trees_in_the_same_process(trees: InductorTrees) -> None:
    def train(model: torch.nn.Module) -> torch.nn.Module:
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(torch.randn(4, 16, device="cuda")).backward()
            model.zero_grad()
        return model

    # GIVEN cached outputs of both
    train(pair()[1])
    assert all_managers() != []
    trees.undo()
    train(pair()[1])
    # WHEN ours are reset first, THEN torch's can be reset as well; and the other way round
    reset_cudagraph_trees()
    torch._inductor.cudagraph_trees.reset_cudagraph_trees()
    train(pair()[1])
    with use_in_inductor():
        train(pair()[1])
        torch._inductor.cudagraph_trees.reset_cudagraph_trees()
    assert all_managers() == []


class Block(torch.nn.Module):
    """One layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.qkv = torch.nn.Linear(64, 192)
        self.out = torch.nn.Linear(64, 64)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        a = torch.softmax(q @ k.transpose(-1, -2) / 8, -1) @ v
        x = x + self.out(a)
        return x + self.mlp(x)


@pytest.mark.parametrize("name", ["transformer", "batch norm"])
def test_the_pool_is_no_larger_than_torchs(name: str, trees: InductorTrees) -> None:
    from .support import pool_segments

    x = torch.randn(8, 32, 64, device="cuda")
    torch.manual_seed(0)
    if name == "transformer":
        model: torch.nn.Module = torch.nn.Sequential(Block(), Block(), Block())
    else:
        x = torch.randn(512, 16, device="cuda")
        model = torch.nn.Sequential(
            torch.nn.Linear(16, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 8)
        )
    model = model.cuda()

    def reserved() -> int:
        torch._dynamo.reset()
        reset_cudagraph_trees()
        gc.collect()
        torch.cuda.empty_cache()
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x).square().mean().backward()
            model.zero_grad()
        return sum(s["total_size"] for s in pool_segments())

    # Kernels that are tuned in a warm-up leave scratch memory in the pool, whoever's it is:
    # once, before anything is measured.
    reserved()
    ours = reserved()
    assert all_managers() != []
    reset_cudagraph_trees()
    trees.undo()  # from here on: torch's
    torchs = reserved()
    assert all_managers() == []
    assert 0 < ours <= torchs
