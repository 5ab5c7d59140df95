"""`options={"compiled_autograd": True}`: backwards captured and compiled by memprof."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd as torchs
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import memprof
from memprof import compiled_autograd as ca
from memprof.compile_backend.options import OptionError
from memprof.compiled_autograd import _torch_compat
from memprof.profiler.model import Category, GraphKind, LedgerKind, Role

from .support import clear, gradients


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.second = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.gelu(self.first(x))
        return self.second(hidden)


def compiled(model: nn.Module, **options: Any) -> Any:
    return torch.compile(
        model, backend="memprof", options={"compiled_autograd": True, "graphs": False, **options}
    )


def test_gradients_ledger_and_provenance() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(8, 16)
    parameters = list(model.parameters())
    model(x).square().sum().backward()
    wanted = gradients(parameters)
    run = compiled(model)
    with memprof.profile() as session:
        for _ in range(3):
            clear(parameters)
            run(x).square().sum().backward()
    for got, want in zip(gradients(parameters), wanted, strict=True):
        torch.testing.assert_close(got, want)
    profile = session.profile()
    entries = [e for e in profile.ledger if "captured backward" in e.reason]
    # Not in order: entries of earlier sessions, other tests' too, are counted where they stand.
    kinds = {e.kind: e for e in entries}
    assert {kind: e.count for kind, e in kinds.items()} == {
        LedgerKind.COMPILED: 1,
        LedgerKind.CACHE_HIT: 2,
    }
    # The captured backward is a graph of the profile, with the forward's lines and modules.
    (backward,) = (g for g in profile.graphs if (g.compile_id or "").startswith("!"))
    assert backward.kind is GraphKind.BACKWARD
    assert backward.calls == 3
    modules = {n.module_path for n in backward.nodes.values()}
    assert {"first", "second"} <= modules
    files = {f.file for n in backward.nodes.values() for f in n.stack}
    assert __file__ in files
    assert not any("eval_with_key" in file for file in files)
    names = {name for name, _ in model.named_parameters()}
    assert {v.fqn for v in backward.inputs if v.role is Role.PARAMETER} == names
    assert {(v.fqn, v.role, v.category) for v in backward.outputs} == {
        (name, Role.PARAMETER_GRADIENT, Category.GRADIENT) for name in names
    }
    (forward,) = (g for g in profile.graphs if g.kind is GraphKind.FORWARD)
    saved = [v for v in backward.inputs if v.role is Role.SAVED_FOR_BACKWARD]
    # The loss is eager, and so is what it saved.
    assert [v.shape for v in saved if v.forward_graph is None] == [("8", "4")]
    linked = [v for v in saved if v.forward_graph is not None]
    assert linked
    for value in linked:
        assert value.forward_graph == forward.id
        made = forward.outputs[value.forward_output or 0]
        assert (made.role, made.shape) == (Role.SAVED_FOR_BACKWARD, value.shape)


@pytest.mark.zero_kernels
def test_roles_of_lifted_inputs() -> None:
    """GIVEN gradients to add to WHEN the backward is compiled THEN its inputs are told apart."""
    model, x = Model(), torch.randn(8, 16)
    run = compiled(model)
    with memprof.profile() as session:
        for _ in range(3):
            run(x).square().sum().backward()
    (backward,) = (g for g in session.profile().graphs if (g.compile_id or "").startswith("!1"))
    roles = Counter(v.role for v in backward.inputs)
    assert roles[Role.PARAMETER] == 4
    assert roles[Role.PARAMETER_GRADIENT] == 4
    assert roles[Role.TANGENT] == 1
    assert roles[Role.SAVED_FOR_BACKWARD] >= 2
    names = {name for name, _ in model.named_parameters()}
    assert {v.fqn for v in backward.inputs if v.role is Role.PARAMETER_GRADIENT} == names


@pytest.mark.zero_kernels
def test_one_graph_of_several_modules() -> None:
    """GIVEN layers that share one compiled graph WHEN their backward is captured THEN each
    parameter has its name within its layer."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            return F.gelu(self.linear(x))

    layers = [Layer() for _ in range(3)]
    for layer in layers:
        layer.compile(backend="memprof", options={"compiled_autograd": True, "graphs": False})
    x = torch.randn(8, 16, requires_grad=True)
    with memprof.profile() as session:
        nn.Sequential(*layers)(x).sum().backward()
    forward, backward = session.profile().graphs
    assert (forward.kind, forward.calls) == (GraphKind.FORWARD, 3)
    assert backward.kind is GraphKind.BACKWARD
    named = Counter(v.fqn for v in backward.inputs if v.role is Role.PARAMETER)
    assert named == {"linear.weight": 3, "linear.bias": 3}
    gradients = Counter(v.fqn for v in backward.outputs if v.role is Role.PARAMETER_GRADIENT)
    assert gradients == named


@pytest.mark.zero_kernels
def test_leaf_that_is_no_parameter() -> None:
    model, x = Model(), torch.randn(8, 16, requires_grad=True)
    run = compiled(model)
    with memprof.profile() as session:
        for _ in range(2):
            x.grad = None
            clear(list(model.parameters()))
            run(x).sum().backward()
    (backward,) = (g for g in session.profile().graphs if (g.compile_id or "").startswith("!"))
    assert Counter((v.role, v.category) for v in backward.outputs) == {
        (Role.PARAMETER_GRADIENT, Category.GRADIENT): 4,
        (Role.INPUT_GRADIENT, Category.AUTOGRAD_DETAIL): 1,
    }


@pytest.mark.zero_kernels
def test_disable_wins_and_reset_switches_off() -> None:
    model, x = Model(), torch.randn(8, 16)
    run = compiled(model)
    with ca.disable():
        run(x).sum().backward()
        assert not torchs.compiled_autograd_enabled
    assert not torchs.compiled_autograd_enabled
    run(x)
    assert torchs.compiled_autograd_enabled
    torch._dynamo.reset()
    assert not torchs.compiled_autograd_enabled
    model(x).sum().backward()


@pytest.mark.parametrize(("dynamic", "captures"), [(True, 2), (None, 3), (False, 3)])
def test_batch_sizes_that_change(dynamic: bool | None, captures: int) -> None:
    """GIVEN batches of three sizes, twice WHEN compiled with each ``dynamic`` THEN gradients are
    right and a backward is captured once a distinct graph: with what sizes are constants, and
    with those that changed; and for a forward that was compiled anew, again."""
    torch.manual_seed(0)
    model = Model()
    parameters = list(model.parameters())
    options = {"compiled_autograd": True, "graphs": False}
    run = torch.compile(model, backend="memprof", dynamic=dynamic, options=options)
    with memprof.profile() as session:
        for n in (8, 6, 7, 8, 6, 7):
            x = torch.randn(n, 16)
            clear(parameters)
            with ca.disable():
                model(x).square().mean().backward()
            wanted = gradients(parameters)
            clear(parameters)
            run(x).square().mean().backward()
            for got, want in zip(gradients(parameters), wanted, strict=True):
                torch.testing.assert_close(got, want)
    entries = [e for e in session.profile().ledger if "captured backward" in e.reason]
    assert sum(e.count for e in entries if e.kind is LedgerKind.COMPILED) == captures, entries
    assert sum(e.count for e in entries if e.kind is LedgerKind.CACHE_HIT) == 6 - captures


def test_what_cannot_be_captured_runs_in_the_normal_engine() -> None:
    class Boxed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    model, x = Model(), torch.randn(8, 16)
    parameters = list(model.parameters())
    run = compiled(model)

    def unsupported(ctx: Any) -> bool:
        raise ca.CaptureError("a made-up reason")

    model(x).mul(2).sum().backward()
    wanted = gradients(parameters)
    with memprof.profile() as session, pytest.MonkeyPatch.context() as patch:
        y = run(x)
        patch.setattr(_torch_compat, "takes_boxed_grads", unsupported)
        clear(parameters)
        Boxed.apply(y).sum().backward()
    for got, want in zip(gradients(parameters), wanted, strict=True):
        torch.testing.assert_close(got, want)
    assert any("a made-up reason" in e.reason for e in session.profile().ledger)


def test_sparse_gradients_are_added_in_the_normal_engine() -> None:
    """GIVEN sparse gradients to add to WHEN their number of elements changes, which Dynamo
    cannot trace anew THEN gradients are right and the ledger says what was not captured."""
    torch.manual_seed(0)
    embedding, linear = nn.Embedding(10, 16, sparse=True), Model()
    parameters = [embedding.weight, *linear.parameters()]
    run = compiled(linear)
    batches = [torch.randint(0, 10, (n,)) for n in (6, 3, 5, 4)]

    def summed(model: Any) -> list[Tensor]:
        clear(parameters)
        for batch in batches:
            model(embedding(batch)).square().sum().backward()
        return [p.grad.to_dense().clone() for p in parameters]

    wanted = summed(linear)
    with memprof.profile() as session:
        found = summed(run)
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)
    assert any("layout torch.sparse_coo" in e.reason for e in session.profile().ledger)


def test_wrong_type() -> None:
    with pytest.raises(
        (OptionError, torch._dynamo.exc.BackendCompilerFailed), match="must be bool"
    ):
        torch.compile(Model(), backend="memprof", options={"compiled_autograd": 1})(
            torch.randn(8, 16)
        )
