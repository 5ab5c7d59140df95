"""graph_text: the same text wherever the graph is the same."""

from __future__ import annotations

import operator
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from snapshots import TestCase, graph_text

pytestmark = pytest.mark.zero_kernels


class GraphText(TestCase):
    def test_aot_forward_and_backward(self) -> None:
        # GIVEN the graphs that AOTAutograd makes of a linear layer and its gradient
        graphs = _aot_graphs(
            lambda x, w: F.relu(x @ w.t()).sum(),
            torch.randn(4, 8, requires_grad=True),
            torch.randn(3, 8, requires_grad=True),
        )
        # THEN names, targets, shapes and strides are canonical
        forward, backward = graphs
        self.assertGraph(
            forward,
            """\
graph:
    arg0 = input : float32[3, 8]
    arg1 = input : float32[4, 8]
    t = aten.t.default(arg0) : float32[8, 3] stride (1, 8)
    mm = aten.mm.default(arg1, t) : float32[4, 3]
    relu = aten.relu.default(mm) : float32[4, 3]
    detach = aten.detach.default(relu) : float32[4, 3]
    sum = aten.sum.default(relu) : float32[]
    return (sum, arg1, t, detach)
""",
        )
        self.assertGraph(
            backward,
            """\
graph:
    arg0 = input : float32[4, 8]
    arg1 = input : float32[8, 3] stride (1, 8)
    arg2 = input : float32[4, 3]
    arg3 = input : float32[]
    expand = aten.expand.default(arg3, [4, 3]) : float32[4, 3] stride (0, 0)
    detach = aten.detach.default(arg2) : float32[4, 3]
    threshold_backward = aten.threshold_backward.default(expand, detach, 0) : float32[4, 3]
    t = aten.t.default(threshold_backward) : float32[3, 4] stride (1, 3)
    mm = aten.mm.default(t, arg0) : float32[3, 8]
    t_1 = aten.t.default(mm) : float32[8, 3] stride (1, 8)
    t_2 = aten.t.default(arg1) : float32[3, 8]
    mm_1 = aten.mm.default(threshold_backward, t_2) : float32[4, 8]
    t_3 = aten.t.default(t_1) : float32[3, 8]
    return (t_3, mm_1)
""",
        )

    def test_factory_keeps_what_and_drops_where(self) -> None:
        # GIVEN a factory call, whose device, layout and pinning say only where
        gm = make_fx(lambda x: torch.zeros(2, 3, dtype=torch.int64) + x, tracing_mode="fake")(
            torch.ones(3, dtype=torch.int64)
        )
        self.assertGraph(
            gm,
            """\
graph:
    arg0 = input : int64[3]
    zeros = aten.zeros.default([2, 3], dtype=int64) : int64[2, 3]
    add = aten.add.Tensor(zeros, arg0) : int64[2, 3]
    return add
""",
        )

    def test_dynamic_shapes_number_symbols_in_order(self) -> None:
        gm = make_fx(lambda x, y: (x.sum(0), y.new_empty(y.shape[0] * 2)), tracing_mode="symbolic")(
            torch.randn(5, 7), torch.randn(9)
        )
        self.assertGraph(
            gm,
            """\
graph:
    arg0 = input : float32[s0, s1]
    arg1 = input : float32[s2]
    sum = aten.sum.dim_IntList(arg0, [0]) : float32[s1]
    sym_size = aten.sym_size.int(arg1, 0) : SymInt s2
    mul = mul(sym_size, 2) : SymInt 2*s2
    new_empty = aten.new_empty.default(arg1, [mul]) : float32[2*s2]
    return (sum, new_empty)
""",
        )

    def test_subgraphs_follow(self) -> None:
        def f(x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

        gm = make_fx(f, tracing_mode="fake")(torch.randn(3))
        self.assertGraph(
            gm,
            """\
graph:
    arg0 = input : float32[3]
    sum = aten.sum.default(arg0) : float32[]
    gt = aten.gt.Scalar(sum, 0) : bool[]
    subgraph0 = graph
    subgraph1 = graph
    cond = higher_order.cond(gt, subgraph0, subgraph1, (arg0,)) : (float32[3])
    getitem = getitem(cond, 0) : float32[3]
    return getitem

subgraph0:
    arg0 = input : float32[3]
    sin = aten.sin.default(arg0) : float32[3]
    return (sin,)

subgraph1:
    arg0 = input : float32[3]
    cos = aten.cos.default(arg0) : float32[3]
    return (cos,)
""",
        )

    def test_dynamo_graph(self) -> None:
        # GIVEN the graph that Dynamo gives a backend: functions, methods, modules' parameters
        captured: list[GraphModule] = []

        def backend(gm: GraphModule, inputs: list[Tensor]) -> GraphModule:
            captured.append(gm)
            return gm

        class M(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(4, 2)

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                a, b = self.fc(x).tanh().chunk(2)
                return F.gelu(a), operator.add(a, b)

        torch.compile(M(), backend=backend)(torch.randn(6, 4))
        self.assertGraph(
            captured[0],
            """\
graph:
    arg0 = input : float32[2, 4]
    arg1 = input : float32[2]
    arg2 = input : float32[6, 4]
    linear = torch.linear(arg2, arg0, arg1) : float32[6, 2]
    tanh = Tensor.tanh(linear) : float32[6, 2]
    chunk = Tensor.chunk(tanh, 2) : (float32[3, 2], float32[3, 2])
    getitem = getitem(chunk, 0) : float32[3, 2]
    getitem_1 = getitem(chunk, 1) : float32[3, 2]
    gelu = torch.gelu(getitem) : float32[3, 2]
    add = add(getitem, getitem_1) : float32[3, 2]
    return (gelu, add)
""",
        )


def _aot_graphs(fn: Callable[..., Tensor], *args: Tensor) -> list[GraphModule]:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[GraphModule] = []

    def keep(gm: GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        graphs.append(gm)
        return make_boxed_func(gm.forward)

    torch.compile(fn, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))(*args).backward()
    return graphs


def _chain(names: list[str]) -> GraphModule:
    graph = Graph()
    node = graph.create_node("placeholder", names[0], name=names[0])
    for name in names[1:]:
        node = graph.create_node("call_function", torch.ops.aten.sin.default, (node,), name=name)
    graph.output(node)
    return GraphModule(nn.Module(), graph)


def test_node_names_do_not_matter() -> None:
    assert graph_text(_chain(["x", "a", "b"])) == graph_text(_chain(["y_1", "sin_7", "sin_2"]))


def test_different_graphs_differ() -> None:
    assert graph_text(_chain(["x", "a"])) != graph_text(_chain(["x", "a", "b"]))


def test_default_arguments_do_not_matter_and_others_do() -> None:
    def add(*args: object, **kwargs: object) -> str:
        graph = Graph()
        x = graph.placeholder("x")
        graph.output(graph.call_function(torch.ops.aten.add.Tensor, (x, x, *args), kwargs))
        return graph_text(GraphModule(nn.Module(), graph))

    assert add() == add(alpha=1)
    assert add() != add(alpha=2)
    assert "alpha=2" in add(alpha=2)


def test_device_does_not_matter() -> None:
    def zeros(device: str) -> str:
        gm = make_fx(lambda x: x + torch.zeros(3, device=device), tracing_mode="fake")(
            torch.zeros(3, device=device)
        )
        return graph_text(gm)

    assert "zeros" in zeros("cpu")
    assert zeros("cpu") == zeros("meta")


def test_wants_a_graph_module() -> None:
    with pytest.raises(TypeError, match=r"wants a torch\.fx\.GraphModule, got Linear"):
        graph_text(nn.Linear(2, 2))  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
