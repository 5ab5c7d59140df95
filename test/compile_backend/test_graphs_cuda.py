"""The backend on a CUDA device: graph trees by default, with provenance."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cudagraph_trees.support import same
from rendering import render_text
from torch import nn

import memprof
from memprof import cudagraph_trees
from memprof.cudagraph_trees.call.container import all_managers
from memprof.profiler.live.attribution import Attribution
from memprof.profiler.model import GraphKind, LedgerKind, Origin
from memprof.profiler.views.report import summarize

from .test_kernel_marks import Net, train

pytestmark = pytest.mark.simgpu


def test_training_replays_from_the_fourth_step_on() -> None:
    profile, _ = train(8, "cuda")
    assert not [e for e in profile.ledger if e.kind is LedgerKind.FALLBACK]
    trees = [e for e in profile.ledger if e.tree is not None]
    # THEN every graph is warmed up twice and recorded once, in the first three steps
    for graph in profile.graphs:
        mine = [e for e in trees if e.graph == graph.id]
        counts = {k: sum(e.count for e in mine if e.kind is k) for k in LedgerKind}
        assert counts[LedgerKind.RECORD] == 1, mine
        assert counts[LedgerKind.RERECORD] == 0, mine
        # one call warms up, one more is observed, one records; the rest are replays
        assert counts[LedgerKind.WARM_UP] == 2, mine
        assert counts[LedgerKind.REPLAY] == 8 - 3
    # AND what is not observed is the warm-up alone
    assert profile.calls.program.count(-1) == len(profile.graphs)


def test_bytes_are_attributed_and_the_report_has_the_trees() -> None:
    profile, _ = train(6, "cuda")
    attribution = Attribution(profile)
    for graph in profile.graphs:
        (program,) = graph.programs
        coverage = attribution.coverage([(graph, program)])
        assert coverage.allocated
        assert coverage.to_node >= 0.99 * coverage.allocated
        assert coverage.to_source >= 0.99 * coverage.allocated
    text = render_text(summarize(profile))
    assert "Graph trees" in text
    assert "0/0 forward" in text


def test_an_overwritten_output_names_its_node_and_line() -> None:
    compiled = torch.compile(Net().cuda().eval(), backend="memprof")
    x = torch.ones(8, 64, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            held = compiled(x)
        torch.compiler.cudagraph_mark_step_begin()
        compiled(x)
        with pytest.raises(RuntimeError) as caught:
            held + 1
    message = str(caught.value)
    assert "has been overwritten" in message
    assert inspect.getfile(Net) in message
    assert "module down" in message


def test_what_becomes_of_outputs_is_each_functions_own_choice() -> None:
    # GIVEN two compiled functions in the same trees, one of which clones what is held
    x = torch.ones(8, 64, device="cuda")
    held: dict[str, list[torch.Tensor]] = {}
    functions = {
        outputs: torch.compile(Net().cuda().eval(), backend="memprof", options={"outputs": outputs})
        for outputs in ("clone", "error")
    }
    # WHEN both are called in turn and all outputs are kept
    with torch.no_grad():
        for _ in range(5):
            for outputs, f in functions.items():
                held.setdefault(outputs, []).append(f(x))
    # THEN those of the one can be used, and of the other the last alone
    last = held["clone"][-1].clone()
    assert all(torch.equal(t, last) for t in held["clone"])
    held["error"][-1].sum()
    for overwritten in held["error"][3:-1]:
        with pytest.raises(RuntimeError, match="has been overwritten"):
            overwritten.sum()


def test_graphs_can_be_turned_off() -> None:
    profile, _ = train(4, "cuda", graphs=False)
    assert not [e for e in profile.ledger if e.tree is not None]
    assert profile.calls.program == [0] * len(profile.calls)


def test_after_a_reset_nothing_is_left_on_the_device() -> None:
    from memprof.simulated_cuda import control as simgpu

    train(5, "cuda")
    torch._dynamo.reset()
    gc.collect()
    assert all_managers() == []
    # NOR after another reset of a function that lives on, with its result held
    compiled = torch.compile(Net().cuda(), backend="memprof")
    for _ in range(2):
        for _ in range(5):
            result = compiled(torch.ones(8, 64, device="cuda"))
            result.sum().backward()
        assert simgpu.live(simgpu.EXECS) > 0
        torch._dynamo.reset()
        assert all_managers() == []
        assert simgpu.live(simgpu.EXECS) == 0
    del compiled, result
    gc.collect()
    torch.cuda.synchronize()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    assert torch.cuda.memory_allocated() == 0


def test_a_program_holds_no_autotuning_and_no_workspace() -> None:
    # GIVEN first calls in which Triton tunes kernels and cuBLAS takes a workspace of megabytes
    profile, _ = train(6, "cuda")
    forward = next(g for g in profile.graphs if g.kind is GraphKind.FORWARD)
    # THEN the program, observed after them, has what the model needs and nothing else
    (program,) = forward.programs
    parameters = sum(p.numel() * 4 for p in Net().parameters())
    assert parameters <= program.entry_bytes < parameters + (1 << 16)
    # torch 2.15 takes and gives back a cuBLAS workspace of 1 MiB around each matmul.
    assert program.peak()[1] < parameters + (4 << 20)


@pytest.mark.parametrize("training", [False, True])
def test_being_observed_takes_no_memory_beside_the_pool(training: bool) -> None:
    # GIVEN layers whose activations are far larger than their weights
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(m for _ in range(4) for m in (torch.nn.Linear(64, 64), torch.nn.GELU()))
    ).cuda()
    x = torch.randn(1 << 14, 64, device="cuda")
    compiled = torch.compile(model, backend="memprof")
    gc.collect()
    torch.cuda.empty_cache()
    reserved = []
    with torch.set_grad_enabled(training), memprof.profile() as session:
        for _ in range(5):
            y = compiled(x).sum()
            if training:
                y.backward()
                model.zero_grad()
            del y
            reserved.append(torch.cuda.max_memory_reserved())
    # THEN each graph was observed and then recorded
    profile = session.profile()
    assert {g.kind for g in profile.graphs} == (
        {GraphKind.FORWARD, GraphKind.BACKWARD} if training else {GraphKind.INFERENCE}
    )
    for graph in profile.graphs:
        (program,) = graph.programs
        assert program.internal_observed
        assert max(s.nbytes for s in program.storages if s.origin is Origin.BUFFER) == x.nbytes
        assert any(e.kind is LedgerKind.RECORD and e.graph == graph.id for e in profile.ledger)
    # AND both took no more than the warm-up: a pool beside the pool would be twice as much
    assert max(reserved) <= 1.25 * reserved[0]


@pytest.mark.usefixtures("one_of_two_ranks")
@pytest.mark.parametrize("asked_for", [False, True])
def test_parameters_that_fsdp_gathers_get_no_graph_unless_asked_for(asked_for: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    blocks = [Net(), nn.Sequential(nn.Linear(16, 64), Net())]
    model = nn.Sequential(*blocks).cuda()
    for b in blocks:
        b.compile(backend="memprof", options={"graphs": True} if asked_for else None)
        fully_shard(b)
    fully_shard(model)
    with memprof.profile() as session:
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(8, 64, device="cuda")).sum().backward()
    profile = session.profile()
    graphed = {e.graph for e in profile.ledger if e.kind is LedgerKind.WARM_UP}
    told = {e.graph: e.reason for e in profile.ledger if e.kind is LedgerKind.NOT_GRAPHED}
    every = {g.id for g in profile.graphs}
    if asked_for:
        assert graphed
        assert not told
    else:
        # THEN each graph, forward or backward, says once why it has none, and no pool is begun
        assert not graphed
        assert told.keys() == every
        assert "4 of its parameters are sharded by FSDP" in told[min(every)]
        assert not all_managers()
    # and is observed all the same
    assert {p for p in profile.calls.program if p >= 0}


@pytest.mark.parametrize(
    ("of", "read"),
    [
        (lambda y: y, "in a later partition"),
        (lambda y: y[:2], "between partitions"),
        (lambda y: y[:2], "in both"),
    ],
)
def test_what_a_graph_in_parts_is_given_has_its_value_in_all_of_them(
    of: Callable[[torch.Tensor], torch.Tensor], read: str
) -> None:
    # GIVEN a graph of several partitions, with code between them
    def g(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        b = (a * 2 + y if read == "in both" else a * 2).cpu() + 1
        if read != "in a later partition":
            b = b + y.cpu()
        return b.cuda() + (y * 3 if read != "between partitions" else a)

    first = torch.compile(lambda x: x * 2, backend="memprof")
    then = torch.compile(g, backend="memprof")
    with torch.no_grad():
        for i in range(6):
            y = of(first(torch.full((4, 4), float(i), device="cuda")))
            # WHEN it begins a step, given an output of the last one
            a = torch.ones(len(y), 4, device="cuda")
            z = then(a, y)
            # THEN all that reads it reads its value
            same(z, g(a, torch.full_like(a, 2.0 * i)))
            # AND whoever holds it can go on using it
            same(y, torch.full((len(y), 4), 2.0 * i))
            del y, z


def test_only_graphs_in_parts_tell_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []

    def noted(call: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
        told.append(call)
        return call

    monkeypatch.setattr(cudagraph_trees, "tell_what_is_given", noted)
    x = torch.ones(4, device="cuda")
    # WHEN a graph is one partition
    torch.compile(lambda x: (x * 2 + 1).sum(0), backend="memprof")(x)
    # THEN nothing is between its caller and its code
    assert not told
    # AND it is told apart from one with code beside its only partition
    torch.compile(lambda x: (x * 2 + 1).cpu(), backend="memprof")(x)
    assert told
