"""One small program per feature of torch.compile, each a function of the backend alone.

A feature returns everything it computed, so that two backends can be compared bit by bit.
Each sets its own seeds. ``compile`` is torch.compile with the backend filled in.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Compile = Callable[..., Any]
Feature = Callable[[Compile], Any]

FEATURES: dict[str, Feature] = {}


def feature(function: Feature) -> Feature:
    FEATURES[function.__name__] = function
    return function


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 8))


def _train(model: nn.Module, compiled: Any, batches: list[torch.Tensor]) -> list[torch.Tensor]:
    out = []
    for batch in batches:
        y = compiled(batch)
        y.float().square().sum().backward()
        out.append(y.detach())
    grads = [p.grad for p in model.parameters()]
    return [*out, *grads, *(b.clone() for b in model.buffers())]


def _batches(*sizes: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(n, 16) for n in sizes]


@feature
def static_shapes(compile: Compile) -> Any:
    m = _net()
    return _train(m, compile(m), _batches(4, 4, 4))


@feature
def dynamic_true(compile: Compile) -> Any:
    m = _net()
    return _train(m, compile(m, dynamic=True), _batches(4, 6, 9, 4))


@feature
def dynamic_automatic(compile: Compile) -> Any:
    m = _net()
    return _train(m, compile(m), _batches(4, 6, 9, 4))


@feature
def graph_breaks(compile: Compile) -> Any:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x).relu()
            torch._dynamo.graph_break()
            x = x + 1
            torch._dynamo.graph_break()
            return self.b(x)

    torch.manual_seed(0)
    m = Broken()
    return _train(m, compile(m), _batches(4, 4))


@feature
def no_grad_and_inference_mode(compile: Compile) -> Any:
    m = _net().eval()
    c = compile(m)
    (x,) = _batches(4)
    with torch.no_grad():
        a = c(x)
    with torch.inference_mode():
        b = c(x)
    return a, b.clone()


@feature
def input_mutation_inference(compile: Compile) -> Any:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    a, b = torch.zeros(64), torch.ones(64)
    return compile(f)(a, b), a, b


@feature
def input_mutation_training(compile: Compile) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(w.detach())
        return (x * w).sum()

    torch.manual_seed(0)
    x, w = torch.zeros(64), torch.randn(64, requires_grad=True)
    y = compile(f)(x, w)
    y.backward()
    return y.detach(), x, w.grad


@feature
def buffer_mutation(compile: Compile) -> Any:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n", torch.zeros(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            return x * self.n

    m = Counter()
    c = compile(m)
    return [c(torch.ones(8)) for _ in range(3)], m.n


@feature
def output_aliases(compile: Compile) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        return y, y.t(), x.view(-1), w, y[1:]

    torch.manual_seed(0)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    out = compile(f)(x, w)
    assert out[2].data_ptr() == x.data_ptr()
    assert out[1].data_ptr() == out[0].data_ptr()
    assert out[3] is w
    out[1].sum().backward()
    return [o.detach() for o in out], w.grad


@feature
def dropout(compile: Compile) -> Any:
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.5))
    c = compile(m)
    (x,) = _batches(8)
    out = _train(m, c, [x, x, x])
    assert not torch.equal(out[0], out[1])
    return out


@feature
def attention(compile: Compile) -> Any:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norm(x)).view(-1, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(-1, 8, 16))

    torch.manual_seed(0)
    m = Attention()
    return _train(m, compile(m), [torch.randn(2, 8, 16) for _ in range(3)])


@feature
def autocast(compile: Compile) -> Any:
    m = _net()
    c = compile(m)
    with torch.autocast("cpu", torch.bfloat16):
        return _train(m, c, _batches(4, 4))


@feature
def activation_checkpoint(compile: Compile) -> Any:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.1), nn.Linear(64, 16))

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.body, x, use_reentrant=False)

    torch.manual_seed(0)
    m = Checkpointed()
    return _train(m, compile(m), _batches(4, 4))


@feature
def compiled_optimizer(compile: Compile) -> Any:
    m = _net()
    optimizer = torch.optim.Adam(m.parameters())
    step = compile(lambda: optimizer.step())
    for batch in _batches(4, 4, 4):
        optimizer.zero_grad()
        m(batch).sum().backward()
        step()
    return [p.detach() for p in m.parameters()]


@feature
def tensor_subclass(compile: Compile) -> Any:
    from torch.testing._internal.two_tensor import TwoTensor

    torch.manual_seed(0)
    w = nn.Parameter(TwoTensor(torch.randn(4, 4), torch.randn(4, 4)))
    f = compile(lambda x: (x @ w).sin().sum())
    for _ in range(3):
        f(torch.ones(4, 4)).backward()
    return w.grad.a, w.grad.b


@feature
def cond(compile: Compile) -> Any:
    def f(p: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.cond(p, lambda x: (x @ x).sin() + 1, lambda x: x.cos(), (x,))

    c = compile(f, fullgraph=True)
    x = torch.ones(8, 8)
    return [c(torch.tensor(b), x) for b in (True, False, True, False)]


@feature
def while_loop(compile: Compile) -> Any:
    from torch._higher_order_ops.while_loop import while_loop as loop

    def f(x: torch.Tensor) -> Any:
        return loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2 + 1), (torch.tensor(0), x))

    c = compile(f, fullgraph=True)
    return [c(torch.ones(8)) for _ in range(3)]


@feature
def graph_without_calls(compile: Compile) -> Any:
    w = torch.arange(3.0, requires_grad=True)
    c = compile(lambda x: (x.detach().view(-1), x))
    out = [c(w) for _ in range(3)]
    return [(a.detach(), b.detach()) for a, b in out]


@feature
def nested(compile: Compile) -> Any:
    inner = compile(lambda x: x.sin() + 1)
    outer = compile(lambda x: inner(x).cos() * 2)
    x = torch.linspace(0, 1, 64)
    return [outer(x), inner(x), outer(x)]


@feature
def repeated(compile: Compile) -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    x = torch.linspace(0, 1, 64)
    return [compile(f)(x), compile(compile(f))(x), compile(f, dynamic=True)(x)]


@feature
def several_models(compile: Compile) -> Any:
    models = [_net(), nn.Sequential(nn.Linear(16, 4), nn.Tanh()), _net()]
    compiled = [compile(m) for m in models]
    out = []
    for _ in range(3):
        for m, c in zip(models, compiled, strict=True):
            out += _train(m, c, _batches(4))
    return out


@feature
def custom_autograd_function(compile: Compile) -> Any:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return g * x.exp() * 2

    torch.manual_seed(0)
    w = torch.randn(64, requires_grad=True)
    c = compile(lambda x: Double.apply(x).sum())
    for _ in range(3):
        c(w).backward()
    return (w.grad,)


@feature
def unbacked_sizes(compile: Compile) -> Any:
    c = compile(lambda x: torch.nonzero(x > 0).sum() + x.sum().item(), fullgraph=True)
    with torch._dynamo.config.patch(
        capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True
    ):
        return [c(x) for x in (torch.arange(10.0), torch.arange(10.0) - 5)]


@feature
def retained_graph(compile: Compile) -> Any:
    # No other feature has this network: if the backward came from AOTAutograd's cache, compiled
    # for a graph that is not kept, torch itself would refuse.
    m = nn.Sequential(_net(), nn.Tanh())
    y = compile(m)(_batches(4)[0]).sum()
    y.backward(retain_graph=True)
    y.backward()
    return [p.grad for p in m.parameters()]


@feature
def double_backward_refused(compile: Compile) -> Any:
    m = nn.Linear(16, 4)
    torch.manual_seed(0)
    c = compile(m)
    x = _batches(4)[0].requires_grad_()
    (g,) = torch.autograd.grad(c(x).square().sum(), x, create_graph=True)
    try:
        g.sum().backward()
    except RuntimeError as error:
        return "torch.compile" in str(error) or "double backward" in str(error)
    return False


@feature
def fallback_operators(compile: Compile) -> Any:
    def f(x: torch.Tensor) -> Any:
        values, indices = torch.topk(x, 4)
        return torch.sort(x)[0], values, indices, torch.cumsum(x, 0), torch.cat([x, x.sin()])

    c = compile(f)
    x = torch.linspace(-1, 1, 64)
    return [c(x) for _ in range(3)]


@feature
def freezing(compile: Compile) -> Any:
    m = _net().eval()
    (x,) = _batches(4)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        c = compile(copy.deepcopy(m))
        return [c(x) for _ in range(3)]


@feature
def torch_compiled_autograd(compile: Compile) -> Any:
    m = _net()
    c = compile(m)
    with torch._dynamo.utils.maybe_enable_compiled_autograd(True):
        return _train(m, c, _batches(4, 4))


@feature
def cpp_wrapper(compile: Compile) -> Any:
    c = compile(lambda x: (x @ x).sin() + 1, options={"cpp_wrapper": True})
    x = torch.linspace(0, 1, 64).view(8, 8)
    return [c(x) for _ in range(3)]


@feature
def mode(compile: Compile) -> Any:
    m = _net()
    return _train(m, compile(m, mode="reduce-overhead"), _batches(4, 4, 4))


@feature
def convolutions(compile: Compile) -> Any:
    torch.manual_seed(0)
    m = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return _train(m, compile(m), [torch.randn(2, 3, 16, 16) for _ in range(3)])
