"""Each pass, before and after, on graphs made by hand; and the memory pass on random ones."""

from __future__ import annotations

import operator
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import TestCase
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from memprof import compiled_autograd as ca
from memprof.compiled_autograd import _torch_compat as compat
from memprof.compiled_autograd import passes
from memprof.compiled_autograd.memory import Blocks, node_memory, peak
from memprof.compiled_autograd.node_meta import (
    GRADIENT_GROUP,
    INPUT_GROUP,
    ORIGIN,
    VALUE,
    NodeOrigin,
    of_sizes,
)
from memprof.compiled_autograd.nodes import call_hook
from memprof.compiled_autograd.tracer import PLACEHOLDERS

from .support import compact

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")
TAKES_GRADIENT = torch.__version__ >= "2.13"


class Builder:
    """A captured graph, written down."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.args = {name: self.graph.placeholder(name) for name in PLACEHOLDERS}
        self.call_index = 0
        self.last_item = self.args[PLACEHOLDERS[-1]]

    def item(self, name: str, index: int, *sizes: int, persistent: bool = False, **kw: Any) -> Node:
        """``<name>[index]``, at the top with the others, where the tracer puts it."""
        with self.graph.inserting_after(self.last_item):
            node = self.graph.call_function(operator.getitem, (self.args[name], index))
        self.last_item = node
        if name == "inputs":
            device = kw.get("device", CPU)
            node.meta[VALUE] = of_sizes(sizes, torch.float32, device, persistent=persistent)
            node.meta[INPUT_GROUP] = kw.get("group", index)
        return node

    def call(
        self, target: Any, *args: Any, sizes: tuple[int, ...] | None = None, **kw: Any
    ) -> Node:
        node = self.graph.call_function(target, args, kw)
        node.meta[ORIGIN] = NodeOrigin("Node", self.call_index)
        if sizes is not None:
            node.meta[VALUE] = of_sizes(sizes, torch.float32, CPU)
        return node

    def hook(self, index: int, kind: str, *args: Any) -> Node:
        return self.call(call_hook, self.item("hooks", index), *args, hook_type=kind)

    def accumulate(self, variable: Node, current: Node | None, new: Node) -> Node:
        args = (variable, current, new) if TAKES_GRADIENT else (variable, new)
        return self.call(compat.call_accumulate_grad, *args, False)

    def text(self) -> str:
        if not any(n.op == "output" for n in self.graph.nodes):
            self.graph.output([])
        self.graph.lint()
        # Up to torch 2.12 an accumulation has no argument for the gradient until now.
        return compact(self.graph).replace(", None,", ",")


class TestPasses(TestCase):
    def test_dead_code(self) -> None:
        """Functions go; hooks, functions of the user, accumulations and items stay."""
        b = Builder()
        p, x = b.item("inputs", 0, 2), b.item("inputs", 1, 2)
        b.call(aten.sin.default, x)
        b.call(compat.call_backward, b.item("hooks", 0), [], x)
        b.hook(1, "post_hook", [], [x])
        b.accumulate(p, None, b.call(aten.cos.default, x))
        b.call(compat.run_final_callbacks)
        self.assertExpectedInline(
            b.text(),
            """\
sin_default = sin.default(inputs[1])
call_backward = call_backward(hooks[0], [], inputs[1])
call_hook = call_hook(hooks[1], [], [inputs[1]], post_hook)
cos_default = cos.default(inputs[1])
call_accumulate_grad = call_accumulate_grad(inputs[0], cos_default, False)
_exec_final_callbacks_stub = _exec_final_callbacks_stub()
return []""",
        )
        passes.remove_dead_code(b.graph)
        self.assertExpectedInline(
            b.text(),
            """\
call_backward = call_backward(hooks[0], [], inputs[1])
call_hook = call_hook(hooks[1], [], [inputs[1]], post_hook)
cos_default = cos.default(inputs[1])
call_accumulate_grad = call_accumulate_grad(inputs[0], cos_default, False)
_exec_final_callbacks_stub = _exec_final_callbacks_stub()
return []""",
        )

    def test_unused_sizes(self) -> None:
        b = Builder()
        b.item("sizes", 0)
        used = b.item("sizes", 1)
        b.item("sizes", 2)
        also = b.item("sizes", 3)
        x = b.item("inputs", 0, 2)
        y = b.call(aten.view.default, x, [used, also])
        b.graph.output([y])
        assert passes.remove_unused_sizes(b.graph) == (1, 3)
        self.assertExpectedInline(
            b.text(),
            """\
view_default = view.default(inputs[0], [sizes[0], sizes[1]])
return [view_default]""",
        )

    def test_unpack_hooks_late(self) -> None:
        """To the first user, but not past other Python code."""
        b = Builder()
        x = b.item("inputs", 0, 2)
        stays = b.hook(0, "unpack_hook", b.item("packed_data", 0))
        first = b.hook(1, "unpack_hook", b.item("packed_data", 1))
        second = b.hook(2, "unpack_hook", b.item("packed_data", 2))
        y = b.call(aten.sin.default, x)
        y = b.call(aten.mul.Tensor, y, first)
        y = b.call(aten.mul.Tensor, b.call(aten.cos.default, y), second)
        b.call(compat.call_backward, b.item("hooks", 3), [], y)
        b.graph.output([b.call(aten.mul.Tensor, y, stays)])
        self.assertExpectedInline(
            b.text(),
            """\
call_hook = call_hook(hooks[0], packed_data[0], unpack_hook)
call_hook_1 = call_hook(hooks[1], packed_data[1], unpack_hook)
call_hook_2 = call_hook(hooks[2], packed_data[2], unpack_hook)
sin_default = sin.default(inputs[0])
mul_tensor = mul.Tensor(sin_default, call_hook_1)
cos_default = cos.default(mul_tensor)
mul_tensor_1 = mul.Tensor(cos_default, call_hook_2)
call_backward = call_backward(hooks[3], [], mul_tensor_1)
mul_tensor_2 = mul.Tensor(mul_tensor_1, call_hook)
return [mul_tensor_2]""",
        )
        passes.unpack_hooks_late(b.graph)
        self.assertExpectedInline(
            b.text(),
            """\
sin_default = sin.default(inputs[0])
call_hook = call_hook(hooks[0], packed_data[0], unpack_hook)
call_hook_1 = call_hook(hooks[1], packed_data[1], unpack_hook)
mul_tensor = mul.Tensor(sin_default, call_hook_1)
cos_default = cos.default(mul_tensor)
call_hook_2 = call_hook(hooks[2], packed_data[2], unpack_hook)
mul_tensor_1 = mul.Tensor(cos_default, call_hook_2)
call_backward = call_backward(hooks[3], [], mul_tensor_1)
mul_tensor_2 = mul.Tensor(mul_tensor_1, call_hook)
return [mul_tensor_2]""",
        )

    def test_accumulate_grad_asap(self) -> None:
        """With the hooks before it, right behind what it needs; a hook stays behind who reads
        what it is given."""
        b = Builder()
        p, q = b.item("inputs", 0, 2, persistent=True), b.item("inputs", 1, 2, persistent=True)
        x = b.item("inputs", 2, 2)
        g, k = b.call(aten.sin.default, x), b.call(aten.tan.default, x)
        b.call_index = 1
        h = b.call(aten.cos.default, g)
        h = b.call(aten.exp.default, h)
        b.call_index = 2
        b.accumulate(p, None, b.hook(0, "tensor_pre_hook", g))
        b.call_index = 3
        b.accumulate(q, None, k)
        b.graph.output([h])
        self.assertExpectedInline(
            b.text(),
            """\
sin_default = sin.default(inputs[2])
tan_default = tan.default(inputs[2])
cos_default = cos.default(sin_default)
exp_default = exp.default(cos_default)
call_hook = call_hook(hooks[0], sin_default, tensor_pre_hook)
call_accumulate_grad = call_accumulate_grad(inputs[0], call_hook, False)
call_accumulate_grad_1 = call_accumulate_grad(inputs[1], tan_default, False)
return [exp_default]""",
        )
        passes.accumulate_grad_asap(b.graph)
        self.assertExpectedInline(
            b.text(),
            """\
sin_default = sin.default(inputs[2])
tan_default = tan.default(inputs[2])
call_accumulate_grad_1 = call_accumulate_grad(inputs[1], tan_default, False)
cos_default = cos.default(sin_default)
call_hook = call_hook(hooks[0], sin_default, tensor_pre_hook)
call_accumulate_grad = call_accumulate_grad(inputs[0], call_hook, False)
exp_default = exp.default(cos_default)
return [exp_default]""",
        )

    def test_accumulation_stays_behind_readers_of_the_gradient(self) -> None:
        b = Builder()
        p = b.item("inputs", 0, 2, persistent=True)
        p.meta[GRADIENT_GROUP] = 7
        current, alias = b.item("inputs", 1, 2, group=7), b.item("inputs", 2, 2, group=7)
        x = b.item("inputs", 3, 2)
        g = b.call(aten.sin.default, x)
        view = b.call(aten.t.default, alias)
        reads = b.call(aten.mul.Tensor, view, x)
        b.call(aten.cos.default, g)
        b.call_index = 2
        b.accumulate(p, current, g)
        b.graph.output([reads])
        passes.accumulate_grad_asap(b.graph)
        text = b.text().replace("inputs[0], inputs[1],", "inputs[0],")
        self.assertExpectedInline(
            text,
            """\
sin_default = sin.default(inputs[3])
t_default = t.default(inputs[2])
mul_tensor = mul.Tensor(t_default, inputs[3])
call_accumulate_grad = call_accumulate_grad(inputs[0], sin_default, False)
cos_default = cos.default(sin_default)
return [mul_tensor]""",
        )

    def test_hooks_as_eager(self) -> None:
        """Behind their accumulation, in order; but behind who reads the parameter, too."""
        b = Builder()
        p, q = b.item("inputs", 0, 2, persistent=True), b.item("inputs", 1, 2, persistent=True)
        x = b.item("inputs", 2, 2)
        g = b.call(aten.sin.default, x)
        b.call_index = 1
        b.accumulate(p, None, g)
        b.call_index = 2
        b.accumulate(q, None, g)
        b.call_index = 3
        reads = b.call(aten.mul.Tensor, b.call(aten.t.default, q), g)
        b.call(aten.cos.default, reads)
        b.call_index = 1
        b.hook(0, "post_acc_grad_hook", p)
        b.hook(1, "post_hook", [], [g])
        b.call_index = 2
        b.hook(2, "post_acc_grad_hook", q)
        self.assertExpectedInline(
            b.text(),
            """\
sin_default = sin.default(inputs[2])
call_accumulate_grad = call_accumulate_grad(inputs[0], sin_default, False)
call_accumulate_grad_1 = call_accumulate_grad(inputs[1], sin_default, False)
t_default = t.default(inputs[1])
mul_tensor = mul.Tensor(t_default, sin_default)
cos_default = cos.default(mul_tensor)
call_hook = call_hook(hooks[0], inputs[0], post_acc_grad_hook)
call_hook_1 = call_hook(hooks[1], [], [sin_default], post_hook)
call_hook_2 = call_hook(hooks[2], inputs[1], post_acc_grad_hook)
return []""",
        )
        passes.hooks_as_eager(b.graph)
        self.assertExpectedInline(
            b.text(),
            """\
sin_default = sin.default(inputs[2])
call_accumulate_grad = call_accumulate_grad(inputs[0], sin_default, False)
call_hook = call_hook(hooks[0], inputs[0], post_acc_grad_hook)
call_hook_1 = call_hook(hooks[1], [], [sin_default], post_hook)
call_accumulate_grad_1 = call_accumulate_grad(inputs[1], sin_default, False)
t_default = t.default(inputs[1])
mul_tensor = mul.Tensor(t_default, sin_default)
call_hook_2 = call_hook(hooks[2], inputs[1], post_acc_grad_hook)
cos_default = cos.default(mul_tensor)
return []""",
        )

    def test_cpu_scalars_to_gpu(self) -> None:
        b = Builder()
        x = b.item("inputs", 0, 4, device=CUDA)
        moved, seen, matrix = b.item("inputs", 1), b.item("inputs", 2), b.item("inputs", 3, 2)
        b.graph.output([b.call(aten.mul.Tensor, x, moved), b.hook(0, "pre_hook", seen), matrix])
        assert passes.cpu_scalars_to_gpu(b.graph) == {1: CUDA}

    def test_cpu_scalars_go_to_the_gpu_of_the_graph_if_there_is_one(self) -> None:
        second = torch.device("cuda:1")
        b = Builder()
        x, scalar = b.item("inputs", 0, 4, device=second), b.item("inputs", 1)
        b.graph.output([b.call(aten.mul.Tensor, x, scalar)])
        assert passes.cpu_scalars_to_gpu(b.graph) == {1: second}
        b = Builder()
        x, y = b.item("inputs", 0, 4, device=second), b.item("inputs", 1, 4, device=CUDA)
        scalar = b.item("inputs", 2)
        b.graph.output([b.call(aten.mul.Tensor, x, scalar), b.call(aten.mul.Tensor, y, scalar)])
        assert passes.cpu_scalars_to_gpu(b.graph) == {}

    def test_cpu_scalars_stay_in_a_cpu_graph(self) -> None:
        b = Builder()
        x, scalar = b.item("inputs", 0, 4), b.item("inputs", 1)
        b.graph.output([b.call(aten.mul.Tensor, x, scalar)])
        assert passes.cpu_scalars_to_gpu(b.graph) == {}

    def test_memory_order(self) -> None:
        """GIVEN two large values made long before they are used up WHEN reordered THEN each is
        used up before the next is made."""
        b = Builder()
        x = b.item("inputs", 0, 10, persistent=True)
        large = [b.call(aten.expand.default, x, [100, 10], sizes=None) for _ in range(2)]
        made = [b.call(aten.clone.default, v, sizes=(100, 10)) for v in large]
        small = [b.call(aten.sum.default, v, sizes=()) for v in made]
        b.graph.output(small)
        self.assertExpectedInline(
            b.text(),
            """\
expand_default = expand.default(inputs[0], [100, 10])
expand_default_1 = expand.default(inputs[0], [100, 10])
clone_default = clone.default(expand_default)
clone_default_1 = clone.default(expand_default_1)
sum_default = sum.default(clone_default)
sum_default_1 = sum.default(clone_default_1)
return [sum_default, sum_default_1]""",
        )
        order = passes.memory_order(b.graph)
        assert order == (8004, 4008)
        self.assertExpectedInline(
            b.text(),
            """\
expand_default = expand.default(inputs[0], [100, 10])
expand_default_1 = expand.default(inputs[0], [100, 10])
clone_default = clone.default(expand_default)
sum_default = sum.default(clone_default)
clone_default_1 = clone.default(expand_default_1)
sum_default_1 = sum.default(clone_default_1)
return [sum_default, sum_default_1]""",
        )

    def test_nothing_moves_past_python_code(self) -> None:
        b = Builder()
        x = b.item("inputs", 0, 10, persistent=True)
        made = [b.call(aten.mul.Tensor, x, i, sizes=(100, 10)) for i in range(2)]
        b.hook(0, "post_hook", [], [x])
        b.graph.output([b.call(aten.sum.default, v, sizes=()) for v in made])
        before = b.text()
        order = passes.memory_order(b.graph)
        assert order == (8004, 8004)
        assert b.text() == before

    def test_estimate(self) -> None:
        """A view belongs to its base, an input dies after its last use, a parameter counts for
        nothing, its first gradient is a copy that stays."""
        b = Builder()
        p, saved = b.item("inputs", 0, 10, persistent=True), b.item("inputs", 1, 10)
        g = b.call(aten.mul.Tensor, p, saved, sizes=(10,))
        view = b.call(aten.t.default, g, sizes=(10,))
        b.accumulate(p, None, view)
        b.call(aten.sum.default, g, sizes=())
        b.graph.output([])
        found = [(m.node, m.allocated, m.freed, m.live) for m in node_memory(b.graph)]
        assert found[2:] == [
            ("mul_tensor", 40, 40, 80),
            ("t_default", 0, 0, 40),
            ("call_accumulate_grad", 40, 0, 80),
            ("sum_default", 4, 44, 84),
            ("output", 0, 0, 40),
        ]


# --- the memory pass on random graphs -----------------------------------------------------


@st.composite
def programs(draw: Any) -> list[tuple[str, int, int]]:
    """Operations on earlier values: ``(what, first, second)``."""
    count = draw(st.integers(3, 25))
    kinds = st.sampled_from(["mul", "sum", "widen", "t", "accumulate", "hook"])
    return [(draw(kinds), draw(st.integers(0, 99)), draw(st.integers(0, 99))) for _ in range(count)]


def build(program: list[tuple[str, int, int]]) -> Builder:
    b = Builder()
    parameters = [b.item("inputs", i, 8, persistent=True) for i in range(3)]
    gradients = [b.item("inputs", 3 + i, 8) for i in range(3)]
    for i, parameter in enumerate(parameters):
        parameter.meta[GRADIENT_GROUP] = 3 + i
    values: list[tuple[Node, tuple[int, ...]]] = [(p, (8,)) for p in parameters]
    values += [(g, (8,)) for g in gradients]  # saved elsewhere as well
    left = [0, 1, 2]
    hook = b.item("hooks", 0)
    for i, (what, first, second) in enumerate(program):
        b.call_index = i
        (x, size), (y, other) = values[first % len(values)], values[second % len(values)]
        if what == "mul" and size == other:
            values.append((b.call(aten.mul.Tensor, x, y, sizes=size), size))
        elif what == "widen" and size == (8,):
            wide = b.call(aten.unsqueeze.default, x, 0, sizes=size)
            values.append((b.call(aten.repeat.default, wide, [16, 1], sizes=(16, 8)), (16, 8)))
        elif what == "sum" and len(size) == 2:
            values.append((b.call(aten.sum.dim_IntList, x, [0], sizes=size[1:]), size[1:]))
        elif what == "t" and len(size) == 2:
            values.append((b.call(aten.t.default, x, sizes=size[::-1]), size[::-1]))
        elif what == "accumulate" and size == (8,) and left and x not in (*parameters, *gradients):
            at = left.pop()
            b.accumulate(parameters[at], gradients[at], x)
        elif what == "hook":
            node = b.call(call_hook, hook, x, hook_type="tensor_pre_hook", sizes=size)
            values.append((node, size))
    b.graph.output([v for v, _ in values[-3:]])
    return b


def bind_accumulate_grad() -> None:
    """C++ gives torch the function that accumulates when it first captures one."""
    p = torch.ones(1, requires_grad=True)
    ca.capture(lambda: (p * 2).sum().backward())


def run(graph: Graph) -> tuple[list[Tensor], list[Tensor | None], list[float]]:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.randn(8, generator=generator).requires_grad_() for _ in range(3)]
    inputs: list[Tensor] = list(parameters)
    for parameter in parameters:
        parameter.grad = torch.randn(8, generator=generator)
        inputs.append(parameter.grad)
    seen: list[float] = []

    def hook(grad: Tensor) -> Tensor:
        seen.append(float(grad.sum()))
        return grad + 1

    with torch.no_grad():
        outputs = GraphModule({}, graph)(inputs, [], [], [hook], [])
    return [o.clone() for o in outputs], [p.grad for p in parameters], seen


@settings(max_examples=100)
@given(programs())
def test_memory_order_changes_no_result(program: list[tuple[str, int, int]]) -> None:
    """GIVEN any graph WHEN reordered THEN outputs, gradients and what hooks saw are the same
    bits, and the estimated peak is what the pass said and not higher."""
    if not hasattr(compat.ops, "AccumulateGrad"):
        bind_accumulate_grad()
    b = build(program)
    wanted = run(b.graph)
    nodes = [n for n in b.graph.nodes if n.op != "placeholder"]
    before = peak(nodes, Blocks(b.graph))
    order = passes.memory_order(b.graph)
    b.graph.lint()
    got = run(b.graph)
    for a, c in zip((*wanted[0], *wanted[1]), (*got[0], *got[1]), strict=True):
        assert a is not None
        assert c is not None
        assert torch.equal(a, c)
    assert wanted[2] == got[2]
    after = peak([n for n in b.graph.nodes if n.op != "placeholder"], Blocks(b.graph))
    assert order == (before, after)
    assert after <= before
