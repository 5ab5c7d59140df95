"""Gradients of captured backwards are the normal engine's, feature by feature."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn as nn
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from memprof import compiled_autograd as ca
from memprof.compiled_autograd import _torch_compat

from .support import COMPILERS, captures, check, clear, gradients, same


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def parameters_of(model: nn.Module) -> list[Tensor]:
    return list(model.parameters())


# --- ways to ask for gradients ------------------------------------------------------------


def test_autograd_grad(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    check(lambda: torch.autograd.grad(model(x).square().sum(), parameters), parameters)


def test_autograd_grad_with_unused_and_given_gradients(model: nn.Module, x: Tensor) -> None:
    parameters = [*parameters_of(model), torch.randn(2, requires_grad=True)]
    grads = torch.randn(5, 3)

    def step() -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(model(x), parameters, grads, allow_unused=True)

    check(step, parameters)


def test_backward_with_inputs(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    check(lambda: model(x).sum().backward(inputs=parameters[:2]), parameters)


def test_several_roots(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        y = model(x)
        torch.autograd.backward([y.sum(), y.square().mean()])

    check(step, parameters_of(model))


def test_two_roots_that_share_their_gradient() -> None:
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    grad = torch.randn(3)
    check(lambda: torch.autograd.backward([a * 2, b * 3], [grad, grad]), [a, b])


def test_gradient_that_reaches_two_leaves() -> None:
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)

    def step() -> None:
        (a + b).sum().backward()
        assert a.grad is not b.grad

    check(step, [a, b])
    # Memory is not shared either: writing one leaves the other.
    with ca.enable(COMPILERS["as_it_is"]):
        clear([a, b])
        (a + b).backward(torch.ones(3))
    assert a.grad is not None
    a.grad.mul_(5)
    assert b.grad is not None
    assert torch.equal(b.grad, torch.ones(3))


def test_broadcast_and_mixed_dtypes() -> None:
    a = torch.randn(4, 1, requires_grad=True)
    b = torch.randn(3, requires_grad=True, dtype=torch.float64)
    check(lambda: (a * b).sin().sum().backward(), [a, b])


def test_accumulation_over_micro_batches(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        for part in (x, x + 1, x + 2):
            model(part).square().sum().backward()

    check(step, parameters_of(model), expect=2)  # the first has no gradient to add to


def test_retain_graph(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()

    check(step, parameters_of(model), expect=2)


def test_double_backward(model: nn.Module, x: Tensor) -> None:
    """GIVEN a gradient penalty WHEN captured THEN create_graph runs in the normal engine and
    the second backward is captured."""
    x = x.requires_grad_()

    def step() -> None:
        y = model(x).sigmoid().sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (y + g.square().sum()).backward()

    check(step, [*parameters_of(model), x])


def test_backward_in_a_hook_runs_in_the_normal_engine(model: nn.Module, x: Tensor) -> None:
    other = torch.randn(3, requires_grad=True)

    def hook(grad: Tensor) -> Tensor:
        with torch.enable_grad():
            (inner,) = torch.autograd.grad((other * other).sum(), other)
        return grad * inner.sum()

    def step() -> None:
        y = model(x)
        y.register_hook(hook)
        y.sum().backward()

    check(step, parameters_of(model), compilers=("as_it_is",))


def test_dynamic_batch_sizes(model: nn.Module) -> None:
    """GIVEN dynamic=True WHEN batch sizes change THEN the first capture serves all others."""
    parameters = parameters_of(model)
    batches = [torch.randn(n, 4) for n in (5, 7, 3, 9, 12)]
    wanted = []
    for batch in batches:
        clear(parameters)
        model(batch).square().mean().backward()
        wanted.append(gradients(parameters))
    for compiler in COMPILERS.values():
        ca.reset()
        with captures() as found, ca.enable(compiler, dynamic=True):
            for batch, expected in zip(batches, wanted, strict=True):
                clear(parameters)
                model(batch).square().mean().backward()
                assert same(gradients(parameters), expected)
        assert len(found) == 1, [c.reason for c in found]


def test_sizes_are_constants_until_they_change(model: nn.Module) -> None:
    """GIVEN dynamic=False WHEN a size changes THEN one more capture has it as an input."""
    parameters = parameters_of(model)
    with captures() as found, ca.enable(COMPILERS["as_it_is"], dynamic=False):
        for n in (5, 7, 5, 9, 3):
            batch = torch.randn(n, 4)
            with ca.disable():
                wanted = torch.autograd.grad(model(batch).square().mean(), parameters)
            clear(parameters)
            model(batch).square().mean().backward()
            assert same(gradients(parameters), wanted)
    assert len(found) == 2, [c.reason for c in found]
    assert len(found[0].passes.used_sizes) == 0
    assert len(found[1].passes.used_sizes) > 0


# --- hooks --------------------------------------------------------------------------------


def test_tensor_hooks(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    handles = [parameters[0].register_hook(lambda g: g * 2)]
    handles.append(parameters[0].register_hook(lambda g: g + 1))
    handles.append(parameters[3].register_hook(lambda g: None))

    def step() -> None:
        h = model[1](model[0](x))
        h.register_hook(lambda g: g.clamp(min=0))
        model[2](h).square().sum().backward()

    check(step, parameters)
    for handle in handles:
        handle.remove()


def test_node_hooks(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        h = model[0](x)
        y = model[2](model[1](h))
        h.grad_fn.register_prehook(lambda grads: tuple(g * 3 for g in grads))
        h.grad_fn.register_hook(lambda ins, outs: tuple(None if g is None else g + 1 for g in ins))
        y.square().sum().backward()

    check(step, parameters_of(model))


def test_module_backward_hooks(model: nn.Module, x: Tensor) -> None:
    handles = [
        model[0].register_full_backward_hook(lambda m, gi, go: None),
        model[2].register_full_backward_pre_hook(lambda m, go: (go[0] * 2,)),
    ]
    check(lambda: model(x).sum().backward(), parameters_of(model))
    for handle in handles:
        handle.remove()


def test_hooks_of_accumulation_run_in_order(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    for compiled in (False, True):
        seen: list[str] = []
        handles: list[Any] = [
            parameters[0].register_hook(lambda g, s=seen: s.append("tensor")),
            parameters[0].register_post_accumulate_grad_hook(lambda p, s=seen: s.append("after")),
        ]
        accumulator = torch.autograd.graph.get_gradient_edge(parameters[0]).node
        handles.append(accumulator.register_prehook(lambda g, s=seen: s.append("pre")))
        handles.append(accumulator.register_hook(lambda i, o, s=seen: s.append("post")))
        clear(parameters)
        if compiled:
            with ca.enable(COMPILERS["as_it_is"]):
                model(x).sum().backward()
        else:
            model(x).sum().backward()
        for handle in handles:
            handle.remove()
        assert seen == ["tensor", "pre", "after", "post"], compiled


@pytest.mark.parametrize("compile_forward", [False, True])
def test_optimizer_in_a_post_accumulate_hook(
    model: nn.Module, x: Tensor, compile_forward: bool
) -> None:
    """GIVEN an optimizer that writes each parameter as soon as its gradient is there WHEN the
    graph of a compiled forward is inlined THEN nodes that read a parameter read its old value."""
    parameters = parameters_of(model)
    run: Any = torch.compile(model, backend="aot_eager") if compile_forward else model
    start = [p.detach().clone() for p in parameters]

    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.5)
        parameter.grad = None

    def trained(compiler: Any) -> list[Tensor]:
        with torch.no_grad():
            for parameter, value in zip(parameters, start, strict=True):
                parameter.copy_(value)
        clear(parameters)
        for _ in range(3):
            if compiler is None:
                run(x).square().sum().backward()
            else:
                with ca.enable(compiler, dynamic=False):
                    run(x).square().sum().backward()
        return [p.detach().clone() for p in parameters]

    handles = [p.register_post_accumulate_grad_hook(update) for p in parameters]
    wanted = trained(None)
    assert not same(wanted, start)
    assert same(trained(COMPILERS["as_it_is"]), wanted)
    if compile_forward:
        assert same(trained(COMPILERS["aot_eager"]), wanted)
    else:
        # The forward saved a view of the parameter; AOTAutograd refuses a graph that writes
        # a leaf and reads a view of it. It says so before anything has run.
        with pytest.raises(Exception, match="leaf"):
            trained(COMPILERS["aot_eager"])
    for handle in handles:
        handle.remove()


def test_saved_tensor_hooks(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1.0):
            y = model(x)
        y.square().sum().backward()

    check(step, parameters_of(model))


def test_saved_tensors_on_cpu(model: nn.Module, x: Tensor) -> None:
    def step() -> None:
        with torch.autograd.graph.save_on_cpu():
            y = model(x)
        y.square().sum().backward()

    check(step, parameters_of(model))


def test_final_callbacks(model: nn.Module, x: Tensor) -> None:
    """queue_callback needs a compiler that takes the whole graph."""
    parameters = parameters_of(model)
    seen: list[int] = []

    def hook(grad: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append(1))

    def whole(graph: Any) -> Any:
        return torch.compile(graph, backend="eager", fullgraph=True)

    handle = parameters[0].register_hook(hook)
    with ca.enable(whole, dynamic=False):
        model(x).sum().backward()
    handle.remove()
    assert seen == [1]


# --- functions and views ------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.factor = 3.0
        return x * w * 3

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad * w * ctx.factor, grad * x * ctx.factor


class TwoOutputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, flag: bool) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> tuple[Tensor | None, None]:
        return (a if b is None else b if a is None else a + b), None


def test_custom_function() -> None:
    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    check(lambda: Scaled.apply(x, w).sin().sum().backward(), [x, w])


def test_custom_function_with_missing_gradients() -> None:
    x = torch.randn(4, requires_grad=True)
    check(lambda: TwoOutputs.apply(x, True)[1].sum().backward(), [x])


def test_custom_function_twice(model: nn.Module) -> None:
    x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    check(lambda: Scaled.apply(Scaled.apply(x, w), w).sum().backward(), [x, w])


def test_copy_slices() -> None:
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, requires_grad=True)

    def step() -> None:
        base = x.clone()
        base[:, 1] = y * 2
        base[0].mul_(3)
        base.t()[2].add_(y.sum())
        base.square().sum().backward()

    check(step, [x, y])


def test_copy_slices_of_a_custom_function() -> None:
    class Double_(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    x = torch.randn(4, 3, requires_grad=True)

    def step() -> None:
        base = x.clone()
        Double_.apply(base[1])
        base.sin().sum().backward()

    check(step, [x])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(model: nn.Module, x: Tensor, reentrant: bool) -> None:
    x = x.requires_grad_()

    def step() -> None:
        h = checkpoint(model, x, use_reentrant=reentrant)
        h.square().sum().backward()

    check(step, [*parameters_of(model), x])


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_around_a_compiled_forward(model: nn.Module, x: Tensor, reentrant: bool) -> None:
    compiled = torch.compile(model, backend="aot_eager")
    x = x.requires_grad_()
    check(
        lambda: checkpoint(compiled, x, use_reentrant=reentrant).square().sum().backward(),
        [*parameters_of(model), x],
    )


# --- compiled forwards --------------------------------------------------------------------


def test_compiled_forward_twice_in_one_backward(model: nn.Module, x: Tensor) -> None:
    compiled = torch.compile(model, backend="aot_eager")
    check(lambda: (compiled(x) * compiled(x + 1)).sum().backward(), parameters_of(model))


def test_graph_breaks(model: nn.Module, x: Tensor) -> None:
    def broken(x: Tensor) -> Tensor:
        h = model[0](x)
        torch._dynamo.graph_break()
        h = model[1](h).sin()
        torch._dynamo.graph_break()
        return model[2](h)

    compiled = torch.compile(broken, backend="aot_eager")
    check(lambda: compiled(x).square().sum().backward(), parameters_of(model))


def test_compiled_forward_with_dynamic_sizes(model: nn.Module) -> None:
    parameters = parameters_of(model)
    compiled = torch.compile(model, backend="aot_eager", dynamic=True)
    for compiler in COMPILERS.values():
        ca.reset()
        torch._dynamo.reset()
        with ca.enable(compiler, dynamic=True):
            for n in (5, 7, 9, 4):
                batch = torch.randn(n, 4)
                with ca.disable():
                    clear(parameters)
                    model(batch).square().mean().backward()
                    wanted = gradients(parameters)
                clear(parameters)
                compiled(batch).square().mean().backward()
                assert same(gradients(parameters), wanted), n


def test_missing_gradients_of_dynamic_size(model: nn.Module) -> None:
    """GIVEN an output of a compiled forward that the loss does not use WHEN its size changes
    THEN the zeros that stand for its gradient follow."""
    parameters = parameters_of(model)

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        h = model(x)
        return h.sin(), h.cos() * 2

    compiled = torch.compile(two, backend="aot_eager", dynamic=True)
    for compiler in COMPILERS.values():
        ca.reset()
        torch._dynamo.reset()
        with captures() as found, ca.enable(compiler, dynamic=True):
            for n in (5, 7, 9):
                batch = torch.randn(n, 4)
                with ca.disable():
                    clear(parameters)
                    two(batch)[0].square().mean().backward()
                    wanted = gradients(parameters)
                clear(parameters)
                compiled(batch)[0].square().mean().backward()
                for got, want in zip(gradients(parameters), wanted, strict=True):
                    torch.testing.assert_close(got, want)
        assert len(found) == 1, [c.reason for c in found]


def test_operators_at_capture(x: Tensor) -> None:
    """GIVEN a C++ node that runs operators while it is captured WHEN they see inputs THEN the
    graph holds for those shapes only and says so; WHEN they see a gradient THEN it is refused."""
    tracer_class = ca.AutogradCompilerInstance
    original = tracer_class.apply_functional
    w = torch.randn(4, requires_grad=True)

    def on_inputs(self: Any, name: str, grads: Any, args: Any, metadata: Any) -> Any:
        if name == "MulBackward0":
            saved = [a for a in args if isinstance(a, Tensor)]
            args = [a * 1 if a is saved[0] else a for a in args]
        return original(self, name, grads, args, metadata)

    def on_gradients(self: Any, name: str, grads: Any, args: Any, metadata: Any) -> Any:
        return original(self, name, [g * 1 for g in grads], args, metadata)

    with pytest.MonkeyPatch.context() as patch, ca.enable(COMPILERS["as_it_is"], dynamic=True):
        patch.setattr(tracer_class, "apply_functional", on_inputs)
        (w * x).sum().backward()
        assert torch.equal(w.grad, x.sum(0))
        w.grad = None
        with pytest.raises(ca.StaleCaptureError, match="holds for input"):
            (w * x[:2]).sum().backward()
        assert w.grad is None
        _torch_compat.clear_cache()
        patch.setattr(tracer_class, "apply_functional", on_gradients)
        with pytest.raises(ca.CaptureError, match="on a gradient whose shape is not known"):
            (w * x).sum().backward()
        assert w.grad is None


def test_tensor_subclass_through_aot() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    w = nn.Parameter(TwoTensor(torch.randn(3, 3), torch.randn(3, 3)))
    x = torch.randn(2, 3)

    @torch.compile(backend="aot_eager")
    def f(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin()

    f(x, w).sum().backward()
    assert isinstance(w.grad, TwoTensor)
    wanted = w.grad.a.clone(), w.grad.b.clone()
    for name, compiler in COMPILERS.items():
        ca.reset()
        w.grad = None
        with captures() as found, ca.enable(compiler, dynamic=False):
            f(x, w).sum().backward()
        assert isinstance(w.grad, TwoTensor), name
        assert same((w.grad.a, w.grad.b), wanted)
        assert len(found) == 1


def test_hooks_inside_a_compiled_forward(model: nn.Module, x: Tensor) -> None:
    """Dynamo hands the hook to the backward as backward state, which needs compiled autograd."""

    def f(x: Tensor) -> Tensor:
        h = model[0](x)
        h.register_hook(lambda g: g * 2)
        return model[2](h)

    parameters = parameters_of(model)
    f(x).sum().backward()
    wanted = gradients(parameters)
    compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
    clear(parameters)
    with ca.enable(COMPILERS["aot_eager"], dynamic=False):
        compiled(x).sum().backward()
    assert same(gradients(parameters), wanted)


# --- errors -------------------------------------------------------------------------------


def test_compiled_forward_cannot_be_differentiated_twice(model: nn.Module, x: Tensor) -> None:
    compiled = torch.compile(model, backend="aot_eager")
    x = x.requires_grad_()
    with ca.enable(COMPILERS["as_it_is"]):
        (g,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        # torch itself fails, in the normal engine too; here before it gets to us.
        with pytest.raises((RuntimeError, AttributeError)):
            g.square().sum().backward()
    # and the switch is where it was
    assert not torch._dynamo.compiled_autograd.compiled_autograd_enabled


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_finds_nan(model: nn.Module, x: Tensor) -> None:
    parameters = parameters_of(model)
    with torch.autograd.detect_anomaly(), ca.enable(COMPILERS["as_it_is"]):
        model(x).sum().backward()
        clear(parameters)
        with pytest.raises(RuntimeError, match="returned NaN gradients for inputs"):
            (model(x) * float("nan")).sum().backward()
        clear(parameters)
        with pytest.raises(RuntimeError, match="returned NaN gradients for"):
            torch.autograd.grad((model(x) * float("nan")).sum(), parameters)


def test_error_in_a_hook_reaches_the_user_and_leaves_a_clean_state(
    model: nn.Module, x: Tensor
) -> None:
    parameters = parameters_of(model)

    def hook(grad: Tensor) -> None:
        raise ZeroDivisionError("in a hook")

    handle = parameters[0].register_hook(hook)
    with ca.enable(COMPILERS["as_it_is"]):
        with pytest.raises(ZeroDivisionError, match="in a hook"):
            model(x).sum().backward()
        handle.remove()
        clear(parameters)
        model(x).sum().backward()
    wanted = gradients(parameters)
    clear(parameters)
    model(x).sum().backward()
    assert same(gradients(parameters), wanted)


def test_error_of_the_compiler_reaches_the_user(model: nn.Module, x: Tensor) -> None:
    def compiler(graph: Any) -> Any:
        raise ZeroDivisionError("in the compiler")

    with ca.enable(compiler), pytest.raises(ZeroDivisionError, match="in the compiler"):
        model(x).sum().backward()
    model(x).sum().backward()  # the normal engine works
