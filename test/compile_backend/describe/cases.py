"""Functions that between them bring out everything AOTAutograd's metadata can say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal.two_tensor import TwoTensor

Case = Callable[[Callable[..., Any]], Any]
"""Compiles with the given backend and runs; returns nothing of interest."""

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def function(inputs: Callable[[], tuple[Any, ...]], **how: Any) -> Callable[[Any], Any]:
    """A case that compiles the decorated function, and runs its backward if it has one."""

    def add(f: Callable[..., Any]) -> Callable[..., Any]:
        CASES[f.__name__] = lambda backend: backward(
            torch.compile(f, backend=backend, **how)(*inputs())
        )
        return f

    return add


def grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def backward(result: Any) -> None:
    results = result if isinstance(result, (tuple, list)) else [result]
    flows = [r.sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if flows:
        sum(flows).backward()


# --- outputs ------------------------------------------------------------------------------


@function(lambda: (grad(2, 3), grad(2, 3)))
def output_views_of_inputs(x: Any, y: Any) -> Any:
    return x.view(-1), y, x * y, y[1:]


@function(lambda: (grad(2, 3),))
def output_views_of_intermediates(x: Any) -> Any:
    y = x * 2
    z = x.sin()
    w = x.cos()
    return y.view(-1), y.t(), z, z.view(-1), w.view(-1)


@function(lambda: (torch.randn(2, 3),))
def output_views_in_inference(x: Any) -> Any:
    y = x * 2
    return x.view(-1), x, y, y.view(-1), y.t(), 3


@torch._dynamo.allow_in_graph
class CustomView(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


@function(lambda: (grad(2, 3),))
def output_of_custom_function_is_view(x: Any) -> Any:
    return CustomView.apply(x * 1), CustomView.apply(x)


# --- mutations ----------------------------------------------------------------------------


@function(lambda: (torch.randn(4), torch.randn(4)))
def mutation_in_graph(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x + y


@function(lambda: (torch.randn(4), grad(4)))
def mutation_in_graph_with_backward(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x * y


@function(lambda: (grad(4).clone(), grad(4)))
def mutation_seen_by_autograd(x: Any, y: Any) -> Any:
    x.mul_(2)
    return x.sin() * y


@function(lambda: (torch.randn(2, 3), torch.randn(2, 3)))
def mutation_of_metadata(x: Any, y: Any) -> Any:
    x.t_()
    y.t_()
    y.mul_(2)
    return x + y


@function(lambda: (grad(4), grad(4)))
def mutation_hidden_from_autograd(x: Any, y: Any) -> Any:
    x.data.mul_(2)
    return y * 2 + x


@function(lambda: (grad(4), grad(4)))
def mutation_under_no_grad(x: Any, y: Any) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return y * x


@function(lambda: (torch.randn(4), torch.randn(4)))
def mutation_by_set(x: Any, y: Any) -> Any:
    with torch.no_grad():
        torch.ops.aten.set_.source_Tensor(x, y * 2)
    return y + 1


@function(lambda: (torch.randn(4),))
def mutation_by_storage_resize(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
        torch.ops.inductor.resize_storage_bytes_(x, 0)
    return y


@case
def mutation_of_overlapping_views(backend: Any) -> None:
    def f(a: Any, b: Any) -> Any:
        a.mul_(2)
        return a + b, b[:1]

    x = torch.randn(8)
    torch.compile(f, backend=backend)(x[:2], x[1:3])


@case
def mutation_of_views_of_a_base(backend: Any) -> None:
    def f(a: Any, b: Any) -> Any:
        a.mul_(2)
        return a * b

    x = grad(8).clone()
    backward(torch.compile(f, backend=backend)(x[:2], x[:2]))


# --- saved values -------------------------------------------------------------------------


class OnContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        # Products: the partitioner saves them rather than computing them again.
        y = x @ x
        ctx.save_for_backward(y)
        ctx.z = y @ x
        return y.sin()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (y,) = ctx.saved_tensors
        return gradient * y * ctx.z


@function(lambda: (grad(4, 4),))
def saved_on_context(x: Any) -> Any:
    return OnContext.apply(x) @ x


@function(lambda: (grad(4, 4),))
def saved_user_output(x: Any) -> Any:
    y = x @ x
    return y.exp(), y.sum()


@function(lambda: (grad(4, 6), grad(6, 5)), dynamic=True)
def saved_symints(x: Any, y: Any) -> Any:
    return (x @ y).view(-1) * x.shape[0], x.shape[1]


@function(lambda: (torch.randn(4, 6), 3), dynamic=True)
def dynamic_inference(x: Any, n: int) -> Any:
    return x.repeat(n, 1), x[:n], x.view(-1)


@case
def dropout(backend: Any) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.ReLU())
    backward(torch.compile(m, backend=backend)(torch.randn(4, 8)))


@case
def checkpointing(backend: Any) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))

    def f(x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(m, x, use_reentrant=False)

    backward(torch.compile(f, backend=backend)(grad(4, 8)))


# --- modules, breaks, modes ---------------------------------------------------------------


@case
def batch_norm(backend: Any) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    backward(torch.compile(m, backend=backend)(torch.randn(8, 4)))


@case
def module_in_inference(backend: Any) -> None:
    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
    with torch.no_grad():
        torch.compile(m, backend=backend)(torch.randn(8, 4))


@case
def graph_break(backend: Any) -> None:
    m = torch.nn.Linear(4, 4)

    def f(x: Any) -> Any:
        y = m(x)
        torch._dynamo.graph_break()
        return m(y).relu()

    backward(torch.compile(f, backend=backend)(torch.randn(2, 4)))


@case
def grad_mode_left_behind(backend: Any) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        torch.set_grad_enabled(False)
        return y

    try:
        torch.compile(f, backend=backend)(grad(4))
    finally:
        torch.set_grad_enabled(True)


@function(lambda: (torch.randn(4),))
def effect_token(x: Any) -> Any:
    torch.ops.aten._print("")
    return x * 2


@function(lambda: (grad(4),))
def effect_token_with_backward(x: Any) -> Any:
    torch.ops.aten._print("")
    return x.sin()


@case
def no_operators(backend: Any) -> None:
    torch.compile(lambda x: x.view(-1), backend=backend)(torch.randn(2, 2))


# --- optimizers ---------------------------------------------------------------------------


def _optimizer(make: Callable[[list[Any]], Any]) -> Any:
    parameters = [torch.nn.Parameter(torch.randn(3, 3)) for _ in range(2)]
    optimizer = make(parameters)
    for p in parameters:
        p.grad = torch.randn(3, 3)
    return optimizer


@case
def adam_step(backend: Any) -> None:
    optimizer = _optimizer(torch.optim.Adam)
    torch.compile(optimizer.step, backend=backend)()


@case
def adamw_foreach(backend: Any) -> None:
    optimizer = _optimizer(lambda ps: torch.optim.AdamW(ps, foreach=True))
    torch.compile(lambda: optimizer.step(), backend=backend)()


@case
def adamw_tensor_lr(backend: Any) -> None:
    optimizer = _optimizer(lambda ps: torch.optim.AdamW(ps, lr=torch.tensor(1e-3), foreach=False))
    torch.compile(optimizer.step, backend=backend)()


@case
def sgd_momentum(backend: Any) -> None:
    optimizer = _optimizer(lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9))
    step = torch.compile(optimizer.step, backend=backend)
    step()
    step()


# --- tensor subclasses --------------------------------------------------------------------


def two(*shape: int, requires_grad: bool = True) -> Any:
    t = TwoTensor(torch.randn(*shape), torch.randn(*shape))
    return t.requires_grad_(requires_grad)


@function(lambda: (two(2, 3), grad(2, 3)))
def two_tensor(x: Any, y: Any) -> Any:
    return x * y, (x + 1).view(-1)


@case
def two_tensor_inference(backend: Any) -> None:
    torch.compile(lambda x: x * 2, backend=backend)(two(2, 3, requires_grad=False))


@case
def nested_two_tensor(backend: Any) -> None:
    inner = [TwoTensor(torch.randn(2, 3), torch.randn(2, 3)) for _ in range(2)]
    x = TwoTensor(*inner).requires_grad_(True)
    backward(torch.compile(lambda x: x * x.sin(), backend=backend)(x))


@case
def dynamic_two_tensor(backend: Any) -> None:
    backward(torch.compile(lambda x: x * x.sin(), backend=backend, dynamic=True)(two(4, 6)))


@function(lambda: (two(2, 3, requires_grad=False),))
def mutated_two_tensor(x: Any) -> Any:
    x.mul_(2)
    return x + 1
