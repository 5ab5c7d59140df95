"""Every feature of torch.compile computes with memprof what it computes with Inductor."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch.utils import _pytree as pytree

import memprof
from memprof.profiler.model import LedgerKind, Profile

from .features import FEATURES, Feature

# Features in which some graph cannot be observed statement by statement, and why.
PARTLY_OBSERVED = {"cpp_wrapper": "no Python wrapper"}


def _run(feature: Feature, backend: str) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(1234)
    # Features make few calls: straight calls are to begin with the first one.
    with functorch_config.patch(check_custom_op_aliasing=False):
        return feature(functools.partial(torch.compile, backend=backend))


def _assert_same(actual: Any, expected: Any) -> None:
    a, a_spec = pytree.tree_flatten(actual)
    e, e_spec = pytree.tree_flatten(expected)
    assert a_spec == e_spec
    for i, (x, y) in enumerate(zip(a, e, strict=True)):
        if isinstance(x, torch.Tensor):
            assert torch.equal(x, y), f"value {i}: largest difference {(x - y).abs().max()}"
        else:
            assert x == y, f"value {i}"


def _check(profile: Profile) -> None:
    fallbacks = [e.reason for e in profile.ledger if e.kind is LedgerKind.FALLBACK]
    assert not fallbacks
    assert profile.graphs, "nothing was compiled by memprof"
    called = set(profile.calls.graph)
    assert called <= {g.id for g in profile.graphs}
    for graph in profile.graphs:
        assert graph.calls == profile.calls.graph.count(graph.id)


@pytest.mark.parametrize("name", sorted(FEATURES))
def test_feature_is_bitwise_equal_to_inductor(name: str) -> None:
    # GIVEN what plain Inductor computes
    expected = _run(FEATURES[name], "inductor")
    # WHEN the same program runs under memprof
    with memprof.profile() as session:
        actual = _run(FEATURES[name], "memprof")
    # THEN it computes the same, and memprof wrapped every graph without a failure
    _assert_same(actual, expected)
    profile = session.profile()
    _check(profile)
    # AND every graph that was called has a program
    for graph in profile.graphs:
        if graph.calls and name not in PARTLY_OBSERVED:
            assert graph.unobservable is None, graph.unobservable
            assert graph.programs


def test_a_program_of_data_dependent_sizes_stands_for_no_other_call() -> None:
    with memprof.profile() as session:
        _run(FEATURES["unbacked_sizes"], "memprof")
    profile = session.profile()
    (graph,) = profile.graphs
    assert graph.data_dependent == "sizes depend on data: u0"
    assert profile.calls.program == [0, 0]
    # GIVEN both observations are used up, a third call has no program
    c = torch.compile(lambda x: torch.nonzero(x > 0).sum(), backend="memprof", fullgraph=True)
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        memprof.profile() as session,
    ):
        for n in range(1, 4):
            c(torch.ones(8) * n)
    assert session.profile().calls.program == [0, 0, -1]


@pytest.mark.parametrize("name", ["static_shapes", "dynamic_automatic", "attention", "dropout"])
def test_feature_again_from_a_warm_cache(name: str) -> None:
    # GIVEN a first run that filled Inductor's cache
    expected = _run(FEATURES[name], "memprof")
    # WHEN the same program is compiled again
    with memprof.profile() as session:
        actual = _run(FEATURES[name], "memprof")
    # THEN the graphs come from the cache, with their provenance
    _assert_same(actual, expected)
    profile = session.profile()
    _check(profile)
    assert {g.fx_cache for g in profile.graphs} <= {"hit", "bypass"}
    assert any(g.fx_cache == "hit" for g in profile.graphs)
    for graph in profile.graphs:
        if graph.fx_cache == "hit":
            assert graph.buffers
            assert graph.nodes


def test_a_retained_graph_is_not_run_by_cached_code_that_writes_to_what_it_saved() -> None:
    def gradients(keep: bool) -> list[torch.Tensor]:
        torch._dynamo.reset()
        w = torch.linspace(-1, 1, 64).view(8, 8).requires_grad_()
        y = torch.compile(lambda w: (w @ w).relu() @ w, backend="memprof")(w).sum()
        return [torch.autograd.grad(y, w, retain_graph=keep)[0] for _ in range(1 + keep)]

    # GIVEN code in Inductor's cache that may write to saved tensors, and none in AOTAutograd's, a
    # hit in which torch would refuse to run while the graph is retained
    with functorch_config.patch(enable_autograd_cache=False):
        (expected,) = gradients(keep=False)
        # WHEN the graph is compiled while it is retained THEN its second backward is right, too
        with memprof.profile() as session:
            actual = gradients(keep=True)
    _assert_same(actual, [expected, expected])
    hits = [g.fx_cache for g in session.profile().graphs]
    assert hits == ["hit", "miss"]
