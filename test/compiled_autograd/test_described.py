"""Decisions of the tracer that follow from the description of a compiled function's forward."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import memprof
from memprof import compiled_autograd as ca
from memprof.compiled_autograd.aot_backward import described
from memprof.compiled_autograd.nodes import SAVED_AS, VALUE
from memprof.profiler.model import GraphDescription, MemoryFormatMeta

from .support import captures

Program = Callable[..., Any]


def compiled(program: Program, **options: Any) -> Any:
    own = {"compiled_autograd": True, "graphs": False, "observe_runs": 0}
    return torch.compile(program, backend="memprof", options=own, **options)


def asks_torch(capture: ca.CapturedBackward) -> bool:
    called = (getattr(n.target, "__name__", "") for n in capture.graph.graph.nodes)
    return "aot_backward_prologue" in called


def loss_of(outputs: Any) -> Tensor:
    found = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return torch.stack([x.float().sin().sum() for x in found if x.requires_grad]).sum()


def leaf(*shape: int) -> Tensor:
    torch.manual_seed(len(shape))
    return torch.randn(*shape, requires_grad=True)


def returns_views(x: Tensor, w: Tensor) -> Any:
    y = x @ w
    return y.t(), y[0], x.t(), (x.detach() > 0)


def writes_after_the_call(x: Tensor, w: Tensor) -> Any:
    y = x * 2
    y.mul_(w)
    return y, (x.detach() > 0).sum(), y.sin()


def keeps_sizes(x: Tensor, w: Tensor) -> Tensor:
    return (x.sum(0) / x.shape[0] * w).sin() * x.shape[0]


def without_a_gradient(x: Tensor, w: Tensor) -> Any:
    return x.sin() @ w.detach(), w.detach() + 1


def one_gradient_for_two(x: Tensor, w: Tensor) -> Tensor:
    return x + w


def channels_last(x: Tensor, w: Tensor) -> Tensor:
    return F.conv2d(x.to(memory_format=torch.channels_last), w)


PROGRAMS: list[tuple[Program, tuple[int, ...], tuple[int, ...]]] = [
    (returns_views, (3, 4), (4, 5)),
    (writes_after_the_call, (3, 4), (3, 4)),
    (keeps_sizes, (3, 4), (4,)),
    (without_a_gradient, (3, 4), (4, 5)),
    (one_gradient_for_two, (3, 4), (3, 4)),
    (channels_last, (2, 4, 5, 5), (6, 4, 3, 3)),
]


@pytest.mark.parametrize(
    ("program", "x_shape", "w_shape"), PROGRAMS, ids=[p.__name__ for p, *_ in PROGRAMS]
)
def test_values_without_torchs_prologue(
    program: Program, x_shape: tuple[int, ...], w_shape: tuple[int, ...]
) -> None:
    w = leaf(*w_shape)
    sizes_vary = program is keeps_sizes
    run = compiled(program, dynamic=sizes_vary)
    with captures() as found:
        for rows in (x_shape[0], x_shape[0] + sizes_vary):
            x = leaf(rows, *x_shape[1:])
            wanted = torch.autograd.grad(loss_of(program(x, w)), (x, w), allow_unused=True)
            x.grad = w.grad = None
            loss_of(run(x, w)).backward()
            torch.testing.assert_close([x.grad, w.grad], list(wanted))
    assert found
    for capture in found:
        assert not asks_torch(capture), str(capture)
        assert not capture.disagreements


def test_names_of_parameters_in_a_captured_graph() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    with captures() as found:
        loss_of(compiled(model)(leaf(5, 3))).backward()
    (capture,) = found
    assert re.search(r"aot\d+_2_weight = inputs\[", str(capture))
    for name, _ in model.named_parameters():
        assert f": gradient of {name}\n" in str(capture)


# --- a field decides -------------------------------------------------------------------------


def backward_of(
    change: Callable[[GraphDescription], GraphDescription], gradient: Tensor | None = None
) -> tuple[Tensor, Tensor, ca.CapturedBackward, list[str]]:
    """``x`` and ``w`` after the captured backward of ``x.sin() * w`` whose description was changed,
    the capture, and what the ledger says of the node."""
    x, w = leaf(2, 3), leaf(2, 3)
    y = compiled(lambda x, w: x.sin() * w)(x, w)
    function = y.grad_fn._forward_cls
    description = described(function)
    assert description is not None
    function.memprof_description = change(description)
    with captures() as found, memprof.profile() as session:
        y.backward(torch.ones(2, 3) if gradient is None else gradient)
    told = [e.reason for e in session.profile().ledger if "CompiledFunctionBackward" in e.reason]
    return x, w, found[0], told


@pytest.mark.parametrize("stride", [(3, 1), (1, 2)])
def test_a_tangent_is_brought_into_its_layout(stride: tuple[int, int]) -> None:
    def change(found: GraphDescription) -> GraphDescription:
        layout = MemoryFormatMeta((2, 3), stride, None)
        metadata = replace(found.metadata, subclass_tangent_meta=(layout,))
        return replace(found, metadata=metadata)

    _, _, capture, told = backward_of(change)
    (call,) = (
        n for n in capture.graph.graph.nodes if getattr(n.target, "__name__", "") == "aot_tangents"
    )
    (tangent,) = call.target([torch.ones(3, 2).t() if stride == (3, 1) else torch.ones(2, 3)])
    assert tangent.stride() == stride
    assert not told


def test_an_input_that_needs_no_gradient_gets_none() -> None:
    def change(found: GraphDescription) -> GraphDescription:
        first, second = found.metadata.input_info
        infos = (first, replace(second, requires_grad=False))
        return replace(found, metadata=replace(found.metadata, input_info=infos))

    x, w, _, _ = backward_of(change)
    assert x.grad is not None
    assert w.grad is None


def test_what_is_saved_is_found_by_slice() -> None:
    """GIVEN a description that has a size more among what is saved THEN it has a tensor less, and
    the backward is torch's."""

    def change(found: GraphDescription) -> GraphDescription:
        return replace(found, metadata=replace(found.metadata, num_symints_saved_for_bw=1))

    x, w, capture, told = backward_of(change)
    assert asks_torch(capture)
    why = "is not as its forward is described: 1 saved tensors and not 2"
    assert [reason.endswith(why) for reason in told] == [True]
    torch.testing.assert_close([x.grad, w.grad], [x.cos() * w, x.sin()])


def test_metadata_that_is_not_known_leaves_it_to_torch() -> None:
    def change(found: GraphDescription) -> GraphDescription:
        return replace(found, metadata=replace(found.metadata, unknown=("tokens",)))

    x, w, capture, told = backward_of(change)
    assert asks_torch(capture)
    assert [r.endswith("not known to this memprof: tokens") for r in told] == [True]
    torch.testing.assert_close([x.grad, w.grad], [x.cos() * w, x.sin()])


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_backward_that_was_compiled_for_another_mode_is_refused(deterministic: bool) -> None:
    y = compiled(torch.sin)(leaf(3))
    try:
        torch.use_deterministic_algorithms(deterministic)
        if deterministic:
            with pytest.raises(RuntimeError, match=r"run with torch.use_deterministic_algorithms"):
                y.sum().backward()
        else:
            y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_subclasses_are_torchs() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    w = torch.nn.Parameter(TwoTensor(torch.randn(3, 4), torch.randn(3, 4)))
    x = torch.randn(2, 3)
    (x @ w).sin().sum().backward()
    assert isinstance(w.grad, TwoTensor)
    wanted, w.grad = w.grad, None
    with captures() as found:
        compiled(lambda x, w: (x @ w).sin())(x, w).sum().backward()
    assert isinstance(w.grad, TwoTensor)
    torch.testing.assert_close([w.grad.a, w.grad.b], [wanted.a, wanted.b])
    (capture,) = found
    assert asks_torch(capture)
    assert not capture.disagreements
    # AND what the forward saved is known by its description, inner tensors one by one
    saved = [n.meta for n in capture.graph.graph.nodes if SAVED_AS in n.meta]
    assert [m[SAVED_AS][1].name for m in saved] == ["mm", "mm_1", "permute"]
    for meta in saved:
        assert meta[SAVED_AS][1].shape == tuple(map(str, meta[VALUE].shape))
