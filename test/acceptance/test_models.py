"""On real models memprof computes exactly what Inductor computes, dropout included, and knows where
the bytes are from and how many there are.

A model is compiled by memprof once for all of these tests. The figures are printed:
``make pytest ARGS='test/acceptance/test_models.py -rP'``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from models import zoo
from torch import Tensor

import memprof
from memprof.profiler.live.attribution import Attribution
from memprof.profiler.model import (
    AllocationProgram,
    EventKind,
    GraphKind,
    GraphRecord,
    LedgerKind,
    Origin,
    Profile,
)

from .allocator_truth import CallTruth, measure
from .training import Result, Trainer, train

_WARM_UP = 4
"""Steps before the one that is measured: observation is over by then."""
_COMPARED = 3
"""Steps whose results are compared with Inductor's."""


@dataclass
class Measured:
    """A model's training with memprof.

    Attributes:
        result: what the first steps computed.
        profile: of everything.
        calls: the compiled calls of one later step, with the allocator's figures.
    """

    name: str
    result: Result
    profile: Profile
    calls: list[tuple[GraphRecord, AllocationProgram, CallTruth]]


QUICK = ("mlp", "gpt2")
MODELS = [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in zoo.MODELS]


@pytest.fixture(scope="module", params=MODELS)
def measured(request: pytest.FixtureRequest) -> Measured:
    torch._dynamo.reset()
    with memprof.profile() as session:
        trainer = Trainer(request.param, "memprof")
        result = train(trainer, _COMPARED)
        for _ in range(_WARM_UP - _COMPARED):
            trainer.step()
            trainer.update()
        before = len(session.profile().calls)
        truths = measure(trainer.step)
        profile = session.profile()
    log = profile.calls
    # The log is in order of return; compiled calls of one step do not nest.
    numbers = range(before, len(log))
    assert len(numbers) == len(truths), "memprof's log and the allocator's windows must pair up"
    calls = []
    for i, truth in zip(numbers, truths, strict=True):
        graph = profile.graph(log.graph[i])
        assert log.program[i] >= 0, f"no program for a call of {graph.label}: {graph.unobservable}"
        calls.append((graph, graph.programs[log.program[i]], truth))
    return Measured(request.param, result, profile, calls)


def test_bitwise_equal_to_inductor(measured: Measured) -> None:
    # GIVEN the same steps under Inductor
    torch._dynamo.reset()
    expected = train(Trainer(measured.name, "inductor"), _COMPARED)
    actual = measured.result
    # THEN every bit is the same
    assert [_bits(t) for t in actual.losses] == [_bits(t) for t in expected.losses]
    assert [_bits(t) for t in actual.outputs] == [_bits(t) for t in expected.outputs]
    _assert_same("gradient", actual.gradients, expected.gradients)
    _assert_same("state", actual.state, expected.state)
    # AND the comparison was worth something: losses move, gradients are there
    assert len({_bits(t) for t in actual.losses}) == len(actual.losses)
    assert any(t.count_nonzero() for t in actual.gradients.values())
    # AND memprof was there all the time
    for kind in (GraphKind.FORWARD, GraphKind.BACKWARD):
        calls = sum(g.calls for g in measured.profile.graphs if g.kind is kind)
        assert calls >= _WARM_UP + 1


def test_forward_and_backward_are_observed(measured: Measured) -> None:
    assert {g.kind for g, _, _ in measured.calls} == {GraphKind.FORWARD, GraphKind.BACKWARD}
    assert all(p.internal_observed for _, p, _ in measured.calls)
    assert [e for e in measured.profile.ledger if e.kind is LedgerKind.FALLBACK] == []


def test_bytes_are_attributed_to_a_node_and_a_source(measured: Measured) -> None:
    for graph, program, _ in measured.calls:
        to_node, to_source, missing = _attributed(graph, program)
        all_bytes = program.allocated_bytes
        print(
            f"{graph.label}: allocates {all_bytes}, "
            f"to a node {to_node / all_bytes:.2%}, to a source {to_source / all_bytes:.2%}"
        )
        assert to_node >= 0.99 * program.allocated_bytes, (graph.label, missing)
        assert to_source >= 0.99 * program.allocated_bytes, (graph.label, missing)


def test_reported_coverage_is_what_the_records_say(measured: Measured) -> None:
    attribution = Attribution(measured.profile)
    for graph, program, _ in measured.calls:
        coverage = attribution.coverage([(graph, program)])
        to_node, to_source, _ = _attributed(graph, program)
        assert coverage.allocated == program.allocated_bytes
        assert (coverage.to_node, coverage.to_source) == (to_node, to_source)


def test_peak_is_the_allocators(measured: Measured) -> None:
    for graph, program, truth in measured.calls:
        external = sum(s.nbytes for s in program.storages if s.origin is Origin.EXTERNAL)
        peak = program.peak()[1]
        print(
            f"{graph.label}: above the inputs {peak - program.entry_bytes}, "
            f"by the allocator {truth.peak_delta}"
        )
        # Above the entry of the call, which is where an error would show ...
        assert peak - program.entry_bytes == pytest.approx(truth.peak_delta, rel=0.01), graph.label
        # ... and with the inputs, which alone must be exact.
        assert program.entry_bytes - external == truth.entry_bytes, graph.label
        assert peak - external == pytest.approx(truth.entry_bytes + truth.peak_delta, rel=0.01), (
            graph.label
        )


def test_allocations_are_the_allocators(measured: Measured) -> None:
    for graph, program, truth in measured.calls:
        assert program.allocated_bytes == pytest.approx(truth.allocated, rel=0.01), graph.label


def _attributed(graph: GraphRecord, program: AllocationProgram) -> tuple[int, int, list[str]]:
    """Bytes allocated that lead to an FX node, to a line or module of the user's, and what misses.

    Straight from the records, as a check on ``Attribution``.
    """
    to_node = to_source = 0
    missing = []
    for event in program.events:
        if event.kind is not EventKind.ALLOC:
            continue
        storage = program.storages[event.storage]
        owner = event.owner or graph.buffer_of_line(event.line)
        buffer = graph.buffers.get(owner or "")
        name = (buffer.primary or (buffer.nodes[-1] if buffer.nodes else None)) if buffer else None
        node = graph.nodes.get(name or "")
        if node is None:
            missing.append(f"{storage.nbytes} bytes of {owner} at line {event.line}: no node")
            continue
        to_node += storage.nbytes
        if node.frame is not None or node.module_path is not None:
            to_source += storage.nbytes
        else:
            missing.append(f"{storage.nbytes} bytes of {owner}, {node.name}: no source")
    return to_node, to_source, missing


def _bits(t: Tensor) -> bytes:
    """The bits of a tensor: unlike ``torch.equal``, tells -0.0 from 0.0 and finds NaN equal."""
    return t.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _assert_same(what: str, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    different = [name for name in expected if _bits(actual[name]) != _bits(expected[name])]
    assert different == [], f"{what} differs in {len(different)} of {len(expected)}"
