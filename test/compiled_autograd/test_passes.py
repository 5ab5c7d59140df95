"""Each pass, before and after, on graphs made by hand."""

from __future__ import annotations

import operator
from typing import Any

import torch
from snapshots import TestCase
from torch.fx import Graph, Node

from memprof.compiled_autograd import _torch_compat as compat, passes
from memprof.compiled_autograd.nodes import (
    GRADIENT_GROUP,
    INPUT_GROUP,
    ORIGIN,
    PLACEHOLDERS,
    VALUE,
    NodeOrigin,
    call_hook,
    of_sizes,
)
from memprof.testing import fx_text

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

    def item(self, name: str, index: int, *sizes: int, **kw: Any) -> Node:
        """``<name>[index]``, at the top with the others, where the tracer puts it."""
        with self.graph.inserting_after(self.last_item):
            node = self.graph.call_function(operator.getitem, (self.args[name], index))
        self.last_item = node
        if name == "inputs":
            device = kw.get("device", CPU)
            node.meta[VALUE] = of_sizes(sizes, torch.float32, device)
            node.meta[INPUT_GROUP] = kw.get("group", index)
        return node

    def call(self, target: Any, *args: Any, **kw: Any) -> Node:
        node = self.graph.call_function(target, args, kw)
        node.meta[ORIGIN] = NodeOrigin("Node", self.call_index)
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
        return fx_text(self.graph, engine=True).replace(", None,", ",")


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
call_hook = call_hook(hooks[1], [], [inputs[1]], hook_type=post_hook)
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
call_hook = call_hook(hooks[1], [], [inputs[1]], hook_type=post_hook)
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
call_hook = call_hook(hooks[0], packed_data[0], hook_type=unpack_hook)
call_hook_1 = call_hook(hooks[1], packed_data[1], hook_type=unpack_hook)
call_hook_2 = call_hook(hooks[2], packed_data[2], hook_type=unpack_hook)
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
call_hook = call_hook(hooks[0], packed_data[0], hook_type=unpack_hook)
call_hook_1 = call_hook(hooks[1], packed_data[1], hook_type=unpack_hook)
mul_tensor = mul.Tensor(sin_default, call_hook_1)
cos_default = cos.default(mul_tensor)
call_hook_2 = call_hook(hooks[2], packed_data[2], hook_type=unpack_hook)
mul_tensor_1 = mul.Tensor(cos_default, call_hook_2)
call_backward = call_backward(hooks[3], [], mul_tensor_1)
mul_tensor_2 = mul.Tensor(mul_tensor_1, call_hook)
return [mul_tensor_2]""",
        )

    def test_accumulate_grad_asap(self) -> None:
        """With the hooks before it, right behind what it needs; a hook stays behind who reads
        what it is given."""
        b = Builder()
        p, q = b.item("inputs", 0, 2), b.item("inputs", 1, 2)
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
call_hook = call_hook(hooks[0], sin_default, hook_type=tensor_pre_hook)
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
call_hook = call_hook(hooks[0], sin_default, hook_type=tensor_pre_hook)
call_accumulate_grad = call_accumulate_grad(inputs[0], call_hook, False)
exp_default = exp.default(cos_default)
return [exp_default]""",
        )

    def test_accumulation_stays_behind_readers_of_the_gradient(self) -> None:
        b = Builder()
        p = b.item("inputs", 0, 2)
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
        p, q = b.item("inputs", 0, 2), b.item("inputs", 1, 2)
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
call_hook = call_hook(hooks[0], inputs[0], hook_type=post_acc_grad_hook)
call_hook_1 = call_hook(hooks[1], [], [sin_default], hook_type=post_hook)
call_hook_2 = call_hook(hooks[2], inputs[1], hook_type=post_acc_grad_hook)
return []""",
        )
        passes.hooks_as_eager(b.graph)
        self.assertExpectedInline(
            b.text(),
            """\
sin_default = sin.default(inputs[2])
call_accumulate_grad = call_accumulate_grad(inputs[0], sin_default, False)
call_hook = call_hook(hooks[0], inputs[0], hook_type=post_acc_grad_hook)
call_hook_1 = call_hook(hooks[1], [], [sin_default], hook_type=post_hook)
call_accumulate_grad_1 = call_accumulate_grad(inputs[1], sin_default, False)
t_default = t.default(inputs[1])
mul_tensor = mul.Tensor(t_default, sin_default)
call_hook_2 = call_hook(hooks[2], inputs[1], hook_type=post_acc_grad_hook)
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
